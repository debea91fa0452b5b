//! Errors of the command line: what clap refuses is reported in one form, with the reason and a remedy.

use crate::refusal::{Refusal, either, name, no_text, placeholders, purpose, text, value};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use std::ffi::OsString;
use strsim::osa_distance;

/// Most commands that an error lists.
const COMMANDS_MAX: usize = 12;

/// The refusal of a command line; none if it requests a text, such as the help. `words` is the whole command line.
pub fn refusal(error: &Error, mut command: Command, words: &[OsString]) -> Option<Refusal> {
    command.build();
    let command = innermost(&command, words);
    let (what, why, remedy) = match error.kind() {
        ErrorKind::InvalidUtf8 => return no_text(command, words),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            return value(error, command, words);
        }
        ErrorKind::UnknownArgument => unknown_argument(error, command)?,
        ErrorKind::InvalidSubcommand => unknown_command(error, command)?,
        ErrorKind::MissingSubcommand => (
            "its command".into(),
            "it is missing".into(),
            commands(command).unwrap_or_default(),
        ),
        ErrorKind::MissingRequiredArgument => missing(error, command)?,
        ErrorKind::ArgumentConflict => conflict(error, command)?,
        ErrorKind::TooManyValues => superfluous(error, command)?,
        _ if error.use_stderr() && error.kind() != HELP => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            let why = first.trim_start_matches("error: ").to_owned();
            ("arguments".into(), why, String::new())
        }
        _ => return None,
    };
    let command = name(command).to_owned();
    let remedy = match remedy.as_str() {
        "" => format!("see {command} --help"),
        question if question.ends_with('?') => format!("{question} See {command} --help"),
        _ => format!("{remedy}; see {command} --help"),
    };
    Some(Refusal {
        command,
        what,
        why,
        remedy,
    })
}

/// A command without arguments shows its help, as a failure.
const HELP: ErrorKind = ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;

/// The command as it was typed, with its parents, such as `muster rails add`.
pub(crate) fn typed(mut command: Command, words: &[OsString]) -> String {
    command.build();
    name(innermost(&command, words)).to_owned()
}

/// The subcommand on the command line.
fn innermost<'a>(mut command: &'a Command, words: &[OsString]) -> &'a Command {
    for word in words.iter().skip(1).filter_map(|word| word.to_str()) {
        command = command.find_subcommand(word).unwrap_or(command);
    }
    command
}

/// What was refused, the reason, and the remedy.
type Parts = (String, String, String);

fn unknown_argument(error: &Error, command: &Command) -> Option<Parts> {
    let given = text(error, ContextKind::InvalidArg)?;
    let is_option = given.starts_with('-');
    let similar = text(error, ContextKind::SuggestedArg);
    // clap suggests --fanout for --tag-ouput: a name that is mostly different helps nobody.
    let is_close = |similar: &String| osa_distance(&given, similar) * 3 <= given.len();
    let remedy = match similar.filter(is_close) {
        Some(similar) => format!("did you mean {}?", argument(&similar, command)),
        None if is_option => String::new(),
        None => match command.get_positionals().last() {
            Some(last) => format!("{} is its last argument", placeholders(last)),
            None => "it takes only options".into(),
        },
    };
    let why = match is_option {
        true => "unknown option",
        false => "one argument too many",
    };
    Some((format!("{given:?}"), why.into(), remedy))
}

fn superfluous(error: &Error, command: &Command) -> Option<Parts> {
    let named = text(error, ContextKind::InvalidArg)?;
    let given = text(error, ContextKind::InvalidValue)?;
    let arg = find(&named, command);
    if arg.is_some_and(Arg::is_positional) {
        let remedy = format!("it takes {}", placeholders(arg?));
        return Some((format!("{given:?}"), "one argument too many".into(), remedy));
    }
    let option = argument(&named, command);
    let remedy = format!("write {option} alone");
    let what = format!("{option} {given:?}");
    Some((what, "it takes no value".into(), remedy))
}

fn unknown_command(error: &Error, command: &Command) -> Option<Parts> {
    let given = text(error, ContextKind::InvalidSubcommand)?;
    // clap sorts them; the last is the most similar.
    let remedy = match texts(error, ContextKind::SuggestedSubcommand).last() {
        Some(similar) => format!("did you mean {similar}?"),
        None => commands(command).unwrap_or_default(),
    };
    Some((format!("{given:?}"), "unknown command".into(), remedy))
}

/// The commands of a command, if they are few.
fn commands(command: &Command) -> Option<String> {
    let shown = command
        .get_subcommands()
        .filter(|one| !one.is_hide_set() && one.get_name() != "help");
    let names: Vec<String> = shown.map(|one| one.get_name().to_owned()).collect();
    let names = (names.len() <= COMMANDS_MAX).then(|| either(&names))??;
    Some(format!("give {names}"))
}

fn missing(error: &Error, command: &Command) -> Option<Parts> {
    let missing = texts(error, ContextKind::InvalidArg);
    let names: Vec<String> = missing
        .iter()
        .map(|given| argument(given, command))
        .collect();
    let purposes: Vec<String> = missing
        .iter()
        .zip(&names)
        .filter_map(|(given, name)| {
            let purpose = purpose(find(given, command)?);
            (!purpose.is_empty()).then(|| format!("{name}: {purpose}"))
        })
        .collect();
    let why = match &names[..] {
        [] => return None,
        [_] => "it is missing",
        _ => "they are missing",
    };
    Some((names.join(", "), why.into(), purposes.join("; ")))
}

fn conflict(error: &Error, command: &Command) -> Option<Parts> {
    let option = argument(&text(error, ContextKind::InvalidArg)?, command);
    let before: Vec<String> = texts(error, ContextKind::PriorArg)
        .iter()
        .map(|one| argument(one, command))
        .filter(|one| *one != option)
        .collect();
    let Some(others) = either(&before) else {
        let remedy = format!("give {option} once");
        return Some((option, "it is given twice".into(), remedy));
    };
    let why = format!("it excludes {others}");
    let remedy = format!("give only one of {option} and {}", before.join(" and "));
    Some((option, why, remedy))
}

/// The argument that an error names, such as `--count <N>` or `<NAME>`.
fn find<'a>(named: &str, command: &'a Command) -> Option<&'a Arg> {
    let bare = named.trim_matches(['<', '>', '[', ']', '.']);
    command.get_arguments().find(|arg| {
        let is_its = || match option(arg) {
            Some(option) => option == named,
            None => placeholders(arg) == bare,
        };
        arg.to_string() == named || is_its()
    })
}

/// An argument as it is typed: `--count`, or NAME.
fn argument(named: &str, command: &Command) -> String {
    match find(named, command) {
        Some(arg) => option(arg).unwrap_or_else(|| placeholders(arg)),
        None => named.to_owned(),
    }
}

fn option(arg: &Arg) -> Option<String> {
    let long = arg.get_long().map(|long| format!("--{long}"));
    long.or_else(|| arg.get_short().map(|short| format!("-{short}")))
}

fn texts(error: &Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::value_parser;

    fn command() -> Command {
        let option = |name: &'static str| Arg::new(name).long(name);
        let wait = Command::new("wait").args([
            Arg::new("names")
                .value_name("NAMES")
                .required(true)
                .help("The members. As lists."),
            option("count").value_parser(value_parser!(u64)),
            option("ranks").conflicts_with("count"),
            option("state").value_parser(["alive", "failed"]),
            option("quiet").action(clap::ArgAction::SetTrue),
        ]);
        let add = Command::new("add").arg(option("rail").required(true));
        let rails = Command::new("rails")
            .subcommand_required(true)
            .subcommands([add, Command::new("drop")]);
        let ends = Arg::new("ends").value_names(["FROM", "TO"]).num_args(1..=2);
        let path = Command::new("path").arg(ends);
        Command::new("muster").subcommands([wait, rails, path])
    }

    fn refused(line: &str) -> String {
        let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = command().try_get_matches_from(&line).unwrap_err();
        refusal(&error, command(), &line).map_or_else(|| "none".into(), |one| one.to_string())
    }

    #[test]
    fn every_error_names_the_argument_the_reason_and_a_remedy() {
        for (line, wanted) in [
            (
                "muster wait n1 --cuont 3",
                "muster wait: \"--cuont\": unknown option\nhint: did you mean --count? See muster wait --help",
            ),
            // Similar to --count for clap, and mostly different.
            (
                "muster wait n1 --outlast",
                "muster wait: \"--outlast\": unknown option\nhint: see muster wait --help",
            ),
            (
                "muster wait n1 --nonsense",
                "muster wait: \"--nonsense\": unknown option\nhint: see muster wait --help",
            ),
            (
                "muster wait n1 n2",
                "muster wait: \"n2\": one argument too many\nhint: NAMES is its last argument; see muster wait --help",
            ),
            (
                "muster wait n1 --state",
                "muster wait: --state: its value is missing\nhint: give alive or failed; see muster wait --help",
            ),
            (
                "muster wait n1 --state dead",
                "muster wait: --state \"dead\": unknown value\nhint: give alive or failed; see muster wait --help",
            ),
            (
                "muster wait",
                "muster wait: NAMES: it is missing\nhint: NAMES: The members; see muster wait --help",
            ),
            (
                "muster rails add",
                "muster rails add: --rail: it is missing\nhint: see muster rails add --help",
            ),
            (
                "muster wiat",
                "muster: \"wiat\": unknown command\nhint: did you mean wait? See muster --help",
            ),
            (
                "muster rails xyz",
                "muster rails: \"xyz\": unknown command\nhint: give add or drop; see muster rails --help",
            ),
            (
                "muster rails",
                "muster rails: its command: it is missing\nhint: give add or drop; see muster rails --help",
            ),
            (
                "muster wait n1 --count 1 --ranks 2",
                "muster wait: --count: it excludes --ranks\nhint: give only one of --count and --ranks; \
                 see muster wait --help",
            ),
            (
                "muster wait n1 --count 1 --count 2",
                "muster wait: --count: it is given twice\nhint: give --count once; see muster wait --help",
            ),
            (
                "muster path a b c",
                "muster path: \"c\": one argument too many\nhint: it takes FROM TO; see muster path --help",
            ),
            (
                "muster wait n1 --quiet=yes",
                "muster wait: --quiet \"yes\": it takes no value\nhint: write --quiet alone; see muster wait --help",
            ),
        ] {
            assert_eq!(refused(line), wanted, "{line}");
        }
    }

    #[test]
    fn requested_texts_are_no_refusals() {
        for line in ["muster --help", "muster wait --help", "muster help"] {
            assert_eq!(refused(line), "none", "{line}");
        }
    }
}
