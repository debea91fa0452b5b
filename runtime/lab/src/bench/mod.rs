//! `muster bench`: measures the costs and the speed of Muster on this machine.
//!
//! Absolute values are meaningful only together with the machine. Comparisons with other systems are measured in one
//! run, in turns, by one driver, and given as ratios. All processes that a bench starts end with it (see `launch`).

mod alarms;
mod calm;
mod client;
mod cost;
mod detect;
mod ends;
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
mod requests;
mod saved;
mod table;
pub(crate) mod timed;
mod trips;
mod wiring;

use clap::Subcommand;
use muster_terminal::CliError;

/// Subcommands of `muster bench`.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// CPU time of idle agents and of an idle rank.
    Idle(idle::IdleArgs),
    /// Boot, killed, silent, paused and cut-off members, idle cost: Muster and other programs.
    Detect(detect::DetectArgs),
    /// Latency and throughput of rails, compared with plain sockets and plain libfabric.
    Rails(rails::RailsArgs),
    /// False failures on a machine whose cores are all busy.
    Calm(calm::CalmArgs),
    /// Time until each rank is notified that another was killed, compared with pidfd and pipe.
    Killed(killed::KilledArgs),
    /// Costs of the library for its application: a query, attaching, wake-ups.
    Client(client::ClientArgs),
    /// Effect of idle agents on work on every core, in turns with and without them.
    Noise(noise::NoiseArgs),
    /// Heartbeats that messages of the application save, and the detection time of a silence then.
    Saved(saved::SavedArgs),
    /// The merge of age vectors, compared with a plain loop and with the limit of the machine.
    Merge(merge::MergeArgs),
    /// The rank of `killed`, `client` and `noise`: prints when it was notified of which rank.
    #[command(hide = true)]
    EventRank(job::EventRankArgs),
    /// The rank of `idle`: attaches, reports that, and waits for the end of its standard input.
    #[command(hide = true)]
    IdleRank {
        /// Number of nodes that it must see before it is ready.
        nodes: usize,
    },
    /// Wakes up as often as an agent of profile `standard`, receives and sends as much, and does
    /// nothing else.
    #[command(hide = true)]
    RawLoop(idle::RawLoopArgs),
    /// Executes a program that ends when the bench ends.
    #[command(hide = true)]
    Launch(launch::LaunchArgs),
    /// Opens rails and waits until it is ended.
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
