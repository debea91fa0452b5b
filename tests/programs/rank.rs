//! A rank for the end-to-end tests: attaches with the Rust client, prints its events, and executes commands.
//!
//! It prints one line on standard output for each occurrence: `ANEW` if it has executed itself, `ATTACHED`
//! each time an agent accepts it, `REFUSED why` if none does, `EVENT kind node=.. rank=.. cause=..
//! reporters=..`, `LOST why`.
//!
//! Commands on standard input: `states`, `thread`, `dispatch`, `leave CODE`, `exit CODE`, `exec` (executes
//! itself again), `become PROGRAM`, `spawn RANK` (starts a rank of its own), `promise MS` (to tick at this
//! interval), `tick`, `scribble WHAT SEED` (overwrites all that it shares with the agent and can write:
//! `zeros`, `ones`, `bits`, `noise`), `publish KEY VALUE`, `fill KEY SIZE`, `withdraw KEY`, `get NODE KEY`,
//! `watch KEY`, `port` (of a socket for messages), `talk RANK PORT HOW` (exchanges messages that carry
//! piggybacks, `whole` or `rough`), `stats NAME`, `aborted RANK SIZE` (reports that a rank of a job of this
//! size has aborted), `zones` (each zone with its nodes and their states, and the zone of this rank).
//!
//! `MUSTER_TEST_JOB_SIZE` is the job size that it states. The end of standard input ends this process, so
//! that no test leaves a rank behind.

use muster_client::{AgentLink, Client, Error, Options, PIGGYBACK_MAX, PmixHooks};
use muster_shm::{Event, NO_NODE, NO_RANK, NodeState};
use muster_sys::poll;
use std::fs::File;
use std::io::{self, Write};
use std::net::UdpSocket;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Exit code if no agent accepted it.
const NOT_ATTACHED: i32 = 3;
/// Exit code if the test has ended.
const ABANDONED: i32 = 4;

/// Set if this image is not the first one of its process.
const ANEW: &str = "MUSTER_TEST_RANK_ANEW";

struct AttachPrinter;

impl PmixHooks for AttachPrinter {
    fn on_attached(&self, _link: &AgentLink) {
        print_line("ATTACHED");
    }
}

fn main() {
    if std::env::var_os(ANEW).is_some() {
        print_line("ANEW");
    }
    let job_size = std::env::var("MUSTER_TEST_JOB_SIZE").unwrap_or_default();
    let options = Options {
        pmix_integration: Some(Arc::new(AttachPrinter)),
        job_size: job_size.parse().unwrap_or(0),
        ..Options::default()
    };
    let client = match Client::attach(options) {
        Ok(client) => client,
        Err(error) => {
            print_line(&format!("REFUSED {error}"));
            std::process::exit(NOT_ATTACHED);
        }
    };
    let listener = client.clone();
    std::thread::spawn(move || print_events(&listener));
    for line in io::stdin().lines().map_while(Result::ok) {
        execute(&client, &line);
    }
    std::process::exit(ABANDONED);
}

fn execute(client: &Client, line: &str) {
    let (word, code) = line.split_once(' ').unwrap_or((line, "0"));
    let code = code.parse().unwrap_or(0);
    match word {
        "states" => print_line(&states(client).unwrap_or_else(|error| format!("STATES {error}"))),
        "zones" => print_line(&zones(client).unwrap_or_else(|error| format!("ZONES {error}"))),
        "thread" => {
            let ended = std::thread::spawn(|| {}).join().is_ok();
            print_line(&format!("THREAD {ended}"));
        }
        "dispatch" => {
            let dispatched = client.dispatch();
            print_line(&format!("DISPATCHED {}", dispatched.is_ok()));
        }
        "promise" => {
            let promised = client.tick_every(code as u32);
            print_line(&format!("PROMISED {}", promised.is_ok()));
        }
        "tick" => {
            let ticked = client.tick();
            print_line(&format!("TICKED {}", ticked.is_ok()));
        }
        "leave" => {
            let left = client.finalize(code);
            print_line(&format!("LEFT {}", left.is_ok()));
            std::process::exit(code);
        }
        "exit" => std::process::exit(code),
        "exec" => print_line(&format!("ERROR {}", own_program().env(ANEW, "1").exec())),
        "become" => print_line(&format!(
            "ERROR {}",
            Command::new(&line["become ".len()..]).exec()
        )),
        "spawn" => print_line(&spawn(line)),
        "aborted" => print_line(&aborted(client, line)),
        "scribble" => print_line(&match scribble(line) {
            Ok(bytes) => format!("SCRIBBLED {bytes}"),
            Err(error) => format!("ERROR {error}"),
        }),
        "port" | "talk" | "stats" => {
            print_line(&message(client, line).unwrap_or_else(|error| format!("ERROR {error}")));
        }
        _ => print_line(&attribute(client, line).unwrap_or_else(|error| format!("ERROR {error}"))),
    }
}

/// This program, to be started again.
fn own_program() -> Command {
    Command::new(std::env::current_exe().unwrap_or_default())
}

/// Starts a child that is also a rank, with the same standard output. It ends with this process.
fn spawn(line: &str) -> String {
    let rank = line.split(' ').nth(1).unwrap_or_default();
    let mut command = own_program();
    command.env("MUSTER_RANK", rank).stdin(Stdio::piped());
    match command.spawn() {
        Ok(child) => {
            let pid = child.id();
            // The child's input stays open while this process runs.
            std::mem::forget(child);
            format!("SPAWNED {pid}")
        }
        Err(error) => format!("ERROR {error}"),
    }
}

fn aborted(client: &Client, line: &str) -> String {
    let mut numbers = line
        .split(' ')
        .skip(1)
        .map(|word| word.parse().unwrap_or(0));
    let (rank, size) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let link = client.link();
    let is_sent = link.is_ok_and(|link| link.send_aborted(rank, 9, size));
    format!("REPORTED {is_sent}")
}

/// Overwrites every writable mapping of the state table, as a stray pointer would, in units of 32 bits.
/// Returns the number of bytes.
fn scribble(line: &str) -> io::Result<u64> {
    let words: Vec<&str> = line.split(' ').collect();
    let [_, what, seed] = words[..] else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut chance: u64 = seed.parse().map_err(io::Error::other)?;
    let mut word = || match what {
        "zeros" => 0,
        "ones" => 1u32,
        "bits" => u32::MAX,
        _ => {
            chance = chance
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (chance >> 32) as u32
        }
    };
    // Writes as this process itself would: a read-only mapping refuses it.
    let memory = File::options().write(true).open("/proc/self/mem")?;
    let (maps, mut scribbled) = (std::fs::read_to_string("/proc/self/maps")?, 0);
    for map in maps.lines().filter(|map| map.contains("memfd:muster")) {
        let (range, _) = map.split_once(' ').unwrap_or_default();
        let (start, end) = range.split_once('-').unwrap_or_default();
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16));
        let (start, end) = (
            start.map_err(io::Error::other)?,
            end.map_err(io::Error::other)?,
        );
        let mut at = start;
        while at < end {
            let page: Vec<u8> = (0..1024).flat_map(|_| word().to_ne_bytes()).collect();
            match memory.write_at(&page, at) {
                Ok(_) => scribbled += 4096,
                Err(_) => break,
            }
            at += 4096;
        }
    }
    Ok(scribbled)
}

/// The commands about messages between ranks.
fn message(client: &Client, line: &str) -> Result<String, Error> {
    static SOCKET: OnceLock<UdpSocket> = OnceLock::new();
    let socket = SOCKET.get_or_init(|| UdpSocket::bind("127.0.0.1:0").expect("a free port"));
    let words: Vec<&str> = line.split(' ').collect();
    Ok(match words[..] {
        ["talk", rank, port, how] => {
            let (rank, port) = (rank.parse().unwrap_or(0), port.parse().unwrap_or(0));
            let (client, is_rough) = (client.clone(), how == "rough");
            std::thread::spawn(move || talk(&client, socket, (rank, port), is_rough));
            "TALKING".to_owned()
        }
        ["stats", name] => {
            let stats = client.control("stats")?;
            let key = format!("\"{name}\"");
            let behind = stats.split_once(&key).map_or("", |(_, behind)| behind);
            let digits = behind.trim_start_matches(|c: char| !c.is_ascii_digit());
            let end = digits.find(|c: char| !c.is_ascii_digit());
            format!("STATS {name} {}", &digits[..end.unwrap_or(digits.len())])
        }
        _ => format!("PORT {}", socket.local_addr().map_or(0, |own| own.port())),
    })
}

/// Sends a message every millisecond, with the agent's piggyback. Received ones are delivered; with `rough`
/// also in part, damaged and repeated.
fn talk(client: &Client, socket: &UdpSocket, (rank, port): (u32, u16), is_rough: bool) {
    let _ = socket.set_read_timeout(Some(Duration::from_millis(1)));
    let (mut bytes, mut kept, mut turn) = ([0; PIGGYBACK_MAX], Vec::new(), 0usize);
    loop {
        if let Ok(Some(size @ 1..)) = client.piggyback_fill(rank, &mut bytes) {
            // If the receiver has ended, the message is lost.
            let _ = socket.send_to(&bytes[..size], ("127.0.0.1", port));
        }
        let mut came = [0; PIGGYBACK_MAX];
        let Ok(size) = socket.recv(&mut came) else {
            continue;
        };
        turn += 1;
        let mut came = came[..size].to_vec();
        if is_rough {
            match turn % 5 {
                0 => came[turn % size] ^= 1,
                1 => kept.clone_from(&came),
                2 => came.clone_from(&kept),
                3 => came.fill(turn as u8),
                _ => {}
            }
        }
        let cut = if is_rough && turn % 7 == 0 {
            came.len() / 2
        } else {
            came.len()
        };
        let _ = client.piggyback_deliver(rank, &came[..cut]);
    }
}

/// The commands about attributes.
fn attribute(client: &Client, line: &str) -> Result<String, Error> {
    let words: Vec<&str> = line.split(' ').collect();
    Ok(match words[..] {
        ["publish", key, value] => {
            client.publish(key.as_bytes(), value.as_bytes())?;
            format!("PUBLISHED {key}")
        }
        ["fill", key, size] => {
            let size: usize = size.parse().unwrap_or(0);
            client.publish(key.as_bytes(), &vec![b'x'; size])?;
            format!("PUBLISHED {key}")
        }
        ["withdraw", key] => format!("WITHDRAWN {key} {}", client.withdraw(key.as_bytes())?),
        ["watch", key] => {
            client.watch(key.as_bytes())?;
            format!("WATCHING {key}")
        }
        ["get", node, key] => {
            let mut nodes = 0..client.node_count()?;
            let index = nodes
                .find(|index| matches!(client.node_name(*index), Ok(Some(name)) if name == node));
            let value = client.attribute_get(index.unwrap_or(NO_NODE), key.as_bytes())?;
            let text = match value {
                Some(value) if value.len() > 100 => format!("{} bytes", value.len()),
                Some(value) => String::from_utf8_lossy(&value).into_owned(),
                None => "none".to_owned(),
            };
            format!("VALUE {node} {key} {text}")
        }
        _ => format!("UNKNOWN {line}"),
    })
}

fn print_events(client: &Client) {
    loop {
        match client.next_event() {
            Ok(Some(event)) => print_line(&describe(client, &event)),
            Ok(None) => wait(client),
            Err(Error::Finalized) => return,
            Err(error) => {
                print_line(&format!("LOST {error}"));
                wait(client);
            }
        }
    }
}

fn wait(client: &Client) {
    if let Ok(descriptor) = client.descriptor() {
        let _ = poll::readable(&[descriptor], None);
    }
}

fn describe(client: &Client, event: &Event) -> String {
    let name = |node: u32| match client.node_name(node) {
        Ok(Some(name)) if node != NO_NODE => name,
        _ => "-".to_owned(),
    };
    let rank = match event.rank {
        NO_RANK => "-".to_owned(),
        rank => rank.to_string(),
    };
    let reporters: Vec<_> = event
        .reporters
        .iter()
        .take(event.reporter_count as usize)
        .map(|node| name(*node))
        .collect();
    format!(
        "EVENT {:?} node={} rank={rank} cause={:?} code={} reporters={}",
        event.kind,
        name(event.node),
        event.cause,
        event.code,
        reporters.join(",")
    )
}

/// All nodes by name, then all ranks by number, each with its state.
fn states(client: &Client) -> Result<String, Error> {
    let mut nodes = Vec::new();
    for node in 0..client.node_count()? {
        let name = client.node_name(node)?.unwrap_or_default();
        nodes.push(format!("{name}={:?}", client.node_state(node)?));
    }
    nodes.sort();
    for rank in 0..client.rank_count()? {
        nodes.push(format!("{rank}={:?}", client.rank_state(rank)?));
    }
    Ok(format!("STATES {}", nodes.join(" ")))
}

/// All zones: name, nodes by name, number of nodes in each state.
fn zones(client: &Client) -> Result<String, Error> {
    const STATES: [NodeState; 6] = [
        NodeState::Alive,
        NodeState::Degraded,
        NodeState::Suspect,
        NodeState::Failed,
        NodeState::Left,
        NodeState::Unknown,
    ];
    let own = client.rank_zone(client.my_rank()?.unwrap_or(NO_RANK))?;
    let mut line = format!("ZONES own={own:?}");
    for zone in 0..client.zone_count()? {
        let mut names = Vec::new();
        for node in client.zone_nodes(zone)? {
            assert_eq!(client.node_zone(node)?, Some(zone));
            names.push(client.node_name(node)?.unwrap_or_default());
        }
        let name = client.zone_name(zone)?.unwrap_or_default();
        let mut counts = Vec::new();
        for state in STATES {
            counts.push(client.zone_nodes_in_state(zone, state)?.to_string());
        }
        line += &format!(" {name}={}:{}", names.join(","), counts.join(","));
    }
    Ok(line)
}

/// Prints a whole line at once, from any thread.
fn print_line(line: &str) {
    let mut output = io::stdout().lock();
    // If the test has ended it reads no more; the end of the input then ends this process.
    let _ = writeln!(output, "{}", line.replace('\n', " "));
    let _ = output.flush();
}
