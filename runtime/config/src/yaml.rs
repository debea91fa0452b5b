//! A parser of a subset of YAML that configuration requires, with the position of each value.
//!
//! It supports mappings and lists by indentation, lists in brackets, plain and quoted texts, comments. Other YAML
//! features (anchors, tags, several documents, folded texts, mappings in braces, tabs) are not supported and are
//! refused. Every error has line and column, counted from 1.

use std::collections::BTreeSet;
use std::fmt;

/// The maximum length of a document, bytes.
pub const DOCUMENT_MAX: usize = 1 << 20;

/// The maximum nesting depth.
const DEPTH_MAX: usize = 8;

/// An error in a document, and its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct YamlError {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// The reason, and what to write instead.
    pub reason: String,
}

/// A position in a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    /// Line, from 1.
    pub(super) line: usize,
    /// Column, from 1.
    pub(super) column: usize,
}

impl Place {
    /// An error at this position.
    pub(super) fn error(self, reason: impl Into<String>) -> YamlError {
        YamlError {
            line: self.line,
            column: self.column,
            reason: reason.into(),
        }
    }
}

/// A value and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    /// Where it begins.
    pub(super) place: Place,
    /// The value.
    pub(super) value: Value,
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// A text; the code that uses it may parse it as a number.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A mapping, in the order of the document; no key is there twice.
    Map(Vec<(Key, Node)>),
}

/// A key and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    /// Where it begins.
    pub(super) place: Place,
    /// Its name.
    pub(super) name: String,
}

/// A line without its indentation and comment.
#[derive(Debug, Clone, Copy)]
struct Line<'a> {
    place: Place,
    text: &'a str,
}

impl Line<'_> {
    fn indent(&self) -> usize {
        self.place.column - 1
    }

    fn at(&self, offset: usize) -> Place {
        Place {
            line: self.place.line,
            column: self.place.column + offset,
        }
    }
}

/// Parses a document.
///
/// # Errors
/// The first error, with its position.
pub(super) fn parse(document: &str) -> Result<Node, YamlError> {
    let start = Place { line: 1, column: 1 };
    if document.len() > DOCUMENT_MAX {
        let length = document.len();
        let reason = format!("the document has {length} bytes; at most {DOCUMENT_MAX} are read");
        return Err(start.error(reason));
    }
    let mut lines = Vec::new();
    for (number, raw) in (1..).zip(document.lines()) {
        lines.extend(line(number, raw)?);
    }
    let Some(first) = lines.first() else {
        return Err(start.error("the document is empty"));
    };
    let indent = first.indent();
    let mut parser = Parser { lines, at: 0 };
    let node = parser.block(indent, 0)?;
    match parser.peek() {
        None => Ok(node),
        Some(line) => Err(line
            .place
            .error("this line is indented less than the block that contains it")),
    }
}

/// A line of the document; none if it is blank or a comment.
fn line(number: usize, raw: &str) -> Result<Option<Line<'_>>, YamlError> {
    let indent = raw.len() - raw.trim_start_matches(' ').len();
    let place = Place {
        line: number,
        column: indent + 1,
    };
    let text = without_comment(&raw[indent..]).trim_end();
    if text.starts_with('\t') {
        return Err(place.error("a tab in the indentation; use spaces"));
    }
    if text.starts_with("---") || text.starts_with("...") || text.starts_with('%') {
        return Err(place.error("document marks are not supported; remove this line"));
    }
    Ok((!text.is_empty()).then_some(Line { place, text }))
}

/// The text before a comment: before a `#` that begins the line or follows a space, outside of quotes.
fn without_comment(text: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    let mut characters = text.char_indices();
    while let Some((index, character)) = characters.next() {
        match (quote, character) {
            (None, '#') if before == ' ' => return &text[..index],
            (None, '"' | '\'') if " [,:".contains(before) => quote = Some(character),
            (Some('"'), '\\') => _ = characters.next(),
            (Some(open), _) if open == character => quote = None,
            _ => {}
        }
        before = character;
    }
    text
}

struct Parser<'a> {
    lines: Vec<Line<'a>>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Line<'a>> {
        self.lines.get(self.at).copied()
    }

    /// The list, mapping or single text that begins at the next line.
    fn block(&mut self, indent: usize, depth: usize) -> Result<Node, YamlError> {
        let line = self.peek().expect("the caller has seen a line");
        if depth > DEPTH_MAX {
            let reason = format!("nested deeper than {DEPTH_MAX} levels");
            return Err(line.place.error(reason));
        }
        let value = if is_item(line.text) {
            self.list(indent, depth)?
        } else if split_key(&line)?.is_some() {
            self.map(indent, depth)?
        } else {
            self.at += 1;
            return scalar(line.text, line.place);
        };
        Ok(Node {
            place: line.place,
            value,
        })
    }

    fn list(&mut self, indent: usize, depth: usize) -> Result<Value, YamlError> {
        let mut items = Vec::new();
        while let Some(line) = self
            .peek()
            .filter(|line| line.indent() == indent && is_item(line.text))
        {
            let rest = line.text[1..].trim_start();
            if rest.is_empty() {
                self.at += 1;
                items.push(self.nested(indent, line.place, depth, false)?);
                continue;
            }
            // The rest of the line is the first line of the item's content.
            let offset = line.text.len() - rest.len();
            let inner = Line {
                place: line.at(offset),
                text: rest,
            };
            items.push(self.inside(inner, depth)?);
        }
        self.no_deeper(indent)?;
        Ok(Value::List(items))
    }

    /// A block whose first line begins in the middle of the current line.
    fn inside(&mut self, first: Line<'a>, depth: usize) -> Result<Node, YamlError> {
        // The part of the line before it is not used again, so the line is replaced.
        self.lines[self.at] = first;
        self.block(first.indent(), depth + 1)
    }

    fn map(&mut self, indent: usize, depth: usize) -> Result<Value, YamlError> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        let mut names = BTreeSet::new();
        while let Some(line) = self.peek().filter(|line| line.indent() == indent) {
            let Some((name, offset, rest)) = split_key(&line)? else {
                return Err(line
                    .place
                    .error("a key and a colon are expected here, as in \"net: udp0\""));
            };
            if !names.insert(name.clone()) {
                return Err(line.place.error(format!("the key {name:?} occurs twice")));
            }
            self.at += 1;
            let node = if rest.is_empty() {
                self.nested(indent, line.place, depth, true)?
            } else {
                scalar(rest, line.at(offset))?
            };
            let key = Key {
                place: line.place,
                name,
            };
            entries.push((key, node));
        }
        self.no_deeper(indent)?;
        Ok(Value::Map(entries))
    }

    /// The block that is indented below a key or a dash; a list may have the same indentation as its key.
    fn nested(
        &mut self,
        indent: usize,
        owner: Place,
        depth: usize,
        of_key: bool,
    ) -> Result<Node, YamlError> {
        let beside = |line: &Line<'_>| of_key && line.indent() == indent && is_item(line.text);
        let below = self
            .peek()
            .filter(|line| line.indent() > indent || beside(line));
        match below {
            Some(line) => self.block(line.indent(), depth + 1),
            None => Err(owner.error("there is no value here; write one, or [] for an empty list")),
        }
    }

    fn no_deeper(&self, indent: usize) -> Result<(), YamlError> {
        match self.peek().filter(|line| line.indent() > indent) {
            Some(line) => Err(line
                .place
                .error("this line is indented more than the block that contains it")),
            None => Ok(()),
        }
    }
}

fn is_item(text: &str) -> bool {
    text == "-" || text.starts_with("- ")
}

/// Key, offset of the value, value; none if the line has no key.
fn split_key<'a>(line: &Line<'a>) -> Result<Option<(String, usize, &'a str)>, YamlError> {
    let text = line.text;
    let colon = text.char_indices().find(|(index, character)| {
        *character == ':'
            && text[index + 1..]
                .chars()
                .next()
                .is_none_or(|next| next == ' ')
    });
    let Some((colon, _)) = colon else {
        return Ok(None);
    };
    let name = &text[..colon];
    let plain =
        |character: char| character.is_ascii_alphanumeric() || character == '_' || character == '-';
    if name.is_empty() || !name.chars().all(plain) {
        let quoted = name.starts_with(['"', '\'', '[']);
        return match quoted {
            true => Ok(None),
            false => Err(line.place.error(format!(
                "{name:?} is not a key; use only a-z, A-Z, 0-9, _ and -"
            ))),
        };
    }
    let rest = text[colon + 1..].trim_start();
    Ok(Some((name.to_owned(), text.len() - rest.len(), rest)))
}

/// A text or a list in brackets.
fn scalar(text: &str, place: Place) -> Result<Node, YamlError> {
    if !text.starts_with('[') {
        let (value, rest) = word(text, place, "")?;
        return match rest.is_empty() {
            true => Ok(value),
            false => Err(later(place, text, rest).error("nothing may follow a quoted text")),
        };
    }
    let mut items = Vec::new();
    let mut rest = text[1..].trim_start();
    while !rest.starts_with(']') {
        if rest.is_empty() {
            return Err(place.error("this list is not closed; it must end in the same line"));
        }
        let (item, after) = word(rest, later(place, text, rest), ",]")?;
        items.push(item);
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if after.starts_with(']') || after.is_empty() => after,
            None => return Err(later(place, text, after).error("a comma or ] is expected here")),
        };
    }
    if rest.len() > 1 {
        return Err(later(place, text, &rest[1..]).error("nothing may follow a list"));
    }
    Ok(Node {
        place,
        value: Value::List(items),
    })
}

/// The position of the rest of a text that begins at `place`.
fn later(place: Place, text: &str, rest: &str) -> Place {
    Place {
        line: place.line,
        column: place.column + text.len() - rest.len(),
    }
}

/// Parses one text, which ends at one of the characters `until` if it is not quoted. Returns the rest, too.
fn word<'a>(text: &'a str, place: Place, until: &str) -> Result<(Node, &'a str), YamlError> {
    let node = |value: String| Node {
        place,
        value: Value::Text(value),
    };
    if let Some(quote) = text
        .chars()
        .next()
        .filter(|character| "\"'".contains(*character))
    {
        let (value, rest) = quoted(text, quote).ok_or_else(|| {
            place.error("this quote is not closed, or has an escape other than \\\\ and \\\"")
        })?;
        return Ok((node(value), rest));
    }
    if text.starts_with(['*', '&', '!', '|', '>', '{', '}', '@', '`', '[']) {
        let first = text.chars().next().unwrap_or(' ');
        let reason = format!(
            "a text that begins with {first} has a special meaning in YAML; put it in quotes"
        );
        return Err(place.error(reason));
    }
    let end = text
        .find(|character| until.contains(character))
        .unwrap_or(text.len());
    let value = text[..end].trim_end();
    if value.is_empty() {
        return Err(place.error("a value is expected here"));
    }
    Ok((node(value.to_owned()), &text[end..]))
}

fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text[1..].char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '\\' if quote == '"' => match characters.next()?.1 {
                escaped @ ('\\' | '"') => value.push(escaped),
                _ => return None,
            },
            _ if character == quote => return Some((value, &text[index + 2..])),
            _ => value.push(character),
        }
    }
    None
}

/// A text as YAML: plain if possible, else in quotes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain =
            |character: char| character.is_ascii_alphanumeric() || "._/@:".contains(character);
        let starts_well = self
            .0
            .starts_with(|character: char| character.is_ascii_alphanumeric());
        if starts_well && self.0.chars().all(plain) && !self.0.ends_with(':') {
            f.write_str(self.0)
        } else {
            let escaped = self.0.replace('\\', "\\\\").replace('"', "\\\"");
            write!(f, "\"{escaped}\"")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A value as a short text, without positions.
    fn show(node: &Node) -> String {
        match &node.value {
            Value::Text(text) => format!("{text:?}"),
            Value::List(items) => {
                format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(","))
            }
            Value::Map(entries) => {
                let entry = |(key, node): &(Key, Node)| format!("{}:{}", key.name, show(node));
                format!(
                    "{{{}}}",
                    entries.iter().map(entry).collect::<Vec<_>>().join(",")
                )
            }
        }
    }

    fn read(document: &str) -> String {
        show(&parse(document).unwrap())
    }

    #[test]
    fn mappings_lists_texts_and_comments() {
        let document = "# a comment\n\
                        a: 1\n\
                        b:   # another\n  \
                          - x: \"y # no comment\"\n    \
                            z: [p, \"q,]\", 'r']\n  \
                          -\n    \
                            - deep\n\
                        c:\n\
                        - left\n\
                        d: []\n";
        assert_eq!(
            read(document),
            r#"{a:"1",b:[{x:"y # no comment",z:["p","q,]","r"]},["deep"]],c:["left"],d:[]}"#
        );
        assert_eq!(
            read("nid: 10.0.0.1:7741@udp0"),
            r#"{nid:"10.0.0.1:7741@udp0"}"#
        );
        assert_eq!(read(r#"a: "q\"\\""#), r#"{a:"q\"\\"}"#);
    }

    #[test]
    fn an_error_has_its_position() {
        for (document, expected) in [
            ("", "line 1, column 1: the document is empty"),
            ("a: 1\na: 2", "line 2, column 1: the key \"a\" occurs twice"),
            (
                "a:\n  b: 1\n    c: 2",
                "line 3, column 5: this line is indented more",
            ),
            (
                "  a: 1\nb: 2",
                "line 2, column 1: this line is indented less",
            ),
            ("a: [1, 2", "line 1, column 4: this list is not closed"),
            ("a: *b", "line 1, column 4: a text that begins with *"),
            ("a: {b: 1}", "line 1, column 4: a text that begins with {"),
            ("a: \"b", "line 1, column 4: this quote is not closed"),
            ("a: \"b\" c", "line 1, column 7: nothing may follow"),
            ("a: 1\n\tb: 2", "line 2, column 1: a tab"),
            ("---\na: 1", "line 1, column 1: document marks"),
            ("a:", "line 1, column 1: there is no value here"),
            ("a: 1\nb", "line 2, column 1: a key and a colon"),
            ("a b: 1", "line 1, column 1: \"a b\" is not a key"),
        ] {
            let text = parse(document).map_or_else(|error| error.to_string(), |node| show(&node));
            assert!(text.starts_with(expected), "{document:?}: {text}");
        }
        let deep = "- ".repeat(20) + "x";
        assert!(parse(&deep).unwrap_err().reason.contains("deeper than 8"));
    }

    /// The time is linear in the size of the document: with a quadratic time this would not end.
    #[test]
    fn a_long_document_is_read() {
        let items = 100_000;
        assert!(parse(&"- a: 1\n".repeat(items)).is_ok());
        let keys: String = (0..items).map(|key| format!("k{key}: 1\n")).collect();
        assert!(keys.len() < DOCUMENT_MAX && parse(&keys).is_ok());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(document in "[a-c:\\-\\[\\]\"' #\n,*]{0,60}") {
            if let Err(error) = parse(&document) {
                prop_assert!(error.line >= 1 && error.column >= 1);
            }
        }

        #[test]
        fn a_quoted_text_is_parsed_to_the_same_text(text in "[ -~]{0,20}") {
            let document = format!("a: {0}\nb: [{0}, {0}]", Quoted(&text));
            let node = parse(&document).unwrap();
            prop_assert_eq!(show(&node), format!("{{a:{text:?},b:[{text:?},{text:?}]}}"));
        }
    }
}
