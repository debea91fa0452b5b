//! Classifies a process after one of its threads has ended: the process dies, or it lives on.
//!
//! A process dies only if **every** task of it is exiting; one task that stays shows that it lives. The leader alone
//! is not sufficient in either direction: it may be killed but not marked yet, or a zombie while other threads run.
//!
//! A kill reaches the tasks one after another. Between taking the signal and exiting a task has neither mark: if it
//! waits for a core then, it looks like a task that stays, and may be the last one. So after the release of a futex
//! word the tasks are inspected repeatedly for [`CLASSIFY_WAIT_NS`] before the process counts as alive. The sampling,
//! at 2 Hz, does not wait, unless a task is exiting right now. If the tasks cannot be read (no descriptor left), the
//! process does not count as failed: pidfd and sampling continue.

use std::io;
use std::time::Duration;

use muster_sys::clock::monotonic_ns;
use muster_sys::procfs::{self, StatFile};

/// The result of inspecting the tasks of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Liveness {
    /// Every task is exiting or about to be killed, or the process is gone.
    Dying {
        /// The signal, 0 if unknown or none.
        signal: i32,
        /// The exit code, 0 if unknown or none.
        exit_code: i32,
    },
    /// Some task is exiting or about to be killed, and another has no such mark.
    Unclear,
    /// A task without a mark was found before any with one, or the tasks cannot be read.
    Alive,
}

/// Maximum time for repeated inspections of a process with a task that stays. A task that took the signal may wait
/// this long for a core before it is marked.
pub(super) const CLASSIFY_WAIT_NS: u64 = 20_000_000;
/// The pause between two inspections.
pub(super) const PAUSE: Duration = Duration::from_micros(100);

/// Inspects the process with this pid and start time once, and repeatedly only while some of its tasks are exiting.
/// For a live process it reads two small files, whatever the number of its tasks.
pub(super) fn inspect_until_clear(pid: u32, start_ticks: u64) -> Liveness {
    let until_ns = monotonic_ns() + CLASSIFY_WAIT_NS;
    loop {
        match inspect(pid, start_ticks) {
            Liveness::Unclear if monotonic_ns() < until_ns => std::thread::sleep(PAUSE),
            liveness => return liveness,
        }
    }
}

/// Inspects the tasks of the process with this pid and start time once, up to the first that stays.
pub(super) fn inspect(pid: u32, start_ticks: u64) -> Liveness {
    const GONE: Liveness = Liveness::Dying {
        signal: 0,
        exit_code: 0,
    };
    let unread = |cause: &io::Error| match procfs::is_gone(cause) {
        true => GONE,
        false => Liveness::Alive,
    };
    let leader = match procfs::task_stat(pid, pid) {
        Ok(leader) => leader,
        Err(cause) => return unread(&cause),
    };
    // With another start time it is another process that got the same pid.
    if leader.start_ticks != start_ticks {
        return GONE;
    }
    if !leader.is_exiting() && !procfs::is_kill_pending(pid, pid) {
        return Liveness::Alive;
    }
    let tasks = match procfs::tasks(pid) {
        Ok(tasks) => tasks,
        Err(cause) => return unread(&cause),
    };
    let mut is_exiting = false;
    for task in tasks {
        let stat = match procfs::task_stat(pid, task) {
            Ok(stat) => stat,
            Err(cause) if procfs::is_gone(&cause) => continue,
            Err(_) => return Liveness::Alive,
        };
        // A leader that ended long ago stays as a zombie. It is no evidence about the other tasks.
        if task == pid && stat.state == b'Z' {
            continue;
        }
        if !stat.is_exiting() && !procfs::is_kill_pending(pid, task) {
            return if is_exiting {
                Liveness::Unclear
            } else {
                Liveness::Alive
            };
        }
        is_exiting = true;
    }
    // The file of the process has the status of the whole group as soon as it is decided; a task's file has only the
    // task's own.
    let whole = StatFile::open(pid)
        .and_then(|file| file.read())
        .unwrap_or(leader);
    Liveness::Dying {
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
    fn a_running_process_is_alive_and_a_reaped_one_is_not() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let start = procfs::start_ticks(child.id()).unwrap();
        assert_eq!(inspect(child.id(), start), Liveness::Alive);
        assert_eq!(inspect_until_clear(child.id(), start), Liveness::Alive);
        assert!(matches!(
            inspect(child.id(), start + 1),
            Liveness::Dying { .. }
        ));
        child.kill().unwrap();
        // Killed but not reaped: it may look alive until it has taken the signal, but not after that.
        let end = Instant::now() + Duration::from_secs(30);
        while !matches!(inspect(child.id(), start), Liveness::Dying { .. }) {
            assert!(
                Instant::now() < end,
                "a killed process is not classified as dying"
            );
        }
        assert!(matches!(inspect(child.id(), start), Liveness::Dying { .. }));
        assert!(matches!(
            inspect_until_clear(child.id(), start),
            Liveness::Dying { .. }
        ));
        child.wait().unwrap();
        assert!(matches!(inspect(child.id(), start), Liveness::Dying { .. }));
    }

    /// Number of reads of the calling thread; none if this kernel does not count them.
    fn reads() -> Option<u64> {
        let text = std::fs::read_to_string("/proc/thread-self/io").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("syscr: "))?;
        line.parse().ok()
    }

    /// The sampling inspects each process whose holding thread has ended, at 2 Hz.
    #[test]
    fn an_inspection_of_a_live_process_reads_little() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let start = procfs::start_ticks(child.id()).unwrap();
        let before = reads();
        assert_eq!(inspect_until_clear(child.id(), start), Liveness::Alive);
        let read = reads()
            .zip(before)
            .map_or(0, |(after, before)| after - before);
        // Some of them are of the counter's own file.
        assert!(read < 30, "{read} reads");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
