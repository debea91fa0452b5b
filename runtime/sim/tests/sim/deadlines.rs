//! Deadlines follow each neighbour's own beats: a neighbour with irregular beats gets more time, one with
//! regular beats is missed as soon as the profile says.

use muster_protocol::{EventKind, NodeState, Profile};
use muster_sim::World;

use crate::common::{MS, SECOND, booted, sound};

fn suspicions(world: &World, since: muster_protocol::Instant) -> usize {
    world
        .records()
        .iter()
        .filter(|record| record.event.at >= since)
        .filter(|record| {
            matches!(
                record.event.kind,
                EventKind::NodeSuspect | EventKind::NodeFailed
            )
        })
        .count()
}

/// A zone whose delays gradually grow to up to three heartbeats, and the number of suspicions in the minute
/// after that.
fn jittery(seed: u64, deadline_slack_us: Option<u64>) -> (World, usize) {
    let mut world = World::new(seed);
    for index in 0..12 {
        let mut config = world.config(&format!("node{index}"), Profile::Standard);
        config.deadline_slack_us = deadline_slack_us.unwrap_or(config.deadline_slack_us);
        world.add(config);
    }
    assert!(world.run_until(5 * SECOND, World::converged));
    world.run(SECOND);
    for delay_max_ms in [30, 50, 60] {
        world.network.delay_max_us = delay_max_ms * MS;
        world.run(5 * SECOND);
    }
    let at = world.now();
    world.run(60 * SECOND);
    let accusations = suspicions(&world, at);
    (world, accusations)
}

/// Section 5 of the design: a neighbour with irregular beats is known to have them, and hardly ever
/// suspected.
#[test]
fn neighbours_with_jitter_are_not_suspected_once_they_are_known() {
    let (mut fixed, mut adaptive) = (0, 0);
    for seed in 0..3 {
        fixed += jittery(seed, Some(0)).1;
        let (mut world, accusations) = jittery(seed, None);
        adaptive += accusations;
        let (engine, mut known) = (world.engine(0), 0);
        for neighbour in engine.observing() {
            let deadline_us = engine.deadline_us(neighbour);
            assert!((60 * MS..=240 * MS).contains(&deadline_us), "{deadline_us}");
            // From a neighbour that is observed only since a moment ago, no beat has arrived yet.
            let arrivals = engine.arrivals(neighbour).unwrap();
            known += usize::from(arrivals.mean_us() > 0);
            assert!(arrivals.mean_us() == 0 || arrivals.deviation_us() > 5 * MS);
        }
        assert!(known >= 2);
        // Their death is still detected.
        let victim = world.running()[5];
        world.crash(victim);
        assert!(world.run_until(2 * SECOND, |world| {
            let id = world.id(victim);
            world
                .running()
                .iter()
                .all(|node| world.engine(*node).member(id).unwrap().state() == NodeState::Failed)
        }));
        sound(&world);
    }
    println!("simulated: {fixed} suspicions with fixed deadlines, {adaptive} with adaptive ones");
    assert!(adaptive * 20 <= fixed, "{adaptive} of {fixed}");
}

/// Section 5 of the design: a neighbour with regular beats has the profile's deadline, and is missed by it.
#[test]
fn a_steady_neighbour_is_missed_at_the_deadline_of_the_profile() {
    let mut world = booted(9, 12, Profile::Standard);
    world.run(20 * SECOND);
    for node in world.running() {
        let engine = world.engine(node);
        for neighbour in engine.observing() {
            assert_eq!(engine.deadline_us(neighbour), 60 * MS);
        }
    }
    let at = world.now();
    world.crash(4);
    assert!(world.run_until(SECOND, World::converged));
    let told = world.reported(at, 4, |kind| *kind == EventKind::NodeFailed);
    assert_eq!(told.len(), 11);
    for (_, when) in told {
        assert!(when.since(at) <= 85 * MS, "{} us", when.since(at));
    }
    sound(&world);
}
