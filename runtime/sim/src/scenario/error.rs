//! Errors of scenarios: the value, its line, the reason and the remedy.

use thiserror::Error;

use super::Span;

/// A refused scenario. Nothing was run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScenarioError {
    /// The text is not TOML, has an unknown key, or a value of a wrong type.
    #[error("{0}; see tests/scenarios for valid files")]
    Written(String),
    /// A value is out of bounds.
    #[error("{}{name} = {value}: {reason}; {remedy}", place(*.line))]
    Value {
        /// The line of the value, if it is in a file.
        line: Option<usize>,
        /// The name of the value.
        name: String,
        /// The value.
        value: String,
        /// Why it is not possible.
        reason: String,
        /// What to write instead.
        remedy: String,
    },
}

fn place(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!("line {line}: "))
}

impl ScenarioError {
    /// Adds the line of `text` that has the value. `fault` is the index of the wrong fault.
    pub(crate) fn in_text(mut self, text: &str, fault: Option<usize>) -> Self {
        if let Self::Value { line, name, .. } = &mut self {
            *line = line_of(text, name, fault);
        }
        self
    }
}

/// The line of a key, as scenario files are written: a table's header, then its keys. A value of a member's
/// configuration is searched in the zone.
fn line_of(text: &str, name: &str, fault: Option<usize>) -> Option<usize> {
    let (table, key) = name.rsplit_once('.').unwrap_or(("zone", name));
    let (header, wanted) = match table {
        "fault" => ("[[safety.fault]]".to_owned(), fault? + 1),
        table => (format!("[{table}]"), 1),
    };
    let (mut seen, mut inside) = (0, false);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            seen += usize::from(line == header);
            inside = line == header && seen == wanted;
        } else if inside
            && let Some(rest) = line.strip_prefix(key)
            && rest.trim_start().starts_with('=')
        {
            return Some(index + 1);
        }
    }
    None
}

pub(crate) fn refused(
    name: &str,
    value: &dyn ToString,
    reason: &str,
    remedy: &str,
) -> ScenarioError {
    ScenarioError::Value {
        line: None,
        name: name.to_owned(),
        value: value.to_string(),
        reason: reason.to_owned(),
        remedy: remedy.to_owned(),
    }
}

pub(crate) fn within(name: &str, span: Span, low: i64, high: i64) -> Result<(), ScenarioError> {
    let value = match span.low == span.high {
        true => span.low.to_string(),
        false => format!("[{}, {}]", span.low, span.high),
    };
    if span.low > span.high {
        let remedy = "write the smaller number first";
        return Err(refused(name, &value, "the range is empty", remedy));
    }
    if span.low < low || span.high > high {
        let reason = format!("it must be between {low} and {high}");
        return Err(refused(name, &value, &reason, "use a number in that range"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_that_of_the_key_in_its_table() {
        let text = "name = 'x'\n[zone]\nmembers = 3\n[safety]\n[[safety.fault]]\n\
            kind = 'crash'\n[[safety.fault]]\nkind = 'pause'\nnode = 9\n[expect]\n";
        let cases = [
            ("zone.members", None, Some(3)),
            ("theta", None, None),
            ("members", None, Some(3)),
            ("fault.node", Some(1), Some(9)),
            ("fault.node", Some(0), None),
            ("fault.kind", Some(0), Some(6)),
            ("fault.kind", None, None),
            ("expect.quiet_bytes", None, None),
        ];
        for (name, fault, line) in cases {
            assert_eq!(line_of(text, name, fault), line, "{name} {fault:?}");
        }
    }

    #[test]
    fn a_value_is_named_as_it_was_written() {
        let says = |span| within("job.nodes", span, 8, 9).unwrap_err().to_string();
        assert!(
            says(Span::just(7)).contains("job.nodes = 7:"),
            "{}",
            says(Span::just(7))
        );
        let span = Span { low: 8, high: 10 };
        assert!(
            says(span).contains("job.nodes = [8, 10]:"),
            "{}",
            says(span)
        );
    }
}
