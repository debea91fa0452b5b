//! Attributes between two engines: the effect of a worker's death between a write and its snapshot.

use muster_protocol::{Config, Input, Instant, Overlay, Profile, Target};

const KEY: [u8; 32] = [9; 32];
const STEP_US: u64 = 1000;

struct Pair {
    now: Instant,
    engines: [Overlay; 2],
}

fn config(index: usize, first_sequence: u64) -> Config {
    let address = [b"left", b"rite"][index];
    let mut config = Config::new(["left", "right"][index], address, Profile::Standard);
    config.key = Some(KEY);
    config.seeds = vec![b"left".to_vec(), b"rite".to_vec()];
    config.first_sequence = first_sequence;
    config
}

impl Pair {
    fn new() -> Self {
        let engines = [0, 1].map(|index| Overlay::new(config(index, 1)).expect("in bounds"));
        let mut pair = Self {
            now: Instant(1_000_000),
            engines,
        };
        pair.run(200);
        assert_eq!(pair.engines.each_ref().map(Overlay::live), [2, 2]);
        pair
    }

    /// Some milliseconds, in which every frame arrives.
    fn run(&mut self, steps: u64) {
        let mut buffer = vec![0; 2000];
        for _ in 0..steps {
            self.now = Instant(self.now.0 + STEP_US);
            for from in [0, 1] {
                self.engines[from]
                    .handle(self.now, Input::Wake)
                    .expect("a wake-up");
                let engine = &mut self.engines[from];
                let mut frames = Vec::new();
                while let Some(transmit) = engine.poll_transmit(self.now, &mut buffer) {
                    let own = engine.address_of(Target::Member(engine.id()));
                    if engine.address_of(transmit.target) != own {
                        frames.push(buffer[..transmit.size].to_vec());
                    }
                }
                while engine.poll_event().is_some() {}
                for bytes in frames {
                    let input = Input::Datagram { bytes: &bytes };
                    self.engines[1 - from].handle(self.now, input).ok();
                }
            }
        }
    }

    fn publish(&mut self, key: &[u8], value: &[u8]) {
        let input = Input::Publish { key, value };
        self.engines[0]
            .handle(self.now, input)
            .expect("within the limits");
    }

    /// What the right one reads of the left one.
    fn read(&self, key: &[u8]) -> Option<&[u8]> {
        self.engines[1].attribute(self.engines[0].id(), key)
    }
}

/// ZM-11: writes that were lost with a worker, but had reached others, are taken back there. The next write
/// is not mistaken for one of them.
#[test]
fn writes_that_died_with_a_worker_are_taken_back() {
    let mut pair = Pair::new();
    pair.publish(b"kept", b"1");
    let mut snapshot = Vec::new();
    pair.engines[0].snapshot(&mut snapshot);
    pair.publish(b"kept", b"2");
    pair.publish(b"lost", b"3");
    pair.run(100);
    assert_eq!(
        (pair.read(b"kept"), pair.read(b"lost")),
        (Some(&b"2"[..]), Some(&b"3"[..]))
    );

    let next = config(0, 1 << 40);
    pair.engines[0] = Overlay::resume(next, &snapshot, pair.now).expect("a snapshot");
    pair.run(200);
    assert_eq!(
        (pair.read(b"kept"), pair.read(b"lost")),
        (Some(&b"1"[..]), None)
    );
    pair.publish(b"new", b"4");
    pair.run(100);
    assert_eq!(pair.read(b"new"), Some(&b"4"[..]));
    let id = pair.engines[0].id();
    let versions = pair
        .engines
        .each_ref()
        .map(|engine| engine.attributes_version(id));
    assert_eq!(versions[0], versions[1]);
}

/// A worker without a snapshot of its writes continues above what the others hold.
#[test]
fn a_worker_that_remembers_no_write_stays_above_what_others_hold() {
    let mut pair = Pair::new();
    let mut snapshot = Vec::new();
    pair.engines[0].snapshot(&mut snapshot);
    pair.publish(b"lost", b"1");
    pair.run(100);
    let next = config(0, 1 << 40);
    pair.engines[0] = Overlay::resume(next, &snapshot, pair.now).expect("a snapshot");
    pair.publish(b"new", b"2");
    pair.run(200);
    assert_eq!(
        (pair.read(b"lost"), pair.read(b"new")),
        (None, Some(&b"2"[..]))
    );
}
