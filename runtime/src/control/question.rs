//! What can be asked: one line of text.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Everybody known, with state, ranks and evidence.
    Members,
    /// What is known about one member, and from whom.
    Why(String),
    /// The local rails and what went over them.
    Rails,
    /// The counters.
    Stats,
}

/// A line that asks nothing.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is no question; ask members, why NAME, rails or stats")]
pub struct QuestionError(String);

impl FromStr for Question {
    type Err = QuestionError;

    fn from_str(line: &str) -> Result<Self, QuestionError> {
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some("members"), None, None) => Ok(Self::Members),
            (Some("rails"), None, None) => Ok(Self::Rails),
            (Some("stats"), None, None) => Ok(Self::Stats),
            (Some("why"), Some(name), None) if !name.is_empty() => Ok(Self::Why(name.to_owned())),
            _ => Err(QuestionError(line.to_owned())),
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Members => f.write_str("members"),
            Self::Why(name) => write!(f, "why {name}"),
            Self::Rails => f.write_str("rails"),
            Self::Stats => f.write_str("stats"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_round_trip_and_anything_else_is_none() {
        for question in [
            Question::Members,
            Question::Why("n1".into()),
            Question::Rails,
            Question::Stats,
        ] {
            assert_eq!(question.to_string().parse(), Ok(question));
        }
        for line in ["", "why", "why ", "why a b", "members now", "Members", "\0"] {
            assert!(line.parse::<Question>().is_err(), "{line:?}");
        }
    }
}
