//! Tests of the accuracy checker: a verdict against a running member is a violation, unless the bound that
//! excuses it was broken. A launcher that reports wrong failures causes the false verdicts here.

use muster_protocol::{Input, Profile, Told};
use muster_sim::World;

use crate::common::{MS, booted};

/// Longer than any excuse lasts after its fault.
const LATER_US: u64 = 300 * MS;

fn world(seed: u64) -> World {
    booted(seed, 10, Profile::Standard)
}

/// `liar` is told that the running `victim` has failed. Returns whether the accuracy checker finds a
/// violation.
fn is_violation(world: &mut World, liar: usize, victim: usize) -> bool {
    let before = world.checker.violations().len();
    let name = format!("node{victim}");
    let told = Told::NodeFailed { name: &name };
    world
        .input(liar, Input::Told(told))
        .expect("a present member");
    let found = &world.checker.violations()[before..];
    assert!(
        found.iter().all(|found| found.checker == "accuracy"),
        "{found:?}"
    );
    !found.is_empty()
}

#[test]
fn nothing_excuses_a_verdict_in_a_healthy_world() {
    assert!(is_violation(&mut world(1), 3, 4));
}

/// Four kinds of stop excuse nothing: one shorter than a third of the deadline, one of another member, one
/// long ago, and one of the accuser. A long stop excuses the member until its next incarnation.
#[test]
fn a_stop_excuses_the_stopped_member_for_a_time() {
    let mut short = world(2);
    short.pause(4, 19 * MS);
    assert!(is_violation(&mut short, 3, 4));
    let mut long = world(2);
    long.pause(4, 20 * MS);
    assert!(!is_violation(&mut long, 3, 4));
    assert!(is_violation(&mut long, 3, 5), "another member");
    let mut old = world(2);
    old.pause(4, 20 * MS);
    old.run(LATER_US);
    assert!(is_violation(&mut old, 3, 4), "long ago");
    let mut accuser = world(2);
    accuser.pause(3, 2000 * MS);
    assert!(is_violation(&mut accuser, 3, 4), "the accuser was stopped");
    let mut reborn = world(2);
    reborn.pause(4, 2000 * MS);
    reborn.restart(4);
    assert!(reborn.run_until(LATER_US, World::converged));
    assert!(is_violation(&mut reborn, 3, 4), "the next incarnation");
}

#[test]
fn lateness_excuses_the_late_member_for_a_time() {
    let mut little = world(3);
    little.slow(4, 19 * MS);
    assert!(is_violation(&mut little, 3, 4));
    let mut much = world(3);
    much.slow(4, 20 * MS);
    assert!(!is_violation(&mut much, 3, 4));
    let mut over = world(3);
    over.slow(4, 20 * MS);
    over.run(MS);
    over.end_slowness();
    over.run(LATER_US);
    assert!(is_violation(&mut over, 3, 4));
}

/// A cut excuses verdicts about the far side, if it is long enough and for a limited time; never those about
/// the near side.
#[test]
fn a_cut_excuses_only_across_it() {
    let split = |cut_us: u64| {
        let mut world = world(4);
        world.split(&[0, 1, 2, 3], &[4, 5, 6, 7, 8, 9]);
        world.run(cut_us);
        world
    };
    assert!(!is_violation(&mut split(30 * MS), 0, 6));
    assert!(is_violation(&mut split(30 * MS), 0, 1), "on the near side");
    assert!(is_violation(&mut split(30 * MS), 8, 9), "on the near side");
    assert!(is_violation(&mut split(10 * MS), 0, 6), "a short cut");
    let mut healed = split(30 * MS);
    healed.network.heal();
    healed.run(100 * MS);
    assert!(!is_violation(&mut healed, 0, 6));
    let mut healed = split(30 * MS);
    healed.network.heal();
    healed.run(LATER_US);
    assert!(is_violation(&mut healed, 0, 6), "long ago");
}

/// A single one-way cut among many links is within bounds; the second one is not.
#[test]
fn a_single_one_way_cut_excuses_nothing() {
    let mut one = world(5);
    one.cut_one_way(4, 3);
    one.run(30 * MS);
    assert!(is_violation(&mut one, 3, 4));
    let mut two = world(5);
    two.cut_one_way(4, 3);
    two.cut_one_way(5, 3);
    two.run(30 * MS);
    assert!(is_violation(&mut two, 3, 4));
    assert!(!is_violation(&mut two, 3, 5));
    assert!(is_violation(&mut two, 6, 7));
}

/// A one-way cut is not within bounds where a split leaves fewer than five members on its side that could
/// probe.
#[test]
fn a_one_way_cut_on_the_small_side_of_a_split_excuses_its_pair() {
    let mut small = world(11);
    small.cut_one_way(4, 3);
    small.split(&[3, 4, 5, 6], &[0, 1, 2, 7, 8, 9]);
    small.run(30 * MS);
    assert!(!is_violation(&mut small, 3, 4));
    assert!(
        is_violation(&mut small, 5, 6),
        "no path between them is cut"
    );
    let mut large = world(11);
    large.cut_one_way(4, 3);
    large.split(&[0, 1, 2], &[3, 4, 5, 6, 7, 8, 9]);
    large.run(30 * MS);
    assert!(is_violation(&mut large, 3, 4), "five others can probe");
}

#[test]
fn a_storm_excuses_all_members_until_it_is_over() {
    let mut world = world(6);
    world.storm(100);
    assert!(!is_violation(&mut world, 3, 4));
    world.end_storm(0);
    world.run(LATER_US);
    assert!(is_violation(&mut world, 3, 5));
}

/// Faults that are within bounds by themselves excuse nothing.
#[test]
fn workers_clocks_losses_and_rails_excuse_nothing() {
    let mut worker = world(7);
    worker.resume_worker(4, 5 * MS);
    assert!(is_violation(&mut worker, 3, 4));
    let mut clock = world(7);
    clock.set_clock_rate(4, 2000);
    assert!(is_violation(&mut clock, 3, 4));
    let mut lossy = world(7);
    lossy.network.loss_permille = 100;
    lossy.run(30 * MS);
    assert!(is_violation(&mut lossy, 3, 4));
    let mut rails = world(7);
    rails.set_rails(2);
    rails.lose_rail(4, 0);
    rails.run(300 * MS);
    assert!(is_violation(&mut rails, 3, 4));
}

/// Others may report an excused verdict late; the member's next incarnation may not be declared failed.
#[test]
fn an_excused_verdict_may_arrive_late() {
    let mut world = world(8);
    world.pause(4, 500 * MS);
    world.run(400 * MS);
    assert_eq!(world.checker.violations(), []);
    assert!(world.run_until(1000 * MS, |world| !world.any_paused() && world.converged()));
    world.run(LATER_US);
    assert!(
        is_violation(&mut world, 3, 4),
        "it came back with another incarnation"
    );
}
