//! BG-03: the application's messages replace beats: how many are saved, and that no detection suffers.

use muster_protocol::{
    BEAT_AHEAD_MAX, Config, EventKind, Input, Instant, MemberId, NodeState, Overlay, Profile,
    Reject, Target,
};

const STEP_US: u64 = 1_000;
const HEARTBEAT_US: u64 = 20_000;

/// Two members and a network without delay.
struct Pair {
    now: Instant,
    engines: [Overlay; 2],
    dead: [bool; 2],
    failed_at: Option<Instant>,
}

const NAMES: [&str; 2] = ["a", "b"];

impl Pair {
    fn new() -> Self {
        let engine = |own: usize| {
            let name = NAMES[own];
            let mut config = Config::new(name, name.as_bytes(), Profile::Standard);
            config.key = Some([7; 32]);
            config.seeds = vec![NAMES[1 - own].as_bytes().to_vec()];
            Overlay::new(config).expect("a sound configuration")
        };
        let mut pair = Self {
            now: Instant(1_000_000),
            engines: [engine(0), engine(1)],
            dead: [false; 2],
            failed_at: None,
        };
        pair.run(1_000_000, |_, _| {});
        for own in 0..2 {
            let other = pair.engines[own].member(MemberId::of(NAMES[1 - own]));
            assert_eq!(other.expect("met").state(), NodeState::Alive);
        }
        pair
    }

    /// Lets time pass; in each step `talk` returns what the applications have done.
    fn run(&mut self, for_us: u64, mut talk: impl FnMut(&mut Self, u64)) {
        for step in 0..for_us / STEP_US {
            self.now = self.now.after(STEP_US);
            talk(self, step);
            for own in (0..2).filter(|own| !self.dead[*own]).collect::<Vec<_>>() {
                let _ = self.engines[own].handle(self.now, Input::Wake);
                self.deliver(own);
                while let Some(event) = self.engines[own].poll_event() {
                    if event.kind == EventKind::NodeFailed {
                        self.failed_at.get_or_insert(self.now);
                    }
                }
            }
        }
    }

    fn deliver(&mut self, from: usize) {
        let mut buffer = [0; 2048];
        while let Some(transmit) = self.engines[from].poll_transmit(self.now, &mut buffer) {
            let to = 1 - from;
            let is_known = match transmit.target {
                Target::Member(id) => id == MemberId::of(NAMES[to]),
                target => self.engines[from].address_of(target) == Some(NAMES[to].as_bytes()),
            };
            if is_known && !self.dead[to] {
                let bytes = &buffer[..transmit.size];
                let _ = self.engines[to].handle(self.now, Input::Datagram { bytes });
            }
        }
    }

    /// A message of the application from `from` to the other, as both agents are told of it.
    fn message(&mut self, from: usize, is_counted: bool) {
        let (sender, receiver) = (MemberId::of(NAMES[from]), MemberId::of(NAMES[1 - from]));
        if !self.dead[from] {
            let sent = Input::TrafficTo {
                member: receiver,
                age_us: 0,
            };
            // Rejected once the other is held failed.
            let _ = self.engines[from].handle(self.now, sent);
        }
        if is_counted {
            let had = Input::TrafficFrom {
                member: sender,
                age_us: 0,
            };
            let _ = self.engines[1 - from].handle(self.now, had);
        }
    }

    /// The beat that `from` writes ahead, in the last quarter of a heartbeat, reported as taken.
    fn beat_ahead(&mut self, from: usize) -> Option<Vec<u8>> {
        let to = MemberId::of(NAMES[1 - from]);
        let engine = &mut self.engines[from];
        if self.now < engine.next_ahead() {
            return None;
        }
        let mut bytes = vec![0; BEAT_AHEAD_MAX];
        let size = engine.write_ahead(self.now, to, &mut bytes)?;
        bytes.truncate(size);
        let taken = Input::TrafficTo {
            member: to,
            age_us: 0,
        };
        engine.handle(self.now, taken).expect("a link to the other");
        Some(bytes)
    }

    fn carry(&mut self, to: usize, bytes: &[u8]) -> Result<(), Reject> {
        let age_us = 0;
        self.engines[to].handle(self.now, Input::Carried { bytes, age_us })
    }

    fn beats(&self) -> u64 {
        self.engines[0].counters().beats_sent + self.engines[1].counters().beats_sent
    }

    fn probes(&self) -> u64 {
        let probes = |engine: &Overlay| engine.counters().probes_sent;
        self.engines.iter().map(probes).sum()
    }

    /// How long after its death, which is now, `b` is declared failed by `a`.
    fn detection_us(&mut self, talk: impl FnMut(&mut Self, u64)) -> u64 {
        self.dead[1] = true;
        let died_at = self.now;
        self.run(1_000_000, talk);
        self.failed_at.expect("declared failed").since(died_at)
    }
}

/// Both talk every few milliseconds while they live.
fn chat(pair: &mut Pair, step: u64) {
    if step.is_multiple_of(3) {
        for from in (0..2).filter(|from| !pair.dead[*from]).collect::<Vec<_>>() {
            pair.message(from, true);
        }
    }
}

/// BG-03.
#[test]
fn half_of_the_beats_are_saved_and_nobody_is_probed() {
    let mut silent = Pair::new();
    let before = silent.beats();
    silent.run(2_000_000, |_, _| {});
    let usual = silent.beats() - before;

    let mut busy = Pair::new();
    let (before, probes) = (busy.beats(), busy.probes());
    busy.run(2_000_000, chat);
    let sent = busy.beats() - before;
    assert!(usual >= 196, "{usual} beats in 2 s, two members");
    // Some carry acknowledgements, and are sent.
    assert!(sent <= usual * 3 / 5, "{sent} beats of {usual}");
    assert_eq!(busy.probes(), probes, "nobody looks like a silent one");
    assert_eq!(busy.failed_at, None);
    let left_out = busy.engines[0].counters().beats_left_out;
    assert!(left_out >= 48, "{left_out}");
}

/// A member that dies is declared failed as soon as one that had not talked.
#[test]
fn detection_is_unharmed() {
    for pause_us in (0..40_000).step_by(3_000) {
        let mut silent = Pair::new();
        silent.run(1_000_000 + pause_us, |_, _| {});
        let usual_us = silent.detection_us(|_, _| {});
        let mut busy = Pair::new();
        busy.run(1_000_000 + pause_us, chat);
        let busy_us = busy.detection_us(chat);
        // Silence begins with the last sign of life: a beat at its death at the latest.
        assert!(
            busy_us <= usual_us + HEARTBEAT_US,
            "{busy_us} us, and {usual_us} us in silence"
        );
        assert!(
            usual_us <= 85_000 && busy_us <= 85_000,
            "{busy_us}, {usual_us} us"
        );
    }
}

/// A message that a member sent before its death, and that is received after it, delays the verdict by one
/// heartbeat at most.
#[test]
fn messages_of_failed_members_keep_no_member_alive() {
    let mut pair = Pair::new();
    pair.run(1_000_000, chat);
    let late_us = pair.detection_us(|pair, _| pair.message(1, true));
    assert!(late_us <= 85_000 + HEARTBEAT_US, "{late_us} us");
}

/// A member that does not count messages misses beats, asks, and gets all of them for a while.
#[test]
fn a_member_that_does_not_count_messages_gets_its_beats() {
    let mut pair = Pair::new();
    let before = pair.beats();
    pair.run(2_000_000, |pair, step| {
        if step.is_multiple_of(3) {
            pair.message(0, false);
            pair.message(1, false);
        }
    });
    let sent = pair.beats() - before;
    assert!(sent >= 180, "{sent} beats");
    assert_eq!(pair.failed_at, None);
}

/// Both send each other messages, which carry the beats of their agents.
fn carry_beats(pair: &mut Pair, step: u64) {
    if step.is_multiple_of(3) {
        for from in (0..2).filter(|from| !pair.dead[*from]).collect::<Vec<_>>() {
            if let Some(bytes) = pair.beat_ahead(from) {
                // A dead member does not receive, nor does a member from one that it holds failed.
                let _ = pair.carry(1 - from, &bytes);
            }
        }
    }
}

/// BG-03.
#[test]
fn beats_that_messages_carry_are_not_sent() {
    let mut silent = Pair::new();
    let before = silent.beats();
    silent.run(2_000_000, |_, _| {});
    let usual = silent.beats() - before;

    let mut busy = Pair::new();
    let (before, probes) = (busy.beats(), busy.probes());
    busy.run(2_000_000, carry_beats);
    let sent = busy.beats() - before;
    assert!(sent <= usual * 3 / 5, "{sent} beats of {usual}");
    assert_eq!(busy.probes(), probes, "nobody looks like a silent one");
    assert_eq!(busy.failed_at, None);
    for engine in &busy.engines {
        let counters = engine.counters();
        assert!(counters.beats_carried >= 48, "{}", counters.beats_carried);
        let left_out = counters.beats_left_out;
        assert!(
            counters.beats_offered >= left_out,
            "none is left out that no message took"
        );
        assert_eq!(counters.repairs, silent.engines[0].counters().repairs);
    }
}

#[test]
fn carried_beats_delay_no_detection() {
    for pause_us in (0..40_000).step_by(3_000) {
        let mut busy = Pair::new();
        busy.run(1_000_000 + pause_us, carry_beats);
        let busy_us = busy.detection_us(carry_beats);
        assert!(busy_us <= 85_000, "{busy_us} us");
    }
}

/// A beat in a message at its writer's death delays the verdict by one heartbeat at most; one that is
/// received still later has no effect.
#[test]
fn a_beat_taken_late_keeps_no_member_alive() {
    for late_ms in (10..400).step_by(30) {
        let mut pair = Pair::new();
        pair.run(1_000_000, carry_beats);
        let mut last = None;
        while last.is_none() {
            pair.run(STEP_US, |_, _| {});
            last = pair.beat_ahead(1);
        }
        let last = last.expect("a beat");
        let late_us = pair.detection_us(|pair, step| {
            if step == late_ms {
                let _ = pair.carry(0, &last);
            }
        });
        assert!(late_us <= 85_000 + HEARTBEAT_US, "{late_us} us");
    }
}

/// Bytes that are not a whole new beat of a member change nothing.
#[test]
fn only_a_fresh_beat_of_a_member_is_taken() {
    let mut pair = Pair::new();
    let mut beat = None;
    while beat.is_none() {
        pair.run(STEP_US, |_, _| {});
        beat = pair.beat_ahead(1);
    }
    let beat = beat.expect("a beat");
    for end in 0..beat.len() {
        assert!(pair.carry(0, &beat[..end]).is_err(), "{end} bytes of it");
        let mut scribbled = beat.clone();
        scribbled[end] ^= 1;
        assert!(pair.carry(0, &scribbled).is_err(), "byte {end} is another");
    }
    assert_eq!(pair.carry(1, &beat), Err(Reject::Misdirected), "one's own");
    assert_eq!(pair.carry(0, &beat), Ok(()));
    assert_eq!(pair.carry(0, &beat), Err(Reject::Duplicate));
    assert_eq!(pair.engines[0].counters().beats_carried, 1);
    // Another frame of the protocol, however authentic, is invalid in a message.
    let mut buffer = [0; 2048];
    pair.engines[1]
        .handle(pair.now, Input::Ask(MemberId::of("a")))
        .expect("a member");
    let probe = pair.engines[1].poll_transmit(pair.now, &mut buffer);
    let size = probe.expect("a probe").size;
    assert_eq!(pair.carry(0, &buffer[..size]), Err(Reject::Malformed));
    assert_eq!(pair.engines[0].counters().beats_carried, 1);
}
