//! What is run: one program for all ranks, or several, each for some of them, with `:` between them (run-2).

use std::ffi::{OsStr, OsString};

/// A program and who runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// As it was given.
    pub name: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// How many ranks it has; the ranks of one program follow each other.
    pub ranks: u32,
}

/// The words of a command line as programs, where `first` is what `-n` says of the first; of one program alone
/// nothing need be said, and its number is 0 then.
///
/// # Errors
/// A part that has no program or does not say how many ranks.
pub fn programs(words: &[OsString], first: Option<u32>) -> Result<Vec<Program>, String> {
    let mut parts = words.split(|word| word == ":");
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
            "how many ranks of {}? Of several programs each has a -n; write -n 2 ./a : -n 6 ./b",
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

/// How a number of ranks is announced; `-np` is mpirun's.
const NUMBER: [&str; 3] = ["-n", "--np", "-np"];

fn is_option(word: &OsStr) -> bool {
    word.as_encoded_bytes().starts_with(b"-")
}

/// The ranks that a part begins with, and the rest of it.
fn number(part: &[OsString]) -> Result<(Option<u32>, &[OsString]), String> {
    let Some((option, rest)) = part
        .split_first()
        .filter(|(word, _)| NUMBER.iter().any(|one| *word == *one))
    else {
        return match part.first().filter(|word| is_option(word)) {
            Some(word) => Err(format!(
                "{} after a : is unknown; there is only -n RANKS; write -n 6 ./b, or -n 6 -- {0}",
                word.to_string_lossy()
            )),
            None => Ok((None, part)),
        };
    };
    let text = rest
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
    let rest = &rest[1..];
    match rest.first() {
        Some(word) if word == "--" => Ok((Some(ranks), &rest[1..])),
        Some(word) if is_option(word) => Err(format!(
            "{} after a : is unknown; there is only -n RANKS; a program of that name stands after --",
            word.to_string_lossy()
        )),
        _ => Ok((Some(ranks), rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    /// run-2.
    #[test]
    fn programs_are_told_apart_by_colons() {
        let all = programs(&words("./a x : -n 6 ./b -n 7 : -n 1 -- ./c"), Some(2)).unwrap();
        let told: Vec<(&str, usize, u32)> = all
            .iter()
            .map(|one| (one.name.to_str().unwrap(), one.arguments.len(), one.ranks))
            .collect();
        assert_eq!(told, [("./a", 1, 2), ("./b", 2, 6), ("./c", 0, 1)]);
        assert_eq!(programs(&words("./a"), None).unwrap()[0].ranks, 0);
    }

    #[test]
    fn a_part_that_says_too_little_is_refused() {
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
            let refused = programs(&words(line), first).unwrap_err();
            assert!(refused.contains(why), "{line}: {refused}");
        }
    }
}
