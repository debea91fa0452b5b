//! Muster: every rank of an HPC job knows, within milliseconds, which nodes and ranks are
//! alive, degraded, hung or dead, and why.
#![deny(unsafe_code)]

#[cfg(feature = "agent")]
pub mod agent;
pub mod bootstrap;
#[cfg(feature = "agent")]
pub mod cli;
pub mod client;
#[cfg(feature = "agent")]
pub mod config;
#[cfg(feature = "agent")]
pub mod control;
pub mod ipc;
#[cfg(feature = "agent")]
mod journal;
#[cfg(feature = "agent")]
pub mod launch;
pub mod pmix;
#[cfg(feature = "agent")]
mod rendezvous;
pub mod shm;
#[allow(unsafe_code)]
pub mod sys;
pub mod watch;
