//! Launcher reports: passes the launcher's events about ranks that ended badly to the agent, as evidence.
//!
//! A report comes from this process's own PMIx and is unconfirmed. Only reports about ranks on this process's node,
//! as the launcher maps them, are passed on: the ranks of other nodes pass on their own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::AgentLink;
use muster_pmix::{Error, Job, Session};

/// Most reports that wait to be passed on. A job that ends its ranks by the thousand loses little by a dropped one.
const REPORTS_MAX: usize = 1024;

/// The reports. They are shared with libpmix's thread, which waits for none of the other locks of this module.
#[derive(Default)]
pub(super) struct LauncherReports {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Each report's rank, and whether the agent still has to be told.
    reports: Mutex<VecDeque<(u32, bool)>>,
    /// Number of ranks of the job, as the launcher states it.
    job_size: AtomicU32,
    counts: Arc<Counts>,
}

/// Counters of reports, which are read without a lock.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Reports that were received.
    pub(super) heard: AtomicU64,
    /// Reports that were dropped because the queue was full.
    pub(super) dropped: AtomicU64,
}

impl LauncherReports {
    /// Registers for the launcher's events.
    pub(super) fn listen(
        &self,
        session: &Session,
        job: &Job,
        link: AgentLink,
    ) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let nodes = job.node_of_rank.clone();
        let own = session.rank();
        // A job has at most as many ranks as fit into a rank's number.
        let job_size = nodes.len() as u32;
        self.shared.job_size.store(job_size, Ordering::Relaxed);
        session.listen(Box::new(move |rank| {
            let node = |rank: u32| nodes.get(rank as usize);
            let is_here = node(rank).is_some() && node(rank) == node(own);
            if rank != own {
                let unsent = is_here && !link.send_aborted(rank, 0, job_size);
                shared.push(rank, unsent);
                if unsent {
                    link.wake();
                }
            }
        }))
    }

    /// Returns the ranks of all reports. Sends those that the agent has not been told yet; keeps those that
    /// cannot be sent.
    pub(super) fn take(&self, link: Option<&AgentLink>) -> Vec<u32> {
        let job_size = self.shared.job_size.load(Ordering::Relaxed);
        let mut reports = self.shared.reports();
        let mut ranks = Vec::with_capacity(reports.len());
        reports.retain(|(rank, unsent)| {
            ranks.push(*rank);
            *unsent && !link.is_some_and(|link| link.send_aborted(*rank, 0, job_size))
        });
        ranks
    }

    /// Whether reports wait.
    pub(super) fn waits(&self) -> bool {
        !self.shared.reports().is_empty()
    }

    /// Returns the counters, which their reader shares.
    pub(super) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.shared.counts)
    }
}

impl Shared {
    fn reports(&self) -> MutexGuard<'_, VecDeque<(u32, bool)>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, rank: u32, unsent: bool) {
        self.counts.heard.fetch_add(1, Ordering::Relaxed);
        let mut reports = self.reports();
        if reports.len() < REPORTS_MAX {
            reports.push_back((rank, unsent));
        } else {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report that could not be sent to the agent stays; all others are taken once. A full queue drops and
    /// counts.
    #[test]
    fn unsent_reports_wait_for_an_agent() {
        let launcher_reports = LauncherReports::default();
        launcher_reports.shared.push(3, false);
        launcher_reports.shared.push(4, true);
        assert_eq!(launcher_reports.take(None), [3, 4]);
        assert_eq!(launcher_reports.take(None), [4]);
        for rank in 0..REPORTS_MAX as u32 {
            launcher_reports.shared.push(rank, true);
        }
        assert!(launcher_reports.waits());
        let counts = launcher_reports.counts();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(count(&counts.heard), REPORTS_MAX as u64 + 2);
        assert_eq!(count(&counts.dropped), 1);
    }
}
