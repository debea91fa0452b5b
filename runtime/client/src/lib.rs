//! The client: Muster in the process of a rank.
//!
//! Attaching finds (or starts) the agent of this job on this node, gets a slot in the state table and holds its
//! robust futex, which the kernel releases when the process ends. From then on, every state is read from shared
//! memory, and at most one thread of the library waits for messages of the agent.
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
//! Dropping a client does not detach: a process that ends without `finalize` counts as failed, on purpose. The client
//! needs only the C library.
//!
//! Methods are named after the functions of the C API, whose manual pages (section 3) also document them. Names that
//! are specific to Rust: `attach` and `Options` (`deadline`, `job_size`) for `muster_init` and its settings,
//! `descriptor` for `muster_get_fd`, `name()` of kinds, causes and states, `Error` for codes and messages. For an
//! index that is not known they return `Unknown` or `None`, where the C API returns an error. Instead of callbacks,
//! use a thread of your own with [`Client::wait_event`].
//!
//! **Not done, on purpose:** no callback on a thread of the library except those of [`PmixHooks`], no signal handler,
//! no exit handler, and no environment variable is set.
#![forbid(unsafe_code)]

mod attributes;
pub mod bootstrap;
mod bootstrap_exchange;
pub(crate) mod control;
pub mod describe;
mod error;
mod link;
mod one_zone;
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
use tables::StateTables;
pub use traffic::PIGGYBACK_MAX;
pub use view::Snapshot;

/// How long `finalize` waits for the library thread, which itself waits for less time.
const LEAVE_DEADLINE: Duration = Duration::from_secs(10);

/// An attached process. Clones are the same client.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

/// The settings of an attached process.
#[derive(Debug)]
struct Setting {
    agent_directory: AgentDirectory,
    options: Options,
    environment: Environment,
    rank: Option<u32>,
    /// Raised while there may be events for the application.
    event: EventFd,
    /// Failures are reported to MPI: requested by the options, or later.
    feeds_mpi: AtomicBool,
    /// Wakes the thread that runs the session: to detach, or to search for another agent.
    command: Arc<EventFd>,
    stopping: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    setting: Setting,
    fork: u32,
    tables: StateTables,
    link: AgentLink,
    /// The application's position among the events.
    reader: Mutex<Reader>,
    /// Without a library thread: the session, used by the thread that dispatches. With one, that thread has it.
    session: Mutex<Option<Session>>,
    /// With a library thread: signals its end.
    thread_end: Mutex<Option<Receiver<()>>>,
    phase: AtomicU8,
    exit_code: AtomicI32,
    /// Why the agent is lost; none until it is lost for the first time.
    loss: Mutex<Option<Loss>>,
    reattached: AtomicU64,
    /// Hashes of the keys whose changes the application watches.
    watched: Mutex<BTreeSet<u64>>,
    /// A watched change may have been missed, because it came before a new worker knew of the watch.
    missed: AtomicBool,
    /// Held while the watched keys are changed here and at the agent, so that both agree in the end.
    watching: Mutex<()>,
    /// Held likewise while the report of failures to MPI is requested, and while this client attaches to another
    /// agent.
    feeding: Mutex<()>,
    /// The mark of this process's statements in its slot. It is written before the slot; a statement with the mark of
    /// another slot is not valid.
    mark: AtomicU64,
    /// Slot and generation, packed into one number.
    slot: AtomicU64,
    /// The period of the promised ticks; 0 for no promise.
    tick_period_ms: Mutex<u32>,
    /// The content of the bootstrap records of the other processes.
    learned: Mutex<bootstrap_exchange::Learned>,
    /// Number of threads that wait for events.
    waiting: AtomicU32,
}

/// Why a client has no agent.
#[derive(Debug, Clone)]
enum Loss {
    /// No agent was found or could be started: the number of attempts, and the result of the last one.
    Gone(u64, String),
    /// The agent has dismissed this client: the agent's text.
    Dismissed(String),
    /// There is one, but it does not connect to those of other nodes: [`Error::OneZone`].
    OneZone(usize, usize),
}

/// The state of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    Attached = 0,
    Lost = 1,
    Finalized = 2,
}

impl Client {
    /// Attaches this process: finds the agent, or starts one, within the options' deadline. On error nothing remains,
    /// except possibly the started agent, which ends by itself.
    pub fn attach(options: Options) -> Result<Self, Error> {
        options.check()?;
        let rank = options.own_rank()?;
        let agent_directory = AgentDirectory::find(
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
            agent_directory,
            rank,
            options,
            environment,
            event,
            feeds_mpi,
            command: Arc::new(command),
            stopping,
        };
        let attachment = session::attach(&setting, None, setting.options.start_agent, until)?;
        let session = Session::new(&attachment.attached, &attachment.table);
        let mark = attachment.attached.mark;
        let link = AgentLink(Arc::new(LinkState::new(
            setting.rank,
            Arc::clone(&setting.command),
        )));
        link.0.connect(
            attachment.socket,
            attachment.attached.publish,
            attachment.attached.address,
        );
        let inner = Arc::new(Inner {
            setting,
            fork,
            reader: Mutex::new(Reader::new(&attachment.table)),
            tables: StateTables::new(attachment.table),
            link,
            session: Mutex::new(None),
            thread_end: Mutex::new(None),
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
            *lock(&inner.thread_end) = Some(thread::start(&inner, session)?);
        } else {
            session.hold(&inner)?;
            session.report_attached(&inner);
            *lock(&inner.session) = Some(session);
        }
        Ok(Self { inner })
    }

    /// Whether both are the same client (clones of each other).
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Number of known nodes; their indices are below it.
    pub fn node_count(&self) -> Result<u32, Error> {
        self.table().map(TableView::node_count)
    }

    /// Number of known ranks; their numbers are below it.
    pub fn rank_count(&self) -> Result<u32, Error> {
        self.table().map(TableView::rank_count)
    }

    /// The state of a node: one load. `Unknown` for an index that is not in the state table.
    #[inline]
    pub fn node_state(&self, node: u32) -> Result<NodeState, Error> {
        self.table().map(|table| table.node_state(node))
    }

    /// The state of a rank: one load. `Unknown` for a rank that is not in the state table.
    #[inline]
    pub fn rank_state(&self, rank: u32) -> Result<RankState, Error> {
        self.table().map(|table| table.rank_state(rank))
    }

    /// Index of the node a rank runs on, if known.
    pub fn rank_node(&self, rank: u32) -> Result<Option<u32>, Error> {
        self.table().map(|table| table.rank_node(rank))
    }

    /// The name of a node; `None` for an index that is not known.
    pub fn node_name(&self, node: u32) -> Result<Option<String>, Error> {
        self.table().map(|table| table.node_name(node))
    }

    /// The failure group of a node: it may fail together with the other nodes of the group. Empty if it has none.
    pub fn node_group(&self, node: u32) -> Result<Option<String>, Error> {
        self.table().map(|table| table.node_group(node))
    }

    /// The nodes of an event: the list of a failed group, until a later event lists them; otherwise the node that it
    /// names.
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

    /// Incremented with every change of a state in the state table, also over restarts of the agent.
    pub fn epoch(&self) -> Result<u64, Error> {
        self.table().map(TableView::epoch)
    }

    /// The next event, `None` if there is none now. Never blocks. An overflow reports how many events were lost: read
    /// the states then. After all events are taken, a lost agent is an error.
    pub fn next_event(&self) -> Result<Option<Event>, Error> {
        self.table()?;
        let inner = &self.inner;
        let mut reader = lock(&inner.reader);
        if let Some(event) = inner.next_wanted(&mut reader) {
            return Ok(Some(event));
        }
        // Drain first, then check again: an event that arrives in between raises the eventfd again.
        inner.setting.event.drain();
        if let Some(event) = inner.next_wanted(&mut reader) {
            inner.setting.event.raise();
            return Ok(Some(event));
        }
        // The drained signal may have been that of finalize, which is raised only once: pass it on to other waiters.
        if inner.phase() == Phase::Finalized {
            inner.setting.event.raise();
            return Err(Error::Finalized);
        }
        drop(reader);
        self.wake_for_hooks();
        if inner.phase() == Phase::Lost {
            Err(inner.lost())
        } else {
            Ok(None)
        }
    }

    /// A descriptor that is readable while there may be events: from the first one until `next_event` has returned
    /// `None`. It stays the same over restarts of the agent.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>, Error> {
        self.table().map(|_| self.inner.setting.event.as_fd())
    }

    /// Does the work that is due. Without a library thread, that is everything: messages of the agent, its restart,
    /// which may take as long as the options' deadline, and the hooks. With a library thread, it only makes that
    /// thread search again for a lost agent. A client that its agent has dismissed searches for another one and
    /// starts none.
    pub fn dispatch(&self) -> Result<(), Error> {
        self.dispatch_until(None)
    }

    /// As [`Client::dispatch`], for at most the options' deadline and until `end`.
    fn dispatch_until(&self, end: Option<Instant>) -> Result<(), Error> {
        self.table()?;
        let inner = &self.inner;
        if inner.setting.options.thread {
            if inner.phase() == Phase::Lost {
                inner.setting.command.raise();
                return Err(inner.lost());
            }
            self.wake_for_hooks();
            return Ok(());
        }
        // If another thread holds the session, that thread does all of it.
        if let Some(mut session) = try_lock(&inner.session) {
            let session = session.as_mut().ok_or(Error::Finalized)?;
            session.receive(inner);
            if !inner.link.is_connected() {
                let latest = Instant::now() + inner.setting.options.deadline;
                let end = end.map_or(latest, |end| end.min(latest));
                session.reattach(inner, session::ATTEMPTS, Some(end));
            }
            session.report_events(inner);
        }
        if inner.phase() == Phase::Lost {
            Err(inner.lost())
        } else {
            Ok(())
        }
    }

    /// Wakes the library thread for the hooks, if there are both and the hooks want a call: the application does not
    /// wait for them. Cheap when they want none.
    fn wake_for_hooks(&self) {
        let setting = &self.inner.setting;
        let pmix_integration = setting.options.pmix_integration.as_ref();
        let wanted = setting.options.thread
            && pmix_integration.is_some_and(|pmix_integration| pmix_integration.wants_call());
        // During the search for an agent, the thread calls the hooks by itself.
        if wanted && self.inner.link.is_connected() {
            setting.command.raise();
        }
    }

    /// Requests that confirmed failures are reported to this process's MPI from now on, including those before; MPI
    /// cannot take them back. Without a library thread this is done in the next [`Client::dispatch`]. Has no effect
    /// if it was requested before.
    ///
    /// # Errors
    /// There is no extension in this process that can report to MPI; or the agent takes no message now: try again. In
    /// both cases nothing has changed, here or at the agent.
    pub fn feed_mpi(&self) -> Result<(), Error> {
        self.table()?;
        let setting = &self.inner.setting;
        // Concurrent requests get the same result. No other agent is attached to between the message and the flag.
        let _feeding = lock(&self.inner.feeding);
        if setting.feeds_mpi.load(Ordering::Acquire) {
            return Ok(());
        }
        let pmix_integration = setting.options.pmix_integration.as_ref();
        let Some(pmix_integration) =
            pmix_integration.filter(|pmix_integration| pmix_integration.can_feed_mpi())
        else {
            return Err(Error::Setting {
                variable: "the report of failures to MPI",
                value: "requested after the attach".into(),
                why: "this process was connected without it before, and no PMIx launcher started it; request it at \
                      the first connection, or set MUSTER_ULFM=1",
            });
        };
        // First the agent: it must not take back a failure that was reported to MPI.
        self.tell_feed()?;
        setting.feeds_mpi.store(true, Ordering::Release);
        pmix_integration.feed_mpi();
        setting.command.raise();
        Ok(())
    }

    /// Tells the agent that it must not take back failures from now on; a later agent learns it from `Attach`.
    fn tell_feed(&self) -> Result<(), Error> {
        let link = &self.inner.link;
        match link.0.send(&ToAgent::Feeds) {
            Err(error) if link.is_connected() => Err(error),
            _ => Ok(()),
        }
    }

    /// Detaches: the agent is informed first, then the futex is released, so that the end of this process is no
    /// failure. Waits at most two seconds for the agent; without an agent, the statement in the slot has the same
    /// effect. In a forked child it only returns an error.
    pub fn finalize(&self, exit_code: i32) -> Result<(), Error> {
        let inner = &self.inner;
        self.table()?;
        if inner.setting.stopping.swap(true, Ordering::AcqRel) {
            return Err(Error::Finalized);
        }
        inner.exit_code.store(exit_code, Ordering::Release);
        let thread_end = lock(&inner.thread_end).take();
        let session = lock(&inner.session).take();
        if let Some(thread_end) = thread_end {
            inner.setting.command.raise();
            if thread_end.recv_timeout(LEAVE_DEADLINE).is_err() {
                inner.announce_leave_for_the_thread(exit_code);
            }
        } else if let Some(mut session) = session
            && session.leave(inner, exit_code)
        {
            // Another thread of this process is still linked to the state table.
            std::mem::forget(Arc::clone(inner));
        }
        let table = inner.tables.current();
        inner.phase.store(Phase::Finalized as u8, Ordering::Release);
        // Other threads may wait for states or events, of which there will be no more.
        table.wake_sleepers();
        self.wake_takers();
        Ok(())
    }

    /// The connection to the agent.
    pub fn link(&self) -> Result<AgentLink, Error> {
        self.table().map(|_| self.inner.link.clone())
    }

    /// How often this client attached to a restarted agent.
    pub fn reattached(&self) -> u64 {
        self.inner.reattached.load(Ordering::Relaxed)
    }

    /// Whether a thread of the library runs the session.
    pub fn has_thread(&self) -> bool {
        self.inner.setting.options.thread
    }

    /// The counters of this process, by name.
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

    /// This process's slot in the state table and the slot's generation.
    pub fn slot(&self) -> (u32, u32) {
        let packed = self.inner.slot.load(Ordering::Acquire);
        (packed as u32, (packed >> 32) as u32)
    }

    /// The state table, if this process may read it.
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

    /// The next event for the application, without changes of attributes that only other processes of this node
    /// watch.
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

    /// For a library thread that has not detached in time, or has ended: a panic in the hooks may have ended it. At
    /// least the statement in the slot then marks the end of this process as orderly.
    fn announce_leave_for_the_thread(&self, exit_code: i32) {
        let packed = self.slot.load(Ordering::Acquire);
        let (number, generation) = (packed as u32, (packed >> 32) as u32);
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
            Some(Loss::OneZone(nodes, most)) => Error::OneZone { nodes, most },
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
        let packed = u64::from(slot) | u64::from(generation) << 32;
        self.slot.store(packed, Ordering::Release);
    }

    /// Notes that there is an agent again. A finalized client stays finalized.
    fn note_found(&self) {
        self.reattached.fetch_add(1, Ordering::Relaxed);
        self.change(Phase::Lost, Phase::Attached);
    }

    /// Notes that no agent was found. Threads that wait for events learn it from `next_event`.
    fn note_lost(&self, loss: Loss) {
        *lock(&self.loss) = Some(loss);
        // A later search without success is no change.
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
    /// Without a library thread, the handle can be dropped while a thread of the application is still linked to the
    /// state table. The kernel and the C library follow that link when the thread ends, so the mapping stays as long
    /// as the process.
    fn drop(&mut self) {
        if self.phase() != Phase::Finalized {
            std::mem::forget(self.tables.current().clone());
        }
    }
}

/// `None` if another thread holds the lock.
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
