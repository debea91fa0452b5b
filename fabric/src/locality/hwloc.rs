//! A machine as hwloc sees it.
//!
//! hwloc reads `HWLOC_XMLFILE` and `HWLOC_SYNTHETIC` by itself. A device's node is that of the first
//! ancestor that is no I/O object; a device below a whole machine of several nodes has none.

use super::{DISTANCE_REMOTE, Device, Level, Machine, Node};
use hwlocality::Topology;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::{OSDeviceType, ObjectType};
use hwlocality::topology::builder::{TopologyBuilder, TypeFilter};
use std::path::Path;

/// Distances in both directions, as the system gives them (and not bandwidths).
const LATENCY_NAME: &str = "NUMALatency";

/// What a machine consists of, as strings of localities call it.
const LEVELS: [(&str, ObjectType); 7] = [
    ("NM", ObjectType::NUMANode),
    ("SK", ObjectType::Package),
    ("L3", ObjectType::L3Cache),
    ("L2", ObjectType::L2Cache),
    ("L1", ObjectType::L1Cache),
    ("CR", ObjectType::Core),
    ("HT", ObjectType::PU),
];

/// Parts of hwloc that look for accelerators through their drivers: that takes long, may start threads,
/// and says nothing about networks.
const UNWANTED: [&str; 6] = ["cuda", "gl", "levelzero", "nvml", "opencl", "rsmi"];

/// Why a machine could not be described.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocalityError {
    /// hwloc cannot read the machine.
    #[error("hwloc cannot read this machine: {reason}; rails are used as if all were equally near")]
    Machine {
        /// What hwloc said.
        reason: String,
    },
    /// hwloc cannot read the file.
    #[error("hwloc cannot read the topology in {file}: {reason}; write one with lstopo --of xml")]
    File {
        /// The file.
        file: String,
        /// What hwloc said.
        reason: String,
    },
}

/// Describes the machine that this runs on, or the one that `HWLOC_XMLFILE` names. Takes some
/// milliseconds, and longer on large machines.
///
/// # Errors
/// See [`LocalityError`].
pub fn read() -> Result<Machine, LocalityError> {
    describe(TopologyBuilder::new()).map_err(|reason| LocalityError::Machine { reason })
}

/// Describes the machine in a file that hwloc has exported as XML.
///
/// # Errors
/// See [`LocalityError`].
pub fn read_file(file: &Path) -> Result<Machine, LocalityError> {
    let refused = |reason| LocalityError::File {
        file: file.display().to_string(),
        reason,
    };
    let builder = TopologyBuilder::new().from_xml_file(file);
    let builder = builder.map_err(|error| refused(error.to_string()))?;
    describe(builder).map_err(refused)
}

/// What this machine consists of, from its NUMA nodes down to its hardware threads.
///
/// # Errors
/// [`LocalityError::Machine`].
pub fn read_levels() -> Result<Vec<Level>, LocalityError> {
    let topology = load(TopologyBuilder::new());
    let topology = topology.map_err(|reason| LocalityError::Machine { reason })?;
    // HWLOC_XMLFILE may describe another machine: nobody is bound to cores of that.
    if !topology.is_this_system() {
        let reason = "what hwloc was told to read is no description of this machine".to_owned();
        return Err(LocalityError::Machine { reason });
    }
    let level = |(name, kind): &(&'static str, ObjectType)| Level {
        name,
        parts: topology.objects_with_type(*kind).map(threads).collect(),
    };
    Ok(LEVELS.iter().map(level).collect())
}

fn load(mut builder: TopologyBuilder) -> Result<Topology, String> {
    // hwloc refuses to leave out what this installation of it does not have.
    for name in UNWANTED {
        if TopologyBuilder::new().without_component(name).is_ok() {
            let without = builder.without_component(name);
            builder = without.map_err(|error| error.to_string())?;
        }
    }
    let builder = builder.with_io_type_filter(TypeFilter::KeepImportant);
    let topology = builder.map_err(|error| error.to_string())?.build();
    topology.map_err(|error| error.to_string())
}

fn describe(builder: TopologyBuilder) -> Result<Machine, String> {
    let topology = load(builder)?;
    let mut nodes: Vec<Node> = topology
        .objects_with_type(ObjectType::NUMANode)
        .map(node)
        .collect();
    nodes.sort_by_key(|node| node.number);
    Ok(Machine {
        distances: distances(&topology, &nodes),
        devices: topology
            .objects_with_type(ObjectType::OSDevice)
            .filter_map(device)
            .collect(),
        cores: topology
            .objects_with_type(ObjectType::Core)
            .map(threads)
            .collect(),
        nodes,
    })
}

fn number(object: &TopologyObject) -> u32 {
    object.os_index().map_or(u32::MAX, |index| index as u32)
}

fn node(object: &TopologyObject) -> Node {
    Node {
        number: number(object),
        threads: threads(object),
    }
}

fn threads(object: &TopologyObject) -> Vec<u32> {
    let set = object.cpuset();
    set.map_or_else(Vec::new, |set| {
        set.iter_set()
            .map(|index| usize::from(index) as u32)
            .collect()
    })
}

fn device(object: &TopologyObject) -> Option<Device> {
    let Some(ObjectAttributes::OSDevice(attributes)) = object.attributes() else {
        return None;
    };
    let is_network = matches!(
        attributes.device_type(),
        OSDeviceType::Network | OSDeviceType::OpenFabrics
    );
    let name = object.name().filter(|_| is_network)?;
    let near = object
        .first_non_io_ancestor()
        .and_then(TopologyObject::nodeset);
    let node = near
        .filter(|set| set.weight() == Some(1))
        .and_then(|set| set.first_set());
    Some(Device {
        name: name.to_string_lossy().into_owned(),
        node: node.map(|index| usize::from(index) as u32),
    })
}

/// The distances in the order of the nodes; empty if hwloc knows none.
fn distances(topology: &Topology, nodes: &[Node]) -> Vec<u32> {
    let Ok(matrices) = topology.distances_with_name(LATENCY_NAME) else {
        return Vec::new();
    };
    let Some(matrix) = matrices.first() else {
        return Vec::new();
    };
    let order: Vec<Option<u32>> = matrix.objects().map(|object| object.map(number)).collect();
    let place = |node: &Node| order.iter().position(|one| *one == Some(node.number));
    let mut distances = Vec::with_capacity(nodes.len() * nodes.len());
    for from in nodes {
        for to in nodes {
            let told = match (place(from), place(to)) {
                (Some(row), Some(column)) => matrix.distances().get(row * order.len() + column),
                _ => None,
            };
            distances.push(told.map_or(DISTANCE_REMOTE, |told| {
                u32::try_from(*told).unwrap_or(u32::MAX)
            }));
        }
    }
    distances
}
