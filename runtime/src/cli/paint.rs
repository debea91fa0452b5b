//! How names and states look: hosts folded as Slurm folds them, states in colour on a terminal only.

use std::collections::BTreeMap;
use std::io::{IsTerminal, stdout};

/// Folds names: `n[01-04,07]`. Names that differ in their last number only share a bracket; numbers with
/// leading zeros share one with others of their width.
pub(crate) fn fold<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    // By what stands before and behind the number, and its width where that matters.
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

/// 8, 9 of `n08` and 10 of `n10`: numbers that have a width by themselves go where it is written.
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

/// A name around its last number; none if it has none that can be counted.
fn split(name: &str) -> Option<(&str, &str, &str, u64)> {
    // A bracket or a comma in a name would be read as something else.
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

/// Whether what is printed may be coloured: a terminal, and nobody has said no (no-color.org).
pub(crate) fn is_coloured() -> bool {
    let no = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    !no && !dumb && stdout().is_terminal()
}

/// A text in the colour of a state or a verdict, if there are colours.
pub(crate) fn state(text: &str, state: &str, coloured: bool) -> String {
    let colour = match state {
        "alive" | "ok" | "active" => "32",
        "degraded" | "suspect" | "hung" | "warning" | "unknown" => "33",
        "failed" | "critical" | "error" => "31",
        _ => return text.to_owned(),
    };
    match coloured {
        true => format!("\x1b[{colour}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}

/// A table whose second word is a state: the states coloured. Done after columns were aligned, since
/// what makes colour has no width.
pub(crate) fn table(text: &str, states: &[&str], coloured: bool) -> String {
    if !coloured {
        return text.to_owned();
    }
    let line = |line: &str| {
        let found = states.iter().find_map(|one| {
            let at = line.find(&format!("  {one} "))? + 2;
            Some((at, *one))
        });
        match found {
            Some((at, one)) => {
                let (before, rest) = line.split_at(at);
                format!("{before}{}{}\n", state(one, one, true), &rest[one.len()..])
            }
            None => format!("{line}\n"),
        }
    };
    text.lines().map(line).collect()
}

/// The states of members that have a colour.
pub(crate) const STATES: [&str; 5] = ["alive", "degraded", "suspect", "failed", "unknown"];

#[cfg(test)]
mod tests {
    use super::*;
    use muster_fabric::expand;
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
        /// What is folded expands to the same names, each once.
        #[test]
        fn folding_loses_nothing(names in proptest::collection::btree_set("[ab]{0,2}[0-9]{0,4}[xy]?", 1..40)) {
            let names: Vec<String> = names.into_iter().filter(|name| !name.is_empty()).collect();
            prop_assume!(!names.is_empty());
            let mut again = expand(&fold(names.iter().map(String::as_str)), 4096).unwrap();
            again.sort();
            prop_assert_eq!(again, names);
        }
    }

    #[test]
    fn colours_are_where_states_are() {
        let text = "n1  alive  -\nn2  failed  x\n";
        assert_eq!(table(text, &STATES, false), text);
        let painted = table(text, &STATES, true);
        assert_eq!(
            painted,
            "n1  \x1b[32malive\x1b[0m  -\nn2  \x1b[31mfailed\x1b[0m  x\n"
        );
    }
}
