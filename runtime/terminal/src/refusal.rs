//! Errors about option values on the command line: the value, the reason, and the remedy.
//!
//! All options of all commands use this. The accepted values come from the option's own parser, so that a range is
//! written in the code once.

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command, Error};
use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::AddrParseError;
use std::num::{ParseFloatError, ParseIntError};

/// A command line that was refused.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The command as it was typed, such as `muster rails add`.
    pub command: String,
    /// The argument or variable, with its value.
    pub what: String,
    /// The reason.
    pub why: String,
    /// What to type instead, and where to find more.
    pub remedy: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            command,
            what,
            why,
            remedy,
        } = self;
        write!(f, "{command}: {what}: {why}\nhint: {remedy}")
    }
}

/// The refusal of a value.
pub(crate) fn value(error: &Error, command: &Command, words: &[OsString]) -> Option<Refusal> {
    let named = text(error, ContextKind::InvalidArg)?;
    let given = text(error, ContextKind::InvalidValue).unwrap_or_default();
    let arg = command
        .get_arguments()
        .find(|arg| arg.to_string() == named)?;
    let place = Place::of(arg, words);
    let accepted = Accepted::by(arg);
    let is_missing = given.is_empty()
        && place.link == " "
        && !words
            .iter()
            .any(|word| word.is_empty() || word.as_encoded_bytes().ends_with(b"="));
    let why = match error.source() {
        _ if is_missing => "its value is missing".to_owned(),
        _ if given.is_empty() => "it is empty".to_owned(),
        Some(cause) => reason(cause, &given, &accepted),
        None => "unknown value".to_owned(),
    };
    let what = match is_missing {
        true => place.name.clone(),
        false => format!("{} {given:?}", place.name),
    };
    Some(Refusal {
        command: name(command).to_owned(),
        what,
        why,
        remedy: remedy(arg, &place, &accepted, command),
    })
}

/// An argument or a variable that is not UTF-8 though a text is required.
pub(crate) fn no_text(command: &Command, words: &[OsString]) -> Option<Refusal> {
    let word = words.iter().find(|word| word.to_str().is_none());
    let variable = || {
        let mut variables = command.get_arguments().filter_map(Arg::get_env);
        variables.find_map(|name| {
            let value = std::env::var_os(name).filter(|value| value.to_str().is_none())?;
            Some(format!(
                "{} {:?}",
                name.to_string_lossy(),
                value.to_string_lossy()
            ))
        })
    };
    Some(Refusal {
        command: name(command).to_owned(),
        what: word
            .map(|word| format!("{:?}", word.to_string_lossy()))
            .or_else(variable)?,
        why: "it is not UTF-8 text".into(),
        remedy: format!(
            "only paths may have other bytes; see {} --help",
            name(command)
        ),
    })
}

/// A text in the context of an error.
pub(crate) fn text(error: &Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        _ => None,
    }
}

/// The name as it is typed, with the parent commands.
pub(crate) fn name(command: &Command) -> &str {
    command.get_bin_name().unwrap_or(command.get_name())
}

/// The origin of a value, and how another value is set there.
struct Place {
    name: String,
    /// What separates the name and a value.
    link: &'static str,
}

impl Place {
    /// The option if it was typed, else its variable.
    fn of(arg: &Arg, words: &[OsString]) -> Self {
        let long = arg.get_long().map(|long| format!("--{long}"));
        let short = arg.get_short().map(|short| format!("-{short}"));
        let is_typed = |word: &OsString| {
            let word = word.to_string_lossy();
            let option = word.split('=').next().unwrap_or_default();
            long.as_deref() == Some(option)
                || short
                    .as_deref()
                    .is_some_and(|short| word.starts_with(short))
        };
        let variable = arg.get_env().and_then(OsStr::to_str);
        let is_long = |word: &OsString| word.to_string_lossy().starts_with("--");
        let typed = words.iter().find(|word| is_typed(word));
        let option = match typed.is_some_and(is_long) {
            true => long.as_ref(),
            false => short.as_ref().or(long.as_ref()),
        };
        match (variable, option) {
            (Some(variable), _) if typed.is_none() => Self {
                name: variable.to_owned(),
                link: "=",
            },
            (_, Some(option)) => Self {
                name: option.clone(),
                link: " ",
            },
            (_, None) => Self {
                name: placeholders(arg),
                link: " ",
            },
        }
    }
}

/// NAME of `<NAME>`, FROM TO of `<FROM> <TO>`.
pub(crate) fn placeholders(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    match &names[..] {
        [] => arg.get_id().to_string(),
        names => names.join(" "),
    }
}

/// The values that an option's parser accepts.
enum Accepted {
    Words(Vec<String>),
    /// Whole numbers, with their range if it is known.
    Whole(Option<(i128, i128)>),
    Decimal,
    /// Anything else: the parser's own error states it.
    Other,
}

impl Accepted {
    /// Finds the accepted values by passing values to the parser that it most probably refuses.
    fn by(arg: &Arg) -> Self {
        // A switch has a value only in its variable.
        if !arg.get_action().takes_values() {
            return Self::Words(["true", "false"].map(str::to_owned).into());
        }
        let words = arg.get_possible_values();
        if !words.is_empty() {
            let shown = words.iter().filter(|word| !word.is_hide_set());
            return Self::Words(shown.map(|word| word.get_name().to_owned()).collect());
        }
        let refused_by = |value: &str| {
            let asked = Arg::new("value")
                .value_parser(arg.get_value_parser().clone())
                .allow_hyphen_values(true);
            let asked = Command::new("asked")
                .arg(asked)
                .try_get_matches_from(["asked", value]);
            asked
                .err()
                .and_then(|error| Some((error.source()?.to_string(), is_number(error.source()?))))
        };
        let extremes = [i64::MIN.to_string(), u64::MAX.to_string(), "0".into()];
        let range = extremes
            .iter()
            .filter_map(|value| refused_by(value))
            .find_map(|(text, _)| range(&text));
        match (range, refused_by("?").map(|(_, kind)| kind)) {
            (Some(range), _) => Self::Whole(Some(range)),
            (None, Some(Some(Number::Whole))) => Self::Whole(None),
            (None, Some(Some(Number::Decimal))) => Self::Decimal,
            _ => Self::Other,
        }
    }

    fn in_words(&self) -> Option<String> {
        match self {
            Self::Words(words) => either(words),
            Self::Whole(Some((low, high))) if is_bound(*high) => {
                Some(format!("a whole number from {low} to {high}"))
            }
            Self::Whole(Some((low, _))) => Some(format!("a whole number, {low} or more")),
            Self::Whole(None) => Some("a whole number, 0 or more".into()),
            Self::Decimal => Some("a number".into()),
            Self::Other => None,
        }
    }
}

/// `a, b or c`; none of no words.
pub(crate) fn either(words: &[String]) -> Option<String> {
    let (last, before) = words.split_last()?;
    Some(match before {
        [] => last.clone(),
        _ => format!("{} or {last}", before.join(", ")),
    })
}

enum Number {
    Whole,
    Decimal,
}

fn is_number(cause: &(dyn std::error::Error + 'static)) -> Option<Number> {
    if cause.is::<ParseIntError>() {
        return Some(Number::Whole);
    }
    cause.is::<ParseFloatError>().then_some(Number::Decimal)
}

/// The bounds in clap's error "5 is not in 1..=4".
fn range(text: &str) -> Option<(i128, i128)> {
    let (_, bounds) = text.split_once(" is not in ")?;
    let (low, high) = bounds.split_once("..")?;
    let high = match high.strip_prefix('=') {
        Some(last) => last.parse().ok()?,
        None => high.parse::<i128>().map_or(i128::MAX, |end| end - 1),
    };
    Some((low.parse().ok()?, high))
}

/// Whether an upper bound has a meaning, or is only the maximum of the number's type.
fn is_bound(high: i128) -> bool {
    let types = [u32::MAX.into(), i64::MAX.into(), u64::MAX.into(), i128::MAX];
    !types
        .into_iter()
        .any(|most: i128| high == most || high == most - 1)
}

fn reason(cause: &(dyn std::error::Error + 'static), given: &str, accepted: &Accepted) -> String {
    let range = match accepted {
        Accepted::Whole(range) => range.or(Some((0, i128::MAX))),
        _ => None,
    };
    match (range, given.parse::<i128>()) {
        (Some((low, _)), Ok(number)) if number < low => return format!("it is below {low}"),
        (Some((_, high)), Ok(number)) if number > high && is_bound(high) => {
            return format!("it is above {high}");
        }
        (Some(_), Ok(_)) => return "it is too large".into(),
        _ => {}
    }
    if cause.is::<AddrParseError>() {
        return "it is not an address with a port".into();
    }
    match is_number(cause) {
        Some(Number::Whole) => "it is not a whole number".into(),
        Some(Number::Decimal) => "it is not a number".into(),
        // The message has the value already.
        None => {
            let text = cause.to_string();
            text.strip_prefix(&format!("{given:?} "))
                .map_or(text.clone(), |rest| format!("it {rest}"))
        }
    }
}

/// The accepted values, an example, the purpose, and where to find more.
fn remedy(arg: &Arg, place: &Place, accepted: &Accepted, command: &Command) -> String {
    let example = match (arg.get_default_values().first(), accepted) {
        // The words are examples themselves.
        (_, Accepted::Words(_)) => None,
        (Some(usual), _) => usual.to_str().map(str::to_owned),
        (None, Accepted::Whole(Some((low @ 1.., _)))) => Some(low.to_string()),
        _ => None,
    };
    let help = purpose(arg);
    let mut remedy = match accepted.in_words() {
        Some(accepted) => format!("give {accepted}"),
        None => format!("{}: {help}", place.name),
    };
    if let Some(example) =
        example.filter(|example| accepted.in_words().is_some() || !remedy.contains(&example[..]))
    {
        remedy += &format!(", such as {}{}{example}", place.name, place.link);
    }
    if !matches!(accepted, Accepted::Other) && !help.is_empty() {
        remedy += &format!(" ({help})");
    }
    remedy + &format!("; see {} --help", name(command))
}

/// The purpose of an argument: the first part of its help; defaults and details follow.
pub(crate) fn purpose(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let help = [" [", ". ", "; "].into_iter().fold(&help[..], |help, end| {
        help.split(end).next().unwrap_or(help)
    });
    help.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::builder::PossibleValuesParser;
    use clap::value_parser;

    fn command() -> Command {
        let option = |name: &'static str| Arg::new(name).long(name);
        let wait = Command::new("wait").args([
            option("count")
                .short('c')
                .value_parser(value_parser!(u64).range(1..))
                .help("How many. All of them."),
            option("timeout")
                .value_parser(value_parser!(u32).range(0..=90))
                .default_value("60")
                .help("How long [s]"),
            option("shift").value_parser(value_parser!(f64)),
            option("state").value_parser(PossibleValuesParser::new(["alive", "failed", "left"])),
            option("name").value_parser(value_parser!(String)),
        ]);
        Command::new("muster").subcommand(wait)
    }

    fn refusal_of(words: &[&OsStr]) -> String {
        let line: Vec<OsString> = [&["muster", "wait"].map(OsStr::new), words]
            .concat()
            .into_iter()
            .map(Into::into)
            .collect();
        let error = command().try_get_matches_from(&line).unwrap_err();
        let refusal = crate::refusal(&error, command(), &line).expect("a refusal");
        let text = refusal.to_string();
        let text = text.strip_prefix("muster wait: ");
        text.expect("the command as it was typed").to_owned()
    }

    #[test]
    fn a_refusal_has_value_reason_and_accepted_values() {
        for (words, wanted) in [
            (
                &["--count", "0"][..],
                "--count \"0\": it is below 1\nhint: give a whole number, 1 or more, such as --count 1 (How many)",
            ),
            (
                &["-c", "4x"],
                "-c \"4x\": it is not a whole number\nhint: give a whole number, 1 or more, such as -c 1 (How many)",
            ),
            (&["--count=-7"], "--count \"-7\": it is below 1"),
            (
                &["--count=99999999999999999999"],
                "--count \"99999999999999999999\": it is too large",
            ),
            (
                &["--timeout=91"],
                "--timeout \"91\": it is above 90\nhint: give a whole number from 0 to 90, such as --timeout 60",
            ),
            (&["--timeout", ""], "--timeout \"\": it is empty"),
            (&["--timeout="], "--timeout \"\": it is empty"),
            (
                &["--timeout"],
                "--timeout: its value is missing\nhint: give a whole number from 0 to 90, such as --timeout 60",
            ),
            (
                &["--shift=a"],
                "--shift \"a\": it is not a number\nhint: give a number",
            ),
            (
                &["--state=dead"],
                "--state \"dead\": unknown value\nhint: give alive, failed or left",
            ),
        ] {
            let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
            let text = refusal_of(&words);
            assert!(text.starts_with(wanted), "{text}");
            assert!(text.ends_with("; see muster wait --help"), "{text}");
        }
    }

    #[test]
    fn a_value_that_is_not_utf8_is_shown_lossily() {
        use std::os::unix::ffi::OsStrExt;
        let text = refusal_of(&[OsStr::new("--name"), OsStr::from_bytes(b"n\xff")]);
        assert!(
            text.starts_with("\"n\u{fffd}\": it is not UTF-8 text\nhint: "),
            "{text}"
        );
    }
}
