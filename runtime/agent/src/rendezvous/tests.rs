//! Server and clients, in threads of one process.

use super::client::JoinError;
use super::*;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const KEY: [u8; 32] = [7; 32];

/// A server in a thread of its own, until it is dropped.
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
        let told = is_over.clone();
        let thread = thread::spawn(move || {
            while !told.load(Ordering::Acquire) {
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

    /// How many had joined at the end.
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

/// BG-04: all are told the same list when all have come; one that comes again is told it, too.
#[test]
fn all_are_told_when_all_have_come() {
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
    // A fourth one is not in the list, and a known one has other NIDs now.
    for nids in ["10.0.0.4@udp0", "10.0.0.1@udp0,10.1.0.1@udp1"] {
        let refused = server.join(KEY, nids).join().unwrap().unwrap_err();
        assert!(
            refused.to_string().contains("3 participants have come"),
            "{refused}"
        );
    }
    assert_eq!(server.end(), 3);
}

/// One with another key is refused, and believes no server with another key; who is on another net makes all
/// of them start again, and all are told who (BG-04).
#[test]
fn who_does_not_belong_is_refused() {
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

/// Whatever is said: long lines, no lines, other words; the server goes on.
#[test]
fn nonsense_is_hung_up_on() {
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
        let mut said = String::new();
        // Refused with words, or hung up on.
        let _ = stream.read_to_string(&mut said);
        assert!(!said.contains("list "), "{said}");
    }
    let waiting = ["10.0.0.1@udp0", "10.0.0.2@udp0"].map(|nids| server.join(KEY, nids));
    for one in waiting {
        assert_eq!(one.join().unwrap().unwrap().len(), 2);
    }
    assert_eq!(server.end(), 2);
}

/// A list that is not proven is not believed.
#[test]
fn a_server_of_another_job_is_not_believed() {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let liar = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"roster 1 00\n").unwrap();
        read_line(&mut stream, LINE_MAX).unwrap();
        stream
            .write_all(b"list 1 00\n10.0.0.9@udp0 - n9\n")
            .unwrap();
    });
    let refused = join(&address, &KEY, &entry("10.0.0.1@udp0")).unwrap_err();
    assert!(refused.to_string().contains("not proven"), "{refused}");
    liar.join().unwrap();
}
