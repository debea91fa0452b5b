//! Messages that no pair of interfaces could send. Each is counted, and the log reports them at most once a second.

use muster_fabric::{DropReason, Nid};
use tracing::error;

/// Minimum time between two log lines.
const PAUSE_US: u64 = 1_000_000;

/// The number of dropped messages, and how many of them were logged.
#[derive(Debug, Default)]
pub(super) struct Drops {
    total: u64,
    logged: u64,
    next_us: u64,
    /// When rails began to be busy, with shorter pauses than [`PAUSE_US`] since.
    busy_since_us: u64,
    busy_last_us: u64,
}

impl Drops {
    /// Counts one. Returns the number to be logged now, if it is time.
    ///
    /// A rail is busy for a moment while it connects to a peer: that is counted, and logged only if it lasts.
    fn note(&mut self, now_us: u64, reason: DropReason) -> Option<u64> {
        self.total += 1;
        let mut is_short = false;
        if reason == DropReason::RailBusy {
            if now_us >= self.busy_last_us + PAUSE_US {
                self.busy_since_us = now_us;
            }
            self.busy_last_us = now_us;
            is_short = now_us < self.busy_since_us + PAUSE_US;
        }
        if is_short || now_us < self.next_us {
            return None;
        }
        self.next_us = now_us + PAUSE_US;
        let news = self.total - self.logged;
        self.logged = self.total;
        Some(news)
    }

    /// Counts one, and logs it if it is time, with the pairs that were tried for it.
    pub(super) fn dropped(
        &mut self,
        now_us: u64,
        reason: DropReason,
        tried: impl FnOnce() -> Vec<(Nid, Nid)>,
    ) {
        if let Some(count) = self.note(now_us, reason) {
            let (reason, total, tried) = (reason.word(), self.total, in_text(&tried()));
            error!(
                reason,
                tried, count, total, "messages were dropped: no pair of interfaces could send them"
            );
        }
    }

    /// The number of dropped messages.
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}

/// Pairs of a local and a remote NID as text.
fn in_text(pairs: &[(Nid, Nid)]) -> String {
    let texts: Vec<String> = pairs.iter().map(|(a, b)| format!("{a} -> {b}")).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that are logged, with a drop in each tenth of a second.
    fn logged(drops: &mut Drops, reason: DropReason) -> Vec<u64> {
        let tenths = 100..125;
        tenths
            .filter_map(|tenth| drops.note(tenth * 100_000, reason))
            .collect()
    }

    /// dbg-025.
    #[test]
    fn all_are_counted_and_logged_at_most_once_a_second() {
        let mut drops = Drops::default();
        assert_eq!(logged(&mut drops, DropReason::ProviderError), [1, 10, 10]);
        assert_eq!(drops.total(), 25);
    }

    /// dbg-025.
    #[test]
    fn a_rail_that_is_busy_is_logged_if_that_lasts() {
        let mut drops = Drops::default();
        assert_eq!(logged(&mut drops, DropReason::RailBusy), [11, 10]);
        assert_eq!(drops.note(20_000_000, DropReason::RailBusy), None);
        assert_eq!(drops.note(30_000_000, DropReason::RailBusy), None);
        assert_eq!(drops.note(31_000_000, DropReason::ProviderError), Some(7));
        assert_eq!(drops.total(), 28);
    }
}
