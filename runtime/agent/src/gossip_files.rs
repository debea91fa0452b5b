//! AG-17: the state of age gossip as files, for `cat`, `cp` and `tar`.
//!
//! `parameters`, `clock`, `ages` and `members` hold the current state, `history` earlier clocks and ages. Each file
//! is replaced as a whole, so a reader always sees one snapshot. Each file begins with the clock of its snapshot. The
//! loop queues a snapshot and a separate thread writes it. A snapshot that the thread cannot take at once is dropped:
//! the next one supersedes it.

use crate::difference::words;
use muster_protocol::{Age, MemberId};
use muster_sys::clock::monotonic_ns;
use muster_sys::priority_queue::{Receiver, Sender, queue};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::TrySendError;
use tracing::{info, warn};

/// Minimum time between two snapshots.
const PAUSE_US: u64 = 200_000;
/// Maximum number of snapshots in the history.
const SNAPSHOTS_MAX: usize = 64;
/// Maximum size of the history in bytes, unless a single snapshot is larger.
const HISTORY_BYTES_MAX: usize = 1 << 20;

/// The loop's end of the queue to the writer.
pub(super) struct GossipFiles {
    queue: Sender<Snapshot>,
    due_us: u64,
    last: Option<Key>,
}

/// Identifies a snapshot. A new one is written only if this has changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    cycles: u64,
    clock: u64,
    is_gossiping: bool,
    digest: [u8; 20],
}

/// The content of the files at one time.
struct Snapshot {
    parameters: String,
    clock: String,
    ages: String,
    members: String,
    history: String,
}

impl GossipFiles {
    /// Starts the writer for this directory. If no thread can be started, there are no files; the agent runs without
    /// them.
    pub(super) fn start(directory: &Path) -> Option<Self> {
        // Only the newest snapshot counts, so the queue has room for one.
        let directory = directory.to_owned();
        let started = queue(1).and_then(|(sender, snapshots)| {
            std::thread::Builder::new()
                .name("muster-gossip".into())
                .stack_size(256 << 10)
                .spawn(move || write_all(&directory, snapshots))?;
            Ok(sender)
        });
        match started {
            Ok(queue) => Some(Self {
                queue,
                due_us: 0,
                last: None,
            }),
            Err(cause) => {
                warn!(%cause, "no thread can be started for the state files of gossip; they are not written");
                None
            }
        }
    }

    /// Queues a snapshot of the current state, if it has changed and it is time.
    pub(super) fn write_if_changed(&mut self, age: &Age) {
        let key = Key {
            cycles: age.cycles(),
            clock: age.clock(),
            is_gossiping: age.is_gossiping(),
            digest: age.participants_digest(),
        };
        let now_us = monotonic_ns() / 1000;
        if self.last == Some(key) || now_us < self.due_us {
            return;
        }
        self.due_us = now_us + PAUSE_US;
        match self.queue.try_send(Snapshot::of(age)) {
            Ok(()) => self.last = Some(key),
            // The thread still writes the previous snapshot. The next call retries.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}

impl Snapshot {
    fn of(age: &Age) -> Self {
        let (clock, cycles) = (age.clock(), age.cycles());
        let head = format!("# clock {clock}\n");
        let (mut ages, mut members, mut history) =
            (head.clone(), head.clone(), format!("{cycles} {clock}"));
        for (participant, held) in age.ages() {
            let (nid, id) = (&participant.nid, MemberId::of(&participant.name));
            let held = held.map_or_else(|| "-".to_owned(), |held| held.to_string());
            let state = age.member(id).map_or("unknown", |member| {
                muster_control::state_word(member.state())
            });
            // Writing into a String cannot fail.
            let _ = writeln!(ages, "{nid} {held}");
            let _ = writeln!(members, "{nid} {state}");
            let _ = write!(history, " {held}");
        }
        history.push('\n');
        Self {
            parameters: head.clone() + &parameters(age),
            clock: format!("{head}cycle {cycles}\n"),
            ages,
            members,
            history,
        }
    }
}

fn parameters(age: &Age) -> String {
    let config = age.config();
    let digest = age.participants_digest();
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let state = match (age.is_gossiping(), age.refused()) {
        (true, _) => "running".to_owned(),
        (false, None) => "stopped".to_owned(),
        (false, Some((id, difference))) => {
            let [parameter, own, other] = words(difference);
            let name = age.name_of(id).unwrap_or("a member");
            format!("stopped: {name} has {parameter} {other}, here {own}")
        }
    };
    let group = |name: &str| match name {
        "" => "-".to_owned(),
        name => name.to_owned(),
    };
    let own = config.participants.iter().find(|one| one.nid == config.own);
    let lines = [
        (
            "wire_version",
            muster_protocol::frame::WIRE_VERSION.to_string(),
        ),
        ("state", state),
        ("own", config.own.clone()),
        ("group", group(own.map_or("", |own| own.group.as_str()))),
        ("interval_ms", (config.interval_us as f64 / 1e3).to_string()),
        (
            "round_trip_ms",
            (config.round_trip_us as f64 / 1e3).to_string(),
        ),
        (
            "local",
            local_factor(age).map_or_else(|| "-".to_owned(), |local| local.to_string()),
        ),
        ("suspect_after", config.suspect_after.to_string()),
        ("dead_after", config.dead_after.to_string()),
        ("obsolete_after", config.rules.obsolete_after.to_string()),
        ("laziness", config.rules.laziness.to_string()),
        ("random_seed", config.random_seed.to_string()),
        ("participants", config.participants.len().to_string()),
        ("digest", digest),
    ];
    lines
        .map(|(key, value)| format!("{key} {value}\n"))
        .concat()
}

/// The fraction of pings that stay in the node's own group, if groups have an effect.
pub(super) fn local_factor(age: &Age) -> Option<f64> {
    match age.config().choice {
        muster_protocol::age::Choice::Local { permille } => Some(f64::from(permille) / 1e3),
        muster_protocol::age::Choice::Uniform => None,
    }
}

/// The thread. It ends when the loop drops its end of the queue.
fn write_all(directory: &Path, snapshots: Receiver<Snapshot>) {
    let mut history = History::default();
    let mut is_failing = false;
    for snapshot in snapshots {
        history.add(snapshot.history);
        let files = [
            ("parameters", snapshot.parameters),
            ("clock", snapshot.clock),
            ("ages", snapshot.ages),
            ("members", snapshot.members),
            ("history", history.text()),
        ];
        let written = fs::create_dir_all(directory).and_then(|()| {
            let mut files = files.iter();
            files.try_for_each(|(name, text)| replace(directory, name, text))
        });
        match written {
            Ok(()) if is_failing => {
                is_failing = false;
                info!(directory = %directory.display(), "the state of gossip is written again");
            }
            Ok(()) => {}
            Err(cause) if !is_failing => {
                is_failing = true;
                warn!(directory = %directory.display(), %cause, "the state of gossip cannot be written");
            }
            Err(_) => {}
        }
    }
}

/// Earlier clocks and ages, oldest first.
#[derive(Default)]
struct History {
    snapshots: VecDeque<String>,
    bytes: usize,
}

impl History {
    fn add(&mut self, snapshot: String) {
        self.bytes += snapshot.len();
        self.snapshots.push_back(snapshot);
        while self.snapshots.len() > SNAPSHOTS_MAX
            || (self.bytes > HISTORY_BYTES_MAX && self.snapshots.len() > 1)
        {
            let oldest = self.snapshots.pop_front();
            self.bytes -= oldest.map_or(0, |oldest| oldest.len());
        }
    }

    fn text(&self) -> String {
        let mut text = String::from("# cycle, clock, and the ages in the order of the file ages\n");
        text.extend(self.snapshots.iter().map(String::as_str));
        text
    }
}

/// Replaces a file atomically: a reader sees the old content or the new one.
fn replace(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let new: PathBuf = directory.join(format!(".{name}.new"));
    fs::write(&new, text)?;
    fs::rename(&new, directory.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AG-17: the history is bounded in snapshots and in bytes, and always contains the newest snapshot.
    #[test]
    fn the_history_has_a_bound() {
        let mut history = History::default();
        for number in 0..200 {
            history.add(format!("{number}\n"));
        }
        let text = history.text();
        assert_eq!(text.lines().count(), SNAPSHOTS_MAX + 1);
        assert!(text.ends_with("\n198\n199\n"), "{text}");
        for number in 0..3 {
            history.add(format!("{number}{}\n", "x".repeat(HISTORY_BYTES_MAX)));
        }
        assert_eq!(history.snapshots.len(), 1);
        assert!(history.snapshots[0].starts_with('2'));
    }

    /// AG-17: the directory contains complete files only.
    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(
            directory.path().join("clock"),
            "a longer text that was there before",
        )
        .unwrap();
        replace(directory.path(), "clock", "# clock 7\n").unwrap();
        let path = directory.path().join("clock");
        assert_eq!(fs::read_to_string(path).unwrap(), "# clock 7\n");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
