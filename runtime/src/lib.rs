//! Muster: every rank of an HPC job knows, within milliseconds, which nodes and ranks
//! are alive, degraded, hung or dead, and why.

pub mod pmix;
