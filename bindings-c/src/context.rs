//! The connection of this process. There is one; it is reference-counted, and may be used at any time.
//!
//! The pointer that C holds is the address of a static, never of the connection. A call with a finalized context, an
//! invalid pointer, or from a forked child is therefore detected by a comparison, without any access to freed memory.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use muster_client::{Client, Error, Options, shared};
use muster_ipc::{DirectoryError, RefusalCode};
use muster_shm::TableView;
use muster_sys::cancel::Shield;
use muster_sys::fork;

use crate::error::{Code, Failure};

/// The type that C holds a pointer to.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "the name that C sees")]
pub struct muster_ctx_t {
    /// Gives the static an address of its own.
    _opaque: AtomicU8,
}

static HANDLE: muster_ctx_t = muster_ctx_t {
    _opaque: AtomicU8::new(0),
};

/// The connection, if there is one. [`shared`] counts the inits.
static CLIENT: RwLock<Option<Client>> = RwLock::new(None);
/// Counts the changes of [`CLIENT`], from 1.
static CHANGES: AtomicU64 = AtomicU64::new(1);
/// The owner of the connection; zero if there is none. The lower half is the fork generation that is connected, plus
/// one; the upper half is a number that is different for each connect. It is read before the lock is taken: in a
/// forked child, the lock may be held by a thread that does not exist there.
static OWNER: AtomicU64 = AtomicU64::new(0);
static CONNECTS: AtomicU32 = AtomicU32::new(0);

/// Connects this process, or counts one more init.
pub(crate) fn connect(options: Options) -> Result<(), Failure> {
    let client = shared::init(options)?;
    note_owner();
    set_client(client);
    Ok(())
}

fn note_owner() {
    let number = u64::from(CONNECTS.fetch_add(1, Ordering::Relaxed));
    let generation = u64::from(fork::generation() + 1);
    OWNER.store(number << 32 | generation, Ordering::Release);
}

fn set_client(client: Client) {
    let mut current = CLIENT.write().unwrap_or_else(PoisonError::into_inner);
    *current = Some(client);
    // Once more: another thread may have left since.
    note_owner();
    drop(current);
    CHANGES.fetch_add(1, Ordering::AcqRel);
}

/// Removes a client that has left, unless another thread has connected again since.
pub(crate) fn forget_client(left: &Client) {
    let mut client = CLIENT.write().unwrap_or_else(PoisonError::into_inner);
    let owner = OWNER.load(Ordering::Acquire);
    let forgotten = client.as_ref().is_some_and(|client| client.is_same(left));
    if forgotten {
        *client = None;
    }
    drop(client);
    if forgotten {
        // From now on a forked child may connect for itself. Before, it would find the lock held forever. The
        // exchange fails if another thread has connected again since.
        let _ = OWNER.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
    CHANGES.fetch_add(1, Ordering::AcqRel);
}

pub(crate) fn handle() -> *mut muster_ctx_t {
    (&raw const HANDLE).cast_mut()
}

fn not_initialized() -> Failure {
    Failure::new(
        Code::NotInitialized,
        "there is no connection; call muster_init first",
    )
}

/// Refuses a forked child of the process that is connected.
pub(crate) fn refuse_forked() -> Result<(), Failure> {
    let owner = OWNER.load(Ordering::Acquire) as u32;
    if owner != 0 && owner != fork::current() + 1 {
        return Err(Failure::new(
            Code::Forked,
            "this process is a fork of the one that called muster_init; a forked child must exec a program first",
        ));
    }
    Ok(())
}

/// Refuses an invalid context, and a forked child of its owner.
#[inline]
pub(crate) fn check(context: *const muster_ctx_t) -> Result<(), Failure> {
    if !std::ptr::eq(context, &raw const HANDLE) {
        let what = if context.is_null() {
            "NULL"
        } else {
            "not what muster_init returned"
        };
        return Err(Failure::new(Code::Argument, format!("context is {what}")));
    }
    refuse_forked()
}

/// The client. It stays valid through the call that requests it.
pub(crate) fn client(context: *const muster_ctx_t) -> Result<Client, Failure> {
    check(context)?;
    let client = CLIENT.read().unwrap_or_else(PoisonError::into_inner);
    client.clone().ok_or_else(not_initialized)
}

thread_local! {
    /// The last value of [`CLIENT`] that this thread saw, and its number in [`CHANGES`]. It saves each query the
    /// lock, whose two locked instructions cost more than the query. A client that has left stays
    /// in memory until each thread that used it has made another call, or ended.
    static SEEN: RefCell<(u64, Option<Client>)> = const { RefCell::new((0, None)) };
}

/// Reads from the state table.
#[inline]
pub(crate) fn with_table(
    context: *const muster_ctx_t,
    look: impl FnOnce(&TableView) -> Result<c_int, Failure>,
) -> Result<c_int, Failure> {
    with_client(context, |client| look(client.table()?))
}

/// Uses the client in a frequent call, without a lock.
#[inline]
pub(crate) fn with_client(
    context: *const muster_ctx_t,
    look: impl FnOnce(&Client) -> Result<c_int, Failure>,
) -> Result<c_int, Failure> {
    check(context)?;
    let look = Cell::new(Some(look));
    let looked = SEEN.try_with(|seen| {
        // Read before the lock is taken: a change in between is then found at the next call.
        let changes = CHANGES.load(Ordering::Acquire);
        if seen.borrow().0 != changes {
            // The last user of a client that has left closes its descriptors: cancellation points.
            let _shield = Shield::raise();
            let client = CLIENT
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            let _before = seen.replace((changes, client));
        }
        let seen = seen.borrow();
        let client = seen.1.as_ref().ok_or_else(not_initialized)?;
        look.take().map_or(Ok(0), |look| look(client))
    });
    looked.unwrap_or_else(|_| {
        // A destructor of an ending thread may call this after the thread-local is gone.
        let client = client(context)?;
        look.take().map_or(Ok(0), |look| look(&client))
    })
}

impl From<Error> for Failure {
    /// The client's error as a code of the C API.
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Setting { .. }
            | Error::OneZone { .. }
            | Error::AgentDirectory(
                DirectoryError::Name { .. }
                | DirectoryError::Character { .. }
                | DirectoryError::NoText { .. }
                | DirectoryError::TooLong { .. }
                | DirectoryError::Unmapped,
            ) => Code::Config,
            Error::AgentDirectory(DirectoryError::Unsafe { .. }) => Code::Permission,
            Error::Refused {
                code: RefusalCode::User,
                ..
            } => Code::Permission,
            Error::AgentDirectory(DirectoryError::System { .. }) | Error::System { .. } => {
                Code::System
            }
            Error::StateTable(_) | Error::Refused { .. } | Error::Protocol { .. } => {
                Code::AgentRefused
            }
            Error::AgentMissing { .. } | Error::PluginMissing { .. } | Error::AgentStart { .. } => {
                Code::AgentStart
            }
            Error::Deadline { .. } => Code::Timeout,
            Error::AgentLost { .. } | Error::Dismissed { .. } | Error::Unanswered(_) => {
                Code::AgentLost
            }
            Error::Limit(_) => Code::Limit,
            Error::Declined(_) | Error::Reserved(_) => Code::Declined,
            Error::NoSuchNode { .. } => Code::NoSuchNode,
            Error::NoRank => Code::NoSuchRank,
            Error::BootstrapRecord(_) => Code::Argument,
            Error::Outcast => Code::Outcast,
            Error::Finalized => Code::NotInitialized,
            Error::Forked => Code::Forked,
        };
        Failure::new(code, error.to_string())
    }
}
