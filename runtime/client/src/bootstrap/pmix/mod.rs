//! The porch: a rank of the job brings its agent together with the others, through MPI's PMIx.
//!
//! Picture a village where every house has one spokesman. He nails his house's address to the
//! village board (`PMIx_Put`), reads those of the others when they appear, and hands them in at
//! his own door; the spokesman of the first house also nails up the key. Nobody waits for
//! everybody (no fence), and nobody is asked before the village exists (MPI_Init).
//!
//! The spokesman of a node is its lowest rank. The other ranks use the porch for one thing only:
//! what is said in their own PMIx of the state of ranks: by us ([`notifier`]), by the launcher ([`launcher_reports`]).
//!
//! What it is not: it does not wait, anywhere, and it is not woken by PMIx: it says when it wants
//! to look again, at first every few milliseconds, and never once all questions are answered.
//!
//! An address that is asked for before it is there is asked for again, with growing pauses: a
//! PRRTE server looks again only every two seconds, but answers "not found" at once if told to
//! refresh.

mod launcher_reports;
mod notifier;
mod publisher;

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{AgentLink, PmixHooks};
use muster_pmix::{Error, Pmix};
use muster_shm::{Event, TableView};
use muster_sys::clock;

use launcher_reports::LauncherReports;
use notifier::EventNotifier;
use publisher::PmixSession;

/// How often to look whether MPI has come up, in a process that a PMIx launcher started: at first,
/// and at last.
const LOOK_FIRST_US: u64 = 5_000;
const LOOK_MOST_US: u64 = 1_000_000;
/// How long calls of the application may be of no use while MPI has not come up.
const KNOCK_MOST_US: u64 = 50_000;

/// A process that a PMIx launcher started and that has no libpmix after this long has an MPI that
/// brings none: nobody else will tell the agent where the others are.
const LIBPMIX_PATIENCE_US: u64 = 30_000_000;

/// The porch of a process whose launcher may speak PMIx. Give it to the client's options.
pub struct PmixIntegration {
    state: Mutex<State>,
    /// Read by threads that may not wait for the state: one of libpmix's may be waited for by its holder.
    said: Arc<notifier::Counts>,
    heard: Arc<launcher_reports::Counts>,
    /// Up to this time on the monotonic clock a call of the application is of no use.
    quiet_until_us: AtomicU64,
    /// The application asked late for deaths to be told to MPI, which was not seen to yet.
    feed_wanted: AtomicBool,
}

struct State {
    launched_by_pmix: bool,
    notifier: EventNotifier,
    launcher_reports: LauncherReports,
    /// The board that the last events were about.
    table: Option<TableView>,
    link: Option<AgentLink>,
    pmix_session: Option<PmixSession>,
    /// The job data cannot be read, or this process has left: nothing is tried any more.
    done: bool,
    /// When to wake for the next look, on the monotonic clock; `None` for only when called.
    next_us: Option<u64>,
    /// Calls before this time do nothing.
    not_before_us: u64,
    look_us: u64,
    /// When libpmix was looked for first; `None` again once its absence was complained about.
    looking_since_us: Option<u64>,
}
impl PmixIntegration {
    /// A porch that has looked at nothing yet. `feed_mpi` says whether confirmed deaths are told
    /// to this process's MPI, which cannot take them back.
    pub fn new(feed_mpi: bool) -> Self {
        let say_words = std::env::var_os("MUSTER_PMIX_EVENTS").is_none_or(|value| value != "0");
        let state = State::new(launched_by_pmix(), feed_mpi, say_words);
        Self {
            said: state.notifier.counts(),
            heard: state.launcher_reports.counts(),
            state: Mutex::new(state),
            quiet_until_us: AtomicU64::new(0),
            feed_wanted: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this process has a PMIx server to talk to.
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
        // Whoever is in there does what there is to do; an application is not kept waiting.
        if let Ok(mut state) = self.state.try_lock() {
            if self.feed_wanted.swap(false, Ordering::AcqRel) {
                state.feed_mpi();
            }
            state.advance(clock::monotonic_ns() / 1000);
            self.quiet_until_us
                .store(state.quiet_until_us(), Ordering::Relaxed);
        }
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
            ("pmix_notified", count(&self.said.notified)),
            ("pmix_refused", count(&self.said.refused)),
            ("pmix_heard", count(&self.heard.heard)),
            ("pmix_heard_dropped", count(&self.heard.dropped)),
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
    fn new(launched_by_pmix: bool, feed_mpi: bool, say_words: bool) -> Self {
        Self {
            launched_by_pmix,
            notifier: EventNotifier::new(feed_mpi, say_words),
            launcher_reports: LauncherReports::default(),
            table: None,
            link: None,
            pmix_session: None,
            done: false,
            next_us: None,
            not_before_us: 0,
            look_us: LOOK_FIRST_US,
            looking_since_us: Some(u64::MAX),
        }
    }

    /// Has MPI told of deaths, late.
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
            complain_of_numbers(ours, in_mpi);
        }
    }

    /// Says what there is to say, if MPI is up; before that it is kept.
    fn notify_process(&mut self) {
        let Some(pmix_session) = &self.pmix_session else {
            return;
        };
        // MPI is told of them all the same, by the board: not every word of the launcher's means a death
        // to it, and to hear of one twice is no harm.
        let _ = self.launcher_reports.take(self.link.as_ref());
        let is_busy = (self.notifier).notify_process(
            &pmix_session.session,
            &pmix_session.job,
            self.table.as_ref(),
        );
        // Another agent is told at once when it has let us in.
        let has_agent = self.link.as_ref().is_some_and(AgentLink::is_connected);
        if is_busy || (has_agent && self.launcher_reports.waits()) {
            let soon_us = clock::monotonic_ns() / 1000 + LOOK_FIRST_US;
            self.next_us = Some(self.next_us.map_or(soon_us, |next_us| next_us.min(soon_us)));
            self.not_before_us = self.not_before_us.min(soon_us);
        }
    }

    /// A call of the application is of use only until MPI's PMIx is found: then the porch wakes itself.
    fn quiet_until_us(&self) -> u64 {
        match self.done || self.pmix_session.is_some() {
            true => u64::MAX,
            // A program that asks for events all the time must not keep the library thread awake.
            false => self.not_before_us + self.look_us.min(KNOCK_MOST_US),
        }
    }

    /// Does what can be done now: takes a reference to PMIx if MPI has come up, publishes, asks,
    /// hands on what came; and says when it wants to be called again.
    fn advance(&mut self, now_us: u64) {
        if self.done || now_us < self.not_before_us {
            self.next_us = self.next_us.filter(|_| !self.done);
            return;
        }
        let Some(link) = self.link.clone() else {
            return;
        };
        if self.pmix_session.is_none() && !self.enter() {
            // A process that no PMIx launcher started is not woken for this.
            self.next_us = self
                .launched_by_pmix
                .then(|| now_us.saturating_add(self.look_us));
            self.not_before_us = now_us.saturating_add(LOOK_FIRST_US);
            self.look_us = (self.look_us * 2).min(LOOK_MOST_US);
            self.complain_if_missing(now_us);
            return;
        }
        let Some(pmix_session) = &mut self.pmix_session else {
            return;
        };
        self.next_us = if pmix_session.speaks() {
            pmix_session.speak(now_us, &link)
        } else {
            None
        };
        self.not_before_us = self.next_us.unwrap_or(now_us);
        self.notify_process();
    }

    /// Becomes a guest of MPI's PMIx, if that is there. `false`: not yet, or never (`done`).
    fn enter(&mut self) -> bool {
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
                // Where it is refused the kernels and the agents are left, as with most launchers.
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

    /// Whether this process has one number in Muster's job and in MPI's. One that was spawned and joined
    /// its parents' job has not: who failed there is somebody else here, so neither tells the other.
    fn is_numbered_alike(&mut self, in_mpi: u32) -> bool {
        let ours = self.link.as_ref().and_then(AgentLink::rank);
        let Some(ours) = ours.filter(|ours| *ours != in_mpi) else {
            return true;
        };
        if self.notifier.fall_silent() {
            complain_of_numbers(ours, in_mpi);
        }
        false
    }

    fn give_up(&mut self, error: &Error) -> bool {
        self.done = true;
        print_cli_error(&format!(
            "PMIx does not tell this process about its job ({error})"
        ));
        false
    }

    /// Says once that an MPI without libpmix leaves the agent alone.
    fn complain_if_missing(&mut self, now_us: u64) {
        let Some(since_us) = self.looking_since_us else {
            return;
        };
        let since_us = since_us.min(now_us);
        self.looking_since_us = Some(since_us);
        if self.launched_by_pmix && now_us - since_us > LIBPMIX_PATIENCE_US {
            self.looking_since_us = None;
            if Pmix::find().is_none() {
                print_cli_error(
                    "a PMIx launcher started this process, but no libpmix is loaded in it",
                );
            }
        }
    }
}

/// MPI was to be told of failures, and numbers its ranks otherwise.
fn complain_of_numbers(ours: u32, in_mpi: u32) {
    // At once, since others may say the same. Nobody may be reading, which must not end the library thread.
    let line = format!(
        "muster: this process is rank {ours} of its job (MUSTER_RANK) and rank {in_mpi} to MPI: \
         MPI is not told of failures; unset MUSTER_RANK, and MUSTER_JOB if the job is not MPI's\n"
    );
    let _ = io::stderr().write_all(line.as_bytes());
}

/// The one thing that a library may say on standard error: the job is split into single nodes.
fn print_cli_error(why: &str) {
    // At once, since others may say the same. Nobody may be reading, which must not end the library thread.
    let line = format!(
        "muster: {why}: the agents of the other nodes will not be found; use an MPI with a shared \
         libpmix, or set MUSTER_SEEDS and MUSTER_KEY_FILE\n"
    );
    let _ = io::stderr().write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without MPI there is no PMIx: nothing happens, nothing is given up, nobody is told.
    #[test]
    fn before_mpi_the_porch_waits() {
        let mut state = State::new(true, true, true);
        state.notify_process();
        assert!(!state.enter() && !state.done);
    }

    /// The complaint comes once, and not before its time.
    #[test]
    fn a_missing_libpmix_is_complained_about_once() {
        let mut state = State::new(true, false, true);
        state.complain_if_missing(5);
        assert_eq!(state.looking_since_us, Some(5));
        state.complain_if_missing(LIBPMIX_PATIENCE_US);
        assert_eq!(state.looking_since_us, Some(5));
        state.complain_if_missing(LIBPMIX_PATIENCE_US + 6);
        assert_eq!(state.looking_since_us, None);
    }
}
