//! An outsider without the key that has recorded every frame replays recordings to members.

use muster_protocol::{EventKind, NodeState, Profile, Reject};
use muster_sim::World;

use crate::common::{MS, SECOND, sound};

/// ZM-06: a dead node is declared failed in time, whatever frames of it are replayed to their receivers and
/// to others.
#[test]
fn recordings_keep_no_failed_member_alive() {
    for (seed, count) in [(1, 2), (2, 3), (3, 3), (4, 8), (5, 16)] {
        let mut world = World::new(seed);
        world.record(seed);
        for index in 0..count {
            let config = world.config(&format!("node{index}"), Profile::Standard);
            world.add(config);
        }
        assert!(world.run_until(5 * SECOND, World::converged));
        world.run(2 * SECOND);
        let (at, victim) = (world.now(), count - 1);
        world.crash(victim);
        world.play(victim, 10 * SECOND);
        let is_known = |world: &World| {
            let state = |node| {
                let member = world.engine(node).member(world.id(victim));
                member.map(|member| member.state())
            };
            (0..victim).all(|node| state(node) == Some(NodeState::Failed))
        };
        let known = world.run_until(20 * SECOND, is_known);
        let took_ms = world.now().since(at) / MS;
        println!("simulated: seed {seed}, {count} nodes: missed after {took_ms} ms");
        assert!(known && took_ms <= 200, "seed={seed}: {took_ms} ms");
        // It does not come back either.
        world.run(5 * SECOND);
        let back = world.reported(at, victim, |kind| *kind == EventKind::NodeUp);
        assert!(back.is_empty(), "seed={seed}");
        let repeated = |node| world.engine(node).counters().rejected(Reject::Repeated);
        assert!((0..victim).map(repeated).sum::<u64>() > 0);
        sound(&world);
    }
}

/// ZM-01: nodes of a later run with the same key, names and addresses report no node of an earlier run as up
/// or ended. Neither frames for them nor frames for any receiver cause that.
#[test]
fn recordings_of_an_earlier_run_revive_no_member() {
    let count = 8;
    let mut earlier = World::new(6);
    earlier.record(6);
    for index in 0..count {
        let config = earlier.config(&format!("node{index}"), Profile::Standard);
        earlier.add(config);
    }
    assert!(earlier.run_until(5 * SECOND, World::converged));
    earlier.rank(5, 3, muster_protocol::RankState::Failed);
    earlier.run(SECOND);
    earlier.crash(7);
    earlier.run(SECOND);
    // A node that restarts also requests contact.
    earlier.restart(6);
    earlier.run(SECOND);
    assert!(earlier.recording().len() > 1000);
    let mut later = World::new(7);
    later.run(3600 * SECOND);
    later.load_recording(7, &earlier.recording());
    for index in 0..count {
        let config = later.config(&format!("node{index}"), Profile::Standard);
        later.add(config);
        if index >= 2 {
            later.crash(index);
        }
    }
    let at = later.now();
    for node in 0..count {
        later.play(node, 20 * SECOND);
    }
    later.run(20 * SECOND);
    for ghost in 2..count {
        let told = later.reported(at, ghost, |_| true);
        assert!(told.is_empty(), "{ghost}: {told:?}");
    }
    for node in [0, 1] {
        assert_eq!(later.engine(node).live(), 2);
        let counters = later.engine(node).counters();
        assert!(counters.rejected(Reject::Misdirected) > 0);
        assert!(counters.rejected(Reject::Unproven) > 0);
    }
    sound(&later);
}

/// A member of a busy zone does not slow down under replayed frames, and sends hardly more: a replayed
/// request costs one small answer.
#[test]
fn recordings_cost_little() {
    let quiet = |plays: bool| {
        let mut world = World::new(9);
        world.record(9);
        for index in 0..8 {
            let config = world.config(&format!("node{index}"), Profile::Standard);
            world.add(config);
        }
        assert!(world.run_until(5 * SECOND, World::converged));
        world.run(SECOND);
        let before = world.bytes_sent_by_all();
        if plays {
            (0..8).for_each(|node| world.play(node, 10 * SECOND));
        }
        world.run(10 * SECOND);
        assert!(world.converged());
        sound(&world);
        world.bytes_sent_by_all() - before
    };
    let (without, with) = (quiet(false), quiet(true));
    println!("simulated: {without} bytes without, {with} with recordings played");
    assert!(with < 2 * without, "{with} of {without}");
}
