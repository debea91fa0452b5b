//! The command line `muster`, for operators and developers.
//!
//! Each subcommand is a file. A failure prints one line with what failed and why, and a hint with a remedy; it never
//! prints a panic. Exit codes: 0 success, 1 failure, 2 wrong usage, 3 no agent, 4 degraded, 5 time-out, 6 not allowed,
//! 7 wrong configuration; 20, 21, 22 a simulated world failed (see `sim`).
#![forbid(unsafe_code)]

#[macro_use(print, println)]
extern crate muster_terminal;

mod agents;
mod answer;
mod attrs;
mod check;
mod doctor;
mod document;
mod events;
mod explain;
mod gossip;
mod jobs;
mod lab;
mod memory;
mod metrics;
mod names;
mod peers;
mod policy;
mod rails;
mod report;
mod settings;
mod show;
mod sockets;
mod stats;
mod top;
mod top_screen;
mod top_zones;
mod wait;
mod yaml;
mod zones;

use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, Parser, Subcommand};
use muster_terminal::{
    end_of_output, print_cli_error, print_refusal, refusal, set_command, warn_of_strange_settings,
};
use std::ffi::OsString;
use std::process::ExitCode;

/// Failure detection and membership for HPC jobs.
#[derive(Parser)]
#[command(
    name = "muster",
    version,
    about,
    arg_required_else_help = true,
    disable_help_flag = true
)]
struct Cli {
    /// Print help; the manual page has more.
    #[arg(short, long, global = true, display_order = 1000, action = ArgAction::HelpShort)]
    help: Option<bool>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show every member that the agent knows: state, ranks, and how it is known.
    Members(show::MembersArgs),
    /// Show what is known about one member, with sources and times.
    Why(show::WhyArgs),
    /// Show the agent's rails, or open and close some while it runs.
    Rails(rails::RailsArgs),
    /// Show the peers and each of their NIDs, or configure some.
    Peers(peers::PeersArgs),
    /// Show or change the rules that set preferences of rails and NIDs.
    Policy(policy::PolicyArgs),
    /// Show which path the next message to a member takes, and the reason against each other path.
    Explain(explain::ExplainArgs),
    /// Show the agent's conclusions; with --follow also new ones.
    Events(events::EventsArgs),
    /// Wait until members or ranks are in a state.
    Wait(wait::WaitArgs),
    /// Show zones, members and rails, refreshed repeatedly.
    Top(top::TopArgs),
    /// Print one verdict about the job; for monitoring with --nagios.
    Check(check::CheckArgs),
    /// Write a page about the course of a job, with its timeline, from journals.
    Report(report::ReportArgs),
    /// Find conditions of this node that impair agents, and show the remedies.
    Doctor(doctor::DoctorArgs),
    /// Show the attributes that nodes have published.
    Attrs(attrs::AttrsArgs),
    /// Print all metrics as OpenMetrics, or write them for node_exporter.
    Metrics(metrics::MetricsArgs),
    /// Show the agent's settings and their sources, or check a file.
    #[command(subcommand)]
    Config(settings::ConfigCommand),
    /// Show the counters of the agent, of nets, rails, peers or NIDs, or set them to zero.
    Stats(stats::StatsArgs),
    /// Control age gossip on an agent that runs it: init, start, stop, status.
    Gossip(gossip::GossipArgs),
    /// Print the configuration of rails, peers and policy as YAML.
    Export(document::ExportArgs),
    /// Replace the configuration by an exported one.
    Import(document::ImportArgs),
    /// Show the zones of a job, or plan those of a large one.
    Zones(zones::ZonesArgs),
    /// Launch an MPI job that continues after the loss of ranks and nodes.
    Run(muster_launch::command::RunArgs),
    /// Start a real MPI job on emulated nodes, kill a rank, silence a node, and show which
    /// rank received which notification, when and why.
    Demo(lab::LabArgs),
    /// Measure the costs of Muster on this machine.
    Bench(lab::LabArgs),
    /// Run the protocols in a simulated world that a seed determines.
    Sim(lab::LabArgs),
    /// Write manual pages and shell completions under a directory such as PREFIX/share.
    #[command(hide = true)]
    Manual(lab::LabArgs),
}

/// The command line `muster`; `muster-lab` puts its own commands in the place of their names.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command line of this process and returns its exit code.
pub fn main() -> ExitCode {
    muster_sys::process::forget_empty_settings();
    let words = muster_launch::command::with_mpirun(std::env::args_os().collect());
    if let Some(code) = lab::hand_over(&words) {
        return code;
    }
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) => return report_parse_error(&error, &words),
    };
    set_command(Cli::command(), &words);
    // `muster run` warns once for all its launchers. Monitoring and packaging parse the output, so they get no warning.
    let warns_elsewhere = matches!(
        cli.command,
        Command::Run(_) | Command::Demo(_) | Command::Manual(_)
    );
    if !warns_elsewhere && !check::is_plugin() {
        warn_of_strange_settings();
    }
    let outcome = match cli.command {
        Command::Members(args) => show::members(&args),
        Command::Why(args) => show::why(&args),
        Command::Rails(args) => rails::run(&args),
        Command::Peers(args) => peers::run(&args),
        Command::Policy(args) => policy::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Wait(args) => wait::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Attrs(args) => attrs::run(&args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Config(command) => settings::run(&command),
        Command::Stats(args) => stats::run(&args),
        Command::Gossip(args) => gossip::run(&args),
        Command::Export(args) => document::export(&args),
        Command::Import(args) => document::import(&args),
        Command::Zones(args) => zones::run(&args),
        Command::Run(args) => return muster_launch::command::run(&args),
        Command::Demo(args) => return args.execute("demo"),
        Command::Bench(args) => return args.execute("bench"),
        Command::Sim(args) => return args.execute("sim"),
        Command::Manual(args) => return args.execute("manual"),
    };
    match outcome {
        Ok(()) => end_of_output(),
        Err(error) => print_cli_error(&error),
    }
}

/// Prints what is wrong with the command line, or the text that it requested, such as the help.
fn report_parse_error(error: &clap::Error, words: &[OsString]) -> ExitCode {
    let foreign = match error.kind() {
        ErrorKind::UnknownArgument => muster_launch::command::foreign(words),
        _ => None,
    };
    match foreign.or_else(|| refusal(error, Cli::command(), words)) {
        Some(refusal) if check::is_plugin() => check::refuse_as_plugin(&refusal),
        Some(refusal) => print_refusal(&refusal),
        None => error.exit(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, Command};

    /// Collects each command with the words that invoke it.
    fn commands(command: &Command, above: &[&str], into: &mut Vec<(Vec<String>, Command)>) {
        let words = [above, &[command.get_name()]].concat();
        for below in command.get_subcommands() {
            commands(below, &words, into);
        }
        into.push((
            words.into_iter().map(str::to_owned).collect(),
            command.clone(),
        ));
    }

    /// The argument as typed: after its option, or positional.
    fn given(arg: &Arg, value: &str) -> Option<String> {
        match (arg.get_long(), arg.get_short()) {
            _ if !arg.get_action().takes_values() => None,
            (Some(long), _) => Some(format!("--{long}={value}")),
            (None, Some(short)) => Some(format!("-{short}{value}")),
            (None, None) => Some(value.to_owned()),
        }
    }

    /// A value that an option of any command refuses is named in the error, with the reason and the valid values.
    #[test]
    fn every_refused_value_comes_with_its_reason_and_a_remedy() {
        let mut refused = 0;
        for root in [Cli::command(), muster_agent::command()] {
            let mut all = Vec::new();
            commands(&root, &[], &mut all);
            for (words, command) in all {
                for (arg, value) in command
                    .get_arguments()
                    .flat_map(|arg| ["", "-1", "?", "5h", "1e99"].map(|value| (arg, value)))
                {
                    let Some(last) = given(arg, value) else {
                        continue;
                    };
                    let line: Vec<OsString> =
                        words.iter().chain([&last]).map(OsString::from).collect();
                    let Err(error) = root.clone().try_get_matches_from(&line) else {
                        continue;
                    };
                    let refusal = refusal(&error, root.clone(), &line);
                    let kinds = [ErrorKind::InvalidValue, ErrorKind::ValueValidation];
                    let Some(refusal) = refusal.filter(|_| kinds.contains(&error.kind())) else {
                        continue;
                    };
                    let message = refusal.to_string();
                    assert!(
                        refusal.what.ends_with(&format!("{value:?}"))
                            || (value.is_empty() && refusal.why == "its value is missing"),
                        "{line:?}: {message}"
                    );
                    for word in ["invalid", "is not in", "parse", "target type"] {
                        assert!(!refusal.why.contains(word), "{line:?}: {message}");
                    }
                    let help = format!("; see {} --help", words.join(" "));
                    assert!(
                        refusal
                            .remedy
                            .strip_suffix(&help)
                            .is_some_and(|remedy| remedy.len() > 10),
                        "{line:?}: {message}"
                    );
                    refused += 1;
                }
            }
        }
        assert!(refused > 500, "{refused}");
    }
}
