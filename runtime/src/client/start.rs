//! Finding the agent of this place, or starting one.
//!
//! Intuition: many ranks arrive at an empty house at once. Whoever gets the key (a file lock)
//! starts the servant, the others wait at the door. The lock dies with its holder, so a rank that
//! is killed while it starts an agent blocks nobody.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Error, Setting};
use crate::doorman::{Place, PlaceError};
use crate::sys::socket::{Packets, Peer};
use crate::sys::{lock, memory, process, spawn};

/// The first and the longest pause between two looks for a socket.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_LONGEST: Duration = Duration::from_millis(20);
/// The most that is read of what a program said when it did not start, in bytes.
const SAID_MAX: usize = 2048;

/// What an agent is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// There was none, as far as this process knows.
    First,
    /// This process had one, which was lost.
    Again,
}

/// Connects to the agent, after starting one if there is none and that is allowed.
pub(super) fn connect(
    setting: &Setting,
    may_start: Option<Start>,
    until: Instant,
) -> Result<Packets, Error> {
    let place = &setting.place;
    // Before anybody there is spoken to: it must be one of this user.
    place.inspect()?;
    let begun = Instant::now();
    let mut pause = Pause(PAUSE_FIRST);
    let mut last = String::from("nobody listens");
    loop {
        match try_connect(place, &mut last)? {
            Some(socket) => return Ok(socket),
            None => {
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
                socket: place.socket(),
                waited_ms,
                last,
            });
        }
        pause.take();
    }
}

/// Whether somebody listens there now, and may be trusted to be an agent of this user.
pub(super) fn is_anybody_there(place: &Place) -> bool {
    place.inspect().is_ok() && try_connect(place, &mut String::new()).is_ok_and(|it| it.is_some())
}

/// `None` if nobody listens there now.
fn try_connect(place: &Place, last: &mut String) -> Result<Option<Packets>, Error> {
    match Packets::connect(&place.socket()) {
        Ok(socket) if socket.peer().is_ok_and(Peer::is_trusted) => Ok(Some(socket)),
        Ok(_) => {
            let path = place.socket();
            let why = "somebody else listens there".into();
            Err(PlaceError::Unsafe { path, why }.into())
        }
        Err(cause) => match cause.raw_os_error() {
            Some(libc::ENOENT | libc::ECONNREFUSED | libc::EAGAIN | libc::EINTR) => {
                *last = cause.to_string();
                Ok(None)
            }
            _ => Err(Error::System {
                what: "connect to the agent",
                cause,
            }),
        },
    }
}

/// Starts an agent if the lock is free, and waits for it. `None` if somebody else is starting one.
fn try_start(
    setting: &Setting,
    what: Start,
    until: Instant,
    last: &mut String,
) -> Result<Option<Packets>, Error> {
    let place = &setting.place;
    if setting.environment.lacks_plugin {
        // One of our own would have another key, and meet nobody.
        return Err(Error::PluginMissing {
            socket: place.socket(),
        });
    }
    place.prepare()?;
    let held = match lock::try_lock(&place.start_lock()) {
        Ok(held) => held.map(StartLock),
        // An agent that ends takes the directory away: once more from the beginning.
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => None,
        Err(cause) => return Err(Error::system("lock start.lock")(cause)),
    };
    if held.is_none() {
        *last = "somebody else is starting an agent".into();
        return Ok(None);
    }
    // Whoever had the lock before us may have been successful.
    if let Some(socket) = try_connect(place, last)? {
        return Ok(Some(socket));
    }
    let started = find(setting).and_then(|path| start(setting, what, path));
    let mut started = started.inspect_err(|_| place.leave())?;
    let mut pause = Pause(PAUSE_FIRST);
    while Instant::now() < until {
        let socket = try_connect(place, last)?;
        // It detaches before it listens, so the child is over or just about to be; it is waited
        // for, as it would stay a zombie in this process.
        let detached = started.has_detached().inspect_err(|_| place.leave())?;
        if let Some(socket) = socket.filter(|_| detached) {
            return Ok(Some(socket));
        }
        pause.take();
    }
    *last = format!(
        "{} was started and does not listen; see {}",
        started.path.display(),
        place.log().display()
    );
    Ok(None)
}

/// Given back as soon as this process has done with it: a child that another thread forks meanwhile
/// has the same open file, and would keep it.
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
    /// Where it says why it does not start.
    errors: File,
}

impl Started {
    /// Whether it has detached; an error if it gave up.
    fn has_detached(&mut self) -> Result<bool, Error> {
        if self.detached {
            return Ok(true);
        }
        let ended = match process::try_reap(self.pid) {
            Ok(None) => return Ok(false),
            Ok(Some(0)) => None,
            Ok(Some(status)) if libc::WIFSIGNALED(status) => {
                Some(format!("killed by signal {}", libc::WTERMSIG(status)))
            }
            Ok(Some(status)) => Some(format!("exit code {}", libc::WEXITSTATUS(status))),
            // The application reaps all children itself: what was said has to do.
            Err(_) if self.said().is_empty() => None,
            Err(_) => Some("its exit code is not known".into()),
        };
        let Some(ended) = ended else {
            self.detached = true;
            return Ok(true);
        };
        Err(Error::AgentStart {
            path: self.path.clone(),
            reason: match self.said() {
                said if said.is_empty() => format!("it ended ({ended}) and said nothing"),
                said => format!("{said} ({ended})"),
            },
        })
    }

    /// What it said, on one line and without its name.
    fn said(&self) -> String {
        let mut bytes = [0; SAID_MAX];
        let length = self.errors.read_at(&mut bytes, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..length]);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let line = lines.collect::<Vec<_>>().join("; ");
        line.strip_prefix("musterd: ").unwrap_or(&line).to_owned()
    }
}

fn start(setting: &Setting, what: Start, path: PathBuf) -> Result<Started, Error> {
    let place = &setting.place;
    let failed = |cause: io::Error| {
        let reason = format!("{cause}; set MUSTER_AGENT to the path of a musterd that can be run");
        Error::AgentStart {
            path: path.clone(),
            reason,
        }
    };
    let directory = place.directory().as_os_str();
    let texts = [
        "musterd".as_ref(),
        "--job".as_ref(),
        OsStr::new(place.key()),
        "--dir".as_ref(),
    ];
    // The others may have buried this node meanwhile, and MPI with them.
    let again = what == Start::Again && setting.feeds_mpi.load(Ordering::Acquire);
    let again = again.then_some("--again".as_ref());
    let texts = texts.into_iter().chain([directory]).chain(again);
    let arguments: Result<Vec<_>, _> = texts.map(|text| CString::new(text.as_bytes())).collect();
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

/// What the environment says about agents to start. Taken once, by the thread that attaches: the library
/// thread must not look at what the application may be changing.
#[derive(Debug)]
pub(super) struct Environment {
    /// `MUSTER_AGENT`.
    agent: Option<PathBuf>,
    /// `PATH`.
    path: OsString,
    /// What an agent gets.
    lines: Vec<CString>,
    /// The job's key that srun has sent is still there: nobody has taken it for an agent.
    lacks_plugin: bool,
}

/// As the plugin of Slurm calls it.
pub(crate) const SPANK_KEY: &str = "SLURM_MUSTER_KEY";

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

/// This process's environment without what would make the agent part of it (preloaded libraries
/// and the identity of an MPI process) and without empty settings, which count as not given.
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

/// The program to start: what was asked for, else beside the library or the program, else in PATH.
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
            socket: setting.place.socket(),
            searched,
        }
    })
}

/// A pause that doubles up to its longest.
struct Pause(Duration);

impl Pause {
    fn take(&mut self) {
        std::thread::sleep(self.0);
        self.0 = (self.0 * 2).min(PAUSE_LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_does_not_inherit_what_makes_a_process_a_rank() {
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
