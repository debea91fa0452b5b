//! Clients that send arbitrary bytes to the agent: nothing panics, no resource is kept, and a valid client
//! that attaches later is accepted.
//!
//! The descriptors of the process are counted, so these tests run one after the other, in a binary of their
//! own.

use muster_agent::ipc_server::{ATTACH_DEADLINE, IpcServer, Request};
use muster_agent::watch::Watch;
use muster_ipc::{AgentDirectory, Ask, Attach, Listener, ToAgent, ToClient};
use muster_shm::{TableLimits, TableWriter};
use muster_sys::poll;
use muster_sys::socket::{Packets, Received};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const SLOTS: u32 = 4;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Server {
    ipc_server: IpcServer,
    table: TableWriter,
    watch: Watch,
    directory: AgentDirectory,
}

impl Server {
    /// Serves until nothing is left to do, as the agent's loop does.
    fn serve(&mut self) -> usize {
        self.serve_at(Instant::now())
    }

    fn serve_at(&mut self, now: Instant) -> usize {
        let (mut requests, mut notices) = (Vec::new(), Vec::new());
        while self.serve_once(now, &mut requests) {}
        self.watch.take(&mut notices);
        for notice in notices {
            self.ipc_server
                .settle(&notice, &mut self.table, &self.watch);
        }
        while let Some((_, ask)) = self.ipc_server.take_ask() {
            let mut buffer = [0; 2048];
            if let Ok(Received::Message(length, _)) = ask.receive(&mut buffer) {
                let _ = Ask::decode(&buffer[..length]);
            }
        }
        requests.len()
    }

    /// Makes one call. Returns whether there may be more to do.
    fn serve_once(&mut self, now: Instant, requests: &mut Vec<Request>) -> bool {
        let served = self
            .ipc_server
            .serve(now, &mut self.table, &self.watch, requests);
        served.expect("the listener works")
    }

    fn attach_request(&self) -> Vec<u8> {
        ToAgent::Attach(Attach {
            pid: std::process::id(),
            key: self.directory.key().to_owned(),
            rank: Some(3),
            job_size: 8,
            threadless: true,
            ulfm: false,
            wants_wake_up: true,
            held: None,
        })
        .encode()
    }
}

/// A small generator with a fixed algorithm (xorshift), so that a seed determines the run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

fn mutated(mut bytes: Vec<u8>, chance: &mut Chance) -> Vec<u8> {
    for _ in 0..chance.below(4) {
        let at = chance.below(bytes.len() + 1);
        match chance.below(4) {
            0 => bytes
                .iter_mut()
                .skip(at)
                .take(1)
                .for_each(|b| *b ^= 1 << chance.below(8)),
            1 => bytes.truncate(at),
            2 => bytes.extend((0..chance.below(1500)).map(|_| at as u8)),
            _ => bytes.iter_mut().skip(at).take(2).for_each(|b| *b = 0xff),
        }
    }
    bytes
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("/proc is mounted")
        .count()
}

fn server(directory: &Path, job: &str) -> Server {
    let directory =
        AgentDirectory::find(Some(job), Some("n1"), Some(directory)).expect("an agent directory");
    let limits = TableLimits {
        nodes: 4,
        ranks: 16,
        slots: SLOTS,
        events: 16,
    };
    let table = TableWriter::create(limits).expect("a state table");
    let watch = Watch::start(&table.view()).expect("a watch");
    let listener = Listener::open(&directory).expect("a listener");
    let ipc_server = IpcServer::new(listener, &directory).expect("an ipc server");
    Server {
        ipc_server,
        table,
        watch,
        directory,
    }
}

/// A client that connects and sends no attach request is disconnected after a while, and counted. A client
/// whose request was sent in time stays, even if the agent reads it late. So silent clients block others only
/// for a short time.
#[test]
fn a_client_without_an_attach_request_is_disconnected() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = server(directory.path(), "silent");
    let begun = Instant::now();
    let connect =
        |server: &Server| Packets::connect(&server.directory.socket()).expect("a listener");
    let silent: Vec<Packets> = (0..SLOTS + 64).map(|_| connect(&server)).collect();
    server.serve_at(begun);
    let late = connect(&server);
    server.serve_at(begun);
    let turned_away = server.ipc_server.counters().turned_away;
    assert_eq!(turned_away, 1, "the number of connections is at its limit");
    drop(late);
    silent[1]
        .send(&server.attach_request(), None)
        .expect("the socket has space");
    let before = begun + ATTACH_DEADLINE - Duration::from_millis(1);
    assert!(!server.ipc_server.is_attach_overdue(before));
    let after = begun + ATTACH_DEADLINE;
    assert!(server.ipc_server.is_attach_overdue(after));
    assert_eq!(server.serve_at(after), 1, "one request was read");
    assert!(!server.ipc_server.is_attach_overdue(after));
    let counters = server.ipc_server.counters();
    let all = u64::from(SLOTS) + 64;
    assert_eq!((counters.silent, counters.attached), (all - 1, 1));
    let mut buffer = [0; 2048];
    assert!(matches!(
        silent[0].receive(&mut buffer),
        Ok(Received::HungUp)
    ));
    assert!(matches!(
        silent[1].receive(&mut buffer),
        Ok(Received::Message(..))
    ));
}

/// Whatever number of clients connect at once and whatever they send, one call of the ipc server does a
/// bounded part of the work. A later valid client is still accepted, and connections without space cause no
/// wake-ups for a while.
#[test]
fn a_flood_is_served_in_small_parts() {
    const FLOOD: usize = 250;
    const AT_ONCE: usize = 64;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = server(directory.path(), "flood");
    let connect =
        |server: &Server| Packets::connect(&server.directory.socket()).expect("a listener");
    let handled = |server: &Server| {
        let counters = server.ipc_server.counters();
        (counters.malformed + counters.refused + counters.attached + counters.turned_away) as usize
    };
    let (now, mut requests) = (Instant::now(), Vec::new());
    // Each client sends more than is read at once.
    for _ in 0..FLOOD {
        let client = connect(&server);
        for _ in 0..8 {
            let _ = client.send(&ToAgent::Ask.encode(), None);
        }
    }
    let client = connect(&server);
    client
        .send(&server.attach_request(), None)
        .expect("the socket has space");
    let (mut calls, mut before) = (0, 0);
    while server.serve_once(now, &mut requests) {
        let (done, after) = (handled(&server) - before, handled(&server));
        assert!(done <= AT_ONCE, "one call served {done}");
        (calls, before) = (calls + 1, after);
    }
    assert!(calls >= FLOOD / AT_ONCE, "{calls} calls");
    assert_eq!(server.ipc_server.counters().attached, 1);

    // Silent clients take all the space. The listening socket is not polled again until some time later.
    let silent: Vec<Packets> = (0..SLOTS + 64).map(|_| connect(&server)).collect();
    while server.serve_once(now, &mut requests) {}
    let waiting: Vec<Packets> = (0..FLOOD).map(|_| connect(&server)).collect();
    while server.serve_once(now, &mut requests) {}
    let turned_away = server.ipc_server.counters().turned_away as usize;
    assert!((1..=AT_ONCE).contains(&turned_away), "{turned_away}");
    let idle = poll::readable(&[server.ipc_server.descriptor()], Some(Duration::ZERO));
    assert!(
        !idle.expect("poll")[0],
        "the waiting connections cause no wake-up"
    );
    let due = server.ipc_server.due().expect("a time");
    assert!(now < due && due < now + ATTACH_DEADLINE);
    while server.serve_once(due, &mut requests) {}
    let later = server.ipc_server.counters().turned_away as usize;
    assert!(later > turned_away && later - turned_away <= AT_ONCE);
    drop((silent, waiting));
}

/// A client that passes a descriptor other than an eventfd is refused with the reason: a write to it could
/// block for ever.
#[test]
fn a_pipe_is_no_eventfd() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = server(directory.path(), "pipe");
    let client = Packets::connect(&server.directory.socket()).expect("a listener");
    let (_reader, writer) = std::io::pipe().expect("a pipe");
    let sent = client.send(&server.attach_request(), Some(writer.as_fd()));
    sent.expect("the socket has space");
    server.serve();
    server.ipc_server.wake_up();
    let mut buffer = [0; 2048];
    let Ok(Received::Message(length, _)) = client.receive(&mut buffer) else {
        panic!("no answer");
    };
    let answer = ToClient::decode(&buffer[..length]);
    assert!(
        matches!(&answer, Ok(ToClient::Refused(_, reason)) if reason.contains("is no eventfd")),
        "{answer:?}"
    );
}

#[test]
fn malformed_clients_leave_no_resources_behind() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = server(directory.path(), "mad");
    let before = descriptors();
    let seed = 0x6d75_7374_6572;
    println!("seed {seed}");
    let mut chance = Chance(seed);
    for _ in 0..2_000 {
        let client = Packets::connect(&server.directory.socket()).expect("the server listens");
        if chance.below(2) == 0 {
            client
                .send(&server.attach_request(), None)
                .expect("the socket has space");
            server.serve();
        }
        let words = [
            server.attach_request(),
            ToAgent::Armed.encode(),
            ToAgent::Seed("10.0.0.1:7741@udp0".into()).encode(),
            ToAgent::Key([7; 32]).encode(),
            ToAgent::Leaving(-9).encode(),
            ToAgent::Ask.encode(),
            ToClient::WakeUp.encode(),
        ];
        for _ in 0..1 + chance.below(20) {
            let word = mutated(words[chance.below(words.len())].clone(), &mut chance);
            let (ours, theirs) = Packets::pair().expect("a pair");
            let question = mutated(Ask::Get { node: 1, key: b"k" }.encode(), &mut chance);
            // Empty packets are not sent; a closed connection accepts nothing.
            let _ = ours.send(&question, None);
            let _ = client.send(&word, Some(theirs.as_fd()));
        }
        assert!(server.serve() <= 64, "requests of one round are bounded");
        assert!(server.ipc_server.client_count() <= SLOTS as usize);
    }
    server.serve();
    server.serve();
    assert!(
        descriptors() <= before + SLOTS as usize,
        "descriptors were kept"
    );
    let counters = server.ipc_server.counters();
    assert!(
        counters.malformed > 100 && counters.attached > 100,
        "{counters:?}"
    );

    let client = Packets::connect(&server.directory.socket()).expect("the server listens");
    client
        .send(&server.attach_request(), None)
        .expect("the socket has space");
    // The first round accepts it, the second one reads its request.
    server.serve();
    server.serve();
    let mut buffer = [0; 1024];
    let Ok(Received::Message(length, _)) = client.receive(&mut buffer) else {
        panic!("no answer");
    };
    assert!(matches!(
        ToClient::decode(&buffer[..length]),
        Ok(ToClient::Attached(_))
    ));
}
