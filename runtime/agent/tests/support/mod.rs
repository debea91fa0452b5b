//! Shared by the tests of the client side: a minimal agent, and processes that attach and are killed.
//!
//! The agent consists of the real state table, ipc server and watch with a minimal loop around them, in a
//! thread of the test. The clients are processes: the same test binary, started again with a variable that
//! makes its test `role` act instead of return. A test sends them orders over stdin and reads their replies
//! from stdout. Every wait is for an event, with one deadline for all.
// Each test binary uses a part of this.
#![allow(dead_code, unreachable_pub)]

pub mod agent;
pub mod rank;
pub mod raw;

use std::time::Duration;

/// The deadline of all waits; no wait in these tests should come near it.
pub const DEADLINE: Duration = Duration::from_secs(30);
