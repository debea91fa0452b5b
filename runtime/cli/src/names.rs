//! Members, ranks and NIDs as people name them to a command: checked before any agent is asked, so that a
//! word that can be nobody's name is refused, not waited for.

use muster_config::flaw_of_name;
use muster_hostlist::{RangeError, expand};
use muster_terminal::CliError;

/// Names in one command.
pub(super) const NAMED_MAX: usize = 65_536;

const MEMBERS: &str = "name members as in n[1-4],x7; muster members shows those that are known";

/// The members that these words stand for, with ranges; `what` is who was told, such as `events --member`.
pub(super) fn members(what: &str, words: &[String]) -> Result<Vec<String>, CliError> {
    let mut names = Vec::new();
    for word in words {
        names.extend(some(what, word, NAMED_MAX)?);
    }
    Ok(names)
}

/// The same of one word, and at most so many.
pub(super) fn some(what: &str, word: &str, most: usize) -> Result<Vec<String>, CliError> {
    let refused = |why: String| CliError::usage(what, why).hint(MEMBERS);
    let names = expand(word, most).map_err(|error| refused(error.to_string()))?;
    match names
        .iter()
        .find_map(|name| Some((name, flaw_of_name(name)?)))
    {
        Some((name, why)) => Err(refused(format!("{name:?} is no name of a member: {why}"))),
        None => Ok(names),
    }
}

/// The ranks that a word such as 0-3,7 stands for.
pub(super) fn ranks(what: &str, word: &str) -> Result<Vec<u64>, CliError> {
    let refused = |why: String| {
        CliError::usage(what, why).hint("name ranks as in 0-3,7; muster members shows them")
    };
    let numbers = expand(&format!("[{word}]"), NAMED_MAX).map_err(|error| match error {
        RangeError::TooMany { count, cap, .. } => refused(format!(
            "{word:?} are {count} ranks; at most {cap} are allowed"
        )),
        RangeError::Malformed { .. } => refused(format!("{word:?} is no list of ranks")),
    })?;
    let number = |text: &String| {
        text.parse()
            .map_err(|_| refused(format!("{text:?} is no rank")))
    };
    numbers.iter().map(number).collect()
}

/// One member, rank or NID: a word that goes into a question as it is.
pub(super) fn one(what: &str, word: &str) -> Result<String, CliError> {
    let refused = |why| {
        let why = format!("{word:?} is no name: {why}");
        Err(CliError::usage(what, why).hint("muster members shows the names that are known"))
    };
    match word {
        "" => refused("it is empty"),
        _ if !word.bytes().all(|byte| byte.is_ascii_graphic()) => {
            refused("only printable ASCII without spaces is allowed")
        }
        _ => Ok(word.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command's three lines to people: what was said, why not, what instead.
    fn said<T: std::fmt::Debug>(outcome: Result<T, CliError>) -> String {
        outcome.unwrap_err().to_string()
    }

    #[test]
    fn what_can_be_nobodys_name_is_refused_with_an_example() {
        assert_eq!(
            members("wait", &["n[1-2]".into(), "x7".into()]).unwrap(),
            ["n1", "n2", "x7"]
        );
        assert_eq!(ranks("wait --ranks", "0-2,07").unwrap(), [0, 1, 2, 7]);
        assert_eq!(one("why", "10.0.0.1@udp0").unwrap(), "10.0.0.1@udp0");
        for word in ["", "x y", "n[1-", "\u{e4}", "n[1-99999]", &"x".repeat(64)] {
            let said = said(members("wait", &[word.to_owned()]));
            assert!(
                said.starts_with("wait: ") && said.ends_with(&format!("\nhint: {MEMBERS}")),
                "{said}"
            );
        }
        for word in [
            "",
            "x",
            "-1",
            "1.5",
            "0-99999999",
            "99999999999999999999999",
        ] {
            let said = said(ranks("wait --ranks", word));
            assert!(
                said.contains(word) && said.contains("as in 0-3,7") && !said.contains('['),
                "{said}"
            );
        }
        for word in ["", "x y", "n\t1"] {
            let said = said(one("why", word));
            assert!(
                said.contains(&format!("{word:?} is no name")) && said.contains("muster members"),
                "{said}"
            );
        }
    }
}
