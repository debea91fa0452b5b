//! The ranks of this node: started, followed, ended.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::bell::Ended;
use super::output::Mouths;
use crate::sys::child::{bind_to_processors, bind_to_this_thread};
use crate::sys::poll::{Epoll, readable};
use crate::sys::process::{descendants, open_pidfd, send_signal, send_signal_by, try_reap};

/// One rank while it runs.
struct Running {
    pid: u32,
    pidfd: OwnedFd,
    connected: bool,
    finalized: bool,
    /// What it has left, if it has ended; its pid is then no longer its own.
    status: Option<u8>,
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
        mouths: &Mouths,
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
            if !given && super::environment::is_foreign(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
        if !start.stdin {
            command.stdin(Stdio::null());
        }
        mouths.prepare(&mut command, rank)?;
        bind_to_this_thread(&mut command);
        if !start.processors.is_empty() {
            bind_to_processors(&mut command, start.processors);
        }
        let mut child = command.spawn()?;
        mouths.listen(&mut child, rank)?;
        let pid = child.id();
        let pidfd = open_pidfd(pid)?;
        epoll.add(pidfd.as_fd(), TOKEN | u64::from(rank))?;
        let running = Running {
            pid,
            pidfd,
            connected: false,
            finalized: false,
            status: None,
        };
        self.running.insert(rank, running);
        Ok(())
    }

    /// It may have left before: with MPI Sessions it comes and leaves any number of times.
    pub(super) fn note_connected(&mut self, rank: u32) {
        if let Some(running) = self.running.get_mut(&rank) {
            running.connected = true;
            running.finalized = false;
        }
    }

    pub(super) fn note_finalized(&mut self, rank: u32) {
        if let Some(running) = self.running.get_mut(&rank) {
            running.finalized = true;
        }
    }

    /// Whether one has come to the PMIx server.
    pub(super) fn any_connected(&self) -> bool {
        self.running.values().any(|running| running.connected)
    }

    /// Looks who has ended. What such a rank has said before is in the channel by now: that it leaves in order is
    /// acknowledged to it, and it waits for that.
    pub(super) fn look(&mut self) {
        for running in self.running.values_mut() {
            if running.status.is_none() {
                running.status = match try_reap(running.pid) {
                    Ok(status) => status.map(shell_status),
                    // It is nobody's child any more: how it ended is not known.
                    Err(_) => Some(1),
                };
            }
        }
    }

    /// Those that had ended when that was looked for; what they had said must have been taken.
    pub(super) fn reap(&mut self, epoll: &Epoll) -> Vec<Ended> {
        let mut ended = Vec::new();
        self.running.retain(|rank, running| {
            let Some(status) = running.status else {
                return true;
            };
            epoll.remove(running.pidfd.as_fd());
            ended.push(Ended {
                rank: *rank,
                status,
                connected: running.connected,
                finalized: running.finalized,
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
        for running in self.running.values() {
            if running.status.is_none() {
                let below = descendants(running.pid);
                let opened = below.into_iter().filter_map(|pid| open_pidfd(pid).ok());
                self.strays.extend(opened);
                let _ = send_signal(running.pid, signal);
            }
        }
        self.strays.retain(|stray| !has_ended(stray));
        for stray in &self.strays {
            let _ = send_signal_by(stray.as_fd(), signal);
        }
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

/// An end as a shell counts it.
fn shell_status(status: i32) -> u8 {
    let number = if libc::WIFSIGNALED(status) {
        128 + libc::WTERMSIG(status)
    } else {
        libc::WEXITSTATUS(status)
    };
    number as u8
}
