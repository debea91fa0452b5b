//! The connection of this process: one, counted, and safe to ask for at any time.
//!
//! The pointer that C holds is the address of a static, never of the connection. So a call with a
//! context that was finalized, or that never was one, or from a forked child, finds that out by
//! comparing, and touches nothing.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use muster_client::bootstrap;
use muster_client::{Client, Error, Options, shared};
use muster_ipc::{DirectoryError, RefusalCode};
use muster_shm::TableView;
use muster_sys::cancel::Shield;
use muster_sys::fork;

use crate::boundary::enter;
use crate::callback;
use crate::config::{Settings, muster_config_t};
use crate::error::{Code, Failure};
use crate::event::refuse_in_callback;

/// What C holds a pointer to.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "the name that C sees")]
pub struct muster_ctx_t {
    /// Gives the static an address of its own.
    _opaque: AtomicU8,
}

static HANDLE: muster_ctx_t = muster_ctx_t {
    _opaque: AtomicU8::new(0),
};

/// The connection, while there is one. Who counts the inits is [`shared`].
static CLIENT: RwLock<Option<Client>> = RwLock::new(None);
/// Counts the changes of [`CLIENT`], from 1.
static CHANGES: AtomicU64 = AtomicU64::new(1);
/// The fork generation that is connected, plus one, and above it a number that no connecting thread uses
/// twice; zero if none is connected. Looked at before the lock, which a forked child may find locked by a
/// thread that is not there.
static OWNER: AtomicU64 = AtomicU64::new(0);
static CONNECTS: AtomicU32 = AtomicU32::new(0);

/// Connects this process.
///
/// # Safety
/// `config` is NULL or points to a struct whose `struct_size` is right; `context` is NULL or
/// points to a writable pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_init(
    config: *const muster_config_t,
    context: *mut *mut muster_ctx_t,
) -> c_int {
    enter(|| {
        if context.is_null() {
            return Err(Failure::new(Code::Argument, "context is NULL"));
        }
        // SAFETY: not NULL, and the caller's to write to.
        unsafe { context.write(std::ptr::null_mut()) };
        let settings = Settings::read(config)?;
        refuse_forked()?;
        refuse_in_callback("muster_init")?;
        connect(settings)?;
        // SAFETY: as above.
        unsafe { context.write(handle()) };
        Ok(0)
    })
}

/// Undoes one init.
#[unsafe(no_mangle)]
pub extern "C" fn muster_finalize(context: *mut muster_ctx_t) -> c_int {
    enter(|| leave(context, 0, "muster_finalize"))
}

/// Undoes one init; the last one says with which exit code this process will end.
#[unsafe(no_mangle)]
pub extern "C" fn muster_leave(context: *mut muster_ctx_t, exit_code: c_int) -> c_int {
    enter(|| {
        if !(0..=255).contains(&exit_code) {
            return Err(Failure::new(
                Code::Argument,
                format!("exit_code is {exit_code}; a process ends with one of 0 to 255"),
            ));
        }
        leave(context, exit_code, "muster_leave")
    })
}

fn leave(context: *const muster_ctx_t, exit_code: c_int, call: &str) -> Result<c_int, Failure> {
    check(context)?;
    refuse_in_callback(call)?;
    let leaving = client(context)?;
    // A callback that runs returns before anything goes, so that its calls find the connection. One that has
    // not returned in time finds none any more; who finalizes has to know, since what it uses is not to be
    // given back yet.
    let mut stopped = Ok(0);
    let remaining =
        shared::finalize_after(exit_code, |client| stopped = callback::stop(Some(client)))?;
    if remaining == 0 {
        forget_client(&leaving);
        return stopped;
    }
    Ok(0)
}

fn connect(settings: Settings) -> Result<(), Failure> {
    let client = shared::init(options(settings))?;
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
    // Once more: another thread may have left in between.
    note_owner();
    drop(current);
    CHANGES.fetch_add(1, Ordering::AcqRel);
}

/// Forgets a client that has left, unless another thread has connected anew meanwhile.
fn forget_client(left: &Client) {
    let mut client = CLIENT.write().unwrap_or_else(PoisonError::into_inner);
    let owner = OWNER.load(Ordering::Acquire);
    let forgotten = client.as_ref().is_some_and(|client| client.is_same(left));
    if forgotten {
        *client = None;
    }
    drop(client);
    if forgotten {
        // A child that is forked from now on may connect for itself. Not sooner: it would find the lock
        // taken for good. Unless another thread has connected anew meanwhile.
        let _ = OWNER.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
    CHANGES.fetch_add(1, Ordering::AcqRel);
}

fn options(settings: Settings) -> Options {
    let otherwise = Options::default();
    let ulfm = settings.feed_ulfm || otherwise.ulfm;
    Options {
        job: settings.job,
        node: settings.node,
        directory: settings.directory.map(Into::into),
        rank: settings.rank,
        job_size: settings.ranks.unwrap_or(0),
        thread: !settings.no_thread,
        ulfm,
        deadline: settings
            .timeout_ms
            .map_or(otherwise.deadline, |timeout_ms| {
                Duration::from_millis(timeout_ms.into())
            }),
        pmix_integration: bootstrap::pmix_integration(ulfm),
        ..otherwise
    }
}

pub(crate) fn handle() -> *mut muster_ctx_t {
    (&raw const HANDLE).cast_mut()
}

fn not_initialized() -> Failure {
    Failure::new(
        Code::NotInitialized,
        "there is no connection: call muster_init first",
    )
}

fn refuse_forked() -> Result<(), Failure> {
    let owner = OWNER.load(Ordering::Acquire) as u32;
    if owner != 0 && owner != fork::current() + 1 {
        return Err(Failure::new(
            Code::Forked,
            "this process is a fork of the one that called muster_init; exec a program instead",
        ));
    }
    Ok(())
}

/// Refuses what is no context, and the forked child of its owner.
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

/// The client, kept alive through the call that asks for it.
pub(crate) fn client(context: *const muster_ctx_t) -> Result<Client, Failure> {
    check(context)?;
    let client = CLIENT.read().unwrap_or_else(PoisonError::into_inner);
    client.clone().ok_or_else(not_initialized)
}

thread_local! {
    /// What this thread saw last in [`CLIENT`], and at which [`CHANGES`]. It saves each query the
    /// lock, whose two locked instructions cost more than the query. A client that has left stays
    /// in memory until each thread that used it has called again, or ended.
    static SEEN: RefCell<(u64, Option<Client>)> = const { RefCell::new((0, None)) };
}

/// A look at the board, for calls that only read from it.
#[inline]
pub(crate) fn with_table(
    context: *const muster_ctx_t,
    look: impl FnOnce(&TableView) -> Result<c_int, Failure>,
) -> Result<c_int, Failure> {
    with_client(context, |client| look(client.table()?))
}

/// A call that is made often: without a lock.
#[inline]
pub(crate) fn with_client(
    context: *const muster_ctx_t,
    look: impl FnOnce(&Client) -> Result<c_int, Failure>,
) -> Result<c_int, Failure> {
    check(context)?;
    let look = Cell::new(Some(look));
    let looked = SEEN.try_with(|seen| {
        // Looked at before the lock is: a change in between is then found at the next call.
        let changes = CHANGES.load(Ordering::Acquire);
        if seen.borrow().0 != changes {
            // The last who used a client that has left closes what is its own.
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
        // A destructor of an ending thread asks, after the place above is gone.
        let client = client(context)?;
        look.take().map_or(Ok(0), |look| look(&client))
    })
}

impl From<Error> for Failure {
    /// What the client's refusal is in C.
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Setting { .. }
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
