//! Processes in uninterruptible sleep: stuck if it lasts, unless somebody froze them.

#[path = "../../../tests/lib/skipped.rs"]
mod skipped;
mod support;

use muster_agent::watch::{Finding, HungBy};
use muster_shm::RankState;
use skipped::skipped;
use std::fs;
use std::path::{Path, PathBuf};
use support::agent::Agent;
use support::rank::{Rank, role};
use support::raw;
use tempfile::tempdir;

const TESTS: [(&str, fn()); 2] = [
    (
        "a_rank_in_lasting_uninterruptible_sleep_is_hung",
        a_rank_in_lasting_uninterruptible_sleep_is_hung,
    ),
    (
        "a_frozen_rank_is_neither_dead_nor_hung",
        a_frozen_rank_is_neither_dead_nor_hung,
    ),
];

/// No harness: a rank's main thread is the one that a look at its process sees. Of the harness' arguments those that
/// cargo-nextest needs are obeyed.
fn main() {
    role();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let wanted = |name: &str| {
        let mut names = arguments
            .iter()
            .filter(|argument| !argument.starts_with('-'));
        names.all(|wanted| name.contains(wanted.as_str()))
    };
    if has("--list") {
        // None is ignored.
        let listed = TESTS.iter().filter(|_| !has("--ignored"));
        listed.for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    for (name, test) in TESTS.iter().filter(|(name, _)| wanted(name)) {
        test();
        println!("test {name} ... ok");
    }
}

fn a_rank_in_lasting_uninterruptible_sleep_is_hung() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start(base.path(), 0);
    let slot = agent.await_armed();
    let fifo = base.path().join("fifo");
    raw::make_fifo(&fifo);
    rank.tell(&format!("stick {}", fifo.display()));
    rank.hear("sticking");
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::Stuck));
    assert_eq!(agent.view.rank_state(0), RankState::Hung);
    drop(fs::OpenOptions::new().write(true).open(&fifo).unwrap());
    rank.hear("unstuck");
    assert_eq!(agent.await_finding(slot), Finding::Resumed);
}

/// A control group that can be frozen, of either version.
struct Freezer {
    folder: PathBuf,
    file: &'static str,
    words: [&'static str; 2],
}

impl Freezer {
    /// Version 1, if it is mounted and ours.
    fn of_version_1() -> Option<Self> {
        Self::make(
            "/sys/fs/cgroup/freezer",
            "freezer.state",
            ["FROZEN", "THAWED"],
        )
    }

    /// Version 2, alone or beside version 1.
    fn of_version_2() -> Option<Self> {
        let mut places = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].iter();
        places.find_map(|place| Self::make(place, "cgroup.freeze", ["1", "0"]))
    }

    fn make(place: &str, file: &'static str, words: [&'static str; 2]) -> Option<Self> {
        let folder = Path::new(place).join(format!("muster-test-{}", std::process::id()));
        let is_group = Path::new(place).join("cgroup.procs").is_file();
        if !is_group || fs::create_dir(&folder).is_err() {
            return None;
        }
        let is_there = folder.join(file).is_file();
        let freezer = Self {
            folder,
            file,
            words,
        };
        is_there.then_some(freezer)
    }

    fn take(&self, pid: u32) {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn freeze(&self, is_frozen: bool) {
        let word = self.words[usize::from(!is_frozen)];
        fs::write(self.folder.join(self.file), word).unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

/// How often a frozen rank ticks otherwise. Long, so that a busy machine does not break the promise for it.
const PERIOD_MS: u32 = 3000;

/// A frozen process shows the same letter as a stuck one, and cannot keep a promise of ticks. Another rank, stopped
/// and continued while the first is frozen, shows that enough looks were taken.
fn a_frozen_rank_is_neither_dead_nor_hung() {
    for (version, freezer) in [(1, Freezer::of_version_1()), (2, Freezer::of_version_2())] {
        match freezer {
            Some(freezer) => freeze_a_rank(&freezer),
            None => skipped(
                &format!("cgroup-{version}"),
                "no group of processes can be frozen",
            ),
        }
    }
}

fn freeze_a_rank(freezer: &Freezer) {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut frozen = Rank::start(base.path(), 0);
    let frozen_slot = agent.await_armed();
    let stopped = Rank::start(base.path(), 1);
    let stopped_slot = agent.await_armed();
    frozen.tell("tick-on");
    frozen.hear("ticking");
    frozen.tell(&format!("promise {PERIOD_MS}"));
    frozen.hear("promised");
    freezer.take(frozen.pid());
    freezer.freeze(true);
    // Each round takes two looks, half a second apart: more than two periods in all.
    for _ in 0..7 {
        stopped.signal(libc::SIGSTOP);
        assert_eq!(
            agent.await_finding(stopped_slot),
            Finding::Hung(HungBy::Stopped)
        );
        stopped.signal(libc::SIGCONT);
        assert_eq!(agent.await_finding(stopped_slot), Finding::Resumed);
    }
    // It dies before it could be late with a tick.
    frozen.signal(libc::SIGKILL);
    freezer.freeze(false);
    let finding = agent.await_finding(frozen_slot);
    assert!(matches!(finding, Finding::Failed { .. }), "{finding:?}");
    frozen.wait();
}
