//! Shared by the tests: a zone that has booted, and a check of all guarantees. Not every test uses all of it.

use muster_protocol::Profile;
use muster_sim::World;

pub(crate) const MS: u64 = 1000;
pub(crate) const SECOND: u64 = 1_000_000;

/// A zone of this many members that have found each other and are quiet.
pub(crate) fn booted(seed: u64, count: usize, profile: Profile) -> World {
    let mut world = World::booted(seed, count, profile);
    assert!(
        world.run_until(5 * SECOND, World::converged),
        "boot of {count}, seed={seed}"
    );
    // Let handshakes end, so that the test starts in quiet.
    world.run(300 * MS);
    assert!(world.converged());
    world
}

/// Asserts that no guarantee was broken.
pub(crate) fn sound(world: &World) {
    assert_eq!(world.checker.violations(), []);
}
