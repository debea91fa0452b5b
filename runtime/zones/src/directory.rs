//! `Directory` is the ordered list of the nodes of a job: a node's number is its place in the list, the same on every
//! node.
//!
//! Consecutive names such as `n0001`, `n0002`, ... are stored as one run, so the directory of a million nodes needs
//! a few bytes per rack, not a string per node.

use std::collections::BTreeMap;
use std::fmt;

use muster_protocol::NAME_MAX;

use crate::error::MapError;
use crate::limits::NODES_MAX;

/// A node's place in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u32);

impl fmt::Display for NodeIndex {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

/// Names that differ only in their last number, which rises by one from name to name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    /// Index of the first name.
    index: u32,
    /// How many names.
    count: u32,
    pattern: Pattern,
    /// The number of the first name.
    first: u64,
}

/// What the names of a run have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pattern {
    before: Box<str>,
    behind: Box<str>,
    /// Digits of the number if it has leading zeros, 0 if it has none.
    width: u8,
    /// Whether there is a number. A name without a number is a run of its own.
    has_number: bool,
}

/// The nodes of a job, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    runs: Vec<Run>,
    /// The numbers of runs with one pattern, by first number.
    by_pattern: BTreeMap<Pattern, Vec<u32>>,
    count: u32,
}

impl Directory {
    /// The directory of these names, in their order.
    ///
    /// # Errors
    /// No names, too many, a name that cannot be a node's, or a name that occurs twice.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, MapError> {
        let mut directory = Self::default();
        for name in names {
            directory.push(name)?;
        }
        if directory.count == 0 {
            return Err(MapError::Empty);
        }
        directory.order_runs()?;
        Ok(directory)
    }

    fn push(&mut self, name: &str) -> Result<(), MapError> {
        let is_valid =
            (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_graphic());
        if !is_valid {
            return Err(MapError::Name(name.to_owned()));
        }
        if self.count as usize == NODES_MAX {
            return Err(MapError::TooManyNodes);
        }
        let (pattern, number) = split(name);
        let index = self.count;
        self.count += 1;
        if let Some(run) = self.runs.last_mut() {
            let next = run.first + u64::from(run.count);
            if run.pattern == pattern && pattern.has_number && number == next {
                run.count += 1;
                return Ok(());
            }
        }
        self.runs.push(Run {
            index,
            count: 1,
            pattern,
            first: number,
        });
        Ok(())
    }

    /// Sorts the runs of each pattern by number, and finds names that occur twice.
    fn order_runs(&mut self) -> Result<(), MapError> {
        for (place, run) in self.runs.iter().enumerate() {
            let runs = self.by_pattern.entry(run.pattern.clone()).or_default();
            runs.push(place as u32);
        }
        for places in self.by_pattern.values_mut() {
            places.sort_by_key(|place| self.runs[*place as usize].first);
            for pair in places.windows(2) {
                let [one, next] = [pair[0], pair[1]].map(|place| &self.runs[place as usize]);
                if next.first < one.first + u64::from(one.count) {
                    return Err(MapError::Twice(next.pattern.name(next.first)));
                }
            }
        }
        Ok(())
    }

    /// How many nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is no node. A checked directory has at least one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The name of a node.
    #[must_use]
    pub fn name(&self, node: NodeIndex) -> Option<String> {
        let place = self.runs.partition_point(|run| run.index <= node.0);
        let run = self.runs.get(place.checked_sub(1)?)?;
        let offset = node.0 - run.index;
        (offset < run.count).then(|| run.pattern.name(run.first + u64::from(offset)))
    }

    /// The place of a name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeIndex> {
        let (pattern, number) = split(name);
        let places = self.by_pattern.get(&pattern)?;
        let place = places.partition_point(|place| self.runs[*place as usize].first <= number);
        let run = &self.runs[*places.get(place.checked_sub(1)?)? as usize];
        let offset = number - run.first;
        (offset < u64::from(run.count)).then(|| NodeIndex(run.index + offset as u32))
    }

    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.runs.iter().flat_map(|run| {
            let numbers = run.first..run.first + u64::from(run.count);
            numbers.map(|number| run.pattern.name(number))
        })
    }

    /// Number of stored runs: what the directory costs.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.runs.len()
    }
}

impl Pattern {
    fn name(&self, number: u64) -> String {
        let width = usize::from(self.width);
        match self.has_number {
            true => format!("{}{number:0width$}{}", self.before, self.behind),
            false => self.before.to_string(),
        }
    }
}

/// Splits a name around its last number. A number that is too long for a run is text.
fn split(name: &str) -> (Pattern, u64) {
    let text = || Pattern {
        before: name.into(),
        behind: "".into(),
        width: 0,
        has_number: false,
    };
    let Some(end) = name.rfind(|c: char| c.is_ascii_digit()).map(|at| at + 1) else {
        return (text(), 0);
    };
    let start = name[..end]
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |at| at + 1);
    let digits = &name[start..end];
    // With 18 digits no run of at most `NODES_MAX` names overflows.
    if digits.len() > 18 {
        return (text(), 0);
    }
    let number: u64 = digits.parse().unwrap_or(0);
    let is_padded = digits.len() > 1 && digits.starts_with('0');
    let width = if is_padded { digits.len() as u8 } else { 0 };
    let pattern = Pattern {
        before: name[..start].into(),
        behind: name[end..].into(),
        width,
        has_number: true,
    };
    (pattern, number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(names: &[&str]) -> Result<Directory, MapError> {
        Directory::new(names.iter().copied())
    }

    #[test]
    fn names_and_places_are_inverse() {
        let names = [
            "n9",
            "n10",
            "n11",
            "login",
            "r1n01",
            "r1n02",
            "r1n2",
            "gpu-7.cluster",
            "gpu-8.cluster",
        ];
        let directory = of(&names).unwrap();
        for (place, name) in names.iter().enumerate() {
            let node = NodeIndex(place as u32);
            assert_eq!(directory.name(node).as_deref(), Some(*name));
            assert_eq!(directory.find(name), Some(node), "{name}");
        }
        assert_eq!(directory.name(NodeIndex(9)), None);
        for other in ["n8", "n12", "n010", "r1n03", "gpu-9.cluster", "gpu-7", ""] {
            assert_eq!(directory.find(other), None, "{other}");
        }
        assert_eq!(directory.names().collect::<Vec<_>>(), names);
    }

    #[test]
    fn a_million_consecutive_names_are_few_runs() {
        let names: Vec<String> = (0..1_000_000).map(|n| format!("nid{n:07}")).collect();
        let directory = Directory::new(names.iter().map(String::as_str)).unwrap();
        assert_eq!(directory.len(), 1_000_000);
        assert!(directory.runs() <= 2, "{} runs", directory.runs());
        assert_eq!(directory.find("nid0999999"), Some(NodeIndex(999_999)));
    }

    #[test]
    fn a_name_that_occurs_twice_is_refused_and_named() {
        for names in [
            &["n1", "n2", "n1"][..],
            &["n1", "n2", "n3", "n2", "n3"],
            &["a", "a"],
        ] {
            let error = of(names).unwrap_err();
            assert!(matches!(error, MapError::Twice(_)), "{names:?}: {error}");
        }
        assert_eq!(of(&[]), Err(MapError::Empty));
        assert_eq!(of(&["n 1"]), Err(MapError::Name("n 1".to_owned())));
    }

    proptest! {
        /// Any distinct names: each is found at its place.
        #[test]
        fn every_name_is_found_at_its_place(
            names in proptest::collection::hash_set("[a-c]{0,2}[0-9]{1,3}[x]{0,1}", 1..60)
        ) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let directory = of(&names).unwrap();
            for (place, name) in names.iter().enumerate() {
                prop_assert_eq!(directory.find(name), Some(NodeIndex(place as u32)));
                prop_assert_eq!(directory.name(NodeIndex(place as u32)), Some((*name).to_owned()));
            }
        }
    }
}
