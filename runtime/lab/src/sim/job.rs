//! `muster sim run` of a job with zones: boot, and single losses, until every node knows of them.

use muster_sim::{Changed, JobProgress, JobReport, JobScenario, run_job};
use muster_terminal::{CliError, Progress};
use serde::Serialize;
use std::time::{Duration, Instant};

use super::{Output, RunArgs, cores, new_seed, print_json, read_file, reproduction_hint};

/// The result as JSON. All times but `wall_s` are simulated.
#[derive(Serialize)]
struct JobDocument<'a> {
    simulated: bool,
    scenario: &'a str,
    seed: u64,
    nodes: usize,
    zones: usize,
    levels: usize,
    threads: usize,
    changes: Vec<ChangeFigure>,
    wrong: &'a [String],
    virtual_s: f64,
    inputs: u64,
    datagrams: u64,
    bytes: u64,
    digest: String,
    /// Of this machine.
    wall_s: f64,
    memory_peak_mib: Option<u64>,
}

/// The boot or a change.
#[derive(Serialize)]
struct ChangeFigure {
    what: &'static str,
    count: usize,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    unknowing: usize,
    datagrams_per_node: u64,
    bytes_per_node: u64,
    difference: Option<String>,
}

impl ChangeFigure {
    fn of(changed: &Changed) -> Self {
        let ms = |us: u64| us as f64 / 1e3;
        Self {
            what: changed.what,
            count: changed.count,
            p50_ms: ms(changed.known.p50_us),
            p99_ms: ms(changed.known.p99_us),
            max_ms: ms(changed.known.max_us),
            unknowing: changed.known.unknowing,
            datagrams_per_node: changed.datagrams_each,
            bytes_per_node: changed.bytes_each,
            difference: changed.difference.clone(),
        }
    }
}

/// A field of /proc/self/status in MiB; `None` if it is not there.
fn memory_mib(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024)
}

/// Shows how far the simulation is, at most once a second.
struct Watcher {
    progress: Progress,
    began: Instant,
    shown: Instant,
    inputs: u64,
}

impl Watcher {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            progress: Progress::default(),
            began: now,
            shown: now,
            inputs: 0,
        }
    }

    fn take(&mut self, nodes: usize, state: JobProgress) {
        let since = self.shown.elapsed();
        if since < Duration::from_secs(1) {
            return;
        }
        let rate = (state.inputs - self.inputs) as f64 / since.as_secs_f64();
        (self.shown, self.inputs) = (Instant::now(), state.inputs);
        self.progress.show(format_args!(
            "{}, {} of {}: {} of {nodes} nodes know, {:.3} s virtual, {:.0} s, \
             {:.2} million inputs at {:.0} k/s, {} MiB",
            state.what,
            state.step,
            state.steps,
            state.knowing,
            state.virtual_us as f64 / 1e6,
            self.began.elapsed().as_secs_f64(),
            state.inputs as f64 / 1e6,
            rate / 1e3,
            memory_mib("VmRSS:").unwrap_or_default(),
        ));
    }
}

/// Refuses an option that says how the failure of one zone is shown.
fn refuse_options(args: &RunArgs) -> Result<(), CliError> {
    let options = [
        ("--lines", args.lines.is_some()),
        ("--all-members", args.all_members),
        ("--drawn", args.drawn),
        ("--no-shrink", args.no_shrink),
    ];
    let Some((option, _)) = options.iter().find(|(_, is_given)| *is_given) else {
        return Ok(());
    };
    let why = "it is about the course of one zone, and the scenario is about a job with zones";
    Err(CliError::usage(format!("sim: {option}"), why).hint("leave it out"))
}

/// Runs the command.
pub(super) fn main(args: &RunArgs) -> Result<(), CliError> {
    refuse_options(args)?;
    let path = args.scenario.path();
    let scenario = JobScenario::read(&read_file(path)?);
    let what = || format!("sim: {}", path.display());
    let scenario = scenario.map_err(|error| CliError::usage(what(), error))?;
    let seed = args.seed.or(scenario.seed).unwrap_or_else(new_seed);
    let threads = args.threads.map_or_else(cores, |threads| threads as usize);
    let is_text = args.output == Output::Text;
    if is_text {
        println!("{}: seed {seed}, {threads} threads", scenario.name);
    }
    let mut watcher = Watcher::new();
    let nodes = scenario.job.nodes;
    let report = run_job(&scenario.job, seed, threads, &mut |state| {
        watcher.take(nodes, state);
    });
    let wall_s = watcher.began.elapsed().as_secs_f64();
    drop(watcher);
    match is_text {
        true => print_text(&report, wall_s),
        false => print_json(&JobDocument {
            simulated: true,
            scenario: &scenario.name,
            seed,
            nodes,
            zones: report.zones,
            levels: report.levels,
            threads,
            changes: report.changes.iter().map(ChangeFigure::of).collect(),
            wrong: &report.wrong,
            virtual_s: report.virtual_us as f64 / 1e6,
            inputs: report.inputs,
            datagrams: report.datagrams,
            bytes: report.bytes,
            digest: format!("{:016x}", report.digest),
            wall_s,
            memory_peak_mib: memory_mib("VmHWM:"),
        })?,
    }
    first_error(&report, reproduction_hint(path, seed))
}

fn print_text(report: &JobReport, wall_s: f64) {
    println!(
        "simulated: {} nodes in {} zones, {} levels",
        report.nodes, report.zones, report.levels
    );
    println!(
        "{:<12} {:>7} {:>9} {:>9} {:>9} {:>14} {:>10}",
        "change", "nodes", "p50 ms", "p99 ms", "all ms", "datagrams each", "kB each"
    );
    for changed in &report.changes {
        let one = ChangeFigure::of(changed);
        println!(
            "{:<12} {:>7} {:>9.1} {:>9.1} {:>9.1} {:>14} {:>10.1}",
            one.what,
            one.count,
            one.p50_ms,
            one.p99_ms,
            one.max_ms,
            one.datagrams_per_node,
            one.bytes_per_node as f64 / 1e3
        );
    }
    let memory =
        memory_mib("VmHWM:").map_or_else(String::new, |mib| format!(", at most {mib} MiB"));
    println!(
        "{:.3} s virtual, {} inputs, {} datagrams, digest {:016x}; {wall_s:.0} s{memory}",
        report.virtual_us as f64 / 1e6,
        report.inputs,
        report.datagrams,
        report.digest,
    );
}

/// Exit code 20 for what was told and is not so, 21 for what was not known in time.
fn first_error(report: &JobReport, hint: String) -> Result<(), CliError> {
    if let Some(wrong) = report.wrong.first() {
        return Err(CliError::new("sim: incorrect", wrong.clone())
            .hint(hint)
            .exit_code(20));
    }
    let late = report.changes.iter().find_map(|changed| {
        let unknowing = changed.known.unknowing;
        let late = (unknowing > 0).then(|| format!("{unknowing} nodes did not know in time"));
        let what = changed.difference.clone().or(late)?;
        Some(format!("{}: {what}", changed.what))
    });
    match late {
        Some(late) => Err(CliError::new("sim: not live", late)
            .hint(hint)
            .exit_code(21)),
        None => Ok(()),
    }
}
