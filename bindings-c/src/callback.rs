//! Callbacks on a thread of the library. The caller must state that its callback is safe there.
//!
//! The thread is separate from the library's other thread, so that a slow callback does not delay the handling of the
//! agent. While a callback is set, it gets all events; other calls that take events return `MUSTER_ERR_BUSY`.

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
/// How long `stop` waits for a running callback.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// The callback that is set.
static SET: Mutex<Option<Running>> = Mutex::new(None);
/// Whether all events go to the callback.
static TAKES_ALL: AtomicBool = AtomicBool::new(false);

struct Running {
    /// The client whose events the callback gets.
    client: Client,
    stop_request: Arc<StopRequest>,
    /// Is disconnected when the thread has ended.
    over: Receiver<()>,
}

/// The request to end the thread.
struct StopRequest {
    given: AtomicBool,
    wake: EventFd,
}

struct Callback {
    // SAFETY of a call: with the context, with this argument, and with an event that is valid through the call.
    function: unsafe extern "C" fn(*mut muster_ctx_t, *const muster_event_t, *mut c_void),
    argument: *mut c_void,
}

// SAFETY: the caller of muster_set_callback states, by its level, that the callback may run on any thread, with its
// argument.
unsafe impl Send for Callback {}

/// Calls a function with each event, on a thread of the library; NULL ends that.
///
/// # Safety
/// `callback` is NULL or a function that may be called with `argument`, on another thread and at any
/// time until this is called with NULL or the context is finalized.
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
                    "safety is {safety}; a callback on a thread of the library requires \
                     MUSTER_CALLBACK_THREAD_SAFE (1). For any other callback use muster_dispatch"
                ),
            ));
        }
        if !client.has_thread() {
            return Err(Failure::new(
                Code::Config,
                "MUSTER_NO_THREAD is set, so there is no thread that could call back; use muster_dispatch",
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
    // A thread that has ended is no obstacle: its client left, or it returned after a stop that timed out.
    let ended = |running: &Running| running.over.try_recv() == Err(TryRecvError::Disconnected);
    if set.as_ref().is_some_and(|running| !ended(running)) {
        let message = "a callback is set already; remove it first by muster_set_callback with NULL";
        return Err(Failure::new(Code::Busy, message));
    }
    let system = |cause| {
        Failure::new(
            Code::System,
            format!("cannot start the callback thread: {cause}"),
        )
    };
    let stop_request = Arc::new(StopRequest {
        given: AtomicBool::new(false),
        wake: EventFd::new().map_err(system)?,
    });
    let (ends, over) = sync_channel(1);
    let builder = std::thread::Builder::new().name("muster-callback".into());
    let request = Arc::clone(&stop_request);
    let own = client.clone();
    TAKES_ALL.store(true, Ordering::Release);
    let started = signal::with_all_blocked(|| {
        builder.spawn(move || {
            run(&own, &request, &callback);
            drop(ends);
        })
    });
    if let Err(cause) = started {
        TAKES_ALL.store(false, Ordering::Release);
        return Err(system(cause));
    }
    // Threads that wait for events return: the callback gets all events now.
    client.wake_takers();
    *set = Some(Running {
        client,
        stop_request,
        over,
    });
    Ok(0)
}

/// Ends the callback thread and waits for it, at most [`STOP_DEADLINE`]: after that nothing is called back. With `of`,
/// only a thread of that client. After a time-out the callback still runs, but other calls may take events again.
pub(crate) fn stop(of: Option<&Client>) -> Result<c_int, Failure> {
    let mut set = SET.lock().unwrap_or_else(PoisonError::into_inner);
    let is_of_another = |running: &Running| of.is_some_and(|of| !running.client.is_same(of));
    let Some(running) = set.as_ref().filter(|running| !is_of_another(running)) else {
        return Ok(0);
    };
    running.stop_request.given.store(true, Ordering::Release);
    running.stop_request.wake.raise();
    let ended = running.over.recv_timeout(STOP_DEADLINE) != Err(RecvTimeoutError::Timeout);
    TAKES_ALL.store(false, Ordering::Release);
    if !ended {
        return Err(Failure::new(
            Code::Timeout,
            format!(
                "the callback has not returned within {} s; it is not called again, but what it uses must stay \
                 valid until it returns",
                STOP_DEADLINE.as_secs()
            ),
        ));
    }
    *set = None;
    Ok(0)
}

fn run(client: &Client, stop_request: &StopRequest, callback: &Callback) {
    while !stop_request.given.load(Ordering::Acquire) {
        match client.next_event() {
            // SAFETY: the caller of muster_set_callback promised that it may be called here.
            Ok(Some(event)) => unsafe { call_back(callback.function, &event, callback.argument) },
            Err(Error::Finalized | Error::Forked) => return,
            // A new agent may come: the library's other thread looks for one.
            Ok(None) | Err(_) => {
                let Ok(descriptor) = client.descriptor() else {
                    return;
                };
                let _ = poll::readable(&[descriptor, stop_request.wake.as_fd()], None);
            }
        }
    }
}
