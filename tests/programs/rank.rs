//! A rank for the end-to-end tests: attaches with the Rust client, prints what it is told, and
//! does as it is bid.
//!
//! One line on standard output for each thing that happens: `ANEW` if it has executed itself, `ATTACHED` at every
//! time an agent lets it in, `REFUSED why` if none does, `EVENT kind node=.. rank=.. cause=.. reporters=..`,
//! `LOST why`. Commands come on standard input: `states`, `thread`, `dispatch`, `leave CODE`,
//! `exit CODE`, `exec` (it becomes itself anew), `become PROGRAM`, `spawn RANK` (it starts a rank of its own),
//! `promise MS` (to tick so often), `tick`,
//! `scribble WHAT SEED` (over all that it shares with the agent and can write: `zeros`, `ones`, `bits`, `noise`),
//! `publish KEY VALUE`, `fill KEY SIZE`, `withdraw KEY`,
//! `get NODE KEY`, `watch KEY`, `port` (of a socket for messages), `talk RANK PORT HOW` (messages to and fro
//! that carry what agents say, `whole` or `rough`), `stats NAME`, `aborted RANK SIZE` (it says of a rank of a job of
//! so many that it ended badly). `MUSTER_TEST_JOB_SIZE` is how many ranks it says that the job has;
//! its end is the end of this process, so that no test leaves a rank behind.

use muster_client::{AgentLink, Client, Error, Options, PIGGYBACK_MAX, PmixHooks};
use muster_shm::{Event, NO_NODE, NO_RANK};
use muster_sys::poll;
use std::fs::File;
use std::io::{self, Write};
use std::net::UdpSocket;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Exit code when no agent let us in.
const NOT_ATTACHED: i32 = 3;
/// Exit code when the test has gone.
const ABANDONED: i32 = 4;

/// Set where this image is not the first of its process.
const ANEW: &str = "MUSTER_TEST_RANK_ANEW";

struct Bell;

impl PmixHooks for Bell {
    fn on_attached(&self, _link: &AgentLink) {
        say("ATTACHED");
    }
}

fn main() {
    if std::env::var_os(ANEW).is_some() {
        say("ANEW");
    }
    let job_size = std::env::var("MUSTER_TEST_JOB_SIZE").unwrap_or_default();
    let options = Options {
        pmix_integration: Some(Arc::new(Bell)),
        job_size: job_size.parse().unwrap_or(0),
        ..Options::default()
    };
    let client = match Client::attach(options) {
        Ok(client) => client,
        Err(error) => {
            say(&format!("REFUSED {error}"));
            std::process::exit(NOT_ATTACHED);
        }
    };
    let listener = client.clone();
    std::thread::spawn(move || print_events(&listener));
    for line in io::stdin().lines().map_while(Result::ok) {
        obey(&client, &line);
    }
    std::process::exit(ABANDONED);
}

fn obey(client: &Client, line: &str) {
    let (word, code) = line.split_once(' ').unwrap_or((line, "0"));
    let code = code.parse().unwrap_or(0);
    match word {
        "states" => say(&states(client).unwrap_or_else(|error| format!("STATES {error}"))),
        "thread" => {
            let ended = std::thread::spawn(|| {}).join().is_ok();
            say(&format!("THREAD {ended}"));
        }
        "dispatch" => {
            let dispatched = client.dispatch();
            say(&format!("DISPATCHED {}", dispatched.is_ok()));
        }
        "promise" => {
            let promised = client.tick_every(code as u32);
            say(&format!("PROMISED {}", promised.is_ok()));
        }
        "tick" => {
            let ticked = client.tick();
            say(&format!("TICKED {}", ticked.is_ok()));
        }
        "leave" => {
            let left = client.finalize(code);
            say(&format!("LEFT {}", left.is_ok()));
            std::process::exit(code);
        }
        "exit" => std::process::exit(code),
        "exec" => say(&format!("ERROR {}", own_program().env(ANEW, "1").exec())),
        "become" => say(&format!(
            "ERROR {}",
            Command::new(&line["become ".len()..]).exec()
        )),
        "spawn" => say(&spawn(line)),
        "aborted" => say(&aborted(client, line)),
        "scribble" => say(&match scribble(line) {
            Ok(bytes) => format!("SCRIBBLED {bytes}"),
            Err(error) => format!("ERROR {error}"),
        }),
        "port" | "talk" | "stats" => {
            say(&message(client, line).unwrap_or_else(|error| format!("ERROR {error}")));
        }
        _ => say(&attribute(client, line).unwrap_or_else(|error| format!("ERROR {error}"))),
    }
}

/// This program, to be started once more.
fn own_program() -> Command {
    Command::new(std::env::current_exe().unwrap_or_default())
}

/// Starts a child that is a rank, too; what it says is said on our output. It ends with us.
fn spawn(line: &str) -> String {
    let rank = line.split(' ').nth(1).unwrap_or_default();
    let mut command = own_program();
    command.env("MUSTER_RANK", rank).stdin(Stdio::piped());
    match command.spawn() {
        Ok(child) => {
            let pid = child.id();
            // Its input stays open while we live.
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
    let said = link.is_ok_and(|link| link.send_aborted(rank, 9, size));
    format!("SAID {said}")
}

/// Writes over every part of the board that is mapped here and can be written, as a stray pointer would, in its words
/// of 32 bits. Says how many bytes there were.
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
    // Writes as this process itself would: what is mapped for reading only is refused.
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

/// What has to do with messages between ranks.
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

/// A message every millisecond, with what the agent wants to be carried; what comes is delivered, in a rough
/// world also in part, damaged and again.
fn talk(client: &Client, socket: &UdpSocket, (rank, port): (u32, u16), is_rough: bool) {
    let _ = socket.set_read_timeout(Some(Duration::from_millis(1)));
    let (mut bytes, mut kept, mut turn) = ([0; PIGGYBACK_MAX], Vec::new(), 0usize);
    loop {
        if let Ok(Some(size @ 1..)) = client.piggyback_fill(rank, &mut bytes) {
            // To one who has gone: it is lost.
            let _ = socket.send_to(&bytes[..size], ("127.0.0.1", port));
        }
        let mut came = [0; PIGGYBACK_MAX];
        let Ok(size) = socket.recv(&mut came) else {
            continue;
        };
        turn += 1;
        let came = &mut came[..size];
        if is_rough {
            match turn % 5 {
                0 => came[turn % size] ^= 1,
                1 => kept = came.to_vec(),
                2 => came.copy_from_slice(&kept),
                3 => came.fill(turn as u8),
                _ => {}
            }
        }
        let cut = if is_rough && turn % 7 == 0 {
            size / 2
        } else {
            size
        };
        let _ = client.piggyback_deliver(rank, &came[..cut]);
    }
}

/// What has to do with attributes.
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
            Ok(Some(event)) => say(&describe(client, &event)),
            Ok(None) => wait(client),
            Err(Error::Finalized) => return,
            Err(error) => {
                say(&format!("LOST {error}"));
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

/// One whole line at once, whichever thread says it.
fn say(line: &str) {
    let mut output = io::stdout().lock();
    // A test that has gone reads no more; its end of our input tells us so.
    let _ = writeln!(output, "{}", line.replace('\n', " "));
    let _ = output.flush();
}
