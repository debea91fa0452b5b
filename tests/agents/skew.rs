//! Library and agent of different releases: both report their versions and the remedy, and no process hangs
//! or is disturbed. The test plays the other release, byte by byte.

use muster_ipc::{Attach, Attached, RefusalCode, ToAgent, ToClient, VERSION};
use muster_shm::LAYOUT_VERSION;
use muster_sys::memory::create_sealed;
use muster_sys::poll;
use muster_sys::socket::{PacketListener, Packets, Received};
use muster_tests::DEADLINE;
use muster_tests::nodes::Nodes;
use muster_tests::rank::Rank;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

/// Offset of the versions of protocol and state table in an `Attach`.
const VERSIONS: std::ops::Range<usize> = 5..7;
/// Offset of the version in a state table.
const TABLE_VERSION_AT: u64 = 8;

fn attach_request(job: &Nodes) -> Vec<u8> {
    let attach_request = Attach {
        pid: std::process::id(),
        key: job.agent_directory(1).key().to_owned(),
        rank: Some(1),
        job_size: 0,
        threadless: false,
        ulfm: false,
        wants_wake_up: false,
        held: None,
    };
    ToAgent::Attach(attach_request).encode()
}

fn await_readable(descriptor: BorrowedFd<'_>) {
    let ready = poll::readable(&[descriptor], Some(DEADLINE)).expect("it can be polled");
    assert!(ready[0], "no answer in time");
}

/// The agent's answer to these bytes.
fn answer(job: &Nodes, bytes: &[u8]) -> ToClient {
    let socket = Packets::connect(&job.agent_directory(1).socket()).expect("the agent listens");
    socket
        .send(bytes, None)
        .expect("the socket takes a message");
    await_readable(socket.as_fd());
    let mut buffer = [0; 1024];
    match socket.receive(&mut buffer) {
        Ok(Received::Message(length, _)) => ToClient::decode(&buffer[..length]).expect("an answer"),
        other => panic!("no answer: {other:?}"),
    }
}

fn assert_contains(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
}

/// A library of another release is refused before it gets a slot: it would not know how to release it.
#[test]
fn an_agent_refuses_a_library_of_another_release() {
    let job = Nodes::new(1);
    let mut rank = job.start(1, 0);
    let layout = LAYOUT_VERSION as u8;
    for (protocol, table) in [(VERSION + 1, layout), (VERSION, layout - 1), (0, 0)] {
        let mut bytes = attach_request(&job);
        assert_eq!(bytes[VERSIONS], [VERSION, layout]);
        bytes[VERSIONS].copy_from_slice(&[protocol, table]);
        let ToClient::Refused(code, text) = answer(&job, &bytes) else {
            panic!("it was not refused");
        };
        assert_eq!(code, RefusalCode::Version);
        let theirs = format!("protocol {protocol} and state table layout {table}");
        let ours = format!("protocol {VERSION} and state table layout {layout}");
        let pid = job.agent(1).pair().1.to_string();
        assert_contains(&text, &[&theirs, &ours, "MUSTER_AGENT", &pid]);
    }
    // Attached clients are not affected, and the rank of the refused client is not in use.
    rank.await_states("n1=Alive 0=Alive");
    assert!(matches!(
        answer(&job, &attach_request(&job)),
        ToClient::Attached(_)
    ));
}

/// An agent of another release, in front of a library of this one.
struct OtherAgent(PacketListener);

impl OtherAgent {
    fn start(job: &Nodes) -> Self {
        let place = job.agent_directory(1);
        place.prepare().expect("the directory can be made");
        Self(PacketListener::bind(&place.socket()).expect("no other listener"))
    }

    /// Waits for a client, reads its request, and answers.
    fn answer(&self, message: &ToClient, table: &[BorrowedFd<'_>]) -> Packets {
        await_readable(self.0.as_fd());
        let client = self.0.accept().ok().flatten().expect("a client connected");
        await_readable(client.as_fd());
        let mut buffer = [0; 1024];
        let Ok(Received::Message(length, _)) = client.receive(&mut buffer) else {
            panic!("the client sent nothing");
        };
        assert!(matches!(
            ToAgent::decode(&buffer[..length]),
            Ok(ToAgent::Attach(_))
        ));
        client
            .send_with(&message.encode(), table)
            .expect("the client reads");
        client
    }
}

/// Returns the error of a refused rank, and waits for its end.
fn last_output(rank: Rank) -> String {
    let text = rank.await_line(|_| true);
    assert!(text.starts_with("REFUSED"), "{text}");
    assert_eq!(rank.await_end(), Some(3), "{text}");
    text
}

#[test]
fn a_library_reports_why_an_agent_of_another_release_refuses_it() {
    let job = Nodes::new(1);
    let agent = OtherAgent::start(&job);
    let rank = job.begin(1, 0);
    let reason = "the library has protocol 2, this musterd has protocol 7; MUSTER_AGENT";
    let client = agent.answer(&ToClient::Refused(RefusalCode::Version, reason.into()), &[]);
    assert_contains(&last_output(rank), &[reason]);
    drop(client);
    assert_eq!(job.agent(1).all, [0; 0], "no other agent is started for it");
}

#[test]
fn a_library_refuses_a_state_table_of_another_layout() {
    let job = Nodes::new(1);
    let agent = OtherAgent::start(&job);
    let halves =
        [(); 2].map(|()| create_sealed(c"a-table", 1 << 16).expect("memory for a state table"));
    let other = LAYOUT_VERSION + 1;
    let file = File::from(halves[0].try_clone().expect("a descriptor is left"));
    file.write_at(b"MUSTERBD", 0).expect("the file is writable");
    file.write_at(&other.to_le_bytes(), TABLE_VERSION_AT)
        .expect("the file is writable");
    let rank = job.begin(1, 0);
    let attached = Attached {
        slot: 0,
        generation: 1,
        mark: 1 << 63,
        publish: false,
        address: String::new(),
    };
    let client = agent.answer(
        &ToClient::Attached(attached),
        &halves.each_ref().map(AsFd::as_fd),
    );
    let (found, known) = (
        format!("has layout {other}"),
        format!("knows layout {LAYOUT_VERSION}"),
    );
    assert_contains(&last_output(rank), &[&found, &known, "MUSTER_AGENT"]);
    drop(client);
    assert_eq!(job.agent(1).all, [0; 0], "no other agent is started for it");
}
