//! Ranks that promise to tick, and clients that wait for a state.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::DEADLINE;
use crate::support::agent::Agent;
use crate::support::rank::Rank;
use muster_agent::watch::{Finding, HungBy};
use muster_client::{Client, Error};
use muster_shm::RankState;
use tempfile::tempdir;

#[test]
fn a_rank_that_breaks_its_promise_to_tick_is_hung_until_it_ticks() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start(base.path(), 0);
    let slot = agent.await_armed();
    rank.send("promise 20");
    rank.await_line("promised");
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::NoTick));
    assert_eq!(agent.view.rank_state(0), RankState::Hung);
    rank.send("tick");
    assert_eq!(agent.await_finding(slot), Finding::Resumed);
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::NoTick));
    // A rank that withdraws its promise is not checked any more.
    rank.send("promise 0");
    rank.await_line("promised");
    assert_eq!(agent.await_finding(slot), Finding::Resumed);
    assert_eq!(agent.view.rank_state(0), RankState::Alive);
}

/// Without a library thread, the thread that attached holds the futex; after its end no thread can withdraw
/// the promise.
#[test]
fn a_promise_ends_with_the_thread_that_holds_the_futex() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start_with(base.path(), 0, "ends", base.path());
    let slot = agent.await_armed();
    rank.send("promise 20");
    rank.await_line("promised");
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::NoTick));
    rank.send("end-thread");
    assert_eq!(agent.await_finding(slot), Finding::Detached);
    assert_eq!(agent.await_finding(slot), Finding::Resumed);
}

/// The kernel knows why the rank does not tick; only that reason is reported.
#[test]
fn a_stopped_rank_is_not_reported_for_missing_ticks() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start(base.path(), 0);
    let slot = agent.await_armed();
    rank.send("promise 60000");
    rank.await_line("promised");
    rank.signal(libc::SIGSTOP);
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::Stopped));
    rank.signal(libc::SIGCONT);
    assert_eq!(agent.await_finding(slot), Finding::Resumed);
    rank.send("promise 20");
    rank.await_line("promised");
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::NoTick));
    rank.signal(libc::SIGSTOP);
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::Stopped));
    rank.signal(libc::SIGCONT);
    // The tick period starts anew, and the rank is late again.
    assert_eq!(agent.await_finding(slot), Finding::Resumed);
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::NoTick));
}

#[test]
fn a_client_waits_for_a_state() {
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
        .for_each(|rank| rank.send("await-rank 2"));
    victim.signal(libc::SIGKILL);
    assert!(matches!(agent.await_finding(slot), Finding::Failed { .. }));
    for rank in &waiting {
        assert_eq!(rank.await_line("awaited"), "Some(Failed)");
    }
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(crate::support::agent::options(base.path())).unwrap();
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

/// Starts a thread that waits. Returns a receiver of its result.
fn waiting<T: Send + 'static>(
    client: &Client,
    wait: impl FnOnce(&Client) -> T + Send + 'static,
) -> std::sync::mpsc::Receiver<T> {
    let (sender, result) = std::sync::mpsc::channel();
    let client = client.clone();
    std::thread::spawn(move || sender.send(wait(&client)));
    result
}

/// Waiting threads do not poll whether the agent exists: they are woken.
#[test]
fn a_waiting_thread_is_notified_when_its_process_detaches() {
    let base = tempdir().unwrap();
    for thread in [true, false] {
        let mut agent = Agent::start(base.path());
        let options = muster_client::Options {
            thread,
            ..crate::support::agent::options(base.path())
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
fn a_waiting_thread_continues_to_wait_with_the_next_agent() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(crate::support::agent::options(base.path())).unwrap();
    agent.await_armed();
    let state = waiting(&client, |client| {
        client.wait_rank(7, &[RankState::Alive], Duration::MAX)
    });
    drop(agent);
    let mut another = Agent::start(base.path());
    another.await_armed();
    let _rank = Rank::start(base.path(), 7);
    let result = state.recv_timeout(DEADLINE);
    assert!(
        matches!(result, Ok(Ok(Some(RankState::Alive)))),
        "{result:?}"
    );
    client.finalize(0).unwrap();
}

/// A thread that takes over the events notifies the threads that wait for them.
#[test]
fn a_thread_that_waits_for_events_can_be_stopped() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(crate::support::agent::options(base.path())).unwrap();
    agent.await_armed();
    static GOES_ON: AtomicBool = AtomicBool::new(true);
    let all: Vec<_> = (0..3)
        .map(|_| {
            waiting(&client, |client| {
                loop {
                    let go_on = || GOES_ON.load(Ordering::Acquire);
                    let result = client.wait_event_while(Duration::MAX, go_on);
                    if !matches!(result, Ok(Some(_))) {
                        return result.is_ok();
                    }
                }
            })
        })
        .collect();
    GOES_ON.store(false, Ordering::Release);
    client.wake_takers();
    for result in all {
        assert_eq!(result.recv_timeout(DEADLINE), Ok(true));
    }
    client.finalize(0).unwrap();
}

/// The wake-up may come while the thread checks for events, which clears the signal.
#[test]
fn a_thread_stopped_while_it_checks_does_not_wait_again() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(crate::support::agent::options(base.path())).unwrap();
    agent.await_armed();
    while client.next_event().unwrap().is_some() {}
    let result = waiting(&client, |client| {
        let is_asked = AtomicBool::new(false);
        client.wait_event_while(Duration::MAX, || {
            let goes_on = !is_asked.swap(true, Ordering::AcqRel);
            if goes_on {
                // Just after the check; no other wake-up follows.
                client.wake_takers();
            }
            goes_on
        })
    });
    let result = result.recv_timeout(DEADLINE);
    assert!(matches!(result, Ok(Ok(None))), "{result:?}");
    client.finalize(0).unwrap();
}
