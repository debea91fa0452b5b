//! What processes on one machine share: a core, a cache, a package.
//!
//! A process that is bound has a string that names, level by level, the parts of the machine that it may run on
//! (`NM0:SK0:L31:CR2-3`; run-2). Two of them share a level if their parts of it have one in common; MPI compares
//! them so.

use std::fmt::Write as _;

/// All parts of a machine of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// Two letters: `NM` for NUMA nodes, `SK` packages, `L3` to `L1` caches, `CR` cores, `HT` hardware threads.
    pub name: &'static str,
    /// The hardware threads of each, in the machine's order.
    pub parts: Vec<Vec<u32>>,
}

/// Which parts of each level these threads belong to. Empty if they belong to none.
#[must_use]
pub fn locality(levels: &[Level], threads: &[u32]) -> String {
    let mut words = Vec::new();
    for level in levels {
        let touched = |part: &Vec<u32>| part.iter().any(|thread| threads.contains(thread));
        let numbers = (0..).zip(&level.parts);
        let numbers: Vec<u32> = numbers
            .filter(|(_, part)| touched(part))
            .map(|(number, _)| number)
            .collect();
        if !numbers.is_empty() {
            words.push(format!("{}{}", level.name, ranges(&numbers)));
        }
    }
    words.join(":")
}

/// Ascending numbers as a list of ranges: `0-2,5`.
#[must_use]
pub fn ranges(numbers: &[u32]) -> String {
    let mut text = String::new();
    let mut rest = numbers;
    while let Some(first) = rest.first() {
        let follows = |(place, number): &(u32, &u32)| **number == first + place;
        let length = (0..).zip(rest).take_while(follows).count();
        let last = rest[length - 1];
        let comma = if text.is_empty() { "" } else { "," };
        let _ = match last == *first {
            true => write!(text, "{comma}{first}"),
            false => write!(text, "{comma}{first}-{last}"),
        };
        rest = &rest[length..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// run-2.
    #[test]
    fn processes_share_what_their_strings_have_in_common() {
        let level = |name, parts: &[&[u32]]| Level {
            name,
            parts: parts.iter().map(|part| part.to_vec()).collect(),
        };
        let machine = [
            level("NM", &[&[0, 1, 4, 5], &[2, 3, 6, 7]]),
            level("SK", &[&[0, 1, 2, 3, 4, 5, 6, 7]]),
            level("L3", &[]),
            level("CR", &[&[0, 4], &[1, 5], &[2, 6], &[3, 7]]),
            level("HT", &[&[0], &[4], &[1], &[5], &[2], &[6], &[3], &[7]]),
        ];
        assert_eq!(locality(&machine, &[0, 4]), "NM0:SK0:CR0:HT0-1");
        assert_eq!(
            locality(&machine, &[1, 2, 6, 7]),
            "NM0-1:SK0:CR1-3:HT2,4-5,7"
        );
        assert_eq!(locality(&machine, &[9]), "");
        assert_eq!(ranges(&[]), "");
    }
}
