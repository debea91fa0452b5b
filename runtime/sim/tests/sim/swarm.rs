//! Two hundred worlds, each drawn from its seed: sizes, networks, faults.
//!
//! First safety: members crash, restart, change their worker, stop and report rank states, with under a tenth
//! of all datagrams lost and many reordered. No running member is declared failed. Then liveness: without
//! further faults, but with the losses, all views become equal and right.

use std::ops::Range;

use muster_protocol::{Profile, RankState};
use muster_sim::{Chance, Network, World};

const MS: u64 = 1000;
const SEEDS: u64 = 200;

#[derive(Debug)]
struct Options {
    seed: u64,
    members: usize,
    network: Network,
    faults: u64,
    safety_ms: u64,
}

impl Options {
    fn draw(seed: u64) -> Self {
        let mut chance = Chance::new(seed ^ 0x5eed);
        let mut network = Network::default();
        network.loss_permille = 100;
        network.duplicate_permille = chance.between(0, 50) as u32;
        network.corrupt_permille = chance.between(0, 20) as u32;
        network.reorder_permille = chance.between(50, 200) as u32;
        network.delay_min_us = chance.between(20, 100);
        network.delay_max_us = chance.between(100, 1500);
        network.reorder_us = chance.between(500, 5000);
        Self {
            seed,
            members: chance.between(4, 24) as usize,
            network,
            faults: chance.between(1, 8),
            safety_ms: chance.between(1500, 3000),
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    let mut world = World::booted(options.seed, options.members, Profile::Standard);
    world.network = options.network.clone();
    if !world.run_until(10_000 * MS, World::converged) {
        return Err("did not boot".to_owned());
    }
    for _ in 0..options.faults {
        world.run(options.safety_ms * MS / options.faults);
        inject(&mut world, options.members);
    }
    for node in 0..options.members {
        if !world.running().contains(&node) {
            world.restart(node);
        }
    }
    if !world.run_until(10_000 * MS, World::converged) {
        return Err("did not converge after the faults".to_owned());
    }
    match world.checker.violations() {
        [] => Ok(()),
        broken => Err(format!("{broken:#?}")),
    }
}

fn inject(world: &mut World, members: usize) {
    let node = world.chance().between(0, members as u64 - 1) as usize;
    if !world.running().contains(&node) {
        return world.restart(node);
    }
    match world.chance().between(0, 4) {
        0 if world.running().len() > 3 => world.crash(node),
        1 => world.restart(node),
        2 => world.resume_worker(node, 5 * MS),
        3 => world.pause(node, 15 * MS),
        _ => {
            let rank = world.chance().between(0, 7) as u32;
            let state = if rank < 4 {
                RankState::Alive
            } else {
                RankState::Failed
            };
            world.rank(node, rank, state);
        }
    }
}

/// ZM-02, ZM-06, ZM-08: completeness, accuracy and equal views under loss and reordering.
#[test]
fn two_hundred_worlds_converge_without_false_failures() {
    let seeds = seeds(SEEDS);
    let mut failed = Vec::new();
    for seed in seeds.clone() {
        let options = Options::draw(seed);
        if let Err(what) = run(&options) {
            println!("{options:?}\n{what}\nreproduce with seed={seed}");
            failed.push(seed);
        }
    }
    println!("seeds {seeds:?}, failed: {failed:?}");
    assert!(
        failed.is_empty(),
        "reproduce with MUSTER_SIM_SEED=.. for {failed:?}"
    );
}

/// `MUSTER_SIM_SEED=n` runs one world again, `MUSTER_SIM_SEEDS=n` runs `n` worlds.
fn seeds(usual: u64) -> Range<u64> {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text: String| text.parse().ok())
    };
    match number("MUSTER_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("MUSTER_SIM_SEEDS").unwrap_or(usual),
    }
}

/// Beyond all bounds: long stops, splits and cut-off members, in addition to crashes and losses. Failures are
/// excused then. But up and down alternate, no dead member comes back, and at the end all views become equal
/// and right.
#[test]
fn a_hundred_worlds_converge_after_any_fault() {
    let mut failed = Vec::new();
    for seed in seeds(SEEDS / 2) {
        let options = Options::draw(seed);
        if let Err(what) = storm(&options) {
            println!("{options:?}\n{what}\nreproduce with MUSTER_SIM_SEED={seed}");
            failed.push(seed);
        }
    }
    assert!(
        failed.is_empty(),
        "reproduce with MUSTER_SIM_SEED=.. for {failed:?}"
    );
}

fn storm(options: &Options) -> Result<(), String> {
    let mut world = World::booted(options.seed, options.members, Profile::Standard);
    world.network = options.network.clone();
    for _ in 0..options.faults {
        let gap_us = world.chance().between(0, 400 * MS);
        world.run(gap_us);
        let node = world.chance().between(0, options.members as u64 - 1) as usize;
        match world.chance().between(0, 3) {
            0 => {
                let duration_us = world.chance().between(20 * MS, 3000 * MS);
                world.pause(node, duration_us);
            }
            1 => world.isolate(node),
            2 => {
                let (left, right): (Vec<usize>, Vec<usize>) =
                    (0..options.members).partition(|other| *other < node);
                world.split(&left, &right);
            }
            _ => inject(&mut world, options.members),
        }
        if world.chance().permille(300) {
            world.network.heal();
        }
    }
    world.network.heal();
    // Let every stop end before the crashed members come back.
    world.run(3000 * MS);
    for node in 0..options.members {
        if !world.running().contains(&node) {
            world.restart(node);
        }
    }
    if !world.run_until(30_000 * MS, World::converged) {
        return Err("did not converge".to_owned());
    }
    match world.checker.violations() {
        [] => Ok(()),
        broken => Err(format!("{broken:#?}")),
    }
}

/// One seed gives one history, with the same events.
#[test]
fn the_same_seed_gives_the_same_history() {
    let history = |seed| {
        let options = Options::draw(seed);
        let mut world = World::booted(seed, options.members, Profile::Standard);
        world.network = options.network;
        world.run(500 * MS);
        world.crash(1);
        world.run(500 * MS);
        format!("{:?}", world.records())
    };
    assert_eq!(history(7), history(7));
    assert_ne!(history(7), history(8));
}
