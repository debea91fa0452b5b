//! `muster bench detect`: measures several systems in turns with one driver.
//!
//! Each round boots a group of every system on loopback, leaves it idle, then kills, stops and pauses members at random
//! times. The lines of the members show when each survivor knew. Then a group runs in network namespaces, where all
//! rails of members are cut and restored. A crash, a silence and a cut are different faults and have separate rows.
//! Other systems that implement the same contract are added with `--peer NAME=PROGRAM`. The same members are hit at the
//! same moments of a round, and the results are also given as ratios to Muster's.

use super::cost;
use super::figures::{Count, Figures, Metric};
use super::group::{Group, interrupted};
use super::machine;
use super::member::{GroupOptions, Network, System};
use super::table::table;
use super::wiring::Wiring;
use clap::Args;
use muster_config::{JobZones, NodeList, parse_zones};
use muster_terminal::process::{is_interrupted, notice_interruption, wait_until};
use muster_terminal::{CliError, Format, Progress};
use muster_zones::{Assignment, NodeIndex};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most members. With so many, `--no-cuts` leaves out the network namespaces.
const MEMBERS_MAX: i64 = 512;
/// Length of a pause that cannot be mistaken for a short one.
const PAUSE: Duration = Duration::from_secs(5);
/// Time between the return of one member and the next fault; random, so that timers are not in phase.
const BETWEEN_MS: std::ops::Range<u64> = 100..600;

/// Options of `muster bench detect`.
#[derive(Args)]
pub(crate) struct DetectArgs {
    /// Members of each group.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(3..=MEMBERS_MAX))]
    members: u32,
    /// Rails of each member; a peer that supports only one uses the first.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4))]
    rails: u32,
    /// Timing profile of Muster's members.
    #[arg(long, default_value = "standard", value_parser = ["fast", "standard", "quiet"])]
    profile: String,
    /// Members killed, members stopped, and members cut off, in each round.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    faults: u32,
    /// Members stopped for five seconds, in each round.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=100))]
    pauses: u32,
    /// Number of turns of each system.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds over which idle cost is measured, on loopback and in namespaces.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    idle: u64,
    /// Another system: NAME=PROGRAM; the program accepts musterd's options and prints its lines.
    #[arg(long = "peer", value_name = "NAME=PROGRAM", value_parser = parse_peer)]
    peers: Vec<System>,
    /// Also measure Muster in zones of this many members, and kill the supervisors of zones and whole zones of every
    /// system.
    #[arg(long, value_name = "MEMBERS", value_parser = clap::value_parser!(u32).range(2..=MEMBERS_MAX))]
    zones: Option<u32>,
    /// Do not cut members off, which needs a network namespace for each.
    #[arg(long)]
    no_cuts: bool,
    /// Seed that selects the members and times of the faults [default: random].
    #[arg(long)]
    seed: Option<u64>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// Runs the measurement and prints the table.
pub(super) fn run(args: &DetectArgs) -> Result<(), CliError> {
    notice_interruption();
    let seed = args.seed.unwrap_or_else(muster_config::draw_seed);
    let in_zones = args.zones.map(|zone| System {
        name: format!("zones of {zone}"),
        zone: Some(zone),
        ..ours()
    });
    let systems: Vec<System> = std::iter::once(ours())
        .chain(in_zones)
        .chain(args.peers.iter().cloned())
        .collect();
    let machine = machine::describe();
    eprintln!(
        "{} members with {} rails, profile {}, {} rounds of {} kills, stops and cuts and {} \
         pauses, seed {seed}",
        args.members, args.rails, args.profile, args.rounds, args.faults, args.pauses
    );
    let directory = machine::scratch()?;
    let cut = match args.no_cuts {
        true => Err("--no-cuts".to_owned()),
        false => Wiring::open(args.rails)
            .map(drop)
            .map_err(|why| format!("network namespaces are not available: {why}")),
    };
    if let Err(why) = &cut {
        eprintln!("SKIPPED: no member is cut off ({why})");
    }
    let mut figures: Vec<Figures> = systems.iter().map(|_| Figures::default()).collect();
    let progress = Progress::default();
    for round in 0..args.rounds {
        for (index, system) in systems.iter().enumerate() {
            progress.show(format_args!(
                "round {} of {}: {}",
                round + 1,
                args.rounds,
                system.name
            ));
            let turn = Turn {
                args,
                system,
                directory: directory.path(),
                net: 80 + ((round as usize * systems.len() + index) % 40) as u8,
                random_seed: seed.wrapping_add(u64::from(round)),
            };
            turn.run(cut.is_ok(), &mut figures[index]);
            if is_interrupted() {
                return Err(interrupted());
            }
        }
    }
    drop(progress);
    let rails_alone_kb = cost::rails_alone_kb(&GroupOptions {
        network: Network::Loopback(79),
        ..options(args, directory.path())
    });
    let columns: Vec<(&str, &Figures)> = systems
        .iter()
        .map(|system| system.name.as_str())
        .zip(&figures)
        .collect();
    match args.output {
        Format::Table => {
            println!("{}", machine::text(&machine));
            print!("{}", table(&columns));
            if let Some(kb) = rails_alone_kb {
                println!(
                    "of the private memory, libfabric and the lanes of {} rails: {kb} kB (a process that \
                     opens them and does nothing else)",
                    args.rails
                );
            }
            if let Err(why) = &cut {
                println!("SKIPPED: cut and heal, bytes on the wire: {why}");
            }
        }
        Format::Json => {
            let systems: Vec<Value> = columns
                .iter()
                .map(|(name, figures)| {
                    let mut value = figures.json();
                    value["name"] = (*name).into();
                    value
                })
                .collect();
            let value = json!({
                "schema": "muster/bench-detect/v1",
                "machine": machine,
                "seed": seed,
                "members": args.members,
                "rails": args.rails,
                "profile": args.profile,
                "rounds": args.rounds,
                "cut_skipped": cut.err(),
                "rails_alone_kb": rails_alone_kb,
                "systems": systems,
            });
            println!("{value:#}");
        }
    }
    // A failed phase of a peer is a result; a failed phase of Muster is an error.
    match figures
        .first()
        .map_or(0, |ours| ours.counted(Count::Failures))
    {
        0 => Ok(()),
        failed => Err(CliError::new(
            "bench",
            format!("{failed} phases of muster failed; see above"),
        )),
    }
}

/// The members of a zone, by their place in the group.
struct Zone {
    /// While all members are alive.
    supervisors: Vec<usize>,
    members: Vec<usize>,
}

/// The turn of one system in one round.
struct Turn<'a> {
    args: &'a DetectArgs,
    system: &'a System,
    directory: &'a Path,
    net: u8,
    random_seed: u64,
}

impl Turn<'_> {
    /// Runs both groups, one after the other. Failures are printed and counted; the turn continues.
    fn run(&self, can_cut: bool, figures: &mut Figures) {
        let mut outcomes = vec![self.on_loopback(figures)];
        if can_cut && !is_interrupted() {
            outcomes.push(self.in_namespaces(figures));
        }
        for error in outcomes.into_iter().filter_map(Result::err) {
            if !is_interrupted() {
                eprintln!("{}: {error}", self.system.name);
                figures.count(Count::Failures, 1);
            }
        }
    }

    fn on_loopback(&self, figures: &mut Figures) -> Result<(), CliError> {
        let options = GroupOptions {
            network: Network::Loopback(self.net),
            ..options(self.args, self.directory)
        };
        let mut group = Group::boot(self.system, &options, None)?;
        cost::measure(&mut group, Duration::from_secs(self.args.idle));
        let outcome = self.inject_faults(&mut group);
        figures.merge(group.end());
        outcome
    }

    fn inject_faults(&self, group: &mut Group<'_>) -> Result<(), CliError> {
        let mut random = ChaCha8Rng::seed_from_u64(self.random_seed);
        for at in self.victims(&mut random, self.args.faults) {
            pause_between(&mut random)?;
            group.stop(at, Duration::ZERO)?;
        }
        for at in self.victims(&mut random, self.args.pauses) {
            pause_between(&mut random)?;
            group.stop(at, PAUSE)?;
        }
        for at in self.victims(&mut random, self.args.faults) {
            pause_between(&mut random)?;
            group.kill(&[at], Metric::Killed)?;
        }
        let Some(zones) = self.zones()? else {
            return Ok(());
        };
        for zone in self.victim_zones(&zones, &mut random) {
            pause_between(&mut random)?;
            group.kill(&zone.supervisors, Metric::SupervisorsKilled)?;
        }
        for zone in self.victim_zones(&zones, &mut random) {
            pause_between(&mut random)?;
            group.kill(&zone.members, Metric::ZoneKilled)?;
        }
        Ok(())
    }

    /// The zones of the job, whatever system is measured, except that of the first member. None without `--zones`.
    fn zones(&self) -> Result<Option<Vec<Zone>>, CliError> {
        let Some(size) = self.args.zones else {
            return Ok(None);
        };
        let nodes = format!("n[1-{}]", self.args.members);
        let zones = parse_zones(&size.to_string(), Some(NodeList::Nodes(&nodes)), None);
        let zones = zones.map_err(|e| CliError::new("bench", e))?;
        let Some(JobZones { map, .. }) = zones else {
            return Ok(None);
        };
        let roles = Assignment::of(&map);
        let places = |nodes: &[NodeIndex]| nodes.iter().map(|node| node.0 as usize).collect();
        let others = map.zones_at(0).skip(1);
        let zone = |zone| Zone {
            supervisors: places(&roles.zone(zone).supervisors),
            members: places(map.nodes(zone)),
        };
        Ok(Some(others.map(zone).collect()))
    }

    /// A fifth as many zones as members that are killed one by one.
    fn victim_zones<'z>(&self, zones: &'z [Zone], random: &mut ChaCha8Rng) -> Vec<&'z Zone> {
        let count = self.args.faults.div_ceil(5) as usize;
        let mut order: Vec<&Zone> = zones.iter().collect();
        order.shuffle(random);
        order.truncate(count);
        order
    }

    fn in_namespaces(&self, figures: &mut Figures) -> Result<(), CliError> {
        let options = options(self.args, self.directory);
        let wiring = Wiring::open(self.args.rails);
        let wiring = wiring.map_err(|why| CliError::new("bench: network namespaces", why))?;
        let mut group = Group::boot(self.system, &options, Some(wiring))?;
        // Boot times are measured on loopback only.
        group.figures = Figures::default();
        cost::measure(&mut group, Duration::from_secs(self.args.idle));
        let outcome = self.cut(&mut group);
        figures.merge(group.end());
        outcome
    }

    fn cut(&self, group: &mut Group<'_>) -> Result<(), CliError> {
        let mut random = ChaCha8Rng::seed_from_u64(self.random_seed);
        for at in self.victims(&mut random, self.args.faults) {
            pause_between(&mut random)?;
            group.cut(at)?;
        }
        Ok(())
    }

    /// This many members, each about equally often. The first member is excluded: it is the seed of all members.
    fn victims(&self, random: &mut ChaCha8Rng, count: u32) -> Vec<usize> {
        let mut order: Vec<usize> = (1..self.args.members as usize).collect();
        order.shuffle(random);
        order.into_iter().cycle().take(count as usize).collect()
    }
}

pub(super) fn pause_between(random: &mut ChaCha8Rng) -> Result<(), CliError> {
    wait_until(
        Duration::from_millis(random.random_range(BETWEEN_MS)),
        || false,
    );
    match is_interrupted() {
        true => Err(interrupted()),
        false => Ok(()),
    }
}

fn options(args: &DetectArgs, directory: &Path) -> GroupOptions {
    GroupOptions {
        members: args.members,
        rails: args.rails,
        profile: args.profile.clone(),
        directory: directory.to_owned(),
        network: Network::Namespace,
        unprivileged: false,
    }
}

/// `musterd` beside this program.
pub(super) fn ours() -> System {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("muster"));
    System {
        name: "muster".into(),
        program: own.with_file_name("musterd"),
        zone: None,
    }
}

fn parse_peer(text: &str) -> Result<System, String> {
    let (name, program) = text.split_once('=').ok_or("write NAME=PROGRAM")?;
    let program = PathBuf::from(program);
    if program.is_file() {
        Ok(System {
            name: name.to_owned(),
            program,
            zone: None,
        })
    } else {
        Err(format!("{} is not a program", program.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_requires_a_name_and_a_program() {
        assert!(parse_peer("nothing").is_err());
        assert!(
            parse_peer("x=/nonexistent")
                .unwrap_err()
                .contains("/nonexistent")
        );
        assert_eq!(parse_peer("sh=/bin/sh").unwrap().name, "sh");
    }
}
