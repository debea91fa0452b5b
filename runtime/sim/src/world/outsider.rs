//! An outsider: it has no key, records every datagram, and replays recordings to members.
//!
//! It reaches all members, whatever is cut. It picks frames and receivers by random numbers of its own, so
//! the other events of a run do not depend on its picks.

use std::collections::BTreeMap;

use muster_protocol::{Class, Instant, MemberId, frame};

use super::{Happening, NodeIndex, World};
use crate::chance::Chance;

/// Most frames kept per sender; then the oldest are overwritten.
const RECORDING_MAX: usize = 4096;
/// Time between two replayed frames of a sender.
const PACE_US: u64 = 2_000;
/// Delay of a replayed frame.
const DELAY_US: u64 = 50;

/// A frame, and the node that it was sent to.
#[derive(Clone, Debug)]
struct Recorded {
    to: NodeIndex,
    bytes: Vec<u8>,
}

/// By sender.
type Frames = BTreeMap<MemberId, Vec<Recorded>>;

/// What the outsider has recorded and what it replays.
#[derive(Debug)]
pub(super) struct Outsider {
    frames: Frames,
    recorded: usize,
    chance: Chance,
    /// Whose frames are replayed now, and until when.
    plays: Vec<(MemberId, Instant)>,
    /// Whether the next frame to replay is in the queue.
    is_due: bool,
}

/// A recording from one world, to be replayed in another.
#[derive(Clone, Debug, Default)]
pub struct Recording(Frames);

impl Recording {
    /// Number of frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Whether there are no frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl World {
    /// An outsider records every datagram from now on.
    pub fn record(&mut self, seed: u64) {
        self.outsider = Some(Outsider {
            frames: Frames::new(),
            recorded: 0,
            chance: Chance::new(seed ^ 0x6f75_7473_6964_6572),
            plays: Vec::new(),
            is_due: false,
        });
    }

    /// The recording so far.
    #[must_use]
    pub fn recording(&self) -> Recording {
        let outsider = self.outsider.as_ref();
        Recording(outsider.map_or_else(Frames::new, |one| one.frames.clone()))
    }

    /// Gives an outsider this recording, from another world of nodes with the same numbers.
    pub fn load_recording(&mut self, seed: u64, recording: &Recording) {
        self.record(seed);
        if let Some(outsider) = &mut self.outsider {
            outsider.frames.clone_from(&recording.0);
        }
    }

    /// The outsider replays frames of this node for this time, to their receivers and to others.
    pub fn play(&mut self, node: NodeIndex, for_us: u64) {
        let (id, until) = (self.id(node), self.now.after(for_us));
        let Some(outsider) = &mut self.outsider else {
            return;
        };
        outsider.plays.push((id, until));
        if !outsider.is_due {
            outsider.is_due = true;
            let at = self.now.after(PACE_US);
            self.queue.push(at, Happening::Play);
        }
    }

    /// Records a datagram under way.
    pub(super) fn record_frame(&mut self, to: NodeIndex, bytes: &[u8]) {
        let Some(outsider) = &mut self.outsider else {
            return;
        };
        let Some(sender) = frame::sender(bytes) else {
            return;
        };
        let recorded = Recorded {
            to,
            bytes: bytes.to_vec(),
        };
        let frames = outsider.frames.entry(sender).or_default();
        if frames.len() < RECORDING_MAX {
            frames.push(recorded);
        } else {
            frames[outsider.recorded % RECORDING_MAX] = recorded;
        }
        outsider.recorded += 1;
    }

    /// Replays a frame of each node that is due, and schedules the next call if there is more to replay.
    pub(super) fn replay_next(&mut self) {
        let (now, nodes) = (self.now, self.nodes.len());
        let Some(outsider) = &mut self.outsider else {
            return;
        };
        outsider.plays.retain(|(_, until)| now < *until);
        let mut played = Vec::new();
        for (id, _) in &outsider.plays {
            let frames = outsider.frames.get(id).map_or(&[][..], Vec::as_slice);
            if let Some(picked) = outsider.chance.pick(frames) {
                let other = outsider.chance.between(0, nodes as u64 - 1) as usize;
                let to = if outsider.chance.permille(500) {
                    picked.to
                } else {
                    other
                };
                played.push((to, picked.bytes.clone()));
            }
        }
        outsider.is_due = !outsider.plays.is_empty();
        if outsider.is_due {
            self.queue.push(now.after(PACE_US), Happening::Play);
        }
        for (to, bytes) in played.into_iter().filter(|(to, _)| *to < nodes) {
            let buffer_id = self.queue.store(&bytes);
            let arrival = Happening::Arrival(to as u32, buffer_id, Class::News);
            self.queue.push(now.after(DELAY_US), arrival);
        }
    }
}
