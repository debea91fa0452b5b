//! The greeting and what may happen before a client holds its word: it gives up, it dies, the worker dies.

mod support;

use muster_agent::ipc_server::Request;
use muster_agent::watch::Finding;
use muster_client::{Client, Options};
use muster_ipc::{Attach, Held, ToAgent, ToClient};
use muster_sys::poll;
use muster_sys::socket::{Packets, Received};
use std::os::fd::AsFd;
use support::DEADLINE;
use support::agent::{Agent, Seen, options};
use tempfile::tempdir;

fn await_readable(socket: &Packets) {
    let ready = poll::readable(&[socket.as_fd()], Some(DEADLINE));
    assert!(ready.unwrap()[0], "nothing came");
}

/// The first words of rank 7 of this process.
fn hello_of_7(agent_key: &str, held: Option<Held>) -> Vec<u8> {
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

/// Slot of whoever was let in, and whether it was known.
fn await_attached(agent: &mut Agent) -> (u32, bool) {
    agent.await_seen("attached", |seen| match seen {
        Seen::Request(Request::Attached { slot, again, .. }) => Some((*slot, *again)),
        _ => None,
    })
}

/// A process that greets as rank 7, and no more.
fn greeter(agent: &Agent) -> u32 {
    let socket = agent.place.socket();
    let key = agent.place.key().to_owned();
    support::raw::fork(|| {
        let greeted = Packets::connect(&socket)
            .and_then(|own| own.send(&hello_of_7(&key, None), None).map(|()| own));
        std::mem::forget(greeted);
        support::raw::pause_forever()
    })
}

/// A process that gives up before it is attached is no rank: its end is no death, and it may come again.
#[test]
fn who_hangs_up_before_it_is_attached_was_never_there() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let early = Packets::connect(&agent.place.socket()).unwrap();
    let attach_request = hello_of_7(agent.place.key(), None);
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

/// The worker dies between the greeting and the hold: who has not heard the answer greets the next one, and who
/// has comes back with it. Either is the rank that it was, in the same slot, and nobody has failed.
#[test]
fn who_was_greeted_by_a_worker_that_died_is_let_in_by_the_next() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let key = agent.place.key().to_owned();
    let unheard = Packets::connect(&agent.place.socket()).unwrap();
    unheard.send(&hello_of_7(&key, None), None).unwrap();
    let (slot, _) = await_attached(&mut agent);
    let (place, estate) = agent.kill_worker();
    drop(unheard);

    let mut agent = Agent::resume(place, estate);
    let heard = Packets::connect(&agent.place.socket()).unwrap();
    heard.send(&hello_of_7(&key, None), None).unwrap();
    await_readable(&heard);
    let mut buffer = [0; 1024];
    let Ok(Received::Message(length, _)) = heard.receive(&mut buffer) else {
        panic!("no answer");
    };
    let Ok(ToClient::Attached(attached)) = ToClient::decode(&buffer[..length]) else {
        panic!("no welcome: {:?}", ToClient::decode(&buffer[..length]));
    };
    assert_eq!(await_attached(&mut agent), (slot, false));
    let held = Held {
        table: agent.view.identity(),
        slot: attached.slot,
        generation: attached.generation,
    };
    let (place, estate) = agent.kill_worker();
    drop(heard);

    let mut agent = Agent::resume(place, estate);
    let back = Packets::connect(&agent.place.socket()).unwrap();
    back.send(&hello_of_7(&key, Some(held)), None).unwrap();
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

/// One that dies then has died.
#[test]
fn who_dies_before_it_is_attached_has_failed() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let child = greeter(&agent);
    let (slot, _) = await_attached(&mut agent);
    muster_sys::process::send_signal(child, libc::SIGKILL).unwrap();
    let finding = agent.await_finding(slot);
    assert!(matches!(finding, Finding::Failed { .. }), "{finding:?}");
    support::raw::reap(child);
}

/// So it has if the worker that greeted it died first.
#[test]
fn who_dies_after_the_worker_that_greeted_it_has_failed() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let child = greeter(&agent);
    let (slot, _) = await_attached(&mut agent);
    let (place, estate) = agent.kill_worker();
    muster_sys::process::send_signal(child, libc::SIGKILL).unwrap();
    let mut agent = Agent::resume(place, estate);
    let finding = agent.await_finding(slot);
    assert!(matches!(finding, Finding::Failed { .. }), "{finding:?}");
    support::raw::reap(child);
}
