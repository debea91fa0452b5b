//! A node of a test: a fabric, what it has received, and a wait with a deadline.

#![allow(dead_code, unreachable_pub, missing_docs)] // Each test file uses a part.

use muster_fabric::{
    Arrival, Class, Fabric, FabricConfig, Libfabric, Nid, NidList, PeerHandle, Route, Transport,
};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Long enough for any machine; a test that waits so long has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// Rail and bytes of a message.
pub type Received = (usize, Vec<u8>);

pub fn library() -> Libfabric {
    muster_fabric::load().expect("libfabric is installed where tests run")
}

pub fn config(rails: &str) -> FabricConfig {
    let rails: Vec<Nid> = rails.split(',').map(|nid| nid.parse().unwrap()).collect();
    FabricConfig::new(library(), rails)
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

    pub fn knows<U: Transport>(&mut self, other: &Node<U>) -> PeerHandle {
        self.fabric.peer(&other.nids()).unwrap()
    }

    /// Waits until so many messages have come.
    pub fn receive(&mut self, count: usize) -> Vec<Received> {
        let mut received = Vec::new();
        let deadline = Instant::now() + DEADLINE;
        while received.len() < count {
            self.drain(0, &mut received);
            if received.len() < count && self.fabric.may_sleep() {
                self.wait(deadline);
            }
            assert!(
                Instant::now() < deadline,
                "only {received:?} of {count} came"
            );
        }
        received
    }

    fn wait(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: 0,
        };
        let mut events = Vec::with_capacity(4);
        epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&left)).unwrap();
    }

    /// Everything that has come so far.
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
