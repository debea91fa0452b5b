//! A number, or a range from which the seed draws a number.

use serde::{Deserialize, Serialize};

use crate::chance::Chance;

/// From `low` to `high`, both included. In a file: `7`, or `[3, 9]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "Written", into = "Written")]
pub struct Span {
    /// The smallest.
    pub low: i64,
    /// The largest.
    pub high: i64,
}

#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum Written {
    One(i64),
    Two([i64; 2]),
}

impl From<Written> for Span {
    fn from(written: Written) -> Self {
        match written {
            Written::One(value) => Self::just(value),
            Written::Two([low, high]) => Self { low, high },
        }
    }
}

impl From<Span> for Written {
    fn from(span: Span) -> Self {
        if span.low == span.high {
            Self::One(span.low)
        } else {
            Self::Two([span.low, span.high])
        }
    }
}

impl Span {
    /// One number.
    #[must_use]
    pub const fn just(value: i64) -> Self {
        Self {
            low: value,
            high: value,
        }
    }

    /// A range.
    #[must_use]
    pub const fn between(low: i64, high: i64) -> Self {
        Self { low, high }
    }

    /// Draws a number; the span then contains only that number. The range was checked before.
    pub(crate) fn draw(&mut self, chance: &mut Chance) {
        let offset = chance.between(0, (self.high - self.low) as u64);
        *self = Self::just(self.low + offset as i64);
    }

    /// The number, after drawing.
    pub(crate) fn value(self) -> u64 {
        u64::try_from(self.low).unwrap_or(0)
    }
}
