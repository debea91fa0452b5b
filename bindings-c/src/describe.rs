//! Names and descriptions for people, from the runtime.

use std::ffi::{c_char, c_int};

use muster_client::describe;
use muster_shm::names::{CAUSES, KINDS, NODE_STATES, RANK_STATES, name};
use muster_shm::{Cause, Event, EventKind, TableView};

use crate::event::muster_event_t;

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
pub(crate) fn line(event: &muster_event_t, table: &TableView) -> String {
    match event.known() {
        Some(known) => describe::on_table(&known, event.delivered_ns, table),
        None => format!("an event of the unknown kind {}", event.kind),
    }
}

impl muster_event_t {
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
}
