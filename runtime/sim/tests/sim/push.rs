//! News is pushed along a tree over the overlay, and offered as hints everywhere else: few copies
//! reach a member, and whoever the tree misses is found. Row ZM-08.

use muster_protocol::{Profile, RankState};
use muster_sim::{FactsHeard, World};

use crate::common::{MS, SECOND, booted, sound};

/// Ranks of random nodes fail, one after the other; all know each before the next.
fn news(world: &mut World, first: u32, count: u32) {
    for rank in first..first + count {
        let running = world.running();
        let node = *world.chance().pick(&running).unwrap();
        world.rank(node, rank, RankState::Failed);
        assert!(world.run_until(SECOND, World::converged));
        world.run(20 * MS);
    }
}

/// So many pieces of news in a zone that has had some: what arrived, and what was new of it.
fn copies(count: usize) -> FactsHeard {
    let mut world = booted(count as u64, count, Profile::Standard);
    world.run(2 * SECOND);
    news(&mut world, 0, 20);
    let before = world.facts_heard();
    news(&mut world, 20, 40);
    sound(&world);
    let heard = world.facts_heard_since(&before);
    let percent = heard.all * 100 / heard.new;
    println!("simulated: {count} members, {percent} copies of a hundred pieces of news");
    assert_eq!(
        heard.new,
        40 * (count as u64 - 1),
        "everybody heard everything"
    );
    heard
}

/// In a small view the origin of a death tells everybody, and nobody else says it again.
#[test]
fn in_a_small_zone_everybody_is_told_once() {
    for count in [2, 3, 16, 32] {
        let heard = copies(count);
        assert_eq!(heard.all, heard.new, "{count} members");
    }
}

/// In a larger one a piece of news arrives twice, on the average, where a member has eight links (ZM-08).
#[test]
fn in_a_large_zone_a_member_is_told_twice_at_most() {
    for (count, bound_percent) in [(48, 200), (96, 200), (160, 225)] {
        let heard = copies(count);
        let percent = heard.all * 100 / heard.new;
        assert!(percent <= bound_percent, "{count} members: {percent}");
    }
}

/// News begins while members of the tree die with it in their hands: the others' hints reach
/// those behind them, long before any digest is compared (ZM-08).
#[test]
fn those_behind_the_dead_are_found_by_hints() {
    let mut followed = 0;
    for seed in 0..8 {
        let mut world = booted(seed, 96, Profile::Standard);
        world.run(2 * SECOND);
        news(&mut world, 0, 20);
        let hints = |world: &World| -> u64 {
            let survivors = (0..96).filter(|node| *node < 8 || node % 8 != 0);
            let followed = survivors.map(|node| world.engine(node).counters().hints_followed);
            followed.sum()
        };
        let before = hints(&world);
        let at = world.now();
        world.rank(5, 99, RankState::Failed);
        // It has left its origin and is on its way through those who die now.
        for node in (8..96).step_by(8) {
            world.crash(node);
        }
        let id = world.id(5);
        let knows = |world: &World, node: usize| {
            let member = world.engine(node).member(id).unwrap();
            member.ranks().any(|fact| fact.rank == 99)
        };
        // No deadline has passed: it is not the deaths that mend the tree.
        let all = |world: &World| world.running().into_iter().all(|node| knows(world, node));
        assert!(world.run_until(10 * MS, all), "seed={seed}");
        println!("simulated, seed {seed}: after {} us", world.now().since(at));
        followed += hints(&world) - before;
        assert!(world.run_until(5 * SECOND, World::converged), "seed={seed}");
        sound(&world);
    }
    assert!(
        followed > 0,
        "the tree was never torn, so this shows nothing"
    );
}

/// The same when links lose most of what they carry, hints too: digests find who is left.
#[test]
fn what_hints_lose_digests_find() {
    for seed in 0..4 {
        let mut world = booted(seed, 40, Profile::Standard);
        news(&mut world, 0, 10);
        world.storm(800);
        let running = world.running();
        for rank in 0..10 {
            let node = *world.chance().pick(&running).unwrap();
            world.rank(node, 100 + rank, RankState::Failed);
        }
        world.run(15 * MS);
        world.end_storm(0);
        assert!(world.run_until(5 * SECOND, World::converged), "seed={seed}");
        sound(&world);
    }
}
