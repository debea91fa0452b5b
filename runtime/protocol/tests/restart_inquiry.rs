//! Restart inquiry: an agent that replaces one that broke off asks what became of the previous incarnation
//! (ZM-04).

use muster_protocol::{
    Config, EventKind, Input, Instant, MemberId, NodeState, Overlay, Phase, Policy, Profile, Target,
};

const NAMES: [&str; 3] = ["n1", "n2", "n3"];
const FIRST: u64 = 1_000;
const LATER: u64 = 2_000;

/// Members that hear each other at once; `None` for one that is gone.
struct Zone {
    now: Instant,
    members: Vec<Option<Overlay>>,
    events: Vec<(usize, MemberId, EventKind)>,
}

fn config(at: usize) -> Config {
    let mut config = Config::new(NAMES[at], NAMES[at].as_bytes(), Profile::Standard);
    config.seeds = NAMES.map(|name| name.as_bytes().to_vec()).into();
    config.key = Some([3; 32]);
    config.incarnation = FIRST;
    config.policy = Policy::Stop;
    config
}

impl Zone {
    /// A zone of members that have found each other.
    fn booted(count: usize) -> Self {
        let members = (0..count).map(|at| Some(Overlay::new(config(at)).unwrap()));
        let mut zone = Self {
            now: Instant(1_000_000),
            members: members.collect(),
            events: Vec::new(),
        };
        zone.run_until(|zone| zone.members.iter().flatten().all(|one| one.live() == count));
        zone.run(300);
        zone.events.clear();
        zone
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now = self.now.after(1_000);
            for at in 0..self.members.len() {
                let Some(one) = &mut self.members[at] else {
                    continue;
                };
                if one.poll_timeout() <= self.now {
                    one.handle(self.now, Input::Wake).unwrap();
                }
                self.send_from(at);
            }
        }
    }

    fn send_from(&mut self, from: usize) {
        let mut buffer = vec![0; 1472];
        while let Some(one) = &mut self.members[from]
            && let Some(transmit) = one.poll_transmit(self.now, &mut buffer)
        {
            let address = one.address_of(transmit.target).map(<[u8]>::to_vec);
            let is_at = |to: &Option<Overlay>| {
                let own = to
                    .as_ref()
                    .and_then(|to| to.address_of(Target::Member(to.id())));
                own.is_some() && own == address.as_deref()
            };
            let to = self.members.iter().position(is_at);
            let bytes = &buffer[..transmit.size];
            if let Some(Some(to)) = to.and_then(|to| self.members.get_mut(to)) {
                let _ = to.handle(self.now, Input::Datagram { bytes });
            }
        }
        for (at, one) in self.members.iter_mut().enumerate() {
            let events = std::iter::from_fn(|| one.as_mut()?.poll_event());
            let told = events.map(|event| (at, event.member, event.kind));
            self.events.extend(told);
        }
    }

    fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        for _ in 0..5_000 {
            if done(self) {
                return;
            }
            self.run(1);
        }
        panic!("it does not come: {:?}", self.events);
    }

    /// A member restarts in the place of the last one; it knows only the previous incarnation.
    fn come_back(&mut self) -> usize {
        let at = self.members.len() - 1;
        self.come_back_at(NAMES[at])
    }

    /// The same with another address.
    fn come_back_at(&mut self, address: &str) -> usize {
        let at = self.members.len() - 1;
        let mut config = config(at);
        config.address = address.as_bytes().to_vec();
        config.incarnation = LATER;
        config.previous_incarnation = Some(FIRST);
        config.first_sequence = self.now.0;
        self.members[at] = Some(Overlay::new(config).unwrap());
        at
    }

    fn told(&self, by: usize, about: usize, kind: EventKind) -> bool {
        self.events
            .contains(&(by, MemberId::of(NAMES[about]), kind))
    }
}

fn held(zone: &Zone, by: usize, about: usize) -> Option<NodeState> {
    let one = zone.members[by].as_ref()?;
    one.member(MemberId::of(NAMES[about]))
        .map(|member| member.state())
}

/// The others held the previous incarnation failed before the restart: it is told so, whichever of two is
/// first on the ring, and is not admitted; also at another address, where its port was taken meanwhile. Row
/// ZM-04.
#[test]
fn a_failed_incarnation_stays_failed_after_a_restart() {
    for (count, address) in [(2, "n2"), (3, "n3"), (2, "moved"), (3, "moved")] {
        let mut zone = Zone::booted(count);
        let at = count - 1;
        zone.members[at] = None;
        zone.run_until(|zone| (0..at).all(|by| held(zone, by, at) == Some(NodeState::Failed)));
        zone.come_back_at(address);
        zone.run_until(|zone| zone.told(at, at, EventKind::Outcast));
        zone.run(1_000);
        let stopped = zone.members[at].as_ref().unwrap();
        assert_eq!(stopped.phase(), Phase::Stopped);
        for by in 0..at {
            assert_eq!(held(&zone, by, at), Some(NodeState::Failed));
            assert!(!zone.told(by, at, EventKind::NodeUp));
        }
    }
}

/// The restart came before the previous incarnation was missed: a new incarnation begins, and its ranks are
/// reported again.
#[test]
fn an_incarnation_that_was_not_missed_is_followed_by_the_next() {
    for address in ["n3", "moved"] {
        comes_back_before_it_is_missed(address);
    }
}

fn comes_back_before_it_is_missed(address: &str) {
    let mut zone = Zone::booted(3);
    let at = zone.come_back_at(address);
    let is_back = |zone: &Zone, by: usize| {
        let one = zone.members[by].as_ref().unwrap();
        let version = one.member(MemberId::of(NAMES[at])).map(|it| it.version());
        version.is_some_and(|version| version.incarnation == LATER) && one.live() == 3
    };
    zone.run_until(|zone| (0..3).all(|by| is_back(zone, by)));
    zone.run(1_000);
    assert!((0..3).all(|by| is_back(&zone, by)));
    assert!(!zone.told(at, at, EventKind::Outcast));
    // The end of the first incarnation and the begin of the next.
    for by in 0..at {
        assert!(zone.told(by, at, EventKind::NodeFailed) && zone.told(by, at, EventKind::NodeUp));
    }
    let digests: Vec<u64> = zone.members.iter().flatten().map(Overlay::digest).collect();
    assert!(digests.iter().all(|digest| *digest == digests[0]));
}

/// The same with a worker that was lost meanwhile, and without other members.
#[test]
fn a_requester_asks_again() {
    let mut zone = Zone::booted(3);
    zone.members[2] = None;
    zone.run_until(|zone| (0..2).all(|by| held(zone, by, 2) == Some(NodeState::Failed)));
    let others: Vec<Option<Overlay>> = zone.members.iter_mut().take(2).map(Option::take).collect();
    let at = zone.come_back();
    zone.run(1_000);
    let alone = zone.members[at].take().unwrap();
    assert_eq!((alone.phase(), alone.live()), (Phase::Running, 1));
    let mut snapshot = Vec::new();
    alone.snapshot(&mut snapshot);
    let mut config = config(at);
    (config.incarnation, config.previous_incarnation) = (LATER + 1, Some(FIRST));
    config.first_sequence = zone.now.0;
    let resumed = Overlay::resume(config, &snapshot, zone.now).unwrap();
    zone.members[at] = Some(resumed);
    for (place, one) in zone.members.iter_mut().zip(others) {
        *place = one;
    }
    zone.run_until(|zone| zone.told(at, at, EventKind::Outcast));
}

/// A worker is lost between the admission and the new incarnation: the next worker is admitted too. ZM-04.
#[test]
fn an_admitted_member_begins_the_new_incarnation_also_with_another_worker() {
    let mut zone = Zone::booted(3);
    let at = zone.come_back();
    zone.run_until(|zone| zone.members[at].as_ref().unwrap().live() == 3);
    let lost = zone.members[at].take().unwrap();
    assert_eq!(lost.version().incarnation, FIRST);
    let mut snapshot = Vec::new();
    lost.snapshot(&mut snapshot);
    let mut config = config(at);
    (config.incarnation, config.previous_incarnation) = (LATER, Some(FIRST));
    config.first_sequence = zone.now.0;
    let resumed = Overlay::resume(config, &snapshot, zone.now).unwrap();
    zone.members[at] = Some(resumed);
    let is_new = |one: &Overlay| {
        let member = one.member(MemberId::of(NAMES[at]));
        member.is_some_and(|member| member.version().incarnation == LATER)
    };
    zone.run_until(|zone| zone.members.iter().flatten().all(is_new));
    assert!(!zone.told(at, at, EventKind::Outcast));
}
