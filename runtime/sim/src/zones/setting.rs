//! The size and the difficulty of a simulated job with zones.

use crate::study::Timing;
use muster_zones::{Aim, Directory, MapError, ZoneMap, plan};

/// The size and the difficulty of a simulated job with zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZonedSetting {
    /// Nodes.
    pub nodes: usize,
    /// Nodes of a base zone.
    pub zone: usize,
    /// Most members of a zone above, which decides on the number of levels.
    pub above_max: usize,
    /// The parameters of every engine.
    pub timing: Timing,
    /// Lost datagrams, in thousandths.
    pub loss_permille: u32,
    /// Nodes start one after the other over this time, in microseconds; 0: all at once.
    pub start_us: u64,
    /// Number of faults.
    pub faults: usize,
    /// Whether zones are cut off, and nodes stop for a while; otherwise nodes only die, leave and start again.
    pub has_cuts: bool,
    /// Whether nodes that are outcast stop, as those do whose ranks tell their MPI of failures.
    pub stops_outcasts: bool,
}

impl ZonedSetting {
    /// The zones of this job.
    ///
    /// # Errors
    /// The setting allows no map: for instance a zone of one node, or too many levels.
    pub fn map(&self) -> Result<ZoneMap, MapError> {
        let names: Vec<String> = (0..self.nodes).map(|node| format!("n{node:04}")).collect();
        let directory = Directory::new(names.iter().map(String::as_str));
        let aim = Aim {
            one_zone_max: self.zone,
            zone: self.zone,
            above_max: self.above_max,
        };
        directory.and_then(|directory| plan(directory, &[], aim))
    }
}
