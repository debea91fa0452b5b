//! `muster bench calm`: measures whether a loaded machine causes false alarms.
//!
//! A group of members shares the cores with busy loops, and no fault is injected. Every DOWN is false, and every
//! SUSPECT is counted. Then some members are stopped, since a detector that never reports anything would pass too. A
//! result of zero is only as good as the run is long: it is printed with the rate that the run could have missed.

use super::detect::ours;
use super::figures::{Count, Figures, Metric, quantile};
use super::group::{Group, interrupted};
use super::launch;
use super::machine;
use super::member::{GroupOptions, Network};
use clap::Args;
use muster_terminal::process::{is_interrupted, notice_interruption, wait_until};
use muster_terminal::{CliError, Format, Progress};
use serde_json::{Value, json};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// If no event is seen in a time, its rate is below 3 divided by that time, with 95 % confidence.
const RULE_OF_THREE: f64 = 3.0;

/// Options of `muster bench calm`.
#[derive(Args)]
pub(crate) struct CalmArgs {
    /// Length of the quiet part in minutes; the limit of false alarms is specified for 30.
    #[arg(long, default_value_t = 30.0, value_parser = parse_minutes)]
    minutes: f64,
    /// Members of the group.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(3..=240))]
    members: u32,
    /// Timing profile of the members.
    #[arg(long, default_value = "standard", value_parser = ["fast", "standard", "quiet"])]
    profile: String,
    /// Busy loops beside the members, per core.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=64))]
    busy_per_core: u32,
    /// Remove the permission for real-time scheduling from the members.
    #[arg(long)]
    unprivileged: bool,
    /// Members that are stopped at the end, to measure the detection under load.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    stops: u32,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// Runs the measurement.
pub(super) fn run(args: &CalmArgs) -> Result<(), CliError> {
    notice_interruption();
    let machine = machine::describe();
    let directory = machine::scratch()?;
    let options = GroupOptions {
        members: args.members,
        rails: 2,
        profile: args.profile.clone(),
        directory: directory.path().to_owned(),
        network: Network::Loopback(121),
        unprivileged: args.unprivileged,
    };
    let system = ours();
    let mut group = Group::boot(&system, &options, None)?;
    let processes = group.members.iter().filter_map(|member| member.process());
    let real_time = processes.filter(|p| p.is_real_time()).count();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let busy = Busy::start(args.busy_per_core as usize * cores)?;
    let progress = Progress::default();
    progress.show(format_args!("{} quiet minutes", args.minutes));
    let start = Instant::now();
    wait_until(Duration::from_secs_f64(args.minutes * 60.0), || false);
    let quiet = start.elapsed();
    let mut outcome = Ok(());
    for at in (1..args.members as usize).cycle().take(args.stops as usize) {
        if outcome.is_ok() && !is_interrupted() {
            progress.show(format_args!("n{} is stopped", at + 1));
            outcome = group.stop(at, Duration::ZERO);
        }
    }
    drop((busy, progress));
    if is_interrupted() {
        return Err(interrupted());
    }
    let figures = group.end();
    report(args, &machine, &figures, quiet, real_time);
    outcome
}

fn report(args: &CalmArgs, machine: &Value, figures: &Figures, quiet: Duration, real_time: usize) {
    let member_hours = quiet.as_secs_f64() / 3600.0 * f64::from(args.members);
    let silent = figures.values(Metric::Silent);
    let false_downs = figures.counted(Count::FalseDowns);
    if matches!(args.output, Format::Json) {
        let mut value = figures.json();
        value["schema"] = "muster/bench-calm/v1".into();
        value["machine"] = machine.clone();
        value["minutes"] = json!(quiet.as_secs_f64() / 60.0);
        value["members"] = args.members.into();
        value["real_time_members"] = real_time.into();
        value["busy_per_core"] = args.busy_per_core.into();
        println!("{value:#}");
        return;
    }
    println!("{}", machine::text(machine));
    println!(
        "{} members ({real_time} at real-time priority), {} busy loops a core, profile {}, {:.1} min",
        args.members,
        args.busy_per_core,
        args.profile,
        quiet.as_secs_f64() / 60.0
    );
    println!("DOWN of an alive member     {false_downs}");
    println!(
        "SUSPECT of an alive member  {}",
        figures.counted(Count::Suspected)
    );
    if false_downs == 0 {
        let bound = RULE_OF_THREE / member_hours;
        println!(
            "none in {member_hours:.2} member-hours: a rate below {bound:.2} an hour and member \
             is not excluded"
        );
    }
    println!(
        "under this load, SIGSTOP -> each survivor knows: p50 {:.1}, p99 {:.1}, max {:.1} ms; \
         {} missing, {} returns not reported",
        quantile(silent, 0.5),
        quantile(silent, 0.99),
        quantile(silent, 1.0),
        figures.counted(Count::Missing),
        figures.counted(Count::NotBack)
    );
}

/// Busy loops, which end when this is dropped.
pub(super) struct Busy(Vec<Child>);

impl Busy {
    pub(super) fn start(count: usize) -> Result<Self, CliError> {
        let own = std::env::current_exe().map_err(|e| CliError::new("bench", e))?;
        let mut busy = Self(Vec::new());
        for _ in 0..count {
            let child = launch::command(false, false)
                .arg("--")
                .arg(&own)
                .args(["bench", "spin"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .map_err(|e| CliError::new("bench: cannot start a busy loop", e))?;
            busy.0.push(child);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Computes forever. The process that started it ends it, or the end of that process.
pub(super) fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

fn parse_minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse::<f64>().ok();
    minutes
        .filter(|minutes| *minutes > 0.0 && *minutes <= 1440.0)
        .ok_or_else(|| "give a number of minutes, above 0 and up to 1440".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_may_be_fractions_and_have_a_limit() {
        assert_eq!(parse_minutes("0.05"), Ok(0.05));
        for text in ["0", "-1", "NaN", "1441", "soon"] {
            assert!(parse_minutes(text).is_err(), "{text}");
        }
    }
}
