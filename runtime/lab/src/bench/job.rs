//! A job under measurement: nodes that are names and addresses on loopback, ranks that are this program.
//!
//! The agents are started by their ranks, as in a real job, and end with them; a rank ends with the
//! bench, whatever ends that (see `launch`).

use super::launch;
use clap::Args;
use muster_client::{Client, Options};
use muster_shm::{EventKind, NO_RANK, RankState};
use muster_sys::poll;
use muster_terminal::CliError;
use muster_terminal::process::{monotonic_ns, wait_until};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

/// How long a rank may take to begin or to end.
pub(super) const READY_DEADLINE: Duration = Duration::from_secs(60);
/// A rank says what it was told when nothing more has come for so long: who reads it must not be in the
/// way of what is measured.
const QUIET: Duration = Duration::from_millis(100);

/// What all its processes have in common.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) name: &'static str,
    /// Second byte of the addresses.
    pub(super) net: u8,
    /// Of each node: one or two.
    pub(super) rails: usize,
    pub(super) profile: String,
    pub(super) directory: PathBuf,
}

impl Job {
    /// A rank on a node (from 1), not started yet: this program with these words behind `bench`.
    pub(super) fn command(&self, node: u32, rank: u32, words: &[&str]) -> Command {
        let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("muster"));
        let rails = |node| {
            let nids =
                (0..self.rails).map(|rail| format!("127.{}.{rail}.{node}@udp{rail}", self.net));
            nids.collect::<Vec<_>>().join(",")
        };
        let mut command = launch::command(false, false);
        command
            .arg("--")
            .arg(own)
            .arg("bench")
            .args(words)
            .env("MUSTER_DIR", &self.directory)
            .env("MUSTER_JOB", self.name)
            .env("MUSTER_RANK", rank.to_string())
            .env("MUSTER_NODE", format!("n{node}"))
            .env("MUSTER_RAILS", rails(node))
            .env("MUSTER_SEEDS", rails(1))
            .env("MUSTER_KEY_FILE", self.directory.join("key"))
            .env("MUSTER_PROFILE", &self.profile)
            .env("MUSTER_LINGER_MS", "100")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    /// How the bench itself attaches to a node's agent as this rank; it starts none.
    pub(super) fn options(&self, node: u32, rank: u32) -> Options {
        Options {
            job: Some(self.name.into()),
            node: Some(format!("n{node}")),
            directory: Some(self.directory.clone()),
            rank: Some(rank),
            start_agent: false,
            ..Options::default()
        }
    }

    /// Makes what its processes need.
    pub(super) fn prepare(&self) -> Result<(), CliError> {
        muster_config::standing_key(&self.directory.join("key"))
            .map(drop)
            .map_err(|e| CliError::new("bench", e))
    }

    /// The processes of its agents that live.
    pub(super) fn agents(&self) -> Vec<muster_terminal::process::Process> {
        let is_ours = |process: &muster_terminal::process::Process| {
            let directory = process.environment("MUSTER_DIR");
            directory.is_some_and(|it| Path::new(&it) == self.directory)
        };
        let mut agents = muster_terminal::process::named("musterd");
        agents.retain(is_ours);
        agents
    }

    /// Waits until none is left, after the last rank has gone.
    pub(super) fn await_end(&self) -> Result<(), CliError> {
        if wait_until(READY_DEADLINE, || self.agents().is_empty()) {
            return Ok(());
        }
        let why = "an agent did not end after its last rank";
        Err(CliError::timed_out("bench", why))
    }
}

/// Something that a rank said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It is attached and sees whom it was to see.
    Ready,
    /// It was told that a rank is there, at this time.
    Up(u32, u64),
    /// It was told that a rank has failed, at this time; its agent had known since the second.
    Down(u32, u64, u64),
    /// Its output has ended, at this time: so long its pipe held.
    Ended(u64),
}

/// A running rank; ended when dropped.
pub(super) struct RankProcess {
    pub(super) child: Child,
    input: Option<ChildStdin>,
}

impl RankProcess {
    /// Starts one; what it says goes to `heard`, with `index`.
    pub(super) fn start(
        job: &Job,
        (node, rank): (u32, u32),
        args: EventRankArgs,
        index: usize,
        heard: &Sender<(usize, Said)>,
    ) -> Result<Self, CliError> {
        let (size, ranks) = (args.resident_mb.to_string(), args.ranks.to_string());
        let words = ["event-rank", "--resident-mb", &size, "--ranks", &ranks];
        let mut child = job
            .command(node, rank, &words)
            .spawn()
            .map_err(|e| CliError::new("bench: cannot start a rank", e))?;
        if let Some(output) = child.stdout.take() {
            let heard = heard.clone();
            std::thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                for said in lines.filter_map(|line| parse(&line)) {
                    let _ = heard.send((index, said));
                }
                let _ = heard.send((index, Said::Ended(monotonic_ns())));
            });
        }
        let input = child.stdin.take();
        Ok(Self { child, input })
    }

    /// Lets it leave in order, and waits for that.
    pub(super) fn end(mut self) {
        drop(self.input.take());
        // Its end has a deadline; dropping kills it.
        wait_until(READY_DEADLINE, || {
            !matches!(self.child.try_wait(), Ok(None))
        });
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parse(line: &str) -> Option<Said> {
    let words: Vec<&str> = line.split(' ').collect();
    Some(match words[..] {
        ["READY"] => Said::Ready,
        ["UP", rank, at_ns] => Said::Up(rank.parse().ok()?, at_ns.parse().ok()?),
        ["DOWN", rank, at_ns, known_ns] => Said::Down(
            rank.parse().ok()?,
            at_ns.parse().ok()?,
            known_ns.parse().ok()?,
        ),
        _ => return None,
    })
}

/// Options of `muster bench event-rank`.
#[derive(Args, Clone, Copy)]
pub(crate) struct EventRankArgs {
    /// Memory that it has written to, in MiB.
    #[arg(long)]
    pub(super) resident_mb: usize,
    /// So many ranks, from 0, it has to see alive before it is ready.
    #[arg(long)]
    pub(super) ranks: u32,
}

/// The rank: attaches, and says when it was told of which rank. It leaves at the end of its input.
pub(super) fn event_rank(args: &EventRankArgs) -> Result<(), CliError> {
    // Written, so that it is resident.
    let memory = vec![1_u8; args.resident_mb << 20];
    let failed = |error| CliError::new("bench: cannot attach", error);
    let client = Client::attach(Options::default()).map_err(failed)?;
    let is_alive = |rank: u32| matches!(client.rank_state(rank), Ok(RankState::Alive));
    if !wait_until(READY_DEADLINE, || (0..args.ranks).all(is_alive)) {
        return Err(CliError::timed_out("bench", "not all ranks are alive"));
    }
    println!("READY");
    let watcher = client.clone();
    std::thread::spawn(move || say_events(&watcher));
    let _ = std::io::stdin().read_line(&mut String::new());
    std::hint::black_box(&memory);
    client
        .finalize(0)
        .map_err(|error| CliError::new("bench: cannot leave", error))
}

fn say_events(client: &Client) {
    let mut told = Vec::new();
    loop {
        match client.next_event() {
            Ok(Some(event)) if event.rank != NO_RANK => {
                let at_ns = monotonic_ns();
                match event.kind {
                    EventKind::RankUp => told.push(format!("UP {} {at_ns}", event.rank)),
                    EventKind::RankFailed => {
                        told.push(format!("DOWN {} {at_ns} {}", event.rank, event.at_ns));
                    }
                    _ => {}
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => {
                let Ok(descriptor) = client.descriptor() else {
                    return;
                };
                let patience = (!told.is_empty()).then_some(QUIET);
                let more = poll::readable(&[descriptor], patience);
                if more.is_ok_and(|ready| !ready[0]) {
                    told.drain(..).for_each(|line| println!("{line}"));
                }
            }
            Err(_) => return,
        }
    }
}

/// Waits until so many ranks are ready.
pub(super) fn await_ready(
    heard: &Receiver<(usize, Said)>,
    mut count: usize,
) -> Result<(), CliError> {
    while count > 0 {
        match heard.recv_timeout(READY_DEADLINE) {
            Ok((_, Said::Ready)) => count -= 1,
            Ok((_, Said::Ended(_))) => return Err(CliError::new("bench", "a rank ended")),
            Err(_) => return Err(CliError::timed_out("bench", "a rank is not ready")),
            Ok(_) => {}
        }
    }
    Ok(())
}
