//! Locality: the NUMA node of a network device, the distances between nodes, and the choice of a free core.
//!
//! [`Machine`] is plain data, and its methods are pure functions. `hwloc` (the feature of that name) reads one
//! from the machine that the process runs on, or from a topology file, so that other machines can be tested.
//! Without that feature, hwloc is not linked.
//!
//! This module binds no process to a core; the caller does.

#[cfg(feature = "hwloc")]
mod hwloc;
mod levels;

#[cfg(feature = "hwloc")]
pub use hwloc::{LocalityError, read, read_file, read_levels};
pub use levels::{Level, locality, ranges};

/// The distance of a node to itself, if the machine reports none.
pub const DISTANCE_LOCAL: u32 = 10;

/// The distance of two different nodes, if the machine reports none.
pub const DISTANCE_REMOTE: u32 = 20;

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The system's number of the node.
    pub number: u32,
    /// The hardware threads of the node, by the system's numbers.
    pub threads: Vec<u32>,
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The system's name of the device: `eth0`, `mlx5_0`.
    pub name: String,
    /// The node that it is attached to; none if it is equally near to several.
    pub node: Option<u32>,
}

/// The description of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its NUMA nodes, ordered by number.
    pub nodes: Vec<Node>,
    /// The distance from each node to each, row by row; empty if the machine reports none.
    pub distances: Vec<u32>,
    /// Its network devices.
    pub devices: Vec<Device>,
    /// Its cores, each as its hardware threads.
    pub cores: Vec<Vec<u32>>,
}

impl Machine {
    /// The node that a network device is attached to.
    #[must_use]
    pub fn node_of_device(&self, name: &str) -> Option<u32> {
        let device = self.devices.iter().find(|device| device.name == name);
        device?.node
    }

    /// The node that a hardware thread belongs to.
    #[must_use]
    pub fn node_of_thread(&self, thread: u32) -> Option<u32> {
        let node = self
            .nodes
            .iter()
            .find(|node| node.threads.contains(&thread));
        node.map(|node| node.number)
    }

    /// The distance between two nodes.
    #[must_use]
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        let position = |number| self.nodes.iter().position(|node| node.number == number);
        let distance = match (position(from), position(to)) {
            (Some(row), Some(column)) => self.distances.get(row * self.nodes.len() + column),
            _ => None,
        };
        distance.copied().unwrap_or(match from == to {
            true => DISTANCE_LOCAL,
            false => DISTANCE_REMOTE,
        })
    }

    /// The distance of a node's memory from a device. If either node is unknown, the result is the same for all
    /// devices.
    #[must_use]
    pub fn distance_to_device(&self, memory_node: Option<u32>, device: &str) -> u32 {
        match (memory_node, self.node_of_device(device)) {
            (Some(from), Some(to)) => self.distance(from, to),
            _ => DISTANCE_LOCAL,
        }
    }

    /// The CPU partitions: the numbers of the nodes that have hardware threads.
    #[must_use]
    pub fn partitions(&self) -> Vec<u32> {
        let with_threads = self.nodes.iter().filter(|node| !node.threads.is_empty());
        with_threads.map(|node| node.number).collect()
    }

    /// Chooses the hardware thread for an agent, out of the allowed ones: preferably on a core that no rank
    /// uses, then near this node, then with the highest number, because other processes of a system tend to use
    /// the lowest. None if no thread is allowed.
    #[must_use]
    pub fn choose_thread(
        &self,
        allowed: &[u32],
        ranks: &[u32],
        near: Option<u32>,
    ) -> Option<ThreadChoice> {
        let choice = |thread: u32| {
            let sharing = if ranks.contains(&thread) {
                Sharing::WithRank
            } else if self
                .core_of(thread)
                .iter()
                .any(|other| ranks.contains(other))
            {
                Sharing::CoreWithRank
            } else {
                Sharing::Free
            };
            let node = self.node_of_thread(thread);
            let distance = match (near, node) {
                (Some(from), Some(to)) => self.distance(from, to),
                _ => DISTANCE_LOCAL,
            };
            ThreadChoice {
                thread,
                node,
                sharing,
                distance,
            }
        };
        let choices = allowed.iter().map(|thread| choice(*thread));
        choices.min_by_key(|one| (one.sharing, one.distance, std::cmp::Reverse(one.thread)))
    }

    fn core_of(&self, thread: u32) -> &[u32] {
        let core = self.cores.iter().find(|core| core.contains(&thread));
        core.map_or(&[], Vec::as_slice)
    }
}

/// Which ranks share the core that was chosen for an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharing {
    /// No rank uses the core.
    Free,
    /// A rank uses another hardware thread of the core.
    CoreWithRank,
    /// A rank uses this hardware thread.
    WithRank,
}

/// The hardware thread that was chosen for an agent, and the reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadChoice {
    /// The hardware thread.
    pub thread: u32,
    /// Its node.
    pub node: Option<u32>,
    /// Which ranks share its core.
    pub sharing: Sharing,
    /// The distance of its node from the requested node.
    pub distance: u32,
}
