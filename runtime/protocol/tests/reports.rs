//! Which reports count, and when.

use muster_protocol::{
    Config, EventKind, Input, Instant, MemberId, NodeState, Overlay, Profile, Version,
};

use crate::common::{KEY, Peer, give, node_fact};

const NOW: Instant = Instant(1_000_000);
const SUSPECT: u8 = 3;
const FAILED: u8 = 4;
const SILENCE: u8 = 2;
const TOLD: u8 = 5;

/// A record with a cause and reporters.
fn reported(name: &str, state: u8, cause: u8, reporters: &[&str]) -> Vec<u8> {
    let mut fact = node_fact(name, Version::first(1), state);
    // After tag, id, version, state and exit code.
    fact[1 + 8 + 12 + 1 + 4] = cause;
    fact.pop();
    fact.push(reporters.len() as u8);
    for reporter in reporters {
        fact.extend(MemberId::of(reporter).0.to_le_bytes());
        fact.extend(0_u16.to_le_bytes());
    }
    fact
}

/// ZM-06: a report ceases to count when its reporter is held failed, since its view has diverged. Then as
/// many others must have found the suspect silent as without it.
#[test]
fn a_report_counts_as_long_as_its_reporter_does() {
    let mut config = Config::new("own", b"own", Profile::Standard);
    config.key = Some(KEY);
    let mut engine = Overlay::new(config).unwrap();
    engine.handle(NOW, Input::Wake).unwrap();
    let mut peer = Peer::new("peer");
    for name in ["peer", "suspect", "a", "b", "c", "d"] {
        let hello = match name {
            "peer" => peer.introduction(0),
            other => Peer::new(other).introduction(0),
        };
        assert_eq!(give(&mut engine, NOW, &hello), Ok(()));
    }
    let mut hear = |fact: Vec<u8>| {
        assert_eq!(give(&mut engine, NOW, &peer.news(&[fact])), Ok(()));
        let suspect = engine.member(MemberId::of("suspect")).unwrap();
        (suspect.state(), suspect.reporters().len())
    };
    let report = |by: &[&str]| reported("suspect", SUSPECT, SILENCE, by);
    assert_eq!(hear(report(&["a"])), (NodeState::Suspect, 1));
    hear(reported("a", FAILED, TOLD, &["peer"]));
    assert_eq!(hear(report(&["a", "b"])), (NodeState::Suspect, 1), "only b");
    assert_eq!(hear(report(&["c"])), (NodeState::Failed, 2));
}

/// A member that overslept a deadline does not know what became of the reports that it holds, its own among
/// them, and the frames in its sockets are as old. If it passed them on, two such members would make a
/// verdict on a member that is heard.
#[test]
fn a_sleeper_passes_no_reports_on() {
    let mut config = Config::new("own", b"own", Profile::Standard);
    config.key = Some(KEY);
    let mut engine = Overlay::new(config).unwrap();
    engine.handle(NOW, Input::Wake).unwrap();
    let mut peer = Peer::new("peer");
    assert_eq!(give(&mut engine, NOW, &peer.introduction(0)), Ok(()));
    for name in ["suspect", "a", "b"] {
        let hello = Peer::new(name).introduction(0);
        assert_eq!(give(&mut engine, NOW, &hello), Ok(()));
    }
    let suspect = |engine: &Overlay| {
        let suspect = engine.member(MemberId::of("suspect")).unwrap();
        (suspect.state(), suspect.reporters().len())
    };
    let report = |by: &str| reported("suspect", SUSPECT, SILENCE, &[by]);
    assert_eq!(give(&mut engine, NOW, &peer.news(&[report("a")])), Ok(()));
    assert_eq!(suspect(&engine), (NodeState::Suspect, 1));
    // All is sent, and then it is stopped for five seconds.
    let mut buffer = vec![0; 1472];
    while engine.poll_transmit(NOW, &mut buffer).is_some() {}
    let woke = NOW.after(5_000_000);
    assert_eq!(give(&mut engine, woke, &peer.news(&[report("b")])), Ok(()));
    assert_eq!(suspect(&engine), (NodeState::Alive, 0), "all that is old");
    let told: Vec<EventKind> = std::iter::from_fn(|| engine.poll_event())
        .filter(|event| event.member == MemberId::of("suspect"))
        .map(|event| event.kind)
        .collect();
    assert!(
        told.ends_with(&[EventKind::NodeSuspect, EventKind::NodeRecovered]),
        "{told:?}"
    );
    // When its view is up to date again, it takes reports.
    let awake = (1..=20).map(|beat| woke.after(beat * 10_000));
    for now in awake {
        engine.handle(now, Input::Wake).unwrap();
        while engine.poll_transmit(now, &mut buffer).is_some() {}
    }
    let now = woke.after(200_000);
    assert_eq!(give(&mut engine, now, &peer.news(&[report("b")])), Ok(()));
    assert_eq!(suspect(&engine), (NodeState::Suspect, 1));
}
