//! Locality strings: they show which parts of a machine (core, cache, package) two processes share.
//!
//! The locality string of a bound process names, for each level, the parts of the machine that it may run on
//! (`NM0:SK0:L31:CR2-3`; run-2). Two processes share a level if their strings have a part of that level in
//! common; MPI compares them in this way.

use std::fmt::Write as _;

/// All parts of one kind in a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// The level's two-character name: `NM` NUMA nodes, `SK` packages, `L3` to `L1` caches, `CR` cores, `HT`
    /// hardware threads.
    pub name: &'static str,
    /// The hardware threads of each part, in the machine's order.
    pub parts: Vec<Vec<u32>>,
}

/// The locality string of these hardware threads. Empty if they belong to no part.
#[must_use]
pub fn locality(levels: &[Level], threads: &[u32]) -> String {
    let mut fields = Vec::new();
    for level in levels {
        let contains_any = |part: &Vec<u32>| part.iter().any(|thread| threads.contains(thread));
        let numbers = (0..).zip(&level.parts);
        let numbers: Vec<u32> = numbers
            .filter(|(_, part)| contains_any(part))
            .map(|(number, _)| number)
            .collect();
        if !numbers.is_empty() {
            fields.push(format!("{}{}", level.name, ranges(&numbers)));
        }
    }
    fields.join(":")
}

/// Ascending numbers as a list of ranges: `0-2,5`.
#[must_use]
pub fn ranges(numbers: &[u32]) -> String {
    let mut text = String::new();
    let mut left = numbers;
    while let Some(first) = left.first() {
        let follows = |(offset, number): &(u32, &u32)| **number == first + offset;
        let length = (0..).zip(left).take_while(follows).count();
        let last = left[length - 1];
        let comma = if text.is_empty() { "" } else { "," };
        let _ = match last == *first {
            true => write!(text, "{comma}{first}"),
            false => write!(text, "{comma}{first}-{last}"),
        };
        left = &left[length..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// run-2.
    #[test]
    fn locality_strings_name_the_parts_of_each_level() {
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
