//! What the peers share: the options and the lines of `musterd --print-events plain`.

use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;

/// The port that the members listen at.
pub const PORT: u16 = 7741;

/// Who this member is, and whom it knows.
pub struct Options {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Where it joins.
    pub seed: SocketAddr,
}

/// Reads `--name NAME --rail ADDR@NET --seed ADDR@NET`; other options are accepted and ignored.
///
/// # Panics
/// If one of the three is missing or is no address: this is a program for a benchmark.
pub fn options() -> Options {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |option: &str| {
        let at = arguments.iter().position(|argument| argument == option);
        let value = at.and_then(|at| arguments.get(at + 1));
        value.unwrap_or_else(|| panic!("{option} is missing")).clone()
    };
    let address = |text: String| {
        let host = text.split('@').next().unwrap_or_default();
        let ip = host.parse().unwrap_or_else(|_| panic!("{text} is no IP address"));
        SocketAddr::new(ip, PORT)
    };
    Options {
        name: value("--name"),
        address: address(value("--rail")),
        seed: address(value("--seed")),
    }
}

/// How many members the driver's group has.
pub fn members() -> u32 {
    let given = std::env::var("MUSTER_BENCH_MEMBERS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(32)
}

/// The lives of the members that were told. An end of a life that is not the present one is no news of
/// the member: it is there, in another life.
#[derive(Default)]
pub struct Lives(BTreeMap<String, u64>);

impl Lives {
    /// A member came, in this life.
    pub fn up(&mut self, name: &str, life: u64) {
        let held = self.0.entry(name.to_owned()).or_insert(life);
        if *held <= life {
            *held = life;
            say("UP", name);
        }
    }

    /// This life of a member is over.
    pub fn down(&mut self, name: &str, life: u64) {
        if self.0.get(name).is_none_or(|held| *held <= life) {
            say("DOWN", name);
        }
    }
}

/// Prints a change of view, with CLOCK_MONOTONIC in nanoseconds.
pub fn say(word: &str, name: &str) {
    let now = clock_gettime(ClockId::Monotonic);
    let ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let mut output = std::io::stdout().lock();
    // Nobody reads any more: the driver has gone, and so should we.
    if writeln!(output, "{word} {name} {ns}").and_then(|()| output.flush()).is_err() {
        std::process::exit(0);
    }
}
