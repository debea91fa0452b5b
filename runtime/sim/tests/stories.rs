//! Stories of one zone, told in the words of what is promised, on virtual time.

use muster_protocol::{CauseKind, EventKind, Instant, NodeState, Profile};
use muster_sim::World;

const MS: u64 = 1000;
const SECOND: u64 = 1_000_000;

fn booted(seed: u64, count: usize) -> World {
    let mut world = World::booted(seed, count, Profile::Standard);
    assert!(
        world.run_until(5 * SECOND, World::converged),
        "boot of {count}, seed={seed}"
    );
    // Let handshakes end, so that the story starts in quiet.
    world.run(300 * MS);
    assert!(world.converged());
    world
}

fn sound(world: &World) {
    assert_eq!(world.checker.violations(), []);
}

/// ZM-04: all start at once and know one address.
#[test]
fn sixteen_boot_at_once_from_one_seed() {
    let world = booted(1, 16);
    let took_us = world.now().since(Instant(10_000_000)) - 300 * MS;
    println!("simulated: 16 members booted in {} ms", took_us / MS);
    sound(&world);
}

/// ZM-06: a dead member is reported by two and removed by all.
#[test]
fn a_killed_member_is_failed_everywhere_with_its_reporters() {
    let mut world = booted(2, 16);
    let at = world.now();
    world.crash(5);
    assert!(world.run_until(SECOND, World::converged));
    let told = world.told(at, 5, |kind| *kind == EventKind::NodeFailed);
    assert_eq!(told.len(), 15);
    for record in world
        .records()
        .iter()
        .filter(|record| record.event.at >= at)
    {
        if record.event.kind == EventKind::NodeFailed {
            assert!(record.event.cause.reporters.len() >= 2, "{record:?}");
            assert_eq!(record.event.cause.kind, CauseKind::Silence);
        }
    }
    assert!(world.engine(0).why(world.id(5)).count() > 1);
    sound(&world);
}

/// ZM-06: silence shorter than the deadline is no failure.
#[test]
fn one_who_is_back_before_the_deadline_is_not_failed() {
    let mut world = booted(3, 8);
    let at = world.now();
    world.pause(4, 40 * MS);
    world.run(2 * SECOND);
    assert!(world.converged());
    assert!(
        world
            .told(at, 4, |kind| *kind == EventKind::NodeFailed)
            .is_empty()
    );
    assert_eq!(world.engine(4).counters().outcasts, 0);
    sound(&world);
}

/// ZM-01, ZM-03: a detector that was stopped for a minute accuses nobody, and comes back with a
/// higher incarnation after having been declared failed.
#[test]
fn one_who_slept_for_a_minute_accuses_nobody_and_comes_back() {
    let mut world = booted(4, 8);
    let at = world.now();
    let before = world.engine(2).version();
    world.pause(2, 60 * SECOND);
    world.run(59 * SECOND);
    assert_eq!(
        world
            .told(at, 2, |kind| *kind == EventKind::NodeFailed)
            .len(),
        7
    );
    world.run(SECOND + 200 * MS);
    assert!(world.converged(), "back within 200 ms");
    assert!(world.engine(2).version().incarnation > before.incarnation);
    assert_eq!(
        world.told(at, 2, |kind| *kind == EventKind::Outcast).len(),
        1
    );
    for other in (0..8).filter(|other| *other != 2) {
        assert!(
            world
                .told(at, other, |kind| *kind == EventKind::NodeFailed)
                .is_empty()
        );
    }
    sound(&world);
}

/// ZM-07: a goodbye is heard with its exit code, and is no failure.
#[test]
fn one_who_leaves_is_left_everywhere_with_the_exit_code() {
    let mut world = booted(5, 8);
    let at = world.now();
    world
        .input(3, muster_protocol::Input::Leave { exit_code: 7 })
        .unwrap();
    assert!(world.run_until(100 * MS, World::converged));
    let told = world.told(at, 3, |kind| *kind == EventKind::NodeLeft { exit_code: 7 });
    assert_eq!(told.len(), 8);
    world.run(SECOND);
    assert!(
        world
            .told(at, 3, |kind| *kind == EventKind::NodeFailed)
            .is_empty()
    );
    assert_eq!(
        world.engine(0).member(world.id(3)).unwrap().state(),
        NodeState::Left
    );
    sound(&world);
    world.restart(3);
    assert!(
        world.run_until(5 * SECOND, World::converged),
        "and may come back"
    );
    sound(&world);
}
