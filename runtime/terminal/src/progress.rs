//! The progress of a long command.

use std::fmt;
use std::io::{self, IsTerminal, Write};

/// A line on standard error that says what a command does now. It is shown on a terminal only, and erased at the end.
#[derive(Debug)]
pub struct Progress {
    is_shown: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            is_shown: io::stderr().is_terminal(),
        }
    }
}

impl Progress {
    /// Replaces the line.
    pub fn show(&self, text: fmt::Arguments<'_>) {
        if self.is_shown {
            // Progress is of no use to a reader that has gone.
            let _ = io::stderr().write_all(format!("\r{text}\x1b[K").as_bytes());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.show(format_args!(""));
    }
}
