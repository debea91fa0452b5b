//! Streams from one end of a process to the other, as fast as they go, or as fast as rails may.

use super::rails::{Ends, now_us, open};
use super::trips::connection;
use muster_fabric::{BULK_MESSAGE_MAX, Class, FabricEvent, FaultPlan, Faulty, Route, Transport};
use muster_terminal::CliError;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a message of a stream.
const STREAMED: usize = 1024;
/// How long each stream is.
const LASTS: Duration = Duration::from_secs(1);
/// Bulk messages that are under way at once.
const BULK_UNDER_WAY: usize = 2;

/// What was sent and what has come of it, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    pub(super) sent: u64,
    pub(super) come: u64,
    pub(super) mb_per_s: f64,
}

impl Flow {
    fn of(sent: u64, come: u64, start: Instant) -> Flow {
        let mb_per_s = come as f64 / 1_000_000.0 / start.elapsed().as_secs_f64();
        Flow {
            sent,
            come,
            mb_per_s,
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({ "mb_per_s": self.mb_per_s, "sent_bytes": self.sent, "come_bytes": self.come })
    }
}

/// Sends until the time is over; `receive` says how many bytes have come each time that it is called, in a
/// thread of its own. Once the sender is done, what is there still counts.
fn flow(mut send: impl FnMut() -> u64, mut receive: impl FnMut() -> u64 + Send) -> Flow {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut come = 0;
            loop {
                let last = over.load(Ordering::Acquire);
                let more = receive();
                come += more;
                if last && more == 0 {
                    return come;
                }
            }
        });
        let (start, mut sent) = (Instant::now(), 0);
        while start.elapsed() < LASTS {
            sent += send();
        }
        over.store(true, Ordering::Release);
        Flow::of(sent, receiver.join().unwrap_or(0), start)
    })
}

/// Datagrams through plain sockets.
pub(super) fn udp_flow() -> io::Result<Flow> {
    let [near, far] = [
        UdpSocket::bind("127.0.0.1:0")?,
        UdpSocket::bind("127.0.0.1:0")?,
    ];
    near.connect(far.local_addr()?)?;
    near.set_nonblocking(true)?;
    far.set_nonblocking(true)?;
    Ok(flow(
        || near.send(&[7; STREAMED]).map_or(0, |sent| sent as u64),
        || far.recv(&mut [0; STREAMED]).map_or(0, |come| come as u64),
    ))
}

/// A plain connection.
pub(super) fn tcp_flow() -> io::Result<Flow> {
    let [mut near, mut far] = connection()?;
    let mut room = vec![0; 1 << 16];
    Ok(flow(
        || near.write(&[7; STREAMED]).map_or(0, |sent| sent as u64),
        || far.read(&mut room).map_or(0, |come| come as u64),
    ))
}

/// Datagrams over rails that take so many megabytes a second each; as many as they can if none is said.
pub(super) fn rail_flow(rails: usize, rail_mb: Option<u64>) -> Result<Flow, CliError> {
    let Ends {
        near,
        mut far,
        to_far,
        ..
    } = open(rails)?;
    let mut near = Faulty::new(near, limit(rail_mb));
    Ok(flow(
        || {
            let sent = near.send(now_us(), to_far, Class::News, Route::Next, &[7; STREAMED]);
            near.poll(now_us(), &mut |_| {});
            u64::from(sent.copies) * STREAMED as u64
        },
        || {
            let mut come = 0;
            far.poll(now_us(), &mut |arrival| come += arrival.bytes.len() as u64);
            come
        },
    ))
}

/// Bulk messages of the largest size, each proven with the job's key and acknowledged, over rails that take so
/// many megabytes a second each; as many as they can if none is said.
pub(super) fn bulk_flow(rails: usize, rail_mb: Option<u64>) -> Result<Flow, CliError> {
    let Ends {
        mut near,
        mut far,
        to_far,
        ..
    } = open(rails)?;
    for end in [&mut near, &mut far] {
        end.set_key([7; 32]);
        end.open_bulk()
            .map_err(|e| CliError::new("bench rails: the bulk lane", e))?;
    }
    let mut near = Faulty::new(near, limit(rail_mb));
    let message = vec![7; BULK_MESSAGE_MAX];
    let mut under_way = 0;
    Ok(flow(
        || {
            let mut sent = 0;
            let fabric = near.inner_mut();
            if under_way < BULK_UNDER_WAY && fabric.send_bulk(now_us(), to_far, &message).is_ok() {
                under_way += 1;
                sent = message.len() as u64;
            }
            near.poll(now_us(), &mut |_| {});
            while let Some(event) = near.poll_event() {
                let ended = matches!(
                    event,
                    FabricEvent::BulkDone { .. } | FabricEvent::BulkFailed { .. }
                );
                under_way -= usize::from(ended);
            }
            sent
        },
        || {
            let mut come = 0;
            far.poll(now_us(), &mut |arrival| come += arrival.bytes.len() as u64);
            while far.poll_event().is_some() {}
            come
        },
    ))
}

/// A plan by which each rail takes so many megabytes a second.
fn limit(rail_mb: Option<u64>) -> FaultPlan {
    FaultPlan {
        rail_bytes_per_s: rail_mb.unwrap_or(0) * 1_000_000,
        ..FaultPlan::default()
    }
}
