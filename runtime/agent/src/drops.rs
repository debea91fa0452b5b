//! Messages that no pair of interfaces would take: counted all, said now and then.

use muster_fabric::{DropReason, Nid};
use tracing::error;

/// Between two lines about it, at least.
const PAUSE_US: u64 = 1_000_000;

/// How many were dropped, and how many of them were told.
#[derive(Debug, Default)]
pub(super) struct Drops {
    total: u64,
    told: u64,
    next_us: u64,
}

impl Drops {
    /// Notes one; says how many are to be told now, if it is time.
    fn note(&mut self, now_us: u64) -> Option<u64> {
        self.total += 1;
        if now_us < self.next_us {
            return None;
        }
        self.next_us = now_us + PAUSE_US;
        let news = self.total - self.told;
        self.told = self.total;
        Some(news)
    }

    /// Notes one, and logs it if it is time, with the pairs that were tried for it.
    pub(super) fn dropped(
        &mut self,
        now_us: u64,
        reason: DropReason,
        tried: impl FnOnce() -> Vec<(Nid, Nid)>,
    ) {
        if let Some(count) = self.note(now_us) {
            let (reason, total, tried) = (reason.word(), self.total, in_text(&tried()));
            error!(
                reason,
                tried, count, total, "messages were dropped: no pair of interfaces took them"
            );
        }
    }

    /// All of them.
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}

/// Pairs of a local and a remote NID as a text.
pub(super) fn in_text(pairs: &[(Nid, Nid)]) -> String {
    let words: Vec<String> = pairs.iter().map(|(a, b)| format!("{a} -> {b}")).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// dbg-025.
    #[test]
    fn all_are_counted_and_told_at_most_once_a_second() {
        let mut drops = Drops::default();
        let told: Vec<u64> = (0..25)
            .filter_map(|tenth| drops.note(tenth * 100_000))
            .collect();
        assert_eq!(told, [1, 10, 10]);
        assert_eq!(drops.total(), 25);
    }
}
