//! Messages over real rails: UDP on loopback addresses, with up to two rails per node.
//!
//! The test sets the time. It waits with epoll on the fabric's descriptors, as a host does, with a long
//! deadline.

use crate::common::{Node, config, library, on_the_wheel, text};
use muster_fabric::{
    Class, DropReason, ENVELOPE_BYTES, Fabric, FabricConfig, NidList, Route, Sent, TrafficClass,
    Transport,
};
use rustix::net::sockopt::ip_tos;
use rustix::net::{getpeername, getsockname};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::time::Duration;

fn sent_one() -> Sent {
    Sent {
        copies: 1,
        ..Sent::default()
    }
}

/// AG-16: the kernel marks packets on udp and tcp rails. libfabric's other providers are asked for their own class.
#[test]
fn packets_of_udp_and_tcp_rails_are_marked() {
    let classes = |rails, dscp| {
        let config = FabricConfig {
            dscp,
            ..config(rails)
        };
        let fabric = Fabric::open(&config).unwrap();
        let classes = fabric.rails().into_iter().map(|rail| rail.class);
        classes.collect::<Vec<_>>()
    };
    let rails = "127.41.82.1:0@udp0,127.41.82.2:0@tcp0";
    assert_eq!(classes(rails, 46), [TrafficClass::Marked(46); 2]);
    assert_eq!(classes(rails, 0), [TrafficClass::Unreported; 2]);
}

/// The `IP_TOS` of each connection of this process from this address.
fn marks(from: &str) -> Vec<u8> {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let names = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let numbers = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let sockets = numbers.filter_map(|fd| pidfd_getfd(&own, fd, PidfdGetfdFlags::empty()).ok());
    let is_from = |socket: &OwnedFd| {
        let at = getsockname(socket).ok().map(SocketAddrV4::try_from);
        let is_there = at.is_some_and(|at| at.is_ok_and(|at| at.ip().to_string() == from));
        is_there && getpeername(socket).is_ok()
    };
    let connections = sockets.filter(is_from);
    connections.map(|socket| ip_tos(socket).unwrap()).collect()
}

/// AG-16: connections are marked on both sides.
#[test]
fn connections_of_tcp_rails_are_marked() {
    let (near, far) = ("127.41.83.1", "127.41.83.2");
    let mut a = Node::open(&format!("{near}:0@tcp0"));
    let mut b = Node::open(&format!("{far}:0@tcp0"));
    let to_b = a.add_peer(&b);
    b.add_peer(&a);
    let (mut now_us, mut received) = (1, Vec::new());
    while received.is_empty() {
        a.fabric
            .send(now_us, to_b, Class::News, Route::Next, b"news");
        a.drain(now_us, &mut Vec::new());
        b.drain(now_us, &mut received);
        now_us += 1_000;
        assert!(now_us < 60_000_000, "no message arrived");
    }
    for node in [&mut a, &mut b] {
        node.fabric.poll_beats(now_us + 10_000_000, &mut |_| {});
    }
    for from in [near, far] {
        let marks = marks(from);
        assert!(!marks.is_empty(), "{from} has no connection");
        assert!(
            marks.iter().all(|mark| *mark == 46 << 2),
            "{from}: {marks:?}"
        );
    }
}

/// A rail with connections and a rail with datagrams. The first sends find no connection and use the datagram
/// rail; later sends use both.
#[test]
fn rails_of_both_kinds_carry_messages_together() {
    let mut a = Node::open("127.41.70.1:0@udp0,127.41.70.2:0@tcp0");
    let mut b = Node::open("127.41.71.1:0@udp0,127.41.71.2:0@tcp0");
    let to_b = a.add_peer(&b);
    b.add_peer(&a);
    let mut by_rail = [0, 0];
    let mut now_us = 0;
    while by_rail[1] < 10 {
        now_us += 1_000;
        assert!(now_us < 20_000_000, "{by_rail:?}");
        for class in [Class::News, Class::Beat] {
            let sent = a.fabric.send(now_us, to_b, class, Route::Next, b"any");
            assert!(sent.copies > 0, "one of the rails accepts the message");
        }
        a.drain(now_us, &mut Vec::new());
        let mut received = Vec::new();
        b.drain(now_us, &mut received);
        received.iter().for_each(|(rail, _)| by_rail[*rail] += 1);
    }
    assert!(by_rail[0] >= 5, "{by_rail:?}");
}

#[test]
fn a_message_and_its_answer_arrive() {
    let mut a = Node::open("127.41.1.1:0@udp,127.41.1.2:0@udp");
    let mut b = Node::open("127.41.2.1:0@udp,127.41.2.2:0@udp");
    let to_b = a.add_peer(&b);
    let to_a = b.add_peer(&a);
    assert_eq!(
        a.fabric.send(1, to_b, Class::Beat, Route::Next, b"ping"),
        sent_one()
    );
    assert_eq!(text(&b.receive(1)), ["ping"]);
    assert_eq!(
        b.fabric.send(2, to_a, Class::Beat, Route::Next, b"pong"),
        sent_one()
    );
    assert_eq!(text(&a.receive(1)), ["pong"]);
}

#[test]
fn route_next_alternates_and_route_all_uses_each_rail() {
    let mut a = Node::open("127.41.3.1:0@udp,127.41.3.2:0@udp");
    let mut b = Node::open("127.41.4.1:0@udp,127.41.4.2:0@udp");
    let to_b = a.add_peer(&b);
    for _ in 0..4 {
        assert_eq!(
            a.fabric.send(1, to_b, Class::Beat, Route::Next, b"beat"),
            sent_one()
        );
    }
    let mut rails: Vec<usize> = b.receive(4).iter().map(|arrival| arrival.0).collect();
    rails.sort_unstable();
    assert_eq!(rails, [0, 0, 1, 1]);
    let sent = a.fabric.send(1, to_b, Class::News, Route::All, b"news");
    assert_eq!(
        sent,
        Sent {
            copies: 2,
            dropped: None,
            ..Sent::default()
        }
    );
    let mut rails: Vec<usize> = b.receive(2).iter().map(|arrival| arrival.0).collect();
    rails.sort_unstable();
    assert_eq!(rails, [0, 1]);
    let counters = a.fabric.rails().remove(0).counters;
    assert_eq!(
        (
            counters.sends,
            counters.send_bytes,
            counters.dropped_in_all()
        ),
        (3, 12, 0)
    );
    assert_eq!(b.fabric.rails()[0].counters.receives, 3);
    assert_eq!(b.fabric.unknown_peer_drops(), 0);
    assert_eq!(
        a.fabric.rails()[0].counters.dropped(DropReason::RailBusy),
        0
    );
}

#[test]
fn a_restarted_peer_is_reached_with_its_old_handle() {
    let mut a = Node::open("127.41.5.1:0@udp");
    let mut b = Node::open("127.41.6.1:0@udp");
    let to_b = a.add_peer(&b);
    a.fabric.send(1, to_b, Class::Beat, Route::Next, b"before");
    assert_eq!(text(&b.receive(1)), ["before"]);
    let nids = b.nids().to_string();
    drop(b);
    assert_eq!(
        a.fabric
            .send(2, to_b, Class::Beat, Route::Next, b"no receiver"),
        sent_one()
    );
    let mut b = Node::open(&nids);
    a.fabric.send(3, to_b, Class::Beat, Route::Next, b"after");
    assert_eq!(text(&b.receive(1)), ["after"]);
}

/// bck-025: a member with one rail and one with two, both ways.
#[test]
fn one_rail_exchanges_messages_with_both_nids_of_a_peer() {
    let mut a = Node::open("127.41.7.1:0@udp");
    let mut b = Node::open("127.41.8.1:0@udp,127.41.8.2:0@udp");
    let (to_b, to_a) = (a.add_peer(&b), b.add_peer(&a));
    let both = Sent {
        copies: 2,
        dropped: None,
        ..Sent::default()
    };
    assert_eq!(
        a.fabric.send(1, to_b, Class::News, Route::All, b"news"),
        both
    );
    let mut rails: Vec<usize> = b.receive(2).iter().map(|arrival| arrival.0).collect();
    rails.sort_unstable();
    assert_eq!(rails, [0, 1]);
    assert_eq!(
        b.fabric.send(2, to_a, Class::News, Route::All, b"more"),
        both
    );
    assert_eq!(text(&a.receive(2)), ["more", "more"]);
}

/// cfg-080, snd-065: a NID belongs to one peer only.
#[test]
fn a_nid_is_refused_for_a_second_peer_until_the_first_is_forgotten() {
    let mut a = Node::open("127.41.10.1:0@udp");
    let mut b = Node::open("127.41.11.1:0@udp");
    let first = a.add_peer(&b);
    let nids: NidList = format!("127.41.11.9@udp,{}", b.nids()).parse().unwrap();
    let error = a.fabric.peer(&nids).unwrap_err();
    let expected = format!(
        "the NID {0} belongs to another peer already, {0}; a NID names one interface of one node, so \
         forget that peer, or correct one of the two",
        b.nids()
    );
    assert_eq!(error.to_string(), expected);
    a.fabric
        .send(1, first, Class::News, Route::All, b"to first");
    assert_eq!(
        text(&b.receive(1)),
        ["to first"],
        "the first peer is unchanged"
    );
    a.fabric.forget(first);
    a.fabric.forget(first);
    let second = a.fabric.peer(&nids).unwrap();
    let nothing = Sent {
        copies: 0,
        dropped: Some(DropReason::UnknownPeer),
        ..Sent::default()
    };
    let sent = a.fabric.send(1, first, Class::News, Route::All, b"x");
    assert_eq!(sent, nothing, "no message is sent to a forgotten peer");
    a.fabric
        .send(1, second, Class::News, Route::All, b"to second");
    assert_eq!(text(&b.receive(1)), ["to second"]);
    assert_eq!(
        (a.fabric.unknown_peer_drops(), a.fabric.paths(first).len()),
        (1, 0)
    );
}

/// AG-12, AG-14.
#[test]
fn a_burst_longer_than_the_posted_buffers_arrives_complete_and_in_order() {
    let mut a = Node::open("127.41.12.1:0@udp");
    let mut b = Node::open("127.41.13.1:0@udp");
    let to_b = a.add_peer(&b);
    let sent: Vec<String> = (0..150).map(|number| format!("message {number}")).collect();
    for message in &sent {
        a.fabric
            .send(1, to_b, Class::News, Route::Next, message.as_bytes());
    }
    assert_eq!(text(&b.receive(150)), sent);
}

#[test]
fn a_drained_fabric_may_sleep_and_only_news_wakes_it() {
    let mut a = Node::open("127.41.14.1:0@udp");
    let mut b = Node::open("127.41.15.1:0@udp");
    let to_b = a.add_peer(&b);
    for round in 0..3 {
        a.fabric
            .send(round, to_b, Class::News, Route::Next, b"news");
        b.receive(1);
        b.drain(round, &mut Vec::new());
        assert!(
            b.fabric.may_sleep(),
            "round {round}: all messages were handled"
        );
        assert!(
            !b.wait(Duration::from_millis(1)),
            "round {round}: woken without a message"
        );
    }
    assert!(b.fabric.may_sleep());
    a.fabric.send(9, to_b, Class::News, Route::Next, b"news");
    assert!(b.wait(Duration::from_secs(20)), "not woken by a message");
    assert!(!b.fabric.may_sleep(), "a message waits");
}

#[test]
fn messages_up_to_the_limit_pass_and_longer_ones_are_refused_or_dropped() {
    let mut a = Node::open("127.41.16.1:0@udp");
    let mut b = Node::open("127.41.17.1:0@udp");
    let to_b = a.add_peer(&b);
    assert_eq!(a.fabric.mtu(), 1472 - ENVELOPE_BYTES);
    let longest = vec![7; 1472 - ENVELOPE_BYTES];
    assert_eq!(
        a.fabric.send(1, to_b, Class::News, Route::Next, &longest),
        sent_one()
    );
    assert_eq!(
        a.fabric.send(1, to_b, Class::News, Route::Next, b""),
        sent_one()
    );
    assert_eq!(b.receive(2), [(0, longest), (0, Vec::new())]);
    let longer = [7; 1472 - ENVELOPE_BYTES + 1];
    let sent = a.fabric.send(1, to_b, Class::News, Route::Next, &longer);
    assert_eq!((sent.copies, sent.dropped), (0, Some(DropReason::Oversize)));
    // A foreign process does not respect the limit: two messages that are too long, and one of valid length.
    let foreign_socket = std::net::UdpSocket::bind("127.41.16.2:0").unwrap();
    let to = b.nids().as_slice()[0].socket_address().unwrap();
    for length in [1473, 9000, 13] {
        foreign_socket.send_to(&vec![0xff; length], to).unwrap();
    }
    assert_eq!(b.receive(1), [(0, vec![0xff; 13])]);
    let counters = b.fabric.rails().remove(0).counters;
    assert_eq!(
        (
            counters.receives,
            counters.dropped(DropReason::ReceivedOversize)
        ),
        (3, 2)
    );
}

/// AG-16 in part.
#[test]
fn sends_in_progress_are_bounded_on_each_lane() {
    let mut config = config("127.41.18.1:0@udp");
    config.inject = false;
    config.send_slots = 8;
    config.peer_sends_max = 100;
    let mut a = Node::around(Fabric::open(&config).unwrap());
    let mut b = Node::open("127.41.19.1:0@udp");
    let to_b = a.add_peer(&b);
    let send = |a: &mut Node, class, count: usize| {
        let sent = |_| usize::from(a.fabric.send(1, to_b, class, Route::Next, b"x").copies);
        (0..count).map(sent).sum::<usize>()
    };
    assert_eq!(
        (send(&mut a, Class::Beat, 10), send(&mut a, Class::News, 10)),
        (8, 8),
        "beats do not use the slots of news"
    );
    assert_eq!(
        a.fabric.rails()[0].counters.dropped(DropReason::RailBusy),
        4
    );
    assert_eq!(b.receive(16).len(), 16);
    a.drain(2, &mut Vec::new());
    assert_eq!(
        (send(&mut a, Class::Beat, 10), send(&mut a, Class::News, 10)),
        (8, 8),
        "completions free the slots"
    );
}

#[test]
fn sends_in_progress_to_one_peer_are_bounded() {
    let mut config = config("127.41.20.1:0@udp");
    config.inject = false;
    config.peer_sends_max = 3;
    let mut a = Node::around(Fabric::open(&config).unwrap());
    let (b, c) = (
        Node::open("127.41.21.1:0@udp"),
        Node::open("127.41.21.2:0@udp"),
    );
    let (to_b, to_c) = (a.add_peer(&b), a.add_peer(&c));
    let sent: Vec<(u8, Option<DropReason>)> = (0..4)
        .map(|_| a.fabric.send(1, to_b, Class::News, Route::Next, b"x"))
        .map(|sent| (sent.copies, sent.dropped))
        .collect();
    let (accepted, busy) = ((1, None), (0, Some(DropReason::PeerBusy)));
    assert_eq!(sent, [accepted, accepted, accepted, busy]);
    assert_eq!(
        a.fabric.send(1, to_c, Class::News, Route::Next, b"x"),
        sent_one()
    );
    assert_eq!(
        a.fabric.paths(to_b)[0]
            .counters
            .dropped(DropReason::PeerBusy),
        1
    );
    a.drain(2, &mut Vec::new());
    assert_eq!(
        a.fabric.send(3, to_b, Class::News, Route::Next, b"x"),
        sent_one()
    );
}

/// AG-16 in part: the sends in progress to a peer that reads nothing are bounded on connections, too. Messages
/// that the provider copies would queue without bound.
#[test]
fn sends_in_progress_to_a_stuck_peer_are_bounded_on_connections() {
    let (mut a, mut b) = (
        Node::open("127.41.22.1:0@tcp"),
        Node::open("127.41.23.1:0@tcp"),
    );
    let to_b = a.add_peer(&b);
    let send = |a: &mut Node| a.fabric.send(1, to_b, Class::News, Route::Next, &[5; 64]);
    let mut received = Vec::new();
    // Both nodes must be polled to establish the connection.
    while received.is_empty() {
        send(&mut a);
        a.drain(1, &mut Vec::new());
        b.drain(1, &mut received);
    }
    let mut refused = None;
    for _ in 0..5_000_000 {
        refused = send(&mut a).dropped;
        if refused.is_some()
            && a.fabric.rails()[0].credits.now + 1 < a.fabric.rails()[0].credits.most
        {
            break;
        }
        a.drain(1, &mut Vec::new());
    }
    assert_eq!(refused, Some(DropReason::PeerBusy));
    let path = &a.fabric.paths(to_b)[0];
    assert!(path.queued_bytes >= 64, "queued bytes are counted");
}

#[test]
fn the_library_has_the_expected_version() {
    let version = library().version();
    match std::env::var(crate::common::EXPECT_MAJOR) {
        Ok(major) => assert_eq!(version.0.to_string(), major),
        Err(_) => assert!(version >= (1, 17), "{version:?}"),
    }
}

#[test]
fn these_tests_pass_with_the_wheels_libfabric() {
    on_the_wheel(module_path!());
}
