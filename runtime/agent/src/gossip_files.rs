//! AG-17: what age gossip holds, as files for `cat`, `cp` and `tar`.
//!
//! `parameters`, `clock`, `ages` and `members` are what is so now, `history` what the clock and the
//! ages were before. Each is replaced as a whole: whoever opens one reads one moment, and every file
//! begins with the clock of its moment. The loop hands a moment over and goes on; a thread of its
//! own writes. What it cannot take at once is left out, since the next moment says more.

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

/// Time from one moment to the next, at least.
const PAUSE_US: u64 = 200_000;
/// Moments in the history, at most.
const MOMENTS_MAX: usize = 64;
/// Bytes of the history, at most, but for one moment.
const HISTORY_BYTES_MAX: usize = 1 << 20;

/// The loop's end of it.
pub(super) struct GossipFiles {
    queue: Sender<Moment>,
    due_us: u64,
    last: Option<Key>,
}

/// What a moment differs by from the one before.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    cycles: u64,
    clock: u64,
    is_gossiping: bool,
    digest: [u8; 20],
}

/// The content of the files at one time.
struct Moment {
    parameters: String,
    clock: String,
    ages: String,
    members: String,
    history: String,
}

impl GossipFiles {
    /// Puts the writer to work in this directory. Without a thread for it there are no files, and
    /// everything else goes on.
    pub(super) fn start(directory: &Path) -> Option<Self> {
        // Of several, only the newest counts: room for one.
        let directory = directory.to_owned();
        let started = queue(1).and_then(|(moments_in, moments)| {
            std::thread::Builder::new()
                .name("muster-gossip".into())
                .stack_size(256 << 10)
                .spawn(move || write_all(&directory, moments))?;
            Ok(moments_in)
        });
        match started {
            Ok(queue) => Some(Self {
                queue,
                due_us: 0,
                last: None,
            }),
            Err(cause) => {
                warn!(%cause, "no thread for the state files of gossip");
                None
            }
        }
    }

    /// Hands over what is so now, if that is something new and it is time.
    pub(super) fn keep(&mut self, age: &Age) {
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
        match self.queue.try_send(Moment::of(age)) {
            Ok(()) => self.last = Some(key),
            // It writes the one before: this one is tried again.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}

impl Moment {
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
        (false, Some((id, parameter))) => format!(
            "stopped: {} has another {}",
            age.name_of(id).unwrap_or("a member"),
            parameter.name()
        ),
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

/// The part of pings that stay in the own group, if groups matter.
pub(super) fn local_factor(age: &Age) -> Option<f64> {
    match age.config().choice {
        muster_protocol::age::Choice::Local { permille } => Some(f64::from(permille) / 1e3),
        muster_protocol::age::Choice::Uniform => None,
    }
}

/// The thread: until the loop has gone.
fn write_all(directory: &Path, moments: Receiver<Moment>) {
    let mut history = History::default();
    let mut is_failing = false;
    for moment in moments {
        history.add(moment.history);
        let files = [
            ("parameters", moment.parameters),
            ("clock", moment.clock),
            ("ages", moment.ages),
            ("members", moment.members),
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

/// What was, oldest first.
#[derive(Default)]
struct History {
    moments: VecDeque<String>,
    bytes: usize,
}

impl History {
    fn add(&mut self, moment: String) {
        self.bytes += moment.len();
        self.moments.push_back(moment);
        while self.moments.len() > MOMENTS_MAX
            || (self.bytes > HISTORY_BYTES_MAX && self.moments.len() > 1)
        {
            let oldest = self.moments.pop_front();
            self.bytes -= oldest.map_or(0, |oldest| oldest.len());
        }
    }

    fn text(&self) -> String {
        let mut text = String::from("# cycle, clock, and the ages in the order of the file ages\n");
        text.extend(self.moments.iter().map(String::as_str));
        text
    }
}

/// Whoever reads finds the old content or the new one.
fn replace(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let new: PathBuf = directory.join(format!(".{name}.new"));
    fs::write(&new, text)?;
    fs::rename(&new, directory.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AG-17: the history has a bound, by moments and by bytes, and always the newest.
    #[test]
    fn the_history_has_a_bound() {
        let mut history = History::default();
        for number in 0..200 {
            history.add(format!("{number}\n"));
        }
        let text = history.text();
        assert_eq!(text.lines().count(), MOMENTS_MAX + 1);
        assert!(text.ends_with("\n198\n199\n"), "{text}");
        for number in 0..3 {
            history.add(format!("{number}{}\n", "x".repeat(HISTORY_BYTES_MAX)));
        }
        assert_eq!(history.moments.len(), 1);
        assert!(history.moments[0].starts_with('2'));
    }

    /// AG-17: nothing is left but whole files, whatever was there.
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
