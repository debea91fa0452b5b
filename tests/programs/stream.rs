//! A stream of acknowledged messages over rails, beside the agents of a test.
//!
//! `muster-test-stream INDEX RAILS INDEX=NIDS...` sends to each of the peers all the time and prints the
//! results: `GOT FROM NUMBER RAIL` for a received message, followed by `through` if a third peer relayed it;
//! `SENT TO NUMBER`; `DONE TO NUMBER` when the peer has acknowledged all of it; `FAILED TO NUMBER` when it
//! did not; `BAD why` for a message that no peer can have sent; `RAIL INDEX word` for reports of the fabric.
//! After the line `stop` on standard input it sends no more, and prints `END` when no message is under way.
//! The end of standard input ends it.

use muster_fabric::{Arrival, Fabric, FabricConfig, FabricEvent, NidList, PeerHandle, Transport};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::io::BufRead;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Least time between two messages to one peer.
const PACE_US: u64 = 15_000;
/// Most messages to one peer that are under way.
const UNDER_WAY_MAX: usize = 4;
/// The longest sleep.
const TICK_US: u64 = 5_000;
/// Size of the sender's index and the message's number.
const HEADER_BYTES: usize = 9;

fn main() {
    let mut words = std::env::args().skip(1);
    let mut next = || words.next().expect("INDEX RAILS INDEX=NIDS...");
    let (own, rails) = (next(), next());
    let own: u8 = own.parse().expect("an index");
    let rails: NidList = rails.parse().expect("a list of NIDs");
    let library = muster_fabric::load().expect("libfabric");
    let mut config = FabricConfig::new(library, rails.iter().cloned().collect());
    let now = clock_gettime(ClockId::Realtime);
    config.incarnation = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    config.key = Some([7; 32]);
    let mut fabric = Fabric::open(&config).expect("rails");
    fabric.open_bulk().expect("bulk lanes");
    let mut peers = BTreeMap::new();
    for word in words {
        let (index, nids) = word.split_once('=').expect("INDEX=NIDS");
        let nids: NidList = nids.parse().expect("a list of NIDs");
        let handle = fabric.peer(&nids).expect("a peer");
        let index: u8 = index.parse().expect("an index");
        let peer = Peer {
            index,
            handle,
            last: 0,
            under_way: BTreeMap::new(),
            next_us: 0,
        };
        peers.insert(handle, peer);
    }
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopped);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            stop.store(line == "stop", Ordering::Relaxed);
        }
        std::process::exit(0);
    });
    Stream {
        own,
        epoll: wait_set(&fabric),
        fabric,
        peers,
        stopped,
    }
    .run();
}

struct Peer {
    index: u8,
    handle: PeerHandle,
    /// Number of the last message.
    last: u64,
    /// Messages under way, by the fabric's number, which counts over all peers.
    under_way: BTreeMap<u64, u64>,
    next_us: u64,
}

struct Stream {
    own: u8,
    epoll: OwnedFd,
    fabric: Fabric,
    peers: BTreeMap<PeerHandle, Peer>,
    stopped: Arc<AtomicBool>,
}

impl Stream {
    fn run(&mut self) {
        let mut has_ended = false;
        println!("READY");
        loop {
            while self.fabric.poll(now_us(), &mut arrived) {}
            while let Some(event) = self.fabric.poll_event() {
                self.print_event(&event);
            }
            let stopped = self.stopped.load(Ordering::Relaxed);
            if !stopped {
                self.send();
            } else if !has_ended && self.peers.values().all(|peer| peer.under_way.is_empty()) {
                println!("END");
                has_ended = true;
            }
            if self.fabric.may_sleep() {
                self.sleep();
            }
        }
    }

    fn send(&mut self) {
        let now_us = now_us();
        for peer in self.peers.values_mut() {
            if peer.next_us > now_us || peer.under_way.len() >= UNDER_WAY_MAX {
                continue;
            }
            let number = peer.last + 1;
            let bytes = message(self.own, number);
            if let Ok(id) = self.fabric.send_bulk(now_us, peer.handle, &bytes) {
                println!("SENT {} {number}", peer.index);
                peer.last = number;
                peer.under_way.insert(id, number);
                peer.next_us = now_us + PACE_US;
            }
        }
    }

    fn print_event(&mut self, event: &FabricEvent) {
        let (word, peer, message) = match event {
            FabricEvent::BulkDone { peer, message } => ("DONE", peer, message),
            FabricEvent::BulkFailed { peer, message, .. } => ("FAILED", peer, message),
            FabricEvent::RailFailing { rail, reason } => {
                println!("RAIL {rail} failing: {reason}");
                return;
            }
            FabricEvent::RailRecovered { rail } => {
                println!("RAIL {rail} works");
                return;
            }
            FabricEvent::RailLate { .. }
            | FabricEvent::RailSilent { .. }
            | FabricEvent::RailBack { .. }
            | FabricEvent::PeerIndirect { .. }
            | FabricEvent::PeerDirect { .. }
            | FabricEvent::UnknownNid { .. }
            | FabricEvent::Moved { .. }
            | FabricEvent::NewsFailed { .. }
            | FabricEvent::RailSpeed { .. }
            | FabricEvent::RailStale { .. }
            | FabricEvent::RailHealth { .. }
            | FabricEvent::BulkSent { .. }
            | FabricEvent::Asked { .. }
            | FabricEvent::Answered { .. }
            | FabricEvent::PeerGone { .. }
            | FabricEvent::PeerEnded { .. } => return,
        };
        if let Some(peer) = self.peers.get_mut(peer)
            && let Some(number) = peer.under_way.remove(message)
        {
            println!("{word} {} {number}", peer.index);
        }
    }

    fn sleep(&self) {
        let now_us = now_us();
        let due_us = self.fabric.next_timeout().unwrap_or(u64::MAX);
        let wait_us = due_us.saturating_sub(now_us).clamp(1, TICK_US);
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: wait_us as i64 * 1000,
        };
        let mut events = Vec::with_capacity(4);
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&wait));
    }
}

fn wait_set(fabric: &Fabric) -> OwnedFd {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    for fd in fabric.wait_fds() {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&set, fd, epoll::EventData::new_u64(0), flags).expect("epoll");
    }
    set
}

/// Mostly short, sometimes of many fragments. The content follows from the number.
fn message(own: u8, number: u64) -> Vec<u8> {
    let length = match number % 16 {
        0 => 100_000,
        5 | 11 => 20_000,
        _ => 10 + (number % 1000) as usize,
    };
    let mut bytes = vec![own];
    bytes.extend(number.to_le_bytes());
    bytes.extend((HEADER_BYTES..length).map(|at| (at as u64 * 7 + number) as u8));
    bytes
}

fn arrived(arrival: Arrival<'_>) {
    let header = arrival.bytes.split_first_chunk::<HEADER_BYTES>();
    let Some((&[from, ref number @ ..], _)) = header else {
        println!("BAD length {}", arrival.bytes.len());
        return;
    };
    let number = u64::from_le_bytes(*number);
    if arrival.bytes == message(from, number) {
        let through = arrival.relayed.map_or("", |_| " through");
        println!("GOT {from} {number} {}{through}", arrival.rail);
    } else {
        println!("BAD message {number} from {from}");
    }
}

fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}
