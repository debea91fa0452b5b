//! The two lanes of a rail: news wakes the host, beats wait until it is awake.
//!
//! The tests use UDP on loopback addresses, where a datagram has arrived when its send returns.

use crate::common::{Node, on_the_wheel, text};
use muster_fabric::{Arrival, Class, Route, Transport};
use std::net::UdpSocket;
use std::time::Duration;

/// Far longer than a wake-up takes. To check that a host is not woken, the tests wait for `MOMENT`.
const DEADLINE: Duration = Duration::from_secs(20);
const MOMENT: Duration = Duration::from_millis(5);

#[test]
fn a_beat_does_not_wake_the_host_and_is_read_when_it_is_awake() {
    let mut a = Node::open("127.43.1.1:0@udp");
    let mut b = Node::open("127.43.2.1:0@udp");
    let to_b = a.add_peer(&b);
    b.drain(0, &mut Vec::new());
    assert!(b.fabric.may_sleep());
    a.beat(1, to_b);
    assert!(!b.wait(MOMENT), "woken by a beat");
    assert!(b.fabric.may_sleep(), "kept awake by a beat");
    assert_eq!(text(&b.receive(1)), ["beat"]);
    assert!(b.fabric.may_sleep());
}

#[test]
fn news_wakes_the_host_and_is_read_after_waiting_beats() {
    let mut a = Node::open("127.43.3.1:0@udp");
    let mut b = Node::open("127.43.4.1:0@udp");
    let to_b = a.add_peer(&b);
    b.drain(0, &mut Vec::new());
    assert!(b.fabric.may_sleep());
    a.beat(1, to_b);
    a.fabric.send(2, to_b, Class::News, Route::Next, b"news");
    assert!(b.wait(DEADLINE), "not woken by news");
    assert!(!b.fabric.may_sleep(), "news waits");
    assert_eq!(text(&b.receive(2)), ["beat", "news"]);
}

/// A host that its own timer woke reads only the beats; news wakes it as before.
#[test]
fn polling_only_beats_leaves_news_to_wake_the_host() {
    let mut a = Node::open("127.43.11.1:0@udp");
    let mut b = Node::open("127.43.12.1:0@udp");
    let to_b = a.add_peer(&b);
    b.drain(0, &mut Vec::new());
    assert!(b.fabric.may_sleep());
    for round in 1..=3 {
        a.beat(round, to_b);
        let mut beats = Vec::new();
        let mut keep = |arrival: Arrival<'_>| beats.push(arrival.bytes.to_vec());
        while b.fabric.poll_beats(round, &mut keep) {}
        assert_eq!(beats, [b"beat"]);
    }
    a.fabric.send(4, to_b, Class::News, Route::Next, b"news");
    assert!(!b.fabric.poll_beats(5, &mut |arrival| panic!("{arrival:?}")));
    assert!(
        b.wait(DEADLINE),
        "not woken by news after polls of the beats"
    );
    assert_eq!(text(&b.receive(1)), ["news"]);
}

/// Both lanes of a rail count as one rail: in the round robin, in counters, and in rail liveness.
#[test]
fn messages_of_both_classes_share_one_round_robin_of_rails() {
    let mut a = Node::open("127.43.5.1:0@udp,127.43.5.2:0@udp");
    let mut b = Node::open("127.43.6.1:0@udp,127.43.6.2:0@udp");
    let (to_b, to_a) = (a.add_peer(&b), b.add_peer(&a));
    for (class, bytes) in [
        (Class::Beat, b"beat 0"),
        (Class::News, b"news 1"),
        (Class::News, b"news 0"),
        (Class::Beat, b"beat 1"),
    ] {
        a.fabric.send(1, to_b, class, Route::Next, bytes);
    }
    let received = b.receive(4);
    for (rail, bytes) in &received {
        assert!(bytes.ends_with(rail.to_string().as_bytes()), "{received:?}");
        b.fabric.heard(2, to_a, *rail);
    }
    for (rail, path) in b.fabric.rails().iter().zip(b.fabric.paths(to_a)) {
        assert_eq!((rail.counters.receives, path.counters.receives), (2, 2));
    }
    let sends: Vec<u64> = a.fabric.rails().iter().map(|r| r.counters.sends).collect();
    assert_eq!(sends, [2, 2]);
}

/// Peers rely on this convention.
#[test]
fn beats_go_to_the_port_after_that_of_the_nid() {
    let mut a = Node::open("127.43.7.1:0@udp");
    let news = UdpSocket::bind("127.43.8.1:0").unwrap();
    let port = news.local_addr().unwrap().port();
    let beats = UdpSocket::bind(("127.43.8.1", port + 1)).unwrap();
    for socket in [&news, &beats] {
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
    }
    let nids = format!("127.43.8.1:{port}@udp").parse().unwrap();
    let peer = a.fabric.peer(&nids).unwrap();
    a.beat(1, peer);
    a.fabric.send(2, peer, Class::News, Route::Next, b"news");
    let own_port = a.nids().as_slice()[0].port;
    for (socket, expected, from) in [(&news, b"news", own_port), (&beats, b"beat", own_port + 1)] {
        let mut bytes = [0; 4];
        let (length, sender) = socket.recv_from(&mut bytes).unwrap();
        assert_eq!((length, &bytes, sender.port()), (4, expected, from));
    }
}

#[test]
fn more_beats_than_one_batch_are_all_read_before_the_host_sleeps() {
    let mut a = Node::open("127.43.9.1:0@udp");
    let mut b = Node::open("127.43.10.1:0@udp");
    let to_b = a.add_peer(&b);
    (0..150).for_each(|_| a.beat(1, to_b));
    let mut received = Vec::new();
    b.drain(2, &mut received);
    assert_eq!(received.len(), 150);
    assert!(b.fabric.may_sleep());
}

#[test]
fn these_tests_pass_with_the_wheels_libfabric() {
    on_the_wheel(module_path!());
}
