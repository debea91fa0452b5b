//! Attributes in simulated worlds: all members read what each member wrote, in the order of the writes,
//! whatever the network and the faults do. While no member writes, no member sends attributes.

use std::collections::BTreeMap;

use crate::common::{MS, SECOND, booted, sound};
use muster_protocol::{
    EventKind, Input, MAP_BYTES_MAX, MONITOR_KEY, NodeState, Profile, Reject, VALUE_MAX,
};
use muster_sim::{NodeIndex, World};

fn publish(world: &mut World, node: NodeIndex, key: &[u8], value: &[u8]) {
    let input = Input::Publish { key, value };
    world.input(node, input).expect("a value within the limits");
}

fn withdraw(world: &mut World, node: NodeIndex, key: &[u8]) {
    world
        .input(node, Input::Withdraw { key })
        .expect("a key that exists");
}

/// Whether every running member holds every running member's map as its writer does.
fn replicated(world: &World) -> bool {
    let running = world.running();
    running.iter().all(|writer| {
        let own = world.engine(*writer);
        running.iter().all(|reader| {
            let engine = world.engine(*reader);
            engine.attributes_version(own.id()) == own.attributes_version(own.id())
                && engine.attributes(own.id()).eq(own.attributes(own.id()))
        })
    })
}

fn settle(world: &mut World, what: &str) {
    let done = world.run_until(20 * SECOND, |world| world.converged() && replicated(world));
    assert!(done, "{what}: not all replicas are equal");
}

/// Checks that each observer reports growing versions for one incarnation of one member. A worker that takes
/// over starts anew, so worlds with worker changes count from there.
fn in_order(world: &World) -> Result<(), String> {
    let mut last = BTreeMap::new();
    for record in world.records() {
        let event = &record.event;
        let pair = (record.observer, event.member);
        match event.kind {
            EventKind::AttributeChanged { version, .. } => {
                let life = (event.version.incarnation, version);
                let held = last.insert(pair, life);
                if held.is_some_and(|held| held > life) {
                    return Err(format!("{record:?} after {held:?}"));
                }
            }
            EventKind::NodeUp => {
                last.remove(&pair);
            }
            _ => {}
        }
    }
    Ok(())
}

fn counter(world: &World, node: NodeIndex, name: &str) -> u64 {
    let mut found = None;
    world.engine(node).counters().each(|each, value| {
        if each == name {
            found = Some(value);
        }
    });
    found.expect("a counter of that name")
}

/// ZM-11: written once, read on all members, reported once on each.
#[test]
fn all_members_read_what_one_writes() {
    let mut world = booted(1, 16, Profile::Standard);
    let start = world.now();
    publish(&mut world, 3, b"color", b"red");
    settle(&mut world, "one value");
    assert!(
        world.now().since(start) < 20 * MS,
        "at once, not at a later tick"
    );
    let id = world.id(3);
    for node in 0..16 {
        assert_eq!(
            world.engine(node).attribute(id, b"color"),
            Some(&b"red"[..])
        );
    }
    let told = world.reported(start, 3, |kind| {
        matches!(kind, EventKind::AttributeChanged { .. })
    });
    assert_eq!(told.len(), 16);
    withdraw(&mut world, 3, b"color");
    settle(&mut world, "one deletion");
    assert_eq!(world.engine(9).attribute(id, b"color"), None);
    sound(&world);
    assert_eq!(in_order(&world), Ok(()));
}

/// ZM-11: zero traffic when idle. While no member writes, members send only beats.
#[test]
fn no_attributes_are_sent_while_no_member_writes() {
    let mut world = booted(2, 24, Profile::Standard);
    for node in 0..24 {
        publish(&mut world, node, b"k", &[node as u8; 3000]);
    }
    settle(&mut world, "every member's value");
    world.run(300 * MS);
    let names = [
        "news_sent",
        "attribute_requests_sent",
        "attribute_replies_sent",
    ];
    let sum = |world: &World| -> Vec<u64> {
        let nodes = 0..24;
        names
            .iter()
            .map(|name| nodes.clone().map(|node| counter(world, node, name)).sum())
            .collect()
    };
    let before = sum(&world);
    world.run(10 * SECOND);
    assert_eq!(sum(&world), before);
    sound(&world);
}

/// ZM-11: few duplicates. A value is sent to each member about once, not once per link.
#[test]
fn a_value_is_sent_to_each_member_about_once() {
    let mut world = booted(3, 32, Profile::Standard);
    let sum = |world: &World| -> u64 { (0..32).map(|node| world.bytes_sent(node)).sum() };
    let idle = {
        let before = sum(&world);
        world.run(200 * MS);
        sum(&world) - before
    };
    let before = sum(&world);
    publish(&mut world, 0, b"large", &[7; VALUE_MAX]);
    world.run(200 * MS);
    assert!(replicated(&world));
    let used = sum(&world) - before - idle;
    let least = 31 * VALUE_MAX as u64;
    assert!(
        used < least * 5 / 4,
        "{used} bytes where {least} are needed"
    );
}

/// ZM-11: the largest value arrives complete over a network that loses and reorders every third datagram. No
/// member sees it before it is complete.
#[test]
fn a_large_value_is_seen_complete_or_not_at_all() {
    let mut world = booted(4, 6, Profile::Standard);
    world.network.loss_permille = 150;
    world.network.reorder_permille = 300;
    world.network.reorder_us = 2000;
    let value: Vec<u8> = (0..VALUE_MAX).map(|at| (at * 31 % 251) as u8).collect();
    publish(&mut world, 0, b"small", b"1");
    publish(&mut world, 0, b"large", &value);
    let id = world.id(0);
    let all = world.run_until(20 * SECOND, |world| {
        for node in 1..6 {
            let seen = world.engine(node).attribute(id, b"large");
            assert!(seen.is_none_or(|seen| seen == value));
        }
        replicated(world)
    });
    assert!(all);
    assert_eq!(in_order(&world), Ok(()));
}

/// ZM-11: a map exists as long as its writer's incarnation; the next one starts with an empty map.
#[test]
fn a_map_ends_with_its_writer_and_a_new_incarnation_starts_empty() {
    let mut world = booted(5, 8, Profile::Standard);
    let id = world.id(2);
    publish(&mut world, 2, b"old", b"1");
    settle(&mut world, "the first incarnation");
    world.crash(2);
    world.run(SECOND);
    for node in world.running() {
        assert_eq!(world.engine(node).attributes(id).count(), 0);
        assert_eq!(world.engine(node).attribute_bytes(), 0);
    }
    world.restart(2);
    settle(&mut world, "the second incarnation");
    publish(&mut world, 2, b"new", b"2");
    settle(&mut world, "its first value");
    assert_eq!(world.engine(0).attribute(id, b"old"), None);
    assert_eq!(world.engine(0).attribute(id, b"new"), Some(&b"2"[..]));
}

/// ZM-11: a newcomer gets all attributes. A worker that takes over has the node's own map, and a write that
/// its predecessor lost is withdrawn on all members.
#[test]
fn newcomers_and_new_workers_have_what_the_others_have() {
    let mut world = booted(6, 8, Profile::Standard);
    for node in 0..8 {
        publish(&mut world, node, b"a", &[node as u8; 2000]);
    }
    settle(&mut world, "before");
    let config = world.config("late", Profile::Standard);
    let late = world.add(config);
    settle(&mut world, "a newcomer");
    assert_eq!(world.engine(late).attributes(world.id(5)).count(), 1);
    world.resume_worker(4, 5 * MS);
    world.run(10 * MS);
    settle(&mut world, "a new worker");
    let own = world.id(4);
    assert_eq!(world.engine(4).attribute(own, b"a"), Some(&[4; 2000][..]));
    publish(&mut world, 4, b"b", b"after");
    settle(&mut world, "its first write");
    sound(&world);
}

/// ZM-11: a member that missed more deletions than are remembered still catches up.
#[test]
fn a_member_that_missed_more_deletions_than_are_remembered_catches_up() {
    let mut world = booted(7, 6, Profile::Quiet);
    for number in 0..100_u32 {
        publish(&mut world, 0, &number.to_le_bytes(), b"here");
    }
    settle(&mut world, "a hundred keys");
    // Shorter than the deadline: no member is declared failed, but many writes are missed.
    world.isolate(5);
    for number in 0..99_u32 {
        withdraw(&mut world, 0, &number.to_le_bytes());
    }
    publish(&mut world, 0, b"new", b"value");
    world.run(300 * MS);
    assert_eq!(world.engine(5).attributes(world.id(0)).count(), 100);
    world.network.heal();
    settle(&mut world, "after the cut");
    assert_eq!(world.engine(5).attributes(world.id(0)).count(), 2);
    assert_eq!(in_order(&world), Ok(()));
    // A minute later no record of a deletion is left, and a newcomer still gets everything.
    world.run(70 * SECOND);
    let config = world.config("late", Profile::Quiet);
    world.add(config);
    settle(&mut world, "a newcomer");
}

/// Limits are errors that name the value and the limit, and change nothing.
#[test]
fn limits_are_errors_and_nothing_was_written() {
    let mut world = booted(8, 3, Profile::Standard);
    let long = vec![0; VALUE_MAX + 1];
    let refused = [
        (&b""[..], &b"v"[..], Reject::KeyLength),
        (&[1; 256], b"v", Reject::KeyLength),
        (b"k", &long, Reject::ValueLength),
    ];
    for (key, value, expected) in refused {
        let result = world.input(0, Input::Publish { key, value });
        assert_eq!(result, Err(expected));
    }
    let id = world.id(0);
    assert_eq!(world.engine(0).attributes_version(id), 0);
    let mut written = 0;
    let full = loop {
        let key = u64::to_le_bytes(written);
        let value = &long[..VALUE_MAX];
        match world.input(0, Input::Publish { key: &key, value }) {
            Ok(()) => written += 1,
            Err(full) => break full,
        }
    };
    assert_eq!((full, written), (Reject::MapFull, 15));
    assert!(full.to_string().contains("1 MiB"), "{full}");
    let missing = world.input(0, Input::Withdraw { key: b"none" });
    assert_eq!(missing, Err(Reject::Unknown));
    settle(&mut world, "a full map");
    assert!(world.engine(1).attribute_bytes() <= MAP_BYTES_MAX);
}

/// A value that does not fit into an engine is refused and counted, and taken when there is room.
#[test]
fn a_value_that_does_not_fit_is_refused_and_taken_when_there_is_room() {
    let mut world = World::new(9);
    for index in 0..8 {
        let mut config = world.config(&format!("node{index}"), Profile::Standard);
        config.attribute_bytes_max = 4 * MAP_BYTES_MAX;
        world.add(config);
    }
    settle(&mut world, "boot");
    for node in 0..6 {
        for key in 0..14_u8 {
            publish(&mut world, node, &[key], &[key; VALUE_MAX]);
        }
    }
    world.run(3 * SECOND);
    for node in 0..8 {
        assert!(world.engine(node).attribute_bytes() <= 4 * MAP_BYTES_MAX);
        assert!(counter(&world, node, "attributes_refused") > 0);
    }
    let before = counter(&world, 7, "attribute_requests_sent");
    world.run(5 * SECOND);
    assert_eq!(
        counter(&world, 7, "attribute_requests_sent"),
        before,
        "no member requests it"
    );
    for node in 0..3 {
        world.crash(node);
    }
    world.run(5 * SECOND);
    assert!(replicated(&world));
}

/// ZM-10: a monitor, declared by an attribute, learns of a silence from the reporters directly.
#[test]
fn a_monitor_receives_suspicions_from_the_reporters() {
    let mut world = booted(10, 64, Profile::Standard);
    publish(&mut world, 40, MONITOR_KEY, b"1");
    settle(&mut world, "the declaration");
    for node in 0..64 {
        let monitors: Vec<_> = world.engine(node).monitors().collect();
        assert_eq!(monitors, [world.id(40)]);
    }
    let start = world.now();
    world.crash(11);
    let id = world.id(11);
    assert!(world.run_until(SECOND, |world| {
        let member = world.engine(40).member(id);
        member.is_some_and(|member| member.state() == NodeState::Failed)
    }));
    // The monitor has the first report one network delay after it was sent.
    let suspected = world.reported(start, 11, |kind| {
        matches!(kind, EventKind::NodeSuspect | EventKind::NodeFailed)
    });
    let first = suspected
        .iter()
        .map(|(_, at)| *at)
        .min()
        .expect("a member reported");
    let monitor = suspected
        .iter()
        .find(|(by, _)| *by == 40)
        .expect("the monitor received a report");
    assert!(
        monitor.1.since(first) <= 200,
        "one network delay, not several"
    );
    withdraw(&mut world, 40, MONITOR_KEY);
    settle(&mut world, "the failure");
    assert_eq!(world.engine(3).monitors().count(), 0);
}

/// ZM-14, within one zone: a monitor detects that another one dies and that it is back. The returned one is a
/// monitor again and receives later reports.
#[test]
fn a_monitor_detects_that_another_one_died_and_came_back() {
    let mut world = booted(12, 64, Profile::Standard);
    for monitor in [40, 41] {
        publish(&mut world, monitor, MONITOR_KEY, b"1");
    }
    settle(&mut world, "the declarations");
    let (died, id) = (world.now(), world.id(41));
    let before = world.engine(40).member(id).expect("a member").version();
    world.crash(41);
    let is_failed = |world: &World| {
        let member = world.engine(40).member(id);
        member.is_some_and(|member| member.state() == NodeState::Failed)
    };
    assert!(world.run_until(SECOND, is_failed));
    assert!(world.run_until(SECOND, World::converged));
    assert_eq!(
        world.engine(40).monitors().count(),
        1,
        "it is no monitor any more"
    );

    let back = world.now();
    world.restart(41);
    assert!(world.run_until(SECOND, World::converged));
    let returned = world.reported(back, 41, |kind| *kind == EventKind::NodeUp);
    assert_eq!(returned.iter().filter(|(by, _)| *by == 40).count(), 1);
    let member = world.engine(40).member(id).expect("a member again");
    assert!(member.version().incarnation > before.incarnation);
    assert!(
        world
            .reported(died, 40, |kind| *kind == EventKind::NodeFailed)
            .is_empty()
    );

    publish(&mut world, 41, MONITOR_KEY, b"1");
    settle(&mut world, "the declaration of its new incarnation");
    let start = world.now();
    world.crash(11);
    assert!(world.run_until(SECOND, World::converged));
    let suspected = world.reported(start, 11, |kind| {
        matches!(kind, EventKind::NodeSuspect | EventKind::NodeFailed)
    });
    let first = suspected.iter().map(|(_, at)| *at).min();
    let first = first.expect("a member reported");
    for monitor in [40, 41] {
        let heard = suspected.iter().find(|(by, _)| *by == monitor);
        let (_, at) = heard.expect("the monitor received a report");
        assert!(at.since(first) <= 200, "one network delay, not several");
    }
}

/// ZM-11: two hundred worlds drawn from their seeds.
#[test]
fn two_hundred_worlds_end_with_equal_replicas() {
    let mut failed = Vec::new();
    let number = |name| {
        let text = std::env::var(name).ok();
        text.and_then(|text: String| text.parse::<u64>().ok())
    };
    let seeds = match number("MUSTER_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("MUSTER_SIM_SEEDS").unwrap_or(200),
    };
    for seed in seeds {
        if let Err(what) = random_world(seed) {
            println!("{what}\nreproduce with MUSTER_SIM_SEED={seed}");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "seeds {failed:?}");
}

fn random_world(seed: u64) -> Result<(), String> {
    let members = 3 + (seed % 10) as usize;
    let mut world = World::booted(seed, members, Profile::Standard);
    world.network.loss_permille = world.chance().between(0, 100) as u32;
    world.network.duplicate_permille = world.chance().between(0, 50) as u32;
    world.network.reorder_permille = world.chance().between(0, 200) as u32;
    world.network.reorder_us = world.chance().between(100, 5000);
    let mut handed_over = false;
    for _ in 0..60 {
        let gap_us = world.chance().between(0, 20 * MS);
        world.run(gap_us);
        let node = world.chance().between(0, members as u64 - 1) as usize;
        if !world.running().contains(&node) {
            world.restart(node);
            continue;
        }
        match world.chance().between(0, 39) {
            0 if world.running().len() > 2 => world.crash(node),
            1 => world.restart(node),
            2 => {
                world.resume_worker(node, 2 * MS);
                handed_over = true;
            }
            3 => {
                world.isolate(node);
                let gap_us = world.chance().between(0, 300 * MS);
                world.run(gap_us);
                world.network.heal();
            }
            4..=8 => {
                let key = [world.chance().between(0, 5) as u8];
                world.input(node, Input::Withdraw { key: &key }).ok();
            }
            _ => {
                let key = [world.chance().between(0, 5) as u8];
                let length = match world.chance().between(0, 9) {
                    0 => world.chance().between(1000, VALUE_MAX as u64),
                    _ => world.chance().between(0, 200),
                };
                let value = vec![world.chance().between(0, 255) as u8; length as usize];
                publish(&mut world, node, &key, &value);
            }
        }
    }
    for node in 0..members {
        if !world.running().contains(&node) {
            world.restart(node);
        }
    }
    if !world.run_until(20 * SECOND, |world| world.converged() && replicated(world)) {
        return Err("replicas differ in the end".to_owned());
    }
    let most = (0..members)
        .map(|node| world.engine(node).attribute_bytes())
        .max();
    let bound = members * 6 * (VALUE_MAX + 65);
    if most.is_none_or(|most| most > bound) {
        return Err(format!("{most:?} bytes held where {bound} suffice"));
    }
    if !handed_over {
        in_order(&world)?;
    }
    match world.checker.violations() {
        [] => Ok(()),
        broken => Err(format!("{broken:#?}")),
    }
}
