//! The accuracy checker bites: a verdict against somebody who runs is a violation, unless the very
//! bound that excuses it was broken. The false verdicts here come from a launcher that lies.

use muster_protocol::{Input, Profile, Told};
use muster_sim::World;

use crate::common::{MS, booted};

/// Longer than any excuse outlives its fault.
const LATER_US: u64 = 300 * MS;

fn world(seed: u64) -> World {
    booted(seed, 10, Profile::Standard)
}

/// `liar` says that `victim`, who runs, has failed; what the accuracy checker says to that.
fn lie(world: &mut World, liar: usize, victim: usize) -> bool {
    let before = world.checker.violations().len();
    let name = format!("node{victim}");
    let told = Told::NodeFailed { name: &name };
    world
        .input(liar, Input::Told(told))
        .expect("a member that is there");
    let found = &world.checker.violations()[before..];
    assert!(
        found.iter().all(|found| found.checker == "accuracy"),
        "{found:?}"
    );
    !found.is_empty()
}

#[test]
fn nothing_excuses_a_verdict_in_a_healthy_world() {
    assert!(lie(&mut world(1), 3, 4));
}

/// A stop shorter than a third of the deadline, somebody else's stop, a stop that was long ago, and
/// a stop of the accuser excuse nothing; a long one does, until the next life.
#[test]
fn a_stop_excuses_who_stopped_and_for_a_time() {
    let mut short = world(2);
    short.pause(4, 19 * MS);
    assert!(lie(&mut short, 3, 4));
    let mut long = world(2);
    long.pause(4, 20 * MS);
    assert!(!lie(&mut long, 3, 4));
    assert!(lie(&mut long, 3, 5), "somebody else");
    let mut old = world(2);
    old.pause(4, 20 * MS);
    old.run(LATER_US);
    assert!(lie(&mut old, 3, 4), "long ago");
    let mut accuser = world(2);
    accuser.pause(3, 2000 * MS);
    assert!(lie(&mut accuser, 3, 4), "the accuser stood still");
    let mut reborn = world(2);
    reborn.pause(4, 2000 * MS);
    reborn.restart(4);
    assert!(reborn.run_until(LATER_US, World::converged));
    assert!(lie(&mut reborn, 3, 4), "the next life");
}

#[test]
fn lateness_excuses_who_is_late_and_for_a_time() {
    let mut little = world(3);
    little.slow(4, 19 * MS);
    assert!(lie(&mut little, 3, 4));
    let mut much = world(3);
    much.slow(4, 20 * MS);
    assert!(!lie(&mut much, 3, 4));
    let mut over = world(3);
    over.slow(4, 20 * MS);
    over.run(MS);
    over.quick();
    over.run(LATER_US);
    assert!(lie(&mut over, 3, 4));
}

/// A cut excuses verdicts about the far side, once it is long enough and not for ever; never those
/// about the near side.
#[test]
fn a_cut_excuses_only_across_it() {
    let split = |cut_us: u64| {
        let mut world = world(4);
        world.split(&[0, 1, 2, 3], &[4, 5, 6, 7, 8, 9]);
        world.run(cut_us);
        world
    };
    assert!(!lie(&mut split(30 * MS), 0, 6));
    assert!(lie(&mut split(30 * MS), 0, 1), "on the near side");
    assert!(lie(&mut split(30 * MS), 8, 9), "on the near side");
    assert!(lie(&mut split(10 * MS), 0, 6), "a short one");
    let mut healed = split(30 * MS);
    healed.network.heal();
    healed.run(100 * MS);
    assert!(!lie(&mut healed, 0, 6));
    let mut healed = split(30 * MS);
    healed.network.heal();
    healed.run(LATER_US);
    assert!(lie(&mut healed, 0, 6), "long ago");
}

/// One way of one link among many is within bounds; the second one is not.
#[test]
fn one_deaf_link_excuses_nothing() {
    let mut one = world(5);
    one.cut_one_way(4, 3);
    one.run(30 * MS);
    assert!(lie(&mut one, 3, 4));
    let mut two = world(5);
    two.cut_one_way(4, 3);
    two.cut_one_way(5, 3);
    two.run(30 * MS);
    assert!(lie(&mut two, 3, 4));
    assert!(!lie(&mut two, 3, 5));
    assert!(lie(&mut two, 6, 7));
}

/// Nor is it within bounds where a split leaves fewer than five on its side, who could look.
#[test]
fn a_deaf_link_on_the_small_side_of_a_split_excuses_its_pair() {
    let mut small = world(11);
    small.cut_one_way(4, 3);
    small.split(&[3, 4, 5, 6], &[0, 1, 2, 7, 8, 9]);
    small.run(30 * MS);
    assert!(!lie(&mut small, 3, 4));
    assert!(lie(&mut small, 5, 6), "no way between them is cut");
    let mut large = world(11);
    large.cut_one_way(4, 3);
    large.split(&[0, 1, 2], &[3, 4, 5, 6, 7, 8, 9]);
    large.run(30 * MS);
    assert!(lie(&mut large, 3, 4), "five others look");
}

#[test]
fn a_storm_excuses_everybody_until_it_is_over() {
    let mut world = world(6);
    world.storm(100);
    assert!(!lie(&mut world, 3, 4));
    world.end_storm(0);
    world.run(LATER_US);
    assert!(lie(&mut world, 3, 5));
}

/// What is within bounds by itself excuses nothing.
#[test]
fn workers_clocks_losses_and_rails_excuse_nothing() {
    let mut worker = world(7);
    worker.resume_worker(4, 5 * MS);
    assert!(lie(&mut worker, 3, 4));
    let mut clock = world(7);
    clock.set_clock_rate(4, 2000);
    assert!(lie(&mut clock, 3, 4));
    let mut lossy = world(7);
    lossy.network.loss_permille = 100;
    lossy.run(30 * MS);
    assert!(lie(&mut lossy, 3, 4));
    let mut rails = world(7);
    rails.set_rails(2);
    rails.lose_rail(4, 0);
    rails.run(300 * MS);
    assert!(lie(&mut rails, 3, 4));
}

/// A verdict that was excused may be told late by others; the life after it may not be ended.
#[test]
fn an_excused_verdict_may_arrive_late() {
    let mut world = world(8);
    world.pause(4, 500 * MS);
    world.run(400 * MS);
    assert_eq!(world.checker.violations(), []);
    assert!(world.run_until(1000 * MS, |world| !world.anybody_paused()
        && world.converged()));
    world.run(LATER_US);
    assert!(lie(&mut world, 3, 4), "it came back as another life");
}
