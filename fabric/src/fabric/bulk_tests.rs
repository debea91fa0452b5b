//! Tests of the bulk lane with access to its state: sends under way, queued acknowledgements, and timers.

use super::Fabric;
use crate::bulk::{
    BULK_MESSAGE_MAX, Back, FRAGMENT_BYTES, Fragment, Frame, HELD_BYTES_MAX, Kind, NO_FRAGMENT,
    Operation, PeerBulk, PendingAck, Session, WINDOW,
};
use crate::peer_handle::PeerHandle;
use crate::rail::Rail;
use crate::select::Tried;
use crate::{Arrival, DropReason, FabricConfig, FabricEvent, HealthState, PutOptions, Transport};
use muster_rail_health::Outcome;
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

fn absent_peer(fabric: &mut Fabric, nid: &str) -> PeerHandle {
    fabric.peer(&nid.parse().unwrap()).unwrap()
}

/// The bulk state of a peer, created if there is none.
fn bulk_with(fabric: &mut Fabric, peer: PeerHandle) -> &mut PeerBulk {
    let known = fabric.peers.get_mut(peer).unwrap();
    let new = || Box::new(PeerBulk::new(&mut fabric.last_session));
    known.bulk.get_or_insert_with(new)
}

/// Delivers a frame as if it had arrived by the first path to a peer. Returns the message if it is complete now.
fn take(fabric: &mut Fabric, peer: PeerHandle, frame: Frame, bytes: &[u8]) -> Option<Vec<u8>> {
    bulk_with(fabric, peer);
    let known = fabric.peers.get_mut(peer).unwrap();
    let (path, bulk) = (&mut known.paths[0], known.bulk.as_mut().unwrap());
    let back = Back::Path(path.id);
    let FabricConfig {
        timeouts, health, ..
    } = &fabric.config;
    let health = Some((&mut path.bulk_health, health));
    let taken = bulk.take_frame(1, timeouts, health, back, frame, bytes);
    fabric.frame_taken(0, peer, taken)
}

/// Polls both fabrics until the condition holds for the first.
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

/// RS-06: after all paths have refused a message, the message waits for its timer and does not keep the host awake.
#[test]
fn a_message_that_no_path_takes_waits_for_its_timer() {
    let mut a = open("127.48.1.1:0@udp");
    let peer = absent_peer(&mut a, "127.48.2.1:7741@udp");
    a.send_bulk(1_000, peer, b"x").unwrap();
    a.now_us = 2_000;
    a.leave_rail(0);
    assert_eq!(
        a.next_timeout(),
        Some(2_000),
        "other paths are tried at once"
    );
    a.drive_bulk(3_000);
    let due_us = a.next_timeout().unwrap();
    assert!(due_us > 3_000, "{due_us}");
    // The message is tried again, and given up in the end.
    let mut now_us = due_us;
    while a.poll_event().is_none() {
        a.poll(now_us, &mut |_: Arrival<'_>| {});
        let next_us = a.next_timeout().unwrap();
        assert!(next_us > now_us, "at {now_us} it is due at {next_us}");
        now_us = next_us;
    }
}

/// RS-06: when rails change, a message continues by any of the remaining paths.
#[test]
fn a_message_continues_when_its_rail_is_removed() {
    let mut a = open("127.48.3.1:0@udp,127.48.3.2:0@udp");
    let mut b = open("127.48.4.1:0@udp,127.48.4.2:0@udp");
    let (to_b, nids) = (a.peer(&b.local_nids()).unwrap(), a.local_nids());
    b.peer(&nids).unwrap();
    let long = vec![3; 40_000];
    let id = a.send_bulk(1, to_b, &long).unwrap();
    let bulk = a.stream_of(to_b, false).unwrap();
    let used = bulk.choice.map(|choice| usize::from(choice.rail));
    let used = used.expect("a path is chosen before its connection is made");
    let nid = a.rails[used].as_ref().unwrap().nid.clone();
    a.remove_rail(&nid).unwrap();
    let bulk = a.stream_of(to_b, false).unwrap();
    assert_eq!((bulk.choice, bulk.tried.count()), (None, 0));
    assert!(
        bulk.sender.waits(),
        "all fragments are sent again by another path"
    );
    let done = FabricEvent::BulkDone {
        peer: to_b,
        message: id,
    };
    drive(&mut a, &mut b, |a| a.poll_event().as_ref() == Some(&done));
}

/// Two fabrics with two rails each and established connections. The first one's `now_us` is the time of the last
/// call.
fn connected(rails: [&str; 2]) -> (Fabric, Fabric, PeerHandle) {
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

/// Bytes of the regular message under way on each rail.
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

/// snd-060, RS-06: fragments of one message are spread over all rails. When one rail fails, its fragments are sent by
/// the other, which keeps its own.
#[test]
fn a_message_is_spread_over_rails_and_moves_off_a_failed_rail() {
    let (mut a, mut b, to_b) = connected([
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
    a.drive_bulk(now_us);
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
    assert!(
        came == [long],
        "the message arrives once, complete and unchanged"
    );
    assert_eq!(under_way(&mut a, to_b), [0, 0]);
    let moved = |event: &&FabricEvent| matches!(event, FabricEvent::Moved { .. });
    assert!(events.iter().any(|event| moved(&event)), "{events:?}");
}

/// RS-08: the messages after one without acknowledgement do not overtake it by another rail, until a fragment that
/// followed it is acknowledged.
#[test]
fn a_message_after_one_without_acknowledgement_is_spread_when_its_path_is_proven() {
    let (mut a, mut b, to_b) = connected([
        "127.48.31.1:0@udp,127.48.31.2:0@udp",
        "127.48.32.1:0@udp,127.48.32.2:0@udp",
    ]);
    let now_us = a.now_us;
    let put_options = PutOptions {
        acked: false,
        ..PutOptions::default()
    };
    a.put(now_us, to_b, put_options, b"not acknowledged")
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

/// A limited rail also limits its bulk lane: a burst of one millisecond, and no more before time passes.
#[test]
fn a_limited_rail_takes_bulk_messages_within_its_limit() {
    let (mut a, _b, to_b) = connected([
        "127.48.27.1:0@udp,127.48.27.2:0@udp",
        "127.48.28.1:0@udp,127.48.28.2:0@udp",
    ]);
    a.limit_bulk(20_000_000);
    let now_us = a.now_us + 1_000;
    a.send_bulk(now_us, to_b, &vec![1; BULK_MESSAGE_MAX])
        .unwrap();
    assert_eq!(under_way(&mut a, to_b), [FRAGMENT_BYTES; 2]);
    a.drive_bulk(now_us);
    assert_eq!(under_way(&mut a, to_b), [FRAGMENT_BYTES; 2]);
    a.drive_bulk(now_us + 1_000);
    assert_eq!(under_way(&mut a, to_b), [2 * FRAGMENT_BYTES; 2]);
}

/// snd-060: of two otherwise equal rails, the one with less under way takes the next fragment.
#[test]
fn the_rail_with_the_fewest_unacknowledged_bytes_takes_the_next_fragment() {
    let mut a = open("127.48.29.1:0@udp,127.48.29.2:0@udp");
    let peer = absent_peer(&mut a, "127.48.30.1:7741@udp,127.48.30.2:7741@udp");
    for (held, rail) in [([5, 4], 1), ([4, 5], 0), ([0, 1], 0), ([1, 0], 1)] {
        for (of, bytes) in a.rails.iter_mut().flatten().zip(held) {
            of.bulk_bytes = bytes;
        }
        let (chosen, _) = a.choose_bulk(peer, Tried::default(), None).unwrap();
        assert_eq!(chosen.rail, rail, "{held:?}");
    }
}

/// RS-05: a peer that takes nothing leaves room on the lane for other peers.
#[test]
fn sends_under_way_to_one_peer_are_bounded_and_freed() {
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
    assert!(
        credits(&a) > WINDOW as usize,
        "the lane has room for other peers"
    );
}

/// RS-08: a message without acknowledgement that was overtaken is dropped and counted. A repetition after a lost
/// acknowledgement is not counted.
#[test]
fn an_overtaken_message_is_dropped_and_counted() {
    let mut a = open("127.48.19.1:0@udp");
    let peer = absent_peer(&mut a, "127.48.20.1:7741@udp");
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

/// The acknowledgements queued for a peer: the kind, the session they are for, and whether they only announce ours.
fn queued_acks(fabric: &mut Fabric, peer: PeerHandle) -> Vec<(Kind, u64, bool)> {
    let acks = std::mem::take(&mut fabric.bulk_of(peer).unwrap().acks);
    let fields = |one: PendingAck| (one.frame.kind, one.frame.stamp.session, one.introduces);
    acks.into_iter().map(fields).collect()
}

/// RS-05: repeated frames of a peer, of this session or an earlier one, deliver no message again and do not mark a
/// path as working. A peer that does not know our session is sent its number. In a new session of the peer a message
/// is sent again from the beginning.
#[test]
fn a_repeated_frame_changes_nothing() {
    let mut a = open("127.48.33.1:0@udp");
    let nid = "127.48.34.1:7741@udp";
    let peer = absent_peer(&mut a, nid);
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
    assert_eq!(queued_acks(&mut a, peer), [(Kind::Acked(1), 5, false)]);
    take(&mut a, peer, acked, b"");
    // The path fails. Frames from before do not prove that it works.
    let health = a.config.health;
    let bulk_health = |a: &mut Fabric| a.peers.get_mut(peer).unwrap().paths[0].bulk_health.clone();
    let path = &mut a.peers.get_mut(peer).unwrap().paths[0];
    path.bulk_health.tell(2, Outcome::LocalDown, &health);
    assert!(bulk_health(&mut a).is_failed());
    for (count, (old, bytes)) in (1..).zip([(first, &b"x"[..]), (acked, b"")]) {
        assert_eq!(take(&mut a, peer, old, bytes), None);
        assert_eq!((refused(&a), queued_acks(&mut a, peer)), (count, vec![]));
        assert!(bulk_health(&mut a).is_failed());
    }

    // After the peer is forgotten and added again, or has begun a new session, nothing is taken for the old session.
    a.forget(peer);
    let peer = absent_peer(&mut a, nid);
    assert_eq!(take(&mut a, peer, first, b"x"), None);
    assert_eq!(
        queued_acks(&mut a, peer),
        [(Kind::Acked(0), 5, true)],
        "the answer announces the new session"
    );
    assert_eq!(take(&mut a, peer, acked, b""), None);
    assert_eq!((refused(&a), queued_acks(&mut a, peer)), (4, vec![]));
    let anew = bulk_with(&mut a, peer).session.own();
    assert!(anew > own && bulk_with(&mut a, peer).session.theirs() == 0);
    assert_eq!(take(&mut a, peer, frame(0, Kind::Probe, 0, 0), b""), None);
    assert_eq!(queued_acks(&mut a, peer), [(Kind::Acked(0), 5, true)]);

    // A message of which the peer had a part is sent again from the beginning in the peer's new session.
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

/// Design 8: a process that has the key may begin messages and never complete them. That takes bounded memory.
#[test]
fn incomplete_messages_take_bounded_memory() {
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
        let peer = absent_peer(&mut a, &format!("127.48.8.{index}:7741@udp"));
        assert!(a.has_room_for(peer, &frame(0)), "{index}");
        bulk_with(&mut a, peer)
            .stream(false)
            .receiver
            .take(1, 1, piece(0), &[0; 16 << 10]);
        a.note_bulk(peer);
        peers.push(peer);
    }
    let further = absent_peer(&mut a, "127.48.9.1:7741@udp");
    assert!(!a.has_room_for(further, &frame(0)));
    assert!(
        a.has_room_for(peers[0], &frame(1)),
        "a message that was begun may continue"
    );
    a.forget(peers[0]);
    assert!(a.has_room_for(further, &frame(0)));
    assert_eq!(a.bulk_unfinished(), 1);
    let late_us = 1 + 2 * a.config.timeouts.reply_us;
    a.drive_bulk(late_us);
    assert_eq!(a.bulk_unfinished(), count as u64);
}

/// A peer is in `bulk_peers` once, as long as something is under way, and again later.
#[test]
fn a_peer_is_listed_once_while_something_is_under_way() {
    let mut a = open("127.48.10.1:0@udp");
    let peer = absent_peer(&mut a, "127.48.11.1:7741@udp");
    for _ in 0..3 {
        a.send_bulk(1, peer, b"x").unwrap();
    }
    assert_eq!(a.bulk_peers, [peer]);
    a.forget(peer);
    a.drive_bulk(2);
    assert_eq!(a.bulk_peers, []);
    let peer = absent_peer(&mut a, "127.48.11.1:7741@udp");
    a.send_bulk(3, peer, b"x").unwrap();
    assert_eq!(a.bulk_peers, [peer]);
}

/// RS-04: a rail on which several peers acknowledge no bulk message is found once for all of them, and only its bulk
/// lane is at fault.
#[test]
fn a_rail_on_which_several_peers_do_not_acknowledge_is_at_fault() {
    let mut a = open("127.48.12.1:0@udp,127.48.12.2:0@udp");
    let health = a.config.health;
    for index in 1..=3 {
        let nids = format!("127.48.13.{index}:7741@udp,127.48.14.{index}:7741@udp");
        let peer = absent_peer(&mut a, &nids);
        let mut change = None;
        for path in &mut a.peers.get_mut(peer).unwrap().paths {
            match path.rail {
                0 => change = path.bulk_health.tell(1, Outcome::LocalDown, &health),
                // The path was used and has no errors.
                _ => path.bulk_address = path.addresses.map(|addresses| addresses[0]),
            }
        }
        a.note_bulk_change(change);
    }
    let flags = |a: &Fabric, of: fn(&Rail) -> bool| -> Vec<bool> {
        a.rails.iter().flatten().map(of).collect()
    };
    assert_eq!(flags(&a, |rail| rail.bulk_receive_failing), [false, false]);
    a.poll(2, &mut |_: Arrival<'_>| {});
    assert_eq!(flags(&a, |rail| rail.bulk_receive_failing), [true, false]);
    assert_eq!(flags(&a, |rail| rail.receive_failing), [false, false]);
    assert_eq!(
        a.poll_event(),
        None,
        "datagrams pass, so no rail is reported as failing"
    );
    let states: Vec<HealthState> = a.rails().iter().map(|rail| rail.state).collect();
    assert_eq!(states, [HealthState::Degraded, HealthState::Active]);
    assert_eq!(a.findings(), []);
    let findings = a.findings_in_words();
    assert!(
        findings[0].starts_with("bulk messages: no pair of 127.48.12.1:"),
        "{findings:?}"
    );
    // Bulk messages take the other rail, datagrams take both.
    let peer = *a.peers(None, 1).first().unwrap();
    let chosen = a.choose_bulk(peer, Tried::default(), None);
    assert_eq!(
        chosen.map(|(choice, works)| (choice.rail, works)),
        Some((1, true))
    );
    let took = [0; 2].map(|_| a.select_path(peer, &Tried::default()).unwrap().rail);
    assert!(took == [0, 1] || took == [1, 0], "{took:?}");
    // The addresses set above do not belong to the bulk lane: they must not be removed from it.
    let paths = a.peers.iter_mut().flat_map(|peer| &mut peer.paths);
    paths.for_each(|path| path.bulk_address = None);
}

/// RS-07: a path whose address was refused is probed like any other failed path.
#[test]
fn a_path_whose_address_was_refused_is_probed_and_recovers() {
    let (mut a, mut b) = (open("127.48.17.1:0@udp"), open("127.48.18.1:0@udp"));
    let (to_b, nids) = (a.peer(&b.local_nids()).unwrap(), a.local_nids());
    b.peer(&nids).unwrap();
    let health = a.config.health;
    let peer = a.peers.get_mut(to_b).unwrap();
    // As if libfabric had refused its address.
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
    assert!(refused.is_err(), "the port of its bulk lane is in use");
    assert_eq!(a.local_nids(), before);
    drop(taken);
    a.add_rail(&"127.48.22.3:7741@udp".parse().unwrap())
        .unwrap();
}

/// AG-16: regular messages wait for urgent ones that the lane does not take, and do not keep the host awake.
#[test]
fn regular_messages_wait_for_urgent_ones() {
    let mut a = open("127.48.15.1:0@udp");
    let peer = absent_peer(&mut a, "127.48.16.1:7741@udp");
    a.peers.get_mut(peer).unwrap().paths[0].bulk_sends = WINDOW;
    a.send_bulk(1_000, peer, b"regular").unwrap();
    let urgent = PutOptions {
        urgent: true,
        ..PutOptions::default()
    };
    a.put(1_900, peer, urgent, b"urgent").unwrap();
    let due_us = |a: &mut Fabric, urgent| a.stream_of(peer, urgent).unwrap().next_us;
    assert_eq!(due_us(&mut a, false), due_us(&mut a, true));
    // The lane has room again.
    a.peers.get_mut(peer).unwrap().paths[0].bulk_sends = 0;
    a.drive_bulk(2_500);
    assert!(a.stream_of(peer, false).unwrap().sender.waits());
    assert_eq!(a.next_timeout(), Some(due_us(&mut a, true)));
}

/// AG-16: by another lane, regular messages do not overtake urgent ones, and do not wait for them.
#[test]
fn regular_messages_do_not_wait_for_another_lane() {
    let mut a = open("127.48.21.1:0@udp,127.48.21.2:0@udp");
    let peer = absent_peer(&mut a, "127.48.22.1:7741@udp,127.48.22.2:7741@udp");
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
    assert_ne!(taken, stuck, "the regular message takes the other rail");
    assert_ne!(next_us, until_us, "it does not wait for the urgent message");
    fill(&mut a, [0; 2]);
}

/// Every drop is counted: an acknowledgement that its carrier's lane never takes.
#[test]
fn an_acknowledgement_that_a_busy_carrier_never_takes_is_counted() {
    let mut a = open("127.48.23.1:0@udp");
    let peer = absent_peer(&mut a, "127.48.24.1:7741@udp");
    let by = absent_peer(&mut a, "127.48.24.2:7741@udp");
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
    let timeouts = &a.config.timeouts;
    let taken = bulk.take_frame(1, timeouts, None, Back::Through(by), frame, b"x");
    a.frame_taken(0, peer, taken);
    let busy = |a: &Fabric| {
        let rail = a.rails[0].as_ref().unwrap();
        rail.counters.dropped(DropReason::RailBusy)
    };
    while let Some(due_us) = a.next_timeout() {
        assert_eq!(busy(&a), 0);
        a.drive_bulk(due_us);
    }
    assert_eq!(busy(&a), 1);
    a.peers.get_mut(by).unwrap().paths[0].bulk_sends = 0;
}
