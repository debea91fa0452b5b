//! Releases side by side: recorded frames of the previous wire version are rejected, and their sender is
//! named (bck-030); recorded frames of this version are still parsed.
//!
//! A change of the format raises `frame::WIRE_VERSION` and adds a file of its frames; the others stay.
// Frames of releases are in a file; the code under test reads none.
#![allow(clippy::disallowed_methods)]

use muster_protocol::age::Participant;
use muster_protocol::frame::WIRE_VERSION;
use muster_protocol::{
    Age, AgeConfig, Config, EventKind, Input, Instant, MemberId, Overlay, Parameter, Profile,
    Reject,
};
use std::collections::BTreeSet;
use std::path::Path;

const NOW: Instant = Instant(1_000_000);
const KEY: [u8; 32] = [7; 32];

/// The frames of a wire version, one of each kind.
fn frames(version: u8) -> Vec<Vec<u8>> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frames");
    let place = place.join(format!("wire-{version}.txt"));
    let text = std::fs::read_to_string(&place)
        .unwrap_or_else(|error| panic!("{}: {error}", place.display()));
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let hex = lines.map(|line| line.split_once(' ').expect("kind and bytes").1);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let frames: Vec<Vec<u8>> = hex
        .map(|hex| hex.as_bytes().chunks(2).map(byte).collect())
        .collect();
    assert!(frames.len() > 8, "{} has few frames", place.display());
    assert!(frames.iter().all(|frame| frame[2] == version));
    frames
}

fn overlay() -> Overlay {
    let mut config = Config::new("own", b"own", Profile::Standard);
    config.key = Some(KEY);
    let mut engine = Overlay::new(config).unwrap();
    engine.handle(NOW, Input::Wake).unwrap();
    engine
}

/// The sender of a frame.
fn writer(frame: &[u8]) -> MemberId {
    MemberId(u64::from_le_bytes(frame[4..12].try_into().unwrap()))
}

/// The refused senders, each once.
fn refused(events: impl Iterator<Item = (EventKind, MemberId)>, frames: &[Vec<u8>]) {
    let named: Vec<MemberId> = events
        .map(|(kind, id)| {
            let EventKind::Refused(difference) = kind else {
                panic!("{kind:?}");
            };
            assert_eq!(difference.parameter, Parameter::WireVersion);
            id
        })
        .collect();
    let writers: BTreeSet<MemberId> = frames.iter().map(|frame| writer(frame)).collect();
    assert_eq!(named.len(), writers.len(), "each is named once");
    assert_eq!(named.into_iter().collect::<BTreeSet<_>>(), writers);
}

/// bck-030: nothing of a member of the previous release is taken, and it is named.
#[test]
fn a_member_of_the_release_before_is_refused_and_named() {
    let frames = frames(WIRE_VERSION - 1);
    let mut engine = overlay();
    for bytes in &frames {
        let taken = engine.handle(NOW, Input::Datagram { bytes });
        assert_eq!(taken, Err(Reject::WireVersion), "kind {}", bytes[3]);
    }
    assert_eq!(engine.live(), 1, "only itself");
    let events = core::iter::from_fn(|| engine.poll_event());
    refused(events.map(|event| (event.kind, event.member)), &frames);
}

/// The other engine does so too, and stops at the first.
#[test]
fn age_gossip_refuses_the_release_before() {
    let frames = frames(WIRE_VERSION - 1);
    let nids = ["10.0.0.1@tcp0", "10.0.0.2@tcp0"];
    let participants = nids.map(Participant::new).to_vec();
    let mut engine = Age::new(AgeConfig {
        key: Some(KEY),
        ..AgeConfig::new(nids[0], participants)
    })
    .unwrap();
    engine.handle(NOW, Input::Wake).unwrap();
    while engine.poll_event().is_some() {}
    for bytes in &frames {
        let taken = engine.handle(NOW, Input::Datagram { bytes });
        assert_eq!(taken, Err(Reject::WireVersion), "kind {}", bytes[3]);
    }
    let events = core::iter::from_fn(|| engine.poll_event());
    refused(events.map(|event| (event.kind, event.member)), &frames[..1]);
}

/// A changed format without a new version is rejected as damage here, and would be by other members.
#[test]
fn frames_of_this_version_are_read_as_they_were_written_first() {
    let mut engine = overlay();
    let unread = [
        Reject::WireVersion,
        Reject::Malformed,
        Reject::Truncated,
        Reject::Foreign,
        Reject::Forged,
        Reject::Parameters,
    ];
    for bytes in &frames(WIRE_VERSION) {
        let taken = engine.handle(NOW, Input::Datagram { bytes });
        let is_read = taken.as_ref().err().is_none_or(|why| !unread.contains(why));
        assert!(is_read, "kind {}: {taken:?}", bytes[3]);
    }
    assert_eq!(
        engine.live(),
        4,
        "itself, and the three that were written of"
    );
}

/// Writes the file for a new wire version: the first frame of each kind that each of three members sends to
/// a fourth.
#[test]
#[ignore = "writes a file: cargo test -p muster-protocol --test protocol releases:: -- --ignored"]
fn write_the_frames_of_this_version() {
    use std::fmt::Write;
    let names = ["own", "a", "b", "c"];
    let engine = |name: &&str| {
        let mut config = Config::new(name, name.as_bytes(), Profile::Standard);
        config.key = Some(KEY);
        config.seeds = [b"own".to_vec(), b"a".to_vec()].into();
        Overlay::new(config).unwrap()
    };
    let mut engines: Vec<Overlay> = names.iter().map(engine).collect();
    let mut first: std::collections::BTreeMap<(u8, usize), Vec<u8>> =
        std::collections::BTreeMap::new();
    let (mut now, mut buffer) = (NOW, vec![0; 2000]);
    for step in 0..2_000 {
        now = now.after(500);
        if step == 600 {
            let (key, value) = (&b"key"[..], &b"value"[..]);
            engines[1]
                .handle(now, Input::Publish { key, value })
                .unwrap();
        }
        for from in 0..engines.len() {
            // The third one falls silent.
            if from == 2 && step > 1_000 {
                continue;
            }
            if engines[from].poll_timeout() <= now {
                engines[from].handle(now, Input::Wake).unwrap();
            }
            while let Some(transmit) = engines[from].poll_transmit(now, &mut buffer) {
                let address = engines[from].address_of(transmit.target).unwrap();
                let to = names.iter().position(|name| name.as_bytes() == address);
                let Some(to) = to.filter(|to| *to != from) else {
                    continue;
                };
                let bytes = &buffer[..transmit.size];
                if to == 0 {
                    first
                        .entry((bytes[3], from))
                        .or_insert_with(|| bytes.to_vec());
                }
                let _ = engines[to].handle(now, Input::Datagram { bytes });
            }
        }
    }
    let mut text = format!(
        "# Frames of wire version {WIRE_VERSION}, the first of each kind that each of three members of the \
         overlay sent to a fourth: kind and bytes.\n# Their names are a, b and c, and it is own, incarnation 1; \
         the job's key is 32 times 07.\n"
    );
    for ((kind, _), bytes) in first {
        write!(text, "{kind} ").unwrap();
        bytes
            .iter()
            .for_each(|byte| write!(text, "{byte:02x}").unwrap());
        text.push('\n');
    }
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frames");
    std::fs::write(place.join(format!("wire-{WIRE_VERSION}.txt")), text).unwrap();
}
