//! The client: what a rank has of Muster in its own process.
//!
//! Intuition: a window onto the node's notice board. Attaching finds (or starts) the agent of this
//! job on this node, gets a place on the board and ties the kernel's string to it; from then on
//! every question is answered from shared memory, and at most one thread of the library sleeps
//! until the agent has news.
//!
//! ```no_run
//! use crate::{Client, Options};
//!
//! let client = Client::attach(Options::default())?;
//! while let Some(event) = client.next_event()? {
//!     println!("{:?}", event.kind);
//! }
//! client.finalize(0)?;
//! # Ok::<(), crate::Error>(())
//! ```
//!
//! Dropping a client does not leave: a process that ends without `finalize` counts as failed,
//! which is the point. Nothing here needs anything but the C library.
//!
//! Methods have the words of the C API, whose pages in section 3 of the manual are theirs too. Other words are
//! Rust's own: `attach` and `Options` (`deadline`, `job_size`) for `muster_init` and its settings, `descriptor` for
//! `muster_get_fd`, `name()` of kinds, causes and states, `Error` for codes and messages. An index that is not known is
//! `Unknown` or `None`, where C has an error. Callbacks are a thread of yours with [`Client::wait_event`].
//!
//! **What is absent on purpose:** no callback on a thread of the library but the porch's, no
//! signal handler, no exit handler, no environment variable is set.
#![forbid(unsafe_code)]

mod attributes;
pub mod bootstrap;
mod bootstrap_exchange;
pub(crate) mod control;
pub mod describe;
mod error;
mod link;
mod options;
mod progress;
mod reader;
mod session;
pub mod shared;
mod start;
mod tables;
mod thread;
mod traffic;
mod view;
mod wait;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use muster_ipc::{AgentDirectory, ToAgent};
use muster_shm::{Hold, Leave, TableView};
use muster_sys::descriptor::EventFd;
use muster_sys::fork;

pub use muster_shm::{Cause, Event, EventKind, NodeState, RankState};

pub use bootstrap_exchange::RECORD_SIZE;
pub use error::Error;
use link::LinkState;
pub use link::{AgentLink, PMIX_COUNTERS, PmixHooks};
pub use options::Options;
use reader::Reader;
use session::Session;
use start::Environment;
pub use start::SPANK_KEY;
use tables::Boards;
pub use traffic::PIGGYBACK_MAX;
pub use view::Snapshot;

/// How long `finalize` waits for the library thread, whose own waits are shorter.
const LEAVE_DEADLINE: Duration = Duration::from_secs(10);

/// An attached process. Clones are the same client.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

/// What does not change while attached.
#[derive(Debug)]
struct Setting {
    place: AgentDirectory,
    options: Options,
    environment: Environment,
    rank: Option<u32>,
    /// Raised while there may be events for the application.
    event: EventFd,
    /// Failures are fed to MPI: asked for by the options, or later.
    feeds_mpi: AtomicBool,
    /// Wakes whoever deals with the agent: to leave, or to look for a lost agent again.
    command: Arc<EventFd>,
    stopping: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    setting: Setting,
    fork: u32,
    tables: Boards,
    link: AgentLink,
    /// The application's place among the events.
    reader: Mutex<Reader>,
    /// Without a library thread: the dealings, for whoever dispatches. With one: the thread's own.
    session: Mutex<Option<Session>>,
    /// With a library thread: tells that it has ended.
    over: Mutex<Option<Receiver<()>>>,
    phase: AtomicU8,
    exit_code: AtomicI32,
    /// Why the agent is lost; none before it was for the first time.
    loss: Mutex<Option<Loss>>,
    reattached: AtomicU64,
    /// Hashes of the keys whose changes the application wants.
    watched: Mutex<BTreeSet<u64>>,
    /// Some of these changes may have come before the next worker knew of the wish.
    missed: AtomicBool,
    /// Held by who changes them here and at the agent, so that both agree in the end.
    watching: Mutex<()>,
    /// Likewise by who asks for the feed to MPI, and by who meets another agent.
    feeding: Mutex<()>,
    /// What marks statements of this process in its slot. Written before the slot; one that is marked with another's
    /// is none.
    mark: AtomicU64,
    /// Slot and generation in one word.
    slot: AtomicU64,
    /// How often this process promised to tick; 0 for never.
    tick_period_ms: Mutex<u32>,
    /// What the records of the other processes said.
    learned: Mutex<bootstrap_exchange::Learned>,
    /// How many threads wait for events.
    waiting: AtomicU32,
}

/// Why a client has no agent.
#[derive(Debug, Clone)]
enum Loss {
    /// None was found or could be started, in so many attempts; what the last one said.
    Gone(u64, String),
    /// It has put the client out, with these words.
    Dismissed(String),
}

/// Where a client stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    Attached = 0,
    Lost = 1,
    Finalized = 2,
}

impl Client {
    /// Attaches this process: finds the agent, or starts one, within the options' deadline. On
    /// error nothing stays behind but possibly the started agent, which ends by itself.
    pub fn attach(options: Options) -> Result<Self, Error> {
        options.check()?;
        let rank = options.own_rank()?;
        let place = AgentDirectory::find(
            options.job.as_deref(),
            options.node.as_deref(),
            options.directory.as_deref(),
        )?;
        let environment = Environment::take();
        let fork = fork::generation();
        let until = Instant::now() + options.deadline;
        let event = EventFd::new().map_err(Error::system("create an eventfd"))?;
        let command = EventFd::new().map_err(Error::system("create an eventfd"))?;
        let stopping = AtomicBool::new(false);
        let feeds_mpi = AtomicBool::new(options.ulfm);
        let setting = Setting {
            place,
            rank,
            options,
            environment,
            event,
            feeds_mpi,
            command: Arc::new(command),
            stopping,
        };
        let greeted = session::greet(&setting, None, setting.options.start_agent, until)?;
        let session = Session::new(&greeted.attached, &greeted.table);
        let mark = greeted.attached.mark;
        let link = AgentLink(Arc::new(LinkState::new(
            setting.rank,
            Arc::clone(&setting.command),
        )));
        link.0.connect(
            greeted.socket,
            greeted.attached.publish,
            greeted.attached.address,
        );
        let inner = Arc::new(Inner {
            setting,
            fork,
            reader: Mutex::new(Reader::new(&greeted.table)),
            tables: Boards::new(greeted.table),
            link,
            session: Mutex::new(None),
            over: Mutex::new(None),
            phase: AtomicU8::new(Phase::Attached as u8),
            exit_code: AtomicI32::new(0),
            loss: Mutex::default(),
            reattached: AtomicU64::new(0),
            watched: Mutex::default(),
            missed: AtomicBool::new(false),
            watching: Mutex::default(),
            feeding: Mutex::default(),
            mark: AtomicU64::new(0),
            slot: AtomicU64::new(0),
            tick_period_ms: Mutex::default(),
            learned: Mutex::default(),
            waiting: AtomicU32::new(0),
        });
        inner.note_slot(session.slot, session.generation, mark);
        if inner.setting.options.thread {
            *lock(&inner.over) = Some(thread::start(&inner, session)?);
        } else {
            session.hold(&inner)?;
            session.introduce(&inner);
            *lock(&inner.session) = Some(session);
        }
        Ok(Self { inner })
    }

    /// Whether both are one client (clones of each other).
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// How many nodes are known; their indices are below it.
    pub fn node_count(&self) -> Result<u32, Error> {
        self.table().map(TableView::node_count)
    }

    /// How many ranks are known; their numbers are below it.
    pub fn rank_count(&self) -> Result<u32, Error> {
        self.table().map(TableView::rank_count)
    }

    /// The state of a node: one load. `Unknown` for an index that is not on the board.
    #[inline]
    pub fn node_state(&self, node: u32) -> Result<NodeState, Error> {
        self.table().map(|table| table.node_state(node))
    }

    /// The state of a rank: one load. `Unknown` for a rank that is not on the board.
    #[inline]
    pub fn rank_state(&self, rank: u32) -> Result<RankState, Error> {
        self.table().map(|table| table.rank_state(rank))
    }

    /// Index of the node a rank runs on, if known.
    pub fn rank_node(&self, rank: u32) -> Result<Option<u32>, Error> {
        self.table().map(|table| table.rank_node(rank))
    }

    /// The name of a node, if there is one of this index.
    pub fn node_name(&self, node: u32) -> Result<Option<String>, Error> {
        self.table().map(|table| table.node_name(node))
    }

    /// What a node shares with those that may fail together with it; empty for nothing.
    pub fn node_group(&self, node: u32) -> Result<Option<String>, Error> {
        self.table().map(|table| table.node_group(node))
    }

    /// The nodes an event is about: the list of a failed group, until a later one lists them; else
    /// the one it names.
    pub fn event_nodes(&self, event: &Event) -> Result<Vec<u32>, Error> {
        self.table().map(|table| table.event_nodes(event))
    }

    /// This process's rank, if it has one.
    pub fn my_rank(&self) -> Result<Option<u32>, Error> {
        self.table().map(|_| self.inner.setting.rank)
    }

    /// Index of this node, once the agent knows it.
    pub fn my_node(&self) -> Result<Option<u32>, Error> {
        self.table().map(TableView::own_node)
    }

    /// Grows with every change of a state on the board, also over restarts of the agent.
    pub fn epoch(&self) -> Result<u64, Error> {
        self.table().map(TableView::epoch)
    }

    /// The next event, `None` if there is none now. Never blocks. An overflow says how many were
    /// lost: look at the states then. Once all events are taken, a lost agent is an error.
    pub fn next_event(&self) -> Result<Option<Event>, Error> {
        self.table()?;
        let inner = &self.inner;
        let mut reader = lock(&inner.reader);
        if let Some(event) = inner.next_wanted(&mut reader) {
            return Ok(Some(event));
        }
        // First drained, then looked again: what comes in between raises it anew.
        inner.setting.event.drain();
        if let Some(event) = inner.next_wanted(&mut reader) {
            inner.setting.event.raise();
            return Ok(Some(event));
        }
        // What was drained may have said that it is over, and is not said again: so to all who still wait.
        if inner.phase() == Phase::Finalized {
            inner.setting.event.raise();
            return Err(Error::Finalized);
        }
        drop(reader);
        self.knock();
        if inner.phase() == Phase::Lost {
            Err(inner.lost())
        } else {
            Ok(None)
        }
    }

    /// A descriptor that is readable while there may be events: from the first one until
    /// `next_event` has answered `None`. The same over restarts of the agent.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>, Error> {
        self.table().map(|_| self.inner.setting.event.as_fd())
    }

    /// Sees to what is due: without a library thread everything (messages of the agent, its
    /// restart, for which it may take the time of the options' deadline, the porch); with one only a
    /// lost agent, for which it makes the thread try again. A client that its agent
    /// has put out looks for another and starts none.
    pub fn dispatch(&self) -> Result<(), Error> {
        self.dispatch_until(None)
    }

    /// As [`Client::dispatch`], for as long as that or until `end`.
    fn dispatch_until(&self, end: Option<Instant>) -> Result<(), Error> {
        self.table()?;
        let inner = &self.inner;
        if inner.setting.options.thread {
            if inner.phase() == Phase::Lost {
                inner.setting.command.raise();
                return Err(inner.lost());
            }
            self.knock();
            return Ok(());
        }
        // Another thread that is at it sees to everything.
        if let Some(mut session) = try_lock(&inner.session) {
            let session = session.as_mut().ok_or(Error::Finalized)?;
            session.hear(inner);
            if !inner.link.is_connected() {
                let most = Instant::now() + inner.setting.options.deadline;
                let end = end.map_or(most, |end| end.min(most));
                session.mend(inner, session::ATTEMPTS, Some(end));
            }
            session.feed(inner);
        }
        if inner.phase() == Phase::Lost {
            Err(inner.lost())
        } else {
            Ok(())
        }
    }

    /// Has the library thread give the porch a moment, if there is both: the application is not kept
    /// waiting for what the porch does. Cheap when that has nothing to do.
    fn knock(&self) {
        let setting = &self.inner.setting;
        let pmix_integration = setting.options.pmix_integration.as_ref();
        let wanted = setting.options.thread
            && pmix_integration.is_some_and(|pmix_integration| pmix_integration.wants_call());
        // While an agent is looked for the thread comes round by itself.
        if wanted && self.inner.link.is_connected() {
            setting.command.raise();
        }
    }

    /// Has confirmed failures told to this process's MPI from now on, those of before included; MPI cannot take
    /// them back. Without a library thread that is done at the next [`Client::dispatch`]. Nothing changes where it
    /// was asked for before.
    ///
    /// # Errors
    /// That nobody in this process could tell MPI; or that the agent takes no message now, so ask again. Nothing
    /// has changed then, here or at the agent.
    pub fn feed_mpi(&self) -> Result<(), Error> {
        self.table()?;
        let setting = &self.inner.setting;
        // Who asks meanwhile is answered the same, and no other agent is met between the question and the note.
        let _feeding = lock(&self.inner.feeding);
        if setting.feeds_mpi.load(Ordering::Acquire) {
            return Ok(());
        }
        let pmix_integration = setting.options.pmix_integration.as_ref();
        let Some(pmix_integration) =
            pmix_integration.filter(|pmix_integration| pmix_integration.can_feed_mpi())
        else {
            return Err(Error::Setting {
                variable: "the feed to MPI",
                value: "asked for late".into(),
                why: "this process was connected without it before, and no PMIx launcher started it; ask for it at \
                      the first connection, or set MUSTER_ULFM=1",
            });
        };
        // First the agent: it must take no death back that MPI is told of.
        self.tell_feed()?;
        setting.feeds_mpi.store(true, Ordering::Release);
        pmix_integration.feed_mpi();
        setting.command.raise();
        Ok(())
    }

    /// Tells the agent, which must not take a death back from now on; one that comes later hears it in the greeting.
    fn tell_feed(&self) -> Result<(), Error> {
        let link = &self.inner.link;
        match link.0.send(&ToAgent::Feeds) {
            Err(error) if link.is_connected() => Err(error),
            _ => Ok(()),
        }
    }

    /// Leaves in order: the agent is told first, then the hold is given back, so that the end of
    /// this process is no failure. Waits for the agent for at most two seconds; without one the
    /// mark on the board has to do. In a forked child it does nothing but say so.
    pub fn finalize(&self, exit_code: i32) -> Result<(), Error> {
        let inner = &self.inner;
        self.table()?;
        if inner.setting.stopping.swap(true, Ordering::AcqRel) {
            return Err(Error::Finalized);
        }
        inner.exit_code.store(exit_code, Ordering::Release);
        let over = lock(&inner.over).take();
        let session = lock(&inner.session).take();
        if let Some(over) = over {
            inner.setting.command.raise();
            if over.recv_timeout(LEAVE_DEADLINE).is_err() {
                inner.leave_for_the_thread(exit_code);
            }
        } else if let Some(mut session) = session
            && session.leave(inner, exit_code)
        {
            // Another thread of this process is still linked into the board.
            std::mem::forget(Arc::clone(inner));
        }
        let table = inner.tables.current();
        inner.phase.store(Phase::Finalized as u8, Ordering::Release);
        // Other threads may wait for states or events, for which there is no more to come.
        table.wake_sleepers();
        self.wake_takers();
        Ok(())
    }

    /// The connection to the agent.
    pub fn link(&self) -> Result<AgentLink, Error> {
        self.table().map(|_| self.inner.link.clone())
    }

    /// How often this client came back to an agent that was restarted.
    pub fn reattached(&self) -> u64 {
        self.inner.reattached.load(Ordering::Relaxed)
    }

    /// Whether a thread of the library deals with the agent.
    pub fn has_thread(&self) -> bool {
        self.inner.setting.options.thread
    }

    /// What this process's side has done and could not do, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let pmix_integration = self.inner.setting.options.pmix_integration.as_ref();
        let mut all =
            pmix_integration.map_or_else(Vec::new, |pmix_integration| pmix_integration.counters());
        all.push(("agents_found_again", self.reattached()));
        all
    }

    /// Whether the agent is lost for now.
    pub fn is_agent_lost(&self) -> bool {
        self.inner.phase() == Phase::Lost
    }

    /// This process's slot on the board and the slot's generation.
    pub fn slot(&self) -> (u32, u32) {
        let word = self.inner.slot.load(Ordering::Acquire);
        (word as u32, (word >> 32) as u32)
    }

    /// The board, if this process may look at it.
    #[inline]
    pub fn table(&self) -> Result<&TableView, Error> {
        if fork::current() != self.inner.fork {
            return Err(Error::Forked);
        }
        if self.inner.phase.load(Ordering::Acquire) == Phase::Finalized as u8 {
            return Err(Error::Finalized);
        }
        Ok(self.inner.tables.current())
    }
}

impl Setting {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

impl Inner {
    fn hold(&self) -> Hold {
        if self.setting.options.thread {
            Hold::Thread
        } else {
            Hold::Mutex
        }
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Attached,
            1 => Phase::Lost,
            _ => Phase::Finalized,
        }
    }

    /// The next event for the application: attributes that others of this node watch are not.
    fn next_wanted(&self, reader: &mut Reader) -> Option<Event> {
        if self.missed.swap(false, Ordering::AcqRel) {
            return Some(Event::new(EventKind::Overflow, Cause::Unspecified));
        }
        loop {
            let event = reader.next(&self.tables)?;
            let other = event.kind == EventKind::Attribute
                && !lock(&self.watched).contains(&event.key_hash);
            if !other {
                return Some(event);
            }
        }
    }

    fn exit_code(&self) -> i32 {
        self.exit_code.load(Ordering::Acquire)
    }

    /// The library thread has not left in time, or is gone: a panic in the porch may have ended it.
    /// Then at least the mark says that what follows is in order.
    fn leave_for_the_thread(&self, exit_code: i32) {
        let word = self.slot.load(Ordering::Acquire);
        let (number, generation) = (word as u32, (word >> 32) as u32);
        let Some(slot) = self.tables.current().slot(number) else {
            return;
        };
        let mark = self.mark();
        if slot.facts().generation == generation && slot.leave_marked(mark).0 == Leave::No {
            slot.announce_leave(mark, !slot.is_released(), exit_code);
            let _ = self.link.0.send(&ToAgent::Leaving(exit_code));
        }
    }

    fn lost(&self) -> Error {
        match lock(&self.loss).clone() {
            Some(Loss::Dismissed(reason)) => Error::Dismissed { reason },
            Some(Loss::Gone(attempts, reason)) => Error::AgentLost { attempts, reason },
            None => Error::AgentLost {
                attempts: 0,
                reason: String::new(),
            },
        }
    }

    fn mark(&self) -> u64 {
        self.mark.load(Ordering::Acquire)
    }

    fn note_slot(&self, slot: u32, generation: u32, mark: u64) {
        self.mark.store(mark, Ordering::Release);
        let word = u64::from(slot) | u64::from(generation) << 32;
        self.slot.store(word, Ordering::Release);
    }

    /// Notes that there is an agent again. A finalized client stays that.
    fn note_found(&self) {
        self.reattached.fetch_add(1, Ordering::Relaxed);
        self.change(Phase::Lost, Phase::Attached);
    }

    /// Notes that no agent was found. Whoever waits for events learns it from `next_event`.
    fn note_lost(&self, loss: Loss) {
        *lock(&self.loss) = Some(loss);
        // A search in vain later on is no news.
        if self.change(Phase::Attached, Phase::Lost) {
            self.setting.event.raise();
        }
    }

    fn change(&self, from: Phase, to: Phase) -> bool {
        let order = Ordering::AcqRel;
        let changed = self
            .phase
            .compare_exchange(from as u8, to as u8, order, Ordering::Relaxed);
        changed.is_ok()
    }
}

impl Drop for Inner {
    /// Without a library thread the handle can go while a thread of the application is still
    /// linked into the board: the kernel and the C library follow that link when the thread ends,
    /// so the mapping stays for the life of the process.
    fn drop(&mut self) {
        if self.phase() != Phase::Finalized {
            std::mem::forget(self.tables.current().clone());
        }
    }
}

/// None if another thread has it.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
