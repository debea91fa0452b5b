//! The state of relaying for one peer: its carriers, the reason for relaying, and the traffic by carrier.

use super::{
    Allowance, NO_CONTACT_US, PAIRS_MAX, PROVED_US, ReplayFilter, SEEK_US, Tally,
    UNANSWERED_FOR_US, UNANSWERED_MAX, UNANSWERED_US, WAYS_MAX,
};
use crate::peer_handle::PeerHandle;
use std::collections::BTreeMap;

/// Why messages go to a peer through carriers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// This node has no rail on a net of the peer.
    NoCommonNet,
    /// Every pair has failed or is silent.
    NoneWorks,
    /// No message arrived from the peer directly for a while.
    NotHeard,
    /// The peer states that it has lost direct contact with this node.
    NotHeardByPeer,
}

impl Need {
    /// The reason as text.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Need::NoCommonNet => "no rail of this node is on a net of the peer",
            Need::NoneWorks => "no direct pair works",
            Need::NotHeard => "the peer was not heard directly for a while",
            Need::NotHeardByPeer => "the peer does not hear this node directly",
        }
    }
}

/// A carrier to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) by: PeerHandle,
    /// When the peer was last heard through it; 0: never.
    pub(crate) proved_us: u64,
    /// When it last carried a message, as a number of the fabric's counter.
    pub(crate) turn: u64,
}

/// The carriers of one peer, and what the peer itself may have carried.
#[derive(Debug)]
pub(crate) struct PeerRelay {
    pub(crate) ways: Vec<Way>,
    /// When carriers were last selected; none: never.
    selected_us: Option<u64>,
    no_contact_until_us: u64,
    /// News messages sent to the peer since it was last heard directly: their number, and when the first and
    /// the last were sent.
    unanswered: (u32, [u64; 2]),
    pub(crate) allowance: Allowance,
    /// Envelopes of the peer that were received.
    pub(crate) received: ReplayFilter,
}

impl Default for PeerRelay {
    fn default() -> PeerRelay {
        PeerRelay {
            ways: Vec::new(),
            selected_us: None,
            no_contact_until_us: 0,
            unanswered: (0, [0; 2]),
            allowance: Allowance::ONE,
            received: ReplayFilter::default(),
        }
    }
}

impl PeerRelay {
    /// Records a news message to the peer.
    pub(crate) fn news_sent(&mut self, now_us: u64) {
        let (count, [first_us, last_us]) = &mut self.unanswered;
        if *count == 0 {
            *first_us = now_us;
        }
        *count = count.saturating_add(1);
        *last_us = now_us;
    }

    /// Records that the peer was heard directly.
    pub(crate) fn heard(&mut self) {
        self.unanswered = (0, [0; 2]);
    }

    /// Records that the peer was heard through a carrier. The envelope may state that it has lost direct
    /// contact.
    pub(crate) fn heard_through(&mut self, now_us: u64, by: PeerHandle, no_direct_contact: bool) {
        if no_direct_contact {
            self.no_contact_until_us = now_us + NO_CONTACT_US;
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

    /// Whether the peer has stated lately that it has lost direct contact with this node.
    pub(crate) fn not_heard_by_peer(&self, now_us: u64) -> bool {
        now_us < self.no_contact_until_us
    }

    /// Whether several news messages went to the peer, the last of them lately, and no message came back directly.
    /// The limit in time is required because not every news message has an answer: a peer that has nothing to
    /// send and is not watched would count as unreachable forever, and each beat to it would be relayed. News
    /// that the peer must receive is repeated.
    pub(crate) fn is_unanswered(&self, now_us: u64) -> bool {
        let (count, [first_us, last_us]) = self.unanswered;
        count >= UNANSWERED_MAX
            && now_us > first_us + UNANSWERED_US
            && now_us < last_us + UNANSWERED_FOR_US
    }

    /// Whether carriers should be selected again. If so, the next time is `SEEK_US` later.
    pub(crate) fn selection_due(&mut self, now_us: u64) -> bool {
        let due = self
            .selected_us
            .is_none_or(|at_us| now_us >= at_us + SEEK_US);
        if due {
            self.selected_us = Some(now_us);
        }
        due
    }

    /// Whether the peer was heard through this carrier lately, and the carrier's turn.
    pub(crate) fn way(&self, now_us: u64, by: PeerHandle) -> (bool, u64) {
        let way = self.ways.iter().find(|way| way.by == by);
        way.map_or((false, 0), |way| {
            let proved = way.proved_us > 0 && now_us < way.proved_us + PROVED_US;
            (proved, way.turn)
        })
    }
}

/// Relayed traffic by sender, carrier and receiver: carried by this node, and for it.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// By sender, carrier and receiver; `None` is this node.
    pairs: BTreeMap<[Option<PeerHandle>; 3], Tally>,
    /// The traffic of pairs beyond the limit.
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

    /// All counts; second, those of pairs that are not counted separately.
    pub(crate) fn each(
        &self,
    ) -> (
        impl Iterator<Item = (&[Option<PeerHandle>; 3], &Tally)>,
        Tally,
    ) {
        (self.pairs.iter(), self.others)
    }

    /// Removes a peer; its counts are added to those that are not counted separately.
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
    fn a_peer_is_unanswered_after_several_news_without_an_answer() {
        let mut relay = PeerRelay::default();
        (0..4).for_each(|at| relay.news_sent(1_000 * at));
        assert!(!relay.is_unanswered(UNANSWERED_US));
        assert!(relay.is_unanswered(UNANSWERED_US + 1));
        relay.heard();
        (0..3).for_each(|at| relay.news_sent(200_000 * at));
        assert!(
            !relay.is_unanswered(1_000_000),
            "answers to three may be on their way"
        );
        relay.news_sent(900_000);
        assert!(relay.is_unanswered(1_000_000));
        assert!(
            !relay.is_unanswered(900_000 + UNANSWERED_FOR_US),
            "after a pause without news, beats are sent directly"
        );
        relay.news_sent(9_000_000);
        assert!(
            relay.is_unanswered(9_000_000),
            "the earlier news is still unanswered"
        );
    }

    #[test]
    fn a_carrier_is_proved_for_a_while_and_carriers_are_bounded() {
        let mut relay = PeerRelay::default();
        relay.heard_through(5, peer(1), false);
        assert!(!relay.not_heard_by_peer(5));
        relay.heard_through(10, peer(1), true);
        assert!(
            relay.not_heard_by_peer(10 + NO_CONTACT_US - 1)
                && !relay.not_heard_by_peer(10 + NO_CONTACT_US)
        );
        assert_eq!(relay.way(10 + PROVED_US - 1, peer(1)), (true, 0));
        assert_eq!(relay.way(10 + PROVED_US, peer(1)), (false, 0));
        (2..99).for_each(|at| relay.heard_through(at.into(), peer(at), false));
        assert_eq!(relay.ways.len(), 2 * WAYS_MAX);
        assert!(relay.way(99, peer(98)).0);
    }

    #[test]
    fn counted_pairs_are_bounded_and_no_count_is_lost() {
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
