//! The agent's side door for people: one request a connection, one JSON document as answer.
//!
//! Intuition: a counter with one clerk. The clerk (a thread that sleeps in `accept`) looks who it is,
//! takes a question or a change, hands it to the host loop through a window, waits for the answer and
//! gives it out; the loop answers from what it knows at that moment, makes a change between two of
//! its turns, and is never held up by a slow reader. Only the agent's own user and root are served.
//!
//! A request is one line. Behind the line `import` follows a document, to the end of what is said.

mod answer;
mod question;
mod rails;
pub(crate) mod story;

pub(crate) use answer::{Sources, answer, done};
pub use question::{Question, Request, RequestError};

use crate::config::{Change, DOCUMENT_MAX, RailsDocument};
use crate::sys::descriptor::EventFd;
use crate::sys::process::user_id;
use crate::sys::stream;
use rustix::net::sockopt::socket_peercred;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Questions that wait for the loop at one time.
const WAITING_MAX: usize = 4;
/// What a document is announced with.
const IMPORT: &str = "import";
/// The kind of a refusal because of who asks.
const DENIED: &str = "not allowed";
/// How long a client may take to ask or to read, and the loop to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Longest line and longest answer, in bytes. A rule has up to 128 patterns.
const LINE_MAX: usize = 16 << 10;
const ANSWER_MAX: usize = 64 << 20;

/// A request at the window.
pub(crate) struct Pending {
    pub(crate) request: Request,
    pub(crate) reply: Sender<Value>,
    /// Whoever sets it first has the say: the loop, which then serves the request, or the clerk, who
    /// then says that nobody will.
    decided: Arc<AtomicBool>,
}

/// The loop's end of the door.
pub(crate) struct Control {
    path: PathBuf,
    /// Device and inode of our socket: somebody else's may be at the path by now.
    socket: (u64, u64),
    window: Receiver<Pending>,
    bell: Arc<EventFd>,
}

impl Control {
    /// Opens the door at `path`; a socket that a dead agent left there is replaced, that of a living
    /// one is not (`AddrInUse`).
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if stream::is_anybody_there(path, PATIENCE) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let fresh = path.with_extension("new");
        let _ = fs::remove_file(&fresh);
        let listener = UnixListener::bind(&fresh)?;
        fs::set_permissions(&fresh, Permissions::from_mode(0o600))?;
        let socket = identity(&fresh)?;
        fs::rename(&fresh, path)?;
        let bell = Arc::new(EventFd::new()?);
        let (sender, window) = sync_channel(WAITING_MAX);
        let clerk_bell = Arc::clone(&bell);
        std::thread::Builder::new()
            .name("muster-control".into())
            .stack_size(256 << 10)
            .spawn(move || serve(&listener, &sender, &clerk_bell))?;
        Ok(Self {
            path: path.to_owned(),
            socket,
            window,
            bell,
        })
    }

    /// Readable when somebody asks.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The next request that somebody still waits for, if there is one.
    pub(crate) fn take(&self) -> Option<Pending> {
        self.bell.drain();
        self.window.try_iter().find(Pending::is_ours)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.socket) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Pending {
    /// Takes the decision about it; false if it was taken before.
    fn is_ours(&self) -> bool {
        !self.decided.swap(true, Ordering::AcqRel)
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

fn serve(listener: &UnixListener, window: &SyncSender<Pending>, bell: &EventFd) {
    loop {
        match listener.accept() {
            // A client that is slow, gone or somebody else's concerns nobody but itself.
            Ok((client, _)) => drop(serve_one(&client, window, bell)),
            // Out of descriptors, for instance: it will not get better at once.
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

fn serve_one(client: &UnixStream, window: &SyncSender<Pending>, bell: &EventFd) -> io::Result<()> {
    let peer = socket_peercred(client)?.uid.as_raw();
    if !may_ask(peer, user_id()) {
        // Hung up on before it has said everything, it would not hear the answer.
        let end = Instant::now() + PATIENCE;
        let mut unread = Vec::new();
        while unread.len() <= LINE_MAX && more(client, &mut unread, end)? {}
        let why = format!(
            "this agent belongs to uid {}, and you are uid {peer}; ask as its user or as root",
            user_id()
        );
        return write(client, &json!({ "error": why, "kind": DENIED }));
    }
    let request = match read(client)? {
        Ok(request) => request,
        Err(why) => return write(client, &refusal(&why)),
    };
    let (reply, answer) = channel();
    let decided = Arc::new(AtomicBool::new(false));
    let pending = Pending {
        request,
        reply,
        decided: Arc::clone(&decided),
    };
    if window.try_send(pending).is_err() {
        return write(
            client,
            &refusal("the agent has too many questions waiting; ask again"),
        );
    }
    bell.raise();
    let answered = answer.recv_timeout(PATIENCE);
    if answered.is_err() && !decided.swap(true, Ordering::AcqRel) {
        return write(
            client,
            &refusal("the agent had no time for it and has done nothing; ask again"),
        );
    }
    // What the loop has begun it ends, and what has become of it must not be guessed here.
    match answered.or_else(|_| answer.recv_timeout(PATIENCE)) {
        Ok(value) => write(client, &value),
        Err(_) => Ok(()),
    }
}

/// Whether a process of the user `peer` may ask, and change, the agent of the user `own`.
fn may_ask(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

/// Takes a request, or says what is wrong with it. However slowly it comes, the clerk has others to
/// serve.
fn read(client: &UnixStream) -> io::Result<Result<Request, String>> {
    let end = Instant::now() + PATIENCE;
    let mut heard: Vec<u8> = Vec::new();
    let line_end = |heard: &[u8]| heard.iter().position(|byte| *byte == b'\n');
    while line_end(&heard).is_none() && heard.len() <= LINE_MAX && more(client, &mut heard, end)? {}
    let at = line_end(&heard).unwrap_or(heard.len());
    if at > LINE_MAX {
        return Ok(Err(format!("the request is longer than {LINE_MAX} bytes")));
    }
    let line = String::from_utf8_lossy(&heard[..at]).trim().to_owned();
    if line != IMPORT {
        return Ok(line.parse::<Request>().map_err(|error| error.to_string()));
    }
    heard.drain(..heard.len().min(at + 1));
    while heard.len() <= DOCUMENT_MAX && more(client, &mut heard, end)? {}
    let document = RailsDocument::import(&String::from_utf8_lossy(&heard));
    let replace = |document| Request::Change(Change::Replace(Box::new(document)));
    Ok(document.map(replace).map_err(|error| error.to_string()))
}

/// Reads on; false at the end of what is said.
fn more(mut client: &UnixStream, heard: &mut Vec<u8>, end: Instant) -> io::Result<bool> {
    client.set_read_timeout(Some(left(end)?))?;
    let mut buffer = [0; 4096];
    let count = client.read(&mut buffer)?;
    heard.extend(&buffer[..count]);
    Ok(count > 0)
}

/// However slowly it is read, the clerk has others to serve.
fn write(mut client: &UnixStream, value: &Value) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    let text = value.to_string();
    let mut unsaid = text.as_bytes();
    while !unsaid.is_empty() {
        client.set_write_timeout(Some(left(end)?))?;
        match client.write(unsaid) {
            Ok(count) => unsaid = &unsaid[count..],
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

fn refusal(why: &str) -> Value {
    json!({ "error": why })
}

/// Why a request got no answer.
#[derive(Debug, Error)]
pub enum AskError {
    /// Nobody is at this door.
    #[error("no agent answers at {path} ({cause})")]
    NoAgent {
        /// The door.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// It was asked, and gave no answer in time or hung up. What it was asked for may have been done.
    #[error(
        "the agent at {path} gives no answer ({cause}); what it was asked for may have been done"
    )]
    NoAnswer {
        /// The door.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// The agent is somebody else's.
    #[error("the agent at {path} says: {why}")]
    Denied {
        /// The door.
        path: PathBuf,
        /// Its words.
        why: String,
    },
    /// The agent refused or did not understand.
    #[error("the agent at {path} says: {why}")]
    Refused {
        /// The door.
        path: PathBuf,
        /// Its words.
        why: String,
    },
}

/// Asks the agent at `path` a question.
///
/// # Errors
/// See [`AskError`]; nothing has changed anywhere.
pub fn ask(path: &Path, question: &Question) -> Result<Value, AskError> {
    request(path, &Request::Ask(question.clone()))
}

/// Asks the agent at `path` for something, which may be a change.
///
/// # Errors
/// See [`AskError`]. What was refused has changed nothing; of an agent that hangs up or gives no
/// answer in time it is not known whether it has.
pub fn request(path: &Path, request: &Request) -> Result<Value, AskError> {
    let path_of = || path.to_owned();
    let failed = |cause: io::Error| match cause.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::UnexpectedEof => AskError::NoAnswer {
            path: path_of(),
            cause,
        },
        _ => AskError::NoAgent {
            path: path_of(),
            cause,
        },
    };
    let refused = |why: String| AskError::Refused {
        path: path_of(),
        why,
    };
    let said = format!("{request}\n{}", request.body().unwrap_or_default());
    let text = stream::ask(path, said.as_bytes(), ANSWER_MAX, 2 * PATIENCE).map_err(failed)?;
    if text.is_empty() {
        return Err(failed(io::ErrorKind::UnexpectedEof.into()));
    }
    let value: Value = serde_json::from_slice(&text).map_err(|error| refused(error.to_string()))?;
    match value.get("error").and_then(Value::as_str) {
        Some(why) if value["kind"] == DENIED => Err(AskError::Denied {
            path: path_of(),
            why: why.to_owned(),
        }),
        Some(why) => Err(refused(why.to_owned())),
        None => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Shutdown;

    fn door() -> (tempfile::TempDir, PathBuf, Control) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let control = Control::open(&path).unwrap();
        (directory, path, control)
    }

    fn answer_one(control: &Control, value: &Value) -> Request {
        crate::sys::poll::readable(&[control.descriptor()], Some(Duration::from_secs(30))).unwrap();
        let pending = control.take().expect("a question");
        pending.reply.send(value.clone()).unwrap();
        pending.request
    }

    #[test]
    fn a_question_is_answered_by_the_loop() {
        let (_directory, path, control) = door();
        let asking = std::thread::spawn(move || ask(&path, &Question::Why("n3".into())));
        assert_eq!(
            answer_one(&control, &json!({"name": "n3"})),
            Request::Ask(Question::Why("n3".into()))
        );
        assert_eq!(asking.join().unwrap().unwrap()["name"], "n3");
    }

    /// A document goes through the door whole, and one that is wrong does not: line and column.
    #[test]
    fn a_document_goes_through_the_door() {
        let (_directory, path, control) = door();
        let text = "version: 1\nnets:\n  - net: udp0\n    rails:\n      - nid: 10.0.0.1@udp0\n";
        let document = RailsDocument::import(text).unwrap();
        let change = Request::Change(Change::Replace(Box::new(document)));
        let asked = change.clone();
        let asking = std::thread::spawn(move || request(&path, &asked));
        assert_eq!(answer_one(&control, &json!({})), change);
        assert!(asking.join().unwrap().is_ok());
        let (_directory, path, control) = door();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"import\nversion: 1\nnest: []\n").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.contains("line 2, column 1: the key"), "{text}");
        assert!(control.take().is_none());
    }

    #[test]
    fn only_the_agents_user_and_root_are_served() {
        assert!(may_ask(1000, 1000) && may_ask(0, 1000) && may_ask(0, 0));
        assert!(!may_ask(1001, 1000) && !may_ask(1000, 0));
    }

    #[test]
    fn nonsense_is_refused_and_does_not_reach_the_loop() {
        let (_directory, path, control) = door();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"dance\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.contains("dance") && text.contains("members"), "{text}");
        assert!(control.take().is_none());
    }

    /// Whatever is said at the door, of any length, is refused or hung up on; the clerk stays.
    #[test]
    fn mad_questions_leave_the_door_open() {
        let (_directory, path, control) = door();
        let mut state: u64 = 0x5eed;
        for round in 0..300_usize {
            let bytes: Vec<u8> = (0..round * 7)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect();
            let mut stream = UnixStream::connect(&path).unwrap();
            // It may hang up before it has taken all of a long one.
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Write);
            let mut answer = Vec::new();
            if stream.read_to_end(&mut answer).is_ok() && !answer.is_empty() {
                let answer: Value = serde_json::from_slice(&answer).unwrap();
                assert!(answer["error"].is_string(), "{answer}");
            }
            assert!(control.take().is_none());
        }
        let asking = std::thread::spawn(move || ask(&path, &Question::Stats));
        answer_one(&control, &json!({}));
        assert!(asking.join().unwrap().is_ok());
    }

    #[test]
    fn without_an_agent_the_door_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let error = ask(&path, &Question::Members).unwrap_err();
        assert!(matches!(error, AskError::NoAgent { .. }));
        assert!(error.to_string().contains("control"));
    }

    /// "Nothing was changed" stays true.
    #[test]
    fn what_was_refused_for_want_of_time_is_not_done_later() {
        let (_directory, path, control) = door();
        let refused = request(&path, &Request::Zero).unwrap_err();
        assert!(
            matches!(&refused, AskError::Refused { why, .. } if why.contains("has done nothing")),
            "{refused}"
        );
        assert!(control.take().is_none());
    }

    /// What the loop has begun is not called undone: of its end nothing is known.
    #[test]
    fn what_was_begun_and_does_not_end_has_no_answer() {
        let (_directory, path, control) = door();
        let asking = std::thread::spawn(move || request(&path, &Request::Zero));
        crate::sys::poll::readable(&[control.descriptor()], Some(Duration::from_secs(30))).unwrap();
        let begun = control.take().expect("a request");
        let unanswered = asking.join().unwrap().unwrap_err();
        assert!(
            matches!(unanswered, AskError::NoAnswer { .. }),
            "{unanswered}"
        );
        drop(begun);
    }

    #[test]
    fn the_door_of_a_dead_agent_is_replaced_and_ours_is_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        // As if its agent had been killed: its socket is still there.
        drop(UnixListener::bind(&path).unwrap());
        let control = Control::open(&path).unwrap();
        let asked_path = path.clone();
        let asking = std::thread::spawn(move || ask(&asked_path, &Question::Rails));
        answer_one(&control, &json!({}));
        assert!(asking.join().unwrap().is_ok());
        drop(control);
        assert!(!path.exists());
    }

    #[test]
    fn the_door_of_a_living_agent_is_left_alone() {
        let (_directory, path, control) = door();
        let refused = Control::open(&path).err().map(|cause| cause.kind());
        assert_eq!(refused, Some(io::ErrorKind::AddrInUse));
        // Somebody else has taken the path meanwhile, all the same.
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(control);
        assert!(path.exists());
    }
}
