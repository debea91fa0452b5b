//! News is pushed along a tree over the overlay, and offered as hints on all other links. Few copies reach a
//! member, and hints reach the members that the tree misses. Row ZM-08.

use muster_protocol::{Profile, RankState};
use muster_sim::{FactsHeard, World};

use crate::common::{MS, SECOND, booted, sound};

/// Ranks of random nodes fail, one after the other; all members know of each before the next one.
fn news(world: &mut World, first: u32, count: u32) {
    for rank in first..first + count {
        let running = world.running();
        let node = *world.chance().pick(&running).unwrap();
        world.rank(node, rank, RankState::Failed);
        assert!(world.run_until(SECOND, World::converged));
        world.run(20 * MS);
    }
}

/// Spreads this many pieces of news in a zone that has had some before. Returns the facts that arrived, and
/// the new ones among them.
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
        "every member received everything"
    );
    heard
}

/// In a small view the member that detects a failure sends it to all others, and no other member forwards it.
#[test]
fn in_a_small_zone_each_member_receives_news_once() {
    for count in [2, 3, 16, 32] {
        let heard = copies(count);
        assert_eq!(heard.all, heard.new, "{count} members");
    }
}

/// In a larger view a piece of news arrives twice on average, where a member has eight links (ZM-08).
#[test]
fn in_a_large_zone_a_member_receives_news_twice_at_most() {
    for (count, bound_percent) in [(48, 200), (96, 200), (160, 225)] {
        let heard = copies(count);
        let percent = heard.all * 100 / heard.new;
        assert!(percent <= bound_percent, "{count} members: {percent}");
    }
}

/// Members of the tree die while they forward news. The hints of others reach the members behind them, long
/// before digests are compared (ZM-08).
#[test]
fn hints_reach_the_members_behind_dead_ones() {
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
        // The news has left its origin and is under way through the members that die now.
        for node in (8..96).step_by(8) {
            world.crash(node);
        }
        let id = world.id(5);
        let knows = |world: &World, node: usize| {
            let member = world.engine(node).member(id).unwrap();
            member.ranks().any(|fact| fact.rank == 99)
        };
        // No deadline has passed: the tree is not repaired because the deaths were detected.
        let all = |world: &World| world.running().into_iter().all(|node| knows(world, node));
        assert!(world.run_until(10 * MS, all), "seed={seed}");
        println!("simulated, seed {seed}: after {} us", world.now().since(at));
        followed += hints(&world) - before;
        assert!(world.run_until(5 * SECOND, World::converged), "seed={seed}");
        sound(&world);
    }
    assert!(
        followed > 0,
        "the tree was never broken, so this test proves nothing"
    );
}

/// The same when links lose most datagrams, hints too: digests detect the members that are left out.
#[test]
fn digests_repair_what_hints_lose() {
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
