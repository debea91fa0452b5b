//! The zones of the job: their names, their nodes, and the zone of a node.

use std::ffi::{c_char, c_int};

use muster_shm::{NodeState, TableView};

use crate::boundary::{check_room, count, enter_quick as enter, write_numbers, write_text};
use crate::context::{self, muster_ctx_t};
use crate::error::{Code, Failure};
use crate::view::{known_rank, known_state, no_such_node, node_of};

fn no_such_zone(table: &TableView, zone: u32) -> Failure {
    let zones = match table.zone_count() {
        1 => "the job is one zone, number 0".to_owned(),
        zones => format!("the job has {zones} zones"),
    };
    Failure::new(
        Code::NoSuchZone,
        format!("zone {zone} is not known; {zones}"),
    )
}

fn known_zone(table: &TableView, zone: u32) -> Result<(), Failure> {
    match zone < table.zone_count() {
        true => Ok(()),
        false => Err(no_such_zone(table, zone)),
    }
}

fn zone_of(table: &TableView, node: u32) -> Result<c_int, Failure> {
    let name = table
        .node_name(node)
        .ok_or_else(|| no_such_node(node, table.node_count()))?;
    table.node_zone(node).map(count).ok_or_else(|| {
        Failure::new(
            Code::NoSuchZone,
            format!("node {node}, {name}, is in no zone: it is not in the job's list of nodes (MUSTER_NODES)"),
        )
    })
}

/// How many zones the job has.
#[unsafe(no_mangle)]
pub extern "C" fn muster_zone_count(context: *mut muster_ctx_t) -> c_int {
    enter(|| context::with_table(context, |table| Ok(count(table.zone_count()))))
}

/// The zone of a node.
#[unsafe(no_mangle)]
pub extern "C" fn muster_node_zone(context: *mut muster_ctx_t, node: u32) -> c_int {
    enter(|| context::with_table(context, |table| zone_of(table, node)))
}

/// The zone of the node that a rank runs on.
#[unsafe(no_mangle)]
pub extern "C" fn muster_rank_zone(context: *mut muster_ctx_t, rank: u32) -> c_int {
    enter(|| {
        context::with_table(context, |table| {
            known_rank(table, rank)?;
            zone_of(table, node_of(table, rank)?)
        })
    })
}

/// The name of a zone.
///
/// # Safety
/// `buffer` has room for `size` bytes, or is NULL if `size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_zone_name(
    context: *mut muster_ctx_t,
    zone: u32,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    enter(|| {
        context::with_table(context, |table| {
            let name = table
                .zone_name(zone)
                .ok_or_else(|| no_such_zone(table, zone))?;
            write_text(&name, buffer, size)
        })
    })
}

/// The nodes of a zone.
///
/// # Safety
/// `nodes` has room for `size` numbers, or is NULL if `size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn muster_zone_nodes(
    context: *mut muster_ctx_t,
    zone: u32,
    nodes: *mut u32,
    size: usize,
) -> c_int {
    enter(|| {
        context::check(context)?;
        check_room("nodes", nodes.cast(), size)?;
        context::with_table(context, |table| {
            known_zone(table, zone)?;
            // SAFETY: the caller's promise is that of this function.
            Ok(unsafe { write_numbers(table.zone_nodes(zone), nodes, size) })
        })
    })
}

/// How many nodes of a zone are in a state.
#[unsafe(no_mangle)]
pub extern "C" fn muster_zone_nodes_in_state(
    context: *mut muster_ctx_t,
    zone: u32,
    state: c_int,
) -> c_int {
    enter(|| {
        context::with_table(context, |table| {
            known_zone(table, zone)?;
            let wanted = known_state(state, NodeState::Left as u8)?;
            Ok(count(
                table.zone_nodes_in_state(zone, NodeState::from(wanted)),
            ))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shm::{TableLimits, TableWriter};

    #[test]
    fn errors_name_the_reason() {
        let mut writer = TableWriter::create(TableLimits::default()).expect("a state table");
        let view = writer.view();
        for node in ["n1", "n2"] {
            writer.add_node(node);
        }
        let refused = |result: Result<c_int, Failure>| {
            let failure = result.expect_err("an error");
            (failure.code, failure.message)
        };
        let zone = |number: u32| known_zone(&view, number).map(|()| 0);
        assert_eq!((zone_of(&view, 1).ok(), zone(0).ok()), (Some(0), Some(0)));
        assert_eq!(
            refused(zone(1)),
            (
                Code::NoSuchZone,
                "zone 1 is not known; the job is one zone, number 0".to_owned()
            )
        );
        for (number, name) in [(0, "z1"), (1, "z2")] {
            writer.set_zone(number, name);
        }
        writer.set_node_zone(0, 1);
        assert_eq!((zone_of(&view, 0).ok(), zone(1).ok()), (Some(1), Some(0)));
        assert_eq!(
            refused(zone(2)),
            (
                Code::NoSuchZone,
                "zone 2 is not known; the job has 2 zones".to_owned()
            )
        );
        let (code, message) = refused(zone_of(&view, 1));
        assert_eq!(code, Code::NoSuchZone);
        assert!(
            message.contains("n2") && message.contains("MUSTER_NODES"),
            "{message}"
        );
        assert_eq!(refused(zone_of(&view, 2)).0, Code::NoSuchNode);
    }
}
