//! PMIx integration: a rank of the job connects its node's agent with the others, through MPI's PMIx.
//!
//! The lowest rank of each node is the node's bootstrap publisher ([`publisher`]). It publishes its agent's rails
//! (`PMIx_Put`), requests those of the other publishers and hands them to its own agent. Rank 0 publishes the job's
//! key as well. There is no fence: no publisher waits for all others. Nothing is requested before MPI_Init has set
//! up PMIx.
//!
//! The other ranks use this module only for events about the state of ranks in their own PMIx: those that Muster
//! raises ([`notifier`]) and those that the launcher raises ([`launcher_reports`]).
//!
//! This module never blocks, and PMIx does not wake it. It states when it wants to be called again: first after a
//! few milliseconds, with growing pauses, and never once all requests are answered.
//!
//! An address that is requested before it is published is requested again, with growing pauses. A PRRTE server
//! would look again only every two seconds by itself, but answers "not found" at once if it is told to refresh.

mod launcher_reports;
mod notifier;
mod publisher;

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::one_zone::refuse_too_many;
use crate::{AgentLink, Error as ClientError, PmixHooks};
use muster_pmix::{Error, Pmix};
use muster_shm::{Event, TableView};
use muster_sys::clock;

use launcher_reports::LauncherReports;
use notifier::EventNotifier;
use publisher::PmixSession;

/// First and longest interval between two checks whether MPI has started PMIx, in a process that a PMIx launcher
/// started.
const CHECK_FIRST_US: u64 = 5_000;
const CHECK_MAX_US: u64 = 1_000_000;
/// How long calls of the application are ignored at most while MPI has not started PMIx.
const IGNORE_CALLS_MAX_US: u64 = 50_000;

/// After this long without a libpmix, a process that a PMIx launcher started has an MPI that brings none. Then
/// nothing tells the agent the addresses of the others.
const LIBPMIX_TIMEOUT_US: u64 = 30_000_000;

/// The PMIx integration of a process whose launcher may speak PMIx. It is passed in the client's options.
pub struct PmixIntegration {
    state: Mutex<State>,
    /// Counters, outside the mutex: a thread of libpmix reads them, and the holder of the mutex may wait for
    /// that thread.
    notifier_counts: Arc<notifier::Counts>,
    report_counts: Arc<launcher_reports::Counts>,
    /// Up to this time on the monotonic clock a call of the application has nothing to do.
    quiet_until_us: AtomicU64,
    /// Set when the application has turned on feeding MPI after the start; cleared when that is done.
    feed_wanted: AtomicBool,
}

struct State {
    launched_by_pmix: bool,
    notifier: EventNotifier,
    launcher_reports: LauncherReports,
    /// The state table of the last events.
    table: Option<TableView>,
    link: Option<AgentLink>,
    pmix_session: Option<PmixSession>,
    /// Nothing is tried any more: the job data cannot be read, the job is refused, or this process has detached.
    done: bool,
    /// The job's nodes, and the most that are supported, where they are too many for one zone.
    refused: Option<(usize, usize)>,
    /// Time of the next wake-up on the monotonic clock; `None`: only when called.
    next_us: Option<u64>,
    /// Calls before this time do nothing.
    not_before_us: u64,
    check_us: u64,
    /// When libpmix was first looked for; `None` once the warning about its absence is written.
    missing_since_us: Option<u64>,
}
impl PmixIntegration {
    /// Creates the integration; it looks at nothing yet. `feed_mpi`: report confirmed failures to this
    /// process's MPI, which cannot take them back.
    pub fn new(feed_mpi: bool) -> Self {
        let notify_states = std::env::var_os("MUSTER_PMIX_EVENTS").is_none_or(|value| value != "0");
        let state = State::new(launched_by_pmix(), feed_mpi, notify_states);
        Self {
            notifier_counts: state.notifier.counts(),
            report_counts: state.launcher_reports.counts(),
            state: Mutex::new(state),
            quiet_until_us: AtomicU64::new(0),
            feed_wanted: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this process has a PMIx server to connect to.
pub(super) fn launched_by_pmix() -> bool {
    std::env::var_os("PMIX_NAMESPACE").is_some()
}

impl PmixHooks for PmixIntegration {
    fn on_attached(&self, link: &AgentLink) {
        let mut state = self.state();
        state.link = Some(link.clone());
        if let Some(pmix_session) = &mut state.pmix_session {
            pmix_session.told_agent = 0;
        }
        state.next_us = Some(0);
        state.not_before_us = 0;
    }

    fn on_events(&self, events: &[Event], table: &TableView) {
        let mut state = self.state();
        for event in events {
            state.notifier.note(event, table);
        }
        state.table = Some(table.clone());
        state.notify_process();
    }

    fn on_call(&self) {
        // A thread that holds the lock does the same work; the application's thread does not wait for it.
        if let Ok(mut state) = self.state.try_lock() {
            if self.feed_wanted.swap(false, Ordering::AcqRel) {
                state.feed_mpi();
            }
            state.advance(clock::monotonic_ns() / 1000);
            self.quiet_until_us
                .store(state.quiet_until_us(), Ordering::Relaxed);
        }
    }

    fn refusal(&self) -> Option<ClientError> {
        let refused = self.state().refused;
        refused.map(|(nodes, most)| ClientError::OneZone { nodes, most })
    }

    fn wants_call(&self) -> bool {
        let quiet_until_us = self.quiet_until_us.load(Ordering::Relaxed);
        quiet_until_us != u64::MAX && clock::monotonic_ns() / 1000 >= quiet_until_us
    }

    fn can_feed_mpi(&self) -> bool {
        true
    }

    fn feed_mpi(&self) {
        self.feed_wanted.store(true, Ordering::Release);
    }

    fn next_wake(&self) -> Option<Duration> {
        let next_us = self.state().next_us?;
        let now_us = clock::monotonic_ns() / 1000;
        Some(Duration::from_micros(next_us.saturating_sub(now_us)))
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        vec![
            ("pmix_notified", count(&self.notifier_counts.notified)),
            ("pmix_refused", count(&self.notifier_counts.refused)),
            ("pmix_heard", count(&self.report_counts.heard)),
            ("pmix_heard_dropped", count(&self.report_counts.dropped)),
        ]
    }

    fn before_detach(&self) {
        let mut state = self.state();
        state.pmix_session = None;
        state.link = None;
        state.table = None;
        state.next_us = None;
        state.done = true;
    }
}

impl State {
    fn new(launched_by_pmix: bool, feed_mpi: bool, notify_states: bool) -> Self {
        Self {
            launched_by_pmix,
            notifier: EventNotifier::new(feed_mpi, notify_states),
            launcher_reports: LauncherReports::default(),
            table: None,
            link: None,
            pmix_session: None,
            done: false,
            refused: None,
            next_us: None,
            not_before_us: 0,
            check_us: CHECK_FIRST_US,
            missing_since_us: Some(u64::MAX),
        }
    }

    /// Turns on the reporting of failures to MPI after the start.
    fn feed_mpi(&mut self) {
        if self.notifier.feed_mpi(self.table.as_ref()) {
            self.notify_process();
            return;
        }
        let link = self.link.as_ref().and_then(AgentLink::rank);
        let in_mpi = self
            .pmix_session
            .as_ref()
            .map(|pmix_session| pmix_session.session.rank());
        if let (Some(ours), Some(in_mpi)) = (link, in_mpi) {
            warn_of_rank_mismatch(ours, in_mpi);
        }
    }

    /// Raises the pending events if MPI's PMIx is up; until then they are kept.
    fn notify_process(&mut self) {
        let Some(pmix_session) = &self.pmix_session else {
            return;
        };
        // MPI learns of these deaths from the state table as well: MPI does not take every event of the
        // launcher for a death, and a second report of one death does no harm.
        let _ = self.launcher_reports.take(self.link.as_ref());
        let is_busy = (self.notifier).notify_process(
            &pmix_session.session,
            &pmix_session.job,
            self.table.as_ref(),
        );
        // The reports that wait are sent to a new agent as soon as this process has attached to it.
        let has_agent = self.link.as_ref().is_some_and(AgentLink::is_connected);
        if is_busy || (has_agent && self.launcher_reports.waits()) {
            let soon_us = clock::monotonic_ns() / 1000 + CHECK_FIRST_US;
            self.next_us = Some(self.next_us.map_or(soon_us, |next_us| next_us.min(soon_us)));
            self.not_before_us = self.not_before_us.min(soon_us);
        }
    }

    /// A call of the application is needed only until MPI's PMIx is found; after that this module has its own
    /// wake-ups.
    fn quiet_until_us(&self) -> u64 {
        match self.done || self.pmix_session.is_some() {
            true => u64::MAX,
            // A program that polls for events must not keep the library thread awake.
            false => self.not_before_us + self.check_us.min(IGNORE_CALLS_MAX_US),
        }
    }

    /// Does what is due: takes a reference to PMIx if MPI has started it, publishes, sends requests, and hands
    /// answers to the agent. Sets the time of the next call.
    fn advance(&mut self, now_us: u64) {
        if self.done || now_us < self.not_before_us {
            self.next_us = self.next_us.filter(|_| !self.done);
            return;
        }
        let Some(link) = self.link.clone() else {
            return;
        };
        if self.pmix_session.is_none() && !self.open_session() {
            // A process that no PMIx launcher started does not wake for this.
            self.next_us = self
                .launched_by_pmix
                .then(|| now_us.saturating_add(self.check_us));
            self.not_before_us = now_us.saturating_add(CHECK_FIRST_US);
            self.check_us = (self.check_us * 2).min(CHECK_MAX_US);
            self.warn_if_missing(now_us);
            return;
        }
        let Some(pmix_session) = &mut self.pmix_session else {
            return;
        };
        self.next_us = if pmix_session.is_publisher() {
            pmix_session.run(now_us, &link)
        } else {
            None
        };
        self.not_before_us = self.next_us.unwrap_or(now_us);
        self.notify_process();
    }

    /// Opens a PMIx session if MPI's PMIx is up. `false`: not yet, or never (`done`).
    fn open_session(&mut self) -> bool {
        let Some(pmix) = Pmix::find().filter(Pmix::initialized) else {
            return false;
        };
        let session = match pmix.hold() {
            Ok(session) => session,
            Err(Error::NotInitialized | Error::Held) => return false,
            Err(error) => return self.give_up(&error),
        };
        match session.job() {
            Ok(job) => {
                if self.is_too_large(job.nodes.len(), session.rank()) {
                    return false;
                }
                // If the registration is refused, the kernel and the agents still detect failures,
                // as with most launchers.
                let is_alike = self.is_numbered_alike(session.rank());
                let link = self.link.clone().filter(|_| is_alike);
                let _ = link.map(|link| self.launcher_reports.listen(&session, &job, link));
                self.pmix_session = Some(PmixSession::new(session, job, is_alike));
            }
            Err(Error::NotInitialized) => return false,
            Err(error) => return self.give_up(&error),
        }
        true
    }

    /// Whether this process has the same rank number in Muster's job and in MPI's. A spawned process that
    /// joined its parents' job has not; the same number then names different processes, so neither side is told
    /// of the other's failures.
    fn is_numbered_alike(&mut self, in_mpi: u32) -> bool {
        let ours = self.link.as_ref().and_then(AgentLink::rank);
        let Some(ours) = ours.filter(|ours| *ours != in_mpi) else {
            return true;
        };
        if self.notifier.disable() {
            warn_of_rank_mismatch(ours, in_mpi);
        }
        false
    }

    /// Whether the job has too many nodes for one zone. Then the agents get no addresses: those that they do not
    /// know would be sent whole views for ever.
    fn is_too_large(&mut self, nodes: usize, rank: u32) -> bool {
        let refused = self
            .table
            .as_ref()
            .map(|table| refuse_too_many(nodes, table));
        let Some(Err(error)) = refused else {
            return false;
        };
        // One line for all ranks.
        if rank == 0 {
            let _ = io::stderr().write_all(format!("muster: {error}\n").as_bytes());
        }
        if let ClientError::OneZone { nodes, most } = error {
            self.refused = Some((nodes, most));
        }
        self.done = true;
        true
    }

    fn give_up(&mut self, error: &Error) -> bool {
        self.done = true;
        warn(&format!("PMIx gives this process no job data ({error})"));
        false
    }

    /// Warns once that an MPI without libpmix leaves the agent without addresses.
    fn warn_if_missing(&mut self, now_us: u64) {
        let Some(since_us) = self.missing_since_us else {
            return;
        };
        let since_us = since_us.min(now_us);
        self.missing_since_us = Some(since_us);
        if self.launched_by_pmix && now_us - since_us > LIBPMIX_TIMEOUT_US {
            self.missing_since_us = None;
            if Pmix::find().is_none() {
                warn("a PMIx launcher started this process, but no libpmix is loaded in it");
            }
        }
    }
}

/// Warns that MPI was to be told of failures but numbers its ranks differently.
fn warn_of_rank_mismatch(ours: u32, in_mpi: u32) {
    // In one write, since other ranks may print the same. A closed stderr must not end the library thread.
    let line = format!(
        "muster: this process is rank {ours} of its job (MUSTER_RANK) and rank {in_mpi} to MPI: \
         MPI is not told of failures; unset MUSTER_RANK, and MUSTER_JOB if the job is not MPI's\n"
    );
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Prints to standard error that the job is split into single nodes.
fn warn(why: &str) {
    // In one write, since other ranks may print the same. A closed stderr must not end the library thread.
    let line = format!(
        "muster: {why}: the agents of the other nodes will not be found; use an MPI with a shared \
         libpmix, or set MUSTER_SEEDS and MUSTER_KEY_FILE\n"
    );
    let _ = io::stderr().write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shm::{TableLimits, TableWriter};

    /// Without MPI there is no PMIx: nothing is raised and nothing is given up.
    #[test]
    fn nothing_happens_before_mpi_has_started() {
        let mut state = State::new(true, true, true);
        state.notify_process();
        assert!(!state.open_session() && !state.done);
    }

    /// A job that one zone cannot hold is refused for good: the agents get no addresses.
    #[test]
    fn a_job_that_is_too_large_for_one_zone_is_refused() {
        let writer = TableWriter::create(TableLimits::default()).expect("a state table");
        let integration = PmixIntegration::new(false);
        integration.state().table = Some(writer.view());
        assert!(!integration.state().is_too_large(4096, 1) && integration.refusal().is_none());
        assert!(integration.state().is_too_large(4097, 1) && integration.state().done);
        let refusal = integration.refusal().expect("a refusal").to_string();
        assert!(refusal.contains("4097 nodes"), "{refusal}");
    }

    /// The warning is written once, after the time-out.
    #[test]
    fn a_missing_libpmix_is_warned_about_once() {
        let mut state = State::new(true, false, true);
        state.warn_if_missing(5);
        assert_eq!(state.missing_since_us, Some(5));
        state.warn_if_missing(LIBPMIX_TIMEOUT_US);
        assert_eq!(state.missing_since_us, Some(5));
        state.warn_if_missing(LIBPMIX_TIMEOUT_US + 6);
        assert_eq!(state.missing_since_us, None);
    }
}
