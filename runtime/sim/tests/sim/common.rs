//! What the stories share: a zone that has booted, and the question whether all was well.
//! Not every story needs all of it.

use muster_protocol::Profile;
use muster_sim::World;

pub(crate) const MS: u64 = 1000;
pub(crate) const SECOND: u64 = 1_000_000;

/// So many members that have found each other, at rest.
pub(crate) fn booted(seed: u64, count: usize, profile: Profile) -> World {
    let mut world = World::booted(seed, count, profile);
    assert!(
        world.run_until(5 * SECOND, World::converged),
        "boot of {count}, seed={seed}"
    );
    // Let handshakes end, so that the story starts in quiet.
    world.run(300 * MS);
    assert!(world.converged());
    world
}

/// Nothing that must always hold was broken.
pub(crate) fn sound(world: &World) {
    assert_eq!(world.checker.violations(), []);
}
