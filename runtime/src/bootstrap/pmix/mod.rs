//! The porch: a rank of the job brings its agent together with the others, through MPI's PMIx.
//!
//! Picture a village where every house has one spokesman. He nails his house's address to the
//! village board (`PMIx_Put`), reads those of the others when they appear, and hands them in at
//! his own door; the spokesman of the first house also nails up the key. Nobody waits for
//! everybody (no fence), and nobody is asked before the village exists (MPI_Init).
//!
//! The spokesman of a node is its lowest rank. The other ranks use the porch for one thing only:
//! telling their own MPI of deaths, where the application asked for it.
//!
//! What it is not: it does not wait, anywhere, and it is not woken by PMIx: it says when it wants
//! to look again, at first every few milliseconds, and never once all questions are answered.
//!
//! An address that is asked for before it is there is asked for again, with growing pauses: a
//! PRRTE server looks again only every two seconds, but answers "not found" at once if told to
//! refresh.

mod spokesman;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::board::{BoardView, Cause, Event, EventKind, NO_RANK, RankState};
use crate::client::{AgentLink, Porch};
use crate::pmix::{Error, Pmix};
use crate::sys::clock;

use spokesman::Guest;

/// How often to look whether MPI has come up, in a process that a PMIx launcher started: at first,
/// and at last.
const LOOK_FIRST_US: u64 = 5_000;
const LOOK_MOST_US: u64 = 1_000_000;

/// A process that a PMIx launcher started and that has no libpmix after this long has an MPI that
/// brings none: nobody else will tell the agent where the others are.
const LIBPMIX_PATIENCE_US: u64 = 30_000_000;

/// The porch of a process whose launcher may speak PMIx. Give it to the client's options.
pub struct PmixPorch {
    state: Mutex<State>,
}

struct State {
    launched_by_pmix: bool,
    feed_mpi: bool,
    link: Option<AgentLink>,
    guest: Option<Guest>,
    /// The job data cannot be read, or this process has left: nothing is tried any more.
    done: bool,
    /// When to wake for the next look, on the monotonic clock; `None` for only when called.
    next_us: Option<u64>,
    /// Calls before this time do nothing.
    not_before_us: u64,
    look_us: u64,
    /// When libpmix was looked for first; `None` again once its absence was complained about.
    looking_since_us: Option<u64>,
    /// Ranks that MPI was told of, or shall be once it is up.
    told: BTreeSet<u32>,
    pending: Vec<u32>,
}
impl PmixPorch {
    /// A porch that has looked at nothing yet. `feed_mpi` says whether confirmed deaths are told
    /// to this process's MPI, which cannot take them back.
    pub fn new(feed_mpi: bool) -> Self {
        let launched_by_pmix = std::env::var_os("PMIX_NAMESPACE").is_some();
        Self {
            state: Mutex::new(State::new(launched_by_pmix, feed_mpi)),
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

impl Porch for PmixPorch {
    fn on_attached(&self, link: &AgentLink) {
        let mut state = self.state();
        state.link = Some(link.clone());
        if let Some(guest) = &mut state.guest {
            guest.told_agent = 0;
        }
        state.next_us = Some(0);
        state.not_before_us = 0;
    }

    fn on_events(&self, events: &[Event], board: &BoardView) {
        let mut state = self.state();
        if !state.feed_mpi {
            return;
        }
        for event in events {
            state.take_note(event, board);
        }
        state.feed();
    }

    fn on_call(&self) {
        // Whoever is in there does what there is to do; an application is not kept waiting.
        if let Ok(mut state) = self.state.try_lock() {
            state.advance(clock::monotonic_ns() / 1000);
        }
    }

    fn next_wake(&self) -> Option<Duration> {
        let next_us = self.state().next_us?;
        let now_us = clock::monotonic_ns() / 1000;
        Some(Duration::from_micros(next_us.saturating_sub(now_us)))
    }

    fn before_detach(&self) {
        let mut state = self.state();
        state.guest = None;
        state.link = None;
        state.next_us = None;
        state.done = true;
    }
}

impl State {
    fn new(launched_by_pmix: bool, feed_mpi: bool) -> Self {
        Self {
            launched_by_pmix,
            feed_mpi,
            link: None,
            guest: None,
            done: false,
            next_us: None,
            not_before_us: 0,
            look_us: LOOK_FIRST_US,
            looking_since_us: Some(u64::MAX),
            told: BTreeSet::new(),
            pending: Vec::new(),
        }
    }

    /// Notes the ranks that an event declares dead, each once.
    fn take_note(&mut self, event: &Event, board: &BoardView) {
        match event.kind {
            EventKind::RankFailed if event.rank != NO_RANK => self.condemn(event.rank),
            // An agent came back with a new incarnation before it was missed: its predecessor is
            // dead, the ranks of the node are not.
            EventKind::NodeFailed if event.cause == Cause::Joined => {}
            EventKind::NodeFailed => {
                let name = board.node_name(event.node);
                let ours = (0..board.rank_count())
                    .filter(|rank| board.rank_node(*rank) == Some(event.node));
                let mut ranks: Vec<u32> = ours.collect();
                // Ranks that never attached are known to the launcher alone.
                if let (Some(guest), Some(name)) = (&self.guest, name) {
                    ranks.extend(guest.job.ranks_on(&name));
                }
                ranks.into_iter().for_each(|rank| self.condemn(rank));
            }
            // What was missed is in the states.
            EventKind::Overflow => (0..board.rank_count())
                .filter(|rank| board.rank_state(*rank) == RankState::Failed)
                .for_each(|rank| self.condemn(rank)),
            _ => {}
        }
    }

    fn condemn(&mut self, rank: u32) {
        if self.told.insert(rank) {
            self.pending.push(rank);
        }
    }

    /// Tells MPI of the dead, if it is up; before that they are kept.
    fn feed(&mut self) {
        let Some(guest) = &self.guest else { return };
        let own = guest.session.rank();
        for rank in self
            .pending
            .drain(..)
            .filter(|rank| *rank != own && *rank < guest.job.size)
        {
            // A refusal (MPI has finalized) leaves nobody to be told.
            let _ = guest.session.notify_failed(rank);
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
        if self.guest.is_none() && !self.enter() {
            // A process that no PMIx launcher started is not woken for this.
            self.next_us = self
                .launched_by_pmix
                .then(|| now_us.saturating_add(self.look_us));
            self.not_before_us = now_us.saturating_add(LOOK_FIRST_US);
            self.look_us = (self.look_us * 2).min(LOOK_MOST_US);
            self.complain_if_missing(now_us);
            return;
        }
        self.feed();
        let Some(guest) = &mut self.guest else { return };
        self.next_us = if guest.speaks() {
            guest.speak(now_us, &link)
        } else {
            None
        };
        self.not_before_us = self.next_us.unwrap_or(now_us);
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
            Ok(job) => self.guest = Some(Guest::new(session, job)),
            Err(error) => return self.give_up(&error),
        }
        true
    }

    fn give_up(&mut self, error: &Error) -> bool {
        self.done = true;
        complain(&format!(
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
                complain("a PMIx launcher started this process, but no libpmix is loaded in it");
            }
        }
    }
}

/// The one thing that a library may say on standard error: the job is split into single nodes.
fn complain(why: &str) {
    // Nobody may be reading, which must not end the library thread.
    let _ = writeln!(
        io::stderr(),
        "muster: {why}: the agents of the other nodes will not be found; use an MPI with a shared \
         libpmix, or set MUSTER_SEEDS and MUSTER_KEY_FILE"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::{BoardLimits, BoardWriter};

    /// Without MPI there is no PMIx: nothing happens, nothing is given up, nobody is told.
    #[test]
    fn before_mpi_the_porch_waits() {
        let mut state = State::new(true, true);
        state.condemn(3);
        state.condemn(3);
        state.feed();
        assert_eq!(
            state.pending,
            vec![3],
            "each rank once, kept until MPI is up"
        );
        assert!(!state.enter() && !state.done);
    }

    /// The complaint comes once, and not before its time.
    #[test]
    fn a_missing_libpmix_is_complained_about_once() {
        let mut state = State::new(true, false);
        state.complain_if_missing(5);
        assert_eq!(state.looking_since_us, Some(5));
        state.complain_if_missing(LIBPMIX_PATIENCE_US);
        assert_eq!(state.looking_since_us, Some(5));
        state.complain_if_missing(LIBPMIX_PATIENCE_US + 6);
        assert_eq!(state.looking_since_us, None);
    }

    /// Ranks 0 and 1 on node 0, ranks 2 and 3 on node 1.
    fn board() -> BoardWriter {
        let mut board = BoardWriter::create(BoardLimits::default()).expect("memory for a board");
        for (node, ranks) in [("nodea", [0, 1]), ("nodeb", [2, 3])] {
            let node = board.add_node(node).expect("room for a node");
            for rank in ranks {
                board.raise_rank_count(rank + 1);
                board.set_rank_node(rank, node);
                board.set_rank_state(rank, RankState::Alive);
            }
        }
        board
    }

    fn condemned(board: &BoardWriter, events: &[Event]) -> Vec<u32> {
        let mut state = State::new(true, true);
        for event in events {
            state.take_note(event, &board.view());
        }
        state.pending
    }

    /// What MPI is told can never be taken back, so it is told confirmed deaths, each rank once.
    #[test]
    fn only_confirmed_deaths_are_told() {
        let mut board = board();
        let event = |kind, cause, node, rank| Event {
            node,
            rank,
            ..Event::new(kind, cause)
        };
        let killed = event(EventKind::RankFailed, Cause::KernelFutex, 1, 3);
        let lost = event(EventKind::NodeFailed, Cause::Silence, 1, NO_RANK);
        assert_eq!(condemned(&board, &[killed, lost, lost]), vec![3, 2]);

        let suspected = event(EventKind::NodeSuspect, Cause::Silence, 1, NO_RANK);
        let hung = event(EventKind::RankHung, Cause::Stopped, 1, 2);
        let left = event(EventKind::RankLeft, Cause::Announced, 1, 2);
        let restarted = event(EventKind::NodeFailed, Cause::Joined, 1, NO_RANK);
        assert!(condemned(&board, &[suspected, hung, left, restarted]).is_empty());

        board.set_rank_state(1, RankState::Failed);
        let missed = Event::new(EventKind::Overflow, Cause::Unspecified);
        assert_eq!(condemned(&board, &[missed]), vec![1]);
    }
}
