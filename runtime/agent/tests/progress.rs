//! Ranks that promise to tick, and ranks that wait for a state.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_agent::watch::{Finding, HungBy};
use muster_client::{Client, Error};
use muster_shm::RankState;
use support::DEADLINE;
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

/// Without a library thread it is the thread that attached; nobody is left to take the promise back.
#[test]
fn a_promise_ends_with_the_thread_that_holds_the_word() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start_with(base.path(), 0, "ends", base.path());
    let slot = agent.await_armed();
    rank.tell("promise 20");
    rank.hear("promised");
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::NoTick));
    rank.tell("end-thread");
    assert_eq!(agent.await_finding(slot), Finding::Detached);
    assert_eq!(agent.await_finding(slot), Finding::Resumed);
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
        client.wait_rank(7, &[RankState::Alive], short),
        Ok(None)
    ));
    assert!(matches!(
        client.wait_rank(7, &[RankState::Unknown], short),
        Ok(Some(_))
    ));
    assert!(matches!(
        client.wait_ranks(1, &[RankState::Hung], short),
        Ok(None)
    ));
    assert!(matches!(
        client.wait_ranks(0, &[RankState::Hung], Duration::MAX),
        Ok(Some(0))
    ));
    client.finalize(0).unwrap();
    assert!(client.wait_rank(0, &[RankState::Left], short).is_err());
}

/// A thread that waits for a rank, or for events, and what it is told in the end.
fn waiting<T: Send + 'static>(
    client: &Client,
    wait: impl FnOnce(&Client) -> T + Send + 'static,
) -> std::sync::mpsc::Receiver<T> {
    let (sender, told) = std::sync::mpsc::channel();
    let client = client.clone();
    std::thread::spawn(move || sender.send(wait(&client)));
    told
}

/// Nobody looks again now and then whether there is still an agent to wait for: who waits is woken.
#[test]
fn who_waits_when_this_process_leaves_is_told_so() {
    let base = tempdir().unwrap();
    for thread in [true, false] {
        let mut agent = Agent::start(base.path());
        let options = muster_client::Options {
            thread,
            ..support::agent::options(base.path())
        };
        let client = Client::attach(options).unwrap();
        agent.await_armed();
        let state = waiting(&client, |client| {
            client.wait_rank(7, &[RankState::Alive], Duration::MAX)
        });
        let event = waiting(&client, |client| {
            loop {
                match client.wait_event(Duration::MAX) {
                    Ok(_) => {}
                    Err(cause) => return cause,
                }
            }
        });
        client.finalize(0).unwrap();
        assert!(matches!(
            state.recv_timeout(DEADLINE),
            Ok(Err(Error::Finalized))
        ));
        assert!(matches!(event.recv_timeout(DEADLINE), Ok(Error::Finalized)));
    }
}

#[test]
fn who_waits_when_another_agent_comes_waits_for_what_that_says() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(support::agent::options(base.path())).unwrap();
    agent.await_armed();
    let state = waiting(&client, |client| {
        client.wait_rank(7, &[RankState::Alive], Duration::MAX)
    });
    drop(agent);
    let mut another = Agent::start(base.path());
    another.await_armed();
    let _rank = Rank::start(base.path(), 7);
    let told = state.recv_timeout(DEADLINE);
    assert!(matches!(told, Ok(Ok(Some(RankState::Alive)))), "{told:?}");
    client.finalize(0).unwrap();
}

/// Whoever takes over the events says so to those who wait for them.
#[test]
fn who_waits_for_events_can_be_asked_to_stop() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(support::agent::options(base.path())).unwrap();
    agent.await_armed();
    static GOES_ON: AtomicBool = AtomicBool::new(true);
    let all: Vec<_> = (0..3)
        .map(|_| {
            waiting(&client, |client| {
                loop {
                    let go_on = || GOES_ON.load(Ordering::Acquire);
                    let told = client.wait_event_while(Duration::MAX, go_on);
                    if !matches!(told, Ok(Some(_))) {
                        return told.is_ok();
                    }
                }
            })
        })
        .collect();
    GOES_ON.store(false, Ordering::Release);
    client.wake_takers();
    for told in all {
        assert_eq!(told.recv_timeout(DEADLINE), Ok(true));
    }
    client.finalize(0).unwrap();
}

/// What wakes such a one may come while it looks for events, which takes back what was raised.
#[test]
fn who_is_asked_to_stop_while_it_looks_does_not_wait_again() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(support::agent::options(base.path())).unwrap();
    agent.await_armed();
    while client.next_event().unwrap().is_some() {}
    let told = waiting(&client, |client| {
        let is_asked = AtomicBool::new(false);
        client.wait_event_while(Duration::MAX, || {
            let goes_on = !is_asked.swap(true, Ordering::AcqRel);
            if goes_on {
                // Just after the answer, and nobody wakes it later.
                client.wake_takers();
            }
            goes_on
        })
    });
    let told = told.recv_timeout(DEADLINE);
    assert!(matches!(told, Ok(Ok(None))), "{told:?}");
    client.finalize(0).unwrap();
}
