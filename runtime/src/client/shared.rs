//! The one client of a process, counted: an application and its libraries may each attach and
//! leave, and only the last one out leaves for the process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Client, Error, Options};
use crate::sys::fork;

static SHARED: Mutex<Option<(Client, u32)>> = Mutex::new(None);
/// The fork generation that attached, plus one; zero if none has. Looked at before the lock, which
/// a forked child may find locked by a thread that it does not have.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Attaches, or counts one more user of what is attached (then the options are not looked at).
pub fn init(options: Options) -> Result<Client, Error> {
    let mut shared = lock()?;
    if let Some((client, users)) = shared.as_mut() {
        *users += 1;
        return Ok(client.clone());
    }
    let client = Client::attach(options)?;
    OWNER.store(fork::generation() + 1, Ordering::Release);
    *shared = Some((client.clone(), 1));
    Ok(client)
}

/// The attached client, without counting.
pub fn current() -> Result<Client, Error> {
    let shared = lock()?;
    shared
        .as_ref()
        .map(|(client, _)| client.clone())
        .ok_or(Error::Finalized)
}

/// One user less; the last one leaves. Says how many remain. In a forked child it does nothing.
pub fn finalize(exit_code: i32) -> Result<u32, Error> {
    let mut shared = lock()?;
    let Some((client, users)) = shared.as_mut() else {
        return Err(Error::Finalized);
    };
    *users -= 1;
    let remaining = *users;
    if remaining == 0 {
        let client = client.clone();
        *shared = None;
        OWNER.store(0, Ordering::Release);
        drop(shared);
        client.finalize(exit_code)?;
    }
    Ok(remaining)
}

fn lock() -> Result<MutexGuard<'static, Option<(Client, u32)>>, Error> {
    let owner = OWNER.load(Ordering::Acquire);
    if owner != 0 && owner != fork::current() + 1 {
        return Err(Error::Forked);
    }
    Ok(SHARED.lock().unwrap_or_else(PoisonError::into_inner))
}
