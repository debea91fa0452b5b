//! What it means that a thread has ended: the process dies, or it lives on.
//!
//! Intuition: somebody left a room. Look at everybody who is still in it: if all of them are on
//! their way to the door, the house is being vacated; if anybody stays, only one went out. So it
//! takes **every** task to say that a process dies, and one that stays to say that it does not. The
//! leader alone is wrong both ways: killed but not yet marked, or a zombie while other threads run on.
//!
//! A kill reaches the tasks one after another, and between "took the signal" and "is exiting"
//! neither mark is set: a task that waits for a core there looks like one that stays, and may be
//! the last one. Who knows that somebody left therefore looks again for a moment ([`CLASSIFY_WAIT_NS`]) before
//! it believes in a picture with somebody in it; who only looks twice a second does not, unless somebody
//! is leaving right now. Where there is no telling (no descriptor left to look with) nobody is declared
//! dead: the pidfd and the sampling go on looking.

use std::io;
use std::time::Duration;

use muster_sys::clock::monotonic_ns;
use muster_sys::procfs::{self, StatFile};

/// What the tasks of a process show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Every task is exiting or about to be killed, or the process is gone.
    Dying {
        /// The signal, 0 if unknown or none.
        signal: i32,
        /// The exit code, 0 if unknown or none.
        exit_code: i32,
    },
    /// Some task is exiting or about to be killed, and another was not seen to be.
    Leaving,
    /// A task stays and none before it leaves, or there is no telling.
    Stays,
}

/// How long a picture with somebody in it is looked at again: a task that took the signal may wait that
/// long for a core before it is marked.
pub(super) const CLASSIFY_WAIT_NS: u64 = 20_000_000;
/// The pause between two such looks.
pub(super) const PAUSE: Duration = Duration::from_micros(100);

/// Looks once at the process that had this pid and start time, and again only while some of its tasks are
/// leaving. Of a process that lives on this is two small files, whatever the number of its tasks.
pub(super) fn glance(pid: u32, start_ticks: u64) -> Fate {
    let until_ns = monotonic_ns() + CLASSIFY_WAIT_NS;
    loop {
        match look(pid, start_ticks) {
            Fate::Leaving if monotonic_ns() < until_ns => std::thread::sleep(PAUSE),
            fate => return fate,
        }
    }
}

/// Looks once at the tasks of the process that had this pid and start time, up to the first that stays.
pub(super) fn look(pid: u32, start_ticks: u64) -> Fate {
    const GONE: Fate = Fate::Dying {
        signal: 0,
        exit_code: 0,
    };
    let unread = |cause: &io::Error| match procfs::is_gone(cause) {
        true => GONE,
        false => Fate::Stays,
    };
    let leader = match procfs::task_stat(pid, pid) {
        Ok(leader) => leader,
        Err(cause) => return unread(&cause),
    };
    // Another start time is another process that was given the pid.
    if leader.start_ticks != start_ticks {
        return GONE;
    }
    if !leader.is_exiting() && !procfs::is_kill_pending(pid, pid) {
        return Fate::Stays;
    }
    let tasks = match procfs::tasks(pid) {
        Ok(tasks) => tasks,
        Err(cause) => return unread(&cause),
    };
    let mut leaves = false;
    for task in tasks {
        let stat = match procfs::task_stat(pid, task) {
            Ok(stat) => stat,
            Err(cause) if procfs::is_gone(&cause) => continue,
            Err(_) => return Fate::Stays,
        };
        // A leader that ended long ago stays as a zombie: it says nothing about the others.
        if task == pid && stat.state == b'Z' {
            continue;
        }
        if !stat.is_exiting() && !procfs::is_kill_pending(pid, task) {
            return if leaves { Fate::Leaving } else { Fate::Stays };
        }
        leaves = true;
    }
    // The process's own file tells the status of the whole group as soon as it is decided, a task's
    // only its own.
    let whole = StatFile::open(pid)
        .and_then(|file| file.read())
        .unwrap_or(leader);
    Fate::Dying {
        signal: whole.signal(),
        exit_code: whole.exit_code(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    #[test]
    fn a_running_process_lives_and_a_reaped_one_does_not() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let start = procfs::start_ticks(child.id()).unwrap();
        assert_eq!(look(child.id(), start), Fate::Stays);
        assert_eq!(glance(child.id(), start), Fate::Stays);
        assert!(matches!(look(child.id(), start + 1), Fate::Dying { .. }));
        child.kill().unwrap();
        // Killed but not reaped: it may look alive until the signal was taken, and then never again.
        let end = Instant::now() + Duration::from_secs(30);
        while !matches!(look(child.id(), start), Fate::Dying { .. }) {
            assert!(Instant::now() < end, "a killed process is seen dying");
        }
        assert!(matches!(look(child.id(), start), Fate::Dying { .. }));
        assert!(matches!(glance(child.id(), start), Fate::Dying { .. }));
        child.wait().unwrap();
        assert!(matches!(look(child.id(), start), Fate::Dying { .. }));
    }

    /// How often the calling thread has read from a file; none if this kernel does not count.
    fn reads() -> Option<u64> {
        let text = std::fs::read_to_string("/proc/thread-self/io").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("syscr: "))?;
        line.parse().ok()
    }

    /// It is done twice a second for every process whose holding thread has ended.
    #[test]
    fn a_glance_at_a_process_that_lives_reads_little() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let start = procfs::start_ticks(child.id()).unwrap();
        let before = reads();
        assert_eq!(glance(child.id(), start), Fate::Stays);
        let read = reads()
            .zip(before)
            .map_or(0, |(after, before)| after - before);
        // Some of them are of the file that tells it.
        assert!(read < 30, "{read} reads");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
