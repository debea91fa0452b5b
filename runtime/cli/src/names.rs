//! Names of members, ranks and NIDs as command-line arguments. They are checked before any agent is asked: an
//! argument that cannot be a name is refused, instead of being waited for.

use muster_config::flaw_of_name;
use muster_hostlist::{RangeError, expand};
use muster_terminal::CliError;

/// Maximum number of names in one command.
pub(super) const NAMED_MAX: usize = 65_536;

const MEMBERS: &str = "name members as in n[1-4],x7; muster members shows those that are known";

/// The members that these arguments name, with ranges expanded. `what` is the command and option for errors, such as
/// `events --member`.
pub(super) fn members(what: &str, arguments: &[String]) -> Result<Vec<String>, CliError> {
    let mut names = Vec::new();
    for argument in arguments {
        names.extend(expand_one(what, argument, NAMED_MAX)?);
    }
    Ok(names)
}

/// The members that one argument names, at most `most`.
pub(super) fn expand_one(what: &str, argument: &str, most: usize) -> Result<Vec<String>, CliError> {
    let refused = |why: String| CliError::usage(what, why).hint(MEMBERS);
    let names = expand(argument, most).map_err(|error| refused(error.to_string()))?;
    match names
        .iter()
        .find_map(|name| Some((name, flaw_of_name(name)?)))
    {
        Some((name, why)) => Err(refused(format!(
            "{name:?} is not a name of a member: {why}"
        ))),
        None => Ok(names),
    }
}

/// The ranks that an argument such as 0-3,7 names.
pub(super) fn ranks(what: &str, argument: &str) -> Result<Vec<u64>, CliError> {
    let refused = |why: String| {
        CliError::usage(what, why).hint("name ranks as in 0-3,7; muster members shows them")
    };
    let numbers = expand(&format!("[{argument}]"), NAMED_MAX).map_err(|error| match error {
        RangeError::TooMany { count, cap, .. } => refused(format!(
            "{argument:?} names {count} ranks; at most {cap} are allowed"
        )),
        RangeError::Malformed { .. } => refused(format!("{argument:?} is not a list of ranks")),
    })?;
    let number = |text: &String| {
        text.parse()
            .map_err(|_| refused(format!("{text:?} is not a rank")))
    };
    numbers.iter().map(number).collect()
}

/// One member, rank or NID, which goes into a request unchanged.
pub(super) fn one(what: &str, argument: &str) -> Result<String, CliError> {
    let refused = |why| {
        let why = format!("{argument:?} is not a name: {why}");
        Err(CliError::usage(what, why).hint("muster members shows the names that are known"))
    };
    match argument {
        "" => refused("it is empty"),
        _ if !argument.bytes().all(|byte| byte.is_ascii_graphic()) => {
            refused("only printable ASCII without spaces is allowed")
        }
        _ => Ok(argument.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error as it is printed: what failed, why, and the hint.
    fn message<T: std::fmt::Debug>(outcome: Result<T, CliError>) -> String {
        outcome.unwrap_err().to_string()
    }

    #[test]
    fn an_invalid_name_is_refused_with_an_example() {
        assert_eq!(
            members("wait", &["n[1-2]".into(), "x7".into()]).unwrap(),
            ["n1", "n2", "x7"]
        );
        assert_eq!(ranks("wait --ranks", "0-2,07").unwrap(), [0, 1, 2, 7]);
        assert_eq!(one("why", "10.0.0.1@udp0").unwrap(), "10.0.0.1@udp0");
        for argument in ["", "x y", "n[1-", "\u{e4}", "n[1-99999]", &"x".repeat(64)] {
            let message = message(members("wait", &[argument.to_owned()]));
            assert!(
                message.starts_with("wait: ") && message.ends_with(&format!("\nhint: {MEMBERS}")),
                "{message}"
            );
        }
        for argument in [
            "",
            "x",
            "-1",
            "1.5",
            "0-99999999",
            "99999999999999999999999",
        ] {
            let message = message(ranks("wait --ranks", argument));
            assert!(
                message.contains(argument)
                    && message.contains("as in 0-3,7")
                    && !message.contains('['),
                "{message}"
            );
        }
        for argument in ["", "x y", "n\t1"] {
            let message = message(one("why", argument));
            assert!(
                message.contains(&format!("{argument:?} is not a name"))
                    && message.contains("muster members"),
                "{message}"
            );
        }
    }
}
