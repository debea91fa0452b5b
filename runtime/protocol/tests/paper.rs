//! Paper mode against a slow transcription of the paper's first algorithm: the same sequences of alive,
//! leave and suspicion, as real frames, must give the same view, the same history, the same updates (Delta)
//! and base views to neighbours, and the same notifications in the same order. Rows ZM-08 and ZM-09.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{
    Config, EventKind, Input, Instant, MemberId, Mode, NodeState, Overlay, Profile, Version,
};
use proptest::prelude::*;

use crate::common::{
    ALIVE, Fact, KEY, LEFT, NEWS, Peer, give, kinds_sent, news_sent, node_fact, parameters,
    suspicion_fact,
};

const TAU_US: u64 = 200_000;
/// The role of a random neighbour.
const NEIGHBOUR: u8 = 2;
const START: Instant = Instant(1_000_000);
const SUBJECTS: [&str; 4] = ["s0", "s1", "s2", "s3"];
const REPORTERS: [&str; 5] = ["r0", "r1", "r2", "r3", "r4"];

/// A notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    Join(MemberId, Version),
    Leave(MemberId, Version),
}

/// One piece of news.
#[derive(Clone, Copy, Debug)]
enum News {
    Leave(&'static str, Version),
    Alive(&'static str, Version),
    Suspicion(&'static str, &'static str, Version),
}

/// The oracle: plain maps and the procedures, without any cached results.
#[derive(Debug)]
struct Oracle {
    own: MemberId,
    own_version: Version,
    theta: usize,
    view: BTreeMap<MemberId, Version>,
    history: BTreeMap<MemberId, Version>,
    suspicions: BTreeMap<(MemberId, MemberId), Version>,
    notices: Vec<Notice>,
    /// The members of which the update database Delta has an alive or a leave event.
    changed: BTreeSet<MemberId>,
    /// Its suspicions.
    reported: BTreeSet<Fact>,
    /// The removed members that have left.
    left: BTreeSet<MemberId>,
}

impl Oracle {
    /// The update that is sent to all neighbours; then Delta is empty. A record is the state at the time of
    /// sending, and a removal by suspicions is known from the suspicions alone.
    fn update(&mut self) -> BTreeSet<Fact> {
        let mut update = core::mem::take(&mut self.reported);
        for p in core::mem::take(&mut self.changed) {
            if p == self.own {
                update.insert(Fact::Alive(p, self.own_version));
            } else if let Some(v) = self.view.get(&p) {
                update.insert(Fact::Alive(p, *v));
            } else if self.left.contains(&p) {
                update.insert(Fact::Left(p, self.history[&p]));
            }
        }
        update
    }

    /// The base view for a new neighbour: the entire view and all current suspicions.
    fn base_view(&self) -> BTreeSet<Fact> {
        let view = self.view.iter().map(|(p, v)| Fact::Alive(*p, *v));
        let suspicions = self.suspicions.iter();
        let suspicions = suspicions.map(|((s, r), v)| Fact::Suspicion(*r, *s, *v));
        let own = Fact::Alive(self.own, self.own_version);
        view.chain(suspicions).chain([own]).collect()
    }

    fn alive(&mut self, p: MemberId, v: Version) {
        match self.view.get(&p).copied() {
            None => {
                if self.history.get(&p).is_some_and(|removed| v <= *removed) {
                    return;
                }
                self.history.remove(&p);
                self.view.insert(p, v);
                self.changed.insert(p);
                self.notices.push(Notice::Join(p, v));
            }
            Some(held) if v > held => {
                self.changed.insert(p);
                self.suspicions
                    .retain(|(suspect, _), reported| *suspect != p || *reported >= v);
                if held.incarnation != v.incarnation {
                    self.notices.push(Notice::Leave(p, held));
                    self.notices.push(Notice::Join(p, v));
                }
                self.view.insert(p, v);
            }
            Some(_) => {}
        }
    }

    fn leave(&mut self, p: MemberId, v: Version) {
        if let Some(held) = self.view.get(&p) {
            if v >= *held {
                self.remove(p, v);
                self.left.insert(p);
                self.changed.insert(p);
            }
        } else if self.history.get(&p).is_some_and(|removed| v > *removed) {
            self.history.insert(p, v);
            self.left.insert(p);
            self.changed.insert(p);
        }
    }

    fn suspicion(&mut self, r: MemberId, s: MemberId, v: Version) {
        if s == self.own {
            self.own_version.minor += 1;
            self.changed.insert(s);
            return;
        }
        let held = self.view.get(&s);
        let earlier = self.suspicions.get(&(s, r));
        if held.is_none_or(|held| v < *held) || earlier.is_some_and(|earlier| *earlier >= v) {
            return;
        }
        self.suspicions.insert((s, r), v);
        self.reported.insert(Fact::Suspicion(r, s, v));
        let reporters = self.suspicions.keys().filter(|(suspect, _)| *suspect == s);
        if reporters.count() >= self.theta {
            self.remove(s, v);
        }
    }

    fn remove(&mut self, p: MemberId, v: Version) {
        self.view.remove(&p);
        self.suspicions.retain(|(suspect, _), _| *suspect != p);
        self.history.insert(p, v);
        self.left.remove(&p);
        self.notices.push(Notice::Leave(p, v));
    }

    /// A news frame: first all that left, then all that live, then all reports.
    fn frame(&mut self, frame: &[News]) {
        for news in frame {
            if let News::Leave(p, v) = news {
                self.leave(MemberId::of(p), *v);
            }
        }
        for news in frame {
            if let News::Alive(p, v) = news {
                self.alive(MemberId::of(p), *v);
            }
        }
        for news in frame {
            if let News::Suspicion(r, s, v) = news {
                self.suspicion(MemberId::of(r), MemberId::of(s), *v);
            }
        }
    }
}

fn fact(news: &News) -> Vec<u8> {
    match news {
        News::Leave(p, v) => node_fact(p, *v, LEFT),
        News::Alive(p, v) => node_fact(p, *v, ALIVE),
        News::Suspicion(r, s, v) => suspicion_fact(r, s, *v),
    }
}

/// An engine in paper mode whose timers are far away, and which knows `peer`.
fn engine(theta: usize, peer: &mut Peer, roles: u8) -> Overlay {
    let mut config = Config::new("own", b"own", Profile::Standard);
    config.mode = Mode::Paper { tau_us: TAU_US };
    config.key = Some(KEY);
    config.heartbeat_us = 60_000_000;
    config.deadline_us = 600_000_000;
    config.theta = theta;
    config.successors = 4;
    peer.parameters = parameters(60_000_000, 600_000_000, theta as u8, true);
    let mut engine = Overlay::new(config).unwrap();
    engine.handle(START, Input::Wake).unwrap();
    give(&mut engine, START, &peer.introduction(roles)).unwrap();
    engine
}

fn notices(engine: &mut Overlay) -> Vec<Notice> {
    let mut notices = Vec::new();
    while let Some(event) = engine.poll_event() {
        match event.kind {
            EventKind::NodeUp => notices.push(Notice::Join(event.member, event.version)),
            EventKind::NodeFailed | EventKind::NodeLeft { .. } => {
                notices.push(Notice::Leave(event.member, event.version));
            }
            _ => {}
        }
    }
    notices
}

fn versions() -> impl Strategy<Value = Version> {
    (1..4_u64, 1..4_u32).prop_map(|(incarnation, minor)| Version { incarnation, minor })
}

fn news() -> impl Strategy<Value = News> {
    let subject = || prop::sample::select(SUBJECTS.to_vec());
    let accused = prop::sample::select(vec!["s0", "s1", "s2", "s3", "own"]);
    let reporter = prop::sample::select(REPORTERS.to_vec());
    prop_oneof![
        3 => (subject(), versions()).prop_map(|(p, v)| News::Alive(p, v)),
        1 => (subject(), versions()).prop_map(|(p, v)| News::Leave(p, v)),
        4 => (reporter, accused, versions()).prop_map(|(r, s, v)| News::Suspicion(r, s, v)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// ZM-09.
    #[test]
    fn the_engine_and_the_transcription_agree(
        theta in 1..5_usize,
        frames in prop::collection::vec(prop::collection::vec(news(), 0..6), 0..30),
    ) {
        let mut peer = Peer::new("peer");
        let mut engine = engine(theta, &mut peer, NEIGHBOUR);
        notices(&mut engine);
        let own = MemberId::of("own");
        let mut oracle = Oracle {
            own,
            own_version: engine.version(),
            theta,
            view: BTreeMap::from([(peer.id, peer.version)]),
            history: BTreeMap::new(),
            suspicions: BTreeMap::new(),
            notices: Vec::new(),
            changed: BTreeSet::new(),
            reported: BTreeSet::new(),
            left: BTreeSet::new(),
        };
        let mut now = START;
        let base = news_sent(&mut engine, now, &mut peer);
        prop_assert_eq!(base.into_iter().collect::<BTreeSet<_>>(), oracle.base_view());
        for frame in &frames {
            let facts: Vec<Vec<u8>> = frame.iter().map(fact).collect();
            give(&mut engine, now, &peer.news(&facts)).unwrap();
            oracle.frame(frame);
            let members: Vec<_> = engine.members().filter(|member| member.id() != own).collect();
            let (inside, outside): (Vec<_>, Vec<_>) =
                members.iter().partition(|member| member.state().in_view());
            let versions = |list: Vec<&muster_protocol::MemberView<'_>>| -> BTreeMap<_, _> {
                list.iter().map(|member| (member.id(), member.version())).collect()
            };
            prop_assert_eq!(versions(inside), oracle.view.clone());
            prop_assert_eq!(versions(outside), oracle.history.clone());
            for member in &members {
                let accused = oracle.suspicions.keys().any(|(s, _)| *s == member.id());
                prop_assert_eq!(member.state() == NodeState::Suspect, accused);
            }
            prop_assert_eq!(engine.version(), oracle.own_version);
            prop_assert_eq!(news_sent(&mut engine, now, &mut peer), []);
            now = now.after(TAU_US);
            engine.handle(now, Input::Wake).unwrap();
            let update = news_sent(&mut engine, now, &mut peer);
            let count = update.len();
            let update: BTreeSet<Fact> = update.into_iter().collect();
            prop_assert_eq!(update.len(), count, "each fact is sent once");
            prop_assert_eq!(update, oracle.update());
        }
        let mut late = Peer::new("late");
        late.parameters.clone_from(&peer.parameters);
        give(&mut engine, now, &late.introduction(NEIGHBOUR)).unwrap();
        oracle.alive(late.id, late.version);
        let base = news_sent(&mut engine, now, &mut late);
        prop_assert_eq!(base.into_iter().collect::<BTreeSet<_>>(), oracle.base_view());
        now = now.after(TAU_US);
        engine.handle(now, Input::Wake).unwrap();
        let update = BTreeSet::from_iter(news_sent(&mut engine, now, &mut peer));
        prop_assert_eq!(update, oracle.update());
        prop_assert_eq!(notices(&mut engine), oracle.notices);
    }
}

/// ZM-08: changes wait for tau from the first change on, and are then sent in one frame.
#[test]
fn news_waits_for_tau_from_the_first_change_on() {
    let mut peer = Peer::new("peer");
    let mut engine = engine(2, &mut peer, 2);
    let base = kinds_sent(&mut engine, START);
    assert!(
        base.contains(&NEWS),
        "the base view does not wait: {base:?}"
    );
    let first = START.after(10);
    let news = peer.news(&[node_fact("s0", Version::first(1), ALIVE)]);
    give(&mut engine, first, &news).unwrap();
    assert!(!kinds_sent(&mut engine, first).contains(&NEWS));
    let second = first.after(TAU_US - 1);
    let news = peer.news(&[node_fact("s1", Version::first(1), ALIVE)]);
    give(&mut engine, second, &news).unwrap();
    let to_peer = |engine: &mut Overlay, at| {
        let mut buffer = vec![0; 2000];
        let mut frames = 0;
        while let Some(transmit) = engine.poll_transmit(at, &mut buffer) {
            let to = muster_protocol::Target::Member(MemberId::of("peer"));
            frames += usize::from(buffer[3] == NEWS && transmit.target == to);
        }
        frames
    };
    // The acknowledgement of the base view never came; it is retransmitted after half a heartbeat.
    assert_eq!(to_peer(&mut engine, second), 0);
    assert_eq!(engine.poll_timeout(), first.after(TAU_US));
    engine.handle(first.after(TAU_US), Input::Wake).unwrap();
    assert_eq!(to_peer(&mut engine, first.after(TAU_US)), 1);
    assert_eq!(to_peer(&mut engine, first.after(2 * TAU_US)), 0);
}
