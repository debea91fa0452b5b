//! The calls that return events or pass them to a callback.
//!
//! Callbacks run on the thread that calls `muster_dispatch`. The module `callback` has those on a thread of the
//! library.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::boundary::{count, enter};
use crate::callback;
use crate::context::{self, muster_ctx_t};
use crate::error::{Code, Failure};
use crate::event::{call_back, checked, muster_event_fn, muster_event_t, refuse_in_callback};

/// Most events of one dispatch, so that it ends even if events arrive without a pause.
const DISPATCH_MAX: usize = 1024;

/// The descriptor that is readable while there are events.
#[unsafe(no_mangle)]
pub extern "C" fn muster_get_fd(context: *mut muster_ctx_t) -> c_int {
    enter(|| {
        let client = context::client(context)?;
        Ok(client.descriptor()?.as_raw_fd())
    })
}

/// Takes the next event.
///
/// # Safety
/// `event` is NULL or points to a struct whose `struct_size` is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_next_event(
    context: *mut muster_ctx_t,
    event: *mut muster_event_t,
) -> c_int {
    enter(|| {
        let size = checked(event)?.struct_size;
        let client = context::client(context)?;
        callback::refuse_takers("muster_next_event")?;
        let Some(next) = client.next_event()? else {
            return Ok(0);
        };
        let mut taken = muster_event_t::of(&next);
        taken.struct_size = size;
        // SAFETY: the size was checked: the caller's struct holds all members of this version.
        unsafe { event.write(taken) };
        Ok(1)
    })
}

/// Takes up to `most` events, and waits for the first.
///
/// # Safety
/// `events` is NULL or points to `most` structs; the `struct_size` of the first one is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_poll_events(
    context: *mut muster_ctx_t,
    events: *mut muster_event_t,
    most: usize,
    timeout_ms: u32,
) -> c_int {
    enter(|| {
        if most == 0 {
            return Err(Failure::new(
                Code::Argument,
                "most is 0: the array has no room for an event",
            ));
        }
        let size = checked(events)?.struct_size;
        if size % align_of::<muster_event_t>() != 0 {
            return Err(Failure::new(
                Code::StructSize,
                format!(
                    "events->struct_size is {size}, larger than in any version; use MUSTER_EVENT_INIT"
                ),
            ));
        }
        let client = context::client(context)?;
        let deadline = Duration::from_millis(timeout_ms.into());
        let may_take = || callback::refuse_takers("muster_poll_events").is_ok();
        let mut next = client.wait_event_while(deadline, may_take)?;
        if next.is_none() {
            callback::refuse_takers("muster_poll_events")?;
        }
        let mut taken = 0;
        while let Some(found) = next {
            let mut event = muster_event_t::of(&found);
            event.struct_size = size;
            // SAFETY: the caller's array holds `most` structs of that size, and this is one of them.
            unsafe { events.byte_add(taken * size).write(event) };
            taken += 1;
            // An error from now on is returned by the next call.
            let wanted = taken < most && may_take();
            next = if wanted {
                client.next_event().unwrap_or(None)
            } else {
                None
            };
        }
        Ok(count(taken))
    })
}

/// Calls the callback with each event that waits.
///
/// # Safety
/// `callback` is NULL or a function that may be called with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_dispatch(
    context: *mut muster_ctx_t,
    callback: muster_event_fn,
    argument: *mut c_void,
) -> c_int {
    enter(|| {
        let Some(callback) = callback else {
            return Err(Failure::new(Code::Argument, "callback is NULL"));
        };
        refuse_in_callback("muster_dispatch")?;
        let client = context::client(context)?;
        callback::refuse_takers("muster_dispatch")?;
        // If the agent is lost, its earlier events are delivered first; then next_event returns the error.
        let _ = client.dispatch();
        let mut called = 0;
        while called < DISPATCH_MAX {
            let Some(event) = client.next_event()? else {
                break;
            };
            // SAFETY: the caller gives a function of this signature.
            unsafe { call_back(callback, &event, argument) };
            called += 1;
        }
        Ok(count(called))
    })
}
