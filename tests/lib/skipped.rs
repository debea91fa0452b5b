//! Tests that cannot run here. A test that did not run must not look as if it had passed.
//!
//! Other crates include this file as a module of their tests.

#![allow(unreachable_pub)] // In those crates it is not reachable from outside.

use std::io::Write;

/// The parts that exist on this machine, one word each: to skip a test for lack of one of them is an error.
/// `scripts/check` lists what `make setup` has fetched, and what this user may do on this machine.
const NEEDS: &str = "MUSTER_TEST_NEEDS";

/// Prints, past the capture, that a test or a part of one did not run, and the reason.
///
/// # Panics
/// If the missing part is listed in the variable.
pub fn skipped(part: &str, why: &str) {
    let needs = std::env::var(NEEDS).unwrap_or_default();
    assert!(
        !needs.split_whitespace().any(|here| here == part),
        "{why}; but {NEEDS} says that `{part}` is here: the machine has it, or `sh scripts/setup` fetches it"
    );
    let text = format!("SKIPPED for want of `{part}`: {why}\n");
    std::io::stderr().write_all(text.as_bytes()).ok();
}
