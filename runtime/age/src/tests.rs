//! Tests of whole age engines in a small world: every datagram arrives in the cycle in which it was sent,
//! unless a test delays or loses it.

use proptest::prelude::*;

use super::carried::told;
use super::gossip::{Freshness, Gossip, NEVER, Rules};
use super::{Age, AgeConfig, Choice, Exchange, Participant};
use muster_wire::event::EventKind;
use muster_wire::frame;
use muster_wire::identity::MemberId;
use muster_wire::interface::{Input, Target};
use muster_wire::mix::mix;
use muster_wire::parameter::Parameter;
use muster_wire::reject::Reject;
use muster_wire::state::NodeState;
use muster_wire::time::Instant;

pub(super) const KEY: [u8; 32] = [5; 32];
pub(super) const INTERVAL_US: u64 = 200_000;

pub(super) fn nid(number: usize) -> String {
    format!("10.0.{}.{}@tcp0", number / 250, number % 250 + 1)
}

/// The first participant.
pub(super) fn to_first() -> frame::Receiver {
    frame::Receiver::Member(MemberId::of(&nid(0)), 1)
}

/// State in which each of the others, in its first incarnation, has answered already.
pub(super) fn acquaint(engine: &mut Age) {
    engine.receivers.fill(1);
}

pub(super) fn config(own: usize, count: usize) -> AgeConfig {
    let participants = (0..count).map(|number| Participant::new(&nid(number)));
    AgeConfig {
        key: Some(KEY),
        random_seed: 77,
        ..AgeConfig::new(&nid(own), participants.collect())
    }
}

/// Some engines, some of which may be down.
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) engines: Vec<Option<Age>>,
    pub(super) events: Vec<(usize, EventKind, MemberId)>,
    frames: u64,
    /// Datagrams to engines that are down.
    lost: u64,
    recording: Option<Vec<Vec<u8>>>,
}

impl World {
    pub(super) fn new(engines: impl IntoIterator<Item = AgeConfig>) -> Self {
        let start = |config| Some(Age::new(config).unwrap());
        Self {
            now: Instant(1_000_000),
            engines: engines.into_iter().map(start).collect(),
            events: Vec::new(),
            frames: 0,
            lost: 0,
            recording: None,
        }
    }

    /// Keeps every frame from now on.
    pub(super) fn record(&mut self) {
        self.recording = Some(Vec::new());
    }

    pub(super) fn take_recording(&mut self) -> Vec<Vec<u8>> {
        self.recording.take().unwrap_or_default()
    }

    fn of(count: usize) -> Self {
        Self::new((0..count).map(|own| config(own, count)))
    }

    pub(super) fn engine(&mut self, index: usize) -> &mut Age {
        self.engines[index].as_mut().expect("it runs")
    }

    /// Runs until the engines have had this many cycles more.
    pub(super) fn run(&mut self, cycles: u64) {
        let end = self.now.after(cycles * INTERVAL_US);
        loop {
            let timeouts = self.engines.iter().flatten().map(Age::poll_timeout);
            let next = timeouts.min().unwrap_or(end).max(self.now);
            if next >= end {
                self.now = end;
                return;
            }
            self.now = next;
            for index in 0..self.engines.len() {
                let due = self.engines[index].as_ref().map(Age::poll_timeout);
                if due.is_some_and(|due| due <= next) {
                    self.input(index, Input::Wake).unwrap();
                    self.drain(index);
                }
            }
        }
    }

    pub(super) fn input(&mut self, index: usize, input: Input<'_>) -> Result<(), Reject> {
        let now = self.now;
        let result = self.engine(index).handle(now, input);
        while let Some(event) = self.engine(index).poll_event() {
            self.events.push((index, event.kind, event.member));
        }
        result
    }

    pub(super) fn drain(&mut self, index: usize) {
        let mut buffer = vec![0; 2000];
        let now = self.now;
        while let Some(transmit) = self.engine(index).poll_transmit(now, &mut buffer) {
            self.frames += 1;
            if let Some(recording) = &mut self.recording {
                recording.push(buffer[..transmit.size].to_vec());
            }
            let address = self
                .engine(index)
                .address_of(transmit.target)
                .unwrap()
                .to_vec();
            let to = (0..self.engines.len()).find(|to| nid(*to).as_bytes() == address);
            let Some(to) = to.filter(|to| self.engines[*to].is_some()) else {
                self.lost += 1;
                continue;
            };
            let _ = self.input(
                to,
                Input::Datagram {
                    bytes: &buffer[..transmit.size],
                },
            );
            self.drain(to);
        }
    }

    pub(super) fn told(&self, by: usize, kind: EventKind, about: usize) -> usize {
        let event = (by, kind, MemberId::of(&nid(about)));
        self.events.iter().filter(|told| **told == event).count()
    }

    /// How often a member has refused another one for this parameter, with two values that differ.
    pub(super) fn refusals(&self, by: usize, parameter: Parameter, other: usize) -> usize {
        let is_it = |told: &&(usize, EventKind, MemberId)| {
            let EventKind::Refused(difference) = told.1 else {
                return false;
            };
            let is_its = (told.0, told.2) == (by, MemberId::of(&nid(other)));
            is_its && difference.parameter == parameter && difference.own != difference.other
        };
        self.events.iter().filter(is_it).count()
    }
}

/// AG-06, AG-07, AG-10: all members come up everywhere; a dead one is suspect, then failed, everywhere and
/// once. It is still pinged, and comes back.
#[test]
fn a_member_comes_up_dies_and_returns() {
    let count = 16;
    let mut world = World::of(count);
    world.run(12);
    for index in 0..count {
        assert_eq!(world.engine(index).live(), count, "seen by {index}");
    }
    world.engines[5] = None;
    world.events.clear();
    world.run(40);
    for index in (0..count).filter(|index| *index != 5) {
        // A younger age of another member may clear it once more.
        assert!(world.told(index, EventKind::NodeSuspect, 5) >= 1);
        assert_eq!(world.told(index, EventKind::NodeFailed, 5), 1);
    }
    let five = MemberId::of(&nid(5));
    let is_five = |(.., about): &(usize, EventKind, MemberId)| *about == five;
    assert!(world.events.iter().all(is_five), "nobody else was accused");
    // A new incarnation, whose clock is far behind and which knows no member.
    let again = AgeConfig {
        incarnation: 2,
        ..config(5, count)
    };
    world.engines[5] = Some(Age::new(again).unwrap());
    world.events.clear();
    world.run(12);
    for index in (0..count).filter(|index| *index != 5) {
        assert_eq!(world.told(index, EventKind::NodeUp, 5), 1);
        assert_eq!(world.told(5, EventKind::NodeUp, index), 1);
    }
    assert_eq!(world.events.len(), 2 * (count - 1));
    let obsolete = world
        .engines
        .iter()
        .flatten()
        .map(|engine| engine.counters().gossips_obsolete);
    assert!(obsolete.sum::<u64>() > 0, "its first pings were behind");
}

/// An engine that takes over from an earlier one finds members that died in between, does not report living
/// ones, and makes no member young for others.
#[test]
fn an_expected_member_is_missed() {
    let count = 8;
    let mut world = World::of(count);
    world.run(12);
    (world.engines[2], world.engines[5]) = (None, None);
    world.run(40);
    let again = AgeConfig {
        incarnation: 2,
        ..config(2, count)
    };
    let mut again = Age::new(again).unwrap();
    for index in 0..count {
        again.expect(MemberId::of(&nid(index)));
    }
    again.expect(MemberId::of("nobody"));
    assert_eq!(again.live(), count);
    world.engines[2] = Some(again);
    world.events.clear();
    world.run(40);
    assert_eq!(world.told(2, EventKind::NodeFailed, 5), 1);
    for index in (0..count).filter(|index| ![2, 5].contains(index)) {
        assert_eq!(world.told(2, EventKind::NodeFailed, index), 0);
        assert_eq!(world.told(2, EventKind::NodeRecovered, index), 1);
        assert_eq!(world.told(index, EventKind::NodeUp, 2), 1);
        assert_eq!(world.told(index, EventKind::NodeUp, 5), 0);
    }
    assert_eq!(world.engine(2).live(), count - 1);
}

/// Participants with names are known and reported by them.
#[test]
fn participants_may_have_names() {
    let named = |own| {
        let mut config = config(own, 3);
        for (index, one) in config.participants.iter_mut().enumerate() {
            one.name = format!("n{index}");
        }
        config
    };
    let mut world = World::new([named(0), named(1), named(2)]);
    world.run(12);
    let id = MemberId::of("n1");
    assert!(world.events.contains(&(0, EventKind::NodeUp, id)));
    assert_eq!(world.engine(0).name_of(id), Some("n1"));
    assert_eq!(world.engine(0).id(), MemberId::of("n0"));
    // A participant that gives another one a different name has another list.
    let mut other = named(1);
    "m1".clone_into(&mut other.participants[1].name);
    let mut world = World::new([named(0), other]);
    world.run(6);
    for by in [0, 1] {
        let is_refusal = |told: &(usize, EventKind, MemberId)| match told.1 {
            EventKind::Refused(one) => (told.0, one.parameter) == (by, Parameter::Participants),
            _ => false,
        };
        assert!(world.events.iter().any(is_refusal));
    }
}

/// AG-08: a current reply is short, since ages differ little; laziness makes it shorter still.
#[test]
fn replies_are_shorter_the_lazier() {
    let entries = |laziness| {
        let count = 64;
        let mut world = World::new((0..count).map(|own| {
            let mut config = config(own, count);
            config.rules.laziness = laziness;
            config
        }));
        world.run(30);
        let engines = world.engines.iter().flatten();
        let sums = engines.map(|one| (one.counters().reply_entries, one.counters().replies_sent));
        let (entries, replies) = sums.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        entries as f64 / replies as f64
    };
    let (least, most) = (entries(2), entries(3));
    assert!(least < 32.0 && most < least, "{least} {most}");
}

/// AG-05: both sides of a difference stop, before anything is merged, and name the parameter.
#[test]
fn different_parameters_stop_both_sides() {
    type Change = fn(&mut AgeConfig);
    let changes: [(Parameter, Change); 2] = [
        (Parameter::Interval, |config| config.interval_us += 1_000),
        (Parameter::Participants, |config| {
            config.participants.push(Participant::new("10.9.9.9@tcp0"));
        }),
    ];
    for (parameter, change) in changes {
        let mut other = config(1, 2);
        change(&mut other);
        let mut world = World::new([config(0, 2), other]);
        world.run(4);
        for (index, other) in [(0, 1), (1, 0)] {
            assert_eq!(world.refusals(index, parameter, other), 1);
            assert!(!world.engine(index).is_gossiping());
            assert_eq!(world.engine(index).live(), 1);
        }
        let frames = world.frames;
        world.run(20);
        assert_eq!(world.frames, frames, "silent since");
    }
    // A member with a list of its own is answered, too, at the address that it gives.
    let mut unlisted = config(2, 2);
    unlisted.participants.push(Participant::new(&nid(2)));
    unlisted.check().unwrap();
    let mut world = World::new([config(0, 2), config(1, 2), unlisted]);
    world.run(30);
    let refusals = [0, 1].map(|other| world.refusals(2, Parameter::Participants, other));
    assert!(refusals.contains(&1));
}

/// AG-05: parameters are sent in as many cycles as there are participants, and no longer.
#[test]
fn parameters_travel_in_the_first_cycles() {
    let mut engine = Age::new(config(0, 8)).unwrap();
    let mut buffer = [0; 1500];
    let mut sizes = Vec::new();
    for cycle in 0..20 {
        let now = Instant(INTERVAL_US * (cycle + 1));
        engine.handle(now, Input::Wake).unwrap();
        while let Some(transmit) = engine.poll_transmit(now, &mut buffer) {
            sizes.push(transmit.size);
        }
    }
    let long = sizes.iter().filter(|size| **size > sizes[19 - 1]).count();
    assert_eq!(long, 8, "{sizes:?}");
}

/// AG-15: a vector that exceeds a datagram is sent in parts, and so is a reply.
#[test]
fn a_vector_of_several_datagrams_is_joined() {
    let count = 2_600;
    let mut world = World::new((0..2).map(|own| config(own, count)));
    let to = MemberId::of(&nid(1));
    world.input(0, Input::Ask(to)).unwrap();
    world.run(2);
    let second = MemberId::of(&nid(0));
    assert!(
        world
            .engine(1)
            .member(second)
            .is_some_and(|view| view.state() == NodeState::Alive)
    );
    assert!(world.frames >= 3);
    let torn = world
        .engines
        .iter()
        .flatten()
        .map(|one| one.counters().gossips_torn);
    assert_eq!(torn.sum::<u64>(), 0);
}

/// BG-02: with L = 1 a member pings its group only, with L = 0 the others only.
#[test]
fn the_local_factor_keeps_pings_in_the_group() {
    for (permille, expected) in [(1000, true), (0, false)] {
        let mut config = config(0, 12);
        config.choice = Choice::Local { permille };
        for (number, participant) in config.participants.iter_mut().enumerate() {
            participant.group = format!("rack{}", number % 3);
        }
        let near: Vec<MemberId> = (0..12)
            .step_by(3)
            .map(|at| MemberId::of(&nid(at)))
            .collect();
        let mut engine = Age::new(config).unwrap();
        let mut buffer = [0; 1500];
        let mut pings = 0;
        for cycle in 0..50 {
            let now = Instant(INTERVAL_US * (cycle + 1));
            engine.handle(now, Input::Wake).unwrap();
            while let Some(transmit) = engine.poll_transmit(now, &mut buffer) {
                let Target::Member(to) = transmit.target else {
                    panic!("a member")
                };
                assert_eq!(near.contains(&to), expected);
                pings += 1;
            }
        }
        assert!(pings >= 49);
    }
}

/// AG-13, BG-01: the header distinguishes replies and pings; with push gossip there are no replies.
#[test]
fn a_ping_is_answered_by_a_frame_of_another_kind_or_not_at_all() {
    let now = Instant(10 * INTERVAL_US);
    let mut buffer = [0; 1500];
    for (exchange, answer) in [
        (Exchange::Reply, Some(frame::Kind::GossipReply)),
        (Exchange::Push, None),
    ] {
        let engine = |own| {
            let config = AgeConfig {
                exchange,
                ..config(own, 4)
            };
            Age::new(config).unwrap()
        };
        let (mut asks, mut answers) = (engine(0), engine(1));
        acquaint(&mut asks);
        asks.ping_due = true;
        asks.asked_for = Some(1);
        let size = asks.poll_transmit(now, &mut buffer).unwrap().size;
        let bytes = &buffer[..size];
        assert_eq!(frame::peek(bytes), Some(frame::Kind::Gossip));
        answers.handle(now, Input::Datagram { bytes }).unwrap();
        assert!(answers.member(MemberId::of(&nid(0))).is_some());
        let size = answers
            .poll_transmit(now, &mut buffer)
            .map(|transmit| transmit.size);
        assert_eq!(size.and_then(|size| frame::peek(&buffer[..size])), answer);
    }
}

/// BG-01: without pings of failed members only listed ones are pinged; with them (AG-10) all are.
#[test]
fn only_the_listed_are_pinged_unless_the_dead_are_as_well() {
    let count = 6;
    for pings_dead in [false, true] {
        let mut world = World::new((0..count).map(|own| AgeConfig {
            exchange: Exchange::Push,
            pings_dead,
            ..config(own, count)
        }));
        for index in 0..count {
            let engine = world.engine(index);
            (0..count).for_each(|other| engine.expect(MemberId::of(&nid(other))));
        }
        world.run(12);
        assert_eq!(world.lost, 0);
        world.engines[5] = None;
        world.run(40);
        for index in 0..5 {
            // A late message may have cleared it once more.
            assert!(world.told(index, EventKind::NodeFailed, 5) >= 1);
        }
        let (frames, lost) = (world.frames, world.lost);
        assert!(lost > 0, "until it is known to be dead");
        world.run(100);
        assert!(world.frames > frames + 400, "the others are");
        assert_eq!(world.lost > lost, pings_dead, "{}", world.lost - lost);
    }
}

/// BG-01, BG-03: between P and 1 of an interval after the last gossip a message of the application carries
/// one. Then no datagram is sent, and the receiver takes it like any other.
#[test]
fn gossip_rides_on_messages_of_the_application() {
    let mut world = World::new((0..4).map(|own| AgeConfig {
        piggyback_permille: Some(750),
        exchange: Exchange::Push,
        ..config(own, 4)
    }));
    let to = MemberId::of(&nid(1));
    let mut buffer = [0; 1500];
    let mut now = Instant(10 * INTERVAL_US);
    let engine = world.engine(0);
    acquaint(engine);
    let _ = engine.handle(now, Input::Wake);
    let mut carried = 0;
    // A message every tenth of an interval, for a hundred intervals.
    for _ in 0..1000 {
        now = now.after(INTERVAL_US / 10);
        if let Some(size) = world.engine(0).piggyback(now, to, &mut buffer) {
            carried += 1;
            assert_eq!(frame::sender(&buffer[..size]), Some(MemberId::of(&nid(0))));
            world
                .engine(1)
                .handle(
                    now,
                    Input::Datagram {
                        bytes: &buffer[..size],
                    },
                )
                .unwrap();
        }
        let engine = world.engine(0);
        engine.handle(now, Input::Wake).unwrap();
        assert!(engine.poll_transmit(now, &mut buffer).is_none() || carried == 0);
    }
    // One in 0.8 intervals: the first message after 0.75.
    assert_eq!(carried, 125);
    let first = MemberId::of(&nid(0));
    assert!(world.engine(1).member(first).is_some());
}

/// The local lateness is never held against others: after a stop of a minute no member is reported.
#[test]
fn a_member_that_overslept_reports_no_member() {
    let mut world = World::of(16);
    world.run(12);
    let sleeper = world.engines[3].take();
    world.run(3);
    world.events.clear();
    // Long enough to be failed, and to hold all others failed by age.
    world.run(300);
    assert_eq!(world.told(7, EventKind::NodeFailed, 3), 1);
    world.engines[3] = sleeper;
    world.run(30);
    assert!(
        world.events.iter().all(|(by, ..)| *by != 3),
        "{:?}",
        world.events
    );
    assert_eq!(world.told(7, EventKind::NodeUp, 3), 1);
    assert_eq!(world.engine(3).live(), 16);
}

/// A vector of another length, one whose sender is not of age 0, and entries of unlisted members are
/// rejected.
#[test]
fn what_cannot_be_is_refused() {
    let mut liar = Age::new(config(1, 4)).unwrap();
    let mut engine = Age::new(config(0, 4)).unwrap();
    let now = Instant(10 * INTERVAL_US);
    liar.ping_due = true;
    acquaint(&mut liar);
    let mut buffer = [0; 1500];
    liar.asked_for = Some(0);
    // The sender's age is the second one: after head and parameters.
    let size = liar.poll_transmit(now, &mut buffer).unwrap().size;
    let body = size - frame::FRAME_OVERHEAD;
    let own_age = frame::HEADER_SIZE + body - 4 + 1;
    buffer[own_age] = 9;
    let header = frame::Header {
        kind: frame::Kind::Gossip,
        sender: MemberId::of(&nid(1)),
        incarnation: 1,
        sequence: 90,
        zone: 0,
    };
    frame::seal(&KEY, header, to_first(), &mut buffer, body);
    let bytes = &buffer[..size];
    let refused = engine.handle(now, Input::Datagram { bytes });
    assert_eq!(refused, Err(Reject::Malformed));
    // One age too few.
    let header = frame::Header {
        sequence: 91,
        zone: 0,
        ..header
    };
    buffer[own_age] = 0;
    let size = frame::seal(&KEY, header, to_first(), &mut buffer, body - 1);
    let bytes = &buffer[..size];
    assert_eq!(
        engine.handle(now, Input::Datagram { bytes }),
        Err(Reject::Malformed)
    );
    assert!(engine.gossip.ages()[1..].iter().all(|age| *age == NEVER));
    assert_eq!(
        engine.handle(
            now,
            Input::Publish {
                key: b"k",
                value: b"v"
            }
        ),
        Err(Reject::NoAttributes)
    );
}

/// AG-06, AG-09: a clock far ahead is accepted; after it one far behind is not, whatever its ages; and a
/// message with greater ages than an earlier one makes no member older.
#[test]
fn clocks_may_leap_and_ages_do_not_go_back() {
    let mut engine = Age::new(config(0, 3)).unwrap();
    let now = Instant(10 * INTERVAL_US);
    engine.handle(now, Input::Wake).unwrap();
    let mut sequence = 0;
    let mut ping = |engine: &mut Age, clock: u64, ages: [u8; 3]| {
        sequence += 1;
        let mut buffer = [0; 200];
        // Clock, part 0 of 1, no parameters, ages.
        let body = &mut buffer[frame::HEADER_SIZE..];
        body[..8].copy_from_slice(&clock.to_le_bytes());
        body[8..13].copy_from_slice(&[0, 0, 1, 0, 0]);
        body[13..16].copy_from_slice(&ages);
        let header = frame::Header {
            kind: frame::Kind::Gossip,
            sender: MemberId::of(&nid(1)),
            incarnation: 1,
            sequence,
            zone: 0,
        };
        let size = frame::seal(&KEY, header, to_first(), &mut buffer, 16);
        let bytes = &buffer[..size];
        engine.handle(now, Input::Datagram { bytes })
    };
    let far = 1 << 40;
    assert_eq!(ping(&mut engine, far, [9, 0, 5]), Ok(()));
    assert_eq!(
        (engine.clock(), engine.gossip.ages()),
        (far + 1, &[0, 1, 6][..])
    );
    assert_eq!(ping(&mut engine, 3, [9, 0, 1]), Ok(()));
    assert_eq!(
        (engine.clock(), engine.gossip.ages()),
        (far + 1, &[0, 1, 6][..])
    );
    assert_eq!(engine.counters().gossips_obsolete, 1);
    assert_eq!(ping(&mut engine, far + 1, [9, 0, 200]), Ok(()));
    assert_eq!(engine.gossip.ages(), [0, 1, 6]);
    assert_eq!(ping(&mut engine, far + 1, [9, 0, 2]), Ok(()));
    assert_eq!(engine.gossip.ages(), [0, 1, 3]);
    // A message with a great age of the local member does not make it old.
    assert_eq!(ping(&mut engine, u64::MAX, [255, 0, 255]), Ok(()));
    assert_eq!(
        (engine.clock(), engine.gossip.ages()),
        (u64::MAX, &[0, 1, 3][..])
    );
}

/// A message in transit, with the number of relays since the last frame of the dead member.
struct Stalled {
    due: u64,
    to: usize,
    clock: u64,
    ages: Vec<u8>,
    hops: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// AG-09, AG-10, BG-03: with a tenth of the datagrams stalled for up to 60 cycles, and a third of all
    /// messages carried by the application's, the age of a dead member is nowhere less than the time since
    /// its death, less one threshold for each relay.
    #[test]
    fn stalled_datagrams_rejuvenate_by_a_threshold_a_hop_at_most(seed: u64, count in 8_usize..40) {
        let log2 = u64::from(super::config::log2(count));
        let rules = Rules { obsolete_after: log2, laziness: 2, hop: 1 };
        let mut random = seed;
        let mut draw = |bound: u64| {
            random = mix(random);
            random % bound
        };
        let mut nodes: Vec<Gossip> =
            (0..count).map(|own| Gossip::new(count, Some(own), rules)).collect();
        let mut hops = vec![0_u64; count];
        let mut under_way: Vec<Stalled> = Vec::new();
        let death = 40;
        for cycle in 0..160_u64 {
            let alive = |node: usize| node != 0 || cycle < death;
            // In a different order in every cycle.
            let mut order: Vec<usize> = (0..count).filter(|node| alive(*node)).collect();
            order.sort_by_cached_key(|_| draw(u64::MAX));
            for node in order {
                nodes[node].tick(1);
                let to = (node + 1 + draw(count as u64 - 1) as usize) % count;
                let stall = if draw(10) == 0 { 1 + draw(60) } else { 0 };
                under_way.push(Stalled {
                    due: cycle + stall,
                    to,
                    clock: nodes[node].clock(),
                    ages: if draw(3) == 0 {
                        told(nodes[node].ages())
                    } else {
                        nodes[node].ages().to_vec()
                    },
                    hops: hops[node],
                });
                let due: Vec<Stalled> = under_way.extract_if(.., |one| one.due <= cycle).collect();
                for message in due.into_iter().filter(|message| alive(message.to)) {
                    let held = nodes[message.to].ages()[0];
                    if nodes[message.to].hear_clock(message.clock) == Freshness::Current {
                        nodes[message.to].merge(&message.ages);
                        if nodes[message.to].ages()[0] < held {
                            hops[message.to] = message.hops + 1;
                        }
                    }
                }
            }
            for node in 1..count {
                let age = u64::from(nodes[node].ages()[0]);
                let truth = (cycle + 1).saturating_sub(death);
                prop_assert!(
                    age + log2 * hops[node] >= truth.min(255),
                    "cycle {cycle}, node {node}: age {age} after {} hops, dead for {truth}", hops[node]
                );
            }
            hops[0] = 0;
        }
    }
}
