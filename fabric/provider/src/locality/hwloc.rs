//! Reads a machine's description with hwloc.
//!
//! hwloc itself evaluates `HWLOC_XMLFILE` and `HWLOC_SYNTHETIC`. A device's node is the node of its first
//! ancestor that is no I/O object; a device below a whole machine of several nodes has none.

use super::{DISTANCE_REMOTE, Device, Level, Machine, Node};
use hwlocality::Topology;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::{OSDeviceType, ObjectType};
use hwlocality::topology::builder::{TopologyBuilder, TypeFilter};
use std::path::Path;

/// hwloc's name of the distances between nodes as the system reports them (not bandwidths).
const LATENCY_NAME: &str = "NUMALatency";

/// The levels of a machine, by their names in locality strings.
const LEVELS: [(&str, ObjectType); 7] = [
    ("NM", ObjectType::NUMANode),
    ("SK", ObjectType::Package),
    ("L3", ObjectType::L3Cache),
    ("L2", ObjectType::L2Cache),
    ("L1", ObjectType::L1Cache),
    ("CR", ObjectType::Core),
    ("HT", ObjectType::PU),
];

/// hwloc's components that detect accelerators through their drivers. They are slow, may start threads, and
/// detect no network devices.
const UNWANTED: [&str; 6] = ["cuda", "gl", "levelzero", "nvml", "opencl", "rsmi"];

/// Why a machine's description cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocalityError {
    /// hwloc cannot read the machine.
    #[error("hwloc cannot read this machine: {reason}; rails are used as if all were equally near")]
    Machine {
        /// hwloc's error.
        reason: String,
    },
    /// hwloc cannot read the file.
    #[error("hwloc cannot read the topology in {file}: {reason}; write one with lstopo --of xml")]
    File {
        /// The file.
        file: String,
        /// hwloc's error.
        reason: String,
    },
}

/// Reads the description of this machine, or of the one in `HWLOC_XMLFILE`. Takes some milliseconds, and longer
/// on large machines.
///
/// # Errors
/// See [`LocalityError`].
pub fn read() -> Result<Machine, LocalityError> {
    describe(TopologyBuilder::new()).map_err(|reason| LocalityError::Machine { reason })
}

/// Reads the description of the machine in a file that hwloc has exported as XML.
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

/// Reads the levels of this machine, from its NUMA nodes to its hardware threads.
///
/// # Errors
/// [`LocalityError::Machine`].
pub fn read_levels() -> Result<Vec<Level>, LocalityError> {
    let topology = load(TopologyBuilder::new());
    let topology = topology.map_err(|reason| LocalityError::Machine { reason })?;
    // HWLOC_XMLFILE may describe another machine; processes cannot be bound to that machine's cores.
    if !topology.is_this_system() {
        let reason = "HWLOC_XMLFILE or HWLOC_SYNTHETIC describes another machine".to_owned();
        return Err(LocalityError::Machine { reason });
    }
    let level = |(name, kind): &(&'static str, ObjectType)| Level {
        name,
        parts: topology.objects_with_type(*kind).map(threads).collect(),
    };
    Ok(LEVELS.iter().map(level).collect())
}

fn load(mut builder: TopologyBuilder) -> Result<Topology, String> {
    // hwloc refuses to exclude a component that this installation does not have.
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

/// The distances in the order of the nodes; empty if hwloc has none.
fn distances(topology: &Topology, nodes: &[Node]) -> Vec<u32> {
    let Ok(matrices) = topology.distances_with_name(LATENCY_NAME) else {
        return Vec::new();
    };
    let Some(matrix) = matrices.first() else {
        return Vec::new();
    };
    let order: Vec<Option<u32>> = matrix.objects().map(|object| object.map(number)).collect();
    let position = |node: &Node| order.iter().position(|one| *one == Some(node.number));
    let mut distances = Vec::with_capacity(nodes.len() * nodes.len());
    for from in nodes {
        for to in nodes {
            let distance = match (position(from), position(to)) {
                (Some(row), Some(column)) => matrix.distances().get(row * order.len() + column),
                _ => None,
            };
            distances.push(distance.map_or(DISTANCE_REMOTE, |distance| {
                u32::try_from(*distance).unwrap_or(u32::MAX)
            }));
        }
    }
    distances
}
