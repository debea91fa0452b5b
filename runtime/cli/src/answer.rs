//! An agent's answer: its fields, and its output as a table, as JSON or as YAML.

use super::yaml::Yaml;
use clap::ValueEnum;
use serde_json::Value;
use std::fmt::Write as _;

/// Output format of an agent's answer.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Shape {
    /// For people.
    Table,
    /// For programs; has the name of a schema.
    Json,
    /// The JSON answer as YAML.
    Yaml,
}

/// Prints an answer in the wanted format.
pub(crate) fn print_answer(output: Shape, answer: &Value, table: impl Fn(&Value) -> String) {
    match output {
        Shape::Table => print!("{}", table(answer)),
        Shape::Json => println!("{answer:#}"),
        Shape::Yaml => print!("{}", Yaml(answer)),
    }
}

/// A text of an answer; `-` if there is none.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("-")
}

/// A list of an answer; empty if there is none.
pub(crate) fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// `1 error`, `2 errors`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// Aligns columns: each is as wide as its widest cell, with two blanks between columns.
pub(crate) fn align<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut table = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}
