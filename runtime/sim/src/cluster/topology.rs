//! BG-06: the wires of a machine of 16-node clusters, and the routes of messages over them.
//!
//! A switch of 16 ports is three crossbars of 8 in a triangle: nodes 0-5 are on the first, 6-11 on the
//! second, 12-15 on the third, which has two spare ports. Each cluster has such a switch as its local
//! network. Another one in each cluster is its part of the global network; its two spare ports lead up to one
//! more such switch. The paper does not say how the global switches are joined. This tree, with the clusters
//! dealt out over the upper crossbars, is an assumption, and the number of wires up is a parameter.

/// Nodes per cluster.
pub const CLUSTER: usize = 16;
/// Crossbars per switch.
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

/// The wires, which of them work, and which ports their nodes consider down.
#[derive(Clone, Debug)]
pub(super) struct Topology {
    clusters: usize,
    /// Wires from each global switch to the upper one, 1 or 2.
    uplinks: usize,
    /// Clusters without a route up.
    pub(super) cut: Vec<bool>,
    /// Ports that their own node considers down: the local one, the global one. No other node knows.
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

    /// Number of wires.
    pub(super) fn wires(&self) -> usize {
        self.is_broken.len()
    }

    /// Breaks both wires of a port, or repairs them. To fail a switch, break all of its ports.
    pub(super) fn set_broken(&mut self, node: usize, port: Port, is_broken: bool) {
        let switch = 2 * (node / CLUSTER) + usize::from(port == Port::Global);
        for number in [node % CLUSTER, CLUSTER + node % CLUSTER] {
            self.is_broken[wire(switch, number) as usize] = is_broken;
        }
    }

    /// Whether a message on this route is lost.
    pub(super) fn loses(&self, route: &[Wire]) -> bool {
        route.iter().any(|wire| self.is_broken[*wire as usize])
    }

    /// The ports at which a message on this route is received: those of forwarding nodes, and the receiver's.
    pub(super) fn ports_in(&self, route: &[Wire]) -> impl Iterator<Item = (usize, Port)> {
        let nodes = self.local_down.len();
        let switches = 2 * self.clusters;
        route.iter().filter_map(move |wire| {
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

    /// Records whether a node considers one of its ports down.
    pub(super) fn set_down(&mut self, node: usize, port: Port, is_down: bool) {
        match port {
            Port::Local => self.local_down[node] = is_down,
            Port::Global => self.global_down[node] = is_down,
        }
    }

    /// The route from one node to another, as wires in order; `None` if no node knows one.
    pub(super) fn route(&self, from: usize, to: usize) -> Option<Vec<Wire>> {
        let (here, there) = (from / CLUSTER, to / CLUSTER);
        if here == there && !self.local_down[from] {
            return Some(self.within(2 * here, from % CLUSTER, to % CLUSTER));
        }
        let mut route = Vec::with_capacity(12);
        let mut sender = from;
        // The global port is down: route by the node with the next higher address in the cluster.
        let mut tries = 0;
        while self.global_down[sender] {
            let next = here * CLUSTER + (sender % CLUSTER + 1) % CLUSTER;
            tries += 1;
            if tries == CLUSTER || next >= self.global_down.len() || self.local_down[sender] {
                return None;
            }
            route.extend(self.within(2 * here, sender % CLUSTER, next % CLUSTER));
            sender = next;
        }
        let port = sender % CLUSTER;
        if here == there {
            route.extend(self.within(2 * here + 1, port, to % CLUSTER));
            return Some(route);
        }
        if self.cut[here] || self.cut[there] {
            return None;
        }
        self.across(&mut route, (here, port), (there, to % CLUSTER));
        Some(route)
    }

    /// Within one switch: over one crossbar or two.
    fn within(&self, switch: usize, from: usize, to: usize) -> Vec<Wire> {
        let mut route = vec![wire(switch, from)];
        push_between(&mut route, switch, crossbar(from), crossbar(to));
        route.push(wire(switch, CLUSTER + to));
        route
    }

    /// Route up from one global switch, over the upper one, and down to another.
    fn across(&self, route: &mut Vec<Wire>, from: (usize, usize), to: (usize, usize)) {
        let (up, down) = (2 * from.0 + 1, 2 * to.0 + 1);
        // The destination selects which of two wires up and down is used, so that the route is fixed.
        let (uplink, downlink) = (to.1 % self.uplinks, from.1 % self.uplinks);
        let spare = 2 * CLUSTER + CROSSBARS * CROSSBARS;
        route.push(wire(up, from.1));
        push_between(route, up, crossbar(from.1), CROSSBARS - 1);
        route.push(wire(up, spare + uplink));
        let (first, second) = (from.0 % CROSSBARS, to.0 % CROSSBARS);
        if first != second {
            let upper = 2 * self.clusters * SWITCH_WIRES;
            route.push((upper + first * CROSSBARS + second) as Wire);
        }
        route.push(wire(down, spare + 2 + downlink));
        push_between(route, down, CROSSBARS - 1, crossbar(to.1));
        route.push(wire(down, CLUSTER + to.1));
    }
}

fn wire(switch: usize, number: usize) -> Wire {
    (switch * SWITCH_WIRES + number) as Wire
}

fn push_between(route: &mut Vec<Wire>, switch: usize, from: usize, to: usize) {
    if from != to {
        route.push(wire(switch, 2 * CLUSTER + from * CROSSBARS + to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BG-06: a local path crosses one crossbar or two, a global one more, and each wire exists.
    #[test]
    fn routes_have_the_lengths_of_the_paper() {
        let topology = Topology::new(96, 2);
        let wires = |from, to| topology.route(from, to).unwrap().len();
        assert_eq!((wires(0, 5), wires(0, 6), wires(20, 31)), (2, 3, 3));
        assert_eq!((wires(12, 16 + 12), wires(0, 16), wires(0, 48)), (5, 7, 6));
        for (from, to) in (0..96).flat_map(|from| (0..96).map(move |to| (from, to))) {
            if from != to {
                let route = topology.route(from, to).unwrap();
                assert!(route.iter().all(|wire| (*wire as usize) < topology.wires()));
            }
        }
    }

    /// BG-06: with a local port down, messages go by the global network; with a global port down, by the next
    /// node that has one. A cluster that is cut off is not reached.
    #[test]
    fn messages_are_routed_around_a_port_that_is_down() {
        let mut topology = Topology::new(48, 2);
        let plain = topology.route(15, 20).unwrap();
        topology.global_down[15] = true;
        let around = topology.route(15, 20).unwrap();
        let mut expected = topology.route(15, 0).unwrap();
        expected.extend(topology.route(0, 20).unwrap());
        assert_eq!(around, expected);
        assert_ne!(around, plain);
        topology.local_down[3] = true;
        assert_eq!(topology.route(3, 1).unwrap()[0], wire(1, 3));
        topology.cut[1] = true;
        assert_eq!(topology.route(0, 20), None);
        assert!(topology.route(0, 40).is_some() && topology.route(17, 20).is_some());
    }
    /// BG-05, BG-06: a broken port loses what is sent and received through it, and other nodes do not know. A
    /// message is also received at the ports of the nodes that forward it.
    #[test]
    fn a_broken_port_loses_what_crosses_it() {
        let mut topology = Topology::new(32, 2);
        topology.set_broken(3, Port::Local, true);
        let (in_, out) = (topology.route(0, 3).unwrap(), topology.route(3, 0).unwrap());
        assert!(topology.loses(&in_) && topology.loses(&out));
        assert!(!topology.loses(&topology.route(20, 3).unwrap()));
        topology.set_down(3, Port::Local, true);
        assert!(!topology.loses(&topology.route(3, 0).unwrap()));
        topology.set_broken(3, Port::Local, false);
        assert!(!topology.loses(&in_));
        topology.set_down(15, Port::Global, true);
        let ports: Vec<_> = topology
            .ports_in(&topology.route(15, 20).unwrap())
            .collect();
        assert_eq!(ports, [(0, Port::Local), (20, Port::Global)]);
    }
}
