//! Muster: every rank of an HPC job knows, within milliseconds, which nodes and ranks are alive, degraded, hung
//! or dead, and why.
//!
//! This crate is the API for Rust programs. It re-exports the client library: a process attaches to the agent of its
//! node with [`Client::attach`], reads states, and waits for events.
#![forbid(unsafe_code)]

pub use muster_client::*;
