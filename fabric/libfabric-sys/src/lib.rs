//! Bindings of the installed libfabric, loaded at run time.
//!
//! Two halves. What libfabric's headers hold (types, constants, header-only functions) is read at
//! build time and compiled into a shim. What its library exports is a handful of functions, found
//! with `dlopen` in [`Exports::load`]: a program that is built with this crate has no dependency on
//! `libfabric.so.1` until it asks for it, and it can say clearly what is missing.
//!
//! Not here: any judgement. The safe use of all this is the `provider` module of `muster-fabric`.

mod exports;

/// What bindgen read from the headers. Names and meaning are libfabric's; see its manual pages.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unused_qualifications,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
pub use exports::{ABI, Exports, HEADERS, LoadError};

/// "No address": a cast macro in the headers, which bindgen cannot read.
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;

/// An address that the address vector does not know; likewise a cast macro.
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;

/// An API version as libfabric packs it.
#[must_use]
pub const fn fi_version_of(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}
