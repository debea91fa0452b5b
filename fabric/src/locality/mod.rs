//! Locality: which NUMA node an interface is near, how far others are, which core is free.
//!
//! A [`Machine`] is a plain description; all questions to it are pure functions. `hwloc` (feature of
//! that name) fills one in from the machine that it runs on, or from a topology in a file, so that
//! machines that nobody here has can be tested. Without that feature nothing of hwloc is linked.
//!
//! Not here: binding anything to a core. That is done by who runs.

#[cfg(feature = "hwloc")]
mod hwloc;
mod levels;

#[cfg(feature = "hwloc")]
pub use hwloc::{LocalityError, read, read_file, read_levels};
pub use levels::{Level, locality, ranges};

/// The distance of a node to itself, where the machine does not say.
pub const DISTANCE_LOCAL: u32 = 10;

/// The distance of two nodes of which nothing is known.
pub const DISTANCE_REMOTE: u32 = 20;

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The system's number of it.
    pub number: u32,
    /// The hardware threads that belong to it, by the system's numbers.
    pub threads: Vec<u32>,
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The system's name: `eth0`, `mlx5_0`.
    pub name: String,
    /// The node that it is attached to; none if it is as near to one as to another.
    pub node: Option<u32>,
}

/// What is known about a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its NUMA nodes, in the order of their numbers.
    pub nodes: Vec<Node>,
    /// The distance from each node to each, row by row; empty if the machine does not say.
    pub distances: Vec<u32>,
    /// Its network devices.
    pub devices: Vec<Device>,
    /// Its cores, each by its hardware threads.
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

    /// How far two nodes are from each other.
    #[must_use]
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        let place = |number| self.nodes.iter().position(|node| node.number == number);
        let told = match (place(from), place(to)) {
            (Some(row), Some(column)) => self.distances.get(row * self.nodes.len() + column),
            _ => None,
        };
        told.copied().unwrap_or(match from == to {
            true => DISTANCE_LOCAL,
            false => DISTANCE_REMOTE,
        })
    }

    /// How far memory of a node is from a device. Where one of the two is not known, no rail is
    /// farther than another.
    #[must_use]
    pub fn distance_to_device(&self, memory_node: Option<u32>, device: &str) -> u32 {
        match (memory_node, self.node_of_device(device)) {
            (Some(from), Some(to)) => self.distance(from, to),
            _ => DISTANCE_LOCAL,
        }
    }

    /// The CPU partitions: one for each node that has hardware threads, by the node's number.
    #[must_use]
    pub fn partitions(&self) -> Vec<u32> {
        let with_threads = self.nodes.iter().filter(|node| !node.threads.is_empty());
        with_threads.map(|node| node.number).collect()
    }

    /// The hardware thread for an agent: of those that it may use, one whose core no rank uses, near
    /// this node; the highest such, since what else runs on a machine gathers at the lowest. None if
    /// it may use none.
    #[must_use]
    pub fn choose_thread(
        &self,
        allowed: &[u32],
        ranks: &[u32],
        near: Option<u32>,
    ) -> Option<ThreadChoice> {
        let place = |thread: u32| {
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
        let places = allowed.iter().map(|thread| place(*thread));
        places.min_by_key(|one| (one.sharing, one.distance, std::cmp::Reverse(one.thread)))
    }

    fn core_of(&self, thread: u32) -> &[u32] {
        let core = self.cores.iter().find(|core| core.contains(&thread));
        core.map_or(&[], Vec::as_slice)
    }
}

/// What else runs where an agent is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharing {
    /// No rank uses the core.
    Free,
    /// A rank uses the core's other hardware thread.
    CoreWithRank,
    /// A rank uses this very hardware thread.
    WithRank,
}

/// Where an agent is to run, and why there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadChoice {
    /// The hardware thread.
    pub thread: u32,
    /// Its node.
    pub node: Option<u32>,
    /// What else runs there.
    pub sharing: Sharing,
    /// How far it is from what it should be near to.
    pub distance: u32,
}
