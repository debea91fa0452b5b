//! The connection to the agent, shared by all threads of this process, and the hooks for extensions of the client
//! inside the process: the PMIx integration (bootstrap, report of failures to MPI).

use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Error;
use muster_ipc::{ADDRESS_MAX, PLACED_MAX, ToAgent};
use muster_shm::{Event, TableView};
use muster_sys::descriptor::EventFd;
use muster_sys::socket::Packets;

/// An extension of the client inside its process. All methods run on the library thread, or in `attach`, `dispatch`
/// and `finalize` without one; only `wants_call`, `can_feed_mpi`, `feed_mpi` and `counters` run on threads of the
/// application. None may block for long, and none may call the client's `dispatch` or `finalize`.
pub trait PmixHooks: Send + Sync {
    /// The process was attached, for the first time or by another agent.
    fn on_attached(&self, link: &AgentLink) {
        let _ = link;
    }

    /// New events, and the state table that they belong to. If events were lost, an overflow is among them; one is
    /// also the first event of all: the states include what happened before.
    fn on_events(&self, events: &[Event], table: &TableView) {
        let _ = (events, table);
    }

    /// The application made a call, a message of the agent arrived, or the time of `next_wake` has come: an
    /// opportunity to retry what was not possible before.
    fn on_call(&self) {}

    /// Why this process cannot take part in its job, as [`Error::OneZone`]; asked after each `on_call`. From then
    /// on its calls return that error. It stays attached, so that its agent does not take it for lost.
    fn refusal(&self) -> Option<Error> {
        None
    }

    /// Whether a call of the application requires an `on_call`, for which the library thread is woken. Called often,
    /// on any thread: it must not wait for anything.
    fn wants_call(&self) -> bool {
        false
    }

    /// The time until the next `on_call` even if nothing happens; `None` for never (an idle application is not
    /// woken).
    fn next_wake(&self) -> Option<Duration> {
        None
    }

    /// The process is about to detach.
    fn before_detach(&self) {}

    /// Whether confirmed failures can be reported to this process's MPI. Called on a thread of the application.
    fn can_feed_mpi(&self) -> bool {
        false
    }

    /// The application requests that report from now on, and for the failures before. Called at most once, and only
    /// if `can_feed_mpi`. Runs on a thread of the application, so it must not wait for anything; an `on_call`
    /// follows.
    fn feed_mpi(&self) {}

    /// The extension's counters, by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Names of the counters of a process that PMIx started.
pub const PMIX_COUNTERS: [&str; 4] = [
    "pmix_notified",
    "pmix_refused",
    "pmix_heard",
    "pmix_heard_dropped",
];

/// The connection to the agent. Stays valid over restarts of the agent.
#[derive(Debug, Clone)]
pub struct AgentLink(pub(super) Arc<LinkState>);

#[derive(Debug, Default)]
pub(super) struct LinkState {
    socket: Mutex<Option<Arc<Packets>>>,
    address: Mutex<String>,
    key: Mutex<Option<[u8; 32]>>,
    publish: AtomicBool,
    /// The rank of this process in its job.
    rank: Option<u32>,
    /// Wakes the library thread.
    command: Option<Arc<EventFd>>,
}

impl AgentLink {
    /// The rank of this process in its job, as Muster numbers them; none if it has none.
    pub fn rank(&self) -> Option<u32> {
        self.0.rank
    }

    /// Sends the agent the address of another agent. `false` if it cannot be sent now (no agent, its socket is full,
    /// or more than 255 bytes): try again later.
    pub fn send_seed(&self, address: &str) -> bool {
        address.len() <= ADDRESS_MAX && self.0.send(&ToAgent::Seed(address.to_owned())).is_ok()
    }

    /// Sends the agent the job's key. `false` if it cannot be sent now.
    pub fn send_key(&self, key: [u8; 32]) -> bool {
        self.0.send(&ToAgent::Key(key)).is_ok()
    }

    /// Sends the agent a report of this process's launcher that a rank ended abnormally: with the signal that killed
    /// it, its negative exit code, or 0 if the launcher states neither. `job_size` is the number of ranks of the job.
    /// `false` if it cannot be sent now. Does not wait.
    pub fn send_aborted(&self, rank: u32, how: i32, job_size: u32) -> bool {
        self.0.send(&ToAgent::Aborted(rank, how, job_size)).is_ok()
    }

    /// Sends the agent the ranks that run on the node of this name, or of these NIDs. `false` if not all could be
    /// sent now: try again with all of them.
    pub fn send_placed(&self, node: &str, ranks: &[u32]) -> bool {
        let send = |ranks: &[u32]| {
            let message = ToAgent::Placed(node.to_owned(), ranks.to_vec());
            self.0.send(&message).is_ok()
        };
        node.len() <= ADDRESS_MAX && ranks.chunks(PLACED_MAX).all(send)
    }

    /// Makes the library thread call the hooks soon. Any thread may call it.
    pub fn wake(&self) {
        self.0.command.iter().for_each(|command| command.raise());
    }

    /// The agent's NID list, once it is known.
    pub fn address(&self) -> Option<String> {
        Some(lock(&self.0.address).clone()).filter(|address| !address.is_empty())
    }

    /// The key that the agent created for the job, if this process is to publish it.
    pub fn key_for_publication(&self) -> Option<[u8; 32]> {
        *lock(&self.0.key)
    }

    /// Whether the agent requested that this process publishes its address.
    pub fn is_publisher_wanted(&self) -> bool {
        self.0.publish.load(Ordering::Acquire)
    }

    /// Whether the connection to an agent is open, as far as known.
    pub fn is_connected(&self) -> bool {
        self.0.socket().is_some()
    }
}

impl LinkState {
    pub(super) fn new(rank: Option<u32>, command: Arc<EventFd>) -> Self {
        Self {
            rank,
            command: Some(command),
            ..Self::default()
        }
    }

    pub(super) fn send(&self, message: &ToAgent) -> Result<(), Error> {
        self.send_with(message, None)
    }

    /// Sends a message together with a descriptor.
    pub(super) fn send_with(
        &self,
        message: &ToAgent,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), Error> {
        let Some(socket) = self.socket() else {
            return Err(Error::Unanswered("there is no agent now".into()));
        };
        socket
            .send(&message.encode(), descriptor)
            .map_err(|cause| match cause.kind() {
                // The agent has just ended, which this process has not noticed yet, or its socket is full.
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::WouldBlock => {
                    Error::Unanswered(cause.to_string())
                }
                _ => Error::system("send to the agent")(cause),
            })
    }

    pub(super) fn socket(&self) -> Option<Arc<Packets>> {
        lock(&self.socket).clone()
    }

    pub(super) fn connect(&self, socket: Packets, publish: bool, address: String) {
        self.publish.store(publish, Ordering::Release);
        self.set_address(address);
        *lock(&self.socket) = Some(Arc::new(socket));
    }

    pub(super) fn disconnect(&self) {
        *lock(&self.socket) = None;
    }

    pub(super) fn set_address(&self, address: String) {
        *lock(&self.address) = address;
    }

    pub(super) fn set_key(&self, key: [u8; 32]) {
        *lock(&self.key) = Some(key);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
