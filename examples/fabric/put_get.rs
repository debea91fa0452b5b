//! Two programs that exchange blocks of memory over several rails, with the crate `muster-fabric`.
//!
//! `put_get store RAILS CLIENT` keeps what the client puts, and answers its questions, until it is ended.
//! `put_get client RAILS STORE [BLOCKS]` puts blocks, gets them back, compares them, and ends.
//!
//! `RAILS` are the NIDs of the own rails, `CLIENT` and `STORE` those of the other program, for example
//! `10.0.0.1:7801@udp0,10.1.0.1:7801@udp1`. The environment variable `PUT_GET_KEY` is a text that both share.
//!
//! With `-` in place of the other program's NIDs, the own ones are printed as `nids NIDS`, and the others are read
//! from standard input. Nets whose providers have addresses of their own kind need that, since a NID contains such an
//! address only when its rail is open.
//!
//! Each block is one message, and messages take turns over the rails. If a rail fails, its messages are sent again
//! over the others: cut one while the programs run. Nothing else is necessary for that.

use muster_fabric::{
    Arrival, BULK_MESSAGE_MAX, Fabric, FabricConfig, FabricEvent, NidList, PeerHandle, Transport,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::stdin;
use std::process::ExitCode;

const USAGE: &str = "put_get store RAILS CLIENT | put_get client RAILS STORE [BLOCKS]";
/// Bytes of a block. A message has 8 bytes for its number, too.
const BLOCK_BYTES: usize = 256 << 10;
const _: () = assert!(BLOCK_BYTES + 8 <= BULK_MESSAGE_MAX);
/// Blocks that the client puts, unless it is given another number.
const BLOCKS_DEFAULT: u64 = 256;
/// Blocks that are under way at once. A peer's queue is bounded, too.
const UNDER_WAY_MAX: usize = 16;
/// The longest wait.
const WAIT_US: u64 = 1_000_000;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["store", rails, client] => open(rails, client).and_then(store),
        ["client", rails, store] => {
            open(rails, store).and_then(|link| client(link, BLOCKS_DEFAULT))
        }
        ["client", rails, store, blocks] => match blocks.parse() {
            Ok(blocks) => open(rails, store).and_then(|link| client(link, blocks)),
            Err(why) => {
                Err(format!("BLOCKS {blocks:?}: {why}; give a number, as in: {USAGE}").into())
            }
        },
        _ => Err(format!("usage: {USAGE}").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("put_get: {why}");
            ExitCode::FAILURE
        }
    }
}

/// A fabric and the one peer of this example.
struct Link {
    fabric: Fabric,
    peer: PeerHandle,
}

/// Opens the rails with their bulk lanes, and makes the peer known. Nothing is sent.
fn open(rails: &str, peer: &str) -> Outcome<Link> {
    let rails: NidList = rails.parse()?;
    let key = std::env::var("PUT_GET_KEY")
        .map_err(|why| format!("PUT_GET_KEY: {why}; set it to one text for both programs"))?;
    let library = muster_fabric::load()?;
    let mut config = FabricConfig::new(library, rails.iter().cloned().collect());
    config.key = Some(blake3::derive_key("put_get example", key.as_bytes()));
    let mut fabric = Fabric::open(&config)?;
    fabric.open_bulk()?;
    let mut line = String::new();
    let peer = match peer {
        "-" => {
            println!("nids {}", fabric.local_nids());
            stdin().read_line(&mut line)?;
            line.trim()
        }
        peer => peer,
    };
    let peer = fabric.peer(&peer.parse()?)?;
    Ok(Link { fabric, peer })
}

/// Keeps blocks and answers questions about them.
fn store(mut link: Link) -> Outcome<()> {
    let mut blocks = BTreeMap::new();
    let mut unanswered = Vec::new();
    println!("ready");
    loop {
        let events = link.turn(&mut |arrival| {
            if let Some((number, block)) = arrival.bytes.split_first_chunk() {
                blocks.insert(u64::from_le_bytes(*number), block.to_vec());
            }
        })?;
        for event in events {
            if let FabricEvent::Asked {
                question, bytes, ..
            } = event
            {
                unanswered.push((question, bytes));
            }
        }
        // An answer that finds the queue full is given later. The answer to a question about no known block is empty.
        unanswered.retain(|(question, bytes)| {
            let number = bytes
                .first_chunk()
                .map(|number| u64::from_le_bytes(*number));
            let block = number.and_then(|number| blocks.get(&number));
            let block = block.map_or(&[][..], Vec::as_slice);
            let given = link.fabric.answer(now_us(), link.peer, *question, block);
            given.is_err()
        });
    }
}

/// Puts blocks, gets them back and compares them.
fn client(mut link: Link, blocks: u64) -> Outcome<()> {
    link.transfer(Operation::Put, blocks)?;
    link.transfer(Operation::Get, blocks)?;
    for rail in link.fabric.rails() {
        let counters = rail.counters;
        let (sent, received) = (counters.send_bytes >> 20, counters.receive_bytes >> 20);
        println!("{}: {sent} MiB sent, {received} MiB received", rail.nid);
    }
    Ok(())
}

impl Link {
    /// Waits, receives, and returns the events.
    fn turn(&mut self, deliver: &mut dyn FnMut(Arrival<'_>)) -> Outcome<Vec<FabricEvent>> {
        if self.fabric.may_sleep() {
            let due_us = self.fabric.next_timeout().unwrap_or(u64::MAX);
            let wait_us = due_us.saturating_sub(now_us()).min(WAIT_US);
            let wait = Timespec {
                tv_sec: (wait_us / 1_000_000) as i64,
                tv_nsec: (wait_us % 1_000_000) as i64 * 1000,
            };
            let fds = self.fabric.wait_fds();
            let mut fds: Vec<_> = fds
                .iter()
                .map(|fd| PollFd::new(fd, PollFlags::IN))
                .collect();
            match poll(&mut fds, Some(&wait)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(why) => return Err(format!("poll: {why}").into()),
            }
        }
        while self.fabric.poll(now_us(), deliver) {}
        let events: Vec<_> = std::iter::from_fn(|| self.fabric.poll_event()).collect();
        for event in &events {
            match event {
                FabricEvent::RailFailing { rail, reason } => {
                    println!("rail {rail} fails: {reason}");
                }
                FabricEvent::RailRecovered { rail } => println!("rail {rail} works again"),
                FabricEvent::Moved {
                    from, to, reason, ..
                } => {
                    println!("a block moves from {} to {}: {reason}", from.0, to.0);
                }
                _ => {}
            }
        }
        Ok(events)
    }

    /// Sends all blocks, or questions about them, with a bounded number under way, and waits for all ends.
    fn transfer(&mut self, operation: Operation, blocks: u64) -> Outcome<()> {
        let (mut next, mut done) = (0, 0);
        let mut under_way = BTreeMap::new();
        while done < blocks {
            while next < blocks && under_way.len() < UNDER_WAY_MAX {
                let Some(message) = self.begin(operation, next) else {
                    break;
                };
                under_way.insert(message, next);
                next += 1;
            }
            for event in self.turn(&mut |_| {})? {
                let (message, is_right) = match event {
                    FabricEvent::BulkDone { message, .. } if operation == Operation::Put => {
                        (message, true)
                    }
                    FabricEvent::Answered {
                        question, answer, ..
                    } => {
                        let number = under_way.get(&question);
                        (
                            question,
                            number.is_some_and(|number| answer == Some(block(*number))),
                        )
                    }
                    FabricEvent::BulkFailed { message, tried, .. } => {
                        let pairs = tried
                            .iter()
                            .map(|(from, to)| format!("from {from} to {to}"));
                        let pairs: Vec<String> = pairs.collect();
                        let pairs = pairs.join(", ");
                        let why = format!("message {message} did not arrive {pairs}");
                        return Err(
                            format!("{why}; start the store first, with the same key").into()
                        );
                    }
                    _ => continue,
                };
                if let Some(number) = under_way.remove(&message) {
                    if !is_right {
                        return Err(format!("block {number} is not what was put").into());
                    }
                    done += 1;
                    if done % (blocks / 8).max(1) == 0 {
                        println!("{operation:?}: {done} of {blocks} blocks");
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends a block or a question about it. Returns the number of the message; none if it is not taken now.
    fn begin(&mut self, operation: Operation, number: u64) -> Option<u64> {
        let number_bytes = number.to_le_bytes();
        let (now_us, fabric) = (now_us(), &mut self.fabric);
        let taken = match operation {
            Operation::Put => {
                let message = [&number_bytes[..], &block(number)].concat();
                fabric.send_bulk(now_us, self.peer, &message)
            }
            Operation::Get => fabric.get(now_us, self.peer, false, &number_bytes),
        };
        taken.ok()
    }
}

/// What the client does with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Put,
    Get,
}

/// The content of a block, which follows from its number.
fn block(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(&number.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// Microseconds of a clock that is never set. A fabric is told the time; it reads no clock.
fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}
