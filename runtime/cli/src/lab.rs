//! `muster bench`, `demo`, `sim` and `manual` are commands of `muster-lab`, a program of its own: what measures and
//! simulates is not part of what operators run.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;
use muster_terminal::{CliError, print_cli_error, set_command};

/// The program, which is installed beside `muster`.
const PROGRAM: &str = "muster-lab";
/// Its commands.
const COMMANDS: [&str; 4] = ["bench", "demo", "sim", "manual"];

/// What follows the name of one of its commands.
#[derive(Args)]
pub(crate) struct LabArgs {
    /// The arguments of the command.
    #[arg(
        value_name = "ARGUMENTS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<OsString>,
}

/// Executes `muster-lab` in this process if the command line is one of its commands. Returns only if it is none, or
/// if the program cannot be executed.
pub(crate) fn hand_over(line: &[OsString]) -> Option<ExitCode> {
    let is_its = |word: &OsString| COMMANDS.iter().any(|command| word == command);
    let first = line.get(1)?;
    let is_help = first == "help" && line.get(2).is_some_and(is_its);
    (is_its(first) || is_help).then(|| {
        set_command(super::command(), line);
        run(&line[1..])
    })
}

/// Executes `muster-lab` with a command and its arguments. Returns only if that fails.
fn run(line: &[OsString]) -> ExitCode {
    let beside = std::env::current_exe().map(|own| own.with_file_name(PROGRAM));
    let program = beside
        .ok()
        .filter(|path| path.is_file())
        .unwrap_or_else(|| PathBuf::from(PROGRAM));
    // Under the name of this program, so that usage lines show what the user typed.
    let cause = Command::new(&program).arg0("muster").args(line).exec();
    let command = line
        .first()
        .map(|word| word.to_string_lossy())
        .unwrap_or_default();
    let what = format!("{command}: cannot execute {}", program.display());
    let hint = format!("install {PROGRAM} beside muster, or in a directory of PATH");
    print_cli_error(&CliError::new(what, cause).hint(hint))
}

impl LabArgs {
    /// Executes `muster-lab` with this command, should [`hand_over`] not have found it in its place.
    pub(crate) fn execute(self, command: &str) -> ExitCode {
        let mut line = vec![OsString::from(command)];
        line.extend(self.arguments);
        run(&line)
    }
}
