//! Events: the C struct, and the call of a callback with one.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use muster_shm::{Cause, Event, EventKind, TableView};
use muster_sys::clock;

use crate::boundary::{check_room, enter, write_numbers};
use crate::context::{self, muster_ctx_t};
use crate::error::{Code, Failure};

/// One event, as in `muster.h`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(non_camel_case_types, reason = "the name that C sees")]
pub struct muster_event_t {
    /// Size of the caller's struct.
    pub struct_size: usize,
    /// Number of the event in this node's agent.
    pub sequence: u64,
    /// When the agent knew of it, CLOCK_MONOTONIC.
    pub verdict_ns: u64,
    /// When the call returned it, CLOCK_MONOTONIC.
    pub delivered_ns: u64,
    /// What happened.
    pub kind: i32,
    /// How it is known.
    pub cause: i32,
    /// Node index or `MUSTER_NONE`.
    pub node: u32,
    /// Rank or `MUSTER_NONE`.
    pub rank: u32,
    /// Signal or exit code.
    pub code: i32,
    /// Length of the silence, in microseconds.
    pub silent_us: u32,
    /// How many members reported it.
    pub reporter_count: u32,
    /// Node indices of the first reporters.
    pub reporters: [u32; 3],
    /// Events lost before this one.
    pub lost: u64,
    /// Hash of the key of an attribute.
    pub key_hash: u64,
    /// How many nodes (of a group, or on this side of a split).
    pub count: u32,
    /// Of how many nodes.
    pub total: u32,
}

/// The size of the struct in version 0.1: the smallest that a caller can have.
const FIRST_SIZE: usize = size_of::<muster_event_t>();

/// A caller's function for events.
#[allow(non_camel_case_types, reason = "the name that C sees")]
pub type muster_event_fn = Option<
    // SAFETY: called with the context, with the argument that was passed with the function, and with an event that
    // is valid until the function returns.
    unsafe extern "C" fn(
        context: *mut muster_ctx_t,
        event: *const muster_event_t,
        argument: *mut c_void,
    ),
>;

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Refuses a call that is not possible within a callback.
pub(crate) fn refuse_in_callback(call: &str) -> Result<(), Failure> {
    if IN_CALLBACK.get() {
        return Err(Failure::new(
            Code::Busy,
            format!("{call} is not possible within a callback"),
        ));
    }
    Ok(())
}

/// Calls the callback, on the current thread.
///
/// # Safety
/// `callback` may be called with `argument`.
pub(crate) unsafe fn call_back(
    // SAFETY of a call: with the context, with `argument`, and with an event that is valid through the call.
    callback: unsafe extern "C" fn(*mut muster_ctx_t, *const muster_event_t, *mut c_void),
    event: &Event,
    argument: *mut c_void,
) {
    let in_c = muster_event_t::of(event);
    let before = IN_CALLBACK.replace(true);
    // SAFETY: the caller's promise; the event is valid through the call.
    unsafe { callback(context::handle(), &raw const in_c, argument) };
    IN_CALLBACK.set(before);
}

impl muster_event_t {
    /// The event as the C struct, delivered now.
    pub(crate) fn of(event: &Event) -> Self {
        Self {
            struct_size: FIRST_SIZE,
            sequence: event.sequence,
            verdict_ns: event.at_ns,
            delivered_ns: clock::monotonic_ns(),
            kind: event.kind as i32,
            cause: event.cause as i32,
            node: event.node,
            rank: event.rank,
            code: event.code,
            silent_us: event.silent_us,
            reporter_count: event.reporter_count,
            reporters: event.reporters,
            lost: event.lost,
            key_hash: event.key_hash,
            count: event.count,
            total: event.total,
        }
    }

    /// The runtime's event; none if the kind is unknown.
    pub(crate) fn known(&self) -> Option<Event> {
        let kind = EventKind::from_number(u16::try_from(self.kind).ok()?)?;
        let cause = u16::try_from(self.cause).ok().and_then(Cause::from_number);
        Some(Event {
            sequence: self.sequence,
            at_ns: self.verdict_ns,
            node: self.node,
            rank: self.rank,
            code: self.code,
            silent_us: self.silent_us,
            reporter_count: self.reporter_count,
            reporters: self.reporters,
            lost: self.lost,
            key_hash: self.key_hash,
            count: self.count,
            total: self.total,
            ..Event::new(kind, cause.unwrap_or(Cause::Unspecified))
        })
    }

    /// The nodes that the event is about, as far as the state table still has them.
    fn nodes(&self, table: &TableView) -> Vec<u32> {
        self.known()
            .map_or_else(Vec::new, |event| table.event_nodes(&event))
    }
}

/// The caller's event, checked to have at least the first version's size.
pub(crate) fn checked<'a>(event: *const muster_event_t) -> Result<&'a muster_event_t, Failure> {
    if event.is_null() {
        return Err(Failure::new(Code::Argument, "event is NULL"));
    }
    // SAFETY: not NULL; the first member of every version is its size.
    let size = unsafe { event.cast::<usize>().read() };
    if size < FIRST_SIZE {
        return Err(Failure::new(
            Code::StructSize,
            format!(
                "event->struct_size is {size}, below the minimum of {FIRST_SIZE}; use MUSTER_EVENT_INIT"
            ),
        ));
    }
    // SAFETY: the caller's struct has all members of this version, by its size.
    Ok(unsafe { &*event })
}

/// The nodes that an event is about.
///
/// # Safety
/// `event` is NULL or points to an event; `nodes` has room for `size` indices, or is NULL if `size`
/// is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_event_nodes(
    context: *mut muster_ctx_t,
    event: *const muster_event_t,
    nodes: *mut u32,
    size: usize,
) -> c_int {
    enter(|| {
        let event = checked(event)?;
        check_room("nodes", nodes.cast(), size)?;
        context::with_table(context, |table| {
            let found = event.nodes(table);
            // SAFETY: the caller's promise is that of this function.
            Ok(unsafe { write_numbers(found.into_iter(), nodes, size) })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_without_its_size_is_refused() {
        let mut event = muster_event_t::of(&Event::new(EventKind::NodeUp, Cause::Joined));
        assert!(checked(&raw const event).is_ok());
        event.struct_size = 0;
        assert!(checked(&raw const event).is_err_and(|f| f.code == Code::StructSize));
        assert!(checked(std::ptr::null()).is_err_and(|f| f.code == Code::Argument));
    }

    /// A conversion to C and back changes nothing; an unknown kind is no event.
    #[test]
    fn an_event_is_the_same_in_c() {
        let mut event = Event::new(EventKind::GroupFailed, Cause::Silence);
        (event.sequence, event.at_ns, event.node) = (3, 4, 5);
        (event.reporters, event.count, event.total) = ([6, 7, 8], 9, 10);
        let mut in_c = muster_event_t::of(&event);
        assert_eq!(in_c.known(), Some(event));
        in_c.kind = 99;
        assert_eq!(in_c.known(), None);
    }
}
