//! Limits of zone maps.

/// Most nodes of a directory.
pub const NODES_MAX: usize = 1 << 22;
/// Most parts of a zone's path, and so most levels below the highest zone.
pub const DEPTH_MAX: usize = 3;
/// Most bytes of a part of a zone's path.
pub(crate) const PART_MAX: usize = 63;
/// Most bytes of a zone's path, with a `/` between its parts.
pub const PATH_MAX: usize = DEPTH_MAX * (PART_MAX + 1) - 1;
/// Most members of one zone, at any level.
pub const ZONE_MEMBERS_MAX: usize = 4096;
/// Zone supervisors of each zone, unless it has fewer nodes.
pub const SUPERVISORS: usize = 2;
