//! What the tests of the client side share: a miniature agent, and processes to attach and kill.
//!
//! The agent is the real board, doorman and watch with the smallest possible loop around them,
//! in a thread of the test. The clients are processes: this very test binary, started again with
//! a variable that makes its test `role` act instead of return. A test tells them what to do over
//! stdin and hears from them over stdout. Every wait is for an event, with one deadline for all.
// Each test binary uses its part of it.
#![allow(dead_code, unreachable_pub)]

pub mod agent;
pub mod rank;
pub mod raw;

use std::time::Duration;

/// No wait in these tests is meant to come near it.
pub const DEADLINE: Duration = Duration::from_secs(30);
