//! Server and clients, in threads of one process.

use super::client::JoinError;
use super::*;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const KEY: [u8; 32] = [7; 32];

/// A server in a thread, until it is dropped.
struct Running {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<usize>>,
}

impl Running {
    fn new(expected: usize) -> Self {
        let mut server = Server::open("127.0.0.1:0".parse().unwrap(), expected, KEY).unwrap();
        let address = server.address().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = is_over.clone();
        let thread = thread::spawn(move || {
            while !stop.load(Ordering::Acquire) {
                server.turn().unwrap();
            }
            server.joined()
        });
        Self {
            address,
            is_over,
            thread: Some(thread),
        }
    }

    fn join(&self, key: [u8; 32], nids: &str) -> thread::JoinHandle<Result<Vec<Entry>, JoinError>> {
        let server = self.address.to_string();
        let own = entry(nids);
        thread::spawn(move || join(&server, &key, &own))
    }

    /// Stops the server; returns how many had joined.
    fn end(mut self) -> usize {
        self.is_over.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn entry(nids: &str) -> Entry {
    Entry {
        nids: nids.to_owned(),
        group: "rack1".to_owned(),
        name: format!("n{}", nids.split(',').next().unwrap_or_default()),
    }
}

/// BG-04: all get the same list when all have joined; a participant that joins again gets it, too.
#[test]
fn all_get_the_list_when_all_have_joined() {
    let server = Running::new(3);
    let names = [
        "10.0.0.2@udp0,10.1.0.2@udp1",
        "10.0.0.1@udp0",
        "10.0.0.3@udp0",
    ];
    let waiting: Vec<_> = names.map(|nids| server.join(KEY, nids)).into();
    let lists: Vec<_> = waiting
        .into_iter()
        .map(|one| one.join().unwrap().unwrap())
        .collect();
    let sorted: Vec<Entry> = [1, 0, 2].map(|at| entry(names[at])).into();
    assert!(lists.iter().all(|list| *list == sorted), "{lists:?}");
    let again = server.join(KEY, names[1]).join().unwrap().unwrap();
    assert_eq!(again, sorted);
    // A fourth participant is not in the list, and a known one has other NIDs now.
    for nids in ["10.0.0.4@udp0", "10.0.0.1@udp0,10.1.0.1@udp1"] {
        let refused = server.join(KEY, nids).join().unwrap().unwrap_err();
        assert!(
            refused.to_string().contains("3 participants have joined"),
            "{refused}"
        );
    }
    assert_eq!(server.end(), 3);
}

/// A participant with another key is refused and trusts no server. A participant on another net makes all of them
/// join again, and the refusal names the reason (BG-04).
#[test]
fn participants_of_another_job_or_net_are_refused() {
    let server = Running::new(2);
    let refused = server.join([8; 32], "10.0.0.1@udp0").join().unwrap();
    assert!(refused.unwrap_err().to_string().contains("another key"));
    let waiting = ["10.0.0.1@udp0", "10.0.0.2@o2ib0"].map(|nids| server.join(KEY, nids));
    for one in waiting {
        let refused = one.join().unwrap().unwrap_err().to_string();
        assert!(refused.contains("one network"), "{refused}");
    }
    let waiting = ["10.0.0.1@udp0", "10.0.0.2@udp0"].map(|nids| server.join(KEY, nids));
    for one in waiting {
        assert_eq!(one.join().unwrap().unwrap().len(), 2);
    }
    assert_eq!(server.end(), 2);
}

/// Invalid input (long lines, no lines, other requests) is refused, and the server goes on.
#[test]
fn invalid_input_is_refused() {
    use std::io::Write;
    let server = Running::new(2);
    for nonsense in [
        &b"\n"[..],
        b"GET / HTTP/1.1\n",
        b"join a b\n",
        &[0xff; 4000],
    ] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let _ = stream.write_all(nonsense);
        let mut answer = String::new();
        // Refused, or closed without an answer.
        let _ = stream.read_to_string(&mut answer);
        assert!(!answer.contains("list "), "{answer}");
    }
    let waiting = ["10.0.0.1@udp0", "10.0.0.2@udp0"].map(|nids| server.join(KEY, nids));
    for one in waiting {
        assert_eq!(one.join().unwrap().unwrap().len(), 2);
    }
    assert_eq!(server.end(), 2);
}

/// A list without a valid proof is rejected.
#[test]
fn a_list_without_a_valid_proof_is_rejected() {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let impostor = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"rendezvous 1 00\n").unwrap();
        read_line(&mut stream, LINE_MAX).unwrap();
        stream
            .write_all(b"list 1 00\n10.0.0.9@udp0 - n9\n")
            .unwrap();
    });
    let refused = join(&address, &KEY, &entry("10.0.0.1@udp0")).unwrap_err();
    assert!(
        refused.to_string().contains("proof of its list is wrong"),
        "{refused}"
    );
    impostor.join().unwrap();
}
