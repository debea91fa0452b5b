//! libfabric made safe: load, open, post, complete. All of the crate's `unsafe` is in this folder.
//!
//! [`Libfabric`] is the loaded library, `table` says which provider serves which net, `info` asks
//! libfabric what it offers, `class` asks for a traffic class, `interfaces` asks the kernel which interface has
//! an address, `names` finds peers' addresses where that takes time, `doorbell` wakes peers whose provider cannot,
//! `open` opens, `handle` closes what was opened, and [`Lane`] is one open endpoint with its buffers: it posts
//! sends and receives and hands out completions. Nothing in here chooses anything: no peers, no health, no retries.

mod array;
pub(crate) mod class;
mod doorbell;
mod handle;
mod info;
mod interfaces;
mod lane;
mod library;
mod names;
mod open;
pub(crate) mod table;
mod waiting;

#[cfg(test)]
mod fork_test;

use crate::error::CallError;
use std::net::SocketAddrV4;

/// Whether a row's provider offers an endpoint at this address.
pub(crate) fn offers(
    library: &Libfabric,
    row: &table::Row,
    source: SocketAddrV4,
) -> Result<(), CallError> {
    info::Info::query(library, row, Some(source)).map(drop)
}

/// Whether a provider of this name is built in, whatever devices there are.
pub(crate) fn has_provider(library: &Libfabric, name: &str) -> bool {
    info::Info::has_provider(library, name)
}

pub use class::TrafficClass;
pub(crate) use interfaces::{Subnet, interface_of, subnet_of};
pub(crate) use lane::{Done, Lane, Limits, Posted, Refused, SendTag};
pub use library::{Interface, Libfabric, load, load_from};
pub(crate) use waiting::waiting;
