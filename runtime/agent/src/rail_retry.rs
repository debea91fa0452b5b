//! A rail of the plan that could not be opened again: it stays in the plan, and is tried ever later.
//!
//! A worker that ended may have had rails that its successor cannot open at once: an interface that is
//! down for repair, a port that somebody has taken meanwhile. Nobody has removed them, so nobody should
//! have to add them again.

use muster_fabric::{Nid, OpenedRail, RailOpener};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;

/// First pause before it is tried again, and the longest; each is twice as long as the one before.
const PAUSE_MIN_US: u64 = 1_000_000;
const PAUSE_MAX_US: u64 = 60_000_000;

/// The rail.
#[derive(Debug, Clone)]
pub(super) struct RailRetry {
    /// As it was open last, with the port that the others know.
    pub(super) nid: Nid,
    /// Why it is not open.
    pub(super) reason: String,
    /// When it is tried again.
    pub(super) next_us: u64,
    pause_us: u64,
}

impl RailRetry {
    /// To be tried at once.
    pub(super) fn new(nid: Nid, reason: String) -> RailRetry {
        RailRetry {
            nid,
            reason,
            next_us: 0,
            pause_us: PAUSE_MIN_US,
        }
    }

    /// It was tried in vain.
    pub(super) fn put_off(&mut self, now_us: u64, reason: String) {
        self.reason = reason;
        self.next_us = now_us + self.pause_us;
        self.pause_us = (2 * self.pause_us).min(PAUSE_MAX_US);
    }
}

/// First pause before it is looked whether the rail is open, and the longest, as above.
const LOOK_MIN_US: u64 = 5_000;
const LOOK_MAX_US: u64 = 1_000_000;

/// A rail that is being opened, by a thread of its own: a provider may take longer with its device than others
/// wait for a sign of this node.
#[derive(Debug)]
pub(super) struct Opening {
    /// Which one.
    pub(super) nid: Nid,
    /// When it is to be looked whether it is open.
    pub(super) next_us: u64,
    look_us: u64,
    answer: Receiver<Result<OpenedRail, String>>,
}

impl Opening {
    /// Has it opened by the first of these that can.
    pub(super) fn start(now_us: u64, nid: Nid, ways: Vec<RailOpener>) -> Result<Opening, String> {
        let (say, answer) = sync_channel(1);
        let open = move || {
            let mut opened = Err("it has no address".to_owned());
            for way in ways {
                opened = way.open().map_err(|error| error.to_string());
                if opened.is_ok() {
                    break;
                }
            }
            // Nobody may want it any more: it is closed then.
            let _ = say.send(opened);
        };
        let thread = thread::Builder::new().name("muster-opens".into());
        let started = thread.spawn(open);
        started.map_err(|error| format!("no thread to open it: {error}"))?;
        Ok(Opening {
            nid,
            next_us: now_us + LOOK_MIN_US,
            look_us: LOOK_MIN_US,
            answer,
        })
    }

    /// What became of it; none as long as it is being opened.
    pub(super) fn look(&mut self, now_us: u64) -> Option<Result<OpenedRail, String>> {
        match self.answer.try_recv() {
            Ok(opened) => Some(opened),
            Err(TryRecvError::Disconnected) => Some(Err("who opened it is gone".into())),
            Err(TryRecvError::Empty) => {
                self.look_us = (2 * self.look_us).min(LOOK_MAX_US);
                self.next_us = now_us + self.look_us;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let mut rail_retry = RailRetry::new("10.0.0.1:1@udp0".parse().unwrap(), "down".into());
        let mut pauses = Vec::new();
        let mut now_us = rail_retry.next_us;
        for _ in 0..8 {
            rail_retry.put_off(now_us, "down".into());
            pauses.push((rail_retry.next_us - now_us) / PAUSE_MIN_US);
            now_us = rail_retry.next_us;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
