//! The keeper: holds what a job's agent must not lose, and forks the worker that does the work.
//!
//! It holds the lock, the socket, the board and the resume record, and has libfabric loaded
//! (which takes a third of a second from cold). A worker that dies is forked again within
//! milliseconds, on the same board, with the same incarnation: nobody is declared failed
//! for it. The keeper itself is single-threaded and does nothing, so there is little that
//! could kill it; if it is killed all the same the worker goes on alone, and only if both
//! are gone does a client start a new agent.

use super::cpu_placement;
use super::descriptors::{self, Renewals};
use super::printer;
use super::resume::Resume;
use super::signals::Signals;
use super::worker;
use muster_config::{AgentConfig, KeySource, Stay, leave_key};
use muster_fabric::locality::Machine;
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

/// More worker deaths than this within the window: the cause is not going away.
const DEATHS_MAX: usize = 5;
const DEATH_WINDOW: Duration = Duration::from_secs(10);
/// How long a worker may take for an orderly leave.
const LEAVE_DEADLINE: Duration = Duration::from_secs(2);

/// Why an agent could not serve its job.
#[derive(Debug, Error)]
pub(super) enum SupervisorError {
    /// Lock or socket cannot be had.
    #[error(transparent)]
    Listener(#[from] ListenerError),
    /// The board cannot be made.
    #[error("{0}{remedy}", remedy = board_remedy(.0))]
    StateTable(#[from] TableError),
    /// Something else that the system refused.
    #[error("{what}: {source}{}", limits::remedy(source))]
    System {
        what: &'static str,
        source: io::Error,
    },
    /// Too few descriptors.
    #[error(
        "the limit is {open_files} open files, an agent needs {} and four for each client; raise \
         it (ulimit -n)",
        limits::OPEN_FILES_MIN
    )]
    OpenFiles { open_files: u64 },
    /// No process could be watched.
    #[error(
        "/proc is missing here, or tells of another pid namespace than the agent's, whose ranks it could \
         not watch; mount one for this namespace (unshare --mount-proc, or your container's setting for \
         that), or start the agent outside it"
    )]
    Proc,
    /// libfabric cannot be loaded.
    #[error(transparent)]
    Libfabric(#[from] muster_fabric::LoadError),
    /// The worker said why it cannot work.
    #[error("{}", match .0.as_str() {
        "" => "the worker could not start; its log says why",
        why => why,
    })]
    Worker(String),
    /// The worker kept dying.
    #[error(
        "the worker died {DEATHS_MAX} times within {} s{last_report}; its log is {}, and \
         MUSTER_LOG=info in the environment makes it say more",
        DEATH_WINDOW.as_secs(),
        log.display()
    )]
    Crashing { log: PathBuf, last_report: String },
}

fn board_remedy(error: &TableError) -> &'static str {
    match error {
        TableError::System { cause, .. } => limits::remedy(cause),
        _ => "",
    }
}

/// What keeper and workers share.
pub(super) struct InheritedState {
    pub(super) table: TableWriter,
    pub(super) listener: Listener,
    pub(super) resume: Resume,
    pub(super) libfabric: Libfabric,
    /// What the others hold on to: it breaks when keeper and worker are gone.
    pub(super) liveness_connection: Option<Arc<LivenessConnection>>,
    /// What is known of the machine.
    pub(super) machine: Option<Machine>,
    /// Who keeps it.
    pub(super) supervisor: Pid,
    /// The workers before that ended for a new one.
    pub(super) renewals: Renewals,
}

/// Leaves the launcher's sight: another session, another parent, no terminal, nothing
/// inherited. An inherited descriptor would make `mpirun` wait for us. Returns false in the
/// process that has to end now.
pub(super) fn detach() -> io::Result<bool> {
    // Already a session leader if the client spawned us as one.
    let _ = setsid();
    drop_inheritance()?;
    Ok(matches!(fork()?, Fork::Child))
}

/// Serves the job until its last client has gone.
pub(super) fn run(place: &AgentDirectory, config: &AgentConfig) -> Result<(), SupervisorError> {
    let listener = Listener::open(place)?;
    // The lock is ours, so the log is too; one run, one log.
    super::log::in_job(&place.log());
    let supervisor = getpid().as_raw_nonzero().get();
    info!(supervisor, job = place.key(), "agent started");
    if let (KeySource::Given(key), false) = (&config.key, config.stay == Stay::Lingering) {
        // If we are killed, the ranks start another one.
        if let Err(why) = leave_key(&place.key_file(), key) {
            let what = format!(
                "an agent that is started after this one, should it be killed, will not have the job's key: {why}"
            );
            warn!("{what}");
            printer::print_lack(&what);
        }
    }
    match furnish() {
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
            keep_working(inherited, place, config)
        }
        Err(error) => {
            listener.refuse_all(&error.to_string());
            clear_away(listener, place);
            Err(error)
        }
    }
}

/// Takes away all that is at the place, its key too, when nobody is served there any more. Whoever asks for a log
/// wants to read it afterwards.
pub(super) fn clear_away(listener: Listener, place: &AgentDirectory) {
    let is_log_wanted = std::env::var_os("MUSTER_LOG").is_some();
    listener.clear_away(place, !is_log_wanted);
}

fn furnish() -> Result<(TableWriter, Resume, Libfabric), SupervisorError> {
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
            "the limit of open files is low: it is enough for so many clients on this node, and further ones are \
             turned away; raise it (ulimit -Hn, nofile in /etc/security/limits.conf, LimitNOFILE= of the service)"
        );
    }
    let libfabric = keeping_handlers(muster_fabric::load)?;
    let table = TableWriter::create(TableLimits::default())?;
    let resume = Resume::create().map_err(|source| SupervisorError::System {
        what: "cannot make the resume record",
        source,
    })?;
    Ok((table, resume, libfabric))
}

/// Forks workers until one ends in order.
fn keep_working(
    mut inherited: InheritedState,
    place: &AgentDirectory,
    config: &AgentConfig,
) -> Result<(), SupervisorError> {
    let system = |what| move |source| SupervisorError::System { what, source };
    let mut deaths: VecDeque<Instant> = VecDeque::new();
    loop {
        let mut signals = Signals::install().map_err(system("cannot receive signals"))?;
        let worker = match fork() {
            Ok(Fork::Child) => {
                drop(signals);
                let code = worker::run(inherited, place, config);
                super::log::drain();
                std::process::exit(code);
            }
            Ok(Fork::Parent { child }) => Pid::from_raw(child as i32).expect("not zero"),
            Err(source) => {
                let error = system("cannot fork a worker")(source);
                inherited.listener.refuse_all(&error.to_string());
                clear_away(inherited.listener, place);
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
                clear_away(inherited.listener, place);
                return Ok(());
            }
            End::Code(worker::GAVE_UP) => {
                // All who came were told why, and nobody has a use for the place.
                clear_away(inherited.listener, place);
                return Err(SupervisorError::Worker(inherited.resume.last_report()));
            }
            End::Requested { killed } => {
                if killed {
                    // It has not told its clients, who will start no other for this.
                    inherited
                        .listener
                        .refuse_all("it was asked to end, and had to be killed");
                }
                match config.stay {
                    Stay::Lingering => inherited.listener.close(),
                    // Whoever started it has done with the place.
                    _ => clear_away(inherited.listener, place),
                }
                return Ok(());
            }
            End::Code(worker::RENEWED) if inherited.renewals.note(descriptors::now_us()) => {
                info!("the worker ended for a new one");
                continue;
            }
            End::Code(code) => warn!(code, "the worker failed; forking another"),
            End::Killed => warn!("the worker was killed; forking another"),
        }
        let now = Instant::now();
        deaths.push_back(now);
        deaths.retain(|death| now.duration_since(*death) < DEATH_WINDOW);
        if deaths.len() >= DEATHS_MAX {
            error!("the worker keeps dying");
            let error = SupervisorError::Crashing {
                log: place.log(),
                last_report: match inherited.resume.last_report().as_str() {
                    "" => String::new(),
                    words => format!(" (it said: {words})"),
                },
            };
            inherited.listener.refuse_all(&error.to_string());
            return Err(error);
        }
    }
}

/// How a worker ended.
enum End {
    /// By itself, with this exit code.
    Code(i32),
    /// By a signal of somebody else.
    Killed,
    /// Because this keeper was asked to end; it had to be killed if it did not by itself.
    Requested { killed: bool },
}

/// Waits for the worker's end; passes a request to terminate on to it.
fn wait_for(worker: Pid, signals: &mut Signals) -> io::Result<End> {
    let pidfd = pidfd_open(worker, PidfdFlags::empty())?;
    let (mut requested, mut killed) = (false, false);
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ];
        // No deadline: the worker's end and a signal are all that a keeper lives for.
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if signals.take() {
            requested = true;
            let _ = kill_process(worker, Signal::TERM);
            let patience = LEAVE_DEADLINE.try_into().ok();
            let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
            if poll(&mut fds, patience.as_ref()) == Ok(0) {
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
