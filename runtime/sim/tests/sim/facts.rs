//! Facts that nodes state: rank states, launchers' reports, rails, unreachable peers; and the cost of all
//! this.

use muster_protocol::{CauseKind, EventKind, Input, NodeState, Profile, RankState, Reject, Told};
use muster_sim::World;

use crate::common::{MS, SECOND, booted, sound};

/// All members know a rank's end as soon as the network can carry it.
#[test]
fn a_rank_fact_reaches_all_members_at_once() {
    let mut world = booted(1, 32, Profile::Standard);
    let at = world.now();
    world.rank(4, 9, RankState::Failed);
    let changed = |kind: &EventKind| matches!(kind, EventKind::RankChanged { .. });
    assert!(world.run_until(SECOND, |world| world.reported(at, 4, changed).len() == 32));
    let took_us = world.now().since(at);
    println!("simulated: a rank's end known to 32 after {took_us} us (one way takes 30 to 200)");
    assert!(took_us < 1000);
    sound(&world);
}

/// Under loss, the latest fact of each rank reaches all members, late ones too.
#[test]
fn rank_facts_reach_all_under_loss() {
    let mut world = booted(2, 12, Profile::Standard);
    world.network.loss_permille = 150;
    for rank in 0..200 {
        world.rank(rank as usize % 12, rank, RankState::Alive);
    }
    world.run(20 * MS);
    for rank in 0..200 {
        let state = if rank % 3 == 0 {
            RankState::Failed
        } else {
            RankState::Hung
        };
        world.rank(rank as usize % 12, rank, state);
    }
    assert!(world.run_until(10 * SECOND, World::converged));
    world.network.loss_permille = 0;
    let config = world.config("late", Profile::Standard);
    world.add(config);
    assert!(world.run_until(2 * SECOND, World::converged));
    sound(&world);
}

/// The knowledge how a rank ended survives the agent that stated it. The node's next incarnation does not
/// state it, and all members still know it, including that incarnation and late members, until something else
/// is stated.
#[test]
fn how_a_rank_ended_outlives_the_agent_that_stated_it() {
    let mut world = booted(7, 6, Profile::Standard);
    world.rank(2, 7, RankState::Failed);
    world.rank(2, 8, RankState::Left);
    world.rank(2, 9, RankState::Alive);
    world.run(50 * MS);
    let known = |world: &World, observer: usize| -> Vec<(u32, RankState)> {
        let node = world.engine(observer).member(world.id(2)).unwrap();
        node.ranks().map(|fact| (fact.rank, fact.state)).collect()
    };
    let ends = [(7, RankState::Failed), (8, RankState::Left)];
    for life in 0..3 {
        world.restart(2);
        assert!(world.run_until(5 * SECOND, World::converged), "life {life}");
        (0..6).for_each(|node| assert_eq!(known(&world, node), ends, "life {life}"));
    }
    let config = world.config("late", Profile::Standard);
    let late = world.add(config);
    assert!(world.run_until(SECOND, World::converged));
    assert_eq!(known(&world, late), ends);
    world.rank(2, 7, RankState::Alive);
    world.run(50 * MS);
    let restated = [(7, RankState::Alive), (8, RankState::Left)];
    (0..6).for_each(|node| assert_eq!(known(&world, node), restated));
    sound(&world);
}

/// A launcher's report is sufficient on all members. The member concerned comes back if it runs.
#[test]
fn a_launcher_report_is_believed() {
    let mut world = booted(3, 8, Profile::Standard);
    let at = world.now();
    world.excuse(5);
    world
        .input(0, Input::Told(Told::NodeFailed { name: "node5" }))
        .unwrap();
    let unknown = world.input(0, Input::Told(Told::NodeFailed { name: "nobody" }));
    assert_eq!(unknown, Err(Reject::Unknown));
    assert!(world.run_until(2 * SECOND, |world| {
        world
            .reported(at, 5, |kind| *kind == EventKind::NodeFailed)
            .len()
            == 7
    }));
    let told = world
        .records()
        .iter()
        .rfind(|record| record.event.kind == EventKind::NodeFailed);
    assert_eq!(told.unwrap().event.cause.kind, CauseKind::Told);
    assert!(world.run_until(2 * SECOND, World::converged));
    assert_eq!(
        world
            .reported(at, 5, |kind| *kind == EventKind::Outcast)
            .len(),
        1
    );
    sound(&world);
}

/// A degraded rail is known locally and never leads to a failure.
#[test]
fn a_degraded_rail_is_local_knowledge() {
    let mut world = booted(4, 4, Profile::Standard);
    let (at, member) = (world.now(), world.id(2));
    world
        .input(
            0,
            Input::Degraded {
                member,
                degraded: true,
            },
        )
        .unwrap();
    world.run(SECOND);
    assert_eq!(
        world.engine(0).member(member).unwrap().state(),
        NodeState::Degraded
    );
    assert_eq!(
        world.engine(1).member(member).unwrap().state(),
        NodeState::Alive
    );
    world
        .input(
            0,
            Input::Degraded {
                member,
                degraded: false,
            },
        )
        .unwrap();
    let told = world.reported(at, 2, |kind| *kind == EventKind::NodeRecovered);
    assert_eq!(told.len(), 1);
    assert!(world.converged());
    sound(&world);
}

/// The fabric's report that a peer is unreachable starts an immediate probe, which does no harm if it is false. That
/// its process has ended is a reason to report it at once.
#[test]
fn unreachable_is_evidence_and_no_verdict() {
    let mut world = booted(5, 8, Profile::Standard);
    let at = world.now();
    let member = world.id(3);
    for node in [0, 1, 2] {
        world.input(node, Input::Unreachable(member)).unwrap();
    }
    world.run(SECOND);
    assert!(
        world
            .reported(at, 3, |kind| *kind == EventKind::NodeFailed)
            .is_empty()
    );
    let at = world.now();
    world.crash(3);
    for node in [0, 1, 2] {
        world.input(node, Input::Ended(member)).unwrap();
    }
    assert!(world.run_until(SECOND, World::converged));
    let took_us = world.now().since(at);
    assert!(took_us < 5 * MS, "{took_us} us");
    sound(&world);
}

/// ZM-06. A node with live ranks is not declared failed before its deadline because its agent was lost: the
/// ranks start the agent again. An agent without them has failed as soon as its process is known to have ended.
#[test]
fn an_agent_that_live_ranks_start_again_is_given_its_deadline() {
    for (state, early) in [(RankState::Alive, false), (RankState::Failed, true)] {
        let mut world = booted(5, 8, Profile::Standard);
        world.rank(3, 7, state);
        world.run(SECOND);
        let at = world.now();
        world.crash(3);
        let member = world.id(3);
        for node in (0..8).filter(|node| *node != 3) {
            world.input(node, Input::Unreachable(member)).unwrap();
            world.input(node, Input::Ended(member)).ok();
        }
        let failed = |world: &World| {
            world
                .reported(at, 3, |kind| *kind == EventKind::NodeFailed)
                .len()
        };
        // A millisecond for the news. Silence takes 40 ms at least: the deadline, minus a beat that had just arrived.
        for passed_us in [MS, 37 * MS] {
            world.run(passed_us);
            assert_eq!(failed(&world), if early { 7 } else { 0 }, "{state:?}");
        }
        assert!(world.run_until(SECOND, World::converged));
        assert!(failed(&world) > 0);
        sound(&world);
    }
}

/// B3 and B4 of the design, simulated: all survivors learn of a silent member.
#[test]
fn detection_of_silence_in_virtual_time() {
    for (name, profile, limit_ms) in [
        ("fast", Profile::Fast, 60),
        ("standard", Profile::Standard, 100),
    ] {
        for loss_permille in [0, 20] {
            let mut times = Vec::new();
            for seed in 0..60 {
                let mut world = booted(seed, 16, profile);
                world.network.loss_permille = loss_permille;
                world.run(seed * 1700);
                let at = world.now();
                world.crash(seed as usize % 16);
                assert!(world.run_until(SECOND, World::converged), "seed={seed}");
                times.push(world.now().since(at));
                sound(&world);
            }
            times.sort_unstable();
            let (p50, max) = (times[times.len() / 2] / MS, times[times.len() - 1] / MS);
            let p95 = times[times.len() * 95 / 100] / MS;
            println!(
                "simulated: {name}, loss {}%: silence known to all 15 survivors: p50 {p50} ms, \
                 p95 {p95} ms, max {max} ms of {} runs",
                loss_permille / 10,
                times.len()
            );
            assert!(loss_permille > 0 || max < limit_ms, "{name}: {max} ms");
        }
    }
}

/// B10 of the design, simulated: idle traffic, with 28 bytes of IP and UDP for each frame.
#[test]
fn idle_costs_few_bytes() {
    let mut world = booted(6, 16, Profile::Standard);
    world.run(5 * SECOND);
    let count = |world: &World| -> (u64, u64) {
        let frames = (0..16)
            .map(|node| world.engine(node).counters().frames_sent)
            .sum();
        ((0..16).map(|node| world.bytes_sent(node)).sum(), frames)
    };
    let before = count(&world);
    world.run(10 * SECOND);
    let after = count(&world);
    let frames = (after.1 - before.1) / 160;
    let bytes = (after.0 - before.0) / 160 + 28 * frames;
    println!("simulated: idle at standard, 16 members: {bytes} B/s and {frames} frames/s a member");
    assert!(bytes < 10_000, "{bytes} B/s");
}

/// B3 of the design, simulated: the same in views too large for direct pushes.
#[test]
fn detection_of_silence_in_larger_views() {
    let mut times = Vec::new();
    for seed in 0..6 {
        let mut world = booted(seed, 128, Profile::Standard);
        world.run(seed * 3300);
        let at = world.now();
        world.crash(seed as usize);
        assert!(world.run_until(SECOND, World::converged), "seed={seed}");
        times.push(world.now().since(at) / MS);
        sound(&world);
    }
    println!("simulated: 128 members, standard: silence known to all after {times:?} ms");
    assert!(times.iter().all(|ms| *ms < 100), "{times:?}");
}
