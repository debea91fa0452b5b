//! Shared memory as a rail: processes of one machine, woken by doorbells, that start, end and start again.

use crate::common::{EXPECT_MAJOR, Node, config, library, on_the_wheel, prefix_of, text};
use muster_fabric::{
    BULK_MESSAGE_MAX, Class, Fabric, FabricEvent, NidList, PeerHandle, Route, Transport,
};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);

/// Set in a process that answers: its own NID and the NID that it answers.
const ECHO: &str = "MUSTER_TEST_ECHO";

fn open(rail: &str) -> Node {
    let mut fabric = Fabric::open(&config(rail)).unwrap();
    fabric.open_bulk().unwrap();
    Node::around(fabric)
}

/// Sends on each lane until the peer receives: the providers exchange their addresses with the first messages
/// of each lane.
fn meet(a: &mut Node, b: &mut Node, to_b: PeerHandle) {
    let start = Instant::now();
    for class in [Class::News, Class::Beat] {
        let mut received = Vec::new();
        while received.is_empty() {
            a.fabric.send(0, to_b, class, Route::Next, b"hello");
            a.drain(0, &mut Vec::new());
            b.drain(0, &mut received);
            assert!(start.elapsed() < DEADLINE, "{class:?}");
        }
        // Messages that were sent more than once.
        while a.fabric.rails()[0].counters.sends > b.fabric.rails()[0].counters.receives {
            b.drain(0, &mut received);
            assert!(start.elapsed() < DEADLINE, "{class:?}");
        }
    }
}

/// A rail with an address that depends on the libfabric version, because the same tests may run on another
/// version at the same time.
fn shm(address: &str) -> String {
    format!("{address}:{}@shm0", 7750 + 10 * library().version().0)
}

#[test]
fn these_tests_pass_with_the_wheels_libfabric() {
    on_the_wheel(module_path!());
}

#[test]
fn the_library_is_the_expected_one() {
    let major = std::env::var(EXPECT_MAJOR).unwrap_or_else(|_| "1".to_owned());
    assert_eq!(library().version().0.to_string(), major);
}

/// Whether the library is 1.x, which is refused: then the other tests do not apply.
fn is_refused() -> bool {
    library().version().0 < 2
}

#[test]
fn a_library_with_locks_in_shared_memory_is_refused() {
    let (rail, version) = (shm("127.41.90.1"), library().version());
    match Fabric::open(&config(&rail)) {
        Ok(_) => assert!(version >= (2, 5), "{version:?}"),
        Err(error) => {
            let text = error.to_string();
            assert!(
                version < (2, 5) && text.contains("libfabric 2.5 or later"),
                "{text}"
            );
        }
    }
}

#[test]
fn news_wakes_the_host_and_beats_and_long_messages_arrive() {
    if is_refused() {
        return;
    }
    let (mut a, mut b) = (open(&shm("127.41.91.1")), open(&shm("127.41.91.2")));
    assert_eq!(a.fabric.rails()[0].provider, "shm");
    let (to_b, to_a) = (a.add_peer(&b), b.add_peer(&a));
    meet(&mut a, &mut b, to_b);
    meet(&mut b, &mut a, to_a);
    for _ in 0..100 {
        while !b.fabric.may_sleep() {
            b.drain(0, &mut Vec::new());
        }
        a.fabric.send(1, to_b, Class::News, Route::Next, b"news");
        assert!(b.wait(DEADLINE), "news did not wake it");
        assert_eq!(text(&b.receive(1)), ["news"]);
        a.beat(1, to_b);
        assert_eq!(text(&b.receive(1)), ["beat"]);
        a.drain(1, &mut Vec::new());
    }
    let message: Vec<u8> = (0..BULK_MESSAGE_MAX).map(|at| (at % 251) as u8).collect();
    let start = Instant::now();
    let now_us = || start.elapsed().as_micros() as u64 + 1;
    a.fabric.send_bulk(now_us(), to_b, &message).unwrap();
    let done = FabricEvent::BulkDone {
        peer: to_b,
        message: 1,
    };
    let (mut received, mut is_done) = (Vec::new(), false);
    while !is_done {
        b.drain(now_us(), &mut received);
        a.drain(now_us(), &mut Vec::new());
        is_done = std::iter::from_fn(|| a.fabric.poll_event()).any(|event| event == done);
        assert!(
            start.elapsed() < DEADLINE,
            "{} messages arrived",
            received.len()
        );
    }
    assert!(
        received == [(0, message)],
        "{} messages arrived",
        received.len()
    );
}

/// Kills the process at the end of the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_echo(test: &str, nids: &str) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let test = format!("{}{test}", prefix_of(module_path!()));
    let child = child.args([&test, "--exact"]).env(ECHO, nids).spawn();
    Process(child.unwrap())
}

/// Answers for as long as a test may take.
fn echo(nids: &str) {
    let (own, other) = nids.split_once(' ').unwrap();
    let mut node = Node::open(own);
    let other: NidList = other.parse().unwrap();
    let to = node.fabric.peer(&other).unwrap();
    let start = Instant::now();
    while start.elapsed() < 2 * DEADLINE {
        let mut received = Vec::new();
        node.drain(0, &mut received);
        for (_, bytes) in received {
            node.fabric.send(0, to, Class::News, Route::Next, &bytes);
        }
        if node.fabric.may_sleep() {
            node.wait(Duration::from_millis(100));
        }
    }
}

/// A killed process leaves its memory behind, which no process reads; its successor has different memory of the
/// same name.
#[test]
fn a_killed_process_is_noticed_and_its_successor_is_found() {
    let test = "a_killed_process_is_noticed_and_its_successor_is_found";
    if let Ok(nids) = std::env::var(ECHO) {
        return echo(&nids);
    }
    if is_refused() {
        return;
    }
    let (own, other) = (shm("127.41.92.1"), shm("127.41.92.2"));
    let nids = format!("{other} {own}");
    let mut a = Node::open(&own);
    let to = a.fabric.peer(&other.parse().unwrap()).unwrap();
    let start = Instant::now();
    let answered = |a: &mut Node, question: &str| {
        let mut received = Vec::new();
        while !text(&received).iter().any(|text| text == question) {
            let sent = question.as_bytes();
            a.fabric.send(0, to, Class::News, Route::Next, sent);
            if a.fabric.may_sleep() {
                a.wait(Duration::from_millis(5));
            }
            a.drain(0, &mut received);
            assert!(start.elapsed() < DEADLINE, "{question}: {received:?}");
        }
    };
    let absent = a.fabric.send(0, to, Class::News, Route::Next, b"absent");
    assert!(absent.dropped.is_some(), "the peer does not run yet");
    for process_name in ["first", "second", "third"] {
        let process = start_echo(test, &nids);
        answered(&mut a, process_name);
        // The process answers all questions in order. If it were killed while it writes into this process's
        // memory, the memory would stay inconsistent; once the last question is answered, it writes no more.
        for last in 1.. {
            let (mut received, last) = (Vec::new(), format!("{process_name}, last {last}"));
            let sent = last.as_bytes();
            a.fabric.send(0, to, Class::News, Route::Next, sent);
            let is_answered = |received: &_| text(received).contains(&last);
            while !is_answered(&received) && a.wait(Duration::from_millis(200)) {
                a.drain(0, &mut received);
            }
            a.drain(0, &mut received);
            if is_answered(&received) {
                break;
            }
            assert!(start.elapsed() < DEADLINE, "{last}: {received:?}");
        }
        while a.wait(Duration::from_millis(200)) {
            a.drain(0, &mut Vec::new());
        }
        drop(process);
        // The first message may go to the memory that the killed process left.
        let lost = |_| {
            let sent = a.fabric.send(0, to, Class::News, Route::Next, b"lost");
            sent.dropped.is_some()
        };
        let refused: Vec<bool> = (0..3).map(lost).collect();
        assert!(refused[1] && refused[2], "{process_name}: {refused:?}");
        // Messages to the ended process do not keep their send slots, though the address was removed meanwhile.
        let credits = |a: &Node| a.fabric.rails()[0].credits;
        while credits(&a).now < credits(&a).most {
            a.drain(0, &mut Vec::new());
            assert!(
                start.elapsed() < DEADLINE,
                "{process_name}: {:?}",
                credits(&a)
            );
        }
    }
    // Removes the files of the last process.
    let prefix = format!("127.41.92.2:{}", 775 + library().version().0);
    for file in std::fs::read_dir("/dev/shm").unwrap().flatten() {
        if file.file_name().to_string_lossy().starts_with(&prefix) {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
}

fn refusal(rails: &str) -> String {
    Fabric::open(&config(rails)).expect_err(rails).to_string()
}

#[test]
fn a_rail_that_cannot_be_opened_is_refused_with_a_remedy() {
    if is_refused() {
        return;
    }
    assert_eq!(
        refusal("127.41.93.1:0@shm0"),
        "rail 127.41.93.1:0@shm0: on net shm0 the system chooses no port; leave the port out (7741), or give one"
    );
    let foreign = refusal("203.0.113.5@shm0");
    assert!(
        foreign.starts_with(
            "rail 203.0.113.5@shm0: the address 203.0.113.5 belongs to no interface of this node; "
        ),
        "{foreign}"
    );
    let nid = shm("127.41.93.1");
    let port = nid
        .trim_start_matches("127.41.93.1:")
        .trim_end_matches("@shm0");
    let first = Fabric::open(&config(&nid)).unwrap();
    assert_eq!(
        refusal(&nid),
        format!(
            "rail {nid}: port {port} of 127.41.93.1 is in use by another process; give another port"
        )
    );
    drop(first);
    // A process that another test has just started may hold the socket open for a moment.
    let start = Instant::now();
    while let Err(error) = Fabric::open(&config(&nid)) {
        assert!(
            start.elapsed() < DEADLINE,
            "the name is still in use: {error}"
        );
        std::thread::yield_now();
    }
}

/// A shared memory rail may have the address of another rail.
#[test]
fn shared_memory_and_an_interface_of_one_address_are_two_rails() {
    if is_refused() {
        return;
    }
    let rails = format!("{},127.41.94.1:0@udp0", shm("127.41.94.1"));
    let a = Fabric::open(&config(&rails)).unwrap();
    assert_eq!(a.rails().len(), 2);
    let twice = refusal("127.41.94.2@shm0,127.41.94.2:8000@shm1");
    assert!(twice.contains("are the same interface"), "{twice}");
}
