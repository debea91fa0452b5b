//! Shared by the tests of the whole engine: frames written byte by byte, as a peer writes them.
#![allow(dead_code)]

use muster_protocol::{Input, Instant, MemberId, Overlay, Reject, Target, Version};

pub(crate) const KEY: [u8; 32] = [9; 32];
pub(crate) const WIRE_VERSION: u8 = 6;
/// The name of the engine under test.
pub(crate) const OWN: &str = "own";
pub(crate) const LINK: u8 = 2;
pub(crate) const NEWS: u8 = 8;
pub(crate) const ACK: u8 = 9;
pub(crate) const REFUSAL: u8 = 13;
pub(crate) const ALIVE: u8 = 1;
pub(crate) const LEFT: u8 = 5;

/// A sender that writes its own frames.
pub(crate) struct Peer {
    pub(crate) id: MemberId,
    pub(crate) name: String,
    pub(crate) version: Version,
    pub(crate) sequence: u64,
    /// The incarnation of `OWN` that it writes to.
    pub(crate) to: u64,
    /// Heartbeat, deadline, Theta, mode, minority.
    pub(crate) parameters: Vec<u8>,
}

impl Peer {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            id: MemberId::of(name),
            name: name.to_owned(),
            version: Version::first(1),
            sequence: 0,
            to: 1,
            parameters: parameters(20_000, 60_000, 2, false),
        }
    }

    /// A frame with this body, sealed with the job's key.
    pub(crate) fn frame(&mut self, kind: u8, body: &[u8]) -> Vec<u8> {
        self.sequence += 1;
        let mut bytes = Vec::new();
        bytes.extend(0x754d_u16.to_le_bytes());
        bytes.extend([WIRE_VERSION, kind]);
        bytes.extend(self.id.0.to_le_bytes());
        bytes.extend(self.version.incarnation.to_le_bytes());
        bytes.extend(self.sequence.to_le_bytes());
        bytes.extend(mark(OWN, self.to).to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend(body);
        sealed_for(bytes, OWN, self.to)
    }

    /// An introduction, with these roles.
    pub(crate) fn introduction(&mut self, roles: u8) -> Vec<u8> {
        let mut body = vec![roles, 0];
        body.extend(0_u64.to_le_bytes());
        body.extend(&self.parameters);
        body.extend(node(&self.name, self.version, ALIVE));
        self.frame(LINK, &body)
    }

    /// A news frame with these facts, each with its tag.
    pub(crate) fn news(&mut self, facts: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![0, 0];
        body.extend((facts.len() as u16).to_le_bytes());
        body.extend(facts.concat());
        self.frame(NEWS, &body)
    }

    /// The acknowledgement of news frames.
    pub(crate) fn acks(&mut self, sequences: &[u64]) -> Vec<u8> {
        let mut body = vec![sequences.len() as u8];
        body.extend(sequences.iter().flat_map(|sequence| sequence.to_le_bytes()));
        self.frame(ACK, &body)
    }
}

/// A fact of a news frame, as a peer reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fact {
    Alive(MemberId, Version),
    Left(MemberId, Version),
    /// Reporter, suspect, version.
    Suspicion(MemberId, MemberId, Version),
}

/// A reader of the bytes of a frame.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, size: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(size);
        self.0 = tail;
        head
    }

    fn u8(&mut self) -> u8 {
        self.take(1)[0]
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn version(&mut self) -> Version {
        Version {
            incarnation: self.u64(),
            minor: u32::from_le_bytes(self.take(4).try_into().unwrap()),
        }
    }

    fn fact(&mut self) -> Fact {
        let tag = self.u8();
        let id = MemberId(self.u64());
        if tag == 3 {
            return Fact::Suspicion(id, MemberId(self.u64()), self.version());
        }
        assert_eq!(tag, 1, "a record");
        let (version, state) = (self.version(), self.u8());
        // Exit code, cause, silence; name, group, address; reporters.
        self.take(9);
        for _ in 0..3 {
            let size = self.u8();
            self.take(size.into());
        }
        assert_eq!(self.u8(), 0, "reports are facts of their own");
        match state {
            ALIVE => Fact::Alive(id, version),
            LEFT => Fact::Left(id, version),
            other => panic!("a record in state {other}"),
        }
    }
}

/// The facts of all news frames that the engine sends to a peer now, in their order. The peer acknowledges
/// them.
pub(crate) fn news_sent(engine: &mut Overlay, at: Instant, peer: &mut Peer) -> Vec<Fact> {
    let mut buffer = vec![0; 2000];
    let (mut facts, mut sequences) = (Vec::new(), Vec::new());
    while let Some(transmit) = engine.poll_transmit(at, &mut buffer) {
        if buffer[3] != NEWS || transmit.target != Target::Member(peer.id) {
            continue;
        }
        let mut header = Bytes(&buffer[20..28]);
        sequences.push(header.u64());
        let mut body = Bytes(&buffer[36..transmit.size - 16]);
        assert_eq!(body.u8(), 1, "an acknowledgement is wanted");
        let acks = body.u8();
        body.take(8 * usize::from(acks));
        let count = u16::from_le_bytes(body.take(2).try_into().unwrap());
        facts.extend((0..count).map(|_| body.fact()));
        assert!(body.0.is_empty());
    }
    if !sequences.is_empty() {
        let acks = peer.acks(&sequences);
        give(engine, at, &acks).unwrap();
    }
    facts
}

/// Parameters, as sent.
pub(crate) fn parameters(
    heartbeat_us: u32,
    deadline_us: u32,
    theta: u8,
    is_paper: bool,
) -> Vec<u8> {
    let mut bytes = heartbeat_us.to_le_bytes().to_vec();
    bytes.extend(deadline_us.to_le_bytes());
    bytes.extend([theta, u8::from(is_paper), 0]);
    bytes.extend(0_u64.to_le_bytes());
    bytes
}

/// Appends the tag, for anyone.
pub(crate) fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let tag = blake3::keyed_hash(&KEY, &bytes);
    bytes.extend(&tag.as_bytes()[..16]);
    bytes
}

/// Appends the tag, for an incarnation of the member of this name.
pub(crate) fn sealed_for(mut bytes: Vec<u8>, name: &str, incarnation: u64) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new_keyed(&KEY);
    hasher.update(&bytes);
    hasher.update(&MemberId::of(name).0.to_le_bytes());
    hasher.update(&incarnation.to_le_bytes());
    bytes.extend(&hasher.finalize().as_bytes()[..16]);
    bytes
}

/// The field `to` for an incarnation of the member of this name.
pub(crate) fn mark(name: &str, incarnation: u64) -> u32 {
    let mixed = mix(MemberId::of(name).0 ^ mix(incarnation));
    (mixed as u32).max(1)
}

fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn version(version: Version) -> Vec<u8> {
    let mut bytes = version.incarnation.to_le_bytes().to_vec();
    bytes.extend(version.minor.to_le_bytes());
    bytes
}

/// A record without its tag.
pub(crate) fn node(name: &str, at: Version, state: u8) -> Vec<u8> {
    let mut bytes = MemberId::of(name).0.to_le_bytes().to_vec();
    bytes.extend(version(at));
    bytes.push(state);
    bytes.extend(0_i32.to_le_bytes());
    bytes.push(1);
    bytes.extend(0_u32.to_le_bytes());
    bytes.push(name.len() as u8);
    bytes.extend(name.as_bytes());
    bytes.push(0);
    bytes.push(name.len() as u8);
    bytes.extend(name.as_bytes());
    bytes.push(0);
    bytes
}

/// A record as a fact.
pub(crate) fn node_fact(name: &str, at: Version, state: u8) -> Vec<u8> {
    [vec![1], node(name, at, state)].concat()
}

/// A report as a fact.
pub(crate) fn suspicion_fact(reporter: &str, suspect: &str, at: Version) -> Vec<u8> {
    let mut bytes = vec![3];
    bytes.extend(MemberId::of(reporter).0.to_le_bytes());
    bytes.extend(MemberId::of(suspect).0.to_le_bytes());
    bytes.extend(version(at));
    bytes
}

/// Hands in a frame.
pub(crate) fn give(engine: &mut Overlay, at: Instant, bytes: &[u8]) -> Result<(), Reject> {
    engine.handle(at, Input::Datagram { bytes })
}

/// The kinds of all frames that the engine sends now.
pub(crate) fn kinds_sent(engine: &mut Overlay, at: Instant) -> Vec<u8> {
    let mut buffer = vec![0; 2000];
    let mut kinds = Vec::new();
    while engine.poll_transmit(at, &mut buffer).is_some() {
        kinds.push(buffer[3]);
    }
    kinds
}
