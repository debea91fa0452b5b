//! Sets of numbers, of nodes or ranks, whose size in the node status is bounded however large they are.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt::Write as _;

/// A set of numbers as ranges, first to last inclusive; in order, and no two ranges touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u32, u32)>);

/// Every number is below this one.
const NUMBERS: u32 = 65_536;
/// Prefix of a set that is written as one hexadecimal digit for four numbers, where that is shorter.
const DIGITS: char = 'x';

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        let after = self.0.partition_point(|(from, _)| *from <= number);
        after > 0 && number <= self.0[after - 1].1
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|(from, to)| *from..=*to)
    }

    /// Adds a range that does not begin below the last one.
    fn push(&mut self, from: u32, to: u32) {
        match self.0.last_mut() {
            Some((_, last)) if from <= last.saturating_add(1) => *last = to.max(*last),
            _ => self.0.push((from, to)),
        }
    }

    /// Its size in the node status.
    pub(crate) fn size(&self) -> usize {
        self.encode().len()
    }

    fn encode(&self) -> String {
        let mut text = String::new();
        let most = self.0.last().map_or(0, |(_, last)| last / 4 + 2) as usize;
        for (from, to) in &self.0 {
            let comma = if text.is_empty() { "" } else { "," };
            let _ = match from == to {
                true => write!(text, "{comma}{from}"),
                false => write!(text, "{comma}{from}-{to}"),
            };
            if text.len() > most {
                return self.encode_digits(most - 1);
            }
        }
        text
    }

    fn encode_digits(&self, length: usize) -> String {
        let mut digits = vec![0; length];
        for number in self.iter() {
            digits[number as usize / 4] |= 1 << (number % 4);
        }
        let digits = digits.iter().filter_map(|one| char::from_digit(*one, 16));
        std::iter::once(DIGITS).chain(digits).collect()
    }

    fn decode(text: &str) -> Option<Self> {
        let mut ranges = Self::default();
        if let Some(digits) = text.strip_prefix(DIGITS) {
            if digits.len() > NUMBERS as usize / 4 {
                return None;
            }
            for (place, digit) in digits.chars().enumerate() {
                let digit = digit.to_digit(16)?;
                let first = 4 * u32::try_from(place).ok()?;
                for number in (0..4).filter(|bit| digit >> bit & 1 == 1) {
                    ranges.push(first + number, first + number);
                }
            }
            return Some(ranges);
        }
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to) = (from.parse().ok()?, to.parse().ok()?);
            if from > to || to >= NUMBERS || ranges.0.last().is_some_and(|(_, last)| from <= *last)
            {
                return None;
            }
            ranges.push(from, to);
        }
        Some(ranges)
    }
}

impl FromIterator<u32> for Ranges {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut numbers: Vec<u32> = numbers.into_iter().collect();
        numbers.sort_unstable();
        let mut ranges = Self::default();
        for number in numbers {
            ranges.push(number, number);
        }
        ranges
    }
}

impl Serialize for Ranges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.encode())
    }
}

impl<'de> Deserialize<'de> for Ranges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::decode(&text).ok_or_else(|| serde::de::Error::custom("not a set of numbers"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: impl IntoIterator<Item = u32>) -> Ranges {
        numbers.into_iter().collect()
    }

    #[test]
    fn a_set_is_decoded_as_it_was_encoded() {
        for (set, text) in [
            (of([]), ""),
            (of([0]), "0"),
            (of([3, 1, 2, 2, 9]), "xe02"),
            (of([3, 1, 2, 2, 90]), "1-3,90"),
            (of(0..65_536), "0-65535"),
            (of([0, 2, 4, 6, 8]), "x551"),
        ] {
            assert_eq!(set.encode(), text);
            assert_eq!(Ranges::decode(text), Some(set));
        }
        let even = of((0..65_536).step_by(2));
        assert_eq!(even.encode().len(), 1 + 65_536 / 4);
        assert_eq!(Ranges::decode(&even.encode()), Some(even.clone()));
        assert!(even.contains(0) && !even.contains(1) && even.contains(65_534));
        assert!(!even.contains(u32::MAX) && !of([]).contains(0));
        assert!(even.iter().eq((0..65_536).step_by(2)));
        for wrong in ["a", "2-1", "1,1", "1-", "xg", "-3", "0-65536"] {
            assert_eq!(Ranges::decode(wrong), None, "{wrong}");
        }
        assert_eq!(Ranges::decode(&format!("x{}", "f".repeat(16_385))), None);
    }
}
