//! What the launcher says of ranks that ended badly: to the agent, as evidence.
//!
//! It is a rumour from this process's own PMIx, of a rank that runs on this process's node as the launcher
//! sees it: of ranks elsewhere their own nodes speak.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::AgentLink;
use muster_pmix::{Error, Job, Session};

/// Words that wait to be passed on; a job that ends its ranks by the thousand says little by each.
const WORDS_MAX: usize = 1024;

/// What was heard, shared with libpmix's thread, which waits for none of our other locks.
#[derive(Default)]
pub(super) struct LauncherReports {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Ranks, and whether the agent is still to be told.
    words: Mutex<VecDeque<(u32, bool)>>,
    /// How many ranks the job has as the launcher says it.
    job_size: AtomicU32,
    counts: Arc<Counts>,
}

/// What was heard, counted: to be read without waiting for who hears.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Words that were heard.
    pub(super) heard: AtomicU64,
    /// Words that found no room.
    pub(super) dropped: AtomicU64,
}

impl LauncherReports {
    /// Listens to the launcher from now on.
    pub(super) fn listen(
        &self,
        session: &Session,
        job: &Job,
        link: AgentLink,
    ) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let nodes = job.node_of_rank.clone();
        let own = session.rank();
        // A job has fewer ranks than fit a rank's number.
        let job_size = nodes.len() as u32;
        self.shared.job_size.store(job_size, Ordering::Relaxed);
        session.listen(Box::new(move |rank| {
            let node = |rank: u32| nodes.get(rank as usize);
            let is_here = node(rank).is_some() && node(rank) == node(own);
            if rank != own {
                let untold = is_here && !link.send_aborted(rank, 0, job_size);
                shared.hear(rank, untold);
                if untold {
                    link.wake();
                }
            }
        }))
    }

    /// The ranks of which was heard. What the agent was not told is told now, if it can be.
    pub(super) fn take(&self, link: Option<&AgentLink>) -> Vec<u32> {
        let job_size = self.shared.job_size.load(Ordering::Relaxed);
        let mut words = self.shared.words();
        let mut ranks = Vec::with_capacity(words.len());
        words.retain(|(rank, untold)| {
            ranks.push(*rank);
            *untold && !link.is_some_and(|link| link.send_aborted(*rank, 0, job_size))
        });
        ranks
    }

    /// Whether the agent is still to be told something.
    pub(super) fn waits(&self) -> bool {
        !self.shared.words().is_empty()
    }

    /// What counts, shared with whoever reads the counts.
    pub(super) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.shared.counts)
    }
}

impl Shared {
    fn words(&self) -> MutexGuard<'_, VecDeque<(u32, bool)>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, rank: u32, untold: bool) {
        self.counts.heard.fetch_add(1, Ordering::Relaxed);
        let mut words = self.words();
        if words.len() < WORDS_MAX {
            words.push_back((rank, untold));
        } else {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the agent could not be told stays until it can; all else is taken once. A full list drops and
    /// counts.
    #[test]
    fn words_wait_for_an_agent_and_no_longer() {
        let launcher_reports = LauncherReports::default();
        launcher_reports.shared.hear(3, false);
        launcher_reports.shared.hear(4, true);
        assert_eq!(launcher_reports.take(None), [3, 4]);
        assert_eq!(launcher_reports.take(None), [4]);
        for rank in 0..WORDS_MAX as u32 {
            launcher_reports.shared.hear(rank, true);
        }
        assert!(launcher_reports.waits());
        let counts = launcher_reports.counts();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(count(&counts.heard), WORDS_MAX as u64 + 2);
        assert_eq!(count(&counts.dropped), 1);
    }
}
