//! Finding the agent of this place, or starting one.
//!
//! Intuition: many ranks arrive at an empty house at once. Whoever gets the key (a file lock)
//! starts the servant, the others wait at the door. The lock dies with its holder, so a rank that
//! is killed while it starts an agent blocks nobody.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Error, Options, Setting};
use crate::doorman::Place;
use crate::sys::socket::Packets;
use crate::sys::{lock, process, spawn};

/// The first and the longest pause between two looks for a socket.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_LONGEST: Duration = Duration::from_millis(20);

/// Connects to the agent, after starting one if there is none and the options allow it.
pub(super) fn connect(setting: &Setting, until: Instant) -> Result<Packets, Error> {
    let Setting { place, options, .. } = setting;
    let begun = Instant::now();
    let mut pause = Pause(PAUSE_FIRST);
    let mut last = String::from("nobody listens");
    loop {
        match try_connect(place, &mut last)? {
            Some(socket) => return Ok(socket),
            None if options.start_agent => {
                if let Some(socket) = try_start(place, options, until, &mut last)? {
                    return Ok(socket);
                }
            }
            None => {}
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

/// `None` if nobody listens there now.
fn try_connect(place: &Place, last: &mut String) -> Result<Option<Packets>, Error> {
    match Packets::connect(&place.socket()) {
        Ok(socket) => Ok(Some(socket)),
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
    place: &Place,
    options: &Options,
    until: Instant,
    last: &mut String,
) -> Result<Option<Packets>, Error> {
    place.prepare()?;
    let held = lock::try_lock(&place.start_lock()).map_err(Error::system("lock start.lock"))?;
    if held.is_none() {
        *last = "somebody else is starting an agent".into();
        return Ok(None);
    }
    // Whoever had the lock before us may have been successful.
    if let Some(socket) = try_connect(place, last)? {
        return Ok(Some(socket));
    }
    let path = find(place, options)?;
    let pid = start(place, &path)?;
    let mut pause = Pause(PAUSE_FIRST);
    let mut ended = false;
    while Instant::now() < until {
        if let Some(socket) = try_connect(place, last)? {
            // It detaches before it listens, so the child that we started is over.
            let _ = process::try_reap(pid);
            return Ok(Some(socket));
        }
        if !ended {
            ended = has_ended(pid, &path)?;
        }
        pause.take();
    }
    *last = format!("{} was started and does not listen", path.display());
    Ok(None)
}

/// Whether the started program has detached; an error if it gave up.
fn has_ended(pid: u32, path: &Path) -> Result<bool, Error> {
    match process::try_reap(pid) {
        Ok(None) => Ok(false),
        Ok(Some(0)) => Ok(true),
        Ok(Some(status)) => {
            let reason = if libc::WIFSIGNALED(status) {
                format!("it was killed by signal {}", libc::WTERMSIG(status))
            } else {
                format!(
                    "it ended with exit code {} (see stderr)",
                    libc::WEXITSTATUS(status)
                )
            };
            Err(Error::AgentStart {
                path: path.to_owned(),
                reason,
            })
        }
        // The application reaps all children itself: there is no telling.
        Err(_) => Ok(true),
    }
}

fn start(place: &Place, path: &Path) -> Result<u32, Error> {
    let failed = |cause: io::Error| {
        let reason = cause.to_string();
        Error::AgentStart {
            path: path.to_owned(),
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
    let texts = texts.into_iter().chain([directory]);
    let arguments: Result<Vec<_>, _> = texts.map(|text| CString::new(text.as_bytes())).collect();
    let arguments = arguments.map_err(|cause| failed(cause.into()))?;
    spawn::spawn(path, &arguments, &environment(std::env::vars_os())).map_err(failed)
}

/// This process's environment without what would make the agent part of it: preloaded libraries
/// and the identity of an MPI process.
fn environment(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<CString> {
    let of_the_rank = |name: &OsStr| {
        let name = name.as_bytes();
        name == b"LD_PRELOAD" || name.starts_with(b"PMIX_") || name.starts_with(b"PMI_")
    };
    let lines = variables
        .filter(|(name, _)| !of_the_rank(name))
        .map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()));
    lines.filter_map(Result::ok).collect()
}

/// The program to start: what was asked for, else beside the library or the program, else in PATH.
fn find(place: &Place, options: &Options) -> Result<PathBuf, Error> {
    let given = options.agent.clone().or_else(|| {
        let named = std::env::var_os("MUSTER_AGENT").filter(|path| !path.is_empty());
        named.map(PathBuf::from)
    });
    if let Some(path) = given {
        return Ok(path);
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
    let path = std::env::var_os("PATH").unwrap_or_default();
    candidates.extend(std::env::split_paths(&path).map(|folder| folder.join("musterd")));
    let found = candidates.iter().find(|candidate| candidate.is_file());
    found.cloned().ok_or_else(|| {
        let beside = candidates
            .iter()
            .take(4)
            .map(|path| path.display().to_string());
        let searched = beside.collect::<Vec<_>>().join(", ") + ", PATH";
        Error::AgentMissing {
            socket: place.socket(),
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
        let kept = environment(variables);
        assert_eq!(
            kept,
            [
                c"LD_LIBRARY_PATH=x=y".to_owned(),
                c"MUSTER_JOB=x=y".to_owned()
            ]
        );
    }
}
