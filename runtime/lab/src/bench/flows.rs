//! Streams between two ends in one process, at full speed or at the limit of the rails.

use super::ends::{Ends, now_us, open};
use super::trips::connection;
use muster_fabric::{BULK_MESSAGE_MAX, Class, FabricEvent, FaultPlan, Faulty, Route, Transport};
use muster_terminal::CliError;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Size of a stream's message in bytes.
const STREAMED: usize = 1024;
/// Length of each stream.
const STREAM_TIME: Duration = Duration::from_secs(1);
/// Maximum number of bulk messages in flight.
const BULK_IN_FLIGHT: usize = 2;

/// Sent and received bytes of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) mb_per_s: f64,
}

impl Flow {
    fn of(sent: u64, received: u64, start: Instant) -> Flow {
        let mb_per_s = received as f64 / 1_000_000.0 / start.elapsed().as_secs_f64();
        Flow {
            sent,
            received,
            mb_per_s,
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({ "mb_per_s": self.mb_per_s, "sent_bytes": self.sent, "come_bytes": self.received })
    }
}

/// Sends until the time is over. `receive` runs in another thread and returns the bytes received since its last call.
/// Bytes that are in flight when the sender ends still count.
fn flow(mut send: impl FnMut() -> u64, mut receive: impl FnMut() -> u64 + Send) -> Flow {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut received = 0;
            loop {
                let last = over.load(Ordering::Acquire);
                let more = receive();
                received += more;
                if last && more == 0 {
                    return received;
                }
            }
        });
        let (start, mut sent) = (Instant::now(), 0);
        while start.elapsed() < STREAM_TIME {
            sent += send();
        }
        over.store(true, Ordering::Release);
        Flow::of(sent, receiver.join().unwrap_or(0), start)
    })
}

/// A stream of datagrams over plain sockets.
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
        || {
            far.recv(&mut [0; STREAMED])
                .map_or(0, |received| received as u64)
        },
    ))
}

/// A stream over a plain TCP connection.
pub(super) fn tcp_flow() -> io::Result<Flow> {
    let [mut near, mut far] = connection()?;
    let mut room = vec![0; 1 << 16];
    Ok(flow(
        || near.write(&[7; STREAMED]).map_or(0, |sent| sent as u64),
        || far.read(&mut room).map_or(0, |received| received as u64),
    ))
}

/// A stream of datagrams over rails with this limit each, in MB/s; without one, at full speed.
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
            let mut received = 0;
            far.poll(now_us(), &mut |arrival| {
                received += arrival.bytes.len() as u64;
            });
            received
        },
    ))
}

/// A stream of bulk messages of the largest size, each authenticated with the job key and acknowledged, over rails with
/// this limit each, in MB/s; without one, at full speed.
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
    let mut in_flight = 0;
    Ok(flow(
        || {
            let mut sent = 0;
            let fabric = near.inner_mut();
            if in_flight < BULK_IN_FLIGHT && fabric.send_bulk(now_us(), to_far, &message).is_ok() {
                in_flight += 1;
                sent = message.len() as u64;
            }
            near.poll(now_us(), &mut |_| {});
            while let Some(event) = near.poll_event() {
                let ended = matches!(
                    event,
                    FabricEvent::BulkDone { .. } | FabricEvent::BulkFailed { .. }
                );
                in_flight -= usize::from(ended);
            }
            sent
        },
        || {
            let mut received = 0;
            far.poll(now_us(), &mut |arrival| {
                received += arrival.bytes.len() as u64;
            });
            while far.poll_event().is_some() {}
            received
        },
    ))
}

/// A fault plan that limits each rail to this many megabytes per second.
fn limit(rail_mb: Option<u64>) -> FaultPlan {
    FaultPlan {
        rail_bytes_per_s: rail_mb.unwrap_or(0) * 1_000_000,
        ..FaultPlan::default()
    }
}
