//! A rail of the plan that could not be opened again: it stays in the plan, and is tried ever later.
//!
//! A worker that ended may have had rails that its successor cannot open at once: an interface that is
//! down for repair, a port that somebody has taken meanwhile. Nobody has removed them, so nobody should
//! have to add them again.

use muster_fabric::Nid;

/// First pause before it is tried again, and the longest; each is twice as long as the one before. Opening
/// takes time that the loop needs.
const PAUSE_MIN_US: u64 = 1_000_000;
const PAUSE_MAX_US: u64 = 60_000_000;

/// The rail.
#[derive(Debug, Clone)]
pub(super) struct Missing {
    /// As it was open last, with the port that the others know.
    pub(super) nid: Nid,
    /// Why it is not open.
    pub(super) reason: String,
    /// When it is tried again.
    pub(super) next_us: u64,
    pause_us: u64,
}

impl Missing {
    /// To be tried at once.
    pub(super) fn new(nid: Nid, reason: String) -> Missing {
        Missing {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let mut missing = Missing::new("10.0.0.1:1@udp0".parse().unwrap(), "down".into());
        let mut pauses = Vec::new();
        let mut now_us = missing.next_us;
        for _ in 0..8 {
            missing.put_off(now_us, "down".into());
            pauses.push((missing.next_us - now_us) / PAUSE_MIN_US);
            now_us = missing.next_us;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
