//! Messages over the datagram limit, on real connections of libfabric over loopback addresses.

mod common;

use common::{Node, Received, config, on_the_wheel};
use muster_fabric::{
    BULK_MESSAGE_MAX, Class, DropReason, Fabric, FabricEvent, NidList, PathState, PeerHandle,
    Route, Transport,
};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(30);

fn open(rails: &str) -> Node {
    let mut fabric = Fabric::open(&config(rails)).unwrap();
    fabric.open_bulk().unwrap();
    fabric.open_bulk().expect("once more changes nothing");
    Node::around(fabric)
}

/// A clock, nodes, and what came of it all.
struct World {
    start: Instant,
    received: Vec<Vec<Received>>,
    events: Vec<Vec<FabricEvent>>,
}

impl World {
    fn new(nodes: usize) -> World {
        World {
            start: Instant::now(),
            received: vec![Vec::new(); nodes],
            events: vec![Vec::new(); nodes],
        }
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64 + 1
    }

    /// Drives all nodes until the condition holds.
    fn run(&mut self, nodes: &mut [&mut Node], until: impl Fn(&World) -> bool) {
        while !until(self) {
            assert!(self.start.elapsed() < DEADLINE, "{:?}", self.events);
            let mut may_sleep = true;
            for (index, node) in nodes.iter_mut().enumerate() {
                let now_us = self.now_us();
                node.drain(now_us, &mut self.received[index]);
                self.events[index].extend(std::iter::from_fn(|| node.fabric.poll_event()));
                may_sleep &= node.fabric.may_sleep();
            }
            if may_sleep {
                let timeouts = nodes.iter().filter_map(|node| node.fabric.next_timeout());
                let wait_us = timeouts
                    .min()
                    .map_or(5_000, |due| due.saturating_sub(self.now_us()));
                // One node's descriptors stand for all: the others are looked at soon anyway.
                nodes[0].wait(Duration::from_micros(wait_us.clamp(1, 2_000)));
            }
        }
    }
}

fn done(peer: PeerHandle, message: u64) -> FabricEvent {
    FabricEvent::BulkDone { peer, message }
}

#[test]
fn messages_of_all_sizes_arrive_whole_once_and_are_acknowledged() {
    let (mut a, mut b) = (open("127.46.1.1:0@udp"), open("127.46.2.1:0@udp"));
    let (to_b, to_a) = (a.knows(&b), b.knows(&a));
    let messages: Vec<Vec<u8>> = [0, 1, 1473, 16 << 10, 100_000, BULK_MESSAGE_MAX]
        .iter()
        .map(|length| (0..*length).map(|at| (at % 251) as u8).collect())
        .collect();
    let mut world = World::new(2);
    for message in &messages {
        a.fabric.send_bulk(world.now_us(), to_b, message).unwrap();
    }
    b.fabric
        .send_bulk(world.now_us(), to_a, b"the other way")
        .unwrap();
    let count = messages.len();
    world.run(&mut [&mut a, &mut b], |world| {
        world.events[0].len() == count && !world.events[1].is_empty()
    });
    let arrived: Vec<&Vec<u8>> = world.received[1].iter().map(|(_, bytes)| bytes).collect();
    assert!(
        arrived.iter().eq(&messages.iter().collect::<Vec<_>>()),
        "in order and unchanged"
    );
    assert_eq!(world.received[0], [(0, b"the other way".to_vec())]);
    let ends: Vec<FabricEvent> = (1..=count as u64).map(|id| done(to_b, id)).collect();
    assert_eq!(world.events[0], ends);
    // Datagrams go on beside it.
    a.fabric
        .send(world.now_us(), to_b, Class::News, Route::Next, b"news");
    world.run(&mut [&mut a, &mut b], |world| {
        world.received[1].len() == count + 1
    });
    assert_eq!(a.fabric.next_timeout(), None, "nothing is left to do");
}

#[test]
fn a_peer_that_never_answers_stops_nobody_and_is_given_up() {
    let (mut a, mut b) = (open("127.46.3.1:0@udp"), open("127.46.4.1:0@udp"));
    let to_b = a.knows(&b);
    b.knows(&a);
    let nobody = a
        .fabric
        .peer(&"127.46.5.1:7741@udp".parse().unwrap())
        .unwrap();
    let mut world = World::new(2);
    let long = vec![5; 200_000];
    a.fabric.send_bulk(world.now_us(), nobody, &long).unwrap();
    for _ in 0..3 {
        a.fabric.send_bulk(world.now_us(), to_b, &long).unwrap();
    }
    let arrived = |world: &World| {
        world.events[0]
            .iter()
            .filter(|event| matches!(event, FabricEvent::BulkDone { .. }))
            .count()
    };
    world.run(&mut [&mut a, &mut b], |world| arrived(world) == 3);
    assert_eq!(world.received[1].len(), 3);
    assert!(
        !world.events[0]
            .iter()
            .any(|event| matches!(event, FabricEvent::BulkFailed { .. }))
    );
    // What was tried is said, once.
    let there = "127.46.5.1:7741@udp".parse().unwrap();
    let failed = FabricEvent::BulkFailed {
        peer: nobody,
        message: 1,
        tried: vec![(a.nids().as_slice()[0].clone(), there)],
    };
    world.run(&mut [&mut a, &mut b], |world| {
        world.events[0].contains(&failed)
    });
    let count = world.events[0]
        .iter()
        .filter(|event| **event == failed)
        .count();
    assert_eq!(count, 1);
    // RS-07: it is asked for a while whether it answers again.
    assert!(a.fabric.next_timeout().is_some());
    a.fabric.forget(nobody);
    assert_eq!(a.fabric.next_timeout(), None);
}

/// RS-05: what is not acknowledged by one path is sent again by another. RS-07: a path that was in
/// vain for several is left alone, and asked now and then.
#[test]
fn a_message_finds_the_path_that_works() {
    let (mut a, mut b) = (open("127.46.6.1:0@udp"), open("127.46.7.1:0@udp"));
    // The first of the peer's NIDs leads nowhere.
    let half: NidList = format!("127.46.8.1:7741@udp,{}", b.nids()).parse().unwrap();
    let to_b = a.fabric.peer(&half).unwrap();
    b.knows(&a);
    let mut world = World::new(2);
    for _ in 0..8 {
        a.fabric
            .send_bulk(world.now_us(), to_b, &[3; 50_000])
            .unwrap();
    }
    let is_done = |event: &&FabricEvent| matches!(event, FabricEvent::BulkDone { .. });
    world.run(&mut [&mut a, &mut b], |world| {
        world.events[0].iter().filter(is_done).count() == 8
    });
    let ends: Vec<FabricEvent> = (1..=8).map(|id| done(to_b, id)).collect();
    let is_moved = |event: &&FabricEvent| matches!(event, FabricEvent::Moved { .. });
    let (moved, ended): (Vec<_>, Vec<_>) = world.events[0].iter().partition(is_moved);
    assert!(ended.into_iter().eq(&ends));
    // dbg-115: each message that left the bad path says so.
    assert!(!moved.is_empty());
    assert_eq!(world.received[1].len(), 8, "once each");
    let paths = a.fabric.paths(to_b);
    assert_eq!(
        (paths[0].state, paths[0].counters.timeouts),
        (PathState::Failed, 3)
    );
    assert_eq!(
        (paths[1].state, paths[1].counters.timeouts),
        (PathState::Active, 0)
    );
}

#[test]
fn what_cannot_be_taken_is_refused_with_the_reason() {
    let (mut a, b) = (open("127.46.9.1:0@udp"), open("127.46.10.1:0@udp"));
    let to_b = a.knows(&b);
    let too_long = vec![0; BULK_MESSAGE_MAX + 1];
    assert_eq!(
        a.fabric.send_bulk(1, to_b, &too_long),
        Err(DropReason::Oversize)
    );
    let taken = (0..100)
        .map(|_| a.fabric.send_bulk(1, to_b, b"x"))
        .filter(Result::is_ok)
        .count();
    assert_eq!(taken, 8);
    assert_eq!(a.fabric.send_bulk(1, to_b, b"x"), Err(DropReason::PeerBusy));
    a.fabric.forget(to_b);
    assert_eq!(
        a.fabric.send_bulk(1, to_b, b"x"),
        Err(DropReason::UnknownPeer)
    );
    let mut without = Node::open("127.46.11.1:0@udp");
    let to_b = without.knows(&b);
    assert_eq!(
        without.fabric.send_bulk(1, to_b, b"x"),
        Err(DropReason::NoPath)
    );
}

/// RS-05: a peer that was forgotten and taken in again is sent what it was never sent, and what was
/// forgotten with it is accounted for.
#[test]
fn a_peer_that_was_forgotten_gets_what_is_sent_after() {
    let (mut a, mut b) = (open("127.46.12.1:0@udp"), open("127.46.13.1:0@udp"));
    let mut to_b = a.knows(&b);
    b.knows(&a);
    let mut world = World::new(2);
    for text in ["first", "second", "third"] {
        let id = a
            .fabric
            .send_bulk(world.now_us(), to_b, text.as_bytes())
            .unwrap();
        let end = done(to_b, id);
        world.run(&mut [&mut a, &mut b], |world| {
            world.events[0].contains(&end)
        });
        assert_eq!(world.received[1].pop().unwrap().1, text.as_bytes());
        a.fabric.forget(to_b);
        to_b = a.knows(&b);
    }
    let ids: Vec<u64> = (0..3)
        .map(|_| {
            a.fabric
                .send_bulk(world.now_us(), to_b, b"too late")
                .unwrap()
        })
        .collect();
    a.fabric.forget(to_b);
    let told: Vec<FabricEvent> = std::iter::from_fn(|| a.fabric.poll_event()).collect();
    let failed = |message| FabricEvent::BulkFailed {
        peer: to_b,
        message,
        tried: Vec::new(),
    };
    assert_eq!(told, ids.into_iter().map(failed).collect::<Vec<_>>());
}

/// Design 8: without the key nothing is believed, whoever it says it is of.
#[test]
fn frames_under_another_key_are_counted_and_change_nothing() {
    let (mut a, mut b) = (open("127.46.14.1:0@udp"), open("127.46.15.1:0@udp"));
    let to_b = a.knows(&b);
    b.knows(&a);
    let mut world = World::new(2);
    a.fabric.set_key([1; 32]);
    a.fabric.send_bulk(world.now_us(), to_b, b"forged").unwrap();
    let refused = |b: &Node| {
        b.fabric.rails()[0]
            .counters
            .dropped(DropReason::BulkRefused)
    };
    while refused(&b) == 0 {
        world.run(&mut [&mut a, &mut b], |_| true);
        let now_us = world.now_us();
        a.drain(now_us, &mut world.received[0]);
        b.drain(now_us, &mut world.received[1]);
        assert!(world.start.elapsed() < DEADLINE);
    }
    assert_eq!(world.received[1], []);
    // The same message, repeated under the right key, is the first that is believed.
    a.fabric.set_key([9; 32]);
    world.run(&mut [&mut a, &mut b], |world| {
        world.events[0] == [done(to_b, 1)]
    });
    assert_eq!(world.received[1], [(0, b"forged".to_vec())]);
    let mut config = config("127.46.16.1:0@udp");
    config.key = None;
    let error = Fabric::open(&config).unwrap().open_bulk().unwrap_err();
    let text =
        "bulk lanes need the key that their messages are proven by; give the fabric one first";
    assert_eq!(error.to_string(), text);
}

#[test]
fn the_same_on_the_wheels_libfabric() {
    on_the_wheel("the_same_on_the_wheels_libfabric");
}
