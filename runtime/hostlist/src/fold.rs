//! Folding of many names into one text, the inverse of [`expand`](crate::expand): `node[001-016,020]`. Also the
//! natural order of names.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Folds names: `n[01-04,07]`. Names that differ only in their last number share a bracket. Numbers with leading
/// zeros share a bracket with numbers of the same width. Returns `-` for no names.
pub fn fold<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    // The key is the text before and after the number, and the width if the number has leading zeros.
    let mut groups: BTreeMap<(&str, &str, usize), Vec<u64>> = BTreeMap::new();
    let mut plain: Vec<&str> = Vec::new();
    for name in names {
        match split(name) {
            Some((before, digits, behind, number)) => {
                let width = if digits.starts_with('0') && digits.len() > 1 {
                    digits.len()
                } else {
                    0
                };
                groups
                    .entry((before, behind, width))
                    .or_default()
                    .push(number);
            }
            None => plain.push(name),
        }
    }
    merge_widths(&mut groups);
    let mut folded: Vec<String> = groups.iter_mut().map(bracket).collect();
    plain.sort_unstable();
    plain.dedup();
    folded.extend(plain.into_iter().map(str::to_owned));
    match folded.is_empty() {
        true => "-".to_owned(),
        false => folded.join(","),
    }
}

/// Moves numbers without leading zeros into the group of their width, if there is one: 10 of `n10` joins 8 and 9 of
/// `n08`.
fn merge_widths(groups: &mut BTreeMap<(&str, &str, usize), Vec<u64>>) {
    let keys: Vec<_> = groups
        .keys()
        .copied()
        .filter(|(.., width)| *width > 0)
        .collect();
    for (before, behind, width) in keys {
        let Some(natural) = groups.get_mut(&(before, behind, 0)) else {
            continue;
        };
        let fits = |number: &u64| number.to_string().len() == width;
        let moved: Vec<u64> = natural.iter().copied().filter(fits).collect();
        natural.retain(|number| !fits(number));
        if natural.is_empty() {
            groups.remove(&(before, behind, 0));
        }
        groups
            .entry((before, behind, width))
            .or_default()
            .extend(moved);
    }
}

fn bracket((&(before, behind, width), numbers): (&(&str, &str, usize), &mut Vec<u64>)) -> String {
    numbers.sort_unstable();
    numbers.dedup();
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for &number in numbers.iter() {
        match spans.last_mut() {
            Some((_, end)) if number.checked_sub(1) == Some(*end) => *end = number,
            _ => spans.push((number, number)),
        }
    }
    let span = |(low, high): &(u64, u64)| match low == high {
        true => format!("{low:0width$}"),
        false => format!("{low:0width$}-{high:0width$}"),
    };
    let list = spans.iter().map(span).collect::<Vec<_>>().join(",");
    match numbers.len() {
        1 => format!("{before}{list}{behind}"),
        _ => format!("{before}[{list}]{behind}"),
    }
}

/// Splits a name around its last number. None if the name has no number that fits a `u64`.
fn split(name: &str) -> Option<(&str, &str, &str, u64)> {
    // `expand` would read a bracket or a comma in a name as syntax.
    if name.contains(['[', ']', ',']) {
        return None;
    }
    let end = name.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = name[..end]
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |at| at + 1);
    let number = name[start..end].parse().ok()?;
    Some((&name[..start], &name[start..end], &name[end..], number))
}

/// The natural order of names: n2 before n10. Digits are compared as numbers, whatever their width. Names that are
/// equal then are ordered as text.
#[must_use]
pub fn by_number(one: &str, other: &str) -> Ordering {
    let (mut a, mut b) = (one, other);
    while let (Some(first), Some(second)) = (a.chars().next(), b.chars().next()) {
        let (found, rest_a, rest_b) = if first.is_ascii_digit() && second.is_ascii_digit() {
            let ((number, rest_a), (than, rest_b)) = (digits(a), digits(b));
            let found = number.len().cmp(&than.len()).then_with(|| number.cmp(than));
            (found, rest_a, rest_b)
        } else {
            let found = first.cmp(&second);
            (found, &a[first.len_utf8()..], &b[second.len_utf8()..])
        };
        if found.is_ne() {
            return found;
        }
        (a, b) = (rest_a, rest_b);
    }
    a.len().cmp(&b.len()).then_with(|| one.cmp(other))
}

/// The digits that a text begins with, without leading zeros, and the text after them.
fn digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    (text[..end].trim_start_matches('0'), &text[end..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expand;
    use proptest::prelude::*;

    #[test]
    fn names_are_folded_as_schedulers_fold_them() {
        for (names, folded) in [
            (&["n1", "n2", "n3", "n7"][..], "n[1-3,7]"),
            (
                &["node04", "node01", "node02", "node03", "node07"],
                "node[01-04,07]",
            ),
            (&["n08", "n09", "n10", "n11"], "n[08-11]"),
            (&["n8", "n9", "n10"], "n[8-10]"),
            (&["login", "n1"], "n1,login"),
            (&["r1-gpu", "r2-gpu"], "r[1-2]-gpu"),
            (&["n1", "n01"], "n1,n01"),
            (&["a[1]", "x"], "a[1],x"),
            (&[], "-"),
        ] {
            assert_eq!(fold(names.iter().copied()), folded);
        }
    }

    proptest! {
        /// A folded text expands to the same names, each once.
        #[test]
        fn folded_names_expand_to_the_same_names(
            names in proptest::collection::btree_set("[ab]{0,2}[0-9]{0,4}[xy]?", 1..40),
        ) {
            let names: Vec<String> = names.into_iter().filter(|name| !name.is_empty()).collect();
            prop_assume!(!names.is_empty());
            let mut again = expand(&fold(names.iter().map(String::as_str)), 4096).unwrap();
            again.sort();
            prop_assert_eq!(again, names);
        }
    }

    #[test]
    fn numbers_in_names_are_compared_as_numbers() {
        let mut names = [
            "n10", "n2", "login", "n02", "n1", "n", "r2n1", "r1n10", "r1n9",
        ];
        names.sort_by(|a, b| by_number(a, b));
        let wanted = [
            "login", "n", "n1", "n02", "n2", "n10", "r1n9", "r1n10", "r2n1",
        ];
        assert_eq!(names, wanted);
    }
}
