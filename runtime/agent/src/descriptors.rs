//! The worker's descriptors: how many are open, and when a new worker takes over because they run out.
//!
//! A rank needs four. libfabric accepts every TCP connection that comes to a `tcp` rail and keeps it until its first
//! message has come: silent connections can use up those of the ranks. No call of libfabric closes such connections;
//! the end of the process does. So when few descriptors are left, and many belong to connections
//! that serve nobody, the worker ends and its keeper forks the next one, which takes up where this one stopped.

use muster_sys::clock::monotonic_ns;
use muster_sys::limits;
use muster_sys::open_files;
use rustix::process::{Pid, getppid};
use tracing::{error, warn};

/// How often they are counted.
const LOOK_US: u64 = 1_000_000;
/// How often connections that serve nobody are counted, and a lack is told.
const SEARCH_US: u64 = 10_000_000;
const TELL_US: u64 = 60_000_000;
/// From one new worker to the next.
pub(super) const RENEWAL_US: u64 = 60_000_000;
/// With a larger limit no more are used than this. It bounds the time that a search takes, to some milliseconds.
const USED_MAX: u64 = 16_384;
/// So many are kept for ranks and control: a part of the limit, within bounds.
const KEPT_PART: u64 = 8;
const KEPT: (u64, u64) = (16, 256);
/// A new worker is worth it if it closes this part of the limit.
const UNSERVED_PART: u64 = 4;
/// The first message of libfabric's connections, in bytes.
const FIRST_MESSAGE: u64 = 32;
/// Numbers above the count that are looked at: some below it may be free.
const SPREAD: u64 = 64;

/// The workers that took over for want of descriptors. The keeper counts; a worker has it from its beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Renewals {
    /// How many there were.
    pub(super) count: u64,
    /// When the last one took over.
    last_us: Option<u64>,
}

impl Renewals {
    /// Notes one more, if it is time for it: a worker that ends so earlier has failed.
    pub(super) fn note(&mut self, now_us: u64) -> bool {
        let is_time = self.is_time(now_us);
        if is_time {
            self.count += 1;
            self.last_us = Some(now_us);
        }
        is_time
    }

    fn is_time(&self, now_us: u64) -> bool {
        let next_us = self.last_us.map_or(0, |last_us| last_us + RENEWAL_US);
        next_us <= now_us
    }
}

/// The watch over them.
pub(super) struct Descriptors {
    limit: u64,
    /// Who would fork another worker; none where nobody does.
    supervisor: Option<Pid>,
    pub(super) renewals: Renewals,
    /// At the last look.
    pub(super) open: u64,
    /// TCP connections that served nobody when they were counted last.
    pub(super) unserved: u64,
    look_us: u64,
    search_us: u64,
    tell_us: u64,
}

impl Descriptors {
    /// For a worker that this keeper would replace.
    pub(super) fn new(supervisor: Option<Pid>, renewals: Renewals) -> Self {
        Self {
            limit: limits::open_files().min(USED_MAX),
            supervisor,
            renewals,
            open: 0,
            unserved: 0,
            look_us: 0,
            search_us: 0,
            tell_us: 0,
        }
    }

    /// Looks, if it is time; says whether the worker has to be replaced now.
    pub(super) fn look(&mut self, now_us: u64) -> bool {
        if now_us < self.look_us {
            return false;
        }
        self.look_us = now_us + LOOK_US;
        // One cannot be counted where there is none for the count.
        self.open = open_files::count().unwrap_or(self.limit);
        let is_scarce = self.open + kept(self.limit) > self.limit;
        let may_renew = is_scarce && self.may_renew(now_us);
        if may_renew || self.search_us <= now_us {
            self.search_us = now_us + SEARCH_US;
            let below = (self.open + SPREAD).min(self.limit);
            self.unserved = open_files::unserved_connections(below as i32, FIRST_MESSAGE);
        }
        let is_worth_it = self.unserved * UNSERVED_PART >= self.limit;
        match is_scarce {
            true if may_renew && is_worth_it => {
                error!(
                    open = self.open,
                    limit = self.limit,
                    unserved = self.unserved,
                    "descriptors run out, for TCP connections to this node's rails that bring no message; a new \
                     worker takes over and closes them. Let no other hosts connect to the rails' ports: see \
                     muster-rails(7)"
                );
                return true;
            }
            true => self.tell_lack(now_us),
            false => {}
        }
        false
    }

    fn may_renew(&self, now_us: u64) -> bool {
        self.renewals.is_time(now_us) && self.supervisor.is_some() && getppid() == self.supervisor
    }

    fn tell_lack(&mut self, now_us: u64) {
        if now_us < self.tell_us {
            return;
        }
        self.tell_us = now_us + TELL_US;
        warn!(
            open = self.open,
            limit = self.limit,
            unserved = self.unserved,
            "few descriptors are left, and ranks that find none are turned away until there are some; raise the limit \
             of open files (ulimit -Hn, nofile in /etc/security/limits.conf, LimitNOFILE= of the service)"
        );
    }

    /// What was counted, by name.
    pub(super) fn counters(&self) -> [(&'static str, u64); 3] {
        [
            ("descriptors_open", self.open),
            ("connections_unserved", self.unserved),
            ("workers_renewed", self.renewals.count),
        ]
    }
}

/// The time by which renewals are counted.
pub(super) fn now_us() -> u64 {
    monotonic_ns() / 1000
}

fn kept(limit: u64) -> u64 {
    (limit / KEPT_PART).clamp(KEPT.0, KEPT.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_renewed_at_most_once_a_minute() {
        let mut renewals = Renewals::default();
        assert!(renewals.note(5));
        assert!(!renewals.note(6) && !renewals.note(4 + RENEWAL_US));
        assert!(renewals.note(5 + RENEWAL_US));
        assert_eq!(renewals.count, 2);
    }

    #[test]
    fn a_part_is_kept_and_not_too_little_nor_too_much() {
        assert_eq!([64, 128, 1024, USED_MAX].map(kept), [16, 16, 128, 256]);
    }

    /// Where nobody forks another worker, none ends for one.
    #[test]
    fn without_a_keeper_no_worker_ends() {
        let mut descriptors = Descriptors::new(None, Renewals::default());
        descriptors.limit = 1;
        assert!(!descriptors.look(1_000_000));
        assert!(descriptors.open > 0 && descriptors.tell_us > 0);
    }
}
