//! Detach after something went wrong: PMIx hooks that panic or are slow, or a thread other than the attaching
//! one.

use std::sync::{Arc, Mutex, OnceLock};

use crate::support::agent::{Agent, Order, options};
use crate::support::rank::Rank;
use muster_agent::watch::Finding;
use muster_client::{AgentLink, Client, Error, Options, PmixHooks};
use muster_shm::{Cause, Event, EventKind, Leave, TableView};
use tempfile::tempdir;

struct Panics;

impl PmixHooks for Panics {
    fn on_events(&self, _: &[Event], _: &TableView) {
        panic!("intended by the test");
    }
}

/// A panic on the library thread ends that thread: the client is detached from then on, and still leaves in
/// order.
#[test]
fn a_process_without_its_library_thread_leaves_in_order() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(Options {
        pmix_integration: Some(Arc::new(Panics)),
        ..options(base.path())
    });
    let client = client.unwrap();
    let slot = agent.await_armed();
    agent.order(Order::Event(Event::new(
        EventKind::RankHung,
        Cause::Stopped,
    )));
    assert_eq!(agent.await_finding(slot), Finding::Detached);
    client.finalize(5).unwrap();
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 5 });
}

/// Records what the agent would find if the process ended while its PMIx hooks detach.
struct LeaveRecorder {
    view: TableView,
    client: OnceLock<Client>,
    found: Mutex<Vec<Leave>>,
}

impl PmixHooks for LeaveRecorder {
    fn before_detach(&self) {
        let (slot, _) = self.client.get().unwrap().slot();
        let found = self.view.slot(slot).unwrap().leave().0;
        self.found.lock().unwrap().push(found);
    }
}

#[test]
fn an_end_while_the_pmix_hooks_detach_is_in_order() {
    for thread in [true, false] {
        let base = tempdir().unwrap();
        let mut agent = Agent::start(base.path());
        let pmix_integration = Arc::new(LeaveRecorder {
            view: agent.view.clone(),
            client: OnceLock::new(),
            found: Mutex::default(),
        });
        let client = Client::attach(Options {
            thread,
            pmix_integration: Some(pmix_integration.clone()),
            ..options(base.path())
        });
        let client = client.unwrap();
        pmix_integration.client.set(client.clone()).unwrap();
        let slot = agent.await_armed();
        client.finalize(0).unwrap();
        assert_eq!(
            pmix_integration.found.lock().unwrap()[..],
            [Leave::Announced]
        );
        assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 0 });
    }
}

/// Dispatches on another thread from within a dispatch.
#[derive(Default)]
struct NestedDispatch {
    client: OnceLock<Client>,
    answers: Mutex<Vec<Result<(), Error>>>,
}

impl PmixHooks for NestedDispatch {
    fn on_attached(&self, _: &AgentLink) {}

    fn on_events(&self, _: &[Event], _: &TableView) {
        // There is no client yet while it attaches: earlier events are reported then.
        let Some(client) = self.client.get().cloned() else {
            return;
        };
        let answer = std::thread::spawn(move || client.dispatch())
            .join()
            .unwrap();
        self.answers.lock().unwrap().push(answer);
    }
}

#[test]
fn no_thread_waits_for_another_one_that_dispatches() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let pmix_integration = Arc::new(NestedDispatch::default());
    let client = Client::attach(Options {
        thread: false,
        pmix_integration: Some(pmix_integration.clone()),
        ..options(base.path())
    });
    let client = client.unwrap();
    pmix_integration.client.set(client.clone()).unwrap();
    agent.await_armed();
    agent.order(Order::Event(Event::new(
        EventKind::RankHung,
        Cause::Stopped,
    )));
    while pmix_integration.answers.lock().unwrap().is_empty() {
        client.dispatch().unwrap();
        std::thread::yield_now();
    }
    assert!(matches!(
        pmix_integration.answers.lock().unwrap()[..],
        [Ok(())]
    ));
    client.finalize(0).unwrap();
}

/// A thread that attached without a library thread stays linked into its first state table.
#[test]
fn the_state_table_that_a_thread_is_linked_into_stays() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start_with(base.path(), 0, "no", base.path());
    agent.await_armed();
    drop(agent);
    let _agent = Agent::start(base.path());
    rank.send("leave-elsewhere");
    rank.await_line("left-elsewhere");
}
