//! The one client of a process, with a count of users: an application and its libraries may each attach and detach,
//! and only the last one detaches the process.
//!
//! Attaching and detaching take time. No thread holds the lock meanwhile: a thread that calls in between waits for
//! the one that is doing it, at most for its own deadline.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Client, Error, Options};
use muster_ipc::AgentDirectory;
use muster_sys::fork;

/// The state of this process.
enum State {
    /// Not attached.
    Out,
    /// A thread attaches or detaches.
    Busy,
    /// Attached, with the number of users.
    In(Client, u32),
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Fork generations that have a state of their own; later ones share the last one.
const GENERATIONS: usize = 64;

/// One for each fork generation: in a child, the state of its parent may be locked by a thread that the child does
/// not have.
static SHARED: [Shared; GENERATIONS] = [const {
    Shared {
        state: Mutex::new(State::Out),
        changed: Condvar::new(),
    }
}; GENERATIONS];
/// The fork generation that is attached, plus one; zero if none is.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Attaches, or counts one more user of the attached client. In the second case only the options `deadline` and
/// `ulfm` have an effect: the report of failures to MPI, requested by one user, applies to the process.
pub fn init(options: Options) -> Result<Client, Error> {
    let shared = shared()?;
    let begun = Instant::now();
    let mut state = shared.lock();
    loop {
        match &mut *state {
            State::In(client, users) => {
                if options.ulfm {
                    client.feed_mpi()?;
                }
                *users += 1;
                return Ok(client.clone());
            }
            State::Out => break,
            State::Busy => {
                let left = options.deadline.saturating_sub(begun.elapsed());
                if left.is_zero() {
                    return Err(busy_error(&options, begun));
                }
                state = (shared.changed.wait_timeout(state, left))
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
    }
    let turn = Turn::begin(shared, state);
    let client = Client::attach(options)?;
    OWNER.store(fork::generation() + 1, Ordering::Release);
    turn.end(State::In(client.clone(), 1));
    Ok(client)
}

/// The attached client, without counting a user.
pub fn current() -> Result<Client, Error> {
    match &*shared()?.lock() {
        State::In(client, _) => Ok(client.clone()),
        State::Out | State::Busy => Err(Error::Finalized),
    }
}

/// Removes one user; the last one detaches. Returns how many remain. Returns an error in a forked child.
pub fn finalize(exit_code: i32) -> Result<u32, Error> {
    finalize_after(exit_code, |_| {})
}

/// As [`finalize`]; the last user calls `before` while it is still attached. A thread that attaches meanwhile waits
/// for both.
pub fn finalize_after(exit_code: i32, before: impl FnOnce(&Client)) -> Result<u32, Error> {
    let shared = shared()?;
    let mut state = shared.lock();
    let State::In(client, users) = &mut *state else {
        return Err(Error::Finalized);
    };
    *users -= 1;
    if *users > 0 {
        return Ok(*users);
    }
    let client = client.clone();
    let turn = Turn::begin(shared, state);
    before(&client);
    let left = client.finalize(exit_code);
    OWNER.store(0, Ordering::Release);
    turn.end(State::Out);
    left.map(|()| 0)
}

/// The state of this process; an error in a forked child of an attached process.
fn shared() -> Result<&'static Shared, Error> {
    let generation = fork::generation();
    let owner = OWNER.load(Ordering::Acquire);
    if owner != 0 && owner != generation + 1 {
        return Err(Error::Forked);
    }
    Ok(&SHARED[GENERATIONS.min(generation as usize + 1) - 1])
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time in which one thread attaches or detaches. If it is dropped without `end`, the state is `Out`.
struct Turn(&'static Shared);

impl Turn {
    fn begin(shared: &'static Shared, mut state: MutexGuard<'_, State>) -> Self {
        *state = State::Busy;
        Self(shared)
    }

    fn end(self, state: State) {
        *self.0.lock() = state;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if matches!(*state, State::Busy) {
            *state = State::Out;
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

fn busy_error(options: &Options, begun: Instant) -> Error {
    let Options {
        job,
        node,
        directory,
        ..
    } = options;
    let agent_directory =
        AgentDirectory::find(job.as_deref(), node.as_deref(), directory.as_deref());
    Error::Deadline {
        socket: agent_directory
            .map(|agent_directory| agent_directory.socket())
            .unwrap_or_default(),
        waited_ms: begun.elapsed().as_millis() as u64,
        last: "another thread of this process attaches or detaches".into(),
    }
}
