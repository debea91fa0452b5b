//! The state of rails, as members tell each other: which of its own a member cannot use.
//!
//! A member knows at once what others would have to find out: its kernel says that a link is down, its
//! provider that a device has failed. It writes that to an attribute of its node, so it goes where
//! attributes go, and whoever comes later learns it too. Others then send by its other rails and
//! show the member as degraded. Whoever does not know the attribute is none the worse.
//!
//! ```text
//! muster.rails = multi-rail [NID ...]
//! ```
//! The first word names what the writer can do; the NIDs are those that do not work now.

use muster_fabric::Nid;
use std::collections::BTreeMap;

/// The attribute's key. Only the agent writes it.
pub(super) const RAILS_KEY: &[u8] = b"muster.rails";
/// What a member can do that writes the attribute.
const FEATURE: &str = "multi-rail";
/// After one message about rails the next one waits, so that a link that flaps is no storm.
const PAUSE_US: u64 = 500_000;
/// After one that was refused: there is no room for it, which takes others to change.
const REFUSED_PAUSE_US: u64 = 10_000_000;

/// The state of the own rails, and when it is to be told.
#[derive(Debug, Default)]
pub(super) struct Status {
    failing: BTreeMap<usize, Nid>,
    /// Those that are not even open.
    rail_retry: Vec<Nid>,
    told: Vec<Nid>,
    /// Not before this.
    next_us: u64,
}

impl Status {
    /// What another worker of this node has told.
    pub(super) fn resume(value: Option<&[u8]>) -> Status {
        Status {
            told: value.and_then(read).unwrap_or_default(),
            ..Status::default()
        }
    }

    pub(super) fn set(&mut self, rail: usize, nid: Nid, fails: bool) {
        match fails {
            true => _ = self.failing.insert(rail, nid),
            false => _ = self.failing.remove(&rail),
        }
    }

    /// These rails are not open; says whether others were before.
    pub(super) fn set_missing<'a>(
        &mut self,
        rail_retry: impl Iterator<Item = &'a Nid> + Clone,
    ) -> bool {
        let differs = !rail_retry.clone().eq(&self.rail_retry);
        if differs {
            self.rail_retry = rail_retry.cloned().collect();
        }
        differs
    }

    /// Forgets rails that are no more, or cannot fail now.
    pub(super) fn keep(&mut self, may_fail: impl Fn(usize, &Nid) -> bool) {
        self.failing.retain(|rail, nid| may_fail(*rail, nid));
    }

    pub(super) fn is_failing(&self) -> bool {
        self.all().next().is_some()
    }

    /// Rails that cannot be used.
    fn all(&self) -> impl Iterator<Item = &Nid> {
        self.failing.values().chain(&self.rail_retry)
    }

    /// When something is to be told; none if everybody was.
    pub(super) fn due_us(&self) -> Option<u64> {
        let differs = !self.all().eq(&self.told);
        differs.then_some(self.next_us)
    }

    /// Tells what is to be told now; `publish` says whether it was taken. What was refused is told later.
    pub(super) fn tell(&mut self, now_us: u64, publish: impl FnOnce(&[u8]) -> bool) -> bool {
        if self.due_us().is_none_or(|due_us| now_us < due_us) {
            return false;
        }
        let failing: Vec<Nid> = self.all().cloned().collect();
        let nids = failing.iter().map(|nid| format!(" {nid}"));
        let text = nids.fold(FEATURE.to_owned(), |text, nid| text + &nid);
        let taken = publish(text.as_bytes());
        if taken {
            self.told = failing;
        }
        self.next_us = now_us + if taken { PAUSE_US } else { REFUSED_PAUSE_US };
        taken
    }
}

/// The NIDs that a member says do not work; none if it says nothing that is understood.
pub(super) fn read(value: &[u8]) -> Option<Vec<Nid>> {
    let text = str::from_utf8(value).ok()?;
    let mut words = text.split(' ');
    let feature = words.next()?;
    let nids: Option<Vec<Nid>> = words.map(|word| word.parse().ok()).collect();
    nids.filter(|_| feature == FEATURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nid(text: &str) -> Nid {
        text.parse().unwrap()
    }

    impl Status {
        fn take(&mut self, now_us: u64) -> Option<Vec<u8>> {
            let mut told = None;
            self.tell(now_us, |value| {
                told = Some(value.to_vec());
                true
            });
            told
        }
    }

    #[test]
    fn what_was_refused_is_told_later_and_not_before() {
        let mut status = Status::default();
        status.set(1, nid("10.0.0.2@udp1"), true);
        assert!(!status.tell(7, |_| false));
        let due_us = status.due_us().unwrap();
        assert_eq!(due_us, 7 + REFUSED_PAUSE_US);
        assert_eq!(status.take(due_us - 1), None);
        assert_eq!(status.take(due_us).unwrap(), b"multi-rail 10.0.0.2@udp1");
        assert_eq!(status.due_us(), None);
    }

    /// dyn-015, dyn-030, dyn-050.
    #[test]
    fn what_fails_is_told_once_at_once_and_what_flaps_after_a_pause() {
        let mut status = Status::default();
        assert_eq!(status.due_us(), None);
        status.set(1, nid("10.0.0.2@udp1"), true);
        let value = status.take(7).unwrap();
        assert_eq!(value, b"multi-rail 10.0.0.2@udp1");
        assert_eq!(read(&value).unwrap(), [nid("10.0.0.2@udp1")]);
        assert_eq!(status.take(8), None);
        status.set(1, nid("10.0.0.2@udp1"), false);
        assert_eq!(status.take(9), None);
        status.set(1, nid("10.0.0.2@udp1"), true);
        assert_eq!(status.due_us(), None, "as it was told");
        status.set(1, nid("10.0.0.2@udp1"), false);
        let due_us = status.due_us().unwrap();
        assert_eq!(read(&status.take(due_us).unwrap()).unwrap(), []);
    }

    #[test]
    fn a_later_worker_takes_back_what_no_longer_holds() {
        let mut status = Status::resume(Some(b"multi-rail 10.0.0.2@udp1"));
        assert_eq!(status.take(1).unwrap(), b"multi-rail");
        assert_eq!(Status::resume(None).due_us(), None);
    }

    /// dyn-010.
    #[test]
    fn what_is_not_understood_says_nothing() {
        for value in [
            &b""[..],
            b"other",
            b"multi-rail x",
            b"\xff",
            b"multi-rail  ",
        ] {
            assert_eq!(read(value), None, "{value:?}");
        }
    }
}
