//! Whole views for members that join: the first datagram of each at once, the rest when there is time.
//!
//! When hundreds of members join at the same seed, whole views for all of them would take longer than a
//! deadline, and the members that wait would find the seed silent. So the first datagram of a view holds
//! the ring successors of its receiver, which it is to observe. The receiver can begin with them, and
//! learns of the others from them too.
//!
//! The rest is sent when nothing else is to be sent: one datagram to each receiver in turn, at most
//! `WINDOW` of them in the time of an acknowledgement (`ack_rtt`). A member that repeats its join request
//! gets a first datagram again, and never two views at the same time.

use core::ops::Bound;

use crate::identity::MemberId;
use crate::sorted::SortedMap;
use crate::time::Instant;

/// Most receivers of views at the same time.
pub(super) const VIEWS_MAX: usize = 4096;
/// Datagrams of views, without the first ones, in the time of an acknowledgement.
const WINDOW: u32 = 32;
/// The least value of that time, in microseconds.
const WINDOW_US_MIN: u64 = 1_000;

/// The rest of a view for one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) to: MemberId,
    /// The next record is that of this member, or of the next one on the ring.
    pub(super) from: MemberId,
    /// The view answers a seed request, or is a continuation.
    pub(super) boot: bool,
    /// No datagram of it was sent yet.
    pub(super) is_first: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Views {
    /// Receivers without a first datagram, and whether each sent a seed request.
    firsts: SortedMap<MemberId, bool>,
    /// The next record of the other views.
    rests: SortedMap<MemberId, MemberId>,
    /// The last receiver in turn.
    last: Option<MemberId>,
    left: u32,
    open_at: Instant,
}

impl Views {
    /// Adds a receiver; returns false if there are too many.
    pub(super) fn add(&mut self, to: MemberId, boot: bool) -> bool {
        let is_known = self.firsts.contains_key(&to) || self.rests.contains_key(&to);
        if !is_known && self.len() >= VIEWS_MAX {
            return false;
        }
        self.rests.remove(&to);
        // A request that is not a seed request is answered as such, whatever came before.
        *self.firsts.get_or_insert_with(to, || boot) &= boot;
        true
    }

    /// A datagram was sent and the view continues with this record.
    pub(super) fn go_on(&mut self, to: MemberId, from: MemberId) {
        self.rests.insert(to, from);
    }

    /// The next view without a first datagram.
    pub(super) fn pop_first(&mut self) -> Option<View> {
        let (to, boot) = self.firsts.pop_first()?;
        Some(View {
            to,
            from: to,
            boot,
            is_first: true,
        })
    }

    /// The next view that may continue; `rto_us` is the time of an acknowledgement.
    pub(super) fn pop_rest(&mut self, now: Instant, rto_us: u64) -> Option<View> {
        if now < self.rest_at() {
            return None;
        }
        if now >= self.open_at {
            self.left = WINDOW;
            self.open_at = now.after(rto_us.max(WINDOW_US_MIN));
        }
        self.left -= 1;
        let last = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let after = (last, Bound::Unbounded);
        let next = self.rests.range(after).next();
        let to = next.or(self.rests.first_key_value()).map(|(to, _)| *to)?;
        self.last = Some(to);
        let from = self.rests.remove(&to)?;
        Some(View {
            to,
            from,
            boot: true,
            is_first: false,
        })
    }

    pub(super) fn has_firsts(&self) -> bool {
        !self.firsts.is_empty()
    }

    /// When a view may continue; never if there is none.
    pub(super) fn rest_at(&self) -> Instant {
        match (self.rests.is_empty(), self.left) {
            (true, _) => Instant::NEVER,
            (false, 0) => self.open_at,
            (false, _) => Instant::default(),
        }
    }

    /// Drops the view for this receiver.
    pub(super) fn forget(&mut self, to: MemberId) {
        self.firsts.remove(&to);
        self.rests.remove(&to);
    }

    pub(super) fn len(&self) -> usize {
        self.firsts.len() + self.rests.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: impl IntoIterator<Item = u64>) -> Vec<MemberId> {
        numbers.into_iter().map(MemberId).collect()
    }

    /// ZM-03: one first datagram for each receiver, however often it asks; then the rest in turns.
    #[test]
    fn each_receiver_gets_a_first_datagram_and_the_rest_in_turns() {
        let mut views = Views::default();
        for to in ids([3, 1, 2, 1, 3]) {
            assert!(views.add(to, true));
        }
        let mut firsts = Vec::new();
        while let Some(view) = views.pop_first() {
            assert!(view.is_first && view.from == view.to);
            firsts.push(view.to);
            views.go_on(view.to, MemberId(9));
        }
        assert_eq!(firsts, ids([1, 2, 3]));
        let now = Instant(50);
        let mut turns = Vec::new();
        for _ in 0..5 {
            let view = views.pop_rest(now, 0).unwrap();
            turns.push(view.to);
            views.go_on(view.to, MemberId(view.from.0 + 1));
        }
        assert_eq!(turns, ids([1, 2, 3, 1, 2]));
        assert!(views.add(MemberId(3), true));
        assert_eq!((views.rests.len(), views.len()), (2, 3));
    }

    /// At most a window in the time of an acknowledgement.
    #[test]
    fn the_rest_is_paced_by_how_long_acknowledgements_take() {
        let mut views = Views::default();
        views.go_on(MemberId(1), MemberId(1));
        let mut told = |now: u64| {
            let mut count = 0;
            while let Some(view) = views.pop_rest(Instant(now), 5_000) {
                views.go_on(view.to, view.from);
                count += 1;
            }
            (count, views.rest_at())
        };
        assert_eq!(told(100), (WINDOW, Instant(5_100)));
        assert_eq!(told(5_099), (0, Instant(5_100)));
        assert_eq!(told(5_100), (WINDOW, Instant(10_100)));
    }

    #[test]
    fn receivers_are_bounded() {
        let mut views = Views::default();
        for to in ids(0..VIEWS_MAX as u64) {
            assert!(views.add(to, true));
        }
        assert!(!views.add(MemberId(VIEWS_MAX as u64), true));
        assert!(views.add(MemberId(7), false));
        assert_eq!(views.pop_first().map(|view| view.boot), Some(true));
        views.forget(MemberId(1));
        assert_eq!(views.len(), VIEWS_MAX - 2);
    }
}
