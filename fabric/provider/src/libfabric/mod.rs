//! Safe wrappers of libfabric: load, open, post, complete. All of the crate's `unsafe` is in this folder.
//!
//! [`Libfabric`] is the loaded library. [`Lane`] is one open endpoint with its buffers: it posts sends and
//! receives and returns completions. `table` maps nets to providers; `info` queries libfabric for its offers, and
//! `queries` are those that need no open object; `class` requests a traffic class; `interfaces` finds the interface of
//! an address; `defaults` are settings; `kernel_symbols` saves time at the start; `device` finds the device of an
//! interface; `doorbell` wakes peers whose provider has no descriptor; `open` opens objects and `handle`
//! closes them. This folder makes no decisions: it knows no peers, no health, and no retries.

mod accept_queue;
mod array;
mod class;
mod defaults;
mod device;
mod doorbell;
mod dscp;
mod handle;
mod info;
mod interfaces;
mod kernel_symbols;
mod lane;
mod library;
mod open;
mod queries;
mod rescan;
pub mod table;

#[cfg(test)]
mod fork_test;

pub use accept_queue::waiting;
pub use class::{LOW_LATENCY, TrafficClass};
pub use interfaces::{Subnet, interface_of, rdma_device_of, subnet_of};
pub use lane::{Done, Lane, Limits, Posted, Refused};
pub use library::{Interface, Libfabric};
pub use queries::{has_provider, load, load_before_fork, load_from, offers, provider_device};
pub use rescan::RESCAN_SINCE;
