//! Muster: every rank of an HPC job knows, within milliseconds, which nodes and ranks
//! are alive, degraded, hung or dead, and why.

pub mod board;
pub mod bootstrap;
pub mod client;
pub mod doorman;
pub mod pmix;
pub mod sys;
pub mod watch;
