//! The program `muster-lab`: benchmarks, the demonstration, the simulator's commands and the manual pages.
//!
//! `muster bench`, `muster demo`, `muster sim` and `muster manual` execute it, as git executes `git-foo`. So nothing
//! that belongs to laboratory work is part of the agent or of the command line of operators.
#![forbid(unsafe_code)]

#[macro_use(print, println)]
extern crate muster_terminal;

mod bench;
mod demo;
mod manual;
mod sim;

use clap::{ArgAction, CommandFactory, Parser, Subcommand};
use muster_terminal::{
    end_of_output, print_cli_error, print_refusal, refusal, set_command, warn_of_strange_settings,
};
use std::ffi::OsString;
use std::process::ExitCode;

/// Benchmarks, demonstration and simulator of Muster.
#[derive(Parser)]
#[command(
    name = "muster",
    version,
    about,
    arg_required_else_help = true,
    disable_help_flag = true
)]
struct Lab {
    /// Print help; the manual page has more.
    #[arg(short, long, global = true, display_order = 1000, action = ArgAction::HelpShort)]
    help: Option<bool>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a real MPI job on emulated nodes, kill a rank, silence a node, and show which
    /// rank received which notification, when and why.
    Demo(demo::DemoArgs),
    /// Measure the costs of Muster on this machine.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Run the protocols in a simulated world that a seed determines.
    #[command(subcommand)]
    Sim(sim::SimCommand),
    /// Write manual pages and shell completions under a directory such as PREFIX/share.
    #[command(hide = true)]
    Manual(manual::ManualArgs),
}

/// Runs the command line of this process and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    muster_sys::process::forget_empty_settings();
    let line: Vec<OsString> = std::env::args_os().collect();
    let lab = match Lab::try_parse_from(&line) {
        Ok(lab) => lab,
        Err(error) => match refusal(&error, Lab::command(), &line) {
            Some(refusal) => return print_refusal(&refusal),
            None => error.exit(),
        },
    };
    set_command(Lab::command(), &line);
    if !matches!(lab.command, Command::Demo(_) | Command::Manual(_)) {
        warn_of_strange_settings();
    }
    let outcome = match lab.command {
        Command::Demo(args) => demo::run(&args),
        Command::Bench(command) => bench::run(&command),
        Command::Sim(command) => sim::main(&command),
        Command::Manual(args) => manual::write(&args, whole_command()),
    };
    match outcome {
        Ok(()) => end_of_output(),
        Err(error) => print_cli_error(&error),
    }
}

/// The command line `muster` with the commands of this program in it.
#[must_use]
pub fn whole_command() -> clap::Command {
    let own = Lab::command();
    own.get_subcommands()
        .fold(muster_cli::command(), |whole, command| {
            whole.mut_subcommand(command.get_name(), |_| command.clone())
        })
}
