//! Broken networks: one-way links, splits that heal, members that receive nothing or are alone.

use muster_protocol::{EventKind, Profile};
use muster_sim::World;

use crate::common::{MS, SECOND, booted, sound};

/// One of the observers of a member receives nothing from it; all other members do.
#[test]
fn a_one_way_link_causes_no_failure_and_no_storm() {
    let mut world = booted(1, 12, Profile::Standard);
    let at = world.now();
    let observer = world.engine(0).observers().next().unwrap();
    let observer = (0..12).find(|node| world.id(*node) == observer).unwrap();
    world.network.cut(0, observer);
    let before: u64 = (0..12)
        .map(|node| world.engine(node).counters().frames_sent)
        .sum();
    world.run(10 * SECOND);
    for node in 0..12 {
        assert!(
            world
                .reported(at, node, |kind| *kind == EventKind::NodeFailed)
                .is_empty()
        );
    }
    let after: u64 = (0..12)
        .map(|node| world.engine(node).counters().frames_sent)
        .sum();
    let per_second = (after - before) / 10;
    println!("simulated: one-way link among 12, {per_second} frames a second (1200 are beats)");
    assert!(per_second < 3 * 1200, "{per_second} frames a second");
    world.network.heal();
    world.run(SECOND);
    assert!(world.converged());
    sound(&world);
}

/// One member receives nothing but all others receive what it sends: it must not cause failures of the
/// others.
#[test]
fn a_member_that_receives_nothing_causes_no_failure_of_others() {
    let mut world = booted(2, 8, Profile::Standard);
    let at = world.now();
    world.excuse(5);
    for other in (0..8).filter(|other| *other != 5) {
        world.network.cut(other, 5);
        // What the member itself believes does not count.
        world.excuse(other);
    }
    world.run(5 * SECOND);
    for node in (0..8).filter(|node| *node != 5) {
        let told = world.reported(at, node, |kind| *kind == EventKind::NodeFailed);
        assert!(told.iter().all(|(observer, _)| *observer == 5), "{told:?}");
        assert!(
            world
                .reported(at, node, |kind| *kind == EventKind::Outcast)
                .is_empty()
        );
    }
    world.network.heal();
    assert!(
        world.run_until(10 * SECOND, World::converged),
        "it comes back"
    );
    for node in (0..8).filter(|node| *node != 5) {
        assert!(
            world
                .reported(at, node, |kind| *kind == EventKind::Outcast)
                .is_empty()
        );
    }
    sound(&world);
}

/// One member is cut off in both directions: it doubts itself before it reports. After the healing only this
/// member comes back with a higher incarnation.
#[test]
fn a_member_that_was_cut_off_yields_to_the_majority() {
    for cut_ms in [80, 130, 200, 1000, 7000] {
        let mut world = booted(3, 8, Profile::Standard);
        let at = world.now();
        world.isolate(6);
        world.run(cut_ms * MS);
        world.network.heal();
        assert!(
            world.run_until(12 * SECOND, World::converged),
            "cut for {cut_ms} ms"
        );
        for node in (0..8).filter(|node| *node != 6) {
            let outcast = world.reported(at, node, |kind| *kind == EventKind::Outcast);
            assert!(outcast.is_empty(), "cut for {cut_ms} ms: {outcast:?}");
        }
        sound(&world);
    }
}

/// ZM-04: the sides of a split find each other again; only the smaller side yields.
#[test]
fn a_split_heals_and_the_smaller_side_yields() {
    for (seed, minority) in (0..40).map(|seed| (seed, 1 + seed as usize % 8)) {
        let mut world = booted(seed, 16, Profile::Standard);
        world.network.loss_permille = 100;
        world.network.delay_max_us = 3000;
        let at = world.now();
        let (left, right): (Vec<usize>, Vec<usize>) = (0..16).partition(|node| *node < minority);
        world.split(&left, &right);
        world.run(3 * SECOND);
        for node in 0..16 {
            let expected = if node < minority {
                left.len()
            } else {
                right.len()
            };
            assert_eq!(
                world.engine(node).live(),
                expected,
                "node {node}, seed={seed}"
            );
        }
        world.network.heal();
        let healed = world.now();
        assert!(
            world.run_until(20 * SECOND, World::converged),
            "seed={seed}"
        );
        if seed < 8 {
            let took_ms = world.now().since(healed) / MS;
            println!(
                "simulated: split {minority}/{} healed after {took_ms} ms",
                16 - minority
            );
        }
        let outcast: Vec<usize> = (0..16)
            .filter(|node| {
                !world
                    .reported(at, *node, |kind| *kind == EventKind::Outcast)
                    .is_empty()
            })
            .collect();
        if minority < 8 {
            assert_eq!(outcast, left, "seed={seed}");
        } else {
            assert!(
                outcast == left || outcast == right,
                "seed={seed}: {outcast:?}"
            );
        }
        sound(&world);
    }
}

/// ZM-04: seed addresses without an answer do no harm, and one that works is enough.
#[test]
fn stale_seeds_are_harmless() {
    let mut world = World::new(8);
    for index in 0..6 {
        let mut config = world.config(&format!("node{index}"), Profile::Standard);
        config
            .seeds
            .extend((0..20).map(|stale| format!("stale-{stale}").into_bytes()));
        world.add(config);
    }
    assert!(world.run_until(20 * SECOND, World::converged));
    sound(&world);
}

/// Half of all datagrams are lost for a while: whatever was believed meanwhile, the views are right again
/// soon after.
#[test]
fn views_become_right_again_after_a_storm() {
    for seed in 0..10 {
        let mut world = booted(seed, 12, Profile::Standard);
        (0..12).for_each(|node| world.excuse(node));
        world.network.loss_permille = 500;
        world.run(2 * SECOND);
        world.network.loss_permille = 0;
        assert!(
            world.run_until(20 * SECOND, World::converged),
            "seed={seed}"
        );
        sound(&world);
    }
}

/// ZM-04: a member that requests contact before the receiver runs requests it again within a heartbeat.
#[test]
fn a_contact_request_that_was_too_early_is_repeated_soon() {
    let mut world = World::new(8);
    let mut early = world.config("early", Profile::Standard);
    early.seeds = vec![b"address-late".to_vec()];
    let mut late = world.config("late", Profile::Standard);
    (late.address, late.seeds) = (b"address-late".to_vec(), Vec::new());
    let early = world.add(early);
    world.run(5 * MS);
    let late = world.add(late);
    assert!(world.run_until(20 * MS, World::converged));
    assert_eq!(world.engine(early).live(), 2);
    assert_eq!(world.engine(late).live(), 2);
}
