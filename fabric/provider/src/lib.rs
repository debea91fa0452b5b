//! What one machine offers to rails: libfabric's endpoints, and its network interfaces.
//!
//! A [`Lane`] is an open endpoint of libfabric with its buffers. It sends and receives datagrams and returns
//! completions, and never blocks. A [`Nid`] names a network interface on a [`Net`], and `table` maps kinds of nets to
//! libfabric's providers. Of the interfaces the crate reports addresses and subnets, links that go up and down
//! ([`Links`]), speeds ([`Speeds`]) and NUMA nodes ([`locality`]), and which of them are rails by default
//! ([`DefaultRails`]).
//!
//! Not in this crate: peers, health, the selection of paths, and retries.
//!
//! Layers, from bottom to top; a module uses only modules that are listed before it:
//!
//! - `limits`, `net_kind`, `endpoint_name`: numbers, names and addresses that all others use
//! - `error`: what is wrong with a NID, and a failed call of libfabric
//! - `net`, `nid`: names of networks and interfaces, as text
//! - `libfabric`: the library, its providers, and lanes; all `unsafe` code
//! - `link`, `speeds`, `locality`, `lacks`: what the kernel and hwloc report about interfaces and devices
//! - `choice`: the default rails
//! - `raw_endpoint`: the baseline of measurements

#![deny(unsafe_code)]

mod choice;
mod endpoint_name;
mod error;
mod lacks;
#[allow(unsafe_code)]
mod libfabric;
mod limits;
mod link;
pub mod locality;
mod net;
mod net_kind;
mod nid;
mod raw_endpoint;
mod speeds;

pub use choice::DefaultRails;
pub use endpoint_name::EndpointName;
pub use error::{CallError, NidError};
pub use lacks::{is_device_removed, lacks as provider_lacks};
pub use libfabric::{
    Done, Interface, LOW_LATENCY, Lane, Libfabric, Limits, Posted, RESCAN_SINCE, Refused, Subnet,
    TrafficClass, has_provider, interface_of, load, load_before_fork, load_from, offers,
    provider_device, rdma_device_of, subnet_of, table, waiting,
};
pub use libfabric_sys::LoadError;
pub use limits::NIDS_MAX;
pub use link::{Link, Links};
pub use net::Net;
pub use net_kind::NetKind;
pub use nid::{Address, BEAT_PORT_OFFSET, Nid, NidList, PORT_DEFAULT};
pub use raw_endpoint::RawEndpoint;
pub use speeds::{InterfaceSpeeds, SPEEDS_DIRECTORY, Speeds};
