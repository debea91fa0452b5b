//! Processes in uninterruptible sleep: hung if it lasts, unless they are frozen.

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

/// There is no test harness: the watch looks at the main thread of a rank's process. Of the harness' options,
/// those that cargo-nextest needs are supported.
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
        // No test is ignored.
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
    rank.send(&format!("stick {}", fifo.display()));
    rank.await_line("sticking");
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::Stuck));
    assert_eq!(agent.view.rank_state(0), RankState::Hung);
    drop(fs::OpenOptions::new().write(true).open(&fifo).unwrap());
    rank.await_line("unstuck");
    assert_eq!(agent.await_finding(slot), Finding::Resumed);
}

/// A control group that can be frozen, of version 1 or 2.
struct Freezer {
    folder: PathBuf,
    file: &'static str,
    values: [&'static str; 2],
}

impl Freezer {
    /// Uses version 1, if it is mounted and writable.
    fn of_version_1() -> Option<Self> {
        Self::make(
            "/sys/fs/cgroup/freezer",
            "freezer.state",
            ["FROZEN", "THAWED"],
        )
    }

    /// Uses version 2, alone or beside version 1.
    fn of_version_2() -> Option<Self> {
        let mut places = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].iter();
        places.find_map(|place| Self::make(place, "cgroup.freeze", ["1", "0"]))
    }

    fn make(place: &str, file: &'static str, values: [&'static str; 2]) -> Option<Self> {
        let folder = Path::new(place).join(format!("muster-test-{}", std::process::id()));
        let is_group = Path::new(place).join("cgroup.procs").is_file();
        if !is_group || fs::create_dir(&folder).is_err() {
            return None;
        }
        let is_there = folder.join(file).is_file();
        let freezer = Self {
            folder,
            file,
            values,
        };
        is_there.then_some(freezer)
    }

    fn take(&self, pid: u32) {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn freeze(&self, is_frozen: bool) {
        let value = self.values[usize::from(!is_frozen)];
        fs::write(self.folder.join(self.file), value).unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The tick period of a rank that is not frozen. It is long, so that a busy machine does not break the
/// promise.
const PERIOD_MS: u32 = 3000;

/// /proc shows the same state character for a frozen process and a stuck one, and a frozen process cannot tick.
/// Another rank, stopped and continued while the first is frozen, shows that it was polled often enough.
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
    frozen.send("tick-on");
    frozen.await_line("ticking");
    frozen.send(&format!("promise {PERIOD_MS}"));
    frozen.await_line("promised");
    freezer.take(frozen.pid());
    freezer.freeze(true);
    // Each round takes two polls, half a second apart: more than two tick periods in total.
    for _ in 0..7 {
        stopped.signal(libc::SIGSTOP);
        assert_eq!(
            agent.await_finding(stopped_slot),
            Finding::Hung(HungBy::Stopped)
        );
        stopped.signal(libc::SIGCONT);
        assert_eq!(agent.await_finding(stopped_slot), Finding::Resumed);
    }
    // It dies before a tick could be late.
    frozen.signal(libc::SIGKILL);
    freezer.freeze(false);
    let finding = agent.await_finding(frozen_slot);
    assert!(matches!(finding, Finding::Failed { .. }), "{finding:?}");
    frozen.wait();
}
