//! A member whose rails change keeps its name: others learn its new address.

use muster_protocol::{
    Config, EventKind, Input, Instant, MemberId, NodeState, Overlay, Profile, Reject, Target,
};
use std::collections::BTreeMap;

/// Engines by address, and a network without loss.
struct Net {
    now: Instant,
    engines: BTreeMap<Vec<u8>, Overlay>,
}

impl Net {
    fn new(names: &[&str]) -> Net {
        let engine = |name: &&str| {
            let mut config = Config::new(name, name.as_bytes(), Profile::Standard);
            config.seeds = vec![names[0].as_bytes().to_vec()];
            config.key = Some([7; 32]);
            config.incarnation = 1;
            (
                name.as_bytes().to_vec(),
                Overlay::new(config).expect("a sound configuration"),
            )
        };
        Net {
            now: Instant(1),
            engines: names.iter().map(engine).collect(),
        }
    }

    /// One millisecond: all engines are woken, and all frames arrive.
    fn step(&mut self) {
        self.now = Instant(self.now.0 + 1000);
        let mut under_way = Vec::new();
        for engine in self.engines.values_mut() {
            if engine.poll_timeout() <= self.now {
                engine.handle(self.now, Input::Wake).unwrap();
            }
            let mut buffer = vec![0; 1472];
            while let Some(transmit) = engine.poll_transmit(self.now, &mut buffer) {
                let to = engine.address_of(transmit.target).unwrap().to_vec();
                under_way.push((to, buffer[..transmit.size].to_vec()));
            }
        }
        for (to, bytes) in under_way {
            if let Some(engine) = self.engines.get_mut(&to) {
                let _ = engine.handle(self.now, Input::Datagram { bytes: &bytes });
            }
        }
    }

    fn run(&mut self, ms: u64) {
        (0..ms).for_each(|_| self.step());
    }
}

/// ZM-01: the id is the name, so a node keeps its place when its rails change, and is not failed for it.
/// cfg-020.
#[test]
fn others_learn_of_a_new_address_and_nobody_is_held_failed() {
    let mut net = Net::new(&["n1", "n2", "n3"]);
    net.run(500);
    for engine in net.engines.values_mut() {
        assert_eq!(engine.live(), 3);
        while engine.poll_event().is_some() {}
    }
    let (id, at) = (MemberId::of("n2"), net.now);
    let mut moved = net.engines.remove(b"n2".as_slice()).unwrap();
    let before = moved.version();
    moved.handle(at, Input::Address(b"elsewhere")).unwrap();
    assert!(
        moved.version() > before,
        "a higher minor carries the address"
    );
    assert_eq!(moved.version().incarnation, before.incarnation);
    // The same address again changes nothing.
    let version = moved.version();
    moved.handle(at, Input::Address(b"elsewhere")).unwrap();
    assert_eq!(moved.version(), version);
    net.engines.insert(b"elsewhere".to_vec(), moved);
    net.run(500);
    for (address, engine) in &mut net.engines {
        let at = engine.address_of(Target::Member(id)).unwrap();
        assert_eq!(at, b"elsewhere", "at {address:?}");
        assert_eq!(engine.member(id).unwrap().state(), NodeState::Alive);
        while let Some(event) = engine.poll_event() {
            let harm = matches!(event.kind, EventKind::NodeFailed | EventKind::Outcast);
            assert!(!harm, "{event:?}");
        }
    }
}

#[test]
fn an_address_that_cannot_travel_is_refused() {
    let mut net = Net::new(&["n1"]);
    let engine = net.engines.get_mut(b"n1".as_slice()).unwrap();
    let version = engine.version();
    for address in [&[][..], &[1; 256]] {
        let refused = engine.handle(Instant(5), Input::Address(address));
        assert_eq!(refused, Err(Reject::Unknown));
    }
    assert_eq!(engine.version(), version);
}

/// A removed seed gets no more join requests.
#[test]
fn a_seed_that_is_taken_back_is_left_alone() {
    let mut net = Net::new(&["n1"]);
    let engine = net.engines.get_mut(b"n1".as_slice()).unwrap();
    let requests = |engine: &mut Overlay, from: u64| {
        let mut buffer = vec![0; 1472];
        let mut requests = 0;
        for ms in from..from + 2000 {
            let now = Instant(ms * 1000);
            engine.handle(now, Input::Wake).unwrap();
            while let Some(transmit) = engine.poll_transmit(now, &mut buffer) {
                requests += usize::from(engine.address_of(transmit.target) == Some(b"seed"));
            }
        }
        requests
    };
    let address = b"seed".as_slice();
    engine.handle(Instant(1), Input::Seed { address }).unwrap();
    assert!(requests(engine, 1) > 0);
    engine
        .handle(Instant(2_500_000), Input::Unseed { address })
        .unwrap();
    assert_eq!(requests(engine, 3000), 0);
}
