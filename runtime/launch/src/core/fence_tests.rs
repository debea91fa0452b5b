//! Tests of fences (run-3): nodes that receive each other's states when the test says so.

use super::super::node_status::{NodeStatus, PART};
use super::*;

/// Nodes in one process. A node's states reach another one only by [`World::deliver`].
struct World {
    nodes: Vec<Fences>,
    gone: BTreeSet<usize>,
    gone_for: Vec<BTreeSet<usize>>,
    ended: BTreeSet<u32>,
    is_in_doubt: bool,
}

impl Fences {
    /// The node's ranks enter a fence with this data.
    fn contribute(&mut self, tag: &str, ranks: &[u32], data: Vec<u8>) -> FenceId {
        let id = self.open(tag, ranks);
        self.put(id, data);
        id
    }
}

impl World {
    fn new(count: usize) -> Self {
        let names = (0..count).map(|node| format!("n{node}")).collect();
        let layout = Layout::new(names, None, Some(2)).unwrap();
        let fences = |own| Fences::new(own, layout.clone());
        Self {
            nodes: (0..count).map(fences).collect(),
            gone: BTreeSet::new(),
            gone_for: vec![BTreeSet::new(); count],
            ended: BTreeSet::new(),
            is_in_doubt: false,
        }
    }

    fn put(&mut self, node: usize) {
        self.nodes[node].contribute("", &[], vec![node as u8]);
    }

    fn states(&self, node: usize) -> Vec<FenceState> {
        self.nodes[node].states(&self.gone_for[node])
    }

    fn deliver(&mut self, from: usize, to: usize) {
        let states = self.states(from);
        self.nodes[to].receive(from, &states);
    }

    /// Delivers the states of all nodes that are left.
    fn receive_from_all(&mut self, node: usize) {
        let others = 0..self.nodes.len();
        for other in others.filter(|other| *other != node) {
            if !self.gone_for[node].contains(&other) {
                self.deliver(other, node);
            }
        }
    }

    /// Returns the fences that are over on a node, with the losses that it knows of.
    fn advance(&mut self, node: usize) -> Vec<Outcome> {
        let progress = FenceProgress {
            gone: &self.gone_for[node].clone(),
            ended: &self.ended,
            gone_for: &self.gone_for,
            is_in_doubt: self.is_in_doubt,
        };
        self.nodes[node].advance(&progress)
    }

    fn complete(&mut self, node: usize) -> Option<Vec<u8>> {
        match self.advance(node).as_slice() {
            [] => None,
            [Outcome::Complete(_, data)] => Some(data.clone()),
            other => panic!("{other:?}"),
        }
    }

    fn lose(&mut self, node: usize) {
        self.gone.insert(node);
        for gone in &mut self.gone_for {
            gone.insert(node);
        }
    }
}

/// run-3.
#[test]
fn all_nodes_get_the_same_data_when_all_have_entered() {
    let mut world = World::new(3);
    world.put(0);
    world.put(2);
    world.deliver(2, 0);
    world.deliver(0, 2);
    assert_eq!((world.complete(0), world.complete(2)), (None, None));
    world.put(1);
    world.deliver(1, 0);
    assert_eq!(world.complete(0), Some(vec![0, 1, 2]));
    for node in [1, 2] {
        world.receive_from_all(node);
        assert_eq!(world.complete(node), Some(vec![0, 1, 2]));
        assert_eq!(world.complete(node), None, "returned once");
    }
}

/// run-3.
#[test]
fn a_lost_node_counts_for_all_nodes_or_for_none() {
    // The coordinator had its state before it died: it counts, also for nodes that never received it.
    let mut world = World::new(3);
    for node in 0..3 {
        world.put(node);
    }
    world.deliver(2, 0);
    world.lose(2);
    world.deliver(1, 0);
    assert_eq!(world.complete(0), Some(vec![0, 1, 2]));
    world.deliver(0, 1);
    assert_eq!(world.complete(1), Some(vec![0, 1, 2]));
    // Only another node had its state: it does not count, also for that node.
    let mut world = World::new(3);
    for node in 0..3 {
        world.put(node);
    }
    world.deliver(2, 1);
    world.lose(2);
    world.deliver(1, 0);
    assert_eq!(world.complete(0), Some(vec![0, 1]));
    world.deliver(0, 1);
    assert_eq!(world.complete(1), Some(vec![0, 1]));
}

/// run-3.
#[test]
fn a_lost_nodes_data_is_awaited_while_a_node_may_have_a_copy() {
    let mut world = World::new(4);
    for node in 0..4 {
        world.put(node);
        world.deliver(node, 0);
    }
    assert!(world.complete(0).is_some());
    // Node 1 knows of the loss before the nodes that have a copy.
    world.gone_for[1].insert(3);
    world.deliver(0, 1);
    world.deliver(2, 1);
    assert_eq!(world.advance(1), []);
    world.gone_for[2].insert(3);
    assert_eq!(world.advance(1), [], "node 0 may have it");
    world.gone_for[0].insert(3);
    world.deliver(0, 1);
    assert_eq!(world.complete(1), Some(vec![0, 1, 2, 3]));
    // Node 2 gets it from node 1, when the coordinator is lost as well.
    world.deliver(1, 2);
    world.lose(0);
    world.deliver(1, 2);
    assert_eq!(world.complete(2), Some(vec![0, 1, 2, 3]));
}

/// run-3.
#[test]
fn a_node_status_has_room_for_the_fences_of_4096_nodes() {
    // Size of Open MPI 5's data in MPI_Init; two of the four fences have data.
    const OPEN_MPI: usize = 86;
    for (each, lost) in [1, 2, 4, 5, 8].into_iter().zip([0, 1, 40, 1000, 3000]) {
        let names: Vec<String> = (0..4096).map(|node| format!("n{node}")).collect();
        let layout = Layout::new(names, None, Some(each)).unwrap();
        let mut fences = Fences::new(0, layout);
        let mut gone_for = vec![BTreeSet::new(); 4096];
        for turn in 0..4 {
            let data = vec![7; (turn + 1) % 2 * OPEN_MPI * each as usize];
            fences.contribute("", &[], data.clone());
            for node in 1..4096 {
                let state = FenceState {
                    id: FenceId {
                        group: 0,
                        turn: turn as u64,
                    },
                    tag: String::new(),
                    over: false,
                    ranks: Ranges::default(),
                    put: Some(Contributed::new(&data)),
                    decision: None,
                    replicated: vec![],
                };
                fences.receive(node, &[state]);
                for one in fences.awaited() {
                    fences.fetched(one.id, one.node, vec![7; one.size]);
                }
            }
            let progress = FenceProgress {
                gone: &BTreeSet::new(),
                ended: &BTreeSet::new(),
                gone_for: &gone_for,
                is_in_doubt: false,
            };
            assert_eq!(fences.advance(&progress).len(), 1);
        }
        // Every other one of some is lost.
        gone_for[0].extend((1..=lost).map(|node| node * 4095 / lost.max(1)));
        let fences = fences.states(&gone_for[0]);
        assert_eq!(fences.len(), 3);
        let node_status = NodeStatus {
            gone: gone_for[0].iter().map(|node| *node as u32).collect(),
            fences,
            ..NodeStatus::default()
        };
        let size = node_status.encode().len();
        // The other two thirds are for published names and ends of ranks.
        assert!(size < PART / 3, "{each} ranks, {lost} lost: {size}");
    }
}

#[test]
fn a_received_decision_stands_when_the_coordinator_is_lost() {
    let mut world = World::new(4);
    for node in 0..4 {
        world.put(node);
    }
    for node in 1..4 {
        world.deliver(node, 0);
    }
    assert!(world.complete(0).is_some());
    world.receive_from_all(3);
    assert_eq!(world.complete(3), Some(vec![0, 1, 2, 3]));
    // The next coordinator must not decide before it has the state of node 3, which has gone on.
    for node in 1..4 {
        world.gone_for[node].insert(0);
    }
    world.gone_for[3].clear();
    world.deliver(2, 1);
    assert_eq!(world.complete(1), None);
    world.gone_for[3].insert(0);
    world.deliver(3, 1);
    assert_eq!(world.complete(1), Some(vec![0, 1, 2, 3]));
    world.receive_from_all(2);
    assert_eq!(world.complete(2), Some(vec![0, 1, 2, 3]));
}

#[test]
fn a_node_whose_ranks_have_ended_is_not_awaited_but_may_decide() {
    let mut world = World::new(3);
    world.ended.extend([0, 1]);
    world.put(1);
    world.put(2);
    world.deliver(1, 0);
    assert_eq!(world.advance(0), []);
    world.deliver(2, 0);
    assert_eq!(world.advance(0), []);
    world.receive_from_all(1);
    assert_eq!(world.complete(1), Some(vec![1, 2]));
}

#[test]
fn fences_of_some_ranks_are_independent_of_those_of_all() {
    let mut world = World::new(3);
    let some = [2, 4];
    for node in [1, 2] {
        let id = world.nodes[node].contribute("", &some, vec![7]);
        assert_ne!(id.group, 0);
    }
    world.deliver(2, 1);
    assert_eq!(world.complete(1), Some(vec![7, 7]));
    world.put(1);
    assert_eq!(world.complete(1), None);
    assert_eq!(world.nodes[1].turns_of_all(), 1);
    assert_eq!(world.nodes[1].delivered_of_all(), 0);
}

#[test]
fn large_data_is_fetched_and_is_lost_with_its_node() {
    let mut world = World::new(2);
    world.nodes[0].contribute("", &[], vec![1; 600]);
    world.nodes[1].contribute("", &[], vec![2; 600]);
    world.deliver(1, 0);
    let id = FenceId { group: 0, turn: 0 };
    let in_attributes = ToFetch {
        id,
        node: 1,
        size: 600,
        servers: None,
    };
    assert_eq!(world.nodes[0].awaited(), [in_attributes]);
    assert_eq!(world.complete(0), None);
    world.nodes[0].fetched(id, 1, vec![2; 600]);
    assert_eq!(world.complete(0).map(|all| all.len()), Some(1200));
    world.deliver(0, 1);
    world.lose(0);
    assert_eq!(world.advance(1), [Outcome::Lost(id, 0)]);
}

/// A served contribution of a lost node is requested from the nodes that have it, and is lost when none is left.
#[test]
fn served_data_is_requested_from_those_that_have_it() {
    let mut world = World::new(4);
    let id = world.nodes[3].open("", &[]);
    world.nodes[3].put_served(id, vec![3; 600]);
    (0..3).for_each(|node| world.put(node));
    let servers = |world: &World, node: usize| {
        let awaited = world.nodes[node].awaited();
        awaited.first().and_then(|one| one.servers.clone())
    };
    world.receive_from_all(0);
    assert_eq!(servers(&world, 0), Some(vec![3]));
    world.nodes[0].fetched(id, 3, vec![3; 600]);
    assert!(world.complete(0).is_some(), "node 0 has decided");
    let served = |world: &World, node: usize| {
        let all = world.nodes[node].to_serve(&world.gone_for[node]);
        all.into_keys().map(|(_, owner)| owner).collect::<Vec<_>>()
    };
    assert_eq!((served(&world, 0), served(&world, 3)), (vec![], vec![3]));
    world.lose(3);
    assert_eq!(served(&world, 0), [3]);
    world.receive_from_all(2);
    assert_eq!(servers(&world, 2), Some(vec![0]));
    world.nodes[2].fetched(id, 3, vec![3; 600]);
    let all = [vec![0, 1, 2], vec![3; 600]].concat();
    assert_eq!(world.complete(2), Some(all));
    world.receive_from_all(1);
    assert_eq!(servers(&world, 1), Some(vec![0, 2]));
    assert_eq!(world.advance(1), [], "all know of the loss, and have it");
    world.receive_from_all(0);
    assert_eq!(served(&world, 0), [3], "node 1 needs it");
    world.lose(0);
    assert_eq!(world.advance(1), [], "node 2 has it");
    world.lose(2);
    assert_eq!(world.advance(1), [Outcome::Lost(id, 3)]);
}

/// The data of a served contribution is not kept when nobody needs it.
#[test]
fn served_data_is_dropped_when_all_have_it() {
    let mut world = World::new(2);
    let id = world.nodes[0].open("", &[]);
    world.nodes[0].put_served(id, vec![3; 600]);
    world.put(1);
    world.deliver(1, 0);
    assert!(world.complete(0).is_some());
    world.deliver(0, 1);
    world.nodes[1].fetched(id, 0, vec![3; 600]);
    assert!(world.complete(1).is_some());
    let kept = |world: &World| {
        let mut data = world.nodes[0].contributions_of(0);
        data.next().map(|(_, data)| data.len())
    };
    assert_eq!(kept(&world), Some(600));
    world.deliver(1, 0);
    assert_eq!(world.complete(0), None);
    assert_eq!(kept(&world), Some(0));
    assert!(world.nodes[0].to_serve(&world.gone).is_empty());
    world.deliver(0, 1);
    assert_eq!(world.nodes[1].awaited(), [], "it is not requested again");
}

#[test]
fn a_contribution_is_needed_until_all_remaining_nodes_have_it() {
    let mut world = World::new(3);
    let id = world.nodes[0].contribute("", &[], vec![1; 600]);
    let is_needed = |world: &World| world.nodes[0].is_needed(id, &world.gone_for[0]);
    for node in [1, 2] {
        world.put(node);
        world.deliver(node, 0);
    }
    assert!(world.nodes[0].is_open(id) && is_needed(&world));
    assert!(world.complete(0).is_some());
    assert!(!world.nodes[0].is_open(id) && is_needed(&world));
    for node in [1, 2] {
        world.receive_from_all(node);
        let one = world.nodes[node].awaited().remove(0);
        world.deliver(node, 0);
        assert!(is_needed(&world), "node {node} has the decision only");
        world.nodes[node].fetched(one.id, one.node, vec![1; one.size]);
        if node == 1 {
            assert!(world.complete(node).is_some());
            world.deliver(node, 0);
        }
    }
    world.lose(2);
    assert!(!is_needed(&world));
}

#[test]
fn too_much_data_fails_its_fence_on_all_nodes_and_no_other() {
    let mut world = World::new(3);
    let id = world.nodes[1].open("", &[]);
    world.nodes[1].refuse(id, 2_000_000);
    for node in [0, 2] {
        world.put(node);
    }
    for node in [1, 2] {
        world.deliver(node, 0);
    }
    for node in 0..3 {
        world.receive_from_all(node);
        assert_eq!(world.advance(node), [Outcome::TooMuch(id, 1)]);
        assert_eq!(world.advance(node), []);
    }
    for node in [2, 1, 0] {
        world.put(node);
        world.deliver(node, 0);
    }
    assert_eq!(world.complete(0), Some(vec![0, 1, 2]));
    // The same holds if the launcher with too much data is lost meanwhile.
    let mut world = World::new(3);
    let id = world.nodes[1].open("", &[]);
    world.nodes[1].refuse(id, 2_000_000);
    world.put(0);
    world.deliver(1, 0);
    world.lose(1);
    world.put(2);
    world.deliver(2, 0);
    assert_eq!(world.advance(0), [Outcome::TooMuch(id, 1)]);
    world.deliver(0, 2);
    assert_eq!(world.advance(2), [Outcome::TooMuch(id, 1)]);
}

#[test]
fn old_fences_are_forgotten() {
    let mut world = World::new(1);
    for _ in 0..10 {
        world.put(0);
        assert!(world.complete(0).is_some());
    }
    assert!(world.states(0).len() <= 3);
    assert_eq!(world.nodes[0].delivered_of_all(), 10);
}

/// Each would take room in its node status, until that could not be published. The node reads some statuses only.
#[test]
fn old_fences_are_forgotten_by_a_node_whose_ranks_have_ended() {
    let mut world = World::new(3);
    world.ended.extend([2, 3]);
    for turn in 0..100 {
        world.put(0);
        world.put(2);
        if turn % 5 == 0 {
            world.deliver(2, 1);
        }
        for node in [0, 2] {
            world.receive_from_all(node);
            world.advance(node);
        }
        if turn % 7 < 2 {
            world.receive_from_all(1);
        }
        world.advance(1);
    }
    for node in [0, 2] {
        assert_eq!(world.nodes[node].delivered_of_all(), 100);
    }
    let kept = FENCES_KEPT as usize + 2;
    for node in 0..3 {
        let states = world.states(node).len();
        assert!(states <= kept, "node {node} publishes {states} states");
    }
}

#[test]
fn groups_are_distinct_and_forgotten_when_they_are_over_for_all() {
    let mut world = World::new(2);
    let some = [1, 2];
    for name in ["a", "b"] {
        for node in 0..2 {
            world.nodes[node].contribute(name, &some, vec![node as u8]);
        }
    }
    world.deliver(1, 0);
    assert_eq!(world.advance(0).len(), 2);
    assert_eq!(world.states(0).len(), 2, "it is not over on the other node");
    world.deliver(0, 1);
    assert_eq!(world.advance(1).len(), 2);
    assert_eq!(world.states(1).len(), 2);
    world.deliver(1, 0);
    assert_eq!(world.advance(0), []);
    assert_eq!(world.states(0).len(), 0);
    world.deliver(0, 1);
    assert_eq!(world.advance(1), []);
    assert_eq!(world.states(1).len(), 0);
    // A late state of another node does not bring the fence back.
    world.nodes[1].contribute("a", &some, vec![1]);
    world.deliver(1, 0);
    assert_eq!(world.complete(0), None);
    world.nodes[0].contribute("a", &some, vec![0]);
    assert_eq!(world.complete(0), Some(vec![0, 1]));
}

#[test]
fn the_oldest_of_too_many_groups_are_forgotten() {
    let mut world = World::new(2);
    let name = |number: usize| format!("group {number}");
    for number in 0..GROUPS_KEPT_MAX + 8 {
        for node in 0..2 {
            world.nodes[node].contribute(&name(number), &[1, 2], vec![]);
        }
        world.deliver(1, 0);
        assert!(world.complete(0).is_some());
    }
    // Node 1 no longer publishes that the fences are over there.
    assert_eq!(world.advance(0), []);
    let kept: BTreeSet<String> = (world.states(0).into_iter())
        .map(|state| state.tag)
        .collect();
    let youngest: BTreeSet<String> = (8..GROUPS_KEPT_MAX + 8).map(name).collect();
    assert_eq!(kept, youngest);
}

#[test]
fn a_group_is_forgotten_by_a_node_whose_ranks_have_ended() {
    let mut world = World::new(2);
    world.ended.extend([0, 1]);
    world.nodes[1].contribute("a", &[1, 2], vec![1]);
    world.deliver(1, 0);
    assert_eq!(world.advance(0), []);
    world.deliver(0, 1);
    assert_eq!(world.complete(1), Some(vec![1]));
    world.deliver(1, 0);
    assert_eq!(world.advance(0), []);
    assert_eq!(world.states(0).len(), 0);
    world.deliver(0, 1);
    assert_eq!(world.advance(1), []);
    assert_eq!(world.states(1).len(), 0);
}

#[test]
fn a_node_knows_that_others_wait_for_its_ranks() {
    let mut world = World::new(2);
    assert!(!world.nodes[1].is_awaited());
    world.put(0);
    world.deliver(0, 1);
    assert!(world.nodes[1].is_awaited());
    world.put(1);
    assert!(!world.nodes[1].is_awaited(), "they have entered");
    // A fence of some ranks only is no part of the start.
    world.nodes[0].contribute("a", &[1, 2], vec![1]);
    world.deliver(0, 1);
    assert!(!world.nodes[1].is_awaited());
}

/// run-3.
#[test]
fn no_node_decides_while_a_loss_is_to_be_judged() {
    let mut world = World::new(3);
    (0..3).for_each(|node| world.put(node));
    world.receive_from_all(0);
    world.is_in_doubt = true;
    assert_eq!(world.complete(0), None);
    world.is_in_doubt = false;
    assert_eq!(world.complete(0), Some(vec![0, 1, 2]));
    world.is_in_doubt = true;
    world.receive_from_all(1);
    assert_eq!(world.complete(1), Some(vec![0, 1, 2]));
}
