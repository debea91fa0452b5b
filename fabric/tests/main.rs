//! The tests of the fabric with the real libfabric, in one program.

mod common;

mod addresses;
mod bulk;
mod devices;
mod errors;
mod fallback;
mod lanes;
mod liveness_connections;
mod loopback;
mod memory;
mod model;
mod nids;
mod rails;
mod relay;
