//! Callbacks on a thread of the library, for those who ask for them and say that they are safe there.
//!
//! The thread is one of its own, so that a callback that takes its time keeps nobody from dealing with
//! the agent. While it is there all events are its: who takes them elsewhere is told so.

use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_client::{Client, Error};
use muster_sys::descriptor::EventFd;
use muster_sys::{poll, signal};

use crate::boundary::enter;
use crate::context::{self, muster_ctx_t};
use crate::error::{Code, Failure};
use crate::event::{call_back, muster_event_fn, muster_event_t, refuse_in_callback};

/// `MUSTER_CALLBACK_THREAD_SAFE`.
const THREAD_SAFE: c_int = 1;
/// How long a callback that is running is waited for.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// The callback that is set.
static SET: Mutex<Option<Running>> = Mutex::new(None);
/// Whether events go to it alone.
static TAKES_ALL: AtomicBool = AtomicBool::new(false);

struct Running {
    /// Whose events it takes.
    client: Client,
    order: Arc<Order>,
    /// Hangs up when the thread has ended.
    over: Receiver<()>,
}

/// The order to end.
struct Order {
    given: AtomicBool,
    wake: EventFd,
}

struct Callback {
    function: unsafe extern "C" fn(*mut muster_ctx_t, *const muster_event_t, *mut c_void),
    argument: *mut c_void,
}

// SAFETY: who sets a callback says by its level that it may run on any thread, with its argument.
unsafe impl Send for Callback {}

/// Has events handed to a function on a thread of the library; with NULL no more.
///
/// # Safety
/// `callback` is NULL or a function that may be called with `argument`, on another thread and at any
/// time until this was called with NULL or the context was finalized.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_set_callback(
    context: *mut muster_ctx_t,
    callback: muster_event_fn,
    argument: *mut c_void,
    safety: c_int,
) -> c_int {
    enter(|| {
        context::check(context)?;
        refuse_in_callback("muster_set_callback")?;
        let client = context::client(context)?;
        let Some(function) = callback else {
            return stop(None);
        };
        if safety != THREAD_SAFE {
            return Err(Failure::new(
                Code::Argument,
                format!(
                    "safety is {safety}, but on a thread of the library only what is \
                     MUSTER_CALLBACK_THREAD_SAFE (1) can run; muster_dispatch asks for nothing"
                ),
            ));
        }
        if !client.has_thread() {
            return Err(Failure::new(
                Code::Config,
                "MUSTER_NO_THREAD was set, so there is no thread to call back on: use muster_dispatch",
            ));
        }
        start(client, Callback { function, argument })
    })
}

/// Refuses to take events from the callback that is set.
pub(crate) fn refuse_takers(call: &str) -> Result<(), Failure> {
    if TAKES_ALL.load(Ordering::Acquire) {
        return Err(Failure::new(
            Code::Busy,
            format!("{call}: all events go to the callback of muster_set_callback"),
        ));
    }
    Ok(())
}

fn start(client: Client, callback: Callback) -> Result<c_int, Failure> {
    let mut set = SET.lock().unwrap_or_else(PoisonError::into_inner);
    // One whose client has left, or which returned after it was stopped in vain, is no obstacle.
    let ended = |running: &Running| running.over.try_recv() == Err(TryRecvError::Disconnected);
    if set.as_ref().is_some_and(|running| !ended(running)) {
        let message = "another callback is set; take it back first, with NULL";
        return Err(Failure::new(Code::Busy, message));
    }
    let system = |cause| Failure::new(Code::System, format!("cannot call back: {cause}"));
    let order = Arc::new(Order {
        given: AtomicBool::new(false),
        wake: EventFd::new().map_err(system)?,
    });
    let (ends, over) = sync_channel(1);
    let builder = std::thread::Builder::new().name("muster-callback".into());
    let heard = Arc::clone(&order);
    let own = client.clone();
    TAKES_ALL.store(true, Ordering::Release);
    let started = signal::with_all_blocked(|| {
        builder.spawn(move || {
            run(&own, &heard, &callback);
            drop(ends);
        })
    });
    if let Err(cause) = started {
        TAKES_ALL.store(false, Ordering::Release);
        return Err(system(cause));
    }
    // Whoever waits for events finds out that they are not for him.
    client.wake_takers();
    *set = Some(Running {
        client,
        order,
        over,
    });
    Ok(0)
}

/// Ends the thread, if there is one (of this client, if one is given), and waits for it: after that
/// nothing is called back. Says so if it takes too long; even then events are for whoever takes them.
pub(crate) fn stop(of: Option<&Client>) -> Result<c_int, Failure> {
    let mut set = SET.lock().unwrap_or_else(PoisonError::into_inner);
    let others = |running: &Running| of.is_some_and(|of| !running.client.is_same(of));
    let Some(running) = set.as_ref().filter(|running| !others(running)) else {
        return Ok(0);
    };
    running.order.given.store(true, Ordering::Release);
    running.order.wake.raise();
    let ended = running.over.recv_timeout(STOP_DEADLINE) != Err(RecvTimeoutError::Timeout);
    TAKES_ALL.store(false, Ordering::Release);
    if !ended {
        return Err(Failure::new(
            Code::Timeout,
            format!(
                "the callback has not returned within {} s; it is called no more after that, and what it \
                 uses has to stay until it returns",
                STOP_DEADLINE.as_secs()
            ),
        ));
    }
    *set = None;
    Ok(0)
}

fn run(client: &Client, order: &Order, callback: &Callback) {
    while !order.given.load(Ordering::Acquire) {
        match client.next_event() {
            // SAFETY: whoever set it promised that it may be called here.
            Ok(Some(news)) => unsafe { call_back(callback.function, &news, callback.argument) },
            Err(Error::Finalized | Error::Forked) => return,
            // Another agent may come: the library's other thread looks for one.
            Ok(None) | Err(_) => {
                let Ok(descriptor) = client.descriptor() else {
                    return;
                };
                let _ = poll::readable(&[descriptor, order.wake.as_fd()], None);
            }
        }
    }
}
