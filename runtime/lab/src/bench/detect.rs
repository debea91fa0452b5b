//! `muster bench detect`: one driver, several systems, in turns.
//!
//! Each round boots a group of every system on loopback, lets it alone, kills, stops and pauses
//! members at random times and takes from the members' own lines when each survivor knew; then a
//! group in network namespaces, of whose members all rails are cut and healed. A crash, a silence
//! and a cut are different things and stand in different rows. Peers that speak the same contract
//! are named with `--peer NAME=PROGRAM`; the same members are hit at the same moments of a round,
//! and the figures are also given as ratios to ours.

use super::cost;
use super::figures::{Count, Figures};
use super::group::{Group, interrupted};
use super::machine;
use super::member::{Home, System, Terms};
use super::table::table;
use super::wiring::Wiring;
use clap::Args;
use muster_terminal::CliError;
use muster_terminal::Format;
use muster_terminal::process::{is_interrupted, notice_interruption, wait_until};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Length of a pause that nobody may mistake for a short one.
const PAUSE: Duration = Duration::from_secs(5);
/// Time between the return of one member and the next fault, so that timers are not in phase.
const BETWEEN_MS: std::ops::Range<u64> = 100..600;

/// Options of `muster bench detect`.
#[derive(Args)]
pub(crate) struct DetectArgs {
    /// Members of each group.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(3..=240))]
    members: u32,
    /// Rails of each member; a peer that has but one uses the first.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4))]
    rails: u32,
    /// Timing profile of our members.
    #[arg(long, default_value = "standard", value_parser = ["fast", "standard", "quiet"])]
    profile: String,
    /// Members killed, members stopped, and members cut off, in each round.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    faults: u32,
    /// Members stopped for five seconds, in each round.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=100))]
    pauses: u32,
    /// How often each system gets its turn.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds over which idle cost is measured, on loopback and in namespaces.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    idle: u64,
    /// Another system: NAME=PROGRAM; the program takes musterd's options and prints its lines.
    #[arg(long = "peer", value_name = "NAME=PROGRAM", value_parser = parse_peer)]
    peers: Vec<System>,
    /// Which members are hit, and when, follows from this number; drawn if not given.
    #[arg(long)]
    seed: Option<u64>,
    /// How to print it.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// Runs the measurement and prints the table.
pub(super) fn run(args: &DetectArgs) -> Result<(), CliError> {
    notice_interruption();
    let seed = args.seed.unwrap_or_else(muster_config::draw_seed);
    let systems: Vec<System> = std::iter::once(ours())
        .chain(args.peers.iter().cloned())
        .collect();
    let machine = machine::describe();
    eprintln!(
        "{} members with {} rails, profile {}, {} rounds of {} kills, stops and cuts and {} \
         pauses, seed {seed}",
        args.members, args.rails, args.profile, args.rounds, args.faults, args.pauses
    );
    let directory = machine::scratch()?;
    let cut = Wiring::open(args.rails).map(drop);
    if let Err(why) = &cut {
        eprintln!("SKIPPED: no member is cut off, for want of network namespaces ({why})");
    }
    let mut figures: Vec<Figures> = systems.iter().map(|_| Figures::default()).collect();
    for round in 0..args.rounds {
        for (index, system) in systems.iter().enumerate() {
            let turn = Turn {
                args,
                system,
                directory: directory.path(),
                net: 80 + ((round as usize * systems.len() + index) % 40) as u8,
                dice_seed: seed.wrapping_add(u64::from(round)),
            };
            turn.play(cut.is_ok(), &mut figures[index]);
            if is_interrupted() {
                return Err(interrupted());
            }
        }
    }
    let rails_alone_kb = cost::rails_alone_kb(&Terms {
        home: Home::Loopback(79),
        ..terms(args, directory.path())
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
                    "of our memory, libfabric and the lanes of {} rails: {kb} kB (a process that \
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
    // What a peer cannot do is a figure of its own; what we cannot is an error.
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

/// One system's part of one round.
struct Turn<'a> {
    args: &'a DetectArgs,
    system: &'a System,
    directory: &'a Path,
    net: u8,
    dice_seed: u64,
}

impl Turn<'_> {
    /// Both groups, one after the other. What fails is said, counted, and no reason to stop.
    fn play(&self, can_cut: bool, figures: &mut Figures) {
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
        let terms = Terms {
            home: Home::Loopback(self.net),
            ..terms(self.args, self.directory)
        };
        let mut group = Group::boot(self.system, &terms, None)?;
        cost::measure(&mut group, Duration::from_secs(self.args.idle));
        let outcome = self.hit(&mut group);
        figures.merge(group.end());
        outcome
    }

    fn hit(&self, group: &mut Group<'_>) -> Result<(), CliError> {
        let mut dice = ChaCha8Rng::seed_from_u64(self.dice_seed);
        for at in self.victims(&mut dice, self.args.faults) {
            between(&mut dice)?;
            group.stop(at, Duration::ZERO)?;
        }
        for at in self.victims(&mut dice, self.args.pauses) {
            between(&mut dice)?;
            group.stop(at, PAUSE)?;
        }
        for at in self.victims(&mut dice, self.args.faults) {
            between(&mut dice)?;
            group.kill(at)?;
        }
        Ok(())
    }

    fn in_namespaces(&self, figures: &mut Figures) -> Result<(), CliError> {
        let terms = terms(self.args, self.directory);
        let wiring = Wiring::open(self.args.rails);
        let wiring = wiring.map_err(|why| CliError::new("bench: no hub", why))?;
        let mut group = Group::boot(self.system, &terms, Some(wiring))?;
        // Booting is compared on loopback.
        group.figures = Figures::default();
        cost::measure(&mut group, Duration::from_secs(self.args.idle));
        let outcome = self.cut(&mut group);
        figures.merge(group.end());
        outcome
    }

    fn cut(&self, group: &mut Group<'_>) -> Result<(), CliError> {
        let mut dice = ChaCha8Rng::seed_from_u64(self.dice_seed);
        for at in self.victims(&mut dice, self.args.faults) {
            between(&mut dice)?;
            group.cut(at)?;
        }
        Ok(())
    }

    /// So many members, each as often as any other. The first is everybody's seed and stays.
    fn victims(&self, dice: &mut ChaCha8Rng, count: u32) -> Vec<usize> {
        let mut order: Vec<usize> = (1..self.args.members as usize).collect();
        order.shuffle(dice);
        order.into_iter().cycle().take(count as usize).collect()
    }
}

fn between(dice: &mut ChaCha8Rng) -> Result<(), CliError> {
    wait_until(Duration::from_millis(dice.random_range(BETWEEN_MS)), || {
        false
    });
    match is_interrupted() {
        true => Err(interrupted()),
        false => Ok(()),
    }
}

fn terms(args: &DetectArgs, directory: &Path) -> Terms {
    Terms {
        members: args.members,
        rails: args.rails,
        profile: args.profile.clone(),
        directory: directory.to_owned(),
        home: Home::Namespace,
        unprivileged: false,
    }
}

/// `musterd` beside this program.
pub(super) fn ours() -> System {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("muster"));
    System {
        name: "muster".into(),
        program: own.with_file_name("musterd"),
    }
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
