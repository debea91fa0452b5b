//! Safe wrappers of libfabric: load, open, post, complete. All of the crate's `unsafe` is in this folder.
//!
//! [`Libfabric`] is the loaded library. [`Lane`] is one open endpoint with its buffers: it posts sends and
//! receives and returns completions. `table` maps nets to providers; `info` queries libfabric for its offers;
//! `class` requests a traffic class; `interfaces` finds the interface of an address; `names` resolves peers'
//! addresses where that takes time; `doorbell` wakes peers whose provider has no descriptor; `open` opens
//! objects and `handle` closes them. This folder makes no decisions: it knows no peers, no health, and no
//! retries.

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

/// Whether the provider of `row` offers an endpoint at this address.
pub(crate) fn offers(
    library: &Libfabric,
    row: &table::Row,
    source: SocketAddrV4,
) -> Result<(), CallError> {
    info::Info::query(library, row, Some(source)).map(drop)
}

/// Whether a provider of this name is built in, with or without a device.
pub(crate) fn has_provider(library: &Libfabric, name: &str) -> bool {
    info::Info::has_provider(library, name)
}

pub use class::TrafficClass;
pub(crate) use interfaces::{Subnet, interface_of, subnet_of};
pub(crate) use lane::{Done, Lane, Limits, Posted, Refused, SendTag};
pub use library::{Interface, Libfabric, load, load_from};
pub(crate) use waiting::waiting;
