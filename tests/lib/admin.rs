//! The `muster` command for one agent, as an administrator types it.

use crate::program;
use crate::until;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs `muster` for one agent.
#[derive(Debug)]
pub struct Admin(
    /// The agent's control socket.
    pub PathBuf,
);

impl Admin {
    /// The agent with this name in a test's directory.
    pub fn of(directory: &Path, name: &str) -> Admin {
        Admin(directory.join(format!("{name}.control")))
    }

    /// Runs a command. Returns its exit code, its output and its error output.
    ///
    /// # Panics
    /// If it cannot be started, or panics itself.
    pub fn run(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let output = Command::new(program("muster"))
            .args(words)
            .arg("--agent")
            .arg(&self.0)
            .output()
            .expect("muster can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let error = text(&output.stderr);
        assert!(!error.contains("panicked"), "{words:?}: {error}");
        (output.status.code(), text(&output.stdout), error)
    }

    /// Runs a command that must succeed. Returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn ask(&self, words: &[&str]) -> String {
        let (code, printed, error) = self.run(words);
        assert_eq!(code, Some(0), "{words:?}: {error}");
        printed
    }

    /// Runs a command that must succeed. Returns its output as JSON.
    ///
    /// # Panics
    /// If it fails.
    pub fn json(&self, words: &[&str]) -> Value {
        let text = self.ask(&[words, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}"))
    }

    /// Repeats a command until its output is right.
    ///
    /// # Panics
    /// If it is not right before the deadline.
    pub fn await_answer(&self, words: &[&str], is_right: impl Fn(&str) -> bool) -> String {
        let said = || {
            let (_, answer, error) = self.run(words);
            format!("{words:?}: {answer}{error}")
        };
        until(said, || {
            Some(self.run(words).1).filter(|answer| is_right(answer))
        })
    }
}
