//! Nodes with several rails: traffic of a lost rail uses another one.

use muster_protocol::{EventKind, NodeState, Profile};
use muster_sim::World;

use crate::common::{MS, SECOND, booted, sound};

fn with_rails(seed: u64, count: usize, rails: usize) -> World {
    let mut world = booted(seed, count, Profile::Standard);
    world.set_rails(rails);
    world.run(SECOND);
    assert!(world.converged());
    world
}

/// One rail of a node is lost: its observers report it degraded, and no member reports it failed. When the
/// rail is back, the node is alive again.
#[test]
fn a_lost_rail_is_degraded_and_never_failed() {
    for seed in 0..10 {
        let mut world = with_rails(seed, 12, 2);
        world.network.loss_permille = 30;
        let at = world.now();
        world.lose_rail(4, 1);
        world.run(3 * SECOND);
        let degraded = world.reported(at, 4, |kind| *kind == EventKind::NodeDegraded);
        let observers: Vec<usize> = (0..12)
            .filter(|node| world.engine(*node).observing().any(|id| id == world.id(4)))
            .collect();
        assert!(!observers.is_empty());
        for observer in observers {
            assert!(
                degraded.iter().any(|(by, _)| *by == observer),
                "seed={seed}"
            );
            let state = world.engine(observer).member(world.id(4)).unwrap().state();
            assert_eq!(state, NodeState::Degraded, "seed={seed}");
        }
        for node in 0..12 {
            let failed = world.reported(at, node, |kind| *kind == EventKind::NodeFailed);
            assert_eq!(failed, [], "node {node}, seed={seed}");
        }
        world.mend_rail(4, 1);
        world.run(SECOND);
        for observer in 0..12 {
            let state = world.engine(observer).member(world.id(4)).unwrap().state();
            assert_eq!(state, NodeState::Alive, "seed={seed}");
        }
        sound(&world);
    }
}

/// The switch of one rail fails for all nodes; then a node dies, and is detected as fast as usual.
#[test]
fn a_lost_net_hides_no_death() {
    let mut world = with_rails(3, 12, 2);
    let at = world.now();
    (0..12).for_each(|node| world.lose_rail(node, 0));
    world.run(SECOND);
    assert!((0..12).all(|node| {
        world
            .reported(at, node, |kind| *kind == EventKind::NodeFailed)
            .is_empty()
    }));
    world.crash(7);
    assert!(world.run_until(500 * MS, World::converged));
    sound(&world);
}

/// The last rail of a node is lost too: that is silence and leads to a failure.
#[test]
fn a_node_without_a_rail_is_failed() {
    let mut world = with_rails(5, 8, 2);
    let at = world.now();
    world.excuse(2);
    world.lose_rail(2, 0);
    world.run(SECOND);
    world.lose_rail(2, 1);
    world.run(SECOND);
    let failed = world.reported(at, 2, |kind| *kind == EventKind::NodeFailed);
    assert_eq!(failed.iter().filter(|(by, _)| *by != 2).count(), 7);
}
