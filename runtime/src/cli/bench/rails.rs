//! `muster bench rails`: what the fabric adds to the network below it.
//!
//! Latency: two ends of one process, a thread each, pass a datagram to and fro, all of them looking
//! without sleeping: over plain UDP sockets, over plain libfabric (its own `fi_pingpong`, where that is
//! installed), and over our rails, taken in turns so that the machine's moods meet all alike.
//! Throughput: a stream over one rail and over two, where each rail takes so many bytes a second and no
//! more (a token bucket in the fault wrapper).

use super::figures::quantile;
use super::machine;
use crate::cli::CliError;
use crate::cli::show::Format;
use crate::sys::clock::monotonic_ns;
use clap::Args;
use muster_fabric::{
    Class, Fabric, FabricConfig, FaultPlan, Faulty, Nid, PeerHandle, Route, Transport,
};
use serde_json::{Value, json};
use std::io;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a message: a heartbeat with some news.
const MESSAGE: usize = 128;
/// Bytes of a message of the stream.
const STREAMED: usize = 1024;
/// No answer takes this long.
const LOST_AFTER: Duration = Duration::from_secs(2);
/// Turns that the systems take.
const TURNS: usize = 5;

/// Options of `muster bench rails`.
#[derive(Args)]
pub(crate) struct RailsArgs {
    /// Round trips of each system in each of five turns.
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    rounds: u32,
    /// What each rail takes in the stream, in MB/s.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    rail_mb: u64,
    /// How to print it.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// Runs the measurement.
pub(super) fn run(args: &RailsArgs) -> Result<(), CliError> {
    let machine = machine::describe();
    let (mut udp, mut one, mut two, mut plain) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        udp.extend(udp_trips(args.rounds).map_err(|e| CliError::new("bench rails: UDP", e))?);
        one.extend(rail_trips(1, args.rounds)?);
        two.extend(rail_trips(2, args.rounds)?);
        plain.extend(plain_trip(args.rounds));
    }
    let streams = [stream(1, args.rail_mb)?, stream(2, args.rail_mb)?];
    let half = |trips: &[f64], share| quantile(trips, share) / 2.0;
    let latency = |trips: &[f64]| json!({ "p50": half(trips, 0.5), "p99": half(trips, 0.99) });
    let result = json!({
        "schema": "muster/bench-rails/v1",
        "machine": machine,
        "one_way_us": {
            "udp sockets": latency(&udp),
            "libfabric": (!plain.is_empty()).then(|| json!({ "mean": quantile(&plain, 0.5) })),
            "one rail": latency(&one),
            "two rails": latency(&two),
        },
        "limit_mb_per_s": args.rail_mb,
        "stream_mb_per_s": { "one rail": streams[0], "two rails": streams[1] },
        "ratios": {
            "one rail to udp sockets, p50": half(&one, 0.5) / half(&udp, 0.5),
            "one rail to libfabric": (!plain.is_empty())
                .then(|| half(&one, 0.5) / quantile(&plain, 0.5)),
            "two rails to one, stream": streams[1] / streams[0],
        },
    });
    match args.output {
        Format::Json => println!("{result:#}"),
        Format::Table => print!("{}", table(&result)),
    }
    Ok(())
}

fn table(result: &Value) -> String {
    let number = |value: &Value| value.as_f64().map_or("-".into(), |v| format!("{v:.2}"));
    let mut lines = vec![
        format!("rails: {}", machine::text(&result["machine"])),
        String::new(),
    ];
    lines.push(format!(
        "{:<34}{:>10}{:>10}",
        "one way, microseconds, 128 bytes", "p50", "p99"
    ));
    for name in ["udp sockets", "libfabric", "one rail", "two rails"] {
        let row = &result["one_way_us"][name];
        let (p50, p99) = match name {
            "libfabric" => (format!("{} (mean)", number(&row["mean"])), "-".into()),
            _ => (number(&row["p50"]), number(&row["p99"])),
        };
        lines.push(format!("{name:<34}{p50:>10}{p99:>10}"));
    }
    let limit = &result["limit_mb_per_s"];
    lines.push(format!("\nstream, MB/s, each rail takes {limit}"));
    for name in ["one rail", "two rails"] {
        lines.push(format!(
            "{name:<34}{:>10}",
            number(&result["stream_mb_per_s"][name])
        ));
    }
    lines.push("\nratios".into());
    for (name, ratio) in result["ratios"].as_object().into_iter().flatten() {
        lines.push(format!("{name:<34}{:>10}", number(ratio)));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Round trips in microseconds.
fn udp_trips(rounds: u32) -> io::Result<Vec<f64>> {
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

/// Times `rounds` of them. A message that got lost is sent again and its trip not counted.
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
                    return Err(io::Error::other("no answer comes"));
                }
                break;
            }
        }
    }
    Ok(times)
}

/// What `fi_pingpong` of libfabric measures over its udp provider, one way, if it is there.
fn plain_trip(rounds: u32) -> Option<f64> {
    let command = || {
        let mut command = Command::new("fi_pingpong");
        command
            .args([
                "-p",
                "udp",
                "-e",
                "dgram",
                "-S",
                "128",
                "-I",
                &rounds.to_string(),
            ])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    let mut server = command().stdout(Stdio::null()).spawn().ok()?;
    // It says nothing when it listens: asked until it answers.
    let until = Instant::now() + LOST_AFTER;
    let answer = loop {
        let asked = command().arg("127.0.0.1").output();
        match asked {
            Ok(output) if output.status.success() => break Some(output.stdout),
            _ if Instant::now() > until => break None,
            _ => {}
        }
    };
    let _ = server.kill();
    let _ = server.wait();
    let text = String::from_utf8(answer?).ok()?;
    // bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec
    text.lines().nth(1)?.split_whitespace().nth(6)?.parse().ok()
}

fn now_us() -> u64 {
    monotonic_ns() / 1000
}

/// Two fabrics that know each other.
struct Ends {
    near: Fabric,
    far: Fabric,
    to_far: PeerHandle,
    to_near: PeerHandle,
}

fn open(rails: usize) -> Result<Ends, CliError> {
    let library = muster_fabric::load().map_err(|e| CliError::new("bench rails", e))?;
    let fabric = |end: u8| {
        let nids: Vec<Nid> = (0..rails)
            .filter_map(|rail| {
                format!("127.92.{end}.{}:0@udp{rail}", rail + 1)
                    .parse()
                    .ok()
            })
            .collect();
        Fabric::open(&FabricConfig::new(library, nids))
            .map_err(|e| CliError::new("bench rails: opening rails on loopback", e))
    };
    let (mut near, mut far) = (fabric(1)?, fabric(2)?);
    let known = |e| CliError::new("bench rails", e);
    let to_far = near.peer(&far.local_nids()).map_err(known)?;
    let to_near = far.peer(&near.local_nids()).map_err(known)?;
    Ok(Ends {
        near,
        far,
        to_far,
        to_near,
    })
}

fn rail_trips(rails: usize, rounds: u32) -> Result<Vec<f64>, CliError> {
    let Ends {
        mut near,
        mut far,
        to_far,
        to_near,
    } = open(rails)?;
    let over = AtomicBool::new(false);
    let trips = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut answer = [0; MESSAGE];
            while !over.load(Ordering::Acquire) {
                let mut come = 0;
                far.poll(now_us(), &mut |arrival| {
                    come += 1;
                    let length = arrival.bytes.len().min(MESSAGE);
                    answer[..length].copy_from_slice(&arrival.bytes[..length]);
                });
                for _ in 0..come {
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
                let mut come = false;
                near.borrow_mut().poll(now_us(), &mut |_| come = true);
                Ok(come)
            },
        );
        over.store(true, Ordering::Release);
        trips
    });
    trips.map_err(|e| CliError::new("bench rails", e))
}

/// What arrives of a stream, in MB/s.
fn stream(rails: usize, rail_mb: u64) -> Result<f64, CliError> {
    let Ends {
        near,
        mut far,
        to_far,
        ..
    } = open(rails)?;
    let plan = FaultPlan {
        rail_bytes_per_s: rail_mb * 1_000_000,
        ..FaultPlan::default()
    };
    let mut near = Faulty::new(near, plan);
    let over = AtomicBool::new(false);
    let bytes = [7; STREAMED];
    Ok(std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut come = 0;
            while !over.load(Ordering::Acquire) {
                far.poll(now_us(), &mut |arrival| come += arrival.bytes.len());
            }
            come
        });
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            near.send(now_us(), to_far, Class::News, Route::Next, &bytes);
            near.poll(now_us(), &mut |_| {});
        }
        let seconds = start.elapsed().as_secs_f64();
        over.store(true, Ordering::Release);
        let come = receiver.join().unwrap_or(0);
        come as f64 / 1_000_000.0 / seconds
    }))
}
