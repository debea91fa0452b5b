//! The frame (`muster_wire::frame`): what a host may read of it, and what the overlay uses.

pub use muster_wire::frame::{FRAME_OVERHEAD, HEADER_SIZE, TAG_SIZE, WIRE_VERSION, sender, zone};
pub(crate) use muster_wire::frame::{
    FrameName, Header, Kind, Opened, Receiver, open, other_release, peek, seal, unproven,
};
