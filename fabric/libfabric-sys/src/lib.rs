//! Bindings of the installed libfabric, loaded at run time.
//!
//! There are two parts. The types, constants and header-only functions of libfabric's headers are read at build
//! time; the functions are compiled into a shim. The few functions that the library exports are found with
//! `dlopen` in [`Exports::load`]. So a program that is built with this crate does not depend on
//! `libfabric.so.1` until it loads it, and can report clearly what is missing.
//!
//! This crate only declares the interface. The safe wrapper is `muster-provider`.

mod exports;

/// Declarations that bindgen read from the headers. Names and meaning are libfabric's; see its manual pages.
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

/// "No address". In the headers it is a macro with a cast, which bindgen cannot read.
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;

/// An address that is not in the address vector; also a macro with a cast.
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;

/// Packs an API version as libfabric does.
#[must_use]
pub const fn fi_version_of(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}
