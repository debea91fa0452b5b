//! Colours of states, on a terminal only.

use std::io::{IsTerminal, stdout};

/// Whether the output is coloured: standard output is a terminal, and NO_COLOR (no-color.org) is not set.
pub fn is_coloured() -> bool {
    let no = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    !no && !dumb && stdout().is_terminal()
}

/// A text in the colour of a state or a verdict, if colours are on.
pub fn state(text: &str, state: &str, coloured: bool) -> String {
    let colour = match state {
        "alive" | "ok" | "active" => "32",
        "degraded" | "suspect" | "hung" | "warning" | "unknown" => "33",
        "failed" | "critical" | "error" => "31",
        _ => return text.to_owned(),
    };
    match coloured {
        true => format!("\x1b[{colour}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}

/// Colours the states in a table whose second column is a state. This follows the alignment of columns, since escape
/// sequences have no width.
pub fn table(text: &str, states: &[&str], coloured: bool) -> String {
    if !coloured {
        return text.to_owned();
    }
    let line = |line: &str| {
        let found = states.iter().find_map(|one| {
            let at = line.find(&format!("  {one} "))? + 2;
            Some((at, *one))
        });
        match found {
            Some((at, one)) => {
                let (before, rest) = line.split_at(at);
                format!("{before}{}{}\n", state(one, one, true), &rest[one.len()..])
            }
            None => format!("{line}\n"),
        }
    };
    text.lines().map(line).collect()
}

/// The states of members that are coloured.
pub const STATES: [&str; 5] = ["alive", "degraded", "suspect", "failed", "unknown"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_states_are_coloured() {
        let text = "n1  alive  -\nn2  failed  x\n";
        assert_eq!(table(text, &STATES, false), text);
        let painted = table(text, &STATES, true);
        assert_eq!(
            painted,
            "n1  \x1b[32malive\x1b[0m  -\nn2  \x1b[31mfailed\x1b[0m  x\n"
        );
    }
}
