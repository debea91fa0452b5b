//! What it means that a thread has ended: the process dies, or it lives on.
//!
//! Intuition: somebody left a room. Look at everybody who is still in it: if all of them are on
//! their way to the door, the house is being vacated; if anybody stays, only one went out. So
//! **every** task is looked at. The leader alone is wrong both ways: killed but not yet marked,
//! or a zombie while other threads run on.
//!
//! A kill reaches the tasks one after another, and between "took the signal" and "is exiting"
//! neither mark is set. A mixed picture is therefore looked at again for a moment; so is an exec,
//! which ends all tasks but one, until only that one is left. Where there is no telling (no descriptor
//! left to look with) nobody is declared dead: the pidfd and the sampling go on looking.

use std::io;
use std::time::Duration;

use super::procfs::{self, StatFile};

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
    /// At least one task stays.
    Lives,
}

/// How often a mixed picture is looked at again, and the pause between: 10 ms in all, as a task that
/// took the signal may wait that long for a core before it is marked.
const LOOKS: u32 = 100;
const PAUSE: Duration = Duration::from_micros(100);

/// Looks at every task of the process that had this pid and start time.
pub(super) fn classify(pid: u32, start_ticks: u64) -> Fate {
    for look in 0..LOOKS {
        match look_once(pid, start_ticks) {
            Picture::Gone => {
                return Fate::Dying {
                    signal: 0,
                    exit_code: 0,
                };
            }
            Picture::AllExiting { signal, exit_code } => return Fate::Dying { signal, exit_code },
            Picture::AllStay => return Fate::Lives,
            Picture::Unclear if look + 1 < LOOKS => std::thread::sleep(PAUSE),
            Picture::Unclear => {}
        }
    }
    Fate::Lives
}

enum Picture {
    Gone,
    AllExiting {
        signal: i32,
        exit_code: i32,
    },
    AllStay,
    /// Some leave and some stay, or something cannot be read.
    Unclear,
}

fn look_once(pid: u32, start_ticks: u64) -> Picture {
    let unread = |cause: &io::Error| match procfs::is_gone(cause) {
        true => Picture::Gone,
        false => Picture::Unclear,
    };
    let leader = match procfs::task_stat(pid, pid) {
        Ok(leader) => leader,
        Err(cause) => return unread(&cause),
    };
    // Another start time is another process that was given the pid.
    if leader.start_ticks != start_ticks {
        return Picture::Gone;
    }
    let tasks = match procfs::tasks(pid) {
        Ok(tasks) => tasks,
        Err(cause) => return unread(&cause),
    };
    let (mut leaving, mut staying) = (0, 0);
    for task in tasks {
        let stat = match procfs::task_stat(pid, task) {
            Ok(stat) => stat,
            Err(cause) if procfs::is_gone(&cause) => continue,
            Err(_) => return Picture::Unclear,
        };
        // A leader that ended long ago stays as a zombie: it says nothing about the others.
        if task == pid && stat.state == b'Z' {
            continue;
        }
        if stat.is_exiting() || procfs::is_kill_pending(pid, task) {
            leaving += 1;
        } else {
            staying += 1;
        }
    }
    match (leaving, staying) {
        (_, 0) => {
            // The process's own file tells the status of the whole group as soon as it is decided,
            // a task's only its own.
            let whole = StatFile::open(pid)
                .and_then(|file| file.read())
                .unwrap_or(leader);
            Picture::AllExiting {
                signal: whole.signal(),
                exit_code: whole.exit_code(),
            }
        }
        (0, _) => Picture::AllStay,
        _ => Picture::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_running_process_lives_and_a_reaped_one_does_not() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let start = procfs::start_ticks(child.id()).unwrap();
        assert_eq!(classify(child.id(), start), Fate::Lives);
        assert!(matches!(
            classify(child.id(), start + 1),
            Fate::Dying { .. }
        ));
        child.kill().unwrap();
        // Killed but not reaped: at every moment from the signal on it is seen as dying.
        assert!(matches!(classify(child.id(), start), Fate::Dying { .. }));
        child.wait().unwrap();
        assert!(matches!(classify(child.id(), start), Fate::Dying { .. }));
    }
}
