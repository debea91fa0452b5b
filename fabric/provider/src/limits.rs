//! Limits that hold for all nodes.

/// The maximum number of NIDs in one list, and of rails on one node.
pub const NIDS_MAX: usize = 8;
