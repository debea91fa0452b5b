//! The C API: `include/muster.h`, as functions.
//!
//! Each function does the same: enter through the boundary (no panic leaves it), check the arguments, call the Rust
//! client, convert the result. There is no logic here: the crate `muster` defines what an event means and when an
//! agent is started. `link.sh` makes `libmuster.so` and `libmuster.a` of this crate.
//!
//! Layers, from bottom to top; a module uses only modules that are listed before it:
//!
//! - `error`: codes and messages
//! - `boundary`: the entry of each call
//! - `config`: the settings that `muster_init` takes
//! - `context`: the connection of this process
//! - `event`: the C struct of an event
//! - `callback`: callbacks on a thread of the library
//! - `lifecycle`, `delivery`, `describe`, `view`, `wait` and the others: the calls
//!
//! Architecture invariant: only the C library is linked, since all this lives in the address space of applications.

mod attribute;
mod bootstrap_exchange;
mod boundary;
mod callback;
mod config;
mod context;
mod control;
mod counter;
mod delivery;
mod describe;
mod error;
mod event;
mod lifecycle;
mod progress;
mod traffic;
mod view;
mod wait;
mod zones;

pub use attribute::{
    muster_attribute_get, muster_attribute_keys, muster_key_hash, muster_publish, muster_unwatch,
    muster_watch, muster_withdraw,
};
pub use bootstrap_exchange::{muster_bootstrap_record, muster_take_bootstrap_records};
pub use callback::muster_set_callback;
pub use config::muster_config_t;
pub use context::muster_ctx_t;
pub use control::{muster_control, muster_why};
pub use counter::muster_counter;
pub use delivery::{muster_dispatch, muster_get_fd, muster_next_event, muster_poll_events};
pub use describe::{
    muster_cause_name, muster_event_describe, muster_event_name, muster_node_state_name,
    muster_rank_state_name,
};
pub use error::{CODES, Code, muster_error_name, muster_last_error_message, muster_strerror};
pub use event::{muster_event_fn, muster_event_nodes, muster_event_t};
pub use lifecycle::{muster_finalize, muster_init, muster_leave};
pub use progress::{muster_tick, muster_tick_every};
pub use traffic::{
    muster_heard_from, muster_piggyback_deliver, muster_piggyback_fill, muster_sent_to,
};
pub use view::{
    muster_epoch, muster_my_node, muster_my_rank, muster_node_count, muster_node_find,
    muster_node_group, muster_node_name, muster_node_ranks, muster_node_state, muster_node_states,
    muster_nodes_in_state, muster_rank_count, muster_rank_node, muster_rank_state,
    muster_rank_states, muster_ranks_in_state, muster_version,
};
pub use wait::{muster_wait_node, muster_wait_rank, muster_wait_ranks};
pub use zones::{
    muster_node_zone, muster_rank_zone, muster_zone_count, muster_zone_name, muster_zone_nodes,
    muster_zone_nodes_in_state,
};
