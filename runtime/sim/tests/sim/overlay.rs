//! The shape of the overlay: every member has enough neighbours, none has too many, and paths between members
//! are short. Row ZM-05. `push` tests how news spreads over it.

use std::collections::{BTreeSet, VecDeque};

use muster_protocol::{MemberId, Profile};
use muster_sim::World;

use crate::common::{MS, SECOND, sound};

const NEIGHBOURS: usize = 3;

fn links(world: &World, node: usize, ring: bool) -> BTreeSet<MemberId> {
    let engine = world.engine(node);
    let mut links: BTreeSet<MemberId> = engine.neighbours().collect();
    if ring {
        links.extend(engine.observing().chain(engine.observers()));
    }
    links
}

/// The length of the longest shortest path; `None` if a member cannot be reached.
fn diameter(world: &World, ring: bool) -> Option<usize> {
    let nodes = world.running();
    let index_of = |id: MemberId| nodes.iter().position(|node| world.id(*node) == id);
    let graph: Vec<Vec<usize>> = nodes
        .iter()
        .map(|node| {
            let links = links(world, *node, ring);
            links.into_iter().filter_map(index_of).collect()
        })
        .collect();
    let mut longest = 0;
    for start in 0..nodes.len() {
        let mut distances = vec![None; nodes.len()];
        distances[start] = Some(0);
        let mut queue = VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            for next in &graph[at] {
                if distances[*next].is_none() {
                    distances[*next] = distances[at].map(|steps| steps + 1);
                    queue.push_back(*next);
                }
            }
        }
        for distance in distances {
            longest = longest.max(distance?);
        }
    }
    Some(longest)
}

fn shaped(world: &World, seed: u64) {
    let nodes = world.running();
    let count = nodes.len();
    for node in &nodes {
        let neighbours = links(world, *node, false);
        let degree = neighbours.len();
        assert!(
            (NEIGHBOURS..=2 * NEIGHBOURS).contains(&degree),
            "degree {degree} of node {node}, {count} members, seed={seed}"
        );
        for other in nodes
            .iter()
            .filter(|other| neighbours.contains(&world.id(**other)))
        {
            assert!(
                links(world, *other, false).contains(&world.id(*node)),
                "{node} and {other} do not agree on their link, seed={seed}"
            );
        }
    }
    // The paper: at most log N to the base K_r, here rounded up.
    let bound = (1..).find(|steps| NEIGHBOURS.pow(*steps) >= count);
    let bound = bound.unwrap() as usize;
    let whole = diameter(world, true).expect("the overlay is connected");
    assert!(whole <= bound, "diameter {whole} of {count}, seed={seed}");
    // The random links alone are connected too, and their diameter is not much larger.
    let random = diameter(world, false).expect("the random links alone connect all");
    assert!(
        random <= bound + 3,
        "diameter {random} of {count}, seed={seed}"
    );
    println!("simulated: {count} members, diameter {whole}, of random links alone {random}");
}

fn booted(seed: u64, count: usize, together: bool) -> World {
    let mut world = World::new(seed);
    for index in 0..count {
        let config = world.config(&format!("node{index}"), Profile::Quiet);
        world.add(config);
        if !together {
            world.run(SECOND / 10);
        }
    }
    assert!(
        world.run_until(60 * SECOND, World::converged),
        "seed={seed}"
    );
    world.run(3 * SECOND);
    world
}

/// ZM-05: at every size, and whether all members start at once or one after the other.
#[test]
fn the_overlay_is_a_random_graph_of_bounded_degree() {
    for (count, together) in [
        (16, true),
        (16, false),
        (64, true),
        (64, false),
        (128, false),
    ] {
        let world = booted(count as u64, count, together);
        shaped(&world, count as u64);
        sound(&world);
    }
}

/// ZM-05, at four times the size.
#[test]
fn the_overlay_of_512_members_is_a_random_graph_too() {
    let world = booted(512, 512, true);
    shaped(&world, 512);
    sound(&world);
}

/// ZM-05: members that lose neighbours replace them.
#[test]
fn lost_neighbours_are_replaced() {
    for seed in 0..4 {
        let mut world = booted(seed, 64, true);
        for _ in 0..24 {
            let running = world.running();
            let victim = *world.chance().pick(&running).unwrap();
            world.crash(victim);
            world.run(200 * MS);
        }
        assert!(
            world.run_until(30 * SECOND, World::converged),
            "seed={seed}"
        );
        world.run(3 * SECOND);
        shaped(&world, seed);
        sound(&world);
    }
}
