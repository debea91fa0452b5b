//! Ranks that promise to tick, and ranks that wait for a state.

mod support;

use std::time::Duration;

use muster::board::RankState;
use muster::client::Client;
use muster::watch::{Finding, HungBy};
use support::agent::Agent;
use support::rank::{Rank, role as act};
use tempfile::tempdir;

#[test]
fn role() {
    act();
}

#[test]
fn who_promised_to_tick_and_does_not_is_hung_until_it_ticks() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start(base.path(), 0);
    let slot = agent.await_armed();
    rank.tell("promise 20");
    rank.hear("promised");
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::NoTick));
    assert_eq!(agent.view.rank_state(0), RankState::Hung);
    rank.tell("tick");
    assert_eq!(agent.await_finding(slot), Finding::Resumed);
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::NoTick));
    // Who takes the promise back is as free as before.
    rank.tell("promise 0");
    rank.hear("promised");
    assert_eq!(agent.await_finding(slot), Finding::Resumed);
    assert_eq!(agent.view.rank_state(0), RankState::Alive);
}

/// The kernel knows why it does not tick; that is said, and only that.
#[test]
fn who_is_stopped_is_not_blamed_for_missing_ticks() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start(base.path(), 0);
    let slot = agent.await_armed();
    rank.tell("promise 60000");
    rank.hear("promised");
    rank.signal(libc::SIGSTOP);
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::Stopped));
    rank.signal(libc::SIGCONT);
    assert_eq!(agent.await_finding(slot), Finding::Resumed);
    rank.tell("promise 20");
    rank.hear("promised");
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::NoTick));
    rank.signal(libc::SIGSTOP);
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::Stopped));
    rank.signal(libc::SIGCONT);
    // It begins anew, and is late again.
    assert_eq!(agent.await_finding(slot), Finding::Resumed);
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::NoTick));
}

#[test]
fn a_state_is_waited_for() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut waiting: Vec<Rank> = ["yes", "no"]
        .into_iter()
        .zip(0..)
        .map(|(thread, rank)| {
            let rank = Rank::start_with(base.path(), rank, thread, base.path());
            agent.await_armed();
            rank
        })
        .collect();
    let victim = Rank::start(base.path(), 2);
    let slot = agent.await_armed();
    waiting
        .iter_mut()
        .for_each(|rank| rank.tell("await-rank 2"));
    victim.signal(libc::SIGKILL);
    assert!(matches!(agent.await_finding(slot), Finding::Failed { .. }));
    for rank in &waiting {
        assert_eq!(rank.hear("awaited"), "Some(Failed)");
    }
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(support::agent::options(base.path())).unwrap();
    agent.await_armed();
    let short = Duration::from_millis(3);
    assert!(matches!(
        client.await_rank(7, &[RankState::Alive], short),
        Ok(None)
    ));
    assert!(matches!(
        client.await_rank(7, &[RankState::Unknown], short),
        Ok(Some(_))
    ));
    assert!(matches!(
        client.await_ranks(1, &[RankState::Hung], short),
        Ok(None)
    ));
    assert!(matches!(
        client.await_ranks(0, &[RankState::Hung], Duration::MAX),
        Ok(Some(0))
    ));
    client.finalize(0).unwrap();
    assert!(client.await_rank(0, &[RankState::Left], short).is_err());
}
