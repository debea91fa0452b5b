//! `muster bench`: what Muster costs on this machine.

use super::CliError;
use clap::Subcommand;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// CPU time of agents and of a rank that have nothing to do.
    Idle {
        /// Length of the measurement.
        #[arg(long, default_value_t = 30)]
        seconds: u64,
    },
}

/// Runs a benchmark.
pub(crate) fn run(command: &BenchCommand) -> Result<(), CliError> {
    match command {
        BenchCommand::Idle { seconds } => Err(CliError::new("bench", seconds)),
    }
}
