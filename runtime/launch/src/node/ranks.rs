//! The ranks of this node: starts them, watches them, ends them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use super::output::Outputs;
use super::{environment, mpi_detection};
use crate::core::messages::{Killed, RankEnd};
use crate::core::mpi::Mpi;
use muster_sys::child::{bind_to_processors, bind_to_this_thread};
use muster_sys::poll::{Epoll, readable};
use muster_sys::process::{descendants, open_pidfd, send_signal, send_signal_by, try_reap};

/// A rank that runs.
struct Running {
    pid: u32,
    pidfd: OwnedFd,
    /// Its exit status, if it has ended; its pid is then free for other processes.
    status: Option<u8>,
    /// The signal that killed it.
    signal: Option<i32>,
    /// Signals that were sent to end it, as bits.
    sent: u64,
}

/// The parameters of a rank's start.
pub(super) struct Start<'a> {
    pub(super) rank: u32,
    pub(super) program: &'a Path,
    pub(super) arguments: &'a [OsString],
    pub(super) environment: &'a [(OsString, OsString)],
    /// Processors on which it may run; empty for all of the launcher's.
    pub(super) processors: &'a [usize],
    /// It reads the launcher's standard input.
    pub(super) stdin: bool,
}

/// The ranks of this node.
#[derive(Default)]
pub(super) struct Ranks {
    running: BTreeMap<u32, Running>,
    /// Descendants of ranks that were told to end.
    descendants_to_end: Vec<OwnedFd>,
    /// The MPI that they have loaded, once one has connected to the PMIx server.
    mpi: Option<Mpi>,
}

/// Marks the epoll token of a rank's pidfd; the rank is added to it.
pub(super) const TOKEN: u64 = 1 << 32;

impl Ranks {
    /// Starts a rank.
    ///
    /// # Errors
    /// The system's error for the program.
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
        outputs.forward(&mut child, rank)?;
        let pid = child.id();
        let pidfd = open_pidfd(pid)?;
        epoll.add(pidfd.as_fd(), TOKEN | u64::from(rank))?;
        let running = Running {
            pid,
            pidfd,
            status: None,
            signal: None,
            sent: 0,
        };
        self.running.insert(rank, running);
        Ok(())
    }

    /// A rank has connected to the PMIx server. Returns the MPI of the ranks if that is new.
    pub(super) fn detect_mpi(&mut self, rank: u32) -> Option<Mpi> {
        let running = self.running.get(&rank)?;
        // The earlier connection may have been that of a program that a script runs before the MPI program.
        if self.mpi.is_some_and(|mpi| mpi != Mpi::NotFound) {
            return None;
        }
        let before = self.mpi;
        self.mpi = Some(mpi_detection::detect(
            running.pid,
            &environment::users_file(),
        ));
        self.mpi.filter(|_| self.mpi != before)
    }

    /// Checks which ranks have ended. The PMIx requests of such a rank are in the channel by now: its
    /// disconnection is acknowledged to it, and it waits for that.
    pub(super) fn poll(&mut self) {
        for running in self.running.values_mut() {
            if running.status.is_none() {
                running.status = match try_reap(running.pid) {
                    Ok(status) => {
                        running.signal = status.and_then(|status| status.signal());
                        status.map(shell_status)
                    }
                    // It is no longer a child of this process: its status is unknown.
                    Err(_) => Some(1),
                };
            }
        }
    }

    /// Removes and returns the ranks that had ended at the last check. Their PMIx requests must have been
    /// taken.
    pub(super) fn reap(&mut self, epoll: &Epoll) -> Vec<RankEnd> {
        let mut ended = Vec::new();
        self.running.retain(|rank, running| {
            let Some(status) = running.status else {
                return true;
            };
            epoll.remove(running.pidfd.as_fd());
            let (pid, sent) = (running.pid, running.sent);
            let signal = running.signal.filter(|signal| sent & bit(*signal) == 0);
            ended.push(RankEnd {
                rank: *rank,
                status,
                how: running.signal.unwrap_or(-i32::from(status)),
                killed: signal.map(|signal| Killed { pid, signal }),
            });
            false
        });
        ended
    }

    /// Sends a signal that is to end them to all ranks that run. From now on their descendants are waited for,
    /// too: a rank may be a shell whose program takes its time.
    pub(super) fn end(&mut self, signal: i32) {
        self.note_sent(signal);
        for running in self.running.values() {
            if running.status.is_none() {
                let _ = send_signal(running.pid, signal);
            }
        }
        for descendant in &self.descendants_to_end {
            let _ = send_signal_by(descendant.as_fd(), signal);
        }
    }

    /// Notes such a signal that another process has sent.
    pub(super) fn note_sent(&mut self, signal: i32) {
        for running in self.running.values_mut() {
            if running.status.is_none() {
                running.sent |= bit(signal);
                let below = descendants(running.pid);
                let opened = below.into_iter().filter_map(|pid| open_pidfd(pid).ok());
                self.descendants_to_end.extend(opened);
            }
        }
        self.descendants_to_end
            .retain(|descendant| !has_ended(descendant));
    }

    /// Sends a signal to the ranks of these ranges that run here, and to their descendants; to all if there is
    /// no range.
    pub(super) fn signal_some(&self, ranks: &[(u32, u32)], signal: i32) {
        let within = |rank: &u32| ranks.iter().any(|(from, to)| (from..=to).contains(&rank));
        let meant = |rank: &u32| ranks.is_empty() || within(rank);
        for (_, running) in self.running.iter().filter(|(rank, _)| meant(rank)) {
            if running.status.is_none() {
                for pid in descendants(running.pid) {
                    let _ = send_signal(pid, signal);
                }
                // It is not reaped yet, so the pid is still its own.
                let _ = send_signal(running.pid, signal);
            }
        }
    }

    /// Whether all ranks have ended, and the descendants that were to end with them.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.descendants_to_end.iter().all(has_ended)
    }
}

fn has_ended(descendant: &OwnedFd) -> bool {
    readable(&[descendant.as_fd()], Some(Duration::ZERO)).is_ok_and(|ready| ready[0])
}

fn bit(signal: i32) -> u64 {
    1 << (signal & 63)
}

/// Converts a wait status to an exit status as a shell does.
fn shell_status(status: ExitStatus) -> u8 {
    let killed = status.signal().map(|signal| 128 + signal);
    killed.or(status.code()).unwrap_or_default() as u8
}
