//! The ranks of this node: started, followed, ended.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::environment;
use super::loss::Mpi;
use super::node_status::Ended;
use super::output::Outputs;
use muster_sys::child::{bind_to_processors, bind_to_this_thread};
use muster_sys::poll::{Epoll, readable};
use muster_sys::process::{descendants, open_pidfd, send_signal, send_signal_by, try_reap};

/// One rank while it runs.
struct Running {
    pid: u32,
    pidfd: OwnedFd,
    visits: Visits,
    /// What it has left, if it has ended; its pid is then no longer its own.
    status: Option<u8>,
    /// The signal that has killed it.
    signal: Option<i32>,
    /// Signals that were to end it, as bits.
    sent: u64,
}

/// A signal that has killed a rank and was not sent to it here to end it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Killed {
    pub(super) pid: u32,
    pub(super) signal: i32,
}

/// A rank that has ended.
pub(super) struct Reaped {
    pub(super) ended: Ended,
    /// The signal that killed it, or minus its exit code.
    pub(super) how: i32,
    pub(super) killed: Option<Killed>,
}

/// When a rank was at the PMIx server. With MPI Sessions it comes and leaves any number of times; and what it has
/// started in its own environment passes for it there.
#[derive(Debug, Default)]
struct Visits {
    come: u32,
    left: u32,
    /// Two of them were there at once.
    had_guest: bool,
}

impl Visits {
    fn come(&mut self) {
        self.had_guest |= self.come > self.left;
        self.come += 1;
    }

    fn leave(&mut self) {
        self.left += 1;
    }

    fn any(&self) -> bool {
        self.come > 0
    }

    /// Whether the rank, which ended with this status, had been there and had left in order. Of a guest that ended
    /// without a word nobody tells; then its own status has to do.
    fn are_over(&self, status: u8) -> bool {
        self.any() && (self.left >= self.come || self.had_guest && self.left > 0 && status == 0)
    }
}

/// What a rank is started with.
pub(super) struct Start<'a> {
    pub(super) rank: u32,
    pub(super) program: &'a Path,
    pub(super) arguments: &'a [OsString],
    pub(super) environment: &'a [(OsString, OsString)],
    /// Where it may run; empty for wherever the launcher may.
    pub(super) processors: &'a [usize],
    /// It reads the launcher's standard input.
    pub(super) stdin: bool,
}

/// The ranks of this node.
#[derive(Default)]
pub(super) struct Ranks {
    running: BTreeMap<u32, Running>,
    /// What ranks that were told to end had started.
    strays: Vec<OwnedFd>,
    /// The MPI that they have loaded, once one has come to the PMIx server.
    mpi: Option<Mpi>,
}

/// Where a rank's pidfd stands in the loop's set, by the rank.
pub(super) const TOKEN: u64 = 1 << 32;

impl Ranks {
    /// Starts one.
    ///
    /// # Errors
    /// The system's, of the program.
    pub(super) fn start(
        &mut self,
        start: &Start<'_>,
        outputs: &Outputs,
        epoll: &Epoll,
    ) -> std::io::Result<()> {
        let Start {
            rank, environment, ..
        } = *start;
        let mut command = Command::new(start.program);
        command
            .args(start.arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)));
        for (name, _) in std::env::vars_os() {
            let given = environment.iter().any(|(one, _)| *one == name);
            if !given && environment::is_foreign(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
        if !start.stdin {
            command.stdin(Stdio::null());
        }
        outputs.prepare(&mut command, rank)?;
        bind_to_this_thread(&mut command);
        if !start.processors.is_empty() {
            bind_to_processors(&mut command, start.processors);
        }
        let mut child = command.spawn()?;
        outputs.listen(&mut child, rank)?;
        let pid = child.id();
        let pidfd = open_pidfd(pid)?;
        epoll.add(pidfd.as_fd(), TOKEN | u64::from(rank))?;
        let running = Running {
            pid,
            pidfd,
            visits: Visits::default(),
            status: None,
            signal: None,
            sent: 0,
        };
        self.running.insert(rank, running);
        Ok(())
    }

    /// The rank has come to the PMIx server; the MPI of the ranks, if that is news.
    pub(super) fn note_connected(&mut self, rank: u32) -> Option<Mpi> {
        let running = self.running.get_mut(&rank)?;
        running.visits.come();
        // What has come before may have been a program that a script runs before that of MPI.
        if self.mpi.is_some_and(|mpi| mpi != Mpi::Unseen) {
            return None;
        }
        let before = self.mpi;
        self.mpi = Some(Mpi::of(running.pid, &environment::users_file()));
        self.mpi.filter(|_| self.mpi != before)
    }

    pub(super) fn note_finalized(&mut self, rank: u32) {
        if let Some(running) = self.running.get_mut(&rank) {
            running.visits.leave();
        }
    }

    /// The MPI of the ranks, if one has come to the PMIx server.
    pub(super) fn mpi(&self) -> Option<Mpi> {
        self.mpi
    }

    /// Whether one has come to the PMIx server.
    pub(super) fn any_connected(&self) -> bool {
        self.running.values().any(|running| running.visits.any())
    }

    /// Those that were never at the PMIx server.
    pub(super) fn absent(&self) -> impl Iterator<Item = u32> {
        let absent = self
            .running
            .iter()
            .filter(|(_, running)| !running.visits.any());
        absent.map(|(rank, _)| *rank)
    }

    /// Looks who has ended. What such a rank has said before is in the channel by now: that it leaves in order is
    /// acknowledged to it, and it waits for that.
    pub(super) fn look(&mut self) {
        for running in self.running.values_mut() {
            if running.status.is_none() {
                running.status = match try_reap(running.pid) {
                    Ok(status) => {
                        let killed = status.filter(|status| libc::WIFSIGNALED(*status));
                        running.signal = killed.map(|status| libc::WTERMSIG(status));
                        status.map(shell_status)
                    }
                    // It is nobody's child any more: how it ended is not known.
                    Err(_) => Some(1),
                };
            }
        }
    }

    /// Those that had ended when that was looked for; what they had said must have been taken.
    pub(super) fn reap(&mut self, epoll: &Epoll) -> Vec<Reaped> {
        let mut ended = Vec::new();
        self.running.retain(|rank, running| {
            let Some(status) = running.status else {
                return true;
            };
            epoll.remove(running.pidfd.as_fd());
            let end = Ended {
                rank: *rank,
                status,
                connected: running.visits.any(),
                finalized: running.visits.are_over(status),
            };
            let (pid, sent) = (running.pid, running.sent);
            let signal = running.signal.filter(|signal| sent & bit(*signal) == 0);
            ended.push(Reaped {
                ended: end,
                how: running.signal.unwrap_or(-i32::from(status)),
                killed: signal.map(|signal| Killed { pid, signal }),
            });
            false
        });
        ended
    }

    /// Sends a signal to all that run.
    pub(super) fn signal(&self, signal: i32) {
        self.signal_some(&[], signal);
    }

    /// Sends a signal that is to end them to all that run, and from now on waits for those they have started, too: one
    /// may be a shell whose program takes its time.
    pub(super) fn end(&mut self, signal: i32) {
        self.follow(signal);
        for running in self.running.values() {
            if running.status.is_none() {
                let _ = send_signal(running.pid, signal);
            }
        }
        for stray in &self.strays {
            let _ = send_signal_by(stray.as_fd(), signal);
        }
    }

    /// The same where others have sent it.
    pub(super) fn follow(&mut self, signal: i32) {
        for running in self.running.values_mut() {
            if running.status.is_none() {
                running.sent |= bit(signal);
                let below = descendants(running.pid);
                let opened = below.into_iter().filter_map(|pid| open_pidfd(pid).ok());
                self.strays.extend(opened);
            }
        }
        self.strays.retain(|stray| !has_ended(stray));
    }

    /// Sends a signal to those from one to another of these that run here, and what they have started; to all if none
    /// is named.
    pub(super) fn signal_some(&self, ranks: &[(u32, u32)], signal: i32) {
        let within = |rank: &u32| ranks.iter().any(|(from, to)| (from..=to).contains(&rank));
        let meant = |rank: &u32| ranks.is_empty() || within(rank);
        for (_, running) in self.running.iter().filter(|(rank, _)| meant(rank)) {
            if running.status.is_none() {
                for pid in descendants(running.pid) {
                    let _ = send_signal(pid, signal);
                }
                // Not reaped yet, so the pid is still its own.
                let _ = send_signal(running.pid, signal);
            }
        }
    }

    /// Whether all have ended, and what was to end with them.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.strays.iter().all(has_ended)
    }
}

fn has_ended(stray: &OwnedFd) -> bool {
    readable(&[stray.as_fd()], Some(Duration::ZERO)).is_ok_and(|ready| ready[0])
}

fn bit(signal: i32) -> u64 {
    1 << (signal & 63)
}

/// An end as a shell counts it.
fn shell_status(status: i32) -> u8 {
    let number = if libc::WIFSIGNALED(status) {
        128 + libc::WTERMSIG(status)
    } else {
        libc::WEXITSTATUS(status)
    };
    number as u8
}

impl Killed {
    /// A terminal or a scheduler sends such a one to all of its processes: soon this launcher hears of it, too.
    pub(super) fn may_be_everybodys(&self) -> bool {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
        [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&self.signal)
    }

    pub(super) fn describe(&self, rank: u32) -> String {
        let Self { pid, signal } = self;
        let name = signal_hook::low_level::signal_name(*signal);
        let name = name.map_or_else(String::new, |name| format!(" ({name})"));
        format!("rank {rank} (pid {pid}) was killed by signal {signal}{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the words `C` for who comes and `L` for who leaves.
    fn visits(text: &str) -> Visits {
        let mut visits = Visits::default();
        for letter in text.chars() {
            match letter {
                'C' => visits.come(),
                _ => visits.leave(),
            }
        }
        visits
    }

    #[test]
    fn a_rank_has_left_when_it_has_and_not_its_guest() {
        for (text, status, left) in [
            ("", 0, false),
            ("", 3, false),
            ("CL", 0, true),
            ("CL", 3, true),
            ("C", 0, false),
            // Sessions.
            ("CLC", 0, false),
            ("CLCL", 0, true),
            // A guest that leaves, and the rank after it, or not.
            ("CCLL", 3, true),
            ("CCL", 137, false),
            // A guest that ends without a word.
            ("CCL", 0, true),
            ("CC", 0, false),
        ] {
            assert_eq!(visits(text).are_over(status), left, "{text} {status}");
        }
    }
}
