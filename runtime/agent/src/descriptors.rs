//! The worker's file descriptors: how many are open, and when a new worker takes over because they run out.
//!
//! A rank needs four. libfabric accepts every TCP connection to a `tcp` rail and keeps it until its first message has
//! arrived, so silent connections can use up the descriptors of the ranks. No call of libfabric closes such
//! connections; only the end of the process does. When few descriptors are left, and many belong to unserved
//! connections (that never sent a message), the worker ends. Its supervisor forks the next one, which continues from
//! the inherited state.

use muster_sys::clock::monotonic_ns;
use muster_sys::limits;
use muster_sys::open_files;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Pid, getppid};
use std::os::fd::AsFd;
use tracing::{debug, error, warn};

/// Interval between two counts.
const CHECK_US: u64 = 1_000_000;
/// Interval between two counts of unserved connections, and between two warnings.
const SEARCH_US: u64 = 10_000_000;
const WARN_US: u64 = 60_000_000;
/// Minimum time between two renewals of the worker.
pub(super) const RENEWAL_US: u64 = 60_000_000;
/// Size of the table of descriptors that a worker makes at its start: enough for a thousand ranks.
const TABLE_SIZE: u64 = 4096;
/// Number of descriptors used at most, even if the limit is larger. It bounds the time of a count to some
/// milliseconds.
const USED_MAX: u64 = 16_384;
/// Descriptors reserved for ranks and control: this fraction of the limit, within these bounds.
const RESERVED_FRACTION: u64 = 8;
const RESERVED: (u64, u64) = (16, 256);
/// A new worker is forked only if that closes at least this fraction of the limit.
const UNSERVED_FRACTION: u64 = 4;
/// The first message of libfabric's connections, in bytes.
const FIRST_MESSAGE: u64 = 32;
/// Descriptor numbers above the count that are checked: some numbers below it may be free.
const SPREAD: u64 = 64;

/// The workers that took over because descriptors ran out. The supervisor counts them; each worker gets the count at
/// its start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Renewals {
    /// Number of renewals.
    pub(super) count: u64,
    /// Time of the last renewal.
    last_us: Option<u64>,
}

impl Renewals {
    /// Counts a renewal. Returns false if the last one was too recent: a worker that ends so early has failed.
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

/// Makes room in the kernel's table of this process's descriptors, with a copy of `any` at a high number. Otherwise the
/// table grows while clients attach, and the loop waits each time until all processors have passed the scheduler
/// (`synchronize_rcu`), which takes 10 ms and more on a busy machine.
pub(super) fn make_room(any: impl AsFd) {
    let last = limits::open_files().min(TABLE_SIZE).saturating_sub(1);
    if let Err(cause) = fcntl_dupfd_cloexec(any, last as i32) {
        debug!(%cause, "the table of descriptors grows when it has to");
    }
}

/// Monitors the number of open descriptors.
pub(super) struct Descriptors {
    limit: u64,
    /// The process that forks the next worker; none in the foreground.
    supervisor: Option<Pid>,
    pub(super) renewals: Renewals,
    /// Open descriptors at the last count.
    pub(super) open: u64,
    /// Unserved TCP connections at the last count.
    pub(super) unserved: u64,
    check_us: u64,
    search_us: u64,
    warn_us: u64,
}

impl Descriptors {
    /// Creates it for a worker that `supervisor` replaces.
    pub(super) fn new(supervisor: Option<Pid>, renewals: Renewals) -> Self {
        Self {
            limit: limits::open_files().min(USED_MAX),
            supervisor,
            renewals,
            open: 0,
            unserved: 0,
            check_us: 0,
            search_us: 0,
            warn_us: 0,
        }
    }

    /// Counts, if it is time. Returns whether the worker has to be replaced now.
    pub(super) fn check(&mut self, now_us: u64) -> bool {
        if now_us < self.check_us {
            return false;
        }
        self.check_us = now_us + CHECK_US;
        // The count itself needs a descriptor: if none is left, all are open.
        self.open = open_files::count().unwrap_or(self.limit);
        let is_scarce = self.open + reserved(self.limit) > self.limit;
        let may_renew = is_scarce && self.may_renew(now_us);
        if may_renew || self.search_us <= now_us {
            self.search_us = now_us + SEARCH_US;
            let below = (self.open + SPREAD).min(self.limit);
            self.unserved = open_files::unserved_connections(below as i32, FIRST_MESSAGE);
        }
        let is_worth_it = self.unserved * UNSERVED_FRACTION >= self.limit;
        match is_scarce {
            true if may_renew && is_worth_it => {
                error!(
                    open = self.open,
                    limit = self.limit,
                    unserved = self.unserved,
                    "descriptors run out because of TCP connections to this node's rails that send no message; a new \
                     worker takes over and closes them. Do not let other hosts connect to the rails' ports: see \
                     muster-rails(7)"
                );
                return true;
            }
            true => self.warn_of_lack(now_us),
            false => {}
        }
        false
    }

    /// Whether another worker can take over now.
    pub(super) fn may_renew(&self, now_us: u64) -> bool {
        self.renewals.is_time(now_us) && self.supervisor.is_some() && getppid() == self.supervisor
    }

    fn warn_of_lack(&mut self, now_us: u64) {
        if now_us < self.warn_us {
            return;
        }
        self.warn_us = now_us + WARN_US;
        warn!(
            open = self.open,
            limit = self.limit,
            unserved = self.unserved,
            "few descriptors are left; ranks that attach are refused while there are none; raise the limit \
             of open files (ulimit -Hn, nofile in /etc/security/limits.conf, LimitNOFILE= of the service)"
        );
    }

    /// The counters, by name.
    pub(super) fn counters(&self) -> [(&'static str, u64); 3] {
        [
            ("descriptors_open", self.open),
            ("connections_unserved", self.unserved),
            ("workers_renewed", self.renewals.count),
        ]
    }
}

/// The clock of renewals.
pub(super) fn now_us() -> u64 {
    monotonic_ns() / 1000
}

fn reserved(limit: u64) -> u64 {
    (limit / RESERVED_FRACTION).clamp(RESERVED.0, RESERVED.1)
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
    fn a_worker_has_room_for_the_descriptors_of_its_clients() {
        let size = || -> u64 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
            line.unwrap().trim().parse().unwrap()
        };
        let wanted = limits::open_files().min(TABLE_SIZE);
        make_room(std::io::stderr());
        assert!(size() >= wanted);
        let last = format!("/proc/self/fd/{}", wanted - 1);
        assert!(std::fs::read_link(last).is_err(), "the copy is closed");
    }

    #[test]
    fn a_bounded_fraction_is_reserved() {
        assert_eq!([64, 128, 1024, USED_MAX].map(reserved), [16, 16, 128, 256]);
    }

    /// A worker without a supervisor that forks a successor does not end.
    #[test]
    fn a_worker_without_a_supervisor_does_not_end() {
        let mut descriptors = Descriptors::new(None, Renewals::default());
        descriptors.limit = 1;
        assert!(!descriptors.check(1_000_000));
        assert!(descriptors.open > 0 && descriptors.warn_us > 0);
    }
}
