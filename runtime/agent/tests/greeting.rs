//! Failures during attach, before the client holds its futex: it disconnects, it dies, the worker dies.

use crate::support::DEADLINE;
use crate::support::agent::{Agent, Seen, options};
use muster_agent::ipc_server::Request;
use muster_agent::watch::Finding;
use muster_client::{Client, Options};
use muster_ipc::{Attach, Held, ToAgent, ToClient};
use muster_sys::poll;
use muster_sys::socket::{Packets, Received};
use std::os::fd::AsFd;
use tempfile::tempdir;

fn await_readable(socket: &Packets) {
    let ready = poll::readable(&[socket.as_fd()], Some(DEADLINE));
    assert!(ready.unwrap()[0], "no answer in time");
}

/// The attach request of rank 7 of this process.
fn attach_request_of_7(agent_key: &str, held: Option<Held>) -> Vec<u8> {
    let attach_request = Attach {
        pid: std::process::id(),
        key: agent_key.to_owned(),
        rank: Some(7),
        job_size: 0,
        threadless: false,
        ulfm: false,
        wants_wake_up: false,
        held,
    };
    ToAgent::Attach(attach_request).encode()
}

/// Returns the slot of the accepted client, and whether the agent knew it.
fn await_attached(agent: &mut Agent) -> (u32, bool) {
    agent.await_seen("attached", |seen| match seen {
        Seen::Request(Request::Attached { slot, again, .. }) => Some((*slot, *again)),
        _ => None,
    })
}

/// Forks a process that sends an attach request as rank 7, and nothing more.
fn attaching_process(agent: &Agent) -> u32 {
    let socket = agent.directory.socket();
    let key = agent.directory.key().to_owned();
    crate::support::raw::fork(|| {
        let attaching = Packets::connect(&socket).and_then(|own| {
            own.send(&attach_request_of_7(&key, None), None)
                .map(|()| own)
        });
        std::mem::forget(attaching);
        crate::support::raw::pause_forever()
    })
}

/// A process that disconnects before it is attached is no rank: its end is no failure, and it may attach
/// later.
#[test]
fn a_client_that_disconnects_before_it_is_attached_is_no_rank() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let early = Packets::connect(&agent.directory.socket()).unwrap();
    let attach_request = attach_request_of_7(agent.directory.key(), None);
    early.send(&attach_request, None).unwrap();
    await_readable(&early);
    drop(early);
    let slot = agent.await_seen("the withdrawal", |seen| match seen {
        Seen::Request(Request::Withdrawn { slot }) => Some(*slot),
        _ => None,
    });
    let client = Client::attach(Options {
        rank: Some(7),
        ..options(base.path())
    });
    let client = client.unwrap();
    assert_eq!(agent.await_armed(), slot);
    client.finalize(0).unwrap();
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 0 });
}

/// The worker dies between the attach request and the hold. A client without an answer sends its request to
/// the next worker; a client with an answer returns with it. Both remain the same rank in the same slot, and
/// no rank has failed.
#[test]
fn a_client_that_a_dead_worker_answered_is_accepted_by_the_next_one() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let key = agent.directory.key().to_owned();
    let unanswered = Packets::connect(&agent.directory.socket()).unwrap();
    unanswered
        .send(&attach_request_of_7(&key, None), None)
        .unwrap();
    let (slot, _) = await_attached(&mut agent);
    let (directory, inherited) = agent.kill_worker();
    drop(unanswered);

    let mut agent = Agent::resume(directory, inherited);
    let answered = Packets::connect(&agent.directory.socket()).unwrap();
    answered
        .send(&attach_request_of_7(&key, None), None)
        .unwrap();
    await_readable(&answered);
    let mut buffer = [0; 1024];
    let Ok(Received::Message(length, _)) = answered.receive(&mut buffer) else {
        panic!("no answer");
    };
    let Ok(ToClient::Attached(attached)) = ToClient::decode(&buffer[..length]) else {
        panic!("not attached: {:?}", ToClient::decode(&buffer[..length]));
    };
    assert_eq!(await_attached(&mut agent), (slot, false));
    let held = Held {
        table: agent.view.identity(),
        slot: attached.slot,
        generation: attached.generation,
    };
    let (directory, inherited) = agent.kill_worker();
    drop(answered);

    let mut agent = Agent::resume(directory, inherited);
    let back = Packets::connect(&agent.directory.socket()).unwrap();
    back.send(&attach_request_of_7(&key, Some(held)), None)
        .unwrap();
    assert_eq!(await_attached(&mut agent), (slot, true));
    drop(back);
    agent.await_seen("the withdrawal", |seen| match seen {
        Seen::Request(Request::Withdrawn { slot: gone }) => (*gone == slot).then_some(()),
        _ => None,
    });
    let client = Client::attach(Options {
        rank: Some(7),
        ..options(base.path())
    });
    let client = client.unwrap();
    assert_eq!(agent.await_armed(), slot);
    client.finalize(0).unwrap();
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 0 });
}

/// A client that dies before it is attached has failed.
#[test]
fn a_client_that_dies_before_it_is_attached_has_failed() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let child = attaching_process(&agent);
    let (slot, _) = await_attached(&mut agent);
    muster_sys::process::send_signal(child, libc::SIGKILL).unwrap();
    let finding = agent.await_finding(slot);
    assert!(matches!(finding, Finding::Failed { .. }), "{finding:?}");
    crate::support::raw::reap(child);
}

/// The same if the worker that answered it died first.
#[test]
fn a_client_that_dies_after_the_worker_that_answered_it_has_failed() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let child = attaching_process(&agent);
    let (slot, _) = await_attached(&mut agent);
    let (directory, inherited) = agent.kill_worker();
    muster_sys::process::send_signal(child, libc::SIGKILL).unwrap();
    let mut agent = Agent::resume(directory, inherited);
    let finding = agent.await_finding(slot);
    assert!(matches!(finding, Finding::Failed { .. }), "{finding:?}");
    crate::support::raw::reap(child);
}
