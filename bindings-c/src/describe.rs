//! Names and descriptions for people, from the runtime.

use std::ffi::{c_char, c_int};

use muster_client::describe;
use muster_shm::TableView;
use muster_shm::names::{CAUSES, KINDS, NODE_STATES, RANK_STATES, name};

use crate::boundary::{enter, write_text};
use crate::context::{self, muster_ctx_t};
use crate::event::{checked, muster_event_t};

/// The name of an event.
#[unsafe(no_mangle)]
pub extern "C" fn muster_event_name(kind: c_int) -> *const c_char {
    name(&KINDS, kind).as_ptr()
}

/// The name of a cause.
#[unsafe(no_mangle)]
pub extern "C" fn muster_cause_name(cause: c_int) -> *const c_char {
    name(&CAUSES, cause).as_ptr()
}

/// The name of a node's state.
#[unsafe(no_mangle)]
pub extern "C" fn muster_node_state_name(state: c_int) -> *const c_char {
    name(&NODE_STATES, state).as_ptr()
}

/// The name of a rank's state.
#[unsafe(no_mangle)]
pub extern "C" fn muster_rank_state_name(state: c_int) -> *const c_char {
    name(&RANK_STATES, state).as_ptr()
}

/// One line about an event, with the names in a state table.
fn line(event: &muster_event_t, table: &TableView) -> String {
    match event.known() {
        Some(known) => describe::on_table(&known, event.delivered_ns, table),
        None => format!("an event of the unknown kind {}", event.kind),
    }
}

/// Describes an event in one line of text.
///
/// # Safety
/// `event` is NULL or points to an event; `buffer` has room for `size` bytes, or is NULL if `size`
/// is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_event_describe(
    context: *mut muster_ctx_t,
    event: *const muster_event_t,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    enter(|| {
        let event = checked(event)?;
        context::with_table(context, |table| {
            let text = line(event, table);
            write_text(&text, buffer, size)
        })
    })
}
