//! Frames of a real zone, changed at random and sealed again with the right key: what a faulty or lying
//! member could send. Nothing panics, nothing grows beyond its bound, and sending comes to an end.

use std::collections::BTreeMap;

use muster_protocol::{
    Config, Input, Instant, Overlay, Phase, Profile, RankDetail, RankState, Reject,
};

use crate::common::{KEY, mark, sealed, sealed_for};

/// Size of the tag at a frame's end, and position of the sequence number.
const TAG: usize = 16;
const SEQUENCE: usize = 20;
/// Position of the field `to`.
const TO: usize = 28;
const MEMBERS_MAX: usize = 24;
const HISTORY_MAX: usize = 24;
/// More than any engine may send at one time.
const TRANSMITS_MAX: usize = 20_000;

fn engine(name: &str, incarnation: u64) -> Overlay {
    let mut config = Config::new(name, name.as_bytes(), Profile::Standard);
    config.key = Some(KEY);
    config.seeds = vec![b"a".to_vec()];
    config.incarnation = incarnation;
    config.members_max = MEMBERS_MAX;
    config.history_max = HISTORY_MAX;
    Overlay::new(config).unwrap()
}

/// Takes all frames of the engine, with their addresses.
fn drain(engine: &mut Overlay, now: Instant) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut buffer = vec![0; 2000];
    let mut frames = Vec::new();
    while let Some(transmit) = engine.poll_transmit(now, &mut buffer) {
        let address = engine.address_of(transmit.target).map(<[u8]>::to_vec);
        frames.push((
            address.unwrap_or_default(),
            buffer[..transmit.size].to_vec(),
        ));
        assert!(frames.len() <= TRANSMITS_MAX, "it does not stop sending");
    }
    while engine.poll_event().is_some() {}
    frames
}

/// The frames of the members of a small zone: joins, ranks, attributes, a death, a leave.
fn recorded() -> Vec<Vec<u8>> {
    let names = ["a", "b", "c", "d"];
    let mut engines: Vec<Overlay> = names.iter().map(|name| engine(name, 1)).collect();
    let mut frames = Vec::new();
    let mut now = Instant(10_000_000);
    for step in 0..4_000_u32 {
        now = Instant(now.0 + 500);
        match step {
            600 => {
                let (rank, state, detail) = (3, RankState::Alive, RankDetail::default());
                let told = muster_protocol::Told::Rank {
                    rank,
                    state,
                    detail,
                };
                engines[1].handle(now, Input::Told(told)).unwrap();
            }
            700 => {
                let (key, value) = (&b"key"[..], &[7; 5000][..]);
                engines[0]
                    .handle(now, Input::Publish { key, value })
                    .unwrap();
            }
            3_000 => engines[3]
                .handle(now, Input::Leave { exit_code: 3 })
                .unwrap(),
            _ => {}
        }
        for from in 0..engines.len() {
            // The third one falls silent.
            if from == 2 && step > 1_500 {
                continue;
            }
            if engines[from].poll_timeout() <= now {
                engines[from].handle(now, Input::Wake).unwrap();
            }
            for (address, bytes) in drain(&mut engines[from], now) {
                let to = names.iter().position(|name| name.as_bytes() == address);
                if let Some(to) = to.filter(|to| *to != from && (*to != 2 || step <= 1_500)) {
                    let _ = engines[to].handle(now, Input::Datagram { bytes: &bytes });
                }
                // Those of one sender, so that one engine can be their receiver.
                if from != 1 {
                    frames.push(bytes);
                }
            }
        }
    }
    assert!(
        engines[0].live() <= 2,
        "the silent one and the one that left are gone"
    );
    frames
}

/// A small generator with a fixed algorithm (xorshift), determined by its seed.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// One change somewhere in a frame without its tag.
fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], chance: &mut Chance) {
    // Mostly after the header, in which few values are valid.
    let from = if chance.below(8) == 0 {
        0
    } else {
        36.min(bytes.len())
    };
    let at = from + chance.below(bytes.len() - from + 1);
    let byte = chance.next() as u8;
    match chance.below(7) {
        0 => bytes
            .iter_mut()
            .skip(at)
            .take(1)
            .for_each(|b| *b ^= 1 << (byte % 8)),
        1 => bytes.iter_mut().skip(at).take(1).for_each(|b| *b = byte),
        2 => {
            let width = 1 << chance.below(4);
            let value = if byte.is_multiple_of(2) { 0xff } else { 0 };
            bytes
                .iter_mut()
                .skip(at)
                .take(width)
                .for_each(|b| *b = value);
        }
        3 => bytes.truncate(at),
        4 => bytes.extend((0..chance.below(300)).map(|_| byte)),
        5 => {
            let length = chance.below(60);
            let part: Vec<u8> = bytes.iter().skip(at).take(length).copied().collect();
            bytes.splice(at..at, part);
        }
        _ => {
            let other = &others[chance.below(others.len())];
            let length = chance.below(80);
            let start = chance.below(other.len());
            let part: Vec<u8> = other.iter().skip(start).take(length).copied().collect();
            let end = (at + part.len()).min(bytes.len());
            bytes.splice(at..end, part);
        }
    }
}

#[test]
fn mad_frames_with_the_right_key_do_bounded_harm() {
    let frames = recorded();
    let kinds: std::collections::BTreeSet<u8> = frames.iter().map(|frame| frame[3]).collect();
    assert!(
        kinds.len() >= 8,
        "most kinds of frames are among them: {kinds:?}"
    );
    for seed in 1..=4_u64 {
        println!("seed {seed}");
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut victim = engine("b", 1);
        let (mut incarnation, mut taken, mut refused) = (1, 0, 0);
        let mut reasons = BTreeMap::new();
        let mut now = Instant(20_000_000);
        for round in 0..8_000_u64 {
            let mut bytes = frames[chance.below(frames.len())].clone();
            bytes.truncate(bytes.len() - TAG);
            for _ in 0..chance.below(4) {
                mutate(&mut bytes, &frames, &mut chance);
            }
            // Most are new: a replayed one would not be parsed.
            if chance.below(8) > 0 && bytes.len() >= SEQUENCE + 8 {
                let sequence = 1_000_000 + round;
                bytes[SEQUENCE..SEQUENCE + 8].copy_from_slice(&sequence.to_le_bytes());
            }
            // A few are for anyone, and a few for no member.
            let to = match chance.below(16) {
                0 => 0,
                1 => 7,
                _ => mark("b", incarnation),
            };
            if bytes.len() >= TO + 4 {
                bytes[TO..TO + 4].copy_from_slice(&to.to_le_bytes());
            }
            let bytes = match to {
                0 => sealed(bytes),
                _ => sealed_for(bytes, "b", incarnation),
            };
            match victim.handle(now, Input::Datagram { bytes: &bytes }) {
                Ok(()) => taken += 1,
                Err(_) => refused += 1,
            }
            if round % 8 == 0 {
                now = Instant(now.0 + chance.below(30_000) as u64);
                if victim.poll_timeout() <= now {
                    let _ = victim.handle(now, Input::Wake);
                }
                drain(&mut victim, now);
                assert!(victim.live() <= MEMBERS_MAX);
                assert!(victim.members().count() <= MEMBERS_MAX + HISTORY_MAX);
            }
            // A false fact about its name may stop it, and one about incarnations of others makes it reject
            // their frames: continue with a new incarnation.
            if victim.phase() == Phase::Stopped || round % 200 == 199 {
                tally(&victim, &mut reasons);
                incarnation += 1;
                victim = engine("b", incarnation);
            }
        }
        tally(&victim, &mut reasons);
        println!("{incarnation} incarnations, {taken} taken, {refused} refused: {reasons:?}");
        assert!(taken > 500 && refused > 500);
    }
}

/// Counts why frames were rejected.
fn tally(engine: &Overlay, reasons: &mut BTreeMap<&'static str, u64>) {
    for reject in Reject::ALL {
        *reasons.entry(reject.name()).or_default() += engine.counters().rejected(reject);
    }
}
