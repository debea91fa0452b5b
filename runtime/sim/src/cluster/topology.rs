//! BG-06: the wires of a machine of 16-node clusters, and the way of a message over them.
//!
//! A switch of 16 ports is three crossbars of 8 in a triangle: nodes 0-5 are on the first, 6-11 on
//! the second, 12-15 on the third, which has two ports to spare. Each cluster has such a switch as
//! its local network; another one, for each cluster, is its part of the global network, whose two
//! spare ports lead up to one more such switch. How the global switches are joined is not given:
//! this tree, with the clusters dealt out over the upper crossbars, is an assumption, and the
//! number of wires up is a parameter.

/// Nodes of a cluster.
pub const CLUSTER: usize = 16;
/// Crossbars of a switch.
const CROSSBARS: usize = 3;
/// Directed wires of one switch: to and from each node, between crossbars, and up and down.
const SWITCH_WIRES: usize = 2 * CLUSTER + CROSSBARS * CROSSBARS + 4;

/// A directed wire.
pub(super) type Wire = u32;

/// The crossbar of a port of a switch.
const fn crossbar(port: usize) -> usize {
    match port {
        0..=5 => 0,
        6..=11 => 1,
        _ => 2,
    }
}

/// A node's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    Local,
    Global,
}

/// Which wires there are, which work, and which ports their nodes hold for down.
#[derive(Clone, Debug)]
pub(super) struct Topology {
    clusters: usize,
    /// Wires from each global switch to the upper one, 1 or 2.
    uplinks: usize,
    /// Clusters without a way up.
    pub(super) cut: Vec<bool>,
    /// Ports that their own node holds for down: the local one, the global one. Nobody else knows.
    pub(super) local_down: Vec<bool>,
    pub(super) global_down: Vec<bool>,
    /// Wires on which everything is lost.
    is_broken: Vec<bool>,
}

impl Topology {
    pub(super) fn new(nodes: usize, uplinks: usize) -> Self {
        let clusters = nodes.div_ceil(CLUSTER);
        Self {
            clusters,
            uplinks,
            cut: vec![false; clusters],
            local_down: vec![false; nodes],
            global_down: vec![false; nodes],
            // A local and a global switch each, and the wires between the upper crossbars.
            is_broken: vec![false; 2 * clusters * SWITCH_WIRES + CROSSBARS * CROSSBARS],
        }
    }

    /// How many wires there are.
    pub(super) fn wires(&self) -> usize {
        self.is_broken.len()
    }

    /// Breaks both wires of a port, or mends them. A switch that fails is all of its ports.
    pub(super) fn set_broken(&mut self, node: usize, port: Port, is_broken: bool) {
        let switch = 2 * (node / CLUSTER) + usize::from(port == Port::Global);
        for number in [node % CLUSTER, CLUSTER + node % CLUSTER] {
            self.is_broken[wire(switch, number) as usize] = is_broken;
        }
    }

    /// Whether a message that goes this way is lost.
    pub(super) fn loses(&self, way: &[Wire]) -> bool {
        way.iter().any(|wire| self.is_broken[*wire as usize])
    }

    /// The ports at which a message on this way comes in: those of nodes that pass it on, and the
    /// receiver's.
    pub(super) fn ports_in(&self, way: &[Wire]) -> impl Iterator<Item = (usize, Port)> {
        let nodes = self.local_down.len();
        let switches = 2 * self.clusters;
        way.iter().filter_map(move |wire| {
            let (switch, number) = (*wire as usize / SWITCH_WIRES, *wire as usize % SWITCH_WIRES);
            let is_in = switch < switches && (CLUSTER..2 * CLUSTER).contains(&number);
            let node = switch / 2 * CLUSTER + number.checked_sub(CLUSTER)?;
            let port = if switch % 2 == 0 {
                Port::Local
            } else {
                Port::Global
            };
            (is_in && node < nodes).then_some((node, port))
        })
    }

    /// A node's own word on one of its ports.
    pub(super) fn hold(&mut self, node: usize, port: Port, is_down: bool) {
        match port {
            Port::Local => self.local_down[node] = is_down,
            Port::Global => self.global_down[node] = is_down,
        }
    }

    /// The way from one node to another, as wires in their order; nothing if no node knows one.
    pub(super) fn way(&self, from: usize, to: usize) -> Option<Vec<Wire>> {
        let (here, there) = (from / CLUSTER, to / CLUSTER);
        if here == there && !self.local_down[from] {
            return Some(self.within(2 * here, from % CLUSTER, to % CLUSTER));
        }
        let mut way = Vec::with_capacity(12);
        let mut sender = from;
        // The global port is down: to the node with the next higher address in the cluster.
        let mut tries = 0;
        while self.global_down[sender] {
            let next = here * CLUSTER + (sender % CLUSTER + 1) % CLUSTER;
            tries += 1;
            if tries == CLUSTER || next >= self.global_down.len() || self.local_down[sender] {
                return None;
            }
            way.extend(self.within(2 * here, sender % CLUSTER, next % CLUSTER));
            sender = next;
        }
        let port = sender % CLUSTER;
        if here == there {
            way.extend(self.within(2 * here + 1, port, to % CLUSTER));
            return Some(way);
        }
        if self.cut[here] || self.cut[there] {
            return None;
        }
        self.across(&mut way, (here, port), (there, to % CLUSTER));
        Some(way)
    }

    /// Within one switch: over one crossbar or two.
    fn within(&self, switch: usize, from: usize, to: usize) -> Vec<Wire> {
        let mut way = vec![wire(switch, from)];
        push_between(&mut way, switch, crossbar(from), crossbar(to));
        way.push(wire(switch, CLUSTER + to));
        way
    }

    /// Up from one global switch, over the upper one, and down to another.
    fn across(&self, way: &mut Vec<Wire>, from: (usize, usize), to: (usize, usize)) {
        let (up, down) = (2 * from.0 + 1, 2 * to.0 + 1);
        // Which of two wires up and down: by where the message goes, so that its way is fixed.
        let (uplink, downlink) = (to.1 % self.uplinks, from.1 % self.uplinks);
        let spare = 2 * CLUSTER + CROSSBARS * CROSSBARS;
        way.push(wire(up, from.1));
        push_between(way, up, crossbar(from.1), CROSSBARS - 1);
        way.push(wire(up, spare + uplink));
        let (first, second) = (from.0 % CROSSBARS, to.0 % CROSSBARS);
        if first != second {
            let upper = 2 * self.clusters * SWITCH_WIRES;
            way.push((upper + first * CROSSBARS + second) as Wire);
        }
        way.push(wire(down, spare + 2 + downlink));
        push_between(way, down, CROSSBARS - 1, crossbar(to.1));
        way.push(wire(down, CLUSTER + to.1));
    }
}

fn wire(switch: usize, number: usize) -> Wire {
    (switch * SWITCH_WIRES + number) as Wire
}

fn push_between(way: &mut Vec<Wire>, switch: usize, from: usize, to: usize) {
    if from != to {
        way.push(wire(switch, 2 * CLUSTER + from * CROSSBARS + to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BG-06: a local path crosses one crossbar or two, a global one more, and each wire exists.
    #[test]
    fn ways_have_the_lengths_of_the_paper() {
        let topology = Topology::new(96, 2);
        let wires = |from, to| topology.way(from, to).unwrap().len();
        assert_eq!((wires(0, 5), wires(0, 6), wires(20, 31)), (2, 3, 3));
        assert_eq!((wires(12, 16 + 12), wires(0, 16), wires(0, 48)), (5, 7, 6));
        for (from, to) in (0..96).flat_map(|from| (0..96).map(move |to| (from, to))) {
            if from != to {
                let way = topology.way(from, to).unwrap();
                assert!(way.iter().all(|wire| (*wire as usize) < topology.wires()));
            }
        }
    }

    /// BG-06: a local port down sends by the global network; a global one by the next node that has
    /// one; a cluster that is cut off is not reached.
    #[test]
    fn messages_go_round_a_port_that_is_down() {
        let mut topology = Topology::new(48, 2);
        let plain = topology.way(15, 20).unwrap();
        topology.global_down[15] = true;
        let around = topology.way(15, 20).unwrap();
        let mut expected = topology.way(15, 0).unwrap();
        expected.extend(topology.way(0, 20).unwrap());
        assert_eq!(around, expected);
        assert_ne!(around, plain);
        topology.local_down[3] = true;
        assert_eq!(topology.way(3, 1).unwrap()[0], wire(1, 3));
        topology.cut[1] = true;
        assert_eq!(topology.way(0, 20), None);
        assert!(topology.way(0, 40).is_some() && topology.way(17, 20).is_some());
    }
    /// BG-05, BG-06: a broken port loses what comes and goes by it, and the others do not know; a
    /// message comes in at the ports of those who pass it on, too.
    #[test]
    fn a_broken_port_loses_what_crosses_it() {
        let mut topology = Topology::new(32, 2);
        topology.set_broken(3, Port::Local, true);
        let (in_, out) = (topology.way(0, 3).unwrap(), topology.way(3, 0).unwrap());
        assert!(topology.loses(&in_) && topology.loses(&out));
        assert!(!topology.loses(&topology.way(20, 3).unwrap()));
        topology.hold(3, Port::Local, true);
        assert!(!topology.loses(&topology.way(3, 0).unwrap()));
        topology.set_broken(3, Port::Local, false);
        assert!(!topology.loses(&in_));
        topology.hold(15, Port::Global, true);
        let ports: Vec<_> = topology.ports_in(&topology.way(15, 20).unwrap()).collect();
        assert_eq!(ports, [(0, Port::Local), (20, Port::Global)]);
    }
}
