//! The keeper: holds what a job's agent must not lose, and forks the worker that does the work.
//!
//! It holds the lock, the socket, the board and the resume record, and has libfabric loaded
//! (which takes a third of a second from cold). A worker that dies is forked again within
//! milliseconds, on the same board, with the same incarnation: nobody is declared failed
//! for it. The keeper itself is single-threaded and does nothing, so there is little that
//! could kill it; if it is killed all the same the worker goes on alone, and only if both
//! are gone does a client start a new agent.

use super::resume::Resume;
use super::signals::Signals;
use super::worker;
use crate::board::BoardWriter;
use crate::config::AgentConfig;
use crate::doorman::Listener;
use crate::sys::process::{Fork, fork};
use muster_fabric::Libfabric;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use thiserror::Error;
use tracing::{error, info, warn};

/// More worker deaths than this within the window: the cause is not going away.
const DEATHS_MAX: usize = 5;
const DEATH_WINDOW: Duration = Duration::from_secs(10);
/// How long an agent that could not start tells its clients why.
const REFUSAL_TIME: Duration = Duration::from_secs(2);
/// How long a worker may take for an orderly leave.
const LEAVE_DEADLINE: Duration = Duration::from_secs(2);

/// Why an agent could not serve its job.
#[derive(Debug, Error)]
pub enum KeeperError {
    /// The lock cannot be taken or made.
    #[error("lock {path}: {source}; set MUSTER_DIR to a directory that you can write to")]
    Lock {
        /// The lock file.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// Board, socket or resume record cannot be made.
    #[error("{what}: {source}")]
    Setup {
        /// Which of them.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// libfabric cannot be loaded.
    #[error(transparent)]
    Libfabric(#[from] muster_fabric::LoadError),
    /// The worker gave up for a reason that it told its clients.
    #[error("the worker could not start; it told its clients and the log why")]
    Worker,
    /// The worker kept dying.
    #[error("the worker died {DEATHS_MAX} times within {} s", DEATH_WINDOW.as_secs())]
    Crashing,
}

/// What keeper and workers share.
pub(super) struct Estate {
    pub(super) board: BoardWriter,
    pub(super) listener: Listener,
    pub(super) resume: Resume,
    pub(super) libfabric: Libfabric,
    /// Held for as long as keeper or worker lives.
    _lock: OwnedFd,
}

/// Serves the job until its last client has gone. Returns at once, and without an error, if
/// another agent already does.
pub(super) fn run(directory: &Path, config: &AgentConfig) -> Result<(), KeeperError> {
    let Some(lock) = take_lock(directory)? else {
        info!("another agent serves this job on this node");
        return Ok(());
    };
    let setup = |what| move |source| KeeperError::Setup { what, source };
    let mut listener = Listener::bind(&directory.join("sock")).map_err(setup("socket"))?;
    let libfabric = match muster_fabric::load() {
        Ok(libfabric) => libfabric,
        Err(error) => {
            listener.refuse_all(&error.to_string(), REFUSAL_TIME);
            return Err(error.into());
        }
    };
    let limits = worker::board_limits(config);
    let board = BoardWriter::create(&limits).map_err(setup("board"))?;
    let resume = Resume::create().map_err(setup("resume record"))?;
    let mut estate = Estate { board, listener, resume, libfabric, _lock: lock };
    let outcome = keep_working(&mut estate, config);
    if let Err(error) = &outcome {
        estate.listener.refuse_all(&error.to_string(), REFUSAL_TIME);
    }
    estate.listener.remove();
    outcome
}

fn take_lock(directory: &Path) -> Result<Option<OwnedFd>, KeeperError> {
    let path = directory.join("lock");
    let failed = |source: rustix::io::Errno| KeeperError::Lock {
        path: path.display().to_string(),
        source: source.into(),
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(lock)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Forks workers until one ends in order.
fn keep_working(estate: &mut Estate, config: &AgentConfig) -> Result<(), KeeperError> {
    let setup = |what| move |source| KeeperError::Setup { what, source };
    let mut deaths: VecDeque<Instant> = VecDeque::new();
    loop {
        let mut signals = Signals::install().map_err(setup("signals"))?;
        let worker = match fork().map_err(setup("fork"))? {
            Fork::Child => {
                drop(signals);
                std::process::exit(worker::run(estate, config));
            }
            Fork::Parent { child } => child,
        };
        info!(worker = worker.as_raw_nonzero().get(), "worker started");
        let code = wait_for(worker, &mut signals).map_err(setup("waiting for the worker"))?;
        match code {
            Some(worker::ENDED) => return Ok(()),
            Some(worker::GAVE_UP) => return Err(KeeperError::Worker),
            other => warn!(code = ?other, "the worker died; forking another"),
        }
        let now = Instant::now();
        deaths.push_back(now);
        deaths.retain(|death| now.duration_since(*death) < DEATH_WINDOW);
        if deaths.len() >= DEATHS_MAX {
            error!("the worker keeps dying");
            return Err(KeeperError::Crashing);
        }
    }
}

/// Waits for the worker's end; passes a request to terminate on to it. Returns its exit
/// code, or None if a signal ended it.
fn wait_for(worker: Pid, signals: &mut Signals) -> io::Result<Option<i32>> {
    let pidfd = pidfd_open(worker, PidfdFlags::empty())?;
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ];
        // No deadline: the worker's end and the signal are all that a keeper lives for.
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if signals.take() {
            let _ = kill_process(worker, Signal::TERM);
            let patience = LEAVE_DEADLINE.try_into().ok();
            let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
            if poll(&mut fds, patience.as_ref()) == Ok(0) {
                let _ = kill_process(worker, Signal::KILL);
            }
        }
        if let Some((_, status)) = waitpid(Some(worker), WaitOptions::NOHANG)? {
            return Ok(status.exit_status());
        }
    }
}
