//! Processes that attach, follow orders, and die.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use muster_client::{Client, Error, Options};
use muster_shm::RankState;

use super::{DEADLINE, agent, raw};

const BASE: &str = "MUSTER_TEST_BASE";
const RANK: &str = "MUSTER_TEST_RANK";
const THREAD: &str = "MUSTER_TEST_THREAD";
const WAIT: &str = "MUSTER_TEST_WAIT";
/// A rank that grows replies each time it has written so much memory, in MiB.
const GROWTH_MIB: usize = 64;

/// A process of this test binary that attaches as a rank.
pub struct Rank {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Rank {
    /// Starts one that attaches with a library thread.
    pub fn start(base: &Path, rank: u32) -> Self {
        Self::start_with(base, rank, "yes", base)
    }

    /// `thread`: "yes" for a library thread; "no" for none; "ends" for none, with an attaching thread that
    /// ends when ordered.
    pub fn start_with(base: &Path, rank: u32, thread: &str, folder: &Path) -> Self {
        let mut child = command(base, rank, thread)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The child's test harness also prints to stdout, possibly on the same line.
                if let Some((_, reply)) = line.split_once('@') {
                    let _ = sender.send(reply.to_owned());
                }
            }
        });
        let input = child.stdin.take();
        let rank = Self {
            child,
            input,
            lines,
        };
        rank.await_line("attached");
        rank
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn send(&mut self, order: &str) {
        writeln!(self.input.as_mut().unwrap(), "{order}").unwrap();
    }

    /// Waits for a line that starts with `beginning`. Returns the remainder of it.
    pub fn await_line(&self, beginning: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(DEADLINE);
            let line = line.unwrap_or_else(|_| panic!("waiting for {beginning:?}"));
            if let Some(rest) = line.strip_prefix(beginning) {
                return rest.trim().to_owned();
            }
            assert!(!line.starts_with("error"), "the rank reports: {line}");
        }
    }

    pub fn signal(&self, signal: i32) {
        muster_sys::process::send_signal(self.pid(), signal).unwrap();
    }

    pub fn wait(&mut self) {
        self.child.wait().unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(base: &Path, rank: u32, thread: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["role", "--exact", "--nocapture", "--test-threads=1"]);
    command
        .env(BASE, base)
        .env(RANK, rank.to_string())
        .env(THREAD, thread);
    command
}

/// Must be called by the test named `role` of each test binary. Does nothing in a test run.
pub fn role() {
    let Some(base) = std::env::var_os(BASE).map(PathBuf::from) else {
        return;
    };
    let rank: u32 = std::env::var(RANK).unwrap().parse().unwrap();
    let thread = std::env::var(THREAD).unwrap();
    if std::env::var_os(WAIT).is_some() {
        reply("executed");
        assert_eq!(order(), "attach");
    }
    let options = Options {
        rank: Some(rank),
        thread: thread == "yes",
        ..agent::options(&base)
    };
    let attach = move || Client::attach(options).unwrap_or_else(|cause| fail(&cause));
    if thread == "ends" {
        // Attaches, promises ticks if ordered, and ends; the process goes on.
        let owner = std::thread::spawn(move || {
            let client = attach();
            reply("attached");
            let mut line = order();
            if let Some(period_ms) = line.strip_prefix("promise ") {
                client.tick_every(period_ms.parse().unwrap()).unwrap();
                reply("promised");
                line = order();
            }
            assert_eq!(line, "end-thread");
        });
        owner.join().unwrap();
        reply("thread-ended");
        raw::pause_forever();
    }
    let client = attach();
    reply("attached");
    let mut ballast = Vec::new();
    loop {
        let order = order();
        let (verb, value) = order.split_once(' ').unwrap_or((&order, ""));
        match verb {
            "finalize" => {
                client
                    .finalize(value.parse().unwrap_or(0))
                    .unwrap_or_else(|cause| fail(&cause));
                reply("finalized");
            }
            "exit" => std::process::exit(value.parse().unwrap()),
            "grow" => {
                // The memory is written, so that it is resident. A slow machine takes longer than the deadline of a
                // line for all of it.
                for _ in 0..value.parse::<usize>().unwrap().div_ceil(GROWTH_MIB) {
                    ballast.push(vec![1u8; GROWTH_MIB << 20]);
                    reply("growing");
                }
                reply("grown");
            }
            // The new image attaches when ordered, so that the test can check the state between.
            "exec" => fail(&command(&base, rank, &thread).env(WAIT, "").exec()),
            "fork" => {
                let child = raw::fork(|| raw::pause_forever());
                reply(&format!("child {child}"));
            }
            "core" => {
                let lasts = raw::allow_core_dumps() && raw::make_dump_last();
                reply(if lasts { "core-lasts" } else { "core-short" });
                raw::segmentation_fault();
            }
            "promise" => {
                client
                    .tick_every(value.parse().unwrap())
                    .unwrap_or_else(|cause| fail(&cause));
                reply("promised");
            }
            // Ticks from now on, as long as the process runs.
            "tick-on" => {
                let client = client.clone();
                std::thread::spawn(move || {
                    while client.tick().is_ok() {
                        std::thread::park_timeout(std::time::Duration::from_millis(5));
                    }
                });
                reply("ticking");
            }
            "tick" => client.tick().unwrap_or_else(|cause| fail(&cause)),
            // Replies with the state of a rank, once it is one of those waited for.
            "await-rank" => {
                let rank = value.parse().unwrap();
                let states = [RankState::Failed, RankState::Left];
                let found = client.wait_rank(rank, &states, DEADLINE);
                reply(&format!(
                    "awaited {:?}",
                    found.unwrap_or_else(|cause| fail(&cause))
                ));
            }
            "slot" => {
                let (slot, generation) = client.slot();
                reply(&format!("slot {slot} {generation}"));
            }
            "await-reattached" => {
                while client.reattached() < value.parse().unwrap() {
                    std::thread::yield_now();
                }
                reply("reattached");
            }
            "stick" => {
                reply("sticking");
                raw::sleep_uninterruptibly(Path::new(value));
                reply("unstuck");
            }
            // A thread other than the attaching one moves to the next agent, and leaves.
            "leave-elsewhere" => {
                let elsewhere = client.clone();
                let other = std::thread::spawn(move || {
                    while elsewhere.reattached() == 0 {
                        let _ = elsewhere.dispatch();
                    }
                    elsewhere.finalize(0).unwrap_or_else(|cause| fail(&cause));
                });
                other.join().unwrap();
                drop(client);
                // It is linked in front of what this thread held in the first state table.
                assert_eq!(raw::RobustMutex::new().lock(), 0);
                reply("left-elsewhere");
                raw::pause_forever();
            }
            "fork-calls" => {
                let child = raw::fork(|| {
                    let all = matches!(client.node_state(0), Err(Error::Forked))
                        && matches!(client.next_event(), Err(Error::Forked))
                        && matches!(client.dispatch(), Err(Error::Forked))
                        && matches!(client.finalize(0), Err(Error::Forked));
                    i32::from(!all)
                });
                reply(&format!("forked {}", raw::reap(child)));
            }
            other => panic!("unknown order: {other}"),
        }
    }
}

fn order() -> String {
    let mut line = String::new();
    // The test has ended.
    if std::io::stdin().read_line(&mut line).unwrap() == 0 {
        std::process::exit(0);
    }
    line.trim().to_owned()
}

fn reply(line: &str) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "@{line}").unwrap();
    output.flush().unwrap();
}

fn fail(cause: &dyn std::fmt::Display) -> ! {
    reply(&format!("error: {cause}"));
    std::process::exit(2)
}
