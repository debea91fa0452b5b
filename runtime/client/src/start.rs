//! Finds the agent of an agent directory, or starts one.
//!
//! Many ranks arrive at a node without an agent at the same time. The one that gets a file lock starts the agent, the
//! others wait for its socket. The kernel releases the lock when its holder ends, so a rank that is killed while it
//! starts an agent blocks no other.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Error, Setting};
use muster_ipc::{AgentDirectory, DirectoryError};
use muster_sys::socket::{Packets, Peer};
use muster_sys::{lock, memory, process, spawn};

/// The first and the longest pause between two attempts to connect.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// The longest pause while an agent listens but takes no more connections.
const PAUSE_BUSY: Duration = Duration::from_millis(250);
/// Most bytes that are read from the error output of a program that did not start.
const OUTPUT_MAX: usize = 2048;

/// The reason for the start of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// No agent was running, as far as this process knows.
    First,
    /// This process had an agent, which was lost.
    Again,
}

/// Connects to the agent. Starts one first if none is running and that is allowed.
pub(super) fn connect(
    setting: &Setting,
    may_start: Option<Start>,
    until: Instant,
) -> Result<Packets, Error> {
    let agent_directory = &setting.agent_directory;
    // Before any message is sent there: the agent must be one of this user.
    agent_directory.inspect()?;
    let begun = Instant::now();
    let mut pause = Pause::of(PAUSE_MAX);
    let mut last = String::from("no process listens there");
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let found = try_connect(agent_directory, left.min(PAUSE_BUSY), &mut last)?;
        let is_busy = matches!(found, Found::Busy);
        match found {
            Found::Agent(socket) => return Ok(socket),
            // A second agent could not listen there. The kernel has waited already.
            Found::Busy => {}
            Found::Absent => {
                if let Some(start) = may_start
                    && let Some(socket) = try_start(setting, start, until, &mut last)?
                {
                    return Ok(socket);
                }
            }
        }
        if setting.is_stopping() {
            return Err(Error::Finalized);
        }
        if Instant::now() >= until {
            let waited_ms = begun.elapsed().as_millis() as u64;
            return Err(Error::Deadline {
                socket: agent_directory.socket(),
                waited_ms,
                last,
            });
        }
        if !is_busy {
            pause.take(until);
        }
    }
}

/// Whether an agent of this user that can be trusted listens there now.
pub(super) fn is_agent_present(agent_directory: &AgentDirectory) -> bool {
    let found = |found| !matches!(found, Found::Absent);
    agent_directory.inspect().is_ok()
        && try_connect(agent_directory, Duration::ZERO, &mut String::new()).is_ok_and(found)
}

/// The process that listens at a socket.
enum Found {
    Agent(Packets),
    /// A process whose queue of connections is full.
    Busy,
    Absent,
}

impl Found {
    fn agent(self) -> Option<Packets> {
        match self {
            Self::Agent(socket) => Some(socket),
            Self::Busy | Self::Absent => None,
        }
    }
}

/// Waits up to `time_out` if the queue of connections is full.
fn try_connect(
    agent_directory: &AgentDirectory,
    time_out: Duration,
    last: &mut String,
) -> Result<Found, Error> {
    match Packets::connect_within(&agent_directory.socket(), time_out) {
        Ok(socket) if socket.peer().is_ok_and(Peer::is_trusted) => Ok(Found::Agent(socket)),
        Ok(_) => {
            let path = agent_directory.socket();
            let why = "a process of another user listens there".into();
            Err(DirectoryError::Unsafe { path, why }.into())
        }
        Err(cause) => match cause.kind() {
            io::ErrorKind::WouldBlock => {
                *last = "the agent's queue of connections is full".into();
                Ok(Found::Busy)
            }
            // A signal ended the wait for space.
            io::ErrorKind::Interrupted => Ok(Found::Busy),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                *last = cause.to_string();
                Ok(Found::Absent)
            }
            _ => Err(Error::System {
                what: "connect to the agent",
                cause,
            }),
        },
    }
}

/// Starts an agent if the lock is free, and waits for it. `None` if another process is starting one.
fn try_start(
    setting: &Setting,
    what: Start,
    until: Instant,
    last: &mut String,
) -> Result<Option<Packets>, Error> {
    let agent_directory = &setting.agent_directory;
    if setting.environment.lacks_plugin {
        // An agent of our own would have another key and find no other agent.
        return Err(Error::PluginMissing {
            socket: agent_directory.socket(),
        });
    }
    agent_directory.prepare()?;
    let held = match lock::try_lock(&agent_directory.start_lock()) {
        Ok(held) => held.map(StartLock),
        // An ending agent removes the directory: try again from the beginning.
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => None,
        Err(cause) => return Err(Error::system("lock start.lock")(cause)),
    };
    if held.is_none() {
        *last = "another process is starting an agent".into();
        return Ok(None);
    }
    // The process that had the lock before this one may have started an agent.
    match try_connect(agent_directory, Duration::ZERO, last)? {
        Found::Agent(socket) => return Ok(Some(socket)),
        Found::Busy => return Ok(None),
        Found::Absent => {}
    }
    let started = find(setting).and_then(|path| start(setting, what, path));
    let mut started = started.inspect_err(|_| agent_directory.leave())?;
    let mut pause = Pause::of(PAUSE_MAX);
    while Instant::now() < until {
        let socket = try_connect(agent_directory, Duration::ZERO, last)?.agent();
        // The program detaches before it listens, so the child has ended or is just about to. It must be reaped, or it
        // would stay a zombie of this process.
        let detached = started
            .has_detached()
            .inspect_err(|_| agent_directory.leave())?;
        if let Some(socket) = socket.filter(|_| detached) {
            return Ok(Some(socket));
        }
        pause.take(until);
    }
    *last = format!(
        "{} was started and does not listen; see {}",
        started.path.display(),
        agent_directory.log().display()
    );
    Ok(None)
}

/// The lock of the start. It is released explicitly: a child that another thread forks meanwhile has the same open
/// file and would keep the lock.
struct StartLock(File);

impl Drop for StartLock {
    fn drop(&mut self) {
        lock::unlock(&self.0);
    }
}

/// A program that was started and has not detached yet.
struct Started {
    path: PathBuf,
    pid: u32,
    detached: bool,
    /// Its error output, with the reason why it does not start.
    errors: File,
}

impl Started {
    /// Whether it has detached; an error if it failed.
    fn has_detached(&mut self) -> Result<bool, Error> {
        if self.detached {
            return Ok(true);
        }
        let ended = match process::try_reap(self.pid) {
            Ok(None) => return Ok(false),
            Ok(Some(status)) if status.success() => None,
            Ok(Some(status)) => Some(match status.signal() {
                Some(signal) => format!("killed by signal {signal}"),
                None => format!("exit code {}", status.code().unwrap_or_default()),
            }),
            // The application reaps all children itself: decide by the error output.
            Err(_) if self.output().is_empty() => None,
            Err(_) => Some("its exit code is not known".into()),
        };
        let Some(ended) = ended else {
            self.detached = true;
            return Ok(true);
        };
        Err(Error::AgentStart {
            path: self.path.clone(),
            reason: match self.output() {
                output if output.is_empty() => format!("it ended ({ended}) without a message"),
                output => format!("{output} ({ended})"),
            },
        })
    }

    /// Its error output, on one line and without the name of the program.
    fn output(&self) -> String {
        let mut bytes = [0; OUTPUT_MAX];
        let length = self.errors.read_at(&mut bytes, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..length]);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let line = lines.collect::<Vec<_>>().join("; ");
        line.strip_prefix("musterd: ").unwrap_or(&line).to_owned()
    }
}

fn start(setting: &Setting, what: Start, path: PathBuf) -> Result<Started, Error> {
    let agent_directory = &setting.agent_directory;
    let failed = |cause: io::Error| {
        let reason =
            format!("{cause}; set MUSTER_AGENT to the path of a musterd that can be executed");
        Error::AgentStart {
            path: path.clone(),
            reason,
        }
    };
    let directory = agent_directory.directory().as_os_str();
    let arguments_text = [
        "musterd".as_ref(),
        "--job".as_ref(),
        OsStr::new(agent_directory.key()),
        "--dir".as_ref(),
    ];
    // The other nodes may have declared this one failed meanwhile, and reported that to MPI.
    let again = what == Start::Again && setting.feeds_mpi.load(Ordering::Acquire);
    let again = again.then_some("--again".as_ref());
    let arguments_text = arguments_text.into_iter().chain([directory]).chain(again);
    let arguments: Result<Vec<_>, _> = arguments_text
        .map(|text| CString::new(text.as_bytes()))
        .collect();
    let arguments = arguments.map_err(|cause| failed(cause.into()))?;
    let errors = memory::create_file(c"muster-start").map_err(failed)?;
    let environment = &setting.environment.lines;
    let pid = spawn::spawn(&path, &arguments, environment, errors.as_fd()).map_err(failed)?;
    Ok(Started {
        path,
        pid,
        detached: false,
        errors,
    })
}

/// The variables that matter for an agent to start. Read once, by the thread that attaches: the library thread must
/// not read the environment while the application may be changing it.
#[derive(Debug)]
pub(super) struct Environment {
    /// `MUSTER_AGENT`.
    agent: Option<PathBuf>,
    /// `PATH`.
    path: OsString,
    /// The environment of the agent.
    lines: Vec<CString>,
    /// The job's key that srun has sent is still there: no plugin has passed it to an agent.
    lacks_plugin: bool,
}

/// The variable of the Slurm plugin that holds the job's key.
pub const SPANK_KEY: &str = "SLURM_MUSTER_KEY";

impl Environment {
    pub(super) fn take() -> Self {
        let agent = std::env::var_os("MUSTER_AGENT").filter(|path| !path.is_empty());
        Self {
            agent: agent.map(PathBuf::from),
            path: std::env::var_os("PATH").unwrap_or_default(),
            lines: environment(std::env::vars_os()),
            lacks_plugin: std::env::var_os(SPANK_KEY).is_some(),
        }
    }
}

/// This process's environment without the variables that would make the agent part of the rank (preloaded libraries
/// and the identity of an MPI process) and without empty settings, which count as unset.
fn environment(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<CString> {
    let of_the_rank = |name: &OsStr| {
        let name = name.as_bytes();
        name == b"LD_PRELOAD" || name.starts_with(b"PMIX_") || name.starts_with(b"PMI_")
    };
    let not_given =
        |name: &OsStr, value: &OsStr| value.is_empty() && name.as_bytes().starts_with(b"MUSTER_");
    let lines = variables
        .filter(|(name, value)| !of_the_rank(name) && !not_given(name, value))
        .map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()));
    lines.filter_map(Result::ok).collect()
}

/// The program to start: the given one, otherwise beside the library or the program, otherwise in PATH.
fn find(setting: &Setting) -> Result<PathBuf, Error> {
    let environment = &setting.environment;
    let given = setting
        .options
        .agent
        .as_ref()
        .or(environment.agent.as_ref());
    if let Some(path) = given {
        return Ok(path.clone());
    }
    let mut candidates = Vec::new();
    for home in [process::own_object(), std::env::current_exe().ok()]
        .into_iter()
        .flatten()
    {
        if let Some(folder) = home.parent() {
            candidates.push(folder.join("../bin/musterd"));
            candidates.push(folder.join("musterd"));
        }
    }
    let folders = std::env::split_paths(&environment.path);
    candidates.extend(folders.map(|folder| folder.join("musterd")));
    let found = candidates.iter().find(|candidate| candidate.is_file());
    found.cloned().ok_or_else(|| {
        let beside = candidates
            .iter()
            .take(4)
            .map(|path| path.display().to_string());
        let searched = beside.collect::<Vec<_>>().join(", ") + ", PATH";
        Error::AgentMissing {
            socket: setting.agent_directory.socket(),
            searched,
        }
    })
}

/// A pause that doubles up to a maximum. It is partly random, so that many processes do not retry at the same time.
pub(super) struct Pause {
    next: Duration,
    longest: Duration,
}

impl Pause {
    /// The first pause is a millisecond.
    pub(super) fn of(longest: Duration) -> Self {
        Self {
            next: PAUSE_FIRST,
            longest,
        }
    }

    /// For a client whose connection was closed: the agent has no room for it now, or ends.
    pub(super) fn busy() -> Self {
        Self::of(PAUSE_BUSY)
    }

    /// Waits, but not beyond `until`.
    pub(super) fn take(&mut self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        std::thread::sleep(self.draw(chance()).min(left));
    }

    /// Half of the pause, plus a random part (`chance`, 0 to 1) of the other half.
    fn draw(&mut self, chance: f64) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause / 2 + (pause / 2).mul_f64(chance)
    }
}

/// A random number between 0 and 1, not for cryptography.
fn chance() -> f64 {
    let drawn = RandomState::new().build_hasher().finish();
    f64::from(drawn as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_differ_between_processes() {
        let mut pause = Pause::busy();
        let mut waited = Duration::ZERO;
        for _ in 0..20 {
            let longest = pause.next;
            let drawn = pause.draw(chance());
            assert!(drawn >= longest / 2 && drawn <= longest && longest <= PAUSE_BUSY);
            waited += drawn;
        }
        assert!(waited > 5 * PAUSE_BUSY, "{waited:?}");
        let (first, last) = (Pause::busy().draw(0.0), Pause::busy().draw(1.0));
        assert_eq!((first, last), (PAUSE_FIRST / 2, PAUSE_FIRST));
        let begun = Instant::now();
        pause.take(begun);
        assert!(
            pause.next == PAUSE_BUSY,
            "and does not outstay its deadline"
        );
    }

    #[test]
    fn the_agent_does_not_inherit_the_variables_of_a_rank() {
        let names = [
            "LD_PRELOAD",
            "PMIX_RANK",
            "PMI_FD",
            "LD_LIBRARY_PATH",
            "MUSTER_JOB",
        ];
        let variables = names.into_iter().map(|name| (name.into(), "x=y".into()));
        let empty = ("MUSTER_RAILS".into(), "".into());
        let kept = environment(variables.chain([empty]));
        assert_eq!(
            kept,
            [
                c"LD_LIBRARY_PATH=x=y".to_owned(),
                c"MUSTER_JOB=x=y".to_owned()
            ]
        );
    }
}
