//! Lifelines: who watches a peer learns of its process's end at once, and of nothing else.

mod common;

use common::{Node, config, on_the_wheel};
use muster_fabric::{
    Fabric, FabricEvent, LivenessConnection, NidList, Pace, PeerHandle, Transport,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(20);
/// Long after every pause of a lifeline that is tried again.
const LATER_US: u64 = 1_000_000_000;

fn open(rails: &str, liveness_connection: &Arc<LivenessConnection>) -> Node {
    let mut config = config(rails);
    config.liveness_connection = Some(Arc::clone(liveness_connection));
    Node::around(Fabric::open(&config).unwrap())
}

/// Watches, and holds on: on loopback a connection is there when it was asked for.
fn watch(node: &mut Node, peer: PeerHandle) {
    node.fabric
        .watch(1, peer, Pace::without_requests(1_000_000));
    look(node, 1);
}

fn look(node: &mut Node, now_us: u64) -> Vec<FabricEvent> {
    node.drain(now_us, &mut Vec::new());
    std::iter::from_fn(|| node.fabric.poll_event()).collect()
}

/// Waits for an event.
fn hear(node: &mut Node, now_us: u64) -> FabricEvent {
    let start = Instant::now();
    loop {
        if let Some(event) = look(node, now_us).into_iter().next() {
            return event;
        }
        assert!(start.elapsed() < DEADLINE, "no event came");
        if node.fabric.may_sleep() {
            node.wait(DEADLINE);
        }
    }
}

/// ZM-06 in part: a connection that is lost.
#[test]
fn a_lifeline_breaks_when_the_last_who_holds_it_is_gone() {
    let mut a = Node::open("127.41.50.1:0@udp,127.41.50.2:0@udp");
    let keeper = Arc::new(LivenessConnection::new().unwrap());
    let b = open("127.41.51.1:0@udp,127.41.51.2:0@udp", &keeper);
    let without = Node::open("127.41.52.1:0@udp,127.41.52.2:0@udp");
    let (to_b, to_without) = (a.knows(&b), a.knows(&without));
    watch(&mut a, to_b);
    watch(&mut a, to_without);
    let rails = b.nids().to_string();

    // A worker ends and another one takes its place: the keeper holds on meanwhile.
    drop(b);
    assert_eq!(look(&mut a, 2), []);
    let b = open(&rails, &keeper);
    assert_eq!(look(&mut a, 2), []);
    drop(b);
    drop(keeper);
    assert_eq!(hear(&mut a, 2), FabricEvent::PeerGone { peer: to_b });

    // Tried again it is refused, which says the same of one who offered it; of the other nothing.
    let gone = FabricEvent::PeerGone { peer: to_b };
    assert_eq!(hear(&mut a, LATER_US), gone);
    let others = look(&mut a, LATER_US);
    assert!(others.iter().all(|event| *event == gone), "{others:?}");

    // And one who comes back is held on to again.
    let keeper = Arc::new(LivenessConnection::new().unwrap());
    let b = open(&rails, &keeper);
    look(&mut a, 2 * LATER_US);
    assert_eq!(look(&mut a, 2 * LATER_US), []);
    drop((b, keeper));
    assert_eq!(hear(&mut a, 2 * LATER_US), gone);
}

/// A tcp rail has a liveness connection too, at a port that none of its lanes has.
#[test]
fn a_killed_peer_on_a_tcp_rail_is_known_by_its_liveness_connection() {
    let mut a = Node::open("127.41.60.1:0@tcp");
    let keeper = Arc::new(LivenessConnection::new().unwrap());
    let b = open("127.41.61.1:0@tcp", &keeper);
    let to_b = a.knows(&b);
    watch(&mut a, to_b);
    drop((b, keeper));
    assert_eq!(hear(&mut a, 2), FabricEvent::PeerGone { peer: to_b });
}

/// A rail that takes the place of one that was removed has a lifeline of its own, and the old one none.
#[test]
fn a_rail_in_the_place_of_another_offers_its_own() {
    let mut a = Node::open("127.41.56.1:0@udp");
    let keeper = Arc::new(LivenessConnection::new().unwrap());
    let mut b = open("127.41.57.1:0@udp,127.41.57.2:0@udp", &keeper);
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
            assert_eq!(hear(&mut a, 2), gone);
        }
        b.fabric
            .add_rail(&format!("127.41.57.{}:0@udp", 3 + round).parse().unwrap())
            .unwrap();
    }
    a.fabric.unwatch(to_old);
    let newest = b.nids().iter().last().unwrap().to_string().parse().unwrap();
    let to_new = a.fabric.peer(&newest).unwrap();
    watch(&mut a, to_new);
    drop((b, keeper));
    assert_eq!(hear(&mut a, 2), FabricEvent::PeerGone { peer: to_new });
}

/// Connections of observers that ended stay in the kernel's queue: it must never be full.
#[test]
fn however_many_have_held_on_there_is_room_for_the_next() {
    let mut a = Node::open("127.41.58.1:0@udp");
    let keeper = Arc::new(LivenessConnection::new().unwrap());
    let mut b = open("127.41.59.1:0@udp", &keeper);
    let beats = a.knows(&b);
    let nid = b.nids().iter().next().unwrap().clone();
    let at = (
        std::net::Ipv4Addr::new(127, 41, 59, 1),
        nid.beat_port().unwrap(),
    );
    let mut now_us = 1;
    for _ in 0..4 {
        for _ in 0..600 {
            drop(std::net::TcpStream::connect_timeout(&at.into(), DEADLINE).expect("room"));
        }
        now_us += LATER_US;
        look(&mut b, now_us);
    }
    watch(&mut a, beats);
    drop((b, keeper));
    assert_eq!(hear(&mut a, 2), FabricEvent::PeerGone { peer: beats });
}

#[test]
fn who_is_not_watched_is_let_go() {
    let mut a = Node::open("127.41.53.1:0@udp");
    let (first, second) = (
        Arc::new(LivenessConnection::new().unwrap()),
        Arc::new(LivenessConnection::new().unwrap()),
    );
    let b = open("127.41.54.1:0@udp", &first);
    let c = open("127.41.55.1:0@udp", &second);
    let (to_b, to_c) = (a.knows(&b), a.knows(&c));
    watch(&mut a, to_b);
    watch(&mut a, to_c);
    a.fabric.unwatch(to_b);
    drop((b, first));
    drop((c, second));
    assert_eq!(hear(&mut a, 2), FabricEvent::PeerGone { peer: to_c });
    assert_eq!(look(&mut a, 2), []);
}

#[test]
fn the_same_on_the_wheels_libfabric() {
    on_the_wheel("the_same_on_the_wheels_libfabric");
}
