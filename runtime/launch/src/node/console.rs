//! Lines of the launcher on standard error.

use std::io::Write;

/// Prints a line, in one write, so that lines of several launchers do not mix.
pub(crate) fn print(node: &str, text: &str) {
    let line = format!("muster run: {node}: {text}\n");
    // A closed stderr is no reason to end.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
