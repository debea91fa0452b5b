//! Prints JSON values as YAML, for people and for other tools.

use serde_json::Value;
use std::fmt;

/// Prints a value as YAML; each line ends with a newline.
pub(super) struct Yaml<'a>(pub(super) &'a Value);

impl fmt::Display for Yaml<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        block(f, self.0, 0, "")
    }
}

/// Prints a value on lines of its own. `first` replaces the indentation of the first line.
fn block(f: &mut fmt::Formatter<'_>, value: &Value, indent: usize, first: &str) -> fmt::Result {
    let lead = |number: usize| match (number, first) {
        (0, first) if !first.is_empty() => first.to_owned(),
        _ => " ".repeat(indent),
    };
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            for (number, (key, value)) in entries.iter().enumerate() {
                write!(f, "{}{key}:", lead(number))?;
                below(f, value, indent + 2)?;
            }
            Ok(())
        }
        Value::Array(items) if !items.is_empty() => {
            for (number, item) in items.iter().enumerate() {
                let dash = format!("{}- ", lead(number));
                block(f, item, indent + 2, &dash)?;
            }
            Ok(())
        }
        _ => writeln!(f, "{}{}", lead(0), Scalar(value)),
    }
}

/// Prints the value of a key: in the line of the key, or on the lines below it.
fn below(f: &mut fmt::Formatter<'_>, value: &Value, indent: usize) -> fmt::Result {
    let is_block = match value {
        Value::Object(entries) => !entries.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    match is_block {
        true => {
            writeln!(f)?;
            block(f, value, indent, "")
        }
        false => writeln!(f, " {}", Scalar(value)),
    }
}

/// A value in one line. A string is quoted if it could be read as another type or syntax. The quotes of JSON
/// are valid in YAML.
struct Scalar<'a>(&'a Value);

impl fmt::Display for Scalar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::String(text) if is_plain(text) => f.write_str(text),
            value => write!(f, "{value}"),
        }
    }
}

fn is_plain(text: &str) -> bool {
    let is_plain_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/@".contains(&byte);
    let begins = text
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic());
    let is_keyword = matches!(
        text.to_ascii_lowercase().as_str(),
        "null" | "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n"
    );
    begins && !is_keyword && text.bytes().all(is_plain_byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn maps_lists_and_ambiguous_strings_are_printed() {
        let value = json!({
            "a": 1, "b": null, "c": "no", "d": "10.0.0.1@udp0", "e": [], "f": {},
            "g": [{ "h": "plain", "i": [1, 2] }, "two words", [3]],
        });
        let expected = "a: 1\nb: null\nc: \"no\"\nd: \"10.0.0.1@udp0\"\ne: []\nf: {}\ng:\n  - h: plain\n    \
                        i:\n      - 1\n      - 2\n  - \"two words\"\n  - - 3\n";
        assert_eq!(Yaml(&value).to_string(), expected);
    }
}
