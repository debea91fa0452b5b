//! The feed to MPI when it is requested late: the PMIx hooks, the client and the agent all take part in it,
//! or none.

use crate::support::DEADLINE;
use crate::support::agent::{Agent, Order, Seen, options};
use muster_agent::ipc_server::Request;
use muster_client::{Client, Error, Options, PmixHooks};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tempfile::tempdir;

/// PMIx hooks that count the requests to feed MPI.
#[derive(Default)]
struct Feeder {
    requested: AtomicU32,
}

impl PmixHooks for Feeder {
    fn can_feed_mpi(&self) -> bool {
        true
    }

    fn feed_mpi(&self) {
        self.requested.fetch_add(1, Ordering::AcqRel);
    }
}

/// The agent waits for this mutex, so requests to it queue.
static BUSY: Mutex<()> = Mutex::new(());

fn is_seed(seen: &Seen) -> Option<()> {
    matches!(seen, Seen::Request(Request::Seed { .. })).then_some(())
}

fn is_feed(seen: &Seen) -> Option<()> {
    matches!(seen, Seen::Request(Request::Feeds)).then_some(())
}

#[test]
fn a_feed_that_the_agent_does_not_receive_is_not_started() {
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
    assert_eq!(pmix_integration.requested.load(Ordering::Acquire), 0);
    drop(busy);

    for _ in 0..sent {
        agent.await_seen("a seed", is_seed);
    }
    assert!(!agent.has_seen(|seen| is_feed(seen).is_some()));
    for _ in 0..2 {
        client.feed_mpi().unwrap();
        assert_eq!(pmix_integration.requested.load(Ordering::Acquire), 1);
    }
    assert!(link.send_seed("10.0.0.3@udp0"));
    agent.await_seen("the feed", is_feed);
    agent.await_seen("the seed that was sent after it", is_seed);
    assert!(!agent.has_seen(|seen| is_feed(seen).is_some()), "once");
    client.finalize(0).unwrap();
}

/// If MPI cannot be fed, the agent is not notified.
#[test]
fn a_feed_without_pmix_hooks_is_refused() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(options(base.path())).unwrap();
    agent.await_armed();
    for _ in 0..2 {
        let refused = client.feed_mpi().unwrap_err();
        assert!(matches!(refused, Error::Setting { .. }), "{refused}");
    }
    assert!(client.link().unwrap().send_seed("10.0.0.2@udp0"));
    agent.await_seen("the seed that was sent after it", is_seed);
    assert!(!agent.has_seen(|seen| is_feed(seen).is_some()));
    client.finalize(0).unwrap();
}

/// The next agent is notified in the attach request or after it, whenever the feed was requested.
#[test]
fn a_feed_that_is_requested_between_two_agents_reaches_the_next_one() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let pmix_integration = Arc::new(Feeder::default());
    let client = Client::attach(Options {
        pmix_integration: Some(pmix_integration.clone()),
        ..options(base.path())
    });
    let client = client.unwrap();
    agent.await_armed();
    let (directory, inherited) = agent.kill_worker();
    let until = Instant::now() + DEADLINE;
    // The client may not have noticed the end of the first agent yet.
    while let Err(refused) = client.feed_mpi() {
        assert_eq!(
            pmix_integration.requested.load(Ordering::Acquire),
            0,
            "{refused}"
        );
        assert!(Instant::now() < until, "{refused}");
        std::thread::yield_now();
    }
    assert_eq!(pmix_integration.requested.load(Ordering::Acquire), 1);
    let mut agent = Agent::resume(directory, inherited);
    agent.await_seen("the feed", |seen| {
        let in_attach = matches!(seen, Seen::Request(Request::Attached { ulfm: true, .. }));
        is_feed(seen).or(in_attach.then_some(()))
    });
    client.finalize(0).unwrap();
}
