//! Types and constants of the installed PMIx.
//!
//! A process holds one libpmix, the one that MPI loaded, so this crate links none and declares no function. A program
//! that calls PMIx looks the functions up in that library (the `pmix` module of the crate `muster`). The layouts used
//! here (`pmix_proc_t`, `pmix_value_t`, `pmix_info_t`) are the same in PMIx 4.x and 5.x; the tests below check it.

#![no_std]

#[allow(
    missing_docs,
    non_camel_case_types,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    reason = "generated from C; the PMIx standard is the documentation"
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;

/// All ranks of a namespace, or the namespace itself (`PMIX_RANK_WILDCARD`, which the header defines by an expression
/// that a binding generator cannot evaluate).
pub const PMIX_RANK_WILDCARD: u32 = u32::MAX - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};

    /// The layouts of the libraries 4.2.2 and 5.0.11, on a 64-bit machine.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn layouts_are_those_of_pmix_4_and_5() {
        assert_eq!(size_of::<pmix_proc_t>(), 260);
        assert_eq!(offset_of!(pmix_proc_t, rank), 256);
        assert_eq!(size_of::<pmix_value_t>(), 32);
        assert_eq!(offset_of!(pmix_value_t, data), 8);
        assert_eq!(size_of::<pmix_info_t>(), 552);
        assert_eq!(offset_of!(pmix_info_t, value), 520);
    }

    #[test]
    fn numbers_are_those_of_the_standard() {
        assert_eq!(PMIX_ERR_PROC_ABORTED_BY_SIG, -402);
        assert_eq!(PMIX_ERR_PROC_ABORTED, -7);
        assert_eq!(PMIX_ERR_PROC_TERM_WO_SYNC, -200);
        assert_eq!(PMIX_ERR_EXIT_NONZERO_TERM, -404);
        assert_eq!(PMIX_EVENT_NO_ACTION_TAKEN, -331);
        assert_eq!(PMIX_EXTERNAL_ERR_BASE, -3000);
        assert_eq!(PMIX_ERR_UNREACH, -25);
        assert_eq!(PMIX_OPERATION_SUCCEEDED, -157);
        assert_eq!(PMIX_RANGE_PROC_LOCAL, 7);
        assert_eq!(PMIX_EVENT_NON_DEFAULT.to_bytes(), b"pmix.evnondef");
        assert_eq!(PMIX_EVENT_AFFECTED_PROC.to_bytes(), b"pmix.evproc");
    }
}
