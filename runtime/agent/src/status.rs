//! The node attribute in which a member publishes its failing rails, and a digest of its rules for rails.
//!
//! A member knows of a failure before its peers can detect it: its kernel reports that a link is down, its provider
//! that a device has failed. It publishes the failing rails as an attribute of its node, so later members get it,
//! too. Other members then send on its other rails and show it as degraded. A member that does not know the attribute
//! ignores it. `RailStatus` has its format.

use muster_control::rail_status::{self, RailStatus};
use muster_fabric::Nid;
use std::collections::BTreeMap;

/// The attribute's key. Only the agent writes it.
pub(super) const RAILS_KEY: &[u8] = rail_status::KEY.as_bytes();
/// Minimum time between two changes, so that a flapping link does not cause a flood.
const PAUSE_US: u64 = 500_000;
/// Pause after a change that was refused: there is no room for it, and other changes must make some.
const REFUSED_PAUSE_US: u64 = 10_000_000;

/// The state of this node's rails, and the time to publish it.
#[derive(Debug, Default)]
pub(super) struct Status {
    failing: BTreeMap<usize, Nid>,
    /// Rails that are not open.
    missing: Vec<Nid>,
    policy: Option<String>,
    published: RailStatus,
    /// The earliest time of the next change.
    next_us: u64,
}

impl Status {
    /// Continues from the attribute that an earlier worker published.
    pub(super) fn resume(value: Option<&[u8]>) -> Status {
        Status {
            published: value.and_then(RailStatus::read).unwrap_or_default(),
            ..Status::default()
        }
    }

    /// Sets the digest of the rules and limits; none for the defaults.
    pub(super) fn set_policy(&mut self, digest: Option<String>) {
        self.policy = digest;
    }

    pub(super) fn set(&mut self, rail: usize, nid: Nid, fails: bool) {
        match fails {
            true => _ = self.failing.insert(rail, nid),
            false => _ = self.failing.remove(&rail),
        }
    }

    /// Sets the rails that are not open. Returns whether they have changed.
    pub(super) fn set_missing<'a>(
        &mut self,
        missing: impl Iterator<Item = &'a Nid> + Clone,
    ) -> bool {
        let differs = !missing.clone().eq(&self.missing);
        if differs {
            self.missing = missing.cloned().collect();
        }
        differs
    }

    /// Forgets rails that are closed, or cannot be failing now.
    pub(super) fn retain(&mut self, may_fail: impl Fn(usize, &Nid) -> bool) {
        self.failing.retain(|rail, nid| may_fail(*rail, nid));
    }

    pub(super) fn is_failing(&self) -> bool {
        self.all().next().is_some()
    }

    /// Rails that cannot be used.
    fn all(&self) -> impl Iterator<Item = &Nid> {
        self.failing.values().chain(&self.missing)
    }

    /// Time of the next change; none if the attribute is up to date.
    pub(super) fn due_us(&self) -> Option<u64> {
        let published = &self.published;
        let differs = !self.all().eq(&published.failing) || self.policy != published.policy;
        differs.then_some(self.next_us)
    }

    /// Publishes a change that is due. `publish` returns whether the engine accepted it; a refused one is retried
    /// later.
    pub(super) fn publish(&mut self, now_us: u64, publish: impl FnOnce(&[u8]) -> bool) -> bool {
        if self.due_us().is_none_or(|due_us| now_us < due_us) {
            return false;
        }
        let next = RailStatus {
            failing: self.all().cloned().collect(),
            policy: self.policy.clone(),
        };
        let taken = publish(next.write().as_bytes());
        if taken {
            self.published = next;
        }
        self.next_us = now_us + if taken { PAUSE_US } else { REFUSED_PAUSE_US };
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &[u8]) -> Option<Vec<Nid>> {
        RailStatus::read(value).map(|status| status.failing)
    }

    fn nid(text: &str) -> Nid {
        text.parse().unwrap()
    }

    impl Status {
        fn take(&mut self, now_us: u64) -> Option<Vec<u8>> {
            let mut published = None;
            self.publish(now_us, |value| {
                published = Some(value.to_vec());
                true
            });
            published
        }
    }

    #[test]
    fn a_refused_change_is_retried_after_a_pause() {
        let mut status = Status::default();
        status.set(1, nid("10.0.0.2@udp1"), true);
        assert!(!status.publish(7, |_| false));
        let due_us = status.due_us().unwrap();
        assert_eq!(due_us, 7 + REFUSED_PAUSE_US);
        assert_eq!(status.take(due_us - 1), None);
        assert_eq!(status.take(due_us).unwrap(), b"multi-rail 10.0.0.2@udp1");
        assert_eq!(status.due_us(), None);
    }

    /// dyn-015, dyn-030, dyn-050.
    #[test]
    fn a_failure_is_published_once_at_once_and_flapping_after_a_pause() {
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
        assert_eq!(status.due_us(), None, "equal to the published state");
        status.set(1, nid("10.0.0.2@udp1"), false);
        let due_us = status.due_us().unwrap();
        assert_eq!(read(&status.take(due_us).unwrap()).unwrap(), []);
    }

    #[test]
    fn a_later_worker_withdraws_an_outdated_failure() {
        let mut status = Status::resume(Some(b"multi-rail 10.0.0.2@udp1"));
        assert_eq!(status.take(1).unwrap(), b"multi-rail");
        assert_eq!(Status::resume(None).due_us(), None);
    }

    #[test]
    fn rules_are_published_by_their_digest() {
        let mut status = Status::default();
        status.set_policy(Some("0badcafe".into()));
        assert_eq!(status.take(7).unwrap(), b"multi-rail policy=0badcafe");
        status.set(1, nid("10.0.0.2@udp1"), true);
        let due_us = status.due_us().unwrap();
        let value = status.take(due_us).unwrap();
        assert_eq!(value, b"multi-rail policy=0badcafe 10.0.0.2@udp1");
        assert_eq!(read(&value).unwrap(), [nid("10.0.0.2@udp1")]);
        let mut resumed = Status::resume(Some(&value));
        assert!(resumed.due_us().is_some());
        resumed.set(1, nid("10.0.0.2@udp1"), true);
        resumed.set_policy(Some("0badcafe".into()));
        assert_eq!(resumed.due_us(), None);
    }
}
