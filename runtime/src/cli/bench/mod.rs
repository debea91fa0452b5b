//! `muster bench`: what Muster costs and how fast it is, on this machine.
//!
//! Absolute figures mean something only with the machine named; what is compared with others
//! is measured in one run, in turns, by one driver, and given as ratios.

mod detect;
mod idle;
mod member;

use super::CliError;
use clap::Subcommand;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// CPU time of agents and of a rank that have nothing to do.
    Idle(idle::IdleArgs),
    /// Boot, killed and silent members, idle cost: ours beside other programs'.
    Detect(detect::DetectArgs),
    /// The rank of `idle`: attaches, says so, and waits for the end of its standard input.
    #[command(hide = true)]
    IdleRank {
        /// How many nodes it has to see before it is ready.
        nodes: usize,
    },
}

/// Runs a benchmark.
pub(crate) fn run(command: &BenchCommand) -> Result<(), CliError> {
    match command {
        BenchCommand::Idle(args) => idle::run(args),
        BenchCommand::Detect(args) => detect::run(args),
        BenchCommand::IdleRank { nodes } => idle::rank(*nodes),
    }
}
