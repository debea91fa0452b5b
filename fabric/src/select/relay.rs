//! Selection of a carrier: the member through which a message goes that cannot go directly. It is a pure
//! function. Carriers correspond to the router NIDs of the document's "Local NI first" (snd-060).
//!
//! As for pairs, each candidate has a list of keys, compared in a fixed order; the first key that differs is
//! the reason. As long as the peer was heard through no carrier, it is unknown which carriers reach it, so two
//! of them carry a copy each. Afterwards, the carriers that are known to reach it take turns.

use std::cmp::Ordering;

/// What is known about a member as a carrier to a peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CarrierInput {
    /// A direct pair to it works, and it is not silent. A message has at most one carrier on its way.
    pub reached: bool,
    /// It has an interface on a net on which the peer has one.
    pub shares: bool,
    /// All such interfaces, of the carrier or of the peer, are known to have failed.
    pub doubtful: bool,
    /// The peer was heard through it lately.
    pub proved: bool,
    /// The carrier itself was heard lately.
    pub heard: bool,
    /// When it last carried a message for this node: a number that grows with each message.
    pub turn: u64,
}

impl CarrierInput {
    /// Whether it can carry messages at all.
    #[must_use]
    pub fn is_able(&self) -> bool {
        self.reached && self.shares
    }

    fn key(&self) -> [u64; 4] {
        let step = |good: bool| u64::from(!good);
        [
            step(self.proved),
            step(!self.doubtful),
            step(self.heard),
            self.turn,
        ]
    }

    /// Why this carrier lost against the chosen one.
    #[must_use]
    pub fn lost_to(&self, taken: &CarrierInput) -> &'static str {
        if !self.shares {
            return "it is on no net of the peer";
        }
        if !self.reached {
            return "no direct pair leads to it now";
        }
        let (own, other) = (self.key(), taken.key());
        match own.iter().zip(other).position(|(own, other)| *own != other) {
            Some(0) => "the peer was not heard through it",
            Some(1) => "its interface on a common net has failed, or the peer's has",
            Some(2) => "it was not heard itself lately",
            _ => "another carried longer ago",
        }
    }
}

/// Chooses carriers, best first: one through which the peer was heard lately, or else two; fewer if there are
/// not enough. Carriers that are marked in `tried` were tried for this message and are skipped.
#[must_use]
pub fn choose_carriers(carriers: &[CarrierInput], tried: &[bool]) -> [Option<usize>; 2] {
    let untried = |index: &usize| !tried.get(*index).copied().unwrap_or(false);
    let able = |index: &usize| carriers[*index].is_able() && untried(index);
    let mut order: Vec<usize> = (0..carriers.len()).filter(able).collect();
    order.sort_by(|one, other| compare(&carriers[*one], &carriers[*other]));
    let first = order.first().copied();
    let proved = first.is_some_and(|first| carriers[first].proved);
    let second = order.get(1).copied().filter(|_| !proved);
    [first, second]
}

/// Orders the better carrier first.
pub(crate) fn compare(one: &CarrierInput, other: &CarrierInput) -> Ordering {
    let able = other.is_able().cmp(&one.is_able());
    able.then_with(|| one.key().cmp(&other.key()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn able(turn: u64) -> CarrierInput {
        CarrierInput {
            reached: true,
            shares: true,
            heard: true,
            turn,
            ..CarrierInput::default()
        }
    }

    #[test]
    fn a_proved_carrier_carries_alone_and_else_two_do() {
        let proved = |turn| CarrierInput {
            proved: true,
            ..able(turn)
        };
        let both = [Some(1), Some(0)];
        assert_eq!(choose_carriers(&[able(2), able(1), able(3)], &[]), both);
        let all = [able(0), proved(9), proved(4)];
        assert_eq!(choose_carriers(&all, &[]), [Some(2), None], "in turn");
        let tried = [false, false, true];
        assert_eq!(choose_carriers(&all, &tried), [Some(1), None]);
        assert_eq!(choose_carriers(&all, &[true; 3]), [None; 2]);
    }

    #[test]
    fn each_step_decides_when_all_before_it_are_equal() {
        let best = CarrierInput {
            proved: true,
            ..able(1)
        };
        for (worse, why) in [
            (able(0), "not heard through it"),
            (
                CarrierInput {
                    doubtful: true,
                    ..best
                },
                "has failed",
            ),
            (
                CarrierInput {
                    heard: false,
                    ..best
                },
                "not heard itself",
            ),
            (CarrierInput { turn: 2, ..best }, "longer ago"),
            (
                CarrierInput {
                    shares: false,
                    ..best
                },
                "on no net",
            ),
            (
                CarrierInput {
                    reached: false,
                    ..best
                },
                "no direct pair",
            ),
        ] {
            assert_eq!(choose_carriers(&[worse, best], &[])[0], Some(1), "{why}");
            assert!(worse.lost_to(&best).contains(why), "{why}");
        }
    }

    fn carrier() -> impl Strategy<Value = CarrierInput> {
        any::<([bool; 5], u8)>().prop_map(|([reached, shares, doubtful, proved, heard], turn)| {
            CarrierInput {
                reached,
                shares,
                doubtful,
                proved,
                heard,
                turn: turn.into(),
            }
        })
    }

    proptest! {
        /// One hop: a chosen carrier is reached directly and shares a net with the peer, and no other carrier
        /// is better (snd-060).
        #[test]
        fn a_chosen_carrier_is_able_and_the_best(
            carriers in proptest::collection::vec(carrier(), 0..12),
            tried in proptest::collection::vec(any::<bool>(), 12),
        ) {
            let chosen = choose_carriers(&carriers, &tried);
            let open = |index: &usize| carriers[*index].is_able() && !tried[*index];
            let [first, second] = chosen;
            prop_assert_eq!(first.is_some(), (0..carriers.len()).any(|index| open(&index)));
            for one in chosen.into_iter().flatten() {
                prop_assert!(open(&one));
            }
            prop_assert!(second.is_none() || (first != second && !carriers[first.unwrap()].proved));
            if let Some(first) = first {
                for other in (0..carriers.len()).filter(open) {
                    prop_assert!(compare(&carriers[first], &carriers[other]) != Ordering::Greater);
                }
            }
        }
    }
}
