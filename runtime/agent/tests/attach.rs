//! Attach, read, agent restart and detach, and every refusal of an attach request.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use crate::support::DEADLINE;
use crate::support::agent::{Agent, Order, Seen, directory, options};
use crate::support::rank::Rank;
use muster_agent::ipc_server::Request;
use muster_agent::watch::Finding;
use muster_client::{AgentLink, Client, Error, Options, PmixHooks, shared};
use muster_ipc::{Attach, Held, Listener, ListenerError, RefusalCode, ToAgent, ToClient};
use muster_shm::{Cause, Event, EventKind, NodeState, RankState, TableWriter};
use muster_sys::poll;
use muster_sys::socket::{PacketListener, Packets, Received};
use tempfile::tempdir;

fn await_readable(fd: std::os::fd::BorrowedFd<'_>) {
    assert!(
        poll::readable(&[fd], Some(DEADLINE)).unwrap()[0],
        "not readable in time"
    );
}

fn is_readable(client: &Client) -> bool {
    let now = Some(std::time::Duration::ZERO);
    poll::readable(&[client.descriptor().unwrap()], now).unwrap()[0]
}

fn event(rank: u32) -> Event {
    Event {
        rank,
        ..Event::new(EventKind::RankHung, Cause::Stopped)
    }
}

#[test]
fn what_the_agent_writes_is_read_and_events_raise_the_descriptor() {
    let base = tempdir().unwrap();
    let agent = Agent::start(base.path());
    let client = Client::attach(Options {
        rank: Some(4),
        ..options(base.path())
    })
    .unwrap();
    assert_eq!(client.node_count().unwrap(), 1);
    assert_eq!(client.node_name(0).unwrap().as_deref(), Some("node0"));
    assert_eq!(client.node_state(0).unwrap(), NodeState::Unknown);
    assert_eq!(
        (client.my_rank().unwrap(), client.my_node().unwrap()),
        (Some(4), Some(0))
    );
    // The agent states the rank after its reply to the client.
    let alive = client.wait_rank(4, &[RankState::Alive], DEADLINE);
    assert_eq!(alive.unwrap(), Some(RankState::Alive));
    assert_eq!(client.rank_node(4).unwrap(), Some(0));
    assert_eq!(client.rank_count().unwrap(), 5);
    assert_eq!(client.next_event().unwrap(), None);
    assert!(!is_readable(&client));
    agent.order(Order::Event(event(1)));
    agent.order(Order::Event(event(2)));
    for rank in [1, 2] {
        let found = loop {
            await_readable(client.descriptor().unwrap());
            if let Some(found) = client.next_event().unwrap() {
                break found;
            }
        };
        assert_eq!((found.kind, found.rank), (EventKind::RankHung, rank));
    }
    assert_eq!(client.next_event().unwrap(), None);
    assert!(!is_readable(&client));
    client.tick().unwrap();
    client.tick().unwrap();
    assert_eq!(agent.view.ticks(client.slot().0), 2);
    client.finalize(0).unwrap();
}

#[test]
fn after_finalize_every_call_returns_an_error() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(options(base.path())).unwrap();
    let slot = agent.await_armed();
    client.finalize(5).unwrap();
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 5 });
    assert!(matches!(client.node_state(0), Err(Error::Finalized)));
    assert!(matches!(client.next_event(), Err(Error::Finalized)));
    assert!(matches!(client.dispatch(), Err(Error::Finalized)));
    assert!(matches!(client.finalize(0), Err(Error::Finalized)));
    // The process may attach again as a new client.
    let client = Client::attach(options(base.path())).unwrap();
    client.finalize(0).unwrap();
}

/// The only test of this binary that uses the shared client: it is one per process.
#[test]
fn the_last_user_of_the_shared_client_detaches() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    assert!(matches!(shared::current(), Err(Error::Finalized)));
    let one = shared::init(options(base.path())).unwrap();
    let two = shared::init(Options::default()).unwrap();
    assert_eq!(one.slot(), two.slot());
    let slot = agent.await_armed();
    assert_eq!(shared::finalize(0).unwrap(), 1);
    assert!(one.node_count().is_ok() && shared::current().is_ok());
    assert_eq!(shared::finalize(0).unwrap(), 0);
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 0 });
    assert!(matches!(shared::finalize(0), Err(Error::Finalized)));
    assert!(matches!(one.node_count(), Err(Error::Finalized)));
}

#[test]
fn a_second_copy_of_the_library_in_one_process_is_refused() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(options(base.path())).unwrap();
    agent.await_armed();
    let cause = Client::attach(options(base.path())).unwrap_err();
    assert!(
        matches!(
            cause,
            Error::Refused {
                code: RefusalCode::AlreadyAttached,
                ..
            }
        ),
        "{cause}"
    );
    client.finalize(0).unwrap();
}

#[test]
fn a_rank_that_another_process_holds_is_refused() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let rank = Rank::start(base.path(), 3);
    agent.await_armed();
    let cause = Client::attach(Options {
        rank: Some(3),
        ..options(base.path())
    })
    .unwrap_err();
    assert!(
        cause.to_string().contains(&rank.pid().to_string()),
        "{cause}"
    );
    assert!(matches!(
        cause,
        Error::Refused {
            code: RefusalCode::RankTaken,
            ..
        }
    ));
}

#[test]
fn a_forked_child_may_not_use_its_parents_client() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start(base.path(), 0);
    let slot = agent.await_armed();
    rank.send("fork-calls");
    assert_eq!(rank.await_line("forked"), "0");
    // The child's end is not reported as a failure, and the parent leaves in order.
    rank.send("finalize");
    rank.await_line("finalized");
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 0 });
}

#[test]
fn a_restarted_worker_finds_its_ranks_in_their_slots() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut stays = Rank::start(base.path(), 1);
    agent.await_armed();
    let mut dies = Rank::start(base.path(), 2);
    let dead_slot = agent.await_armed();
    stays.send("slot");
    let before = stays.await_line("slot");
    let (directory, inherited) = agent.kill_worker();
    // No process watches the ranks now.
    dies.signal(libc::SIGKILL);
    dies.wait();
    let mut agent = Agent::resume(directory, inherited);
    let finding = agent.await_finding(dead_slot);
    assert!(matches!(finding, Finding::Failed { .. }), "{finding:?}");
    stays.send("await-reattached 1");
    stays.await_line("reattached");
    let again = agent.await_seen("attached", |seen| match seen {
        Seen::Request(Request::Attached { rank, again, .. }) => Some((*rank, *again)),
        _ => None,
    });
    assert_eq!(again, (Some(1), true));
    stays.send("slot");
    assert_eq!(stays.await_line("slot"), before);
    assert_eq!(agent.view.rank_state(1), RankState::Alive);
    stays.send("finalize");
    stays.await_line("finalized");
    let slot: u32 = before.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 0 });
}

/// A new worker writes what it finds at once, before its clients are back and can receive a wake-up.
#[test]
fn events_written_while_a_client_was_away_raise_its_descriptor() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(options(base.path())).unwrap();
    let slot = agent.await_armed();
    let (directory, inherited) = agent.kill_worker();
    let mut table = TableWriter::adopt(&inherited.table);
    table.push_event(&event(7));
    let mut agent = Agent::resume(directory, inherited);
    await_readable(client.descriptor().unwrap());
    assert_eq!(client.next_event().unwrap().map(|one| one.rank), Some(7));
    client.finalize(0).unwrap();
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 0 });
}

#[test]
fn a_client_that_detaches_while_no_worker_runs_has_left() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(options(base.path())).unwrap();
    let slot = agent.await_armed();
    let (directory, inherited) = agent.kill_worker();
    client.finalize(9).unwrap();
    let mut agent = Agent::resume(directory, inherited);
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 9 });
}

#[test]
fn clients_move_to_the_state_table_of_a_new_agent() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(Options {
        rank: Some(0),
        ..options(base.path())
    })
    .unwrap();
    agent.await_armed();
    let first = client.table().unwrap().identity();
    drop(agent);
    let mut agent = Agent::start(base.path());
    let slot = agent.await_armed();
    await_readable(client.descriptor().unwrap());
    while client.reattached() == 0 {
        std::thread::yield_now();
    }
    assert_ne!(client.table().unwrap().identity(), first);
    let event = client.next_event().unwrap().unwrap();
    assert_eq!((event.kind, event.lost), (EventKind::Overflow, 0));
    client.finalize(0).unwrap();
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 0 });
}

#[test]
fn without_a_thread_dispatch_handles_restarts() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(Options {
        thread: false,
        ..options(base.path())
    })
    .unwrap();
    let slot = agent.await_armed();
    let (directory, inherited) = agent.kill_worker();
    let mut agent = Agent::resume(directory, inherited);
    client.dispatch().unwrap();
    assert_eq!(client.reattached(), 1);
    assert_eq!(agent.await_armed(), slot);
    client.finalize(0).unwrap();
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 0 });
}

/// A new agent numbers the nodes differently. A wait for a node returns the state of that node, not of the
/// one with its old number, and not before the new agent knows the node.
#[test]
fn a_wait_for_a_node_follows_its_name_to_another_state_table() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    agent.order(Order::StateTable(|table| {
        for name in ["alfa", "bravo"] {
            let node = table.add_node(name).unwrap();
            table.set_node_state(node, NodeState::Alive);
        }
    }));
    // Without a library thread the client looks for the agent only while it waits, so after it read the first
    // table.
    let client = Client::attach(Options {
        thread: false,
        ..options(base.path())
    })
    .unwrap();
    agent.await_armed();
    let named = |name: &str| client.table().unwrap().node_find(name);
    assert_eq!((named("alfa"), named("bravo")), (Some(1), Some(2)));
    drop(agent);
    let agent = Agent::start(base.path());
    agent.order(Order::StateTable(|table| {
        let bravo = table.add_node("bravo").unwrap();
        table.set_node_state(bravo, NodeState::Failed);
        let alfa = table.add_node("alfa").unwrap();
        table.set_node_state(alfa, NodeState::Left);
    }));
    let ended = [NodeState::Failed, NodeState::Left];
    let found = client.wait_node(1, &ended, DEADLINE).unwrap();
    assert_eq!(found, Some(NodeState::Left));
    assert_eq!((named("alfa"), named("bravo")), (Some(2), Some(1)));
    // An unused index belongs to the node that gets it first.
    agent.order(Order::StateTable(|table| {
        let node = table.add_node("charlie").unwrap();
        table.set_node_state(node, NodeState::Alive);
    }));
    let alive = [NodeState::Alive];
    let found = client.wait_node(3, &alive, DEADLINE).unwrap();
    assert_eq!(found, Some(NodeState::Alive));
    client.finalize(0).unwrap();
}

/// A client that searches another agent for a short time only. On a busy machine that may be too short for
/// the first agent as well, or for the client's own thread.
fn attach_briefly(base: &std::path::Path) -> Client {
    loop {
        let client = Client::attach(Options {
            deadline: std::time::Duration::from_millis(100),
            rank: Some(0),
            ..options(base)
        });
        if !matches!(client, Err(Error::Deadline { .. } | Error::Protocol { .. })) {
            return client.unwrap();
        }
    }
}

#[test]
fn a_lost_agent_is_an_error_and_the_states_remain() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = attach_briefly(base.path());
    agent.await_armed();
    let directory = agent.directory.clone();
    drop(agent);
    await_readable(client.descriptor().unwrap());
    let cause = loop {
        if let Err(cause) = client.next_event() {
            break cause;
        }
    };
    assert!(
        matches!(cause, Error::AgentLost { attempts: 5.., .. }),
        "{cause}"
    );
    assert!(client.is_agent_lost());
    assert_eq!(client.rank_state(0).unwrap(), RankState::Alive);
    assert!(client.dispatch().is_err());
    let _agent = Agent::start(base.path());
    assert!(directory.socket().exists());
    // The library also searches by itself, so the agent may have been found by now.
    let _ = client.dispatch();
    while client.is_agent_lost() {
        await_readable(client.descriptor().unwrap());
        let _ = client.dispatch();
    }
    client.dispatch().unwrap();
    client.finalize(0).unwrap();
}

/// An application that only takes events, or only waits, need not call `dispatch`.
#[test]
fn another_agent_is_found_without_dispatch() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = attach_briefly(base.path());
    agent.await_armed();
    drop(agent);
    await_readable(client.descriptor().unwrap());
    while client.next_event().is_ok() {}
    assert!(client.is_agent_lost());
    let mut agent = Agent::start(base.path());
    agent.await_armed();
    let alive = [RankState::Alive];
    let found = client.wait_rank(0, &alive, DEADLINE).unwrap();
    assert_eq!(found, Some(RankState::Alive));
    while client.next_event().unwrap().is_some() {}
    client.finalize(0).unwrap();
}

#[derive(Default)]
struct Recorder {
    link: Mutex<Option<AgentLink>>,
    reports: Option<Mutex<Sender<String>>>,
}

impl Recorder {
    fn new() -> (Arc<Self>, Receiver<String>) {
        let (sender, reports) = channel();
        (
            Arc::new(Self {
                link: Mutex::default(),
                reports: Some(Mutex::new(sender)),
            }),
            reports,
        )
    }

    fn report(&self, text: String) {
        let _ = self.reports.as_ref().unwrap().lock().unwrap().send(text);
    }
}

impl PmixHooks for Recorder {
    fn on_attached(&self, link: &AgentLink) {
        *self.link.lock().unwrap() = Some(link.clone());
        self.report("attached".into());
    }

    fn on_events(&self, events: &[Event], _: &muster_shm::TableView) {
        events
            .iter()
            .for_each(|event| self.report(format!("event {}", event.rank)));
    }

    fn on_call(&self) {
        let link = self.link.lock().unwrap();
        let Some(link) = link.as_ref() else { return };
        if let (Some(address), Some(key)) = (link.address(), link.key_for_publication()) {
            self.report(format!("{address} {}", key[0]));
        }
    }

    fn before_detach(&self) {
        self.report("detach".into());
    }
}

fn await_text(reports: &Receiver<String>, wanted: &str) {
    while reports
        .recv_timeout(DEADLINE)
        .unwrap_or_else(|_| panic!("waiting for {wanted}"))
        != wanted
    {}
}

#[test]
fn the_pmix_hooks_receive_all_events_and_send_to_the_agent() {
    for thread in [true, false] {
        let base = tempdir().unwrap();
        let mut agent = Agent::start(base.path());
        let (pmix_integration, reports) = Recorder::new();
        let own: Arc<dyn PmixHooks> = Arc::clone(&pmix_integration) as Arc<dyn PmixHooks>;
        let options = Options {
            pmix_integration: Some(own),
            thread,
            rank: Some(0),
            ..options(base.path())
        };
        let client = Client::attach(options).unwrap();
        await_text(&reports, "attached");
        let slot = agent.await_armed();
        let link = pmix_integration.link.lock().unwrap().clone().unwrap();
        assert!(link.is_publisher_wanted() && link.is_connected());
        assert!(link.send_seed("10.0.0.2@udp0") && link.send_key([7; 32]));
        assert!(!link.send_seed(&"x".repeat(300)));
        for wanted in [
            Request::Seed {
                slot,
                address: "10.0.0.2@udp0".into(),
            },
            Request::Key { slot, key: [7; 32] },
        ] {
            agent.await_seen("seed and key", |seen| {
                (*seen == Seen::Request(wanted.clone())).then_some(())
            });
        }
        agent.order(Order::SendKey(slot, [9; 32]));
        agent.order(Order::Address("10.0.0.1@udp0".into()));
        agent.order(Order::Event(event(8)));
        await_readable(client.descriptor().unwrap());
        client.dispatch().unwrap();
        // All that the agent sent arrived before the event was pushed.
        await_text(&reports, "event 8");
        await_text(&reports, "10.0.0.1@udp0 9");
        client.finalize(0).unwrap();
        await_text(&reports, "detach");
    }
}

#[test]
fn a_slow_reader_is_told_how_much_it_has_lost() {
    let base = tempdir().unwrap();
    let agent = Agent::start(base.path());
    let client = Client::attach(options(base.path())).unwrap();
    for rank in 0..100 {
        agent.order(Order::Event(event(rank)));
    }
    while agent.view.cursor().position() < 100 {
        std::thread::yield_now();
    }
    let first = client.next_event().unwrap().unwrap();
    // Half of the 64 entries are kept.
    assert_eq!((first.kind, first.lost), (EventKind::Overflow, 68));
    assert_eq!(client.next_event().unwrap().unwrap().rank, 68);
    client.finalize(0).unwrap();
}

#[test]
fn a_socket_left_by_a_killed_agent_is_replaced() {
    let base = tempdir().unwrap();
    let directory = directory(base.path());
    directory.prepare().unwrap();
    drop(PacketListener::bind(&directory.socket()).unwrap());
    assert!(Packets::connect(&directory.socket()).is_err());
    let mut agent = Agent::start(base.path());
    let client = Client::attach(options(base.path())).unwrap();
    agent.await_armed();
    assert!(matches!(
        Listener::open(&directory),
        Err(ListenerError::Running { .. })
    ));
    client.finalize(0).unwrap();
}

#[test]
fn a_missing_agent_and_a_failed_start_are_different_errors() {
    let base = tempdir().unwrap();
    let soon = std::time::Duration::from_millis(50);
    let missing_agent = Client::attach(Options {
        deadline: soon,
        ..options(base.path())
    })
    .unwrap_err();
    assert!(
        matches!(missing_agent, Error::Deadline { .. }),
        "{missing_agent}"
    );
    let start = |agent: &str| {
        let agent = Some(agent.into());
        Client::attach(Options {
            start_agent: true,
            agent,
            ..options(base.path())
        })
        .unwrap_err()
    };
    let missing = start("/nonexistent/musterd");
    assert!(matches!(missing, Error::AgentStart { .. }), "{missing}");
    let gave_up = start("/bin/false");
    assert!(gave_up.to_string().contains("exit code 1"), "{gave_up}");
}

#[test]
fn the_agent_is_started_with_its_key_and_directory() {
    let base = tempdir().unwrap();
    let directory = directory(base.path());
    let (program, arguments) = (base.path().join("agent"), base.path().join("arguments"));
    let text = format!(
        "#!/bin/sh\nprintf '%s\\n' \"$@\" > {}\nexit 3\n",
        arguments.display()
    );
    // Copied by another process: a file that is open for writing cannot be executed, and other tests fork.
    let draft = base.path().join("draft");
    std::fs::write(&draft, text).unwrap();
    let copied = std::process::Command::new("cp")
        .arg(&draft)
        .arg(&program)
        .status();
    assert!(copied.unwrap().success());
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let agent = Some(program);
    let options = Options {
        start_agent: true,
        agent,
        ..options(base.path())
    };
    let cause = Client::attach(options).unwrap_err();
    assert!(cause.to_string().contains("exit code 3"), "{cause}");
    let wanted = format!(
        "--job\n{}\n--dir\n{}\n",
        directory.key(),
        directory.directory().display()
    );
    assert_eq!(std::fs::read_to_string(arguments).unwrap(), wanted);
}

/// A start lock is free if its holder was killed; while its holder runs, the others wait.
#[test]
fn the_holder_of_the_start_lock_starts_the_agent_and_the_others_wait() {
    let base = tempdir().unwrap();
    let directory = directory(base.path());
    directory.prepare().unwrap();
    let held = muster_sys::lock::try_lock(&directory.start_lock()).unwrap();
    assert!(held.is_some());
    // This program makes the client fail at once if it tries to start the agent itself.
    let agent = Some("/bin/false".into());
    let options = Options {
        start_agent: true,
        agent,
        ..options(base.path())
    };
    let client = std::thread::spawn(move || Client::attach(options));
    let mut agent = Agent::start(base.path());
    agent.await_armed();
    client.join().unwrap().unwrap().finalize(0).unwrap();
}

#[test]
fn a_directory_that_others_may_change_is_refused() {
    let base = tempdir().unwrap();
    std::fs::set_permissions(base.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let agent = Some("/bin/true".into());
    let options = Options {
        start_agent: true,
        agent,
        ..options(base.path())
    };
    let text = Client::attach(options).unwrap_err().to_string();
    assert!(text.contains("not safe") && text.contains("0777"), "{text}");
}

/// An agent that is about to end accepts no new clients, since it could not answer their requests. A client
/// with an open connection is disconnected at its attach request, and searches the next agent.
#[test]
fn a_client_that_attaches_while_the_agent_ends_is_not_accepted() {
    let base = tempdir().unwrap();
    let agent = Agent::start(base.path());
    let early = Client::attach(options(base.path())).unwrap();
    let late = Packets::connect(&agent.directory.socket()).unwrap();
    agent.order(Order::Shut);
    let attach_request = Attach {
        pid: std::process::id(),
        key: agent.directory.key().into(),
        rank: Some(7),
        job_size: 0,
        threadless: false,
        ulfm: false,
        wants_wake_up: false,
        held: None,
    };
    // The order is carried out before anything that arrives later is served.
    while agent.directory.socket().exists() {
        std::thread::yield_now();
    }
    late.send(&ToAgent::Attach(attach_request).encode(), None)
        .unwrap();
    await_readable(late.as_fd());
    let mut buffer = [0; 1024];
    assert!(matches!(late.receive(&mut buffer), Ok(Received::HungUp)));
    assert!(Packets::connect(&agent.directory.socket()).is_err());
    early.finalize(0).unwrap();
}

/// The refusals of clients of another release or job, and of malformed requests.
#[test]
fn foreign_clients_are_refused_with_the_reason() {
    let base = tempdir().unwrap();
    let agent = Agent::start(base.path());
    let attach_request = Attach {
        pid: std::process::id(),
        key: agent.directory.key().into(),
        rank: None,
        job_size: 0,
        threadless: false,
        ulfm: false,
        wants_wake_up: false,
        held: None,
    };
    let ask = |bytes: Vec<u8>| {
        let socket = Packets::connect(&agent.directory.socket()).unwrap();
        socket.send(&bytes, None).unwrap();
        await_readable(socket.as_fd());
        let mut buffer = [0; 1024];
        let Ok(Received::Message(length, _)) = socket.receive(&mut buffer) else {
            panic!("no answer")
        };
        match ToClient::decode(&buffer[..length]).unwrap() {
            ToClient::Refused(code, reason) => (code, reason),
            other => panic!("{other:?}"),
        }
    };
    let other_job = Attach {
        key: "0:other:node0".into(),
        ..attach_request
    };
    assert_eq!(ask(ToAgent::Attach(other_job).encode()).0, RefusalCode::Job);
    let other_namespace = Attach {
        pid: 1,
        ..attach_request.clone()
    };
    let (code, reason) = ask(ToAgent::Attach(other_namespace).encode());
    assert!(
        code == RefusalCode::Invisible && reason.contains("pid namespace"),
        "{reason}"
    );
    let too_large = Attach {
        rank: Some(100_000),
        ..attach_request.clone()
    };
    assert_eq!(
        ask(ToAgent::Attach(too_large).encode()).0,
        RefusalCode::RankTooLarge
    );
    let mut other_version = ToAgent::Attach(attach_request.clone()).encode();
    other_version[5] = 99;
    let (code, reason) = ask(other_version);
    assert!(
        code == RefusalCode::Version && reason.contains("MUSTER_AGENT"),
        "{reason}"
    );
    assert_eq!(ask(b"nonsense".to_vec()).0, RefusalCode::Malformed);
    assert_eq!(ask(ToAgent::Armed.encode()).0, RefusalCode::Malformed);
    // A client that claims a slot that it does not hold is accepted as a new one.
    let held = Some(Held {
        table: 1,
        slot: 3,
        generation: 9,
    });
    let socket = Packets::connect(&agent.directory.socket()).unwrap();
    socket
        .send(
            &ToAgent::Attach(Attach {
                held,
                ..attach_request
            })
            .encode(),
            None,
        )
        .unwrap();
    await_readable(socket.as_fd());
    let mut buffer = [0; 1024];
    let Ok(Received::Message(length, table)) = socket.receive(&mut buffer) else {
        panic!()
    };
    let Ok(ToClient::Attached(attached)) = ToClient::decode(&buffer[..length]) else {
        panic!()
    };
    assert_eq!((attached.slot, attached.generation, table.len()), (0, 1, 2));
}

/// PMIx hooks that report the thread on which they are called.
struct Whereabouts(Mutex<Sender<std::thread::ThreadId>>);

impl PmixHooks for Whereabouts {
    fn on_call(&self) {
        let _ = (self.0.lock().unwrap()).send(std::thread::current().id());
    }

    fn wants_call(&self) -> bool {
        true
    }
}

/// The PMIx hooks may be slow: an application that polls for events does not wait for them.
#[test]
fn with_a_library_thread_the_pmix_hooks_run_on_no_other() {
    for thread in [true, false] {
        let base = tempdir().unwrap();
        let mut agent = Agent::start(base.path());
        let (sender, called) = channel();
        let options = Options {
            pmix_integration: Some(Arc::new(Whereabouts(Mutex::new(sender)))),
            thread,
            ..options(base.path())
        };
        let client = Client::attach(options).unwrap();
        agent.await_armed();
        while called.try_recv().is_ok() {}
        let here = std::thread::current().id();
        for dispatches in [true, false] {
            if dispatches {
                client.dispatch().unwrap();
            } else {
                client.next_event().unwrap();
            }
            if thread || dispatches {
                let on = called.recv_timeout(DEADLINE).unwrap();
                assert_eq!(on == here, !thread, "a library thread: {thread}");
            } else {
                assert!(called.try_recv().is_err(), "next_event never blocks");
            }
        }
        client.finalize(0).unwrap();
    }
}
