//! The switches of a machine, as Slurm writes them: `topology.conf`, or the output of `scontrol show topology`.
//!
//! ```text
//! SwitchName=leaf1 Nodes=n[1-4]
//! SwitchName=leaf2 Nodes=n[5-8]
//! SwitchName=top Switches=leaf[1-2]
//! ```
//! Other words of a line, such as `Level` and `LinkSpeed`, are skipped. Source: topology.conf(5) of Slurm.

use std::collections::{BTreeMap, BTreeSet};

use muster_hostlist::expand;
use muster_zones::{Directory, NODES_MAX, NodeIndex, Switch, ZoneEntry};

use super::{ZoneSourceError, nodes_of};

/// Most switches of a topology.
const SWITCHES_MAX: usize = 1 << 16;
/// Most switches above each other.
const HEIGHT_MAX: usize = 16;

/// The leaf switches of a machine, in the order of their tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    leaves: Vec<Leaf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Leaf {
    name: String,
    /// The switches above, outermost first.
    above: Vec<String>,
    nodes: String,
}

/// One line.
#[derive(Default)]
struct Line {
    number: usize,
    name: String,
    nodes: Option<String>,
    switches: Vec<String>,
}

/// Reads a topology. `name` is that of its source, for messages.
///
/// # Errors
/// The first line that is not valid, with its number.
pub fn parse_topology(name: &str, text: &str) -> Result<Topology, ZoneSourceError> {
    let fault = |line: usize, reason: String| ZoneSourceError::Line {
        source_name: name.to_owned(),
        line,
        reason,
    };
    let mut lines: Vec<Line> = Vec::new();
    for (place, line) in text.lines().enumerate() {
        let line = line.split_once('#').map_or(line, |(line, _)| line).trim();
        if !line.is_empty() {
            lines.push(parse_line(place + 1, line).map_err(|reason| fault(place + 1, reason))?);
        }
    }
    if lines.is_empty() {
        let reason =
            "it has no SwitchName; give the output of scontrol show topology, or topology.conf";
        return Err(fault(1, reason.to_owned()));
    }
    let parents = parents(&lines).map_err(|(line, reason)| fault(line, reason))?;
    let mut leaves = Vec::new();
    for line in &lines {
        // scontrol shows all nodes below a switch at the upper switches too.
        let Some(nodes) = line.nodes.as_ref().filter(|_| line.switches.is_empty()) else {
            continue;
        };
        let above = ancestors(&line.name, &parents).map_err(|reason| fault(line.number, reason))?;
        leaves.push(Leaf {
            name: line.name.clone(),
            above,
            nodes: nodes.clone(),
        });
    }
    let topology = Topology { leaves };
    topology.check(name, &lines)?;
    Ok(topology)
}

fn parse_line(number: usize, text: &str) -> Result<Line, String> {
    let mut line = Line {
        number,
        ..Line::default()
    };
    for word in text.split_whitespace() {
        let Some((key, value)) = word.split_once('=') else {
            return Err(format!("{word:?} has no '='; write KEY=VALUE"));
        };
        match key.to_ascii_lowercase().as_str() {
            "switchname" => line.name = value.to_owned(),
            "nodes" if !value.is_empty() && value != "(null)" => {
                line.nodes = Some(value.to_owned());
            }
            "switches" if !value.is_empty() && value != "(null)" => {
                line.switches = expand(value, SWITCHES_MAX).map_err(|error| error.to_string())?;
            }
            "blockname" => {
                return Err(
                    "blocks are not supported; use a topology of switches, or a map file"
                        .to_owned(),
                );
            }
            _ => {}
        }
    }
    if line.name.is_empty() {
        return Err(format!(
            "{text:?} has no SwitchName; each line describes one switch"
        ));
    }
    if line.nodes.is_none() && line.switches.is_empty() {
        return Err(format!(
            "switch {} has neither Nodes nor Switches; add what is connected to it",
            line.name
        ));
    }
    Ok(line)
}

type Fault = (usize, String);

/// The switch above each switch.
fn parents(lines: &[Line]) -> Result<BTreeMap<&str, &str>, Fault> {
    let mut names = BTreeSet::new();
    for line in lines {
        if !names.insert(line.name.as_str()) {
            return Err((
                line.number,
                format!("switch {} is there twice; describe it once", line.name),
            ));
        }
    }
    let mut parents = BTreeMap::new();
    for line in lines {
        for below in &line.switches {
            if !names.contains(below.as_str()) {
                let reason = format!(
                    "switch {} is below {} and has no line; add one",
                    below, line.name
                );
                return Err((line.number, reason));
            }
            if let Some(other) = parents.insert(below.as_str(), line.name.as_str()) {
                let reason = format!(
                    "switch {below} is below {other} and {}; only trees are supported",
                    line.name
                );
                return Err((line.number, reason));
            }
        }
    }
    Ok(parents)
}

/// The switches above one, outermost first.
fn ancestors(name: &str, parents: &BTreeMap<&str, &str>) -> Result<Vec<String>, String> {
    let mut above = Vec::new();
    let mut at = name;
    while let Some(parent) = parents.get(at) {
        if above.len() == HEIGHT_MAX {
            return Err(format!(
                "more than {HEIGHT_MAX} switches above {name}, or a circle; only trees are supported"
            ));
        }
        above.push((*parent).to_owned());
        at = parent;
    }
    above.reverse();
    Ok(above)
}

impl Topology {
    /// Checks that host lists are valid and that no node has two leaf switches.
    fn check(&self, source: &str, lines: &[Line]) -> Result<(), ZoneSourceError> {
        let mut seen: BTreeMap<String, &str> = BTreeMap::new();
        for leaf in &self.leaves {
            let fault = |reason: String| ZoneSourceError::Line {
                source_name: source.to_owned(),
                line: lines
                    .iter()
                    .find(|line| line.name == leaf.name)
                    .map_or(0, |line| line.number),
                reason,
            };
            for node in expand(&leaf.nodes, NODES_MAX).map_err(|error| fault(error.to_string()))? {
                if let Some(other) = seen.insert(node.clone(), &leaf.name) {
                    let reason = format!(
                        "node {node} is at switch {other} and at switch {}; keep one",
                        leaf.name
                    );
                    return Err(fault(reason));
                }
            }
        }
        Ok(())
    }

    /// The leaf switches with nodes of the job, siblings beside each other. Nodes that no switch has are left out.
    pub(super) fn switches(&self, directory: &Directory) -> Vec<Switch> {
        let of = |leaf: &Leaf| Switch {
            above: leaf.above.join("/"),
            nodes: self.nodes(leaf, directory),
        };
        let mut leaves: Vec<&Leaf> = self.leaves.iter().collect();
        leaves.sort_by(|one, other| one.above.cmp(&other.above));
        let mut switches: Vec<Switch> = leaves.into_iter().map(of).collect();
        switches.retain(|switch| !switch.nodes.is_empty());
        switches
    }

    fn nodes(&self, leaf: &Leaf, directory: &Directory) -> Vec<NodeIndex> {
        nodes_of(&leaf.nodes, directory).unwrap_or_default()
    }

    /// A zone for each leaf switch.
    pub(super) fn entries(&self, directory: &Directory) -> Vec<ZoneEntry> {
        let of = |leaf: &Leaf| ZoneEntry {
            path: leaf.name.clone(),
            nodes: self.nodes(leaf, directory),
        };
        self.leaves.iter().map(of).collect()
    }
}
