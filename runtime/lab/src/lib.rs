//! The program `muster-lab`: benchmarks, the demonstration, the simulator's commands and the manual pages.
//!
//! `muster bench`, `muster demo`, `muster sim` and `muster manual` execute it, as git executes `git-foo`. So nothing
//! that belongs to laboratory work is part of the agent or of the command line of operators.
#![forbid(unsafe_code)]

/// As the standard library's, but a reader that has gone (`muster sim ... | head`) or a disk that is full is no
/// panic; see [`muster_terminal::print_out`].
macro_rules! println {
    ($($part:tt)*) => { muster_terminal::print_out(format_args!($($part)*), "\n") };
}

macro_rules! print {
    ($($part:tt)*) => { muster_terminal::print_out(format_args!($($part)*), "") };
}

mod bench;
mod demo;
mod manual;
mod sim;
mod sim_burns;
mod sim_compare;
mod sim_figures;
mod sim_lamport;
mod sim_markdown;
mod sim_plot;

use clap::{ArgAction, CommandFactory, Parser, Subcommand};
use muster_config::{forget_values, refusal};
use muster_terminal::{CliError, end_of_output, print_cli_error, warn_of_strange_settings};
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
    /// Start a real MPI job on emulated nodes, kill a rank, silence a node, and show who
    /// was told what, when and why.
    Demo(demo::DemoArgs),
    /// Measure what Muster costs on this machine.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Run the protocols in a simulated world, where one seed decides everything.
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
        Err(error) => return refuse(error, &line),
    };
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

/// Prints what is wrong with the command line, or what it requests, such as help.
fn refuse(mut error: clap::Error, line: &[OsString]) -> ExitCode {
    forget_values(&mut error);
    match refusal(&error, Lab::command(), line) {
        Some(refused) => {
            print_cli_error(&CliError::usage(refused.what, refused.why).hint(refused.remedy))
        }
        None => error.exit(),
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
