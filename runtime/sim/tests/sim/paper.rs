//! Stories of the plain algorithm of the paper: slower, and as true in the end. Rows ZM-08, ZM-09.

use muster_protocol::{EventKind, Mode, Profile};
use muster_sim::World;

use crate::common::{MS, SECOND, sound};

/// The paper's own interval.
const TAU_US: u64 = 200 * MS;

fn booted(seed: u64, count: usize, theta: usize) -> World {
    let mut world = World::new(seed);
    for index in 0..count {
        let mut config = world.config(&format!("node{index}"), Profile::Quiet);
        config.mode = Mode::Paper { tau_us: TAU_US };
        config.theta = theta;
        world.add(config);
    }
    assert!(world.run_until(60 * SECOND, World::converged), "boot");
    world.run(2 * SECOND);
    assert!(world.converged());
    world
}

/// ZM-09: reports alone make the failure, and there are no probes, helpers or claims (ZM-08).
#[test]
fn the_plain_algorithm_finds_the_dead_without_any_addition() {
    let mut world = booted(1, 24, 2);
    let at = world.now();
    world.crash(5);
    world.crash(11);
    assert!(world.run_until(20 * SECOND, World::converged));
    for victim in [5, 11] {
        let told = world.told(at, victim, |kind| *kind == EventKind::NodeFailed);
        assert_eq!(told.len(), 22);
    }
    for node in world.running() {
        let counters = world.engine(node).counters();
        let added = (
            counters.probes_sent,
            counters.indirect_probes_sent,
            counters.repairs,
        );
        assert_eq!(added, (0, 0, 0));
        assert_eq!((counters.self_doubts, counters.outcasts), (0, 0));
    }
    sound(&world);
}

/// ZM-06, ZM-09: one who was silent and lives raises its minor, in the same incarnation.
#[test]
fn one_who_was_removed_comes_back_by_its_minor() {
    let mut world = booted(2, 12, 1);
    let before = world.engine(4).version();
    world.pause(4, 5 * SECOND);
    world.run(5 * SECOND);
    assert!(world.run_until(60 * SECOND, World::converged));
    let after = world.engine(4).version();
    assert_eq!(after.incarnation, before.incarnation);
    assert!(after.minor > before.minor);
    sound(&world);
}

/// ZM-04, ZM-09: the two sides of a split find each other through their histories, by minors.
#[test]
fn the_sides_of_a_split_find_each_other_through_the_history() {
    let mut world = booted(3, 12, 1);
    let lives: Vec<_> = (0..12)
        .map(|node| world.engine(node).version().incarnation)
        .collect();
    world.split(&[0, 1, 2, 3], &[4, 5, 6, 7, 8, 9, 10, 11]);
    world.run(20 * SECOND);
    assert_eq!(world.engine(0).live(), 4);
    assert_eq!(world.engine(4).live(), 8);
    world.network.heal();
    assert!(world.run_until(120 * SECOND, World::converged));
    let again: Vec<_> = (0..12)
        .map(|node| world.engine(node).version().incarnation)
        .collect();
    // While the two views grow together the plain algorithm calls some who live failed once more
    // (with most seeds): nobody claims that it does not, so the checkers are not asked.
    assert_eq!(again, lives);
}
