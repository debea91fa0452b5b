//! The connection to the agent as everybody in this process may use it, and the porch: whoever
//! else in this process wants to know (the PMIx bootstrap, the feed to MPI).

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

/// An extension of the client inside its process. All methods run on the library thread, or in
/// `attach`, `dispatch` and `finalize` where there is none; only `wants_call`, `can_feed_mpi`,
/// `feed_mpi` and `counters` run on threads of the application. None may block for long, and none may
/// call back into the client's `dispatch` or `finalize`.
pub trait PmixHooks: Send + Sync {
    /// The process was let in, for the first time or by another agent.
    fn on_attached(&self, link: &AgentLink) {
        let _ = link;
    }

    /// These events have come; the board is the one that they are about. An overflow is among them
    /// if some were lost, and comes first of all: what was before is in the states.
    fn on_events(&self, events: &[Event], table: &TableView) {
        let _ = (events, table);
    }

    /// The application called, or a message of the agent came, or the wake-up asked for is due:
    /// a moment to try what was not yet possible.
    fn on_call(&self) {}

    /// Whether a call of the application is worth an `on_call`, for which the library thread is woken. Asked
    /// often, on any thread: it must not wait for anything.
    fn wants_call(&self) -> bool {
        false
    }

    /// When the next `on_call` is wanted even if nothing happens; `None` for never (an idle
    /// application is not woken).
    fn next_wake(&self) -> Option<Duration> {
        None
    }

    /// The process is about to leave.
    fn before_detach(&self) {}

    /// Whether it can have confirmed deaths told to this process's MPI. On a thread of the application.
    fn can_feed_mpi(&self) -> bool {
        false
    }

    /// The application wants that from now on, for the deaths of before, too; asked of one that can, once. Runs on a
    /// thread of the application, so it must not wait for anything; an `on_call` follows.
    fn feed_mpi(&self) {}

    /// What it did and could not do, by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Names of the counters that a process has which PMIx started.
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

    /// Tells the agent where another agent can be reached. `false` if it could not be handed over
    /// now (no agent, its queue is full, or more than 255 bytes): try again later.
    pub fn send_seed(&self, address: &str) -> bool {
        address.len() <= ADDRESS_MAX && self.0.send(&ToAgent::Seed(address.to_owned())).is_ok()
    }

    /// Tells the agent the job's key. `false` if it could not be handed over now.
    pub fn send_key(&self, key: [u8; 32]) -> bool {
        self.0.send(&ToAgent::Key(key)).is_ok()
    }

    /// Tells the agent that this process's launcher says that a rank ended badly: the signal that killed it, minus its
    /// exit code, or 0 if the launcher does not say how. `job_size` is how many ranks the job has. `false` if it could
    /// not be handed over now. Waits for nothing.
    pub fn send_aborted(&self, rank: u32, how: i32, job_size: u32) -> bool {
        self.0.send(&ToAgent::Aborted(rank, how, job_size)).is_ok()
    }

    /// Tells the agent that these ranks run on the node of this name, or of these NIDs. `false` if not all could
    /// be handed over now: try again with all.
    pub fn send_placed(&self, node: &str, ranks: &[u32]) -> bool {
        let send = |ranks: &[u32]| {
            let message = ToAgent::Placed(node.to_owned(), ranks.to_vec());
            self.0.send(&message).is_ok()
        };
        node.len() <= ADDRESS_MAX && ranks.chunks(PLACED_MAX).all(send)
    }

    /// Calls the porch soon, from whatever thread.
    pub fn wake(&self) {
        self.0.command.iter().for_each(|command| command.raise());
    }

    /// The agent's NID list, once it is known.
    pub fn address(&self) -> Option<String> {
        Some(lock(&self.0.address).clone()).filter(|address| !address.is_empty())
    }

    /// The key that the agent made for the job, if this process is to publish it.
    pub fn key_for_publication(&self) -> Option<[u8; 32]> {
        *lock(&self.0.key)
    }

    /// Whether the agent asked this process to publish its address.
    pub fn is_publisher_wanted(&self) -> bool {
        self.0.publish.load(Ordering::Acquire)
    }

    /// Whether there is an agent at the other end, as far as known.
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

    /// Sends a message and a descriptor with it.
    pub(super) fn send_with(
        &self,
        message: &ToAgent,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), Error> {
        let Some(socket) = self.socket() else {
            return Err(Error::Unanswered("there is none now".into()));
        };
        socket
            .send(&message.encode(), descriptor)
            .map_err(|cause| match cause.kind() {
                // It has just gone, which nobody here has noticed yet, or takes no more now.
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
