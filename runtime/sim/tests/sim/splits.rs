//! Splits that heal: which side yields.

use muster_protocol::{EventKind, Profile};
use muster_sim::World;

/// The sides are apart for this long, in microseconds; new members join in the middle of it.
const APART_US: u64 = 1_500_000;

/// Splits a zone of 24 into its first `small` members and the others. `new` members join the smaller side. Returns
/// how many members of the larger side were outcast when the sides had met again.
fn outcasts_of_the_larger_side(seed: u64, small: usize, new: usize) -> usize {
    let mut world = World::booted(seed, 24, Profile::Standard);
    assert!(world.run_until(10_000_000, World::converged), "seed {seed}");
    world.run(1_000_000);
    let cut = |world: &mut World, one: usize| {
        for other in small..24 {
            world.network.cut(one, other);
            world.network.cut(other, one);
        }
    };
    (0..small).for_each(|one| cut(&mut world, one));
    world.run(APART_US / 2);
    for number in 0..new {
        let mut config = world.config(&format!("new{number}"), Profile::Standard);
        config.seeds = vec![b"address-0".to_vec(), b"address-1".to_vec()];
        let node = world.add(config);
        cut(&mut world, node);
    }
    world.run(APART_US / 2);
    world.network.heal();
    let before = world.records().len();
    assert!(world.run_until(30_000_000, World::converged), "seed {seed}");
    let records = world.records()[before..].iter();
    let outcast = records.filter(|record| record.event.kind == EventKind::Outcast);
    outcast
        .filter(|record| (small..24).contains(&record.observer))
        .count()
}

/// Members that join the smaller side hold its verdicts on members of the larger one, which do not know them. Those
/// verdicts must not count when the members that made them are back.
#[test]
fn the_larger_side_is_not_outcast_by_members_that_joined_the_smaller_one() {
    for (small, new) in [(4, 1), (8, 1), (10, 1), (10, 2)] {
        let outcast = (0..25).map(|seed| outcasts_of_the_larger_side(seed, small, new));
        let outcast: Vec<usize> = outcast.collect();
        assert_eq!(
            outcast.iter().sum::<usize>(),
            0,
            "{small} and {new}: {outcast:?}"
        );
    }
}
