//! `muster sim`: runs the protocols in a simulated world, from a scenario file and a seed.
//!
//! `run` runs one seed and, if it fails, prints the course of events and shrinks the scenario. `sweep` runs many seeds
//! on all cores, `zones` does so for jobs with zones. `figures` measures zones of full size, `compare` compares the two
//! engines, `idle` measures the engine of an idle member, `lamport` studies the clocks of age gossip. Exit codes
//! distinguish the failures: 0 no failure, 20 a checked property is violated (correctness), 21 the world did not become
//! quiet in time (liveness), 22 the code panicked (crash). All figures but CPU times are simulated.

mod burns;
mod calibrate;
mod compare;
mod figures;
mod idle;
mod job;
mod lamport;
mod markdown;
mod plot;
mod study;
mod zones;
mod zones_study;

use calibrate::CalibrateArgs;
use clap::{Args, Subcommand, ValueEnum};
use compare::CompareArgs;
use figures::FiguresArgs;
use idle::IdleArgs;
use lamport::LamportArgs;
use muster_sim::{Figures, JobScenario, Outcome, Report, Scenario, run, shrink, story, sweep};
use muster_sys::file::read_text;
use muster_terminal::{CliError, Progress};
use serde::Serialize;
use std::path::{Path, PathBuf};
use zones::ZonesArgs;

/// Maximum size of a scenario file in bytes.
const SCENARIO_MAX: usize = 1 << 20;
/// Lines of the course of a failure, unless told otherwise.
const LINES: usize = 60;

/// Subcommands of `muster sim`.
#[derive(Subcommand)]
pub(crate) enum SimCommand {
    /// Run one seed of a scenario.
    Run(RunArgs),
    /// Run many seeds of a scenario on all cores.
    Sweep(SweepArgs),
    /// Run many seeds of a job with zones and all faults, on all cores.
    Zones(ZonesArgs),
    /// Measure whole zones: boot, leave, join, crash and silence; JSON or Markdown, and a plot.
    Figures(FiguresArgs),
    /// Compare both engines on the same network with the same faults: detection, datagrams, bytes, CPU.
    Compare(CompareArgs),
    /// Measure the CPU time of the engine of an idle member, by the size of the job.
    Idle(IdleArgs),
    /// Fit the simulated cost of wake-ups and datagrams to real members on this machine, and test what it predicts.
    Calibrate(CalibrateArgs),
    /// Study the clocks and ages of age gossip: drift, and which thresholds are safe.
    Lamport(LamportArgs),
}

/// Output format.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// One JSON document.
    Json,
}

/// The scenario file, as an argument or as an option, the same for each command.
#[derive(Args)]
pub(crate) struct ScenarioArgs {
    /// The scenario file.
    #[arg(value_name = "SCENARIO", required_unless_present = "named")]
    scenario: Option<PathBuf>,
    /// The scenario file, as an option.
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
    /// The seed [default: the seed of the scenario, else a new one].
    #[arg(long)]
    seed: Option<u64>,
    /// Output format.
    #[arg(short, long, default_value = "text")]
    output: Output,
    /// Maximum lines of the course of a failure [default: 60].
    #[arg(long)]
    lines: Option<usize>,
    /// Print the course for all members, not only for the member that the failure is about.
    #[arg(long = "all-members")]
    all_members: bool,
    /// Print the scenario that the seed draws, even if the run does not fail.
    #[arg(long)]
    drawn: bool,
    /// Do not shrink a failing scenario.
    #[arg(long)]
    no_shrink: bool,
    /// Threads of a job with zones [default: one per core]. The result does not depend on it.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
}

/// Options of `muster sim sweep`.
#[derive(Args)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Number of seeds.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed [default: a new one].
    #[arg(long)]
    first: Option<u64>,
    /// Worlds that run in parallel [default: one per core]. The result does not depend on it.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Output format.
    #[arg(short, long, default_value = "text")]
    output: Output,
}

/// Runs a subcommand.
pub(crate) fn main(command: &SimCommand) -> Result<(), CliError> {
    match command {
        SimCommand::Run(args) => run_one(args),
        SimCommand::Sweep(args) => run_many(args),
        SimCommand::Zones(args) => zones::main(args),
        SimCommand::Figures(args) => figures::main(args),
        SimCommand::Compare(args) => compare::main(args),
        SimCommand::Idle(args) => idle::main(args),
        SimCommand::Calibrate(args) => calibrate::main(args),
        SimCommand::Lamport(args) => lamport::main(args),
    }
}

fn read_file(path: &Path) -> Result<String, CliError> {
    read_text(path, SCENARIO_MAX).map_err(|error| {
        let hint = "name a scenario file; the source tree has some in tests/scenarios";
        CliError::usage(format!("sim: {}", path.display()), error).hint(hint)
    })
}

fn read(path: &Path) -> Result<Scenario, CliError> {
    let what = || format!("sim: {}", path.display());
    let text = read_file(path)?;
    if JobScenario::is_one(&text) {
        let why = "it is about a job with zones, not about one zone: it has the table job";
        return Err(CliError::usage(what(), why).hint("run it with muster sim run"));
    }
    Scenario::read(&text).map_err(|error| CliError::usage(what(), error))
}

fn new_seed() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    // Short, so that it can be typed.
    u64::from(since.subsec_nanos()) ^ (since.as_secs() & 0xffff_ffff)
}

/// The hint how to reproduce a failure.
fn reproduction_hint(path: &Path, seed: u64) -> String {
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

/// A run as JSON. All figures are simulated.
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

/// The number of worlds that run in parallel by default.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| CliError::new("sim: JSON", error))?;
    println!("{text}");
    Ok(())
}

fn run_one(args: &RunArgs) -> Result<(), CliError> {
    if JobScenario::is_one(&read_file(args.scenario.path())?) {
        return job::main(args);
    }
    if args.threads.is_some() {
        let why =
            "only a job with zones runs on several threads, and the scenario is about one zone";
        return Err(CliError::usage("sim: --threads", why).hint("leave it out"));
    }
    let scenario = read(args.scenario.path())?;
    let seed = args.seed.or(scenario.seed).unwrap_or_else(new_seed);
    if scenario.study.is_some() {
        return figures::run_plan(&scenario, seed, args.output);
    }
    let is_text = args.output == Output::Text;
    if is_text {
        println!("{}: seed {seed}", scenario.name);
    }
    let report = run(&scenario, seed);
    if is_text {
        print_figures(&report.figures, 1);
        println!("seed {seed}: {}", report.outcome.kind());
    } else {
        print_json(&RunReport::of(&report))?;
    }
    let is_failed = report.outcome != Outcome::Sound;
    if is_text && (args.drawn || is_failed) {
        println!("\n# drawn from seed {seed}\n{}", report.drawn.write());
    }
    if is_failed && is_text {
        let lines = args.lines.unwrap_or(LINES);
        println!("\n{}", story(&report.drawn, lines, args.all_members));
        if !args.no_shrink {
            let shrunk = shrink(&report.drawn);
            println!(
                "# shrunk in {} runs\n{}",
                shrunk.runs,
                shrunk.scenario.write()
            );
        }
    }
    failure(
        &report.outcome,
        reproduction_hint(args.scenario.path(), seed),
    )
}

fn print_figures(figures: &Figures, runs: u64) {
    println!(
        "simulated: {runs} run{}, {:.1} s virtual, {} datagrams, {} events, boot at most {:.1} ms, \
         at rest at most {:.1} ms after the faults",
        if runs == 1 { "" } else { "s" },
        figures.virtual_us as f64 / 1e6,
        figures.frames,
        figures.events,
        figures.boot_us as f64 / 1e3,
        figures.rest_us as f64 / 1e3,
    );
}

/// A sweep as JSON.
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
    let first = args.first.unwrap_or_else(new_seed);
    let threads = args.threads.map_or_else(cores, |threads| threads as usize);
    let is_text = args.output == Output::Text;
    if is_text {
        let last = first.saturating_add(args.seeds - 1);
        println!("{}: seeds {first} to {last}", scenario.name);
    }
    let progress = Progress::default();
    let found = sweep(&scenario, first, args.seeds, threads, |done| {
        progress.show(format_args!("{done} of {} seeds", args.seeds));
    });
    drop(progress);
    if is_text {
        print_figures(&found.figures, found.runs);
        println!("{} of {} seeds failed", found.failed.len(), found.runs);
        for report in &found.failed {
            let first = report.outcome.violations().first();
            let what = first.map_or_else(String::new, ToString::to_string);
            println!("seed {}: {}, {what}", report.seed, report.outcome.kind());
            println!("  {}", reproduction_hint(args.scenario.path(), report.seed));
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
        Some(report) => failure(
            &report.outcome,
            reproduction_hint(args.scenario.path(), report.seed),
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_no_zone() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scenarios");
        let error = read(&Path::new(folder).join("job-4096.toml")).unwrap_err();
        assert!(error.to_string().contains("it is about a job with zones"));
        assert!(error.to_string().contains("muster sim run"), "{error}");
    }

    /// A scenario file must not make the code panic. If a bug does, it has its own exit code.
    #[test]
    fn a_panic_has_its_own_exit_code() {
        let outcome = Outcome::Crashed("index out of bounds".to_owned());
        let error = failure(&outcome, "hint".to_owned()).unwrap_err();
        assert_eq!(error.code, 22);
        assert!(error.to_string().contains("crash: index out of bounds"));
    }
}
