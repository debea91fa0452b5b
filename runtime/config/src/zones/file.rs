//! The map file: a line for each zone, its path and its nodes.
//!
//! ```text
//! # two racks of a row
//! row1/rack1: n[001-256]
//! row1/rack2: n[257-512]
//! ```
//! A file may describe the whole machine: nodes that are not in the job are left out. Lines of one path add up.

use muster_zones::{Directory, ZoneEntry};

use super::{Entries, ZoneSourceError, nodes_of};

pub(super) fn entries(name: &str, text: &str, directory: &Directory) -> Entries {
    let mut entries = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split_once('#').map_or(line, |(line, _)| line).trim();
        if line.is_empty() {
            continue;
        }
        let fault = |reason: String| ZoneSourceError::Line {
            source_name: name.to_owned(),
            line: number + 1,
            reason,
        };
        let Some((path, list)) = line.split_once(':') else {
            return Err(fault(format!(
                "{line:?} has no ':'; write ZONE: NODES, as in row1/rack1: n[001-256]"
            )));
        };
        entries.push(ZoneEntry {
            path: path.trim().to_owned(),
            nodes: nodes_of(list.trim(), directory).map_err(fault)?,
        });
    }
    Ok(entries)
}
