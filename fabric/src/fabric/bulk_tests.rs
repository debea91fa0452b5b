//! Tests of the bulk lane from inside: what is under way, what is owed, and what it waits for.

use super::Fabric;
use super::bulk::{AckQueue, Back, NO_FRAGMENT, PeerBulk, take_frame};
use crate::bulk::{
    BULK_MESSAGE_MAX, FRAGMENT_BYTES, Fragment, Frame, HELD_BYTES_MAX, Kind, Operation, Session,
    WINDOW,
};
use crate::health::Outcome;
use crate::peer::PeerHandle;
use crate::rail::Rail;
use crate::select::Tried;
use crate::{Arrival, DropReason, FabricConfig, FabricEvent, HealthState, PutOptions, Transport};
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

/// What is kept for a peer, made if need be.
fn bulk_with(fabric: &mut Fabric, peer: PeerHandle) -> &mut PeerBulk {
    let known = fabric.peers.get_mut(peer).unwrap();
    let new = || Box::new(PeerBulk::new(&mut fabric.last_session));
    known.bulk.get_or_insert_with(new)
}

/// Has a frame come by the first path to a peer; the message, if it is whole now.
fn take(fabric: &mut Fabric, peer: PeerHandle, frame: Frame, bytes: &[u8]) -> Option<Vec<u8>> {
    bulk_with(fabric, peer);
    let known = fabric.peers.get_mut(peer).unwrap();
    let (path, bulk) = (known.paths.first_mut(), known.bulk.as_mut().unwrap());
    let back = Back::Path(path.as_ref().unwrap().id);
    let taken = take_frame(&fabric.config, 1, bulk, path, back, frame, bytes);
    fabric.frame_taken(0, peer, taken)
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
    let bulk = a.stream_of(to_b, false).unwrap();
    let used = bulk.choice.map(|choice| usize::from(choice.rail));
    let used = used.expect("it has a path, though the connection is not made yet");
    let nid = a.rails[used].as_ref().unwrap().nid.clone();
    a.remove_rail(&nid).unwrap();
    let bulk = a.stream_of(to_b, false).unwrap();
    assert_eq!((bulk.choice, bulk.tried.count()), (None, 0));
    assert!(bulk.sender.waits(), "all of it is sent by another path");
    let done = FabricEvent::BulkDone {
        peer: to_b,
        message: id,
    };
    drive(&mut a, &mut b, |a| a.poll_event().as_ref() == Some(&done));
}

/// Two fabrics of two rails that have their connections; the clock is that of the last call.
fn warm(rails: [&str; 2]) -> (Fabric, Fabric, PeerHandle) {
    let (mut a, mut b) = (open(rails[0]), open(rails[1]));
    let (to_b, nids) = (a.peer(&b.local_nids()).unwrap(), a.local_nids());
    b.peer(&nids).unwrap();
    for _ in 0..2 {
        a.send_bulk(1, to_b, b"first").unwrap();
    }
    let used = |a: &Fabric| {
        let paths = a.peers.get(to_b).unwrap().paths.iter();
        paths.filter(|path| path.bulk_address.is_some()).count()
    };
    let mut done = 0;
    let start = Instant::now();
    while done < 2 || used(&a) < 2 {
        let now_us = start.elapsed().as_micros() as u64 + 1;
        if done >= 2 {
            done -= 1;
            a.send_bulk(now_us, to_b, b"once more").unwrap();
        }
        for fabric in [&mut a, &mut b] {
            fabric.poll(now_us, &mut |_: Arrival<'_>| {});
        }
        let events = std::iter::from_fn(|| a.poll_event());
        done += events
            .filter(|event| matches!(event, FabricEvent::BulkDone { .. }))
            .count();
        assert!(start.elapsed() < DEADLINE);
    }
    (a, b, to_b)
}

/// What of the regular message is under way by each rail, bytes.
fn under_way(a: &mut Fabric, to: PeerHandle) -> [usize; 2] {
    let peer = a.peers.get(to).unwrap();
    let streams = peer.bulk.iter().flat_map(|bulk| bulk.streams());
    let mut bytes = [0; 2];
    for (id, length) in streams.flat_map(|stream| stream.sender.outstanding()) {
        let path = peer.paths.iter().find(|path| path.id == id).unwrap();
        bytes[path.rail] += length;
    }
    bytes
}

/// snd-060, RS-06: fragments of one message go by all rails, and when one fails, what it held goes by the other,
/// which goes on with what it holds itself.
#[test]
fn a_message_is_spread_over_rails_and_leaves_the_one_that_fails() {
    let (mut a, mut b, to_b) = warm([
        "127.48.25.1:0@udp,127.48.25.2:0@udp",
        "127.48.26.1:0@udp,127.48.26.2:0@udp",
    ]);
    let now_us = a.now_us;
    let long: Vec<u8> = (0..BULK_MESSAGE_MAX).map(|at| (at % 251) as u8).collect();
    let id = a.send_bulk(now_us, to_b, &long).unwrap();
    let [first, second] = under_way(&mut a, to_b);
    assert!(first > 0 && second > 0, "{first} {second}");
    assert!(first.abs_diff(second) <= FRAGMENT_BYTES, "{first} {second}");
    a.leave_rail(0);
    assert_eq!(under_way(&mut a, to_b), [0, second]);
    a.pump_bulk(now_us);
    let after = under_way(&mut a, to_b);
    assert!(after[0] == 0 && after[1] >= second, "{after:?}");
    let start = Instant::now();
    let (mut came, mut events) = (Vec::new(), Vec::new());
    let done = FabricEvent::BulkDone {
        peer: to_b,
        message: id,
    };
    while !events.contains(&done) {
        let now_us = now_us + start.elapsed().as_micros() as u64;
        a.poll(now_us, &mut |_: Arrival<'_>| {});
        b.poll(now_us, &mut |arrival: Arrival<'_>| {
            came.push(arrival.bytes.to_vec());
        });
        events.extend(std::iter::from_fn(|| a.poll_event()));
        assert!(start.elapsed() < DEADLINE);
    }
    assert!(came == [long], "once, whole and unchanged");
    assert_eq!(under_way(&mut a, to_b), [0, 0]);
    let moved = |event: &&FabricEvent| matches!(event, FabricEvent::Moved { .. });
    assert!(events.iter().any(|event| moved(&event)), "{events:?}");
}

/// RS-08: what follows a message that nobody acknowledges passes it by no other rail, until it is known to have
/// arrived behind it.
#[test]
fn what_follows_a_message_without_acknowledgement_is_spread_once_that_has_passed() {
    let (mut a, mut b, to_b) = warm([
        "127.48.31.1:0@udp,127.48.31.2:0@udp",
        "127.48.32.1:0@udp,127.48.32.2:0@udp",
    ]);
    let now_us = a.now_us;
    let put_options = PutOptions {
        acked: false,
        ..PutOptions::default()
    };
    a.put(now_us, to_b, put_options, b"nobody acknowledges this")
        .unwrap();
    let by = a.stream_of(to_b, false).unwrap().choice.unwrap().rail;
    a.send_bulk(now_us, to_b, &vec![1; BULK_MESSAGE_MAX])
        .unwrap();
    let held = under_way(&mut a, to_b);
    assert!(held[usize::from(by)] > 0, "{held:?}");
    assert_eq!(held[1 - usize::from(by)], 0, "{held:?}");
    let start = Instant::now();
    let mut other = 0;
    while other == 0 {
        for fabric in [&mut a, &mut b] {
            fabric.poll(now_us, &mut |_: Arrival<'_>| {});
        }
        other = under_way(&mut a, to_b)[1 - usize::from(by)];
        assert!(start.elapsed() < DEADLINE);
    }
    let refused = |rail: &Rail| rail.counters.dropped(DropReason::BulkRefused);
    assert_eq!(b.rails.iter().flatten().map(refused).sum::<u64>(), 0);
}

/// The limit of a rail is that of its bulk lane, too: a burst of one millisecond, and no more before time passes.
#[test]
fn a_rail_with_a_limit_takes_no_more_bulk_messages_than_that() {
    let (mut a, _b, to_b) = warm([
        "127.48.27.1:0@udp,127.48.27.2:0@udp",
        "127.48.28.1:0@udp,127.48.28.2:0@udp",
    ]);
    a.limit_bulk(20_000_000);
    let now_us = a.now_us + 1_000;
    a.send_bulk(now_us, to_b, &vec![1; BULK_MESSAGE_MAX])
        .unwrap();
    assert_eq!(under_way(&mut a, to_b), [FRAGMENT_BYTES; 2]);
    a.pump_bulk(now_us);
    assert_eq!(under_way(&mut a, to_b), [FRAGMENT_BYTES; 2]);
    a.pump_bulk(now_us + 1_000);
    assert_eq!(under_way(&mut a, to_b), [2 * FRAGMENT_BYTES; 2]);
}

/// snd-060: of two rails that are equal otherwise the one that holds less takes the next fragment.
#[test]
fn the_rail_with_the_least_that_is_not_acknowledged_takes_the_next_fragment() {
    let mut a = open("127.48.29.1:0@udp,127.48.29.2:0@udp");
    let peer = nobody(&mut a, "127.48.30.1:7741@udp,127.48.30.2:7741@udp");
    for (held, rail) in [([5, 4], 1), ([4, 5], 0), ([0, 1], 0), ([1, 0], 1)] {
        for (of, bytes) in a.rails.iter_mut().flatten().zip(held) {
            of.bulk_bytes = bytes;
        }
        let (chosen, _) = a.choose_bulk(peer, Tried::default(), None).unwrap();
        assert_eq!(chosen.rail, rail, "{held:?}");
    }
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
    assert!(a.stream_of(to_b, false).unwrap().sender.waits());
    let credits = |a: &Fabric| {
        let lane = a.rails[0].as_ref().unwrap().bulk.as_ref().unwrap();
        lane.credits()
    };
    assert!(credits(&a) > WINDOW as usize, "the lane itself has room");
}

/// RS-08: what nobody acknowledges, and another message has passed, is dropped and counted as that; what
/// comes once more because its acknowledgement was lost is not.
#[test]
fn what_was_passed_on_the_way_is_counted() {
    let mut a = open("127.48.19.1:0@udp");
    let peer = nobody(&mut a, "127.48.20.1:7741@udp");
    let mut theirs = Session::new(1);
    let mut came = |a: &mut Fabric, operation, message| {
        let bulk = bulk_with(a, peer);
        let frame = Frame {
            sender: "127.48.20.1:7741".parse().unwrap(),
            stamp: theirs.stamp(bulk.session.own()),
            fragment: Fragment {
                message,
                length: 1,
                index: 0,
            },
            kind: Kind::Fragment,
            operation,
            urgent: false,
        };
        let whole = take(a, peer, frame, b"x").is_some();
        let rail = a.rails[0].as_ref().unwrap();
        (whole, rail.counters.dropped(DropReason::BulkRefused))
    };
    assert_eq!(came(&mut a, Operation::PutUnacked, 2), (true, 0));
    assert_eq!(came(&mut a, Operation::PutUnacked, 1), (false, 1));
    assert_eq!(came(&mut a, Operation::Put, 3), (true, 1));
    assert_eq!(came(&mut a, Operation::Put, 3), (false, 1));
}

/// What is owed to a peer: what is said, to which of its sessions, and whether that is ours alone.
fn owed(fabric: &mut Fabric, peer: PeerHandle) -> Vec<(Kind, u64, bool)> {
    let owed = std::mem::take(&mut fabric.bulk_of(peer).unwrap().owed);
    let what = |one: AckQueue| (one.frame.kind, one.frame.stamp.session, one.introduces);
    owed.into_iter().map(what).collect()
}

/// RS-05: repeated frames of a peer, of this session or an earlier one, deliver no message again and make no path
/// work. A peer that does not know our session is told it. In a new session of the peer's a message begins anew.
#[test]
fn a_frame_that_is_repeated_changes_nothing() {
    let mut a = open("127.48.33.1:0@udp");
    let nid = "127.48.34.1:7741@udp";
    let peer = nobody(&mut a, nid);
    let mut theirs = Session::new(5);
    let own = bulk_with(&mut a, peer).session.own();
    let mut frame = |to, kind, message, length| Frame {
        sender: "127.48.34.1:7741".parse().unwrap(),
        stamp: theirs.stamp(to),
        fragment: Fragment {
            message,
            length,
            index: 0,
        },
        kind,
        operation: Operation::Put,
        urgent: false,
    };
    let refused = |a: &Fabric| {
        let rail = a.rails[0].as_ref().unwrap();
        rail.counters.dropped(DropReason::BulkRefused)
    };
    let first = frame(own, Kind::Fragment, 1, 1);
    let acked = frame(own, Kind::Acked(0), 0, 0);
    assert_eq!(take(&mut a, peer, first, b"x"), Some(b"x".to_vec()));
    assert_eq!(owed(&mut a, peer), [(Kind::Acked(1), 5, false)]);
    take(&mut a, peer, acked, b"");
    // The path fails; what was said before is no word of it.
    let health = a.config.health;
    let bulk_health = |a: &mut Fabric| a.peers.get_mut(peer).unwrap().paths[0].bulk_health.clone();
    let path = &mut a.peers.get_mut(peer).unwrap().paths[0];
    path.bulk_health.tell(2, Outcome::LocalDown, &health);
    assert!(bulk_health(&mut a).is_failed());
    for (count, (old, bytes)) in (1..).zip([(first, &b"x"[..]), (acked, b"")]) {
        assert_eq!(take(&mut a, peer, old, bytes), None);
        assert_eq!((refused(&a), owed(&mut a, peer)), (count, vec![]));
        assert!(bulk_health(&mut a).is_failed());
    }

    // Forgotten and taken in again, or begun anew: nothing is taken for the session before.
    a.forget(peer);
    let peer = nobody(&mut a, nid);
    assert_eq!(take(&mut a, peer, first, b"x"), None);
    assert_eq!(
        owed(&mut a, peer),
        [(Kind::Acked(0), 5, true)],
        "it may ask"
    );
    assert_eq!(take(&mut a, peer, acked, b""), None);
    assert_eq!((refused(&a), owed(&mut a, peer)), (4, vec![]));
    let anew = bulk_with(&mut a, peer).session.own();
    assert!(anew > own && bulk_with(&mut a, peer).session.theirs() == 0);
    assert_eq!(
        take(&mut a, peer, frame(0, Kind::Question, 0, 0), b""),
        None
    );
    assert_eq!(owed(&mut a, peer), [(Kind::Acked(0), 5, true)]);

    // A message of ours of which the peer had a part begins anew with the peer.
    let long = vec![1; 2 * FRAGMENT_BYTES];
    let id = a.send_bulk(3, peer, &long).unwrap();
    let part = frame(anew, Kind::Acked(1), id, long.len() as u32);
    take(&mut a, peer, part, b"");
    assert!(a.stream_of(peer, false).unwrap().sender.has_acked());
    let begun = Frame {
        stamp: Session::new(6).stamp(anew),
        fragment: NO_FRAGMENT,
        ..part
    };
    take(&mut a, peer, begun, b"");
    assert!(!a.stream_of(peer, false).unwrap().sender.has_acked());
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
        stamp: Session::new(1).stamp(0),
        fragment: piece(index),
        kind: Kind::Fragment,
        operation: Operation::Put,
        urgent: false,
    };
    let count = HELD_BYTES_MAX / BULK_MESSAGE_MAX;
    let mut peers = Vec::new();
    for index in 1..=count {
        let peer = nobody(&mut a, &format!("127.48.8.{index}:7741@udp"));
        assert!(a.has_room_for(peer, &frame(0)), "{index}");
        bulk_with(&mut a, peer)
            .stream(false)
            .receiver
            .take(1, 1, piece(0), &[0; 16 << 10]);
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

/// RS-04: that several peers answer on no bulk message by one rail is found, once for all of them, and
/// speaks against that lane of it only.
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
    let deaf = |a: &Fabric, of: fn(&Rail) -> bool| -> Vec<bool> {
        a.rails.iter().flatten().map(of).collect()
    };
    assert_eq!(deaf(&a, |rail| rail.bulk_deaf), [false, false]);
    a.poll(2, &mut |_: Arrival<'_>| {});
    assert_eq!(deaf(&a, |rail| rail.bulk_deaf), [true, false]);
    assert_eq!(deaf(&a, |rail| rail.deaf), [false, false]);
    assert_eq!(
        a.poll_event(),
        None,
        "nobody is told that datagrams do not pass"
    );
    let states: Vec<HealthState> = a.rails().iter().map(|rail| rail.state).collect();
    assert_eq!(states, [HealthState::Degraded, HealthState::Active]);
    assert_eq!(a.findings(), []);
    let told = a.findings_in_words();
    assert!(
        told[0].starts_with("bulk messages: nothing works on 127.48.12.1:"),
        "{told:?}"
    );
    // Bulk messages take the other rail, datagrams both.
    let peer = *a.peers(None, 1).first().unwrap();
    let chosen = a.choose_bulk(peer, Tried::default(), None);
    assert_eq!(
        chosen.map(|(choice, works)| (choice.rail, works)),
        Some((1, true))
    );
    let took = [0; 2].map(|_| a.select_path(peer, &Tried::default()).unwrap().rail);
    assert!(took == [0, 1] || took == [1, 0], "{took:?}");
    // The addresses above are none of the bulk lane's: nothing may give them back to it.
    let paths = a.peers.iter_mut().flat_map(|peer| &mut peer.paths);
    paths.for_each(|path| path.bulk_address = None);
}

/// RS-07: a path whose address was refused is asked again like any other that failed.
#[test]
fn a_path_whose_address_was_refused_is_asked_again_and_recovers() {
    let (mut a, mut b) = (open("127.48.17.1:0@udp"), open("127.48.18.1:0@udp"));
    let (to_b, nids) = (a.peer(&b.local_nids()).unwrap(), a.local_nids());
    b.peer(&nids).unwrap();
    let health = a.config.health;
    let peer = a.peers.get_mut(to_b).unwrap();
    // As if libfabric had not taken its address.
    peer.paths[0]
        .bulk_health
        .tell(1, Outcome::LocalDown, &health);
    peer.bulk = Some(Box::new(PeerBulk::new(&mut 0)));
    a.note_bulk(to_b);
    assert_eq!(a.next_timeout(), Some(1 + health.pause_min_us));
    drive(&mut a, &mut b, |a| {
        let path = &a.peers.get(to_b).unwrap().paths[0];
        !path.bulk_health.is_failed() && path.bulk_address.is_some()
    });
}

/// cfg-020: a rail that is added later carries bulk messages like the others, or is not added.
#[test]
fn a_rail_that_is_added_has_a_bulk_lane_if_others_have_one() {
    let mut a = open("127.48.22.1:0@udp");
    let index = a.add_rail(&"127.48.22.2:0@udp".parse().unwrap()).unwrap();
    assert!(a.rails[index].as_ref().unwrap().bulk.is_some());
    let before = a.local_nids();
    let taken = std::net::TcpListener::bind("127.48.22.3:7741").unwrap();
    let refused = a.add_rail(&"127.48.22.3:7741@udp".parse().unwrap());
    assert!(refused.is_err(), "its bulk lane has no port");
    assert_eq!(a.local_nids(), before);
    drop(taken);
    a.add_rail(&"127.48.22.3:7741@udp".parse().unwrap())
        .unwrap();
}

/// AG-16: regular messages wait for urgent ones that the lane does not take, and keep nobody awake.
#[test]
fn what_is_regular_waits_for_what_is_urgent() {
    let mut a = open("127.48.15.1:0@udp");
    let peer = nobody(&mut a, "127.48.16.1:7741@udp");
    a.peers.get_mut(peer).unwrap().paths[0].bulk_sends = WINDOW;
    a.send_bulk(1_000, peer, b"regular").unwrap();
    let urgent = PutOptions {
        urgent: true,
        ..PutOptions::default()
    };
    a.put(1_900, peer, urgent, b"urgent").unwrap();
    let due_us = |a: &mut Fabric, urgent| a.stream_of(peer, urgent).unwrap().next_us;
    assert_eq!(due_us(&mut a, false), due_us(&mut a, true));
    // There is room again, for who comes first.
    a.peers.get_mut(peer).unwrap().paths[0].bulk_sends = 0;
    a.pump_bulk(2_500);
    assert!(a.stream_of(peer, false).unwrap().sender.waits());
    assert_eq!(a.next_timeout(), Some(due_us(&mut a, true)));
}

/// AG-16: what goes by another lane passes nothing that is urgent, and does not wait for it.
#[test]
fn what_is_regular_does_not_wait_for_another_lane() {
    let mut a = open("127.48.21.1:0@udp,127.48.21.2:0@udp");
    let peer = nobody(&mut a, "127.48.22.1:7741@udp,127.48.22.2:7741@udp");
    let fill = |a: &mut Fabric, sends: [u32; 2]| {
        for path in &mut a.peers.get_mut(peer).unwrap().paths {
            path.bulk_sends = sends[path.rail];
        }
    };
    fill(&mut a, [WINDOW; 2]);
    let urgent = PutOptions {
        urgent: true,
        ..PutOptions::default()
    };
    a.put(1_000, peer, urgent, b"urgent").unwrap();
    let of = |a: &mut Fabric, urgent: bool| {
        let stream = a.stream_of(peer, urgent).unwrap();
        (stream.choice.unwrap().rail, stream.next_us)
    };
    let (stuck, until_us) = of(&mut a, true);
    assert!(until_us > 1_000);
    let sends = if stuck == 0 { [WINDOW, 0] } else { [0, WINDOW] };
    fill(&mut a, sends);
    a.send_bulk(1_100, peer, b"regular").unwrap();
    let (taken, next_us) = of(&mut a, false);
    assert_ne!(taken, stuck, "or there is nothing to see");
    assert_ne!(next_us, until_us, "it waits for itself at most");
    fill(&mut a, [0; 2]);
}

/// Every drop has a counter: an acknowledgement that its carrier's lane never took.
#[test]
fn what_is_owed_through_a_busy_carrier_is_counted_when_it_is_given_up() {
    let mut a = open("127.48.23.1:0@udp");
    let peer = nobody(&mut a, "127.48.24.1:7741@udp");
    let by = nobody(&mut a, "127.48.24.2:7741@udp");
    a.peers.get_mut(by).unwrap().paths[0].bulk_sends = WINDOW;
    let own = bulk_with(&mut a, peer).session.own();
    let frame = Frame {
        sender: "127.48.24.1:7741".parse().unwrap(),
        stamp: Session::new(1).stamp(own),
        fragment: Fragment {
            message: 1,
            length: 1,
            index: 0,
        },
        kind: Kind::Fragment,
        operation: Operation::Put,
        urgent: false,
    };
    let bulk = a.peers.get_mut(peer).unwrap().bulk.as_mut().unwrap();
    let taken = take_frame(&a.config, 1, bulk, None, Back::Through(by), frame, b"x");
    a.frame_taken(0, peer, taken);
    let busy = |a: &Fabric| {
        let rail = a.rails[0].as_ref().unwrap();
        rail.counters.dropped(DropReason::RailBusy)
    };
    while let Some(due_us) = a.next_timeout() {
        assert_eq!(busy(&a), 0);
        a.pump_bulk(due_us);
    }
    assert_eq!(busy(&a), 1);
    a.peers.get_mut(by).unwrap().paths[0].bulk_sends = 0;
}
