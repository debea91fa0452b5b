//! The view: states by index, counts, names.

use std::ffi::{CStr, c_char, c_int};

use muster_shm::{NodeState, RankState, TableView};

use crate::boundary::{check_room, count, enter_quick as enter, write_numbers, write_text};
use crate::context::{self, muster_ctx_t};
use crate::error::{Code, Failure};

/// More states than any state table has.
const STATES_MAX: usize = 1 << 24;

pub(crate) fn no_such_node(node: u32, nodes: u32) -> Failure {
    Failure::new(
        Code::NoSuchNode,
        format!("node {node} is not known; {nodes} nodes are"),
    )
}

fn no_such_rank(rank: u32, ranks: u32) -> Failure {
    Failure::new(
        Code::NoSuchRank,
        format!("rank {rank} is not known; {ranks} ranks are"),
    )
}

fn known_node(table: &TableView, node: u32) -> Result<(), Failure> {
    let nodes = table.node_count();
    if node < nodes {
        Ok(())
    } else {
        Err(no_such_node(node, nodes))
    }
}

pub(crate) fn known_rank(table: &TableView, rank: u32) -> Result<(), Failure> {
    let ranks = table.rank_count();
    if rank < ranks {
        Ok(())
    } else {
        Err(no_such_rank(rank, ranks))
    }
}

/// The state of a node.
#[unsafe(no_mangle)]
pub extern "C" fn muster_node_state(context: *mut muster_ctx_t, node: u32) -> c_int {
    enter(|| {
        context::with_table(context, |table| {
            known_node(table, node)?;
            Ok(table.node_state(node) as c_int)
        })
    })
}

/// The state of a rank.
#[unsafe(no_mangle)]
pub extern "C" fn muster_rank_state(context: *mut muster_ctx_t, rank: u32) -> c_int {
    enter(|| {
        context::with_table(context, |table| {
            known_rank(table, rank)?;
            Ok(table.rank_state(rank) as c_int)
        })
    })
}

/// The node that a rank runs on.
#[unsafe(no_mangle)]
pub extern "C" fn muster_rank_node(context: *mut muster_ctx_t, rank: u32) -> c_int {
    enter(|| {
        context::with_table(context, |table| {
            known_rank(table, rank)?;
            node_of(table, rank).map(count)
        })
    })
}

/// The node of a known rank.
pub(crate) fn node_of(table: &TableView, rank: u32) -> Result<u32, Failure> {
    table.rank_node(rank).ok_or_else(|| {
        Failure::new(
            Code::NoSuchNode,
            format!("rank {rank} has not connected yet"),
        )
    })
}

/// The name of a node.
///
/// # Safety
/// `buffer` has room for `size` bytes, or is NULL if `size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_node_name(
    context: *mut muster_ctx_t,
    node: u32,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    enter(|| {
        context::with_table(context, |table| {
            let name = table
                .node_name(node)
                .ok_or_else(|| no_such_node(node, table.node_count()))?;
            write_text(&name, buffer, size)
        })
    })
}

/// The failure group of a node: what it shares with the nodes that may fail together with it.
///
/// # Safety
/// `buffer` has room for `size` bytes, or is NULL if `size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_node_group(
    context: *mut muster_ctx_t,
    node: u32,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    enter(|| {
        context::with_table(context, |table| {
            let group = table
                .node_group(node)
                .ok_or_else(|| no_such_node(node, table.node_count()))?;
            write_text(&group, buffer, size)
        })
    })
}

/// How many nodes are known.
#[unsafe(no_mangle)]
pub extern "C" fn muster_node_count(context: *mut muster_ctx_t) -> c_int {
    enter(|| context::with_table(context, |table| Ok(count(table.node_count()))))
}

/// How many ranks the job has.
#[unsafe(no_mangle)]
pub extern "C" fn muster_rank_count(context: *mut muster_ctx_t) -> c_int {
    enter(|| context::with_table(context, |table| Ok(count(table.rank_count()))))
}

pub(crate) fn known_state(state: c_int, last: u8) -> Result<u8, Failure> {
    u8::try_from(state)
        .ok()
        .filter(|state| *state <= last)
        .ok_or_else(|| {
            Failure::new(
                Code::Argument,
                format!("{state} is not a state; states are 0 to {last}"),
            )
        })
}

/// How many nodes are in a state.
#[unsafe(no_mangle)]
pub extern "C" fn muster_nodes_in_state(context: *mut muster_ctx_t, state: c_int) -> c_int {
    enter(|| {
        context::with_table(context, |table| {
            let wanted = known_state(state, NodeState::Left as u8)?;
            Ok(count(table.nodes_in_state(NodeState::from(wanted))))
        })
    })
}

/// How many ranks are in a state.
#[unsafe(no_mangle)]
pub extern "C" fn muster_ranks_in_state(context: *mut muster_ctx_t, state: c_int) -> c_int {
    enter(|| {
        context::with_table(context, |table| {
            let wanted = known_state(state, RankState::Left as u8)?;
            Ok(count(table.ranks_in_state(RankState::from(wanted))))
        })
    })
}

/// Copies the states of all nodes.
///
/// # Safety
/// `states` has room for `size` bytes, or is NULL if `size` is 0; `epoch` is NULL or points to a
/// writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_node_states(
    context: *mut muster_ctx_t,
    states: *mut u8,
    size: usize,
    epoch: *mut u64,
) -> c_int {
    // SAFETY: the caller's promises are those of this one.
    unsafe { copy_states(context, (states, size, epoch), TableView::copy_node_states) }
}

/// Copies the states of all ranks.
///
/// # Safety
/// As [`muster_node_states`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_rank_states(
    context: *mut muster_ctx_t,
    states: *mut u8,
    size: usize,
    epoch: *mut u64,
) -> c_int {
    // SAFETY: the caller's promises are those of this one.
    unsafe { copy_states(context, (states, size, epoch), TableView::copy_rank_states) }
}

/// # Safety
/// As [`muster_node_states`].
unsafe fn copy_states(
    context: *const muster_ctx_t,
    (states, size, epoch): (*mut u8, usize, *mut u64),
    copy: impl FnOnce(&TableView, &mut [u8]) -> Option<(u32, u64)>,
) -> c_int {
    enter(|| {
        context::check(context)?;
        check_room("states", states.cast(), size)?;
        let states: &mut [u8] = match size {
            0 => &mut [],
            // SAFETY: not NULL, and the caller gives `size` writable bytes; no state table has as many as
            // the limit.
            _ => unsafe { std::slice::from_raw_parts_mut(states, size.min(STATES_MAX)) },
        };
        context::with_table(context, |table| {
            let (known, at) = copy(table, states).ok_or_else(|| {
                Failure::new(
                    Code::Timeout,
                    "the states changed faster than they could be copied; try again",
                )
            })?;
            if !epoch.is_null() {
                // SAFETY: not NULL, and the caller's to write to.
                unsafe { epoch.write(at) };
            }
            Ok(count(known))
        })
    })
}

/// The index of the node of this name.
///
/// # Safety
/// `name` is NULL or a terminated text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_node_find(
    context: *mut muster_ctx_t,
    name: *const c_char,
) -> c_int {
    enter(|| {
        context::check(context)?;
        if name.is_null() {
            return Err(Failure::new(Code::Argument, "name is NULL"));
        }
        // SAFETY: not NULL, and the caller gives a terminated text that lives through the call.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        context::with_table(context, |table| {
            table.node_find(&name).map(count).ok_or_else(|| {
                Failure::new(Code::NoSuchNode, format!("no node named {name:?} is known"))
            })
        })
    })
}

/// The ranks that run on a node.
///
/// # Safety
/// `ranks` has room for `size` numbers, or is NULL if `size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_node_ranks(
    context: *mut muster_ctx_t,
    node: u32,
    ranks: *mut u32,
    size: usize,
) -> c_int {
    enter(|| {
        context::check(context)?;
        check_room("ranks", ranks.cast(), size)?;
        context::with_table(context, |table| {
            known_node(table, node)?;
            // SAFETY: the caller's promise is that of this function.
            Ok(unsafe { write_numbers(table.node_ranks(node), ranks, size) })
        })
    })
}

/// The rank of this process.
#[unsafe(no_mangle)]
pub extern "C" fn muster_my_rank(context: *mut muster_ctx_t) -> c_int {
    enter(|| {
        let rank = context::client(context)?.my_rank()?;
        rank.map(count).ok_or_else(|| {
            Failure::new(
                Code::NoSuchRank,
                "this process has no rank; set muster_config_t.rank, or start the process by a launcher",
            )
        })
    })
}

/// The node of this process.
#[unsafe(no_mangle)]
pub extern "C" fn muster_my_node(context: *mut muster_ctx_t) -> c_int {
    enter(|| {
        context::with_table(context, |table| {
            table.own_node().map(count).ok_or_else(|| {
                Failure::new(
                    Code::NoSuchNode,
                    "the agent has not yet stated which node this is; try again",
                )
            })
        })
    })
}

/// The epoch: a number that grows with each change of a state.
///
/// # Safety
/// `epoch` is NULL or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_epoch(context: *mut muster_ctx_t, epoch: *mut u64) -> c_int {
    enter(|| {
        context::check(context)?;
        if epoch.is_null() {
            return Err(Failure::new(Code::Argument, "epoch is NULL"));
        }
        context::with_table(context, |table| {
            // SAFETY: not NULL, and the caller's to write to.
            unsafe { epoch.write(table.epoch()) };
            Ok(0)
        })
    })
}

/// The version of this library.
///
/// # Safety
/// Each pointer is NULL or points to a writable number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_version(
    major: *mut c_int,
    minor: *mut c_int,
    patch: *mut c_int,
) -> c_int {
    enter(|| {
        let numbers = [
            (major, env!("CARGO_PKG_VERSION_MAJOR")),
            (minor, env!("CARGO_PKG_VERSION_MINOR")),
            (patch, env!("CARGO_PKG_VERSION_PATCH")),
        ];
        for (target, number) in numbers {
            if !target.is_null() {
                // SAFETY: not NULL, and the caller's to write to.
                unsafe { target.write(number.parse().unwrap_or(0)) };
            }
        }
        Ok(0)
    })
}
