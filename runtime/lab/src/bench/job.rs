//! `Job` is a job under measurement. Its nodes are names and addresses on loopback, its ranks run this program.
//!
//! Ranks start the agents, as in a real job, and the agents end with them. A rank ends with the bench, however the
//! bench ends (see `launch`).

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

/// Time in which a rank must start or end.
pub(super) const READY_DEADLINE: Duration = Duration::from_secs(60);
/// A rank prints its events after this time without a new one, so that the reader of its output does not disturb the
/// measurement.
const QUIET: Duration = Duration::from_millis(100);

/// The settings that all processes of the job share.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) name: &'static str,
    /// Second byte of the loopback addresses.
    pub(super) net: u8,
    /// Number of rails of each node: one or two.
    pub(super) rails: usize,
    pub(super) profile: String,
    pub(super) directory: PathBuf,
}

impl Job {
    /// The command of a rank on a node (from 1): this program with `bench` and these arguments.
    pub(super) fn command(&self, node: u32, rank: u32, arguments: &[&str]) -> Command {
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
            .args(arguments)
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

    /// Options with which the bench itself attaches to a node's agent as this rank, without starting an agent.
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

    /// Creates the key of the job.
    pub(super) fn prepare(&self) -> Result<(), CliError> {
        muster_config::standing_key(&self.directory.join("key"))
            .map(drop)
            .map_err(|e| CliError::new("bench", e))
    }

    /// The running processes of the job's agents.
    pub(super) fn agents(&self) -> Vec<muster_terminal::process::Process> {
        let is_ours = |process: &muster_terminal::process::Process| {
            let directory = process.environment("MUSTER_DIR");
            directory.is_some_and(|it| Path::new(&it) == self.directory)
        };
        let mut agents = muster_terminal::process::named("musterd");
        agents.retain(is_ours);
        agents
    }

    /// Waits until no agent is left, after the last rank has ended.
    pub(super) fn await_end(&self) -> Result<(), CliError> {
        if wait_until(READY_DEADLINE, || self.agents().is_empty()) {
            return Ok(());
        }
        let why = "an agent did not end after its last rank";
        Err(CliError::timed_out("bench", why))
    }
}

/// A report of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RankReport {
    /// The rank is attached and sees the required ranks.
    Ready,
    /// The rank was notified at this time that another rank is up.
    Up(u32, u64),
    /// The rank was notified at the first time that another rank has failed; its agent knew at the second time.
    Down(u32, u64, u64),
    /// The rank's output ended at this time.
    Ended(u64),
}

/// A running rank, which ends when this is dropped.
pub(super) struct RankProcess {
    pub(super) child: Child,
    input: Option<ChildStdin>,
}

impl RankProcess {
    /// Starts a rank. Its reports are sent to `reports`, with `index`.
    pub(super) fn start(
        job: &Job,
        (node, rank): (u32, u32),
        args: EventRankArgs,
        index: usize,
        reports: &Sender<(usize, RankReport)>,
    ) -> Result<Self, CliError> {
        let (size, ranks) = (args.resident_mb.to_string(), args.ranks.to_string());
        let arguments = ["event-rank", "--resident-mb", &size, "--ranks", &ranks];
        let mut child = job
            .command(node, rank, &arguments)
            .spawn()
            .map_err(|e| CliError::new("bench: cannot start a rank", e))?;
        if let Some(output) = child.stdout.take() {
            let reports = reports.clone();
            std::thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                for report in lines.filter_map(|line| parse(&line)) {
                    let _ = reports.send((index, report));
                }
                let _ = reports.send((index, RankReport::Ended(monotonic_ns())));
            });
        }
        let input = child.stdin.take();
        Ok(Self { child, input })
    }

    /// Lets the rank leave in order, and waits for its end.
    pub(super) fn end(mut self) {
        drop(self.input.take());
        // The rank ends within a time limit; dropping kills it.
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

fn parse(line: &str) -> Option<RankReport> {
    let fields: Vec<&str> = line.split(' ').collect();
    Some(match fields[..] {
        ["READY"] => RankReport::Ready,
        ["UP", rank, at_ns] => RankReport::Up(rank.parse().ok()?, at_ns.parse().ok()?),
        ["DOWN", rank, at_ns, known_ns] => RankReport::Down(
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
    /// Resident memory of the rank, in MiB.
    #[arg(long)]
    pub(super) resident_mb: usize,
    /// The rank is ready when it sees this many ranks, from 0, alive.
    #[arg(long)]
    pub(super) ranks: u32,
}

/// The rank: attaches, and prints when it was notified of which rank. It leaves at the end of its input.
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
    std::thread::spawn(move || print_events(&watcher));
    let _ = std::io::stdin().read_line(&mut String::new());
    std::hint::black_box(&memory);
    client
        .finalize(0)
        .map_err(|error| CliError::new("bench: cannot leave", error))
}

fn print_events(client: &Client) {
    let mut lines = Vec::new();
    loop {
        match client.next_event() {
            Ok(Some(event)) if event.rank != NO_RANK => {
                let at_ns = monotonic_ns();
                match event.kind {
                    EventKind::RankUp => lines.push(format!("UP {} {at_ns}", event.rank)),
                    EventKind::RankFailed => {
                        lines.push(format!("DOWN {} {at_ns} {}", event.rank, event.at_ns));
                    }
                    _ => {}
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => {
                let Ok(descriptor) = client.descriptor() else {
                    return;
                };
                let timeout = (!lines.is_empty()).then_some(QUIET);
                let more = poll::readable(&[descriptor], timeout);
                if more.is_ok_and(|ready| !ready[0]) {
                    lines.drain(..).for_each(|line| println!("{line}"));
                }
            }
            Err(_) => return,
        }
    }
}

/// Waits until this many ranks are ready.
pub(super) fn await_ready(
    reports: &Receiver<(usize, RankReport)>,
    mut count: usize,
) -> Result<(), CliError> {
    while count > 0 {
        match reports.recv_timeout(READY_DEADLINE) {
            Ok((_, RankReport::Ready)) => count -= 1,
            Ok((_, RankReport::Ended(_))) => return Err(CliError::new("bench", "a rank ended")),
            Err(_) => return Err(CliError::timed_out("bench", "a rank is not ready")),
            Ok(_) => {}
        }
    }
    Ok(())
}
