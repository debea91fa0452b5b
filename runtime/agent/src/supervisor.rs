//! The supervisor holds what a job's agent must not lose, and forks the worker that runs the event loop.
//!
//! It holds the lock, the socket, the state table and the resume record, and has libfabric loaded (a cold load takes a
//! third of a second; on a machine with RDMA devices each worker does that itself). If the worker is killed, the
//! supervisor forks another one within milliseconds, on the same state table and with the same incarnation, so the node
//! is not declared failed. The supervisor is single-threaded and only waits, so little can make it fail. If it is
//! killed, the worker continues alone. Only if both are gone does a client start a new agent.

use super::cpu_placement;
use super::descriptors::{self, Renewals};
use super::inherited_state::{InheritedState, clean_up};
use super::printer;
use super::resume::Resume;
use super::signals::Signals;
use super::worker;
use muster_config::{AgentConfig, KeySource, Stay, leave_key};
use muster_fabric::{Libfabric, LivenessConnection};
use muster_ipc::locked_directory::remove_abandoned;
use muster_ipc::{AgentDirectory, Listener, ListenerError};
use muster_shm::{TableError, TableLimits, TableWriter};
use muster_sys::daemon::{Fork, drop_inheritance, fork};
use muster_sys::limits;
use muster_sys::procfs;
use muster_sys::signal::keeping_handlers;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, setsid, waitpid,
};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tracing::{error, info, warn};

/// Maximum number of worker deaths within the window; with more, the cause is permanent.
const DEATHS_MAX: usize = 5;
const DEATH_WINDOW: Duration = Duration::from_secs(10);
/// Maximum time of a worker's orderly leave.
const LEAVE_DEADLINE: Duration = Duration::from_secs(2);

/// Why an agent could not serve its job.
#[derive(Debug, Error)]
pub(super) enum SupervisorError {
    /// The lock or the socket is not available.
    #[error(transparent)]
    Listener(#[from] ListenerError),
    /// The state table cannot be created.
    #[error("{0}{remedy}", remedy = table_remedy(.0))]
    StateTable(#[from] TableError),
    /// Another system call failed.
    #[error("{what}: {source}{}", limits::remedy(source))]
    System {
        what: &'static str,
        source: io::Error,
    },
    /// The limit of open files is too low.
    #[error(
        "the limit is {open_files} open files, an agent needs {} and four for each client; raise \
         it (ulimit -n)",
        limits::OPEN_FILES_MIN
    )]
    OpenFiles { open_files: u64 },
    /// Processes cannot be watched.
    #[error(
        "/proc is not mounted here, or belongs to another pid namespace than the agent's, so the agent could not watch \
         its ranks; mount one for this namespace (unshare --mount-proc, or the corresponding setting of your \
         container), or start the agent outside it"
    )]
    Proc,
    /// libfabric cannot be loaded.
    #[error(transparent)]
    Libfabric(#[from] muster_fabric::LoadError),
    /// The worker cannot work, and has reported the reason.
    #[error("{}", match .0.as_str() {
        "" => "the worker could not start; see its log",
        why => why,
    })]
    Worker(String),
    /// Workers died repeatedly.
    #[error(
        "the worker died {DEATHS_MAX} times within {} s{last_report}; see its log {}, and set \
         MUSTER_LOG=info in the environment for more details",
        DEATH_WINDOW.as_secs(),
        log.display()
    )]
    Crashing { log: PathBuf, last_report: String },
}

fn table_remedy(error: &TableError) -> &'static str {
    match error {
        TableError::System { cause, .. } => limits::remedy(cause),
        _ => "",
    }
}

/// Detaches from the launcher: new session, new parent, no terminal, no inherited descriptors. With an inherited
/// descriptor open, `mpirun` would not end before the agent. Returns false in the process that has to end now.
pub(super) fn detach() -> io::Result<bool> {
    // Fails without effect if the client spawned this process as a session leader.
    let _ = setsid();
    drop_inheritance()?;
    Ok(matches!(fork()?, Fork::Child))
}

/// Serves the job until its last client has gone.
pub(super) fn run(
    agent_directory: &AgentDirectory,
    config: &AgentConfig,
) -> Result<(), SupervisorError> {
    let listener = Listener::open(agent_directory)?;
    // This process has the lock, so it may truncate the log.
    super::log::in_job(&agent_directory.log());
    let supervisor = getpid().as_raw_nonzero().get();
    info!(supervisor, job = agent_directory.key(), "agent started");
    if let (KeySource::Given(key), false) = (&config.key, config.stay == Stay::Lingering) {
        // If this agent is killed, the ranks start another one.
        if let Err(why) = leave_key(&agent_directory.key_file(), key) {
            let what = format!(
                "cannot write the job key; an agent that replaces this one, should it be killed, lacks the key: {why}"
            );
            warn!("{what}");
            printer::print_limitation(&what);
        }
    }
    match prepare() {
        Ok((table, resume, libfabric)) => {
            let inherited = InheritedState {
                table,
                listener,
                resume,
                libfabric,
                liveness_connection: LivenessConnection::new().ok().map(Arc::new),
                machine: cpu_placement::read_machine(),
                supervisor: getpid(),
                renewals: Renewals::default(),
            };
            run_workers(inherited, agent_directory, config)
        }
        Err(error) => {
            listener.refuse_all(&error.to_string());
            clean_up(listener, agent_directory);
            Err(error)
        }
    }
}

fn prepare() -> Result<(TableWriter, Resume, Libfabric), SupervisorError> {
    if !procfs::is_ours() {
        return Err(SupervisorError::Proc);
    }
    let open_files = limits::raise_all();
    if open_files < limits::OPEN_FILES_MIN {
        return Err(SupervisorError::OpenFiles { open_files });
    }
    if open_files < limits::open_files_wished() {
        let clients = limits::clients_served(open_files);
        warn!(
            open_files,
            clients,
            "the limit of open files is low: it suffices for this number of clients on this node, and further ones are \
             refused; raise it (ulimit -Hn, nofile in /etc/security/limits.conf, LimitNOFILE= of the service)"
        );
    }
    let libfabric = keeping_handlers(muster_fabric::load_before_fork)?;
    let table = TableWriter::create(TableLimits::default())?;
    let resume = Resume::create().map_err(|source| SupervisorError::System {
        what: "cannot create the resume record",
        source,
    })?;
    Ok((table, resume, libfabric))
}

/// Forks workers until one ends in order.
fn run_workers(
    mut inherited: InheritedState,
    agent_directory: &AgentDirectory,
    config: &AgentConfig,
) -> Result<(), SupervisorError> {
    let system = |what| move |source| SupervisorError::System { what, source };
    let mut deaths: VecDeque<Instant> = VecDeque::new();
    loop {
        let mut signals = Signals::install().map_err(system("cannot receive signals"))?;
        let worker = match fork() {
            Ok(Fork::Child) => {
                drop(signals);
                let code = worker::run(inherited, agent_directory, config);
                super::log::drain();
                std::process::exit(code);
            }
            Ok(Fork::Parent { child }) => Pid::from_raw(child as i32).expect("not zero"),
            Err(source) => {
                let error = system("cannot fork a worker")(source);
                inherited.listener.refuse_all(&error.to_string());
                clean_up(inherited.listener, agent_directory);
                return Err(error);
            }
        };
        info!(worker = worker.as_raw_nonzero().get(), "worker started");
        if deaths.is_empty() {
            remove_abandoned();
        }
        let wait = wait_for(worker, &mut signals);
        match wait.map_err(system("cannot wait for the worker"))? {
            End::Code(worker::ENDED) => {
                remove_abandoned();
                clean_up(inherited.listener, agent_directory);
                return Ok(());
            }
            End::Code(worker::GAVE_UP) => {
                // All clients were told the reason, and the directory is no longer needed.
                clean_up(inherited.listener, agent_directory);
                return Err(SupervisorError::Worker(inherited.resume.last_report()));
            }
            End::Requested { killed } => {
                if killed {
                    // The worker has not told its clients. They start no other agent after a requested end.
                    inherited
                        .listener
                        .refuse_all("it was requested to end, and had to be killed");
                }
                match config.stay {
                    Stay::Lingering => inherited.listener.close(),
                    // The parent that started the agent no longer needs the directory.
                    _ => clean_up(inherited.listener, agent_directory),
                }
                return Ok(());
            }
            End::Code(worker::RENEWED) if inherited.renewals.note(descriptors::now_us()) => {
                info!("the worker ended so that a new one takes over");
                continue;
            }
            End::Code(code) => warn!(code, "the worker failed; forking another"),
            End::Killed => warn!("the worker was killed; forking another"),
        }
        let now = Instant::now();
        deaths.push_back(now);
        deaths.retain(|death| now.duration_since(*death) < DEATH_WINDOW);
        if deaths.len() >= DEATHS_MAX {
            error!("workers died repeatedly; the agent ends");
            let error = SupervisorError::Crashing {
                log: agent_directory.log(),
                last_report: match inherited.resume.last_report().as_str() {
                    "" => String::new(),
                    reason => format!(" (its last report: {reason})"),
                },
            };
            inherited.listener.refuse_all(&error.to_string());
            return Err(error);
        }
    }
}

/// How a worker ended.
enum End {
    /// It exited with this code.
    Code(i32),
    /// A signal that the supervisor did not send killed it.
    Killed,
    /// The supervisor was requested to end, and passed that on. `killed` if the worker did not end in time.
    Requested { killed: bool },
}

/// Waits for the worker's end, and passes a request to terminate on to it.
fn wait_for(worker: Pid, signals: &mut Signals) -> io::Result<End> {
    let pidfd = pidfd_open(worker, PidfdFlags::empty())?;
    let (mut requested, mut killed) = (false, false);
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ];
        // No time-out: the supervisor waits only for the worker's end and for signals.
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if signals.take() {
            requested = true;
            let _ = kill_process(worker, Signal::TERM);
            let timeout = LEAVE_DEADLINE.try_into().ok();
            let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
            if poll(&mut fds, timeout.as_ref()) == Ok(0) {
                killed = true;
                let _ = kill_process(worker, Signal::KILL);
            }
        }
        if let Some((_, status)) = waitpid(Some(worker), WaitOptions::NOHANG)? {
            return Ok(match status.exit_status() {
                _ if requested => End::Requested { killed },
                Some(code) => End::Code(code),
                None => End::Killed,
            });
        }
    }
}
