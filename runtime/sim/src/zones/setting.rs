//! The size and the difficulty of a simulated job with zones.

use muster_zones::{Aim, Directory, ZoneMap, plan};

/// The size and the difficulty of a simulated job with zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZonedSetting {
    /// Nodes.
    pub nodes: usize,
    /// Nodes of a base zone.
    pub zone: usize,
    /// Most members of a zone above, which decides on the number of levels.
    pub above_max: usize,
    /// Lost datagrams, in thousandths.
    pub loss_permille: u32,
    /// Number of faults.
    pub faults: usize,
    /// Whether it is checked which nodes are told that they are outcast. Not for three levels: if the sides of a zone
    /// in between meet later than those of the highest zone, both see most of the job, and none is told.
    pub checks_outcasts: bool,
    /// Whether zones are cut off, and nodes stop for a while; otherwise nodes only die, leave and start again.
    pub has_cuts: bool,
}

impl ZonedSetting {
    /// The zones of this job.
    ///
    /// # Panics
    /// If the setting allows no map.
    #[must_use]
    pub fn map(&self) -> ZoneMap {
        let names: Vec<String> = (0..self.nodes).map(|node| format!("n{node:04}")).collect();
        let directory = Directory::new(names.iter().map(String::as_str));
        let aim = Aim {
            one_zone_max: self.zone,
            zone: self.zone,
            above_max: self.above_max,
        };
        let map = directory.and_then(|directory| plan(directory, &[], aim));
        map.unwrap_or_else(|error| panic!("a setting of a simulated job: {error}"))
    }
}
