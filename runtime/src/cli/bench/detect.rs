//! `muster bench detect`: one driver, several systems, in turns.
//!
//! Each round boots a group of every system, kills members and stops members at random times,
//! and takes from the members' own lines when each survivor knew. A crash and a silence are
//! different things and stand in different columns. Peers that speak the same contract are
//! named with `--peer NAME=PROGRAM`; their figures are also given as ratios to ours.

use super::member::{Member, System};
use crate::cli::CliError;
use crate::cli::process::{monotonic_ns, wait_until};
use clap::Args;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

const BOOT_DEADLINE: Duration = Duration::from_secs(120);
const TOLD_DEADLINE: Duration = Duration::from_secs(60);
/// Quiet time over which idle cost is measured.
const IDLE: Duration = Duration::from_secs(5);

/// Options of `muster bench detect`.
#[derive(Args)]
pub(crate) struct DetectArgs {
    /// Members of each group.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(3..=240))]
    members: u32,
    /// Members killed, and members stopped, in each round.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    faults: u32,
    /// How often each system gets its turn.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Another system: NAME=PROGRAM; the program takes musterd's options and prints its lines.
    #[arg(long = "peer", value_name = "NAME=PROGRAM", value_parser = parse_peer)]
    peers: Vec<System>,
    /// Which members are hit, and when, follows from this number; drawn if not given.
    #[arg(long)]
    seed: Option<u64>,
}

/// What was measured of one system, over all rounds.
#[derive(Default)]
struct Figures {
    boot_ms: Vec<f64>,
    kill_ms: Vec<f64>,
    stop_ms: Vec<f64>,
    cpu_ms_per_s: Vec<f64>,
    resident_mb: Vec<f64>,
    missing: usize,
    false_downs: usize,
}

/// Runs the measurement and prints the table.
pub(super) fn run(args: &DetectArgs) -> Result<(), CliError> {
    let seed = args.seed.unwrap_or_else(crate::config::draw_seed);
    let mut dice = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("muster"));
    let ours = System {
        name: "muster".into(),
        program: own.with_file_name("musterd"),
    };
    let systems: Vec<System> = std::iter::once(ours)
        .chain(args.peers.iter().cloned())
        .collect();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!(
        "{} members, {} rounds of {} kills and {} stops, seed {seed}, load before: {}",
        args.members,
        args.rounds,
        args.faults,
        args.faults,
        load.split(' ').next().unwrap_or("?")
    );
    let directory = std::env::temp_dir().join(format!("muster-bench-{}", std::process::id()));
    std::fs::create_dir(&directory)
        .map_err(|e| CliError::new(format!("bench: {}", directory.display()), e))?;
    let mut figures: Vec<Figures> = systems.iter().map(|_| Figures::default()).collect();
    let mut outcome = Ok(());
    for round in 0..args.rounds {
        for (index, system) in systems.iter().enumerate() {
            let net = 80 + ((round as usize * systems.len() + index) % 40) as u8;
            let measured = measure(
                args,
                system,
                &directory,
                net,
                &mut dice,
                &mut figures[index],
            );
            outcome = outcome.and(measured);
        }
    }
    let _ = std::fs::remove_dir_all(&directory);
    print_table(&systems, &figures);
    outcome
}

fn measure(
    args: &DetectArgs,
    system: &System,
    directory: &Path,
    net: u8,
    dice: &mut impl Rng,
    figures: &mut Figures,
) -> Result<(), CliError> {
    let begin_ns = monotonic_ns();
    let mut members = Vec::new();
    for index in 1..=args.members {
        members.push(Some(Member::start(system, directory, net, index)?));
    }
    let wanted = args.members as usize - 1;
    let sees_all = |member: &Member| {
        let lines = member.lines();
        let up = lines.iter().filter(|line| line.word == "UP");
        up.map(|line| &line.name).collect::<BTreeSet<_>>().len() >= wanted
    };
    if !wait_until(BOOT_DEADLINE, || members.iter().flatten().all(sees_all)) {
        let why = format!("not every member saw all {} others", wanted);
        return Err(CliError::timed_out(format!("bench: {}", system.name), why));
    }
    figures
        .boot_ms
        .push((monotonic_ns() - begin_ns) as f64 / 1e6);
    measure_idle(&members, figures);

    // The first is everybody's seed and stays.
    let mut order: Vec<usize> = (1..members.len()).collect();
    order.shuffle(dice);
    let (stopped, killed) = order.split_at(order.len() / 2);
    let mut victims = BTreeSet::new();
    for victim in stopped.iter().take(args.faults as usize) {
        std::thread::sleep(Duration::from_millis(dice.random_range(200..1200)));
        victims.insert(format!("n{}", victim + 1));
        fault(&mut members, *victim, Signal::STOP, figures);
    }
    for victim in killed.iter().take(args.faults as usize) {
        std::thread::sleep(Duration::from_millis(dice.random_range(200..1200)));
        victims.insert(format!("n{}", victim + 1));
        fault(&mut members, *victim, Signal::KILL, figures);
    }
    let lines = members.iter().flatten().flat_map(Member::lines);
    figures.false_downs += lines
        .filter(|line| line.word == "DOWN" && !victims.contains(&line.name))
        .count();
    Ok(())
}

/// Sends the signal and waits until every survivor has said DOWN. A victim stays down.
fn fault(members: &mut [Option<Member>], victim: usize, signal: Signal, figures: &mut Figures) {
    let name = format!("n{}", victim + 1);
    let Some(member) = members[victim].take() else {
        return;
    };
    let t0_ns = monotonic_ns();
    member.signal(signal);
    let survivors: Vec<&Member> = members.iter().flatten().collect();
    let told = |member: &&Member| member.told("DOWN", &name, t0_ns);
    wait_until(TOLD_DEADLINE, || {
        survivors.iter().all(|member| told(member).is_some())
    });
    let times: Vec<f64> = survivors
        .iter()
        .filter_map(told)
        .map(|ns| (ns - t0_ns) as f64 / 1e6)
        .collect();
    figures.missing += survivors.len() - times.len();
    match signal {
        Signal::STOP => figures.stop_ms.extend(times),
        _ => figures.kill_ms.extend(times),
    }
}

fn measure_idle(members: &[Option<Member>], figures: &mut Figures) {
    let before: Vec<u64> = members
        .iter()
        .flatten()
        .map(|member| member.cost().0)
        .collect();
    std::thread::sleep(IDLE);
    for (member, before) in members.iter().flatten().zip(before) {
        let (cpu_ns, resident) = member.cost();
        figures
            .cpu_ms_per_s
            .push((cpu_ns - before) as f64 / 1e6 / IDLE.as_secs_f64());
        figures.resident_mb.push(resident as f64 / 1e6);
    }
}

fn print_table(systems: &[System], figures: &[Figures]) {
    println!(
        "{:<16}{:>9}{:>24}{:>24}{:>10}{:>8}{:>9}{:>7}",
        "",
        "boot",
        "killed p50/p99/max",
        "silent p50/p99/max",
        "idle CPU",
        "memory",
        "missing",
        "false"
    );
    println!(
        "{:<16}{:>9}{:>24}{:>24}{:>10}{:>8}{:>9}{:>7}",
        "", "ms", "ms", "ms", "ms/s", "MB", "", ""
    );
    let row = |name: &str, boot: String, kill: String, stop: String, cpu: String, rest: String| {
        println!("{name:<16}{boot:>9}{kill:>24}{stop:>24}{cpu:>10}{rest}");
    };
    let triple = |values: &[f64], of: &dyn Fn(f64, f64) -> String| {
        [0.5, 0.99, 1.0]
            .map(|q| of(quantile(values, q), q))
            .join(" / ")
    };
    for (system, f) in systems.iter().zip(figures) {
        let plain = |value: f64, _: f64| format!("{value:.1}");
        row(
            &system.name,
            format!("{:.0}", quantile(&f.boot_ms, 0.5)),
            triple(&f.kill_ms, &plain),
            triple(&f.stop_ms, &plain),
            format!("{:.2}", mean(&f.cpu_ms_per_s)),
            format!(
                "{:>8.1}{:>9}{:>7}",
                mean(&f.resident_mb),
                f.missing,
                f.false_downs
            ),
        );
    }
    let (Some(ours), true) = (figures.first(), figures.len() > 1) else {
        return;
    };
    println!("as ratios to {}:", systems[0].name);
    for (system, f) in systems.iter().zip(figures).skip(1) {
        let against = |ours: &[f64]| {
            let ours = ours.to_vec();
            move |value: f64, q: f64| format!("{:.1}x", value / quantile(&ours, q))
        };
        row(
            &system.name,
            format!(
                "{:.1}x",
                quantile(&f.boot_ms, 0.5) / quantile(&ours.boot_ms, 0.5)
            ),
            triple(&f.kill_ms, &against(&ours.kill_ms)),
            triple(&f.stop_ms, &against(&ours.stop_ms)),
            format!("{:.1}x", mean(&f.cpu_ms_per_s) / mean(&ours.cpu_ms_per_s)),
            format!("{:>7.1}x", mean(&f.resident_mb) / mean(&ours.resident_mb)),
        );
    }
}

/// The value below which this share of the values lies; NaN if there are none.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((share * last as f64).round() as usize)
        .copied()
        .unwrap_or(f64::NAN)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn parse_peer(text: &str) -> Result<System, String> {
    let (name, program) = text.split_once('=').ok_or("write NAME=PROGRAM")?;
    let program = PathBuf::from(program);
    if program.is_file() {
        Ok(System {
            name: name.to_owned(),
            program,
        })
    } else {
        Err(format!("{} is no program", program.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(quantile(&values, 0.5), 3.0);
        assert_eq!(quantile(&values, 1.0), 5.0);
        assert_eq!(quantile(&values, 0.0), 1.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn a_peer_needs_a_name_and_a_program() {
        assert!(parse_peer("nothing").is_err());
        assert!(
            parse_peer("x=/nonexistent")
                .unwrap_err()
                .contains("/nonexistent")
        );
        assert_eq!(parse_peer("sh=/bin/sh").unwrap().name, "sh");
    }
}
