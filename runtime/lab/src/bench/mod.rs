//! `muster bench`: what Muster costs and how fast it is, on this machine.
//!
//! Absolute figures mean something only with the machine named; what is compared with others
//! is measured in one run, in turns, by one driver, and given as ratios. Whatever a bench starts
//! ends with it (see `launch`).

mod alarms;
mod calm;
mod client;
mod cost;
mod detect;
mod figures;
mod flows;
mod group;
mod idle;
mod job;
mod killed;
mod launch;
mod machine;
mod member;
mod merge;
mod noise;
mod rails;
mod saved;
mod table;
mod trips;
mod wiring;

use clap::Subcommand;
use muster_terminal::CliError;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// CPU time of agents and of a rank that have nothing to do.
    Idle(idle::IdleArgs),
    /// Boot, killed, silent, paused and cut-off members, idle cost: ours beside other programs'.
    Detect(detect::DetectArgs),
    /// Latency and throughput of rails: ours beside plain sockets and plain libfabric.
    Rails(rails::RailsArgs),
    /// False failures on a machine whose cores are all busy.
    Calm(calm::CalmArgs),
    /// When each rank of a job is told that another was killed, beside pidfd and pipe.
    Killed(killed::KilledArgs),
    /// What the library costs its application: a question, attaching, wake-ups.
    Client(client::ClientArgs),
    /// What agents at rest do to work on every core, in turns with and without them.
    Noise(noise::NoiseArgs),
    /// Heartbeats that messages of the application save, and when a silence is found then.
    Saved(saved::SavedArgs),
    /// The merge of age vectors, beside a plain loop and what the machine does at most.
    Merge(merge::MergeArgs),
    /// The rank of `killed`, `client` and `noise`: says when it was told of which rank.
    #[command(hide = true)]
    EventRank(job::EventRankArgs),
    /// The rank of `idle`: attaches, says so, and waits for the end of its standard input.
    #[command(hide = true)]
    IdleRank {
        /// How many nodes it has to see before it is ready.
        nodes: usize,
    },
    /// Wakes up as often as an agent of profile `standard`, receives and sends as much, and does
    /// nothing else.
    #[command(hide = true)]
    RawLoop(idle::RawLoopArgs),
    /// Becomes a program that ends when the bench ends.
    #[command(hide = true)]
    Launch(launch::LaunchArgs),
    /// Opens rails and waits to be ended.
    #[command(hide = true)]
    OpenRails(cost::OpenRailsArgs),
    /// Computes until it is ended.
    #[command(hide = true)]
    Spin,
}

/// Runs a benchmark.
pub(crate) fn run(command: &BenchCommand) -> Result<(), CliError> {
    match command {
        BenchCommand::Idle(args) => idle::run(args),
        BenchCommand::Detect(args) => detect::run(args),
        BenchCommand::Calm(args) => calm::run(args),
        BenchCommand::Rails(args) => rails::run(args),
        BenchCommand::Killed(args) => killed::run(args),
        BenchCommand::Client(args) => client::run(args),
        BenchCommand::Noise(args) => noise::run(args),
        BenchCommand::Saved(args) => saved::run(args),
        BenchCommand::Merge(args) => merge::run(args),
        BenchCommand::EventRank(args) => job::event_rank(args),
        BenchCommand::IdleRank { nodes } => idle::rank(*nodes),
        BenchCommand::RawLoop(args) => idle::raw_loop(args),
        BenchCommand::Launch(args) => launch::run(args),
        BenchCommand::OpenRails(args) => cost::open_rails(args),
        BenchCommand::Spin => calm::spin(),
    }
}
