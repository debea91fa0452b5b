//! `PendingChange` is a change of the rails that is in progress: threads are opening its rails.

use super::rail_retry::Opening;
use super::rails::Opened;
use muster_config::{Change, RailsDocument};
use muster_control::{Reply, done};

/// After this time the requester of a change is told that its rails are still being opened.
const REPLY_TIMEOUT_US: u64 = 1_500_000;
/// A rail that is not open after this time no longer delays further changes.
const OPEN_TIMEOUT_US: u64 = 60_000_000;

/// A change whose rails are being opened.
pub(super) struct PendingChange {
    /// The change, and the document that results from it.
    pub(super) change: Change,
    pub(super) next: RailsDocument,
    /// Destination of the answer. None once the requester was told that the rails are still being opened.
    pub(super) reply: Option<Reply>,
    pub(super) opened: Vec<Opened>,
    since_us: u64,
    opening: Vec<Opening>,
}

impl PendingChange {
    pub(super) fn new(
        since_us: u64,
        change: Change,
        next: RailsDocument,
        reply: Reply,
        opening: Vec<Opening>,
    ) -> Self {
        Self {
            change,
            next,
            reply: Some(reply),
            opened: Vec::new(),
            since_us,
            opening,
        }
    }

    /// The time at which the change needs attention.
    pub(super) fn due_us(&self) -> Option<u64> {
        let opening = self.opening.iter().map(|one| one.next_us);
        let reply_due = self
            .reply
            .is_some()
            .then_some(self.since_us + REPLY_TIMEOUT_US);
        opening.chain(reply_due).min()
    }

    /// Collects the rails that were opened or could not be. Returns whether none is left. If that takes long, tells
    /// the requester.
    pub(super) fn poll(&mut self, now_us: u64) -> bool {
        for mut one in std::mem::take(&mut self.opening) {
            let ended = match one.next_us <= now_us {
                true => one.poll(now_us),
                false => None,
            };
            match ended {
                Some(opened) => self.opened.push((one.nid, opened)),
                None if now_us >= self.since_us + OPEN_TIMEOUT_US => {
                    let why =
                        "its provider has not opened it in 60 s; the agent no longer waits for it";
                    self.opened.push((one.nid, Err(why.into())));
                }
                None => self.opening.push(one),
            }
        }
        if self.opening.is_empty() {
            return true;
        }
        if now_us >= self.since_us + REPLY_TIMEOUT_US
            && let Some(reply) = self.reply.take()
        {
            let text = format!(
                "{}: begun; its rails are still being opened, and the result will be logged: see muster rails",
                self.change
            );
            reply.send(done(Ok(text)));
        }
        false
    }
}
