//! Ways: through whom one peer is reached, why not directly, and what went through whom.

use super::{
    ASKED_US, Allowance, Came, PAIRS_MAX, PROVED_US, SEEK_US, Tally, UNANSWERED_FOR_US,
    UNANSWERED_MAX, UNANSWERED_US, WAYS_MAX,
};
use crate::peer::PeerHandle;
use std::collections::BTreeMap;

/// Why messages go to a peer through others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// No rail is on a net of its.
    NoCommonNet,
    /// Every pair has failed or is silent.
    NoneWorks,
    /// Nothing came from it directly for a while.
    Unheard,
    /// It says that it does not hear us directly.
    Asked,
}

impl Need {
    /// The reason as words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Need::NoCommonNet => "no rail of this node is on a net of the other side's",
            Need::NoneWorks => "no direct pair works",
            Need::Unheard => "the other side was not heard directly for a while",
            Need::Asked => "the other side does not hear this node directly",
        }
    }
}

/// One who carries to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) by: PeerHandle,
    /// When the peer was heard through it last; 0: never.
    pub(crate) proved_us: u64,
    /// When it carried last, on the fabric's count.
    pub(crate) turn: u64,
}

/// How one peer is reached through others, and what it may have carried.
#[derive(Debug)]
pub(crate) struct PeerRelay {
    pub(crate) ways: Vec<Way>,
    /// When ways were looked for last; none: never.
    sought_us: Option<u64>,
    asked_until_us: u64,
    /// Pieces of news that went to it since it was heard directly, and when the first and the last did.
    unanswered: (u32, [u64; 2]),
    pub(crate) allowance: Allowance,
    /// Envelopes of its that have come.
    pub(crate) came: Came,
}

impl Default for PeerRelay {
    fn default() -> PeerRelay {
        PeerRelay {
            ways: Vec::new(),
            sought_us: None,
            asked_until_us: 0,
            unanswered: (0, [0; 2]),
            allowance: Allowance::ONE,
            came: Came::default(),
        }
    }
}

impl PeerRelay {
    /// Notes a piece of news that goes to the peer.
    pub(crate) fn told(&mut self, now_us: u64) {
        let (count, [first_us, last_us]) = &mut self.unanswered;
        if *count == 0 {
            *first_us = now_us;
        }
        *count = count.saturating_add(1);
        *last_us = now_us;
    }

    /// Notes that the peer was heard directly.
    pub(crate) fn heard(&mut self) {
        self.unanswered = (0, [0; 2]);
    }

    /// Notes that it was heard through another, which it may have asked for.
    pub(crate) fn heard_through(&mut self, now_us: u64, by: PeerHandle, unheard: bool) {
        if unheard {
            self.asked_until_us = now_us + ASKED_US;
        }
        match self.ways.iter_mut().find(|way| way.by == by) {
            Some(way) => way.proved_us = now_us,
            None => {
                if self.ways.len() >= 2 * WAYS_MAX {
                    let oldest = (0..self.ways.len()).min_by_key(|at| self.ways[*at].proved_us);
                    oldest.map(|at| self.ways.swap_remove(at));
                }
                self.ways.push(Way {
                    by,
                    proved_us: now_us,
                    turn: 0,
                });
            }
        }
    }

    /// It says that it does not hear us.
    pub(crate) fn is_asked(&self, now_us: u64) -> bool {
        now_us < self.asked_until_us
    }

    /// Much news went to it, the last of it lately, and no word came back directly. Not every piece of news
    /// has an answer: who has nothing to say and is not watched would be taken for deaf for good, and
    /// each beat for it would go through others. What it must hear of is said again.
    pub(crate) fn is_unanswered(&self, now_us: u64) -> bool {
        let (count, [first_us, last_us]) = self.unanswered;
        count >= UNANSWERED_MAX
            && now_us > first_us + UNANSWERED_US
            && now_us < last_us + UNANSWERED_FOR_US
    }

    /// Whether it is time to look for ways again; if so, the next time is later.
    pub(crate) fn seeks(&mut self, now_us: u64) -> bool {
        let due = self.sought_us.is_none_or(|at_us| now_us >= at_us + SEEK_US);
        if due {
            self.sought_us = Some(now_us);
        }
        due
    }

    /// What is known about one who may carry: whether the peer was heard through it lately, and its turn.
    pub(crate) fn way(&self, now_us: u64, by: PeerHandle) -> (bool, u64) {
        let way = self.ways.iter().find(|way| way.by == by);
        way.map_or((false, 0), |way| {
            let proved = way.proved_us > 0 && now_us < way.proved_us + PROVED_US;
            (proved, way.turn)
        })
    }
}

/// What went through whom: by us for others, for us by others.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// From whom, through whom, to whom; none is this node.
    pairs: BTreeMap<[Option<PeerHandle>; 3], Tally>,
    /// Of pairs beyond the limit.
    others: Tally,
}

impl Carried {
    /// Counts one message.
    pub(crate) fn count(&mut self, ends: [Option<PeerHandle>; 3], bytes: usize) {
        if self.pairs.len() >= PAIRS_MAX && !self.pairs.contains_key(&ends) {
            self.others.count(bytes);
        } else {
            self.pairs.entry(ends).or_default().count(bytes);
        }
    }

    /// All figures; what belongs to no pair that is counted by itself comes second.
    pub(crate) fn each(
        &self,
    ) -> (
        impl Iterator<Item = (&[Option<PeerHandle>; 3], &Tally)>,
        Tally,
    ) {
        (self.pairs.iter(), self.others)
    }

    /// The peer is no longer known: its figures go to the others'.
    pub(crate) fn forget(&mut self, peer: PeerHandle) {
        let others = &mut self.others;
        self.pairs.retain(|ends, tally| {
            let gone = ends.contains(&Some(peer));
            if gone {
                others.add(*tally);
            }
            !gone
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(index: u32) -> PeerHandle {
        PeerHandle {
            index,
            generation: 0,
        }
    }

    #[test]
    fn who_does_not_answer_is_noticed_and_who_does_is_not() {
        let mut relay = PeerRelay::default();
        (0..4).for_each(|at| relay.told(1_000 * at));
        assert!(!relay.is_unanswered(UNANSWERED_US));
        assert!(relay.is_unanswered(UNANSWERED_US + 1));
        relay.heard();
        (0..3).for_each(|at| relay.told(200_000 * at));
        assert!(!relay.is_unanswered(1_000_000), "three may be on their way");
        relay.told(900_000);
        assert!(relay.is_unanswered(1_000_000));
        assert!(
            !relay.is_unanswered(900_000 + UNANSWERED_FOR_US),
            "nothing new for long: beats go straight"
        );
        relay.told(9_000_000);
        assert!(relay.is_unanswered(9_000_000), "news was never answered");
    }

    #[test]
    fn a_way_is_proved_for_a_while_and_their_number_is_bounded() {
        let mut relay = PeerRelay::default();
        relay.heard_through(5, peer(1), false);
        assert!(!relay.is_asked(5));
        relay.heard_through(10, peer(1), true);
        assert!(relay.is_asked(10 + ASKED_US - 1) && !relay.is_asked(10 + ASKED_US));
        assert_eq!(relay.way(10 + PROVED_US - 1, peer(1)), (true, 0));
        assert_eq!(relay.way(10 + PROVED_US, peer(1)), (false, 0));
        (2..99).for_each(|at| relay.heard_through(at.into(), peer(at), false));
        assert_eq!(relay.ways.len(), 2 * WAYS_MAX);
        assert!(relay.way(99, peer(98)).0);
    }

    #[test]
    fn figures_of_pairs_are_bounded_and_none_is_lost() {
        let mut carried = Carried::default();
        let many = PAIRS_MAX as u32 + 10;
        (0..many).for_each(|at| carried.count([Some(peer(at)), None, Some(peer(at + 1))], 3));
        carried.forget(peer(1));
        let (pairs, others) = carried.each();
        let mut sum = others;
        pairs.for_each(|(_, tally)| sum.add(*tally));
        assert_eq!((others.messages, sum.messages), (12, many.into()));
        assert_eq!(sum.bytes, 3 * u64::from(many));
    }
}
