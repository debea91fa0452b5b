//! Round trips of a datagram between two ends of one process. Each end has a thread, which polls without sleeping.

use super::ends::{Ends, now_us};
use muster_fabric::{Class, RawEndpoint, Route, Transport};
use muster_terminal::CliError;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Size of a message in bytes: a heartbeat with some news.
const MESSAGE: usize = 128;
/// Time after which a message counts as lost. Every answer is faster.
const LOST_AFTER: Duration = Duration::from_secs(2);

/// Round trips over plain UDP sockets, in microseconds.
pub(super) fn udp_trips(rounds: u32) -> io::Result<Vec<f64>> {
    let [near, far] = [
        UdpSocket::bind("127.0.0.1:0")?,
        UdpSocket::bind("127.0.0.1:0")?,
    ];
    near.connect(far.local_addr()?)?;
    far.connect(near.local_addr()?)?;
    near.set_nonblocking(true)?;
    far.set_nonblocking(true)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; MESSAGE];
            while !over.load(Ordering::Acquire) {
                if let Ok(length) = far.recv(&mut bytes) {
                    let _ = far.send(&bytes[..length]);
                }
            }
        });
        let bytes = [7; MESSAGE];
        let trips = trips(
            rounds,
            || near.send(&bytes).map(|_| ()),
            || Ok(near.recv(&mut [0; MESSAGE]).is_ok()),
        );
        over.store(true, Ordering::Release);
        trips
    })
}

/// Round trips over a plain TCP connection, in microseconds.
pub(super) fn tcp_trips(rounds: u32) -> io::Result<Vec<f64>> {
    let [mut near, mut far] = connection()?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut bytes, mut length) = ([0; MESSAGE], 0);
            while !over.load(Ordering::Acquire) {
                length += far.read(&mut bytes[length..]).unwrap_or(0);
                if length == MESSAGE {
                    length = 0;
                    // At most one message is in flight, so there is room for it.
                    let _ = far.write_all(&bytes);
                }
            }
        });
        let (bytes, mut length) = ([7; MESSAGE], 0);
        let mut sender = near.try_clone()?;
        let trips = trips(
            rounds,
            || sender.write_all(&bytes),
            || {
                length += near.read(&mut [0; MESSAGE][length..]).unwrap_or(0);
                let whole = length == MESSAGE;
                length %= MESSAGE;
                Ok(whole)
            },
        );
        over.store(true, Ordering::Release);
        trips
    })
}

/// The two ends of a connection, without delay and non-blocking.
pub(super) fn connection() -> io::Result<[TcpStream; 2]> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    for end in [&near, &far] {
        end.set_nodelay(true)?;
        end.set_nonblocking(true)?;
    }
    Ok([near, far])
}

/// Round trips with plain calls of libfabric, on the provider of the rails, in microseconds.
pub(super) fn raw_trips(rounds: u32) -> Result<Vec<f64>, CliError> {
    let failed = |e| CliError::new("bench rails: plain libfabric", e);
    let library = muster_fabric::load().map_err(|e| CliError::new("bench rails", e))?;
    let [mut near, mut far] = RawEndpoint::pair(library, MESSAGE).map_err(failed)?;
    let over = AtomicBool::new(false);
    let trips = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                if far.receive() {
                    far.send(&[7; MESSAGE]);
                }
            }
        });
        let near = std::cell::RefCell::new(&mut near);
        let send = || {
            near.borrow_mut().send(&[7; MESSAGE]);
            Ok(())
        };
        let trips = trips(rounds, send, || Ok(near.borrow_mut().receive()));
        over.store(true, Ordering::Release);
        trips
    });
    trips.map_err(|e| CliError::new("bench rails: plain libfabric", e))
}

/// Round trips between two ends, in microseconds.
pub(super) fn rail_trips(ends: Ends, rounds: u32) -> Result<Vec<f64>, CliError> {
    let Ends {
        mut near,
        mut far,
        to_far,
        to_near,
    } = ends;
    let over = AtomicBool::new(false);
    let trips = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut answer = [0; MESSAGE];
            while !over.load(Ordering::Acquire) {
                let mut received = 0;
                far.poll(now_us(), &mut |arrival| {
                    received += 1;
                    let length = arrival.bytes.len().min(MESSAGE);
                    answer[..length].copy_from_slice(&arrival.bytes[..length]);
                });
                for _ in 0..received {
                    far.send(now_us(), to_near, Class::News, Route::Next, &answer);
                }
            }
        });
        let bytes = [7; MESSAGE];
        let near = std::cell::RefCell::new(&mut near);
        let trips = trips(
            rounds,
            || {
                near.borrow_mut()
                    .send(now_us(), to_far, Class::News, Route::Next, &bytes);
                Ok(())
            },
            || {
                let mut received = false;
                near.borrow_mut().poll(now_us(), &mut |_| received = true);
                Ok(received)
            },
        );
        over.store(true, Ordering::Release);
        trips
    });
    trips.map_err(|e| CliError::new("bench rails", e))
}

/// Measures `rounds` round trips. A lost message is sent again, and its trip is not counted.
fn trips(
    rounds: u32,
    mut send: impl FnMut() -> io::Result<()>,
    mut receive: impl FnMut() -> io::Result<bool>,
) -> io::Result<Vec<f64>> {
    let mut times = Vec::with_capacity(rounds as usize);
    let mut losses = 0;
    while times.len() < rounds as usize {
        let start = Instant::now();
        send()?;
        loop {
            if receive()? {
                times.push(start.elapsed().as_nanos() as f64 / 1000.0);
                break;
            }
            if start.elapsed() > LOST_AFTER {
                losses += 1;
                if losses > 3 {
                    return Err(io::Error::other(
                        "no answer was received; messages are lost",
                    ));
                }
                break;
            }
        }
    }
    Ok(times)
}
