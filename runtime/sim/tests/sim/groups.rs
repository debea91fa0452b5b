//! Members of a group that fail together, and the sides of a split and their policy.

use muster_protocol::{CauseKind, EventKind, Input, Minority, NodeState, Profile, Told};
use muster_sim::World;

use crate::common::{MS, SECOND, sound};

/// Members, four to a rack, with this policy; booted and quiet.
fn racks(seed: u64, count: usize, minority: Minority) -> World {
    let mut world = World::new(seed);
    for index in 0..count {
        let mut config = world.config(&format!("node{index}"), Profile::Standard);
        config.group = format!("rack{}", index / 4);
        config.minority = minority;
        world.add(config);
    }
    assert!(world.run_until(5 * SECOND, World::converged), "seed={seed}");
    world.run(300 * MS);
    assert!(world.converged());
    world
}

/// The observer, and the nodes on its list, of every failed group that was reported since `from`.
fn told(world: &World, from: usize) -> Vec<(usize, Vec<usize>)> {
    let mut found = Vec::new();
    for record in &world.records()[from..] {
        if let EventKind::GroupFailed { number, failed, .. } = record.event.kind {
            let failure = world.engine(record.observer).group_failure(number).unwrap();
            assert_eq!(failure.members.len(), failed as usize);
            let listed = (0..world.len()).filter(|n| failure.members.contains(&world.id(*n)));
            found.push((record.observer, listed.collect()));
        }
    }
    found.sort();
    found
}

/// All members know every member's group, also after a restart into another one.
#[test]
fn the_group_travels_with_the_record() {
    let mut world = racks(1, 12, Minority::Continue);
    for observer in 0..12 {
        for node in 0..12 {
            let member = world.engine(observer).member(world.id(node)).unwrap();
            assert_eq!(member.group(), format!("rack{}", node / 4));
        }
    }
    world.resume_worker(5, MS);
    world.restart(7);
    assert!(world.run_until(SECOND, World::converged));
    assert_eq!(
        world.engine(0).member(world.id(5)).unwrap().group(),
        "rack1"
    );
    assert_eq!(
        world.engine(5).member(world.id(9)).unwrap().group(),
        "rack2"
    );
    sound(&world);
}

/// A rack loses its power: each failure is reported, then the rack, once, with the whole list.
#[test]
fn a_failed_rack_is_one_event_with_its_list() {
    for seed in 0..10 {
        let mut world = racks(seed, 16, Minority::Continue);
        let from = world.records().len();
        (4..8).for_each(|node| world.crash(node));
        world.run(2 * SECOND);
        let expected: Vec<_> = (0..16)
            .filter(|node| !(4..8).contains(node))
            .map(|observer| (observer, vec![4, 5, 6, 7]))
            .collect();
        assert_eq!(told(&world, from), expected, "seed={seed}");
        let single = world.records()[from..].iter();
        let single = single.filter(|record| record.event.kind == EventKind::NodeFailed);
        assert_eq!(single.count(), 12 * 4, "seed={seed}");
        sound(&world);
    }
}

/// Half of a rack is reported when the window closes. A single failure never is, nor are two at different
/// times.
#[test]
fn few_or_separate_failures_are_no_group() {
    let mut world = racks(3, 16, Minority::Continue);
    let from = world.records().len();
    world.crash(0);
    world.run(2 * SECOND);
    world.crash(1);
    world.run(2 * SECOND);
    assert_eq!(told(&world, from), []);
    let from = world.records().len();
    [4, 5, 8, 12].into_iter().for_each(|node| world.crash(node));
    world.run(2 * SECOND);
    let expected: Vec<_> = world
        .running()
        .into_iter()
        .map(|n| (n, vec![4, 5]))
        .collect();
    assert_eq!(told(&world, from), expected);
    sound(&world);
}

/// A launcher's report about two nodes of a rack is a group failure too; a new incarnation is none.
#[test]
fn reported_failures_count_and_restarts_do_not() {
    let mut world = racks(4, 8, Minority::Continue);
    let from = world.records().len();
    [0, 1, 2, 3]
        .into_iter()
        .for_each(|node| world.restart(node));
    assert!(world.run_until(2 * SECOND, World::converged));
    world.run(SECOND);
    assert_eq!(told(&world, from), []);
    let from = world.records().len();
    for node in [0, 1] {
        world.crash(node);
        let name = format!("node{node}");
        let told = Told::NodeFailed { name: &name };
        world.input(7, Input::Told(told)).unwrap();
    }
    world.run(SECOND);
    let expected: Vec<_> = (2..8).map(|observer| (observer, vec![0, 1])).collect();
    assert_eq!(told(&world, from), expected);
    sound(&world);
}

fn is_minority(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Minority { .. })
}

fn is_majority(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Majority { .. })
}

/// Cuts off the first nodes for a time, then heals.
fn split(world: &mut World, few: usize, duration_us: u64) {
    let (left, right): (Vec<usize>, Vec<usize>) = (0..world.len()).partition(|node| *node < few);
    world.split(&left, &right);
    world.run(duration_us);
}

/// Policy hold: the smaller side keeps the larger one in its view as suspects and reports this. After the
/// healing it comes back; the larger side goes on.
#[test]
fn the_smaller_side_holds_and_comes_back() {
    for (seed, few) in (0..12).map(|seed| (seed, 1 + seed as usize % 5)) {
        let mut world = racks(seed, 12, Minority::Hold);
        let at = world.now();
        split(&mut world, few, 3 * SECOND);
        for observer in 0..few {
            assert_eq!(world.engine(observer).live(), 12, "{observer}, seed={seed}");
            assert_eq!(
                world.reported(at, observer, is_minority).len(),
                1,
                "seed={seed}"
            );
        }
        for observer in few..12 {
            assert_eq!(world.engine(observer).live(), 12 - few, "seed={seed}");
            assert!(
                world.reported(at, observer, is_minority).is_empty(),
                "seed={seed}"
            );
        }
        for node in few..12 {
            let failed = world.reported(at, node, |kind| *kind == EventKind::NodeFailed);
            assert_eq!(
                failed,
                [],
                "node {node} declares members failed, seed={seed}"
            );
        }
        world.network.heal();
        assert!(
            world.run_until(20 * SECOND, World::converged),
            "seed={seed}"
        );
        world.run(SECOND);
        for observer in 0..few {
            assert_eq!(
                world.reported(at, observer, is_majority).len(),
                1,
                "seed={seed}"
            );
        }
        sound(&world);
    }
}

/// Policy hold, two halves: exactly one of them goes on, the one with the first member on the ring.
#[test]
fn one_of_two_halves_holds() {
    for seed in 0..8 {
        let mut world = racks(seed, 8, Minority::Hold);
        split(&mut world, 4, 3 * SECOND);
        let first = (0..8).min_by_key(|node| world.id(*node)).unwrap();
        for observer in 0..8 {
            let is_heavier = (observer < 4) == (first < 4);
            let expected = if is_heavier { 4 } else { 8 };
            assert_eq!(world.engine(observer).live(), expected, "seed={seed}");
        }
        world.network.heal();
        assert!(
            world.run_until(20 * SECOND, World::converged),
            "seed={seed}"
        );
        sound(&world);
    }
}

/// Policy hold, three parts smaller than half: no member declares another one failed, and all recover.
#[test]
fn three_small_parts_all_hold() {
    let mut world = racks(5, 12, Minority::Hold);
    let at = world.now();
    for part in [0..4, 4..8, 8..12] {
        let inside: Vec<usize> = part.clone().collect();
        let outside: Vec<usize> = (0..12).filter(|node| !part.contains(node)).collect();
        world.split(&inside, &outside);
    }
    world.run(3 * SECOND);
    world.network.heal();
    assert!(world.run_until(20 * SECOND, World::converged));
    for node in 0..12 {
        let failed = world.reported(at, node, |kind| *kind == EventKind::NodeFailed);
        assert_eq!(failed, []);
        assert_eq!(world.engine(node).counters().outcasts, 0);
        assert_eq!(world.reported(at, node, is_minority).len(), 1);
    }
    world.run(SECOND);
    for node in 0..12 {
        assert_eq!(
            world.reported(at, node, is_majority).len(),
            1,
            "node {node}"
        );
    }
    sound(&world);
}

/// Policy hold: members that really died are declared failed as usual, also when polls are lost now and then.
/// A member with a launcher's report of the others' death believes it without a majority.
#[test]
fn a_majority_declares_failures_and_a_launcher_is_believed() {
    for seed in 0..10 {
        let mut world = racks(seed, 8, Minority::Hold);
        world.network.loss_permille = 100;
        (0..3).for_each(|node| world.crash(node));
        assert!(world.run_until(2 * SECOND, World::converged), "seed={seed}");
        sound(&world);
    }
    let mut world = racks(6, 6, Minority::Hold);
    (0..4).for_each(|node| world.crash(node));
    world.run(2 * SECOND);
    assert_eq!(world.engine(5).live(), 6);
    assert_eq!(
        world.engine(5).member(world.id(0)).unwrap().state(),
        NodeState::Suspect
    );
    for node in 0..4 {
        let name = format!("node{node}");
        let told = Told::NodeFailed { name: &name };
        world.input(4, Input::Told(told)).unwrap();
    }
    assert!(world.run_until(SECOND, World::converged));
    assert_eq!(world.engine(5).live(), 2);
    assert_eq!(
        world.engine(5).member(world.id(0)).unwrap().cause(),
        CauseKind::Told
    );
    sound(&world);
}

/// Policy continue: the smaller side reports that it is the minority, goes on, and reports when that is over.
#[test]
fn the_smaller_side_goes_on_and_reports_it() {
    for (seed, few) in (0..12).map(|seed| (seed, 1 + seed as usize % 5)) {
        let mut world = racks(seed, 12, Minority::Continue);
        let at = world.now();
        split(&mut world, few, 3 * SECOND);
        for observer in 0..12 {
            let expected = if observer < few { few } else { 12 - few };
            assert_eq!(world.engine(observer).live(), expected, "seed={seed}");
            let told = world.reported(at, observer, is_minority).len();
            assert_eq!(told, usize::from(observer < few), "{observer}, seed={seed}");
        }
        world.network.heal();
        assert!(
            world.run_until(20 * SECOND, World::converged),
            "seed={seed}"
        );
        world.run(SECOND);
        for observer in 0..few {
            assert_eq!(
                world.reported(at, observer, is_majority).len(),
                1,
                "seed={seed}"
            );
        }
        sound(&world);
    }
}
