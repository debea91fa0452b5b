//! `Runs` is a map from numbers to values that stores consecutive numbers with equal values as one run.
//!
//! Nearly all zones of a job are in the same state. So what a node holds about all of them is a few runs, and two such
//! maps are compared run by run. The numbers of the zones of one level are consecutive (`zone_number`).

use std::ops::Range;

/// Consecutive numbers with equal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run<V> {
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) value: V,
}

impl<V> Run<V> {
    fn end(&self) -> u32 {
        self.first + self.count
    }

    pub(crate) fn numbers(&self) -> Range<u32> {
        self.first..self.end()
    }
}

/// A map from numbers to values. Neighbouring runs have different values, so equal maps have equal runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Runs<V> {
    /// In the order of the numbers.
    runs: Vec<Run<V>>,
}

impl<V> Default for Runs<V> {
    fn default() -> Self {
        Self { runs: Vec::new() }
    }
}

impl<V: Copy + PartialEq> Runs<V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(crate) fn get(&self, number: u32) -> Option<V> {
        let place = self.runs.partition_point(|run| run.end() <= number);
        let run = self.runs.get(place)?;
        (run.first <= number).then_some(run.value)
    }

    /// The runs, in the order of the numbers.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run<V>> + '_ {
        self.runs.iter().copied()
    }

    /// The numbers with their values, in the order of the numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, V)> + '_ {
        let runs = self.runs.iter();
        runs.flat_map(|run| run.numbers().map(|number| (number, run.value)))
    }

    /// The parts of runs that are in a range.
    pub(crate) fn within(&self, range: Range<u32>) -> impl Iterator<Item = Run<V>> + '_ {
        let first = self.runs.partition_point(|run| run.end() <= range.start);
        let runs = self.runs[first..].iter();
        let end = range.end;
        let runs = runs.take_while(move |run| run.first < end);
        runs.map(move |run| {
            let first = run.first.max(range.start);
            Run {
                first,
                count: run.end().min(end) - first,
                value: run.value,
            }
        })
    }

    /// Appends numbers behind all others.
    pub(crate) fn push(&mut self, run: Run<V>) {
        match self.runs.last_mut() {
            _ if run.count == 0 => {}
            Some(last) if last.end() == run.first && last.value == run.value => {
                last.count += run.count;
            }
            _ => self.runs.push(run),
        }
    }

    /// Gives room back that is not used.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.runs.shrink_to_fit();
    }

    /// Sets the value of one number.
    pub(crate) fn insert(&mut self, number: u32, value: V) {
        let place = self.runs.partition_point(|run| run.end() <= number);
        match self.runs.get(place) {
            Some(run) if run.first <= number && run.value == value => return,
            None => {
                let (first, count) = (number, 1);
                return self.push(Run {
                    first,
                    count,
                    value,
                });
            }
            _ => {}
        }
        let one = Self {
            runs: vec![Run {
                first: number,
                count: 1,
                value,
            }],
        };
        *self = self.merge(&one, |held, new| new.or(held));
    }

    /// Removes consecutive numbers.
    pub(crate) fn remove(&mut self, numbers: Range<u32>) {
        let removed = Runs::from_iter([Run {
            first: numbers.start,
            count: numbers.end - numbers.start,
            value: (),
        }]);
        *self = self.merge(&removed, |held, removed| held.filter(|_| removed.is_none()));
    }

    /// Takes all values of another map.
    pub(crate) fn extend(&mut self, other: &Self) {
        if !other.is_empty() {
            *self = self.merge(other, |held, new| new.or(held));
        }
    }

    /// The same numbers with other values; those without a value are left out.
    pub(crate) fn filter_map<W: Copy + PartialEq>(
        &self,
        value: impl Fn(V) -> Option<W>,
    ) -> Runs<W> {
        let runs = self.runs.iter().filter_map(|run| {
            Some(Run {
                first: run.first,
                count: run.count,
                value: value(run.value)?,
            })
        });
        runs.collect()
    }

    /// The numbers of two maps with what `value` makes of both values. Numbers without a value are left out.
    pub(crate) fn merge<U: Copy + PartialEq, W: Copy + PartialEq>(
        &self,
        other: &Runs<U>,
        value: impl Fn(Option<V>, Option<U>) -> Option<W>,
    ) -> Runs<W> {
        let mut merged = Runs::default();
        let (mut ours, mut theirs) = (self.runs.iter().peekable(), other.runs.iter().peekable());
        let mut at = 0;
        loop {
            while ours.next_if(|run| run.end() <= at).is_some() {}
            while theirs.next_if(|run| run.end() <= at).is_some() {}
            let (one, other) = (ours.peek().copied(), theirs.peek().copied());
            let bounds = [
                one.map(|run| bound(run, at)),
                other.map(|run| bound(run, at)),
            ];
            let Some(end) = bounds.into_iter().flatten().min() else {
                return merged;
            };
            let ours = one.filter(|run| run.first <= at).map(|run| run.value);
            let theirs = other.filter(|run| run.first <= at).map(|run| run.value);
            if let Some(value) = value(ours, theirs).filter(|_| ours.is_some() || theirs.is_some())
            {
                let (first, count) = (at, end - at);
                merged.push(Run {
                    first,
                    count,
                    value,
                });
            }
            at = end;
        }
    }
}

/// Where a run that ends behind a number begins, or ends if it has begun.
fn bound<V>(run: &Run<V>, at: u32) -> u32 {
    match run.first > at {
        true => run.first,
        false => run.end(),
    }
}

impl Runs<u32> {
    /// The sum of all values.
    pub(crate) fn total(&self) -> u32 {
        self.runs.iter().map(|run| run.count * run.value).sum()
    }
}

impl<V: Copy + PartialEq> FromIterator<Run<V>> for Runs<V> {
    /// The runs are in the order of the numbers.
    fn from_iter<I: IntoIterator<Item = Run<V>>>(runs: I) -> Self {
        let mut all = Self::default();
        runs.into_iter().for_each(|run| all.push(run));
        all
    }
}

impl<V: Copy + PartialEq> FromIterator<(u32, V)> for Runs<V> {
    /// The numbers are in their order.
    fn from_iter<I: IntoIterator<Item = (u32, V)>>(numbers: I) -> Self {
        let numbers = numbers.into_iter();
        numbers
            .map(|(first, value)| Run {
                first,
                count: 1,
                value,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn any_map() -> impl Strategy<Value = BTreeMap<u32, u8>> {
        prop::collection::btree_map(0u32..40, 0u8..3, 0..40)
    }

    fn runs_of(map: &BTreeMap<u32, u8>) -> Runs<u8> {
        map.iter()
            .map(|(number, value)| (*number, *value))
            .collect()
    }

    fn map_of(runs: &Runs<u8>) -> BTreeMap<u32, u8> {
        runs.iter().collect()
    }

    proptest! {
        #[test]
        fn runs_hold_what_a_map_holds(map in any_map(), number in 0u32..50, value in 0u8..3) {
            let mut runs = runs_of(&map);
            prop_assert_eq!(runs.get(number), map.get(&number).copied());
            prop_assert_eq!(&map_of(&runs), &map);
            let mut changed = map;
            changed.insert(number, value);
            runs.insert(number, value);
            prop_assert_eq!(&runs, &runs_of(&changed));
            let range = number.saturating_sub(7)..number;
            let within: Runs<u8> = runs.within(range.clone()).collect();
            let part = changed.range(range.clone()).map(|(number, value)| (*number, *value));
            prop_assert_eq!(within, part.collect());
            let mut rest = runs.clone();
            rest.remove(range.clone());
            let part = changed.iter().filter(|(number, _)| !range.contains(number));
            prop_assert_eq!(rest, part.map(|(number, value)| (*number, *value)).collect());
            let is_one = |pair: &[Run<u8>]| pair[0].end() == pair[1].first && pair[0].value == pair[1].value;
            prop_assert!(!runs.runs.windows(2).any(is_one));
        }

        #[test]
        fn two_maps_merge(one in any_map(), other in any_map()) {
            let value = |ours: Option<u8>, theirs: Option<u8>| match (ours, theirs) {
                (Some(0), Some(0)) => None,
                (Some(ours), theirs) => Some(ours + theirs.unwrap_or(5)),
                (None, theirs) => theirs.filter(|theirs| *theirs > 0),
            };
            let merged = runs_of(&one).merge(&runs_of(&other), value);
            let numbers = (0..50).filter_map(|number| {
                let (ours, theirs) = (one.get(&number).copied(), other.get(&number).copied());
                if ours.is_none() && theirs.is_none() {
                    return None;
                }
                Some((number, value(ours, theirs)?))
            });
            prop_assert_eq!(merged, numbers.collect());
            let mut extended = runs_of(&one);
            extended.extend(&runs_of(&other));
            let mut both = one;
            both.extend(other);
            prop_assert_eq!(extended, runs_of(&both));
        }
    }
}
