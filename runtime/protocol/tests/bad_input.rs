//! Harmless frames: of another job, another release, too long, the engine's own, inconsistent ones, and
//! false facts of a member that has the key.

use muster_protocol::{
    Config, Difference, EventKind, Input, Instant, MTU_MAX, MemberId, NodeState, Overlay,
    Parameter, Phase, Profile, Reject, Version,
};

use crate::common::{
    ALIVE, KEY, LINK, NEWS, Peer, REFUSAL, WIRE_VERSION, give, node, node_fact, parameters, sealed,
};

const NOW: Instant = Instant(1_000_000);

/// An engine that knows `peer`.
fn engine(peer: &mut Peer) -> Overlay {
    let mut config = Config::new("own", b"own", Profile::Standard);
    config.key = Some(KEY);
    let mut engine = Overlay::new(config).unwrap();
    engine.handle(NOW, Input::Wake).unwrap();
    assert_eq!(give(&mut engine, NOW, &peer.introduction(0)), Ok(()));
    events(&mut engine);
    engine
}

fn events(engine: &mut Overlay) -> Vec<(EventKind, MemberId, Version)> {
    core::iter::from_fn(|| engine.poll_event())
        .map(|event| (event.kind, event.member, event.version))
        .collect()
}

fn incarnation(incarnation: u64) -> Version {
    Version::first(incarnation)
}

/// Sealed with another key: the frame of another job.
#[test]
fn a_frame_of_another_job_costs_a_counter() {
    let mut peer = Peer::new("peer");
    let mut engine = engine(&mut peer);
    let mut bytes = peer.introduction(0);
    let end = bytes.len() - 16;
    let tag = blake3::keyed_hash(&[1; 32], &bytes[..end]);
    bytes[end..].copy_from_slice(&tag.as_bytes()[..16]);
    assert_eq!(give(&mut engine, NOW, &bytes), Err(Reject::Forged));
    assert_eq!(engine.counters().rejected(Reject::Forged), 1);
    assert_eq!((engine.live(), events(&mut engine).len()), (2, 0));
}

/// AG-05: another release is named, once, but only if it has the key.
#[test]
fn another_release_is_named_if_it_has_the_key() {
    let mut peer = Peer::new("peer");
    let mut engine = engine(&mut peer);
    let mut sender = Peer::new("unknown");
    for _ in 0..2 {
        let mut bytes = sender.introduction(0);
        bytes[2] = 77;
        assert_eq!(give(&mut engine, NOW, &bytes), Err(Reject::WireVersion));
        assert_eq!(events(&mut engine), [], "the proof is wrong now");
    }
    for time in 0..2 {
        let mut bytes = sender.introduction(0);
        bytes.truncate(bytes.len() - 16);
        bytes[2] = 77;
        let bytes = sealed(bytes);
        assert_eq!(give(&mut engine, NOW, &bytes), Err(Reject::WireVersion));
        let refused = EventKind::Refused(Difference {
            parameter: Parameter::WireVersion,
            own: WIRE_VERSION.into(),
            other: 77,
        });
        let told = events(&mut engine);
        assert_eq!(told.len(), usize::from(time == 0));
        assert!(
            told.iter()
                .all(|(kind, id, _)| (*kind, *id) == (refused, sender.id))
        );
    }
    assert_eq!(engine.live(), 2);
}

#[test]
fn an_oversized_frame_is_refused_before_it_is_read() {
    let mut peer = Peer::new("peer");
    let mut engine = engine(&mut peer);
    let bytes = peer.frame(LINK, &vec![0; MTU_MAX]);
    assert_eq!(give(&mut engine, NOW, &bytes), Err(Reject::Oversized));
    assert_eq!(engine.counters().rejected(Reject::Oversized), 1);
}

/// An own frame that comes back changes nothing, and is no name conflict: it is for another member.
#[test]
fn our_own_frames_are_known_as_our_own() {
    let mut peer = Peer::new("peer");
    let mut engine = engine(&mut peer);
    let mut buffer = vec![0; 2000];
    let transmit = engine.poll_transmit(NOW, &mut buffer).unwrap();
    let echo = &buffer[..transmit.size];
    assert_eq!(give(&mut engine, NOW, echo), Err(Reject::Misdirected));
    assert_eq!(engine.phase(), Phase::Running);
    assert_eq!((engine.live(), events(&mut engine).len()), (2, 0));
}

/// Two versions of one member in one frame, in either order: the higher one counts.
#[test]
fn of_contradictory_versions_the_higher_one_counts() {
    let facts = [
        node_fact("s", incarnation(1), ALIVE),
        node_fact("s", incarnation(2), ALIVE),
    ];
    for order in [[0, 1], [1, 0]] {
        let mut peer = Peer::new("peer");
        let mut engine = engine(&mut peer);
        let bytes = peer.news(&order.map(|index: usize| facts[index].clone()));
        assert_eq!(give(&mut engine, NOW, &bytes), Ok(()));
        let held = engine.member(MemberId::of("s")).unwrap();
        assert_eq!(
            (held.version(), held.state()),
            (incarnation(2), NodeState::Alive)
        );
    }
}

/// An introduction with another incarnation than the frame's header introduces no member.
#[test]
fn an_introduction_that_contradicts_its_header_is_rejected() {
    let mut peer = Peer::new("peer");
    let mut engine = engine(&mut peer);
    let mut sender = Peer::new("unknown");
    let mut body = vec![0, 0];
    body.extend(0_u64.to_le_bytes());
    body.extend(parameters(20_000, 60_000, 2, false));
    body.extend(node("unknown", incarnation(9), ALIVE));
    let bytes = sender.frame(LINK, &body);
    assert_eq!(give(&mut engine, NOW, &bytes), Err(Reject::UnknownSender));
    // And one that introduces another member is malformed.
    let mut body = vec![0, 0];
    body.extend(0_u64.to_le_bytes());
    body.extend(parameters(20_000, 60_000, 2, false));
    body.extend(node("victim", incarnation(1), ALIVE));
    let bytes = sender.frame(LINK, &body);
    assert_eq!(give(&mut engine, NOW, &bytes), Err(Reject::Malformed));
    assert_eq!(engine.live(), 2);
}

/// A false incarnation of another member: each costs that member one incarnation, which it replaces by the
/// next. None uses up the numbers that it needs.
#[test]
fn a_lie_about_anothers_incarnation_does_bounded_harm() {
    let mut liar = Peer::new("liar");
    let mut engine = engine(&mut liar);
    let mut victim = Peer::new("victim");
    give(&mut engine, NOW, &victim.introduction(0)).unwrap();
    let victim_at = |engine: &Overlay| engine.member(MemberId::of("victim")).unwrap().version();

    let lie = liar.news(&[node_fact("victim", incarnation(1 << 63), ALIVE)]);
    give(&mut engine, NOW, &lie).unwrap();
    assert_eq!(engine.counters().incarnations_refused, 1);
    assert_eq!(victim_at(&engine), incarnation(1));

    let lie = liar.news(&[node_fact("victim", incarnation(1 << 62), ALIVE)]);
    give(&mut engine, NOW, &lie).unwrap();
    assert_eq!(victim_at(&engine), incarnation(1 << 62));
    victim.version = incarnation((1 << 62) + 1);
    give(&mut engine, NOW, &victim.introduction(0)).unwrap();
    assert_eq!(victim_at(&engine), victim.version, "it contradicts");
    assert_eq!(engine.live(), 3);
}

/// The same about the local member: it raises its incarnation, and never reaches the last one.
#[test]
fn a_false_own_incarnation_does_not_stop_the_engine() {
    let mut liar = Peer::new("liar");
    let mut engine = engine(&mut liar);
    let lie = |liar: &mut Peer, incarnation| {
        let fact = node_fact("own", Version::first(incarnation), NodeState::Failed as u8);
        liar.news(&[fact])
    };
    let frame = lie(&mut liar, 1 << 63);
    give(&mut engine, NOW, &frame).unwrap();
    assert_eq!(engine.phase(), Phase::Running);
    assert_eq!(engine.version(), incarnation(1));
    assert_eq!(engine.counters().incarnations_refused, 1);
    let frame = lie(&mut liar, 7);
    give(&mut engine, NOW, &frame).unwrap();
    assert_eq!(engine.version().incarnation, 8);
    assert_eq!(engine.phase(), Phase::Running);
}

/// Requested links are bounded; a member that is declined is counted, and told.
#[test]
fn no_number_of_observers_makes_links_without_end() {
    let mut peer = Peer::new("peer");
    let mut engine = engine(&mut peer);
    let asked = 1500;
    for number in 0..asked {
        let mut observer = Peer::new(&format!("observer{number}"));
        assert_eq!(give(&mut engine, NOW, &observer.introduction(1)), Ok(()));
        crate::common::kinds_sent(&mut engine, NOW);
    }
    let (links, most) = (engine.sizes().links, engine.limits().links);
    assert!(links <= most && most < asked, "{links} of at most {most}");
    let refused = engine.counters().links_refused;
    assert!(refused as usize >= asked - most, "{refused}");
    assert_eq!(engine.live(), 2 + asked);
}

/// Acknowledgements that are not sent are bounded; dropped ones are counted.
#[test]
fn acknowledgements_that_do_not_fit_are_counted() {
    let mut peer = Peer::new("peer");
    let mut engine = engine(&mut peer);
    for _ in 0..30 {
        let bytes = peer.frame(NEWS, &[1, 0, 0, 0]);
        assert_eq!(give(&mut engine, NOW, &bytes), Ok(()));
    }
    assert_eq!(engine.counters().acks_dropped, 30 - 24);
}

/// Answers to addresses that belong to no member wait in a few slots; a waiting one is not sent to another
/// address.
#[test]
fn answers_to_unknown_senders_are_bounded() {
    let mut peer = Peer::new("peer");
    let mut engine = engine(&mut peer);
    for number in 0..20 {
        let mut other = Peer::new(&format!("other{number}"));
        other.parameters = parameters(20_000, 61_000, 2, false);
        let told = give(&mut engine, NOW, &other.introduction(1));
        assert_eq!(told, Err(Reject::Parameters));
    }
    assert_eq!(engine.counters().outbox_dropped, 20 - 8);
    let mut buffer = vec![0; 2000];
    let mut addresses = Vec::new();
    while let Some(transmit) = engine.poll_transmit(NOW, &mut buffer) {
        if buffer[3] == REFUSAL {
            let address = engine.address_of(transmit.target).unwrap();
            addresses.push(String::from_utf8(address.to_vec()).unwrap());
        }
    }
    let first: Vec<String> = (0..8).map(|number| format!("other{number}")).collect();
    assert_eq!(addresses, first);
}
