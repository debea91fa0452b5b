//! The feed to MPI that is asked for late: by the porch, the client and the agent, or by none of them.

mod support;

use muster_agent::ipc_server::Request;
use muster_client::{Client, Error, Options, PmixHooks};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use support::DEADLINE;
use support::agent::{Agent, Order, Seen, options};
use tempfile::tempdir;

/// A porch that counts how often it was asked to feed MPI.
#[derive(Default)]
struct Feeder {
    asked: AtomicU32,
}

impl PmixHooks for Feeder {
    fn can_feed_mpi(&self) -> bool {
        true
    }

    fn feed_mpi(&self) {
        self.asked.fetch_add(1, Ordering::AcqRel);
    }
}

/// The agent waits for this one, with whatever is sent to it.
static BUSY: Mutex<()> = Mutex::new(());

fn is_seed(seen: &Seen) -> Option<()> {
    matches!(seen, Seen::Request(Request::Seed { .. })).then_some(())
}

fn is_feed(seen: &Seen) -> Option<()> {
    matches!(seen, Seen::Request(Request::Feeds)).then_some(())
}

#[test]
fn a_feed_that_the_agent_does_not_hear_of_is_none() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let pmix_integration = Arc::new(Feeder::default());
    let client = Client::attach(Options {
        pmix_integration: Some(pmix_integration.clone()),
        thread: false,
        ..options(base.path())
    });
    let client = client.unwrap();
    agent.await_armed();
    let link = client.link().unwrap();

    let busy = BUSY.lock().unwrap();
    agent.order(Order::StateTable(|_| {
        drop(BUSY.lock().unwrap_or_else(PoisonError::into_inner));
    }));
    let mut sent = 0;
    while link.send_seed("10.0.0.2@udp0") {
        sent += 1;
    }
    let refused = client.feed_mpi().unwrap_err();
    assert!(matches!(refused, Error::Unanswered(_)), "{refused}");
    assert_eq!(pmix_integration.asked.load(Ordering::Acquire), 0);
    drop(busy);

    for _ in 0..sent {
        agent.await_seen("a seed", is_seed);
    }
    assert!(!agent.has_seen(|seen| is_feed(seen).is_some()));
    for _ in 0..2 {
        client.feed_mpi().unwrap();
        assert_eq!(pmix_integration.asked.load(Ordering::Acquire), 1);
    }
    assert!(link.send_seed("10.0.0.3@udp0"));
    agent.await_seen("the feed", is_feed);
    agent.await_seen("what was said after it", is_seed);
    assert!(!agent.has_seen(|seen| is_feed(seen).is_some()), "once");
    client.finalize(0).unwrap();
}

/// Where nobody could feed MPI the agent hears nothing of it.
#[test]
fn a_feed_that_cannot_be_is_refused() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(options(base.path())).unwrap();
    agent.await_armed();
    for _ in 0..2 {
        let refused = client.feed_mpi().unwrap_err();
        assert!(matches!(refused, Error::Setting { .. }), "{refused}");
    }
    assert!(client.link().unwrap().send_seed("10.0.0.2@udp0"));
    agent.await_seen("what was said after it", is_seed);
    assert!(!agent.has_seen(|seen| is_feed(seen).is_some()));
    client.finalize(0).unwrap();
}

/// The next agent hears of it, in the greeting or after it, whenever it was asked for.
#[test]
fn a_feed_that_is_asked_for_between_two_agents_is_heard_by_the_next() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let pmix_integration = Arc::new(Feeder::default());
    let client = Client::attach(Options {
        pmix_integration: Some(pmix_integration.clone()),
        ..options(base.path())
    });
    let client = client.unwrap();
    agent.await_armed();
    let (place, estate) = agent.kill_worker();
    let until = Instant::now() + DEADLINE;
    // The end of the first may not have been noticed yet.
    while let Err(refused) = client.feed_mpi() {
        assert_eq!(
            pmix_integration.asked.load(Ordering::Acquire),
            0,
            "{refused}"
        );
        assert!(Instant::now() < until, "{refused}");
        std::thread::yield_now();
    }
    assert_eq!(pmix_integration.asked.load(Ordering::Acquire), 1);
    let mut agent = Agent::resume(place, estate);
    agent.await_seen("the feed", |seen| {
        let greeted = matches!(seen, Seen::Request(Request::Attached { ulfm: true, .. }));
        is_feed(seen).or(greeted.then_some(()))
    });
    client.finalize(0).unwrap();
}
