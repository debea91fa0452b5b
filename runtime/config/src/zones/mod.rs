//! Sources of zone maps: a map file, the topology of Slurm's switches, a pattern over host names, the node list.
//!
//! What a user writes comes first: the map file, then the pattern, then each leaf switch as a zone. Two of these must
//! agree. Without any, zones are planned along the switches if they are known, else in the order of the node list.

mod file;
mod pattern;
mod setting;
mod topology;

use muster_zones::{Aim, Directory, MapError, ZoneEntry, ZoneMap, plan};

pub use setting::{JobZones, NodeList, nodes_of_step, parse_zones, refuse_zones};
pub use topology::{Topology, parse_topology};

/// Why there is no zone map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZoneSourceError {
    /// A line of a source that is not valid.
    #[error("{source_name}, line {line}: {reason}")]
    Line {
        /// The source.
        source_name: String,
        /// The number of the line, from 1.
        line: usize,
        /// The fault and its remedy.
        reason: String,
    },
    /// The pattern is not valid, or does not fit a node.
    #[error("zone pattern {pattern:?}: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The fault and its remedy.
        reason: String,
    },
    /// A source without a fault in itself that makes no valid map.
    #[error("{source_name}: {error}")]
    Map {
        /// The source.
        source_name: String,
        /// The fault and its remedy.
        error: MapError,
    },
    /// Two sources that contradict each other.
    #[error(transparent)]
    Contradiction(MapError),
}

/// What is known about the zones of a job.
#[derive(Debug, Clone, Default)]
pub struct ZoneSources {
    /// The name and the text of a map file.
    pub file: Option<(String, String)>,
    /// A pattern over host names.
    pub pattern: Option<String>,
    /// The name of the topology's source, and the topology.
    pub topology: Option<(String, Topology)>,
    /// Each leaf switch of the topology is a zone, whatever its size.
    pub each_switch: bool,
    /// The sizes to aim at where zones are planned.
    pub aim: Aim,
}

impl ZoneSources {
    /// The zone map of these nodes, and the name of the source that decided.
    ///
    /// # Errors
    /// A source that is not valid, or two that contradict each other.
    pub fn map(&self, directory: &Directory) -> Result<(ZoneMap, String), ZoneSourceError> {
        let mut maps = Vec::new();
        if let Some((name, text)) = &self.file {
            maps.push((name.clone(), file::entries(name, text, directory)?));
        }
        if let Some(text) = &self.pattern {
            maps.push((
                format!("zone pattern {text:?}"),
                pattern::entries(text, directory)?,
            ));
        }
        if let Some((name, topology)) = self.topology.as_ref().filter(|_| self.each_switch) {
            maps.push((name.clone(), topology.entries(directory)));
        }
        let mut decided: Option<(ZoneMap, String)> = None;
        for (name, entries) in maps {
            let map =
                ZoneMap::new(directory.clone(), entries).map_err(|error| ZoneSourceError::Map {
                    source_name: name.clone(),
                    error,
                })?;
            match &decided {
                Some((first, first_name)) => {
                    let agreed = first.agree(first_name, &map, &name);
                    agreed.map_err(ZoneSourceError::Contradiction)?;
                }
                None => decided = Some((map, name)),
            }
        }
        match decided {
            Some(decided) => Ok(decided),
            None => self.planned(directory),
        }
    }

    fn planned(&self, directory: &Directory) -> Result<(ZoneMap, String), ZoneSourceError> {
        let (name, switches) = match &self.topology {
            Some((name, topology)) => (name.clone(), topology.switches(directory)),
            None => ("the node list".to_owned(), Vec::new()),
        };
        let map = plan(directory.clone(), &switches, self.aim);
        let map = map.map_err(|error| ZoneSourceError::Map {
            source_name: name.clone(),
            error,
        })?;
        Ok((map, name))
    }
}

/// The nodes of a host list that are in the directory: a source may know more nodes than the job has.
fn nodes_of(list: &str, directory: &Directory) -> Result<Vec<muster_zones::NodeIndex>, String> {
    let names = muster_hostlist::expand(list, muster_zones::NODES_MAX)
        .map_err(|error| error.to_string())?;
    Ok(names
        .iter()
        .filter_map(|name| directory.find(name))
        .collect())
}

type Entries = Result<Vec<ZoneEntry>, ZoneSourceError>;

#[cfg(test)]
mod tests;
