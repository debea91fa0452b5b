//! `RailRetry` is a rail of the plan that could not be opened again. It stays in the plan and is retried with growing
//! pauses.
//!
//! A worker that ended may have had rails that its successor cannot open at once: an interface is down for repair, or
//! another process has taken the port. No operator removed them, so no operator should have to add them again.

use muster_fabric::{Nid, OpenedRail, RailOpener};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;

/// The pause before the first retry, and the longest; each is twice as long as the one before.
const PAUSE_MIN_US: u64 = 1_000_000;
const PAUSE_MAX_US: u64 = 60_000_000;

/// The rail.
#[derive(Debug, Clone)]
pub(super) struct RailRetry {
    /// Its NID when it was open last, with the port that other nodes know.
    pub(super) nid: Nid,
    /// Why it is not open.
    pub(super) reason: String,
    /// Time of the next retry.
    pub(super) next_us: u64,
    pause_us: u64,
}

impl RailRetry {
    /// A rail to be tried at once.
    pub(super) fn new(nid: Nid, reason: String) -> RailRetry {
        RailRetry {
            nid,
            reason,
            next_us: 0,
            pause_us: PAUSE_MIN_US,
        }
    }

    /// Notes a failed attempt.
    pub(super) fn defer(&mut self, now_us: u64, reason: String) {
        self.reason = reason;
        self.next_us = now_us + self.pause_us;
        self.pause_us = (2 * self.pause_us).min(PAUSE_MAX_US);
    }
}

/// The first pause between two checks whether the rail is open, and the longest; they grow as above.
const CHECK_MIN_US: u64 = 5_000;
const CHECK_MAX_US: u64 = 1_000_000;

/// A rail that a separate thread is opening: a provider may take longer with its device than a deadline of this node.
#[derive(Debug)]
pub(super) struct Opening {
    /// Its NID.
    pub(super) nid: Nid,
    /// Time of the next check.
    pub(super) next_us: u64,
    check_us: u64,
    answer: Receiver<Result<OpenedRail, String>>,
}

impl Opening {
    /// Starts a thread that tries these openers in order until one succeeds.
    pub(super) fn start(
        now_us: u64,
        nid: Nid,
        openers: Vec<RailOpener>,
    ) -> Result<Opening, String> {
        let (sender, answer) = sync_channel(1);
        let open = move || {
            let mut opened = Err("its interface has no address".to_owned());
            for opener in openers {
                opened = opener.open().map_err(|error| error.to_string());
                if opened.is_ok() {
                    break;
                }
            }
            // The receiver may be gone. The rail is then closed by the drop.
            let _ = sender.send(opened);
        };
        let thread = thread::Builder::new().name("muster-opens".into());
        let started = thread.spawn(open);
        started.map_err(|error| format!("no thread can be started to open it: {error}"))?;
        Ok(Opening {
            nid,
            next_us: now_us + CHECK_MIN_US,
            check_us: CHECK_MIN_US,
            answer,
        })
    }

    /// The result; none while the rail is being opened.
    pub(super) fn poll(&mut self, now_us: u64) -> Option<Result<OpenedRail, String>> {
        match self.answer.try_recv() {
            Ok(opened) => Some(opened),
            Err(TryRecvError::Disconnected) => {
                Some(Err("the thread that opened it has panicked".into()))
            }
            Err(TryRecvError::Empty) => {
                self.check_us = (2 * self.check_us).min(CHECK_MAX_US);
                self.next_us = now_us + self.check_us;
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
            rail_retry.defer(now_us, "down".into());
            pauses.push((rail_retry.next_us - now_us) / PAUSE_MIN_US);
            now_us = rail_retry.next_us;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
