//! Carried gossip through the engine's interface (BG-03): a host offers what is written ahead, messages
//! take it, and the rest is sent as datagrams.

use super::carried::{GOSSIP_AHEAD_MAX, GOSSIP_AHEAD_MEMBERS_MAX};
use super::tests::{INTERVAL_US, KEY, World, acquaint, config, nid};
use super::{Age, AgeConfig};
use muster_wire::event::EventKind;
use muster_wire::frame::{self, Kind};
use muster_wire::identity::MemberId;
use muster_wire::interface::Input;
use muster_wire::reject::Reject;

use std::collections::VecDeque;

/// Steps of a cycle.
const STEPS: u64 = 40;

/// What a host offers for a member, and whether a message has taken it.
#[derive(Clone, Default)]
struct Piggyback {
    to: Option<MemberId>,
    bytes: Vec<u8>,
    is_taken: bool,
}

fn riders(count: usize, permille: u16) -> World {
    World::new((0..count).map(|own| AgeConfig {
        piggyback_permille: Some(permille),
        ..config(own, count)
    }))
}

/// The fate of what messages have taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    HandedOver,
    /// The receiver's program drops it.
    Dropped,
    /// It waits in MPI's queue for this many cycles.
    Late(u64),
}

/// Runs for some cycles; `talk` returns the senders and receivers of messages in each step.
fn ride(world: &mut World, cycles: u64, talk: impl Fn(&World) -> Vec<(usize, usize)>) {
    ride_to(Fate::HandedOver, world, cycles, talk);
}

fn ride_to(
    fate: Fate,
    world: &mut World,
    cycles: u64,
    talk: impl Fn(&World) -> Vec<(usize, usize)>,
) {
    let mut queue = VecDeque::new();
    let mut piggybacks = vec![Piggyback::default(); world.engines.len()];
    for step in 0..cycles * STEPS {
        world.now = world.now.after(INTERVAL_US / STEPS);
        for (own, piggyback) in piggybacks.iter_mut().enumerate() {
            if world.engines[own].is_some() {
                step_of(world, own, piggyback);
            }
        }
        for (from, to) in talk(world) {
            if world.engines[from].is_some() && world.engines[to].is_some() {
                let taken = take_along(&mut piggybacks[from], to);
                let after = match fate {
                    Fate::HandedOver => 0,
                    Fate::Dropped => continue,
                    Fate::Late(cycles) => cycles * STEPS,
                };
                queue.extend(taken.map(|bytes| (step + after, to, bytes)));
            }
        }
        while queue.front().is_some_and(|(at, ..)| *at <= step) {
            let (_, to, bytes) = queue.pop_front().expect("it was there");
            hand_over(world, to, &bytes);
        }
    }
}

/// The host of this engine, in one step.
fn step_of(world: &mut World, own: usize, piggyback: &mut Piggyback) {
    let now = world.now;
    if world.engine(own).next_ping() <= now {
        if let Some(member) = piggyback.to.take().filter(|_| piggyback.is_taken) {
            let age_us = 0;
            world
                .input(own, Input::TrafficTo { member, age_us })
                .unwrap();
        }
        *piggyback = Piggyback::default();
    }
    world.input(own, Input::Wake).unwrap();
    world.drain(own);
    if piggyback.to.is_some() {
        return;
    }
    if let Some(to) = world.engine(own).draw_ahead(now) {
        let mut buffer = [0; GOSSIP_AHEAD_MAX];
        let size = world.engine(own).write_ahead(now, to, &mut buffer).unwrap();
        *piggyback = Piggyback {
            to: Some(to),
            bytes: buffer[..size].to_vec(),
            is_taken: false,
        };
    }
}

/// A message takes what is offered for its receiver.
fn take_along(piggyback: &mut Piggyback, to: usize) -> Option<Vec<u8>> {
    let is_there = piggyback.to == Some(MemberId::of(&nid(to))) && !piggyback.is_taken;
    piggyback.is_taken |= is_there;
    is_there.then(|| piggyback.bytes.clone())
}

fn hand_over(world: &mut World, to: usize, bytes: &[u8]) {
    if world.engines[to].is_some() {
        let age_us = 0;
        world.input(to, Input::Carried { bytes, age_us }).unwrap();
        world.drain(to);
    }
}

/// All members send messages to all others all the time.
fn all_to_all(world: &World) -> Vec<(usize, usize)> {
    let count = world.engines.len();
    let others = |own| (0..count).filter(move |to| *to != own);
    let pairs = (0..count).flat_map(|own| others(own).map(move |to| (own, to)));
    pairs.collect()
}

fn sum(world: &World, of: impl Fn(&Age) -> u64) -> u64 {
    world.engines.iter().flatten().map(of).sum()
}

/// Pings sent, and pings carried.
fn pings(world: &World) -> (u64, u64) {
    let sent = sum(world, |one| one.counters().pings_sent);
    let carried = sum(world, |one| one.counters().gossips_piggybacked);
    (sent, carried)
}

/// Two nodes that each send one message in every cycle, at all times in it alike: the part 1 - P of the
/// pings is carried, the others are sent, and each cycle has one or the other (BG-03).
#[test]
fn pings_fall_by_what_p_says() {
    for permille in [0, 250, 500, 750, 1000] {
        let mut world = riders(2, permille);
        let cycles = 400;
        ride(&mut world, cycles, |world| {
            // The time of the message before its ping moves through the cycle.
            let talks = |own: &usize| {
                let engine = world.engines[*own].as_ref().expect("it runs");
                let left_us = engine.next_ping().since(world.now);
                let left = left_us.div_ceil(INTERVAL_US / STEPS);
                left == 1 + engine.cycles() * 17 % STEPS
            };
            let from = (0..2).filter(talks);
            from.map(|own| (own, 1 - own)).collect()
        });
        let (sent, carried) = pings(&world);
        let in_all = sent + carried;
        assert!((2 * cycles - 4..=2 * cycles).contains(&in_all), "{in_all}");
        let expected = 2 * cycles * u64::from(1000 - permille) / 1000;
        let of_few = 2 * cycles / 20;
        assert!(
            carried.abs_diff(expected) <= of_few,
            "P = {permille} of 1000: {carried} carried, {sent} sent"
        );
        assert_eq!(sum(&world, |one| one.counters().gossips_carried), carried);
        assert_eq!(sum(&world, |one| one.counters().gossips_obsolete), 0);
        let torn = |told: &&(usize, EventKind, MemberId)| told.1 == EventKind::NodeSuspect;
        assert_eq!(world.events.iter().find(torn), None);
    }
}

/// Eight nodes that each talk to one other all the time: a seventh of the pings is carried, the others go
/// to random members. No member is suspected, and a dead one is found everywhere (BG-03).
#[test]
fn who_talks_to_one_gossips_with_all() {
    let count = 8;
    let mut world = riders(count, 750);
    let talk = |_: &World| (0..count).map(|own| (own, own ^ 1)).collect();
    ride(&mut world, 300, talk);
    let (sent, carried) = pings(&world);
    let part = (sent + carried) / 7;
    assert!(
        carried.abs_diff(part) < part / 4,
        "{carried} carried, {sent} sent"
    );
    let is_up = |told: &(usize, EventKind, MemberId)| told.1 == EventKind::NodeUp;
    assert!(world.events.iter().all(is_up), "{:?}", world.events);
    for index in 0..count {
        assert_eq!(world.engine(index).live(), count);
    }
    world.engines[5] = None;
    ride(&mut world, 40, talk);
    for index in (0..count).filter(|index| *index != 5) {
        assert_eq!(world.told(index, EventKind::NodeFailed, 5), 1);
    }
}

/// BG-03: carried gossip is accepted like a ping: once, from a participant with the same list, and not if
/// it is late.
#[test]
fn what_was_carried_has_to_be_sound() {
    let mut world = riders(2, 750);
    ride(&mut world, 10, |_| vec![]);
    let (first, second) = (MemberId::of(&nid(0)), MemberId::of(&nid(1)));
    let mut buffer = [0; GOSSIP_AHEAD_MAX];
    let size = loop {
        world.now = world.now.after(INTERVAL_US / STEPS);
        let now = world.now;
        world.input(0, Input::Wake).unwrap();
        world.drain(0);
        if world.engine(0).draw_ahead(now) == Some(second) {
            break world
                .engine(0)
                .write_ahead(now, second, &mut buffer)
                .unwrap();
        }
    };
    let bytes = &buffer[..size];
    // As a datagram it is invalid.
    assert_eq!(
        world.input(1, Input::Datagram { bytes }),
        Err(Reject::Malformed)
    );
    let carried = |world: &mut World, bytes: &[u8]| {
        let age_us = 0;
        world.input(1, Input::Carried { bytes, age_us })
    };
    assert_eq!(carried(&mut world, &bytes[..size - 1]), Err(Reject::Forged));
    assert_eq!(carried(&mut world, bytes), Ok(()));
    assert_eq!(carried(&mut world, bytes), Err(Reject::Duplicate));
    // Another list of the same length, an age of the sender that is not 0, and one participant too few.
    let body = size - frame::FRAME_OVERHEAD;
    let mut sequence = world.engine(0).sequence;
    let to_second = frame::Receiver::Member(MemberId::of(&nid(1)), 1);
    let mut sealed = |change: &dyn Fn(&mut [u8]), body: usize| {
        sequence += 1000;
        let mut changed = buffer;
        change(&mut changed[frame::HEADER_SIZE..]);
        let header = frame::Header {
            kind: Kind::GossipCarried,
            sender: first,
            incarnation: 1,
            sequence,
            zone: 0,
        };
        let size = frame::seal(&KEY, header, to_second, &mut changed, body);
        changed[..size].to_vec()
    };
    let other_list = sealed(&|bytes| bytes[8] ^= 1, body);
    let not_there = sealed(&|bytes| bytes[12] |= 0xf, body);
    let too_few = sealed(&|_| {}, body - 1);
    let late = sealed(&|_| {}, body);
    let refused = carried(&mut world, &other_list);
    assert_eq!(refused, Err(Reject::Parameters));
    assert_eq!(carried(&mut world, &not_there), Err(Reject::Malformed));
    assert_eq!(carried(&mut world, &too_few), Err(Reject::Malformed));
    // A message that was received late: its clock is behind.
    world.engines[0] = None;
    ride(&mut world, 30, |_| vec![]);
    assert_eq!(world.told(1, EventKind::NodeFailed, 0), 1);
    let obsolete = world.engine(1).counters().gossips_obsolete;
    assert_eq!(carried(&mut world, &late), Ok(()));
    assert_eq!(world.engine(1).counters().gossips_obsolete, obsolete + 1);
    assert_eq!(world.told(1, EventKind::NodeUp, 0), 1, "it stays dead");
}

/// BG-03: messages that are never delivered, or late, take pings too. No member is failed, since eight of
/// nine are sent by the rails then, and a dead one is found.
#[test]
fn pings_that_messages_swallow_fail_nobody() {
    for count in [2, 8] {
        for fate in [Fate::Dropped, Fate::Late(3), Fate::Late(30)] {
            let mut world = riders(count, 750);
            ride_to(fate, &mut world, 150, all_to_all);
            let (sent, carried) = pings(&world);
            let is_failed = |told: &&(usize, EventKind, MemberId)| told.1 == EventKind::NodeFailed;
            let failed: Vec<_> = world.events.iter().filter(is_failed).collect();
            assert!(failed.is_empty(), "{count}: {failed:?}");
            assert!(carried > 0, "{count}: messages took some along");
            let most = sent / 8 + count as u64;
            assert!(carried <= most, "{count}: {carried} carried, {sent} sent");
            world.engines[1] = None;
            ride_to(fate, &mut world, 100, all_to_all);
            for index in (0..count).filter(|index| *index != 1) {
                assert_eq!(world.told(index, EventKind::NodeFailed, 1), 1, "{count}");
            }
        }
    }
}

/// With more participants than fit nothing is written ahead: a part of a vector is no ping.
#[test]
fn a_vector_that_does_not_fit_goes_by_itself() {
    for (count, fits) in [
        (GOSSIP_AHEAD_MEMBERS_MAX, true),
        (GOSSIP_AHEAD_MEMBERS_MAX + 1, false),
    ] {
        let mut engine = Age::new(AgeConfig {
            piggyback_permille: Some(0),
            ..config(0, count)
        })
        .unwrap();
        acquaint(&mut engine);
        let (mut buffer, mut written) = ([0; 1500], 0);
        // Parameters are sent until the first cycles are over.
        let cycles = count as u64 + 20;
        for cycle in 1..cycles {
            let now = muster_wire::time::Instant(INTERVAL_US * cycle);
            engine.handle(now, Input::Wake).unwrap();
            while engine.poll_transmit(now, &mut buffer).is_some() {}
            if let Some(to) = engine.draw_ahead(now) {
                let mut piggyback = [0; GOSSIP_AHEAD_MAX];
                let size = engine.write_ahead(now, to, &mut piggyback).unwrap();
                assert!(size <= GOSSIP_AHEAD_MAX && cycle > count as u64);
                written += 1;
            }
        }
        assert_eq!(written > 10, fits, "{count}: {written}");
    }
}
