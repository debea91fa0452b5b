//! Ranges: many names in one text, `192.168.[1-2].[1-128/2]@o2ib0` or `node[001-016,020]`.
//!
//! A bracket holds numbers and spans, separated by commas; `a-b/s` is every s-th number from a on. Several brackets
//! make every combination, and the last one changes fastest. A span whose first number has leading zeros keeps their
//! width, as Slurm's host lists do: `n[08-10]` is n08, n09, n10. Commas outside of brackets separate names. The same
//! syntax serves for hosts and for NIDs; callers interpret the names.
//!
//! The number of names is computed before any name is made, so that a range that stands for too many costs nothing.

/// A text with ranges that cannot be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The text is malformed.
    #[error("{text:?} cannot be expanded: it has {reason}")]
    Malformed {
        /// The text.
        text: String,
        /// The fault.
        reason: &'static str,
    },
    /// The text stands for too many names.
    #[error("{text:?} stands for {count} names; at most {cap} are allowed: give fewer at a time")]
    TooMany {
        /// The text.
        text: String,
        /// The number of names, at most `u64::MAX`.
        count: u64,
        /// The limit.
        cap: usize,
    },
}

/// One span in a bracket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The first number.
    pub low: u64,
    /// The last number, at most.
    pub high: u64,
    /// The distance between two numbers.
    pub step: u64,
    /// The minimum number of digits; shorter numbers are filled with zeros.
    width: usize,
}

impl Span {
    fn count(&self) -> u64 {
        (self.high - self.low) / self.step + 1
    }

    /// Whether the number is in the span.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        (self.low..=self.high).contains(&number) && (number - self.low).is_multiple_of(self.step)
    }

    fn numbers(self) -> impl Iterator<Item = String> {
        let width = self.width;
        let step = usize::try_from(self.step).unwrap_or(usize::MAX);
        let numbers = (self.low..=self.high).step_by(step);
        numbers.map(move |number| format!("{number:0width$}"))
    }
}

/// A part of a name: literal text or a bracket.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part<'a> {
    Text(&'a str),
    Bracket(Vec<Span>),
}

/// All names that a text stands for, in the order of the text. A name that is in the text twice is returned twice.
///
/// # Errors
/// A text that is malformed or stands for more than `cap` names. No names were made then.
pub fn expand(text: &str, cap: usize) -> Result<Vec<String>, RangeError> {
    let mut patterns = Vec::new();
    let mut total: u64 = 0;
    for pattern in split(text)? {
        let parts = parts(text, pattern)?;
        let count = |part: &Part<'_>| match part {
            Part::Text(_) => 1,
            Part::Bracket(spans) => spans.iter().map(Span::count).fold(0, u64::saturating_add),
        };
        total = total.saturating_add(parts.iter().map(count).fold(1, u64::saturating_mul));
        patterns.push(parts);
    }
    if total > cap as u64 {
        return Err(RangeError::TooMany {
            text: text.to_owned(),
            count: total,
            cap,
        });
    }
    let names = patterns.iter().flat_map(|parts| combine(parts));
    Ok(names.collect())
}

fn combine(parts: &[Part<'_>]) -> Vec<String> {
    let mut names = vec![String::new()];
    for part in parts {
        names = match part {
            Part::Text(text) => names.into_iter().map(|name| name + text).collect(),
            Part::Bracket(spans) => {
                let with_each = |name: &String| -> Vec<String> {
                    let numbers = spans.iter().flat_map(|span| span.numbers());
                    numbers.map(|number| format!("{name}{number}")).collect()
                };
                names.iter().flat_map(with_each).collect()
            }
        };
    }
    names
}

/// The names between commas that are outside of brackets.
fn split(text: &str) -> Result<Vec<&str>, RangeError> {
    let malformed = |reason| RangeError::Malformed {
        text: text.to_owned(),
        reason,
    };
    let mut names = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (index, symbol) in text.char_indices() {
        match (symbol, inside) {
            ('[', false) => inside = true,
            (']', true) => inside = false,
            ('[', true) => return Err(malformed("a bracket inside a bracket")),
            (']', false) => return Err(malformed("a closing bracket without an opening one")),
            (',', false) => {
                names.push(text[start..index].trim());
                start = index + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(malformed("a bracket that is not closed"));
    }
    names.push(text[start..].trim());
    if names.contains(&"") {
        return Err(malformed("a name that is empty"));
    }
    Ok(names)
}

fn parts<'a>(text: &str, pattern: &'a str) -> Result<Vec<Part<'a>>, RangeError> {
    let mut parts = Vec::new();
    let mut rest = pattern;
    // `split` has checked that brackets are balanced and not nested.
    while let Some((before, behind)) = rest.split_once('[') {
        let (inside, after) = behind.split_once(']').unwrap_or((behind, ""));
        parts.push(Part::Text(before));
        parts.push(Part::Bracket(spans(text, inside)?));
        rest = after;
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

/// The spans in a bracket; `text` is the whole text, for error messages.
pub fn spans(text: &str, inside: &str) -> Result<Vec<Span>, RangeError> {
    let malformed = |reason| RangeError::Malformed {
        text: text.to_owned(),
        reason,
    };
    let number = |digits: &str| -> Result<u64, RangeError> {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        // Eighteen digits fit into a `u64`, and no name needs more.
        let short = digits.len() <= 18;
        let parsed = if plain && short {
            digits.parse().ok()
        } else {
            None
        };
        parsed.ok_or_else(|| {
            malformed("a bracket with something that is no number; write [1-4,7,10-20/2]")
        })
    };
    let span = |item: &str| -> Result<Span, RangeError> {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, number(step)?),
            None => (item, 1),
        };
        let (low_text, high_text) = range.split_once('-').unwrap_or((range, range));
        let (low, high) = (number(low_text)?, number(high_text)?);
        if high < low {
            return Err(malformed(
                "a span whose end is below its start: write the lower number first",
            ));
        }
        if step == 0 {
            return Err(malformed("a span with step 0: give 1 or more"));
        }
        let padded = low_text.len() > 1 && low_text.starts_with('0');
        let width = if padded { low_text.len() } else { 0 };
        Ok(Span {
            low,
            high,
            step,
            width,
        })
    };
    inside.split(',').map(|item| span(item.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(text: &str) -> Vec<String> {
        expand(text, 1000).unwrap()
    }

    /// AG-11.
    #[test]
    fn nids_are_expanded_from_lists_ranges_and_both() {
        assert_eq!(
            names("192.168.[1-2].[1-7/3]@o2ib0, 10.0.0.9@tcp"),
            [
                "192.168.1.1@o2ib0",
                "192.168.1.4@o2ib0",
                "192.168.1.7@o2ib0",
                "192.168.2.1@o2ib0",
                "192.168.2.4@o2ib0",
                "192.168.2.7@o2ib0",
                "10.0.0.9@tcp",
            ]
        );
        assert_eq!(names("192.168.[1-2].[1-128/2]@o2ib0").len(), 128);
    }

    /// The names that `scontrol show hostnames` prints for the same texts.
    #[test]
    fn hosts_are_expanded_as_slurm_expands_them() {
        let table: [(&str, &[&str]); 8] = [
            ("n1", &["n1"]),
            ("n[8-10]", &["n8", "n9", "n10"]),
            ("n[08-10]", &["n08", "n09", "n10"]),
            ("n[098-101]", &["n098", "n099", "n100", "n101"]),
            ("n[1,3-4]", &["n1", "n3", "n4"]),
            ("a[1-2],b7", &["a1", "a2", "b7"]),
            ("r[1-2]n[1-2]", &["r1n1", "r1n2", "r2n1", "r2n2"]),
            ("n[1,1]", &["n1", "n1"]),
        ];
        for (text, expected) in table {
            assert_eq!(names(text), expected, "{text}");
        }
    }

    /// Compares with the installed Slurm, if there is one.
    #[test]
    fn hosts_are_expanded_as_the_installed_slurm_expands_them() {
        for text in ["n[8-10]", "n[08-10,12]", "r[1-2]n[01-03]", "a[1-2],b7"] {
            let output = std::process::Command::new("scontrol")
                .args(["show", "hostnames", text])
                .output();
            match output {
                Ok(output) if output.status.success() => {
                    let printed = String::from_utf8_lossy(&output.stdout);
                    assert_eq!(names(text), printed.lines().collect::<Vec<_>>(), "{text}");
                }
                _ => assert!(!names(text).is_empty()),
            }
        }
    }

    #[test]
    fn a_range_of_too_many_names_is_refused_before_it_is_expanded() {
        let error = expand("[0-255].[0-255].[0-255].[0-255]@udp", 1000).unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"[0-255].[0-255].[0-255].[0-255]@udp\" stands for 4294967296 names; at most 1000 are \
             allowed: give fewer at a time"
        );
        let all = "[0-999999999999999999]".repeat(9);
        assert!(matches!(
            expand(&all, 7),
            Err(RangeError::TooMany {
                count: u64::MAX,
                ..
            })
        ));
        assert!(expand("n[1-1000]", 1000).is_ok() && expand("n[0-1000]", 1000).is_err());
    }

    #[test]
    fn malformed_texts_are_refused_with_the_reason() {
        for (text, reason) in [
            ("n[1-", "not closed"),
            ("n1]", "without an opening"),
            ("n[[1]]", "inside a bracket"),
            ("n[3-1]", "below its start"),
            ("n[1-3/0]", "step 0"),
            ("n[]", "no number"),
            ("n[1-x]", "no number"),
            ("n[-3]", "no number"),
            ("n[1,]", "no number"),
            ("n[1234567890123456789]", "no number"),
            ("a,,b", "empty"),
            ("", "empty"),
        ] {
            let error = expand(text, 10).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_expanded_within_the_cap_or_refused(text in "[a-c0-9\\[\\],/@.-]{0,24}") {
            if let Ok(names) = expand(&text, 50) {
                prop_assert!(!names.is_empty() && names.len() <= 50);
            }
        }

        #[test]
        fn a_span_contains_exactly_what_it_expands_to(low in 0..300u64, more in 0..300u64, step in 1..40u64) {
            let text = format!("[{low}-{}/{step}]", low + more);
            let span = spans(&text, text.trim_matches(['[', ']'])).unwrap()[0];
            let expanded: Vec<u64> = names(&text).iter().map(|name| name.parse().unwrap()).collect();
            let contained: Vec<u64> = (0..1000).filter(|number| span.contains(*number)).collect();
            prop_assert_eq!(expanded, contained);
        }
    }
}
