//! Rails that are cut, and rails that refuse: the events, and the rails that messages then use.
//!
//! The tests use UDP on loopback addresses. Cuts come from the fault wrapper, on a clock that the test sets.

use crate::common::{Node, config, on_the_wheel, text};
use muster_fabric::{
    Class, Cut, Direction, DropReason, Fabric, FabricEvent, FaultPlan, Faulty, HealthState,
    NidList, Pace, PathState, PeerHandle, Route, Transport,
};

/// Two nodes that exchange a beat every 10 ms of a clock that the test sets.
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
        let (to_b, to_a) = (a.add_peer(&b), b.add_peer(&a));
        a.fabric.watch(0, to_b, Pace::without_requests(4 * BEAT_US));
        b.fabric.watch(0, to_a, Pace::without_requests(4 * BEAT_US));
        Pair {
            a,
            b,
            to_b,
            to_a,
            now_us: 0,
        }
    }

    /// Sends one beat in each direction; returns the events of both nodes, a first.
    fn beat(&mut self) -> Vec<FabricEvent> {
        self.now_us += BEAT_US;
        self.a.beat(self.now_us, self.to_b);
        self.b.beat(self.now_us, self.to_a);
        let mut events = receive_all(self.now_us, &mut self.a, self.to_b, &self.b);
        events.extend(receive_all(self.now_us, &mut self.b, self.to_a, &self.a));
        events
    }

    fn beats(&mut self, count: usize) -> Vec<FabricEvent> {
        (0..count).flat_map(|_| self.beat()).collect()
    }
}

/// Receives the peer's messages, records them for its rails, and returns the events.
fn receive_all(
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

/// RS-07 in part: the probe is a copy of a message.
#[test]
fn a_cut_rail_is_silent_for_both_nodes_until_the_cut_ends() {
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
    assert_eq!(pair.beats(9), [], "no event before the cut");
    let events = pair.beats(10);
    for (peer, node) in [(pair.to_b, "a"), (pair.to_a, "b")] {
        let silent = |event: &FabricEvent| {
            matches!(event, FabricEvent::RailSilent { peer: of, rail: 1, silent_us, .. }
                if *of == peer && *silent_us > 4 * BEAT_US)
        };
        assert!(events.iter().any(silent), "{node}: {events:?}");
    }
    assert_eq!(events.len(), 2, "one event for each node: {events:?}");
    let states: Vec<PathState> = pair
        .a
        .fabric
        .paths(pair.to_b)
        .iter()
        .map(|path| path.state)
        .collect();
    assert_eq!(states, [PathState::Active, PathState::Silent]);
    let before = pair.a.fabric.paths(pair.to_b)[0].counters.sends;
    assert_eq!(pair.beats(8), [], "no flapping while the cut lasts");
    assert_eq!(
        pair.a.fabric.paths(pair.to_b)[0].counters.sends,
        before + 8,
        "no beat is lost"
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
    assert_eq!(pair.beats(20), [], "no further event");
}

/// Otherwise a host that counts silent rails would show the peer as degraded forever.
#[test]
fn a_silence_ends_when_the_peer_closes_its_rail() {
    let cut = Cut {
        rail: 1,
        direction: Direction::In,
        from_us: 0,
        until_us: u64::MAX,
    };
    let plan = FaultPlan {
        cuts: vec![cut],
        ..FaultPlan::default()
    };
    let (rails_a, rails_b) = (
        "127.41.72.1:0@udp0,127.41.72.2:0@udp1",
        "127.41.73.1:0@udp0,127.41.73.2:0@udp1",
    );
    let mut pair = Pair::open(rails_a, rails_b, plan);
    let events = pair.beats(30);
    assert!(
        matches!(events[..], [FabricEvent::RailSilent { rail: 1, .. }]),
        "{events:?}"
    );
    let left = NidList::new(vec![pair.b.nids().as_slice()[0].clone()]).unwrap();
    pair.a.fabric.renew(pair.to_b, &left).unwrap();
    let peer = pair.to_b;
    assert_eq!(
        pair.a.fabric.poll_event(),
        Some(FabricEvent::RailBack { peer, rail: 1 })
    );
    assert_eq!(pair.a.fabric.poll_event(), None);
}

#[test]
fn a_rail_that_is_cut_in_one_direction_is_silent_for_the_receiver_only() {
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
fn delayed_messages_arrive_at_the_transports_timeout() {
    let plan = FaultPlan {
        seed: 3,
        delay_ppm: 1_000_000,
        delay_max_us: 5_000,
        ..FaultPlan::default()
    };
    let fabric = Fabric::open(&config("127.41.26.1:0@udp")).unwrap();
    let mut a = Node::open("127.41.27.1:0@udp");
    let mut b = Node::around(Faulty::new(fabric, plan));
    let to_b = a.add_peer(&b);
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
        "{} messages in {wakes} wake-ups",
        received.len()
    );
    assert_eq!(b.fabric.fault_counters().delayed, 20);
}

/// snd-050, snd-060; RS-03 and RS-07 in part.
#[test]
fn a_refused_message_uses_another_rail_and_the_bad_path_is_tried_again_later() {
    let mut a = Node::open("127.41.28.1:0@udp,127.41.28.2:0@udp");
    let mut b = Node::open("127.41.29.1:0@udp");
    let mut c = Node::open("127.41.30.1:0@udp,127.41.30.2:0@udp");
    let to_c = a.add_peer(&c);
    // A send from a loopback address to another network fails at once. The first path of this peer is bad, the
    // second leads to b.
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
        (PathState::Failed, PathState::Active)
    );
    let tries = |a: &Node| {
        a.fabric.paths(to_half)[0]
            .counters
            .dropped(DropReason::ProviderError)
    };
    assert_eq!(tries(&a), 3, "the path is avoided after three errors");
    a.fabric
        .send(30_000, to_half, Class::Beat, Route::Next, b"x");
    assert_eq!(tries(&a), 4, "the path is tried again after a pause");
    // One peer's bad address does not count against the rail, which still serves the others.
    assert_eq!(a.fabric.rails()[0].state, HealthState::Active);
    a.fabric
        .send(31_000, to_c, Class::News, Route::All, b"news");
    assert_eq!(c.receive(2).len(), 2);
    // dbg-115: each event names the pair that failed, and the pair that was used instead.
    let events: Vec<FabricEvent> = std::iter::from_fn(|| a.fabric.poll_event()).collect();
    assert_eq!(events.len(), 3, "{events:?}");
    for event in events {
        let FabricEvent::Moved { peer, from, to, .. } = event else {
            panic!("{event:?}");
        };
        let first = half.as_slice()[0].clone();
        let (own, theirs) = (a.nids(), b.nids());
        assert_eq!((peer, from.1), (to_half, first));
        assert_eq!(
            to,
            (own.as_slice()[1].clone(), theirs.as_slice()[0].clone())
        );
    }
}

/// hlt-025; RS-02 in part.
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
            (sent.copies, sent.dropped),
            (0, Some(DropReason::ProviderError))
        );
        let remote = a.fabric.nids(peer).unwrap().as_slice()[0].clone();
        let own = a.nids().as_slice()[0].clone();
        assert_eq!(a.fabric.pairs_tried(peer, &sent.tried), [(own, remote)]);
    }
    // dbg-110: the first errors degrade the rail.
    let event = a.fabric.poll_event();
    let Some(FabricEvent::RailHealth {
        rail: 0,
        state: HealthState::Degraded,
        reason,
    }) = event
    else {
        panic!("{event:?}");
    };
    assert!(reason.starts_with("fi_inject failed: "), "{reason}");
    let Some(FabricEvent::RailFailing { rail: 0, reason }) = a.fabric.poll_event() else {
        panic!("no event");
    };
    assert!(reason.starts_with("fi_inject failed: "), "{reason}");
    assert_eq!(a.fabric.rails()[0].state, HealthState::Failed);
    let to_b = a.add_peer(&b);
    a.fabric
        .send(4, to_b, Class::Beat, Route::Next, b"sent on the only rail");
    assert_eq!(text(&b.receive(1)), ["sent on the only rail"]);
    assert_eq!(
        a.fabric.poll_event(),
        Some(FabricEvent::RailRecovered { rail: 0 })
    );
    // dbg-030, RS-07: each success raises its health.
    let mut state_after_success = || {
        a.fabric.send(5, to_b, Class::Beat, Route::Next, b"x");
        a.fabric.rails()[0].state
    };
    let states = [state_after_success(), state_after_success()];
    assert_eq!(states, [HealthState::Degraded, HealthState::Active]);
    let active = FabricEvent::RailHealth {
        rail: 0,
        state: HealthState::Active,
        reason: String::new(),
    };
    assert_eq!(a.fabric.poll_event(), Some(active));
}

#[test]
fn these_tests_pass_with_the_wheels_libfabric() {
    on_the_wheel(module_path!());
}
