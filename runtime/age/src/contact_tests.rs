//! First contact of two participants, and recordings that an outsider plays to them, of this run or an
//! earlier one.

use super::tests::{INTERVAL_US, World, config, nid};
use super::{Age, AgeConfig};
use muster_wire::event::EventKind;
use muster_wire::identity::MemberId;
use muster_wire::interface::Input;
use muster_wire::parameter::{Difference, Parameter};
use muster_wire::reject::Reject;
use muster_wire::time::Instant;

/// AG-05: the first cycles are counted from a start. Two engines that were initialised, waited for longer
/// than parameters are sent, and were started then, find the difference as well; also after a stop and
/// another start.
#[test]
fn parameters_travel_after_every_start() {
    let parameter = Parameter::Interval;
    for wait in [0, 3, 50] {
        let mut other = config(1, 2);
        other.interval_us = 300_000;
        let mut world = World::new([config(0, 2), other]);
        for index in 0..2 {
            world.input(index, Input::Wake).unwrap();
            world.engine(index).halt();
        }
        world.run(wait);
        for again in [1, 2] {
            for index in 0..2 {
                world.engine(index).resume_gossip();
            }
            world.run(6);
            for (index, other) in [(0, 1), (1, 0)] {
                let told = world.refusals(index, parameter, other);
                assert_eq!(told, again, "by {index}, after {wait} cycles");
                assert!(!world.engine(index).is_gossiping());
                assert_eq!(world.engine(index).live(), 1);
            }
            world.run(wait);
        }
    }
}

/// AG-05: a difference found in a reply stops both sides, even if the first refusal is lost. No member is
/// declared failed for it.
#[test]
fn a_difference_in_a_reply_is_told_to_the_other_side() {
    let mut right = Age::new(config(0, 2)).unwrap();
    let mut other = config(1, 2);
    other.interval_us = 300_000;
    let mut wrong = Age::new(other).unwrap();
    let mut now = Instant(0);
    let mut buffer = [0; 1500];
    // The right one has gossiped for long: its pings have no parameters.
    for _ in 0..20 {
        now = now.after(INTERVAL_US);
        right.handle(now, Input::Wake).unwrap();
        while right.poll_transmit(now, &mut buffer).is_some() {}
    }
    let mut ask = |from: &mut Age, now, to: &mut Age| {
        let size = from.poll_transmit(now, &mut buffer).expect("a frame").size;
        let bytes = &buffer[..size];
        to.handle(now, Input::Datagram { bytes })
    };
    right.ping_due = true;
    assert_eq!(ask(&mut right, now, &mut wrong), Err(Reject::Unproven));
    assert_eq!(ask(&mut wrong, now, &mut right), Err(Reject::Parameters));
    assert!(!right.is_gossiping());
    // The refusal is lost. The next ping causes another one, although the right one has stopped.
    assert!(right.poll_transmit(now, &mut [0; 1500]).is_some());
    assert!(wrong.is_gossiping());
    wrong.ping_due = true;
    assert_eq!(ask(&mut wrong, now, &mut right), Err(Reject::Unproven));
    assert_eq!(ask(&mut right, now, &mut wrong), Err(Reject::Parameters));
    assert!(!wrong.is_gossiping());
    // The answer of the wrong one ends there.
    assert_eq!(ask(&mut wrong, now, &mut right), Err(Reject::Stopped));
    assert!(right.poll_transmit(now, &mut [0; 1500]).is_none());
    for (engine, own, other) in [
        (&mut right, INTERVAL_US as u32, 300_000),
        (&mut wrong, 300_000, INTERVAL_US as u32),
    ] {
        let refused = EventKind::Refused(Difference {
            parameter: Parameter::Interval,
            own,
            other,
        });
        let kinds: Vec<EventKind> = core::iter::from_fn(|| engine.poll_event())
            .map(|event| event.kind)
            .filter(|kind| *kind != EventKind::NodeUp)
            .collect();
        assert_eq!(kinds, [refused]);
    }
}

/// AG-06: an outsider has recorded an earlier run with the same key, in which all members lived, and plays
/// it to a member that is alone in a later run. No member comes up, and no gossip stops.
#[test]
fn a_recording_of_an_earlier_run_raises_nobody() {
    let count = 6;
    let mut world = World::new((0..count).map(|own| config(own, count)));
    world.record();
    world.run(30);
    let recording = world.take_recording();
    assert!(recording.len() > 100);
    let later = |own| AgeConfig {
        incarnation: 2,
        ..config(own, count)
    };
    let mut world = World::new((0..count).map(later));
    (1..count).for_each(|index| world.engines[index] = None);
    for bytes in &recording {
        world.run(1);
        let _ = world.input(0, Input::Datagram { bytes });
        world.drain(0);
        // Carried by its own messages.
        let _ = world.input(0, Input::Carried { bytes, age_us: 0 });
    }
    assert_eq!(world.events, []);
    assert_eq!(world.engine(0).live(), 1);
    assert!(world.engine(0).is_gossiping());
    let rejected = |reject| {
        world.engines[0]
            .as_ref()
            .unwrap()
            .counters()
            .rejected(reject)
    };
    assert!(rejected(Reject::Misdirected) > 0 && rejected(Reject::Unproven) > 0);
}

/// AG-10: frames that a dead participant had sent to others keep it alive at no member, nor do repetitions.
#[test]
fn frames_to_others_keep_nobody_alive() {
    let count = 6;
    let mut world = World::new((0..count).map(|own| config(own, count)));
    world.record();
    world.run(30);
    let recording = world.take_recording();
    world.engines[3] = None;
    world.events.clear();
    let mut of_three = recording
        .iter()
        .filter(|bytes| muster_wire::frame::sender(bytes) == Some(MemberId::of(&nid(3))))
        .rev()
        .cycle();
    for _ in 0..60 {
        world.run(1);
        for index in (0..count).filter(|index| *index != 3) {
            let bytes = of_three.next().unwrap();
            let _ = world.input(index, Input::Datagram { bytes });
            world.drain(index);
        }
    }
    for index in (0..count).filter(|index| *index != 3) {
        assert_eq!(world.told(index, EventKind::NodeFailed, 3), 1, "{index}");
        assert_eq!(world.told(index, EventKind::NodeUp, 3), 0);
    }
}

/// A restarted participant is soon known in its new incarnation by all: a member that gets a frame for its
/// previous incarnation sends a request to the sender.
#[test]
fn a_quick_restart_is_known_to_all() {
    let count = 16;
    let mut world = World::new((0..count).map(|own| config(own, count)));
    world.run(20);
    let again = AgeConfig {
        incarnation: 2,
        ..config(5, count)
    };
    world.engines[5] = Some(Age::new(again).unwrap());
    world.events.clear();
    world.run(60);
    let five = MemberId::of(&nid(5));
    for index in (0..count).filter(|index| *index != 5) {
        assert_eq!(world.engine(index).live(), count, "seen by {index}");
        let view = world.engine(index).member(five).unwrap();
        assert_eq!(view.version().incarnation, 2, "seen by {index}");
        assert_eq!(world.told(5, EventKind::NodeUp, index), 1);
    }
    assert_eq!(world.engine(5).live(), count);
}
