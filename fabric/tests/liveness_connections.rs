//! Liveness connections: a node that watches a peer learns at once when the peer's process ends, and gets no
//! other event.

use crate::common::{Node, config, on_the_wheel};
use muster_fabric::{
    Fabric, FabricEvent, LivenessConnection, NidList, Pace, PeerHandle, Transport,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(20);
/// Later than any pause before a liveness connection is tried again.
const LATER_US: u64 = 1_000_000_000;

fn open(rails: &str, liveness_connection: &Arc<LivenessConnection>) -> Node {
    let mut config = config(rails);
    config.liveness_connection = Some(Arc::clone(liveness_connection));
    Node::around(Fabric::open(&config).unwrap())
}

/// Watches a peer and connects: on loopback, the connection exists when the call returns.
fn watch(node: &mut Node, peer: PeerHandle) {
    node.fabric
        .watch(1, peer, Pace::without_requests(1_000_000));
    poll_events(node, 1);
}

fn poll_events(node: &mut Node, now_us: u64) -> Vec<FabricEvent> {
    node.drain(now_us, &mut Vec::new());
    std::iter::from_fn(|| node.fabric.poll_event()).collect()
}

/// Waits for an event.
fn wait_for_event(node: &mut Node, now_us: u64) -> FabricEvent {
    let start = Instant::now();
    loop {
        if let Some(event) = poll_events(node, now_us).into_iter().next() {
            return event;
        }
        assert!(start.elapsed() < DEADLINE, "no event arrived");
        if node.fabric.may_sleep() {
            node.wait(DEADLINE);
        }
    }
}

/// Lets time pass from `now_us` until the process of a peer counts as ended. Before that its connections may break.
fn wait_for_end(node: &mut Node, now_us: u64, peer: PeerHandle) {
    let start = Instant::now();
    for now_us in (now_us..).step_by(1_000) {
        for event in poll_events(node, now_us) {
            match event {
                FabricEvent::PeerEnded { peer: ended } if ended == peer => return,
                event => assert_eq!(event, FabricEvent::PeerGone { peer }),
            }
        }
        assert!(
            start.elapsed() < DEADLINE,
            "the peer does not count as ended"
        );
    }
}

/// ZM-06 in part: a connection that is lost.
#[test]
fn a_liveness_connection_breaks_when_worker_and_supervisor_have_ended() {
    let mut a = Node::open("127.41.50.1:0@udp,127.41.50.2:0@udp");
    let supervisor = Arc::new(LivenessConnection::new().unwrap());
    let b = open("127.41.51.1:0@udp,127.41.51.2:0@udp", &supervisor);
    let without = Node::open("127.41.52.1:0@udp,127.41.52.2:0@udp");
    let (to_b, to_without) = (a.add_peer(&b), a.add_peer(&without));
    watch(&mut a, to_b);
    watch(&mut a, to_without);
    let rails = b.nids().to_string();

    // A worker ends and another one replaces it; the supervisor keeps the socket open.
    drop(b);
    assert_eq!(poll_events(&mut a, 2), []);
    let b = open(&rails, &supervisor);
    assert_eq!(poll_events(&mut a, 2), []);
    drop(b);
    drop(supervisor);
    assert_eq!(
        wait_for_event(&mut a, 2),
        FabricEvent::PeerGone { peer: to_b }
    );

    // It is refused at once, and again: the process has ended. Later refusals say the same. The peer without a
    // liveness connection causes no event.
    let early = poll_events(&mut a, 2);
    let gone = FabricEvent::PeerGone { peer: to_b };
    assert!(early.iter().all(|event| *event == gone), "{early:?}");
    wait_for_end(&mut a, 10_000, to_b);
    wait_for_end(&mut a, LATER_US, to_b);
    poll_events(&mut a, LATER_US);

    // A peer that returns is connected to again.
    let supervisor = Arc::new(LivenessConnection::new().unwrap());
    let b = open(&rails, &supervisor);
    poll_events(&mut a, 2 * LATER_US);
    assert_eq!(poll_events(&mut a, 2 * LATER_US), []);
    drop((b, supervisor));
    assert_eq!(wait_for_event(&mut a, 2 * LATER_US), gone);
    wait_for_end(&mut a, 3 * LATER_US, to_b);
}

/// ZM-06 in part: the other rail still offers its connection.
#[test]
fn a_peer_that_removes_a_rail_has_not_ended() {
    let mut a = Node::open("127.41.46.1:0@udp,127.41.46.2:0@udp");
    let supervisor = Arc::new(LivenessConnection::new().unwrap());
    let mut b = open("127.41.47.1:0@udp,127.41.47.2:0@udp", &supervisor);
    let to_b = a.add_peer(&b);
    watch(&mut a, to_b);
    let removed = b.nids().iter().last().unwrap().clone();
    b.fabric.remove_rail(&removed).unwrap();
    poll_events(&mut b, 1);
    assert_eq!(
        poll_events(&mut a, 2),
        [],
        "observers have time to learn of it"
    );
    poll_events(&mut b, LATER_US);
    let gone = FabricEvent::PeerGone { peer: to_b };
    assert_eq!(wait_for_event(&mut a, 2), gone);
    for now_us in [3, 10_000, LATER_US, 2 * LATER_US] {
        assert_eq!(poll_events(&mut a, now_us), []);
    }
    drop((b, supervisor));
    wait_for_end(&mut a, 3 * LATER_US, to_b);
}

/// A tcp rail has a liveness connection too, at a port that none of its lanes has.
#[test]
fn a_killed_peer_on_a_tcp_rail_is_found_by_its_liveness_connection() {
    let mut a = Node::open("127.41.60.1:0@tcp");
    let supervisor = Arc::new(LivenessConnection::new().unwrap());
    let b = open("127.41.61.1:0@tcp", &supervisor);
    let to_b = a.add_peer(&b);
    watch(&mut a, to_b);
    drop((b, supervisor));
    assert_eq!(
        wait_for_event(&mut a, 2),
        FabricEvent::PeerGone { peer: to_b }
    );
}

/// A rail that replaces a removed one has its own liveness connection; the one of the removed rail is closed.
#[test]
fn a_replaced_rail_has_its_own_liveness_connection() {
    let mut a = Node::open("127.41.56.1:0@udp");
    let supervisor = Arc::new(LivenessConnection::new().unwrap());
    let mut b = open("127.41.57.1:0@udp,127.41.57.2:0@udp", &supervisor);
    let first: Vec<NidList> = b
        .nids()
        .iter()
        .map(|nid| nid.to_string().parse().unwrap())
        .collect();
    let to_old = a.fabric.peer(&first[1]).unwrap();
    watch(&mut a, to_old);
    for round in 0..3 {
        let old = b.nids().iter().last().unwrap().clone();
        b.fabric.remove_rail(&old).unwrap();
        let gone = FabricEvent::PeerGone { peer: to_old };
        if round == 0 {
            poll_events(&mut b, LATER_US);
            assert_eq!(wait_for_event(&mut a, 2), gone);
        }
        b.fabric
            .add_rail(&format!("127.41.57.{}:0@udp", 3 + round).parse().unwrap())
            .unwrap();
    }
    a.fabric.unwatch(to_old);
    let newest = b.nids().iter().last().unwrap().to_string().parse().unwrap();
    let to_new = a.fabric.peer(&newest).unwrap();
    watch(&mut a, to_new);
    drop((b, supervisor));
    assert_eq!(
        wait_for_event(&mut a, 2),
        FabricEvent::PeerGone { peer: to_new }
    );
}

/// Connections of observers that have ended stay in the kernel's queue, which must not fill up.
#[test]
fn connections_of_ended_observers_do_not_fill_the_queue() {
    let mut a = Node::open("127.41.58.1:0@udp");
    let supervisor = Arc::new(LivenessConnection::new().unwrap());
    let mut b = open("127.41.59.1:0@udp", &supervisor);
    let beats = a.add_peer(&b);
    let nid = b.nids().iter().next().unwrap().clone();
    let at = (
        std::net::Ipv4Addr::new(127, 41, 59, 1),
        nid.beat_port().unwrap(),
    );
    let mut now_us = 1;
    for _ in 0..4 {
        for _ in 0..600 {
            drop(
                std::net::TcpStream::connect_timeout(&at.into(), DEADLINE)
                    .expect("the accept queue is not full"),
            );
        }
        now_us += LATER_US;
        poll_events(&mut b, now_us);
    }
    watch(&mut a, beats);
    drop((b, supervisor));
    assert_eq!(
        wait_for_event(&mut a, 2),
        FabricEvent::PeerGone { peer: beats }
    );
}

#[test]
fn an_unwatched_peer_is_disconnected() {
    let mut a = Node::open("127.41.53.1:0@udp");
    let (first, second) = (
        Arc::new(LivenessConnection::new().unwrap()),
        Arc::new(LivenessConnection::new().unwrap()),
    );
    let b = open("127.41.54.1:0@udp", &first);
    let c = open("127.41.55.1:0@udp", &second);
    let (to_b, to_c) = (a.add_peer(&b), a.add_peer(&c));
    watch(&mut a, to_b);
    watch(&mut a, to_c);
    a.fabric.unwatch(to_b);
    drop((b, first));
    drop((c, second));
    assert_eq!(
        wait_for_event(&mut a, 2),
        FabricEvent::PeerGone { peer: to_c }
    );
    assert_eq!(poll_events(&mut a, 2), []);
}

#[test]
fn these_tests_pass_with_the_wheels_libfabric() {
    on_the_wheel(module_path!());
}
