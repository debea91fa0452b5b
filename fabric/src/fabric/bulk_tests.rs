//! Tests of the bulk lane from inside: what is under way, what is owed, and what it waits for.

use super::Fabric;
use crate::bulk::{BULK_MESSAGE_MAX, Fragment, Frame, HELD_BYTES_MAX, Kind, WINDOW};
use crate::health::Outcome;
use crate::peer::PeerHandle;
use crate::{Arrival, FabricConfig, FabricEvent, Transport};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(30);

fn open(rails: &str) -> Fabric {
    let library = crate::load().expect("libfabric is installed where tests run");
    let rails = rails.split(',').map(|nid| nid.parse().unwrap()).collect();
    let mut fabric = Fabric::open(&FabricConfig {
        key: Some([9; 32]),
        ..FabricConfig::new(library, rails)
    })
    .unwrap();
    fabric.open_bulk().unwrap();
    fabric
}

fn nobody(fabric: &mut Fabric, nid: &str) -> PeerHandle {
    fabric.peer(&nid.parse().unwrap()).unwrap()
}

/// Drives both until the condition holds of the first.
fn drive(a: &mut Fabric, b: &mut Fabric, until: impl Fn(&mut Fabric) -> bool) {
    let start = Instant::now();
    while !until(a) {
        let now_us = start.elapsed().as_micros() as u64 + 1;
        for fabric in [&mut *a, &mut *b] {
            fabric.poll(now_us, &mut |_: Arrival<'_>| {});
        }
        assert!(start.elapsed() < DEADLINE);
    }
}

/// RS-06: when all paths were refused at once, a message waits for its clock and keeps nobody awake.
#[test]
fn a_message_that_no_path_takes_waits_for_its_clock() {
    let mut a = open("127.48.1.1:0@udp");
    let peer = nobody(&mut a, "127.48.2.1:7741@udp");
    a.send_bulk(1_000, peer, b"x").unwrap();
    a.now_us = 2_000;
    a.leave_rail(0);
    assert_eq!(
        a.next_timeout(),
        Some(2_000),
        "it is tried by others at once"
    );
    a.pump_bulk(3_000);
    let due_us = a.next_timeout().unwrap();
    assert!(due_us > 3_000, "{due_us}");
    // All the same it is tried again, and given up in the end.
    let mut now_us = due_us;
    while a.poll_event().is_none() {
        a.poll(now_us, &mut |_: Arrival<'_>| {});
        let next_us = a.next_timeout().unwrap();
        assert!(next_us > now_us, "at {now_us} it is due at {next_us}");
        now_us = next_us;
    }
}

/// RS-06: other rails make other paths, and a message goes on by any of those that are left.
#[test]
fn a_message_goes_on_when_its_rail_is_removed() {
    let mut a = open("127.48.3.1:0@udp,127.48.3.2:0@udp");
    let mut b = open("127.48.4.1:0@udp,127.48.4.2:0@udp");
    let (to_b, nids) = (a.peer(&b.local_nids()).unwrap(), a.local_nids());
    b.peer(&nids).unwrap();
    let long = vec![3; 40_000];
    let id = a.send_bulk(1, to_b, &long).unwrap();
    let bulk = a.peers.get(to_b).unwrap().bulk.as_ref().unwrap();
    let used = bulk.choice.map(|choice| usize::from(choice.rail));
    let used = used.expect("it has a path, though the connection is not made yet");
    let nid = a.rails[used].as_ref().unwrap().nid.clone();
    a.remove_rail(&nid).unwrap();
    let bulk = a.peers.get(to_b).unwrap().bulk.as_ref().unwrap();
    assert_eq!((bulk.choice, bulk.tried.count()), (None, 0));
    assert!(bulk.sender.waits(), "all of it is sent by another path");
    let done = FabricEvent::BulkDone {
        peer: to_b,
        message: id,
    };
    drive(&mut a, &mut b, |a| a.poll_event().as_ref() == Some(&done));
}

/// RS-05: one peer that takes nothing leaves room on the lane for the others.
#[test]
fn sends_under_way_to_one_peer_are_bounded_and_given_back() {
    let (mut a, mut b) = (open("127.48.5.1:0@udp"), open("127.48.6.1:0@udp"));
    let (to_b, nids) = (a.peer(&b.local_nids()).unwrap(), a.local_nids());
    b.peer(&nids).unwrap();
    let long = vec![3; BULK_MESSAGE_MAX];
    a.send_bulk(1, to_b, &long).unwrap();
    let under_way = |a: &Fabric| a.peers.get(to_b).unwrap().paths[0].bulk_sends;
    let is_done = |a: &mut Fabric| {
        assert!(under_way(a) <= WINDOW);
        matches!(a.poll_event(), Some(FabricEvent::BulkDone { .. }))
    };
    drive(&mut a, &mut b, is_done);
    drive(&mut a, &mut b, |a| under_way(a) == 0);
    a.peers.get_mut(to_b).unwrap().paths[0].bulk_sends = WINDOW;
    a.send_bulk(u64::MAX / 2, to_b, b"later").unwrap();
    let waits = |a: &Fabric| {
        let bulk = a.peers.get(to_b).unwrap().bulk.as_ref();
        bulk.unwrap().sender.waits()
    };
    assert!(waits(&a));
    let credits = |a: &Fabric| {
        let lane = a.rails[0].as_ref().unwrap().bulk.as_ref().unwrap();
        lane.credits()
    };
    assert!(credits(&a) > WINDOW as usize, "the lane itself has room");
}

/// Design 8: whoever has the key may begin messages and never end them; that takes bounded memory.
#[test]
fn messages_that_are_not_whole_take_bounded_memory() {
    let mut a = open("127.48.7.1:0@udp");
    let piece = |index| Fragment {
        message: 1,
        length: BULK_MESSAGE_MAX as u32,
        index,
    };
    let frame = |index| Frame {
        sender: "127.48.8.1:7741".parse().unwrap(),
        stream: 1,
        fragment: piece(index),
        kind: Kind::Fragment,
    };
    let count = HELD_BYTES_MAX / BULK_MESSAGE_MAX;
    let mut peers = Vec::new();
    for index in 1..=count {
        let peer = nobody(&mut a, &format!("127.48.8.{index}:7741@udp"));
        assert!(a.has_room_for(peer, &frame(0)), "{index}");
        let known = a.peers.get_mut(peer).unwrap();
        let bulk = known.bulk.get_or_insert_with(Default::default);
        bulk.receiver.take(1, 1, piece(0), &[0; 16 << 10]);
        a.note_bulk(peer);
        peers.push(peer);
    }
    let further = nobody(&mut a, "127.48.9.1:7741@udp");
    assert!(!a.has_room_for(further, &frame(0)));
    assert!(
        a.has_room_for(peers[0], &frame(1)),
        "what was begun goes on"
    );
    a.forget(peers[0]);
    assert!(a.has_room_for(further, &frame(0)));
    assert_eq!(a.bulk_unfinished(), 1);
    let late_us = 1 + 2 * a.config.timeouts.reply_us;
    a.pump_bulk(late_us);
    assert_eq!(a.bulk_unfinished(), count as u64);
}

/// Who has nothing under way is looked after no more, and again when it has.
#[test]
fn each_peer_is_looked_after_once_and_as_long_as_it_needs() {
    let mut a = open("127.48.10.1:0@udp");
    let peer = nobody(&mut a, "127.48.11.1:7741@udp");
    for _ in 0..3 {
        a.send_bulk(1, peer, b"x").unwrap();
    }
    assert_eq!(a.bulk_peers, [peer]);
    a.forget(peer);
    a.pump_bulk(2);
    assert_eq!(a.bulk_peers, []);
    let peer = nobody(&mut a, "127.48.11.1:7741@udp");
    a.send_bulk(3, peer, b"x").unwrap();
    assert_eq!(a.bulk_peers, [peer]);
}

/// RS-04: that several peers answer on no message by one rail is found, once for all of them.
#[test]
fn a_rail_that_several_peers_do_not_answer_on_is_found_at_fault() {
    let mut a = open("127.48.12.1:0@udp,127.48.12.2:0@udp");
    let health = a.config.health;
    for index in 1..=3 {
        let nids = format!("127.48.13.{index}:7741@udp,127.48.14.{index}:7741@udp");
        let peer = nobody(&mut a, &nids);
        let mut change = None;
        for path in &mut a.peers.get_mut(peer).unwrap().paths {
            match path.rail {
                0 => change = path.bulk_health.tell(1, Outcome::LocalDown, &health),
                // It was used, and nothing speaks against it.
                _ => path.bulk_address = path.addresses.map(|addresses| addresses[0]),
            }
        }
        a.note_bulk_change(change);
    }
    let deaf =
        |a: &Fabric| -> Vec<bool> { a.rails.iter().flatten().map(|rail| rail.deaf).collect() };
    assert_eq!(deaf(&a), [false, false]);
    a.poll(2, &mut |_: Arrival<'_>| {});
    assert_eq!(deaf(&a), [true, false]);
    // The addresses above are none of the bulk lane's: nothing may give them back to it.
    let paths = a.peers.iter_mut().flat_map(|peer| &mut peer.paths);
    paths.for_each(|path| path.bulk_address = None);
}
