//! Tests that cannot run here. A test that did not run must not look as if it had.
//!
//! Crates that this one builds on have this file for a module of their tests.

#![allow(unreachable_pub)] // There nobody else sees it.

use std::io::Write;

/// The parts, by one word each, that are here: a test that is passed over for want of one is a fault.
/// `scripts/check` says what `make setup` has fetched, and what this user of this machine may do.
const NEEDS: &str = "MUSTER_TEST_NEEDS";

/// Says, past the capture, that a test or a part of one did not run for want of something.
///
/// # Panics
/// If that is among what is said to be here.
pub fn skipped(part: &str, why: &str) {
    let needs = std::env::var(NEEDS).unwrap_or_default();
    assert!(
        !needs.split_whitespace().any(|here| here == part),
        "{why}; but {NEEDS} says that `{part}` is here: the machine has it, or `sh scripts/setup` fetches it"
    );
    let text = format!("SKIPPED for want of `{part}`: {why}\n");
    std::io::stderr().write_all(text.as_bytes()).ok();
}
