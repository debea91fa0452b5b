//! Processes in uninterruptible sleep: stuck if it lasts, unless somebody froze them.

mod support;

use muster::board::RankState;
use muster::watch::{Finding, HungBy};
use std::fs;
use std::path::Path;
use support::agent::Agent;
use support::rank::{Rank, role};
use support::raw;
use tempfile::tempdir;

/// No harness: a rank's main thread is the one that a look at its process sees.
fn main() {
    role();
    a_rank_in_lasting_uninterruptible_sleep_is_hung();
    a_frozen_rank_is_neither_dead_nor_hung();
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

/// A frozen process shows the same letter as a stuck one. Another rank, stopped and continued
/// while the first is frozen, shows that enough looks were taken.
fn a_frozen_rank_is_neither_dead_nor_hung() {
    let group = format!("/sys/fs/cgroup/freezer/muster-test-{}", std::process::id());
    let group = Path::new(&group);
    if let Err(cause) = fs::create_dir(group) {
        eprintln!("not tested: no freezer here ({cause})");
        return;
    }
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut frozen = Rank::start(base.path(), 0);
    let frozen_slot = agent.await_armed();
    let stopped = Rank::start(base.path(), 1);
    let stopped_slot = agent.await_armed();
    let freeze = |state: &str| fs::write(group.join("freezer.state"), state).unwrap();
    fs::write(group.join("cgroup.procs"), frozen.pid().to_string()).unwrap();
    freeze("FROZEN");
    // Each round takes two looks, half a second apart.
    for _ in 0..4 {
        stopped.signal(libc::SIGSTOP);
        assert_eq!(
            agent.await_finding(stopped_slot),
            Finding::Hung(HungBy::Stopped)
        );
        stopped.signal(libc::SIGCONT);
        assert_eq!(agent.await_finding(stopped_slot), Finding::Resumed);
    }
    freeze("THAWED");
    frozen.signal(libc::SIGKILL);
    let finding = agent.await_finding(frozen_slot);
    assert!(matches!(finding, Finding::Failed { .. }), "{finding:?}");
    frozen.wait();
    fs::remove_dir(group).unwrap();
}
