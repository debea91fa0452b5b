//! Overload: zones whose members cannot handle datagrams as fast as they arrive. No member may be declared
//! failed for that.

use crate::common::{MS, SECOND};
use muster_protocol::{EventKind, Profile};
use muster_sim::{Cpus, Network, World};

/// A zone whose members start at once; each knows the next one, and all know the first.
fn starting(seed: u64, count: usize, service_us: u64) -> World {
    let mut world = World::new(seed);
    world.network = Network::with_round_trip(1000);
    world.cpus = Cpus {
        service_us,
        shared_by: 2,
        ..Cpus::default()
    };
    for index in 0..count {
        let mut config = world.config(&format!("node{index}"), Profile::Standard);
        let next = (index + 1) % count;
        let next = format!("address-{next}").into_bytes();
        config.seeds = vec![next, b"address-0".to_vec()];
        world.add(config);
    }
    world
}

/// The members that were declared failed, and by how many others.
fn failed(world: &World) -> Vec<(usize, usize)> {
    let failures = world.records().iter();
    let failures = failures.filter(|record| record.event.kind == EventKind::NodeFailed);
    let mut counts = vec![0; world.len()];
    for record in failures {
        let who = (0..world.len()).find(|node| world.id(*node) == record.event.member);
        who.into_iter().for_each(|who| counts[who] += 1);
    }
    let counts = counts.into_iter().enumerate();
    counts.filter(|(_, count)| *count > 0).collect()
}

/// ZM-03, ZM-06: a member that all others contact at once answers each one at once, with a part of its view.
/// In an earlier version it sent everything to each, for longer than a deadline, while its neighbours waited
/// for a sign of life.
#[test]
fn a_member_that_all_contact_at_once_is_not_declared_failed() {
    for seed in 1..=4 {
        let mut world = starting(seed, 128, 200);
        let whole = world.run_until(5 * SECOND, World::agrees);
        world.run(300 * MS);
        assert_eq!(failed(&world), [], "seed={seed}");
        assert!(whole && world.agrees(), "seed={seed}");
        crate::common::sound(&world);
    }
}

/// ZM-06: a member that stops for good is detected even while the zone is overloaded.
#[test]
fn silence_is_detected_in_an_overloaded_zone() {
    for seed in 1..=3 {
        let mut world = starting(seed, 64, 200);
        world.run(20 * MS);
        world.crash(7);
        let whole = world.run_until(3 * SECOND, World::agrees);
        assert!(whole, "seed={seed}");
        let others: Vec<_> = failed(&world)
            .into_iter()
            .filter(|(who, _)| *who != 7)
            .collect();
        assert_eq!(others, [], "seed={seed}");
    }
}
