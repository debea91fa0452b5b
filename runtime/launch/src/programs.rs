//! The programs of a job: one for all ranks, or several, each for some of them, separated by `:` (run-2).

use std::ffi::{OsStr, OsString};

/// A program and its number of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The name as it was given.
    pub name: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its number of ranks, which are consecutive.
    pub ranks: u32,
}

/// Parses the arguments of a command line as programs; `first` is the `-n` of the first. A single program needs no
/// number; it is 0 then.
///
/// # Errors
/// A part without a program or without a number of ranks.
pub fn programs(arguments: &[OsString], first: Option<u32>) -> Result<Vec<Program>, String> {
    let mut parts = arguments.split(|argument| argument == ":");
    let mut all = Vec::new();
    let mut ranks = first;
    let mut part = parts.next().unwrap_or_default();
    loop {
        let Some((name, arguments)) = part.split_first() else {
            return Err("there is no program beside a :; write -n 2 ./a : -n 6 ./b".into());
        };
        all.push((name.clone(), arguments.to_vec(), ranks));
        let Some(next) = parts.next() else {
            break;
        };
        (ranks, part) = number(next)?;
    }
    let is_alone = all.len() == 1;
    let program = |(name, arguments, ranks): (OsString, Vec<OsString>, Option<u32>)| match ranks {
        None if !is_alone => Err(format!(
            "how many ranks of {}? With several programs each needs -n; write -n 2 ./a : -n 6 ./b",
            name.to_string_lossy()
        )),
        ranks => Ok(Program {
            name,
            arguments,
            ranks: ranks.unwrap_or(0),
        }),
    };
    all.into_iter().map(program).collect()
}

/// The options for a number of ranks; `-np` is mpirun's.
const NUMBER: [&str; 3] = ["-n", "--np", "-np"];

fn is_option(argument: &OsStr) -> bool {
    argument.as_encoded_bytes().starts_with(b"-")
}

/// Parses the number of ranks at the beginning of a part; returns it and the remaining arguments.
fn number(part: &[OsString]) -> Result<(Option<u32>, &[OsString]), String> {
    let Some((option, remaining)) = part
        .split_first()
        .filter(|(argument, _)| NUMBER.iter().any(|one| *argument == *one))
    else {
        return match part.first().filter(|argument| is_option(argument)) {
            Some(argument) => Err(format!(
                "{} after a : is unknown; only -n RANKS is supported there; write -n 6 ./b, or -n 6 -- {0}",
                argument.to_string_lossy()
            )),
            None => Ok((None, part)),
        };
    };
    let text = remaining
        .first()
        .map_or(OsStr::new(""), OsString::as_os_str)
        .to_string_lossy();
    let ranks = text.parse().ok().filter(|ranks| *ranks > 0);
    let ranks = ranks.ok_or_else(|| {
        format!(
            "{} {text} is no number of ranks; write -n 6 ./b",
            option.to_string_lossy()
        )
    })?;
    let remaining = &remaining[1..];
    match remaining.first() {
        Some(argument) if argument == "--" => Ok((Some(ranks), &remaining[1..])),
        Some(argument) if is_option(argument) => Err(format!(
            "{} after a : is unknown; only -n RANKS is supported there; write -- before a program of that name",
            argument.to_string_lossy()
        )),
        _ => Ok((Some(ranks), remaining)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    /// run-2.
    #[test]
    fn programs_are_separated_by_colons() {
        let all = programs(&arguments("./a x : -n 6 ./b -n 7 : -n 1 -- ./c"), Some(2)).unwrap();
        let found: Vec<(&str, usize, u32)> = all
            .iter()
            .map(|one| (one.name.to_str().unwrap(), one.arguments.len(), one.ranks))
            .collect();
        assert_eq!(found, [("./a", 1, 2), ("./b", 2, 6), ("./c", 0, 1)]);
        assert_eq!(programs(&arguments("./a"), None).unwrap()[0].ranks, 0);
    }

    #[test]
    fn an_incomplete_part_is_refused() {
        for (line, first, why) in [
            ("./a : ./b", Some(1), "how many ranks of ./b"),
            ("./a : -n 2 ./b", None, "how many ranks of ./a"),
            ("./a : -n x ./b", Some(1), "-n x is no number"),
            ("./a : -n 0 ./b", Some(1), "-n 0 is no number"),
            ("./a : -n", Some(1), "-n  is no number"),
            ("./a :", Some(1), "no program beside a :"),
            (": ./b", Some(1), "no program beside a :"),
            ("./a : -n 2", Some(1), "no program beside a :"),
            ("./a : -n2 ./b", Some(1), "-n2 after a : is unknown"),
            ("./a : -n 2 -x A=1 ./b", Some(1), "-x after a : is unknown"),
            ("./a : -np x ./b", Some(1), "-np x is no number"),
        ] {
            let refused = programs(&arguments(line), first).unwrap_err();
            assert!(refused.contains(why), "{line}: {refused}");
        }
    }
}
