//! `muster sim`: the protocols in a simulated world, from a scenario file and a seed.
//!
//! `run` runs one seed, tells its story if it fails and shrinks the scenario; `sweep` runs many
//! on all cores; `figures` measures a zone of full size, `compare` the two engines side by side, `lamport`
//! the clocks of one of them. What was drawn is printed before the
//! run. Exit codes tell the kinds of failure apart: 0 sound, 20 a promise was broken
//! (correctness), 21 it did not come to rest in time (liveness), 22 the code panicked (crash).
//! Every figure is simulated.

use super::sim_compare::{self, CompareArgs};
use super::sim_figures::{self, FiguresArgs};
use super::sim_lamport::{self, LamportArgs};
use clap::{Args, Subcommand, ValueEnum};
use muster_sim::{Figures, Outcome, Report, Scenario, run, shrink, story, sweep};
use muster_sys::file::read_text;
use muster_terminal::CliError;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Bytes of a scenario, at most.
const SCENARIO_MAX: usize = 1 << 20;

/// What to simulate.
#[derive(Subcommand)]
pub(crate) enum SimCommand {
    /// Run one seed of a scenario.
    Run(RunArgs),
    /// Run many seeds of a scenario on all cores.
    Sweep(SweepArgs),
    /// Measure whole zones: boot, leave, join, crash and silence; JSON or Markdown, and a plot.
    Figures(FiguresArgs),
    /// Both engines on the same network with the same faults: detection, datagrams, bytes, CPU.
    Compare(CompareArgs),
    /// The clocks and ages of age gossip: how far they drift, which thresholds are safe.
    Lamport(LamportArgs),
}

/// How to print.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// One JSON document.
    Json,
}

/// Names a scenario, to each command in the same two ways.
#[derive(Args)]
pub(crate) struct ScenarioArgs {
    /// The scenario file.
    #[arg(value_name = "SCENARIO", required_unless_present = "named")]
    scenario: Option<PathBuf>,
    /// The same as an option.
    #[arg(
        long = "scenario",
        id = "named",
        value_name = "FILE",
        conflicts_with = "scenario"
    )]
    named: Option<PathBuf>,
}

impl ScenarioArgs {
    fn path(&self) -> &Path {
        let given = self.scenario.as_deref().or(self.named.as_deref());
        given.expect("clap requires one of the two")
    }
}

/// Options of `muster sim run`.
#[derive(Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// The seed; else the scenario's own, else a fresh one.
    #[arg(long)]
    seed: Option<u64>,
    /// How to print.
    #[arg(short, long, default_value = "text")]
    output: Output,
    /// Lines of the story of a failure.
    #[arg(long, default_value_t = 60)]
    lines: usize,
    /// Tell the story of everybody, not only of the one whom the failure is about.
    #[arg(long)]
    everybody: bool,
    /// Do not shrink a failing scenario.
    #[arg(long)]
    no_shrink: bool,
}

/// Options of `muster sim sweep`.
#[derive(Args)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// How many seeds.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed; else a fresh one.
    #[arg(long)]
    first: Option<u64>,
    /// Worlds at the same time; else one a core. The answer does not depend on it.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// How to print.
    #[arg(short, long, default_value = "text")]
    output: Output,
}

/// Runs a subcommand.
pub(crate) fn main(command: &SimCommand) -> Result<(), CliError> {
    match command {
        SimCommand::Run(args) => run_one(args),
        SimCommand::Sweep(args) => run_many(args),
        SimCommand::Figures(args) => sim_figures::main(args),
        SimCommand::Compare(args) => sim_compare::main(args),
        SimCommand::Lamport(args) => sim_lamport::main(args),
    }
}

fn read(path: &Path) -> Result<Scenario, CliError> {
    let what = || format!("sim: {}", path.display());
    let text = read_text(path, SCENARIO_MAX).map_err(|error| {
        let hint = "name a file with a scenario; those of the source tree are in tests/scenarios";
        CliError::usage(what(), error).hint(hint)
    })?;
    Scenario::read(&text).map_err(|error| CliError::usage(what(), error))
}

fn fresh_seed() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    // Short enough to be typed again.
    u64::from(since.subsec_nanos()) ^ (since.as_secs() & 0xffff_ffff)
}

/// Says how to see a failure again.
fn again(path: &Path, seed: u64) -> String {
    let path = path.display();
    format!("reproduce with muster sim run {path} --seed {seed}")
}

fn failure(outcome: &Outcome, hint: String) -> Result<(), CliError> {
    let code = match outcome {
        Outcome::Sound => return Ok(()),
        Outcome::Incorrect(_) => 20,
        Outcome::NotLive { .. } => 21,
        Outcome::Crashed(_) => 22,
    };
    let why = match outcome {
        Outcome::Crashed(text) => text.clone(),
        Outcome::NotLive { phase, found } => match found.first() {
            Some(first) => format!("{phase} did not end in time: {first}"),
            None => format!("{phase} did not end in time"),
        },
        _ => outcome
            .violations()
            .first()
            .map_or_else(String::new, ToString::to_string),
    };
    let what = format!("sim: {}", outcome.kind());
    Err(CliError::new(what, why).hint(hint).exit_code(code))
}

/// One run, for JSON. All figures are simulated.
#[derive(Serialize)]
struct RunReport<'a> {
    simulated: bool,
    scenario: &'a str,
    seed: u64,
    outcome: &'static str,
    violations: Vec<String>,
    members: u64,
    boot_ms: f64,
    rest_ms: f64,
    virtual_ms: f64,
    datagrams: u64,
    bytes: u64,
    events: u64,
    datagrams_per_member: u64,
    bytes_per_member: u64,
    drawn: &'a Scenario,
}

impl<'a> RunReport<'a> {
    fn of(report: &'a Report) -> Self {
        let members = u64::try_from(report.drawn.zone.members.low).unwrap_or(1);
        let figures = &report.figures;
        let violations = report.outcome.violations();
        Self {
            simulated: true,
            scenario: &report.drawn.name,
            seed: report.seed,
            outcome: report.outcome.kind(),
            violations: violations.iter().map(ToString::to_string).collect(),
            members,
            boot_ms: figures.boot_us as f64 / 1e3,
            rest_ms: figures.rest_us as f64 / 1e3,
            virtual_ms: figures.virtual_us as f64 / 1e3,
            datagrams: figures.frames,
            bytes: figures.bytes,
            events: figures.events,
            datagrams_per_member: figures.frames / members,
            bytes_per_member: figures.bytes / members,
            drawn: &report.drawn,
        }
    }
}

pub(super) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| CliError::new("sim: JSON", error))?;
    println!("{text}");
    Ok(())
}

fn run_one(args: &RunArgs) -> Result<(), CliError> {
    let scenario = read(args.scenario.path())?;
    let seed = args.seed.or(scenario.seed).unwrap_or_else(fresh_seed);
    if scenario.study.is_some() {
        return sim_figures::run_plan(&scenario, seed, args.output);
    }
    let is_text = args.output == Output::Text;
    if is_text {
        println!("# drawn from seed {seed}\n{}", scenario.draw(seed).write());
    }
    let report = run(&scenario, seed);
    if is_text {
        print_figures(&report.figures, 1);
        println!("seed {seed}: {}", report.outcome.kind());
    } else {
        print_json(&RunReport::of(&report))?;
    }
    if report.outcome != Outcome::Sound && is_text {
        println!("\n{}", story(&report.drawn, args.lines, args.everybody));
        if !args.no_shrink {
            let shrunk = shrink(&report.drawn);
            println!(
                "# shrunk in {} runs\n{}",
                shrunk.runs,
                shrunk.scenario.write()
            );
        }
    }
    failure(&report.outcome, again(args.scenario.path(), seed))
}

fn print_figures(figures: &Figures, runs: u64) {
    println!(
        "simulated: {runs} runs, {:.1} s virtual, {} datagrams, {} events, boot at most {:.1} ms, \
         at rest at most {:.1} ms after the faults",
        figures.virtual_us as f64 / 1e6,
        figures.frames,
        figures.events,
        figures.boot_us as f64 / 1e3,
        figures.rest_us as f64 / 1e3,
    );
}

/// A sweep, for JSON.
#[derive(Serialize)]
struct SweepReport<'a> {
    simulated: bool,
    scenario: &'a str,
    first: u64,
    runs: u64,
    failed: Vec<RunReport<'a>>,
    virtual_s: f64,
    datagrams: u64,
    events: u64,
    boot_ms_max: f64,
    rest_ms_max: f64,
}

fn run_many(args: &SweepArgs) -> Result<(), CliError> {
    let scenario = read(args.scenario.path())?;
    let first = args.first.unwrap_or_else(fresh_seed);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or(cores, |threads| threads as usize);
    let is_text = args.output == Output::Text;
    if is_text {
        let last = first.saturating_add(args.seeds - 1);
        println!("{}: seeds {first} to {last}", scenario.name);
    }
    let is_terminal = std::io::stderr().is_terminal();
    let found = sweep(&scenario, first, args.seeds, threads, |done| {
        if is_terminal {
            eprint!("\r{done} of {} ", args.seeds);
            std::io::stderr().flush().ok();
        }
    });
    if is_terminal {
        eprint!("\r\x1b[K");
    }
    if is_text {
        print_figures(&found.figures, found.runs);
        println!("{} of {} seeds failed", found.failed.len(), found.runs);
        for report in &found.failed {
            let first = report.outcome.violations().first();
            let what = first.map_or_else(String::new, ToString::to_string);
            println!("seed {}: {}, {what}", report.seed, report.outcome.kind());
            println!("  {}", again(args.scenario.path(), report.seed));
        }
    } else {
        print_json(&SweepReport {
            simulated: true,
            scenario: &scenario.name,
            first,
            runs: found.runs,
            failed: found.failed.iter().map(RunReport::of).collect(),
            virtual_s: found.figures.virtual_us as f64 / 1e6,
            datagrams: found.figures.frames,
            events: found.figures.events,
            boot_ms_max: found.figures.boot_us as f64 / 1e3,
            rest_ms_max: found.figures.rest_us as f64 / 1e3,
        })?;
    }
    match found.failed.first() {
        Some(report) => failure(&report.outcome, again(args.scenario.path(), report.seed)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No scenario file can make the code panic; if a bug does, that has a code of its own.
    #[test]
    fn a_panic_has_its_own_exit_code() {
        let outcome = Outcome::Crashed("index out of bounds".to_owned());
        let error = failure(&outcome, "hint".to_owned()).unwrap_err();
        assert_eq!(error.code, 22);
        assert!(error.to_string().contains("crash: index out of bounds"));
    }
}
