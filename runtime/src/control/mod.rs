//! The agent's side door for people: one request a connection, one JSON document as answer.
//!
//! Intuition: a counter with one clerk. The clerk (a thread that sleeps in `accept`) looks who it is,
//! takes a question or a change, hands it to the host loop through a window, waits for the answer and
//! gives it out; the loop answers from what it knows at that moment, makes a change between two of
//! its turns, and is never held up by a slow reader, nor by what a change stands for: that is judged by the
//! clerk ([`judge`]). Only the agent's own user and root are served; where
//! the site opens a second door, others may ask there, and change nothing. Who wants to read events is
//! handed on to the journal, and the loop never hears of it.
//!
//! A request is one line. Behind the line `import` follows a document, to the end of what is said.
//! [`protocol`] has the version that both sides name.

mod answer;
mod follow;
mod judge;
mod metrics;
pub(crate) mod protocol;
mod question;
mod rails;
mod rank;
pub(crate) mod story;
pub(crate) mod unheard;

pub(crate) use answer::{Sources, answer, cause_word, done, state_word};
pub(crate) use follow::{Followed, Follower};
pub(crate) use judge::{Judged, Made};
pub use question::{GossipCommand, Question, Request, RequestError};
pub(crate) use rank::{MINUS, tell_rank};

use crate::config::{Change, DOCUMENT_MAX, RailsDocument};
use crate::journal::{Journal, Reading};
use crate::sys::descriptor::EventFd;
use crate::sys::process::user_id;
use crate::sys::stream::{self, Trust};
use judge::Board;
use muster_fabric::{Nid, NidList};
use rustix::net::sockopt::socket_peercred;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};
use thiserror::Error;
use tracing::warn;

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
    /// What was made of it.
    pub(crate) judged: Option<Judged>,
    pub(crate) reply: Sender<Value>,
    /// Whoever sets it first has the say: the loop, which then serves the request, or the clerk, who
    /// then says that nobody will.
    decided: Arc<AtomicBool>,
}

/// The loop's end of the door.
pub(crate) struct Control {
    socket: Socket,
    window: Receiver<Pending>,
    bell: Arc<EventFd>,
    board: Arc<Board>,
    unanswered: Arc<AtomicU64>,
    /// The door for all, if there is one.
    others: Option<Socket>,
}

/// A path with our socket at it.
struct Socket {
    path: PathBuf,
    /// Device and inode of our socket: somebody else's may be at the path by now.
    identity: (u64, u64),
}

/// Who takes requests at one door.
struct Clerk {
    listener: UnixListener,
    window: SyncSender<Pending>,
    bell: Arc<EventFd>,
    board: Arc<Board>,
    unanswered: Arc<AtomicU64>,
    journal: Option<Journal>,
    /// Whether users of whom the agent is not may ask here.
    is_for_all: bool,
}

impl Control {
    /// Opens the door at `path`, and one at `others` for users that may only ask. A socket that a dead
    /// agent left there is replaced, that of a living one is not (`AddrInUse`). Without the second one the
    /// first serves all the same.
    pub(crate) fn open(
        path: &Path,
        others: Option<&Path>,
        journal: Option<&Journal>,
    ) -> io::Result<Self> {
        if stream::is_anybody_there(path, PATIENCE) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (bell, board) = (Arc::new(EventFd::new()?), Arc::<Board>::default());
        let unanswered = Arc::<AtomicU64>::default();
        let (window, requests) = sync_channel(WAITING_MAX);
        let clerk = |listener, is_for_all| Clerk {
            listener,
            window: window.clone(),
            bell: Arc::clone(&bell),
            board: Arc::clone(&board),
            unanswered: Arc::clone(&unanswered),
            journal: journal.cloned(),
            is_for_all,
        };
        let (listener, socket) = listen(path, 0o600)?;
        clerk(listener, false).start()?;
        let open_others = |path: &Path| {
            let (listener, socket) = listen(path, 0o666)?;
            clerk(listener, true).start()?;
            Ok(socket)
        };
        let others = others.and_then(|path| {
            let refused = |cause: &io::Error| {
                let path = path.display();
                warn!(%path, %cause, "no door for other users; name another directory with MUSTER_READABLE_IN");
            };
            open_others(path).inspect_err(refused).ok()
        });
        Ok(Self {
            socket,
            window: requests,
            bell,
            board,
            unanswered,
            others,
        })
    }

    /// Readable when somebody asks.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Says what is in force from now on; `gossips_at` are the node's rails if it runs age gossip.
    pub(crate) fn hang_up(
        &self,
        document: &RailsDocument,
        open: &[Nid],
        gossips_at: Option<NidList>,
    ) {
        self.board.hang(document, open, gossips_at);
    }

    /// How many who came got no answer, or not all of it.
    pub(crate) fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Whether nothing has changed since this was judged.
    pub(crate) fn still_holds(&self, judged: &Judged) -> bool {
        self.board.still_holds(judged)
    }

    /// Makes the descriptor readable again: not all requests were taken.
    pub(crate) fn look_again(&self) {
        self.bell.raise();
    }

    /// The next request that somebody still waits for, if there is one.
    pub(crate) fn take(&self) -> Option<Pending> {
        self.bell.drain();
        self.window.try_iter().find(Pending::is_ours)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        for socket in [Some(&self.socket), self.others.as_ref()]
            .into_iter()
            .flatten()
        {
            if identity(&socket.path).is_ok_and(|found| found == socket.identity) {
                let _ = fs::remove_file(&socket.path);
            }
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

/// Listens at `path`: under another name first, so that nobody finds it without its mode.
fn listen(path: &Path, mode: u32) -> io::Result<(UnixListener, Socket)> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    let _ = fs::remove_file(&fresh);
    let listener = UnixListener::bind(&fresh)?;
    fs::set_permissions(&fresh, Permissions::from_mode(mode))?;
    let identity = identity(&fresh)?;
    fs::rename(&fresh, path)?;
    let path = path.to_owned();
    Ok((listener, Socket { path, identity }))
}

impl Clerk {
    fn start(self) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("muster-control".into());
        thread.stack_size(256 << 10).spawn(move || self.serve())?;
        Ok(())
    }

    fn serve(&self) {
        loop {
            match self.listener.accept() {
                // A client that is slow, gone or somebody else's concerns nobody but itself; that it got no answer
                // is counted.
                Ok((client, _)) => {
                    if self.serve_one(client).is_err() {
                        self.unanswered.fetch_add(1, Ordering::Relaxed);
                    }
                }
                // Out of descriptors, for instance: it will not get better at once.
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    fn serve_one(&self, client: UnixStream) -> io::Result<()> {
        let peer = socket_peercred(&client)?.uid.as_raw();
        let is_trusted = may_ask(peer, user_id());
        if !is_trusted && !self.is_for_all {
            // Hung up on before it has said everything, it would not hear the answer.
            let end = Instant::now() + PATIENCE;
            let mut unread = Vec::new();
            while unread.len() <= LINE_MAX && more(&client, &mut unread, end)? {}
            return write(&client, denial(peer, ""));
        }
        let request = match read(&client)? {
            Ok(request) => request,
            Err(refusal) => return write(&client, refusal),
        };
        if !is_trusted && !request.is_for_all() {
            return write(&client, denial(peer, "this is for its user alone: "));
        }
        if let Request::Events { since, follow } = request {
            let reading = Reading {
                since,
                follow,
                is_own: is_trusted,
            };
            return self.hand_on(client, reading);
        }
        match self.board.judge(&request, PATIENCE) {
            Ok(judged) => write(&client, self.ask_loop(request, judged)?),
            Err(why) => write(&client, refusal(&why)),
        }
    }

    /// To the journal.
    fn hand_on(&self, client: UnixStream, reading: Reading) -> io::Result<()> {
        let refused = client.try_clone()?;
        let taken = self
            .journal
            .as_ref()
            .map(|journal| journal.read(client, reading));
        match taken {
            Some(true) => Ok(()),
            Some(false) => write(
                &refused,
                refusal("the journal has too much to do; ask again"),
            ),
            None => write(
                &refused,
                refusal("this agent keeps no journal; its log says why"),
            ),
        }
    }

    fn ask_loop(&self, request: Request, judged: Option<Judged>) -> io::Result<Value> {
        let (reply, answer) = channel();
        let decided = Arc::new(AtomicBool::new(false));
        let pending = Pending {
            request,
            judged,
            reply,
            decided: Arc::clone(&decided),
        };
        match self.window.try_send(pending) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                return Ok(refusal(
                    "the agent has too many questions waiting; ask again",
                ));
            }
            // The loop has ended: there is nobody who could answer, and whoever asked is told so by the silence.
            Err(TrySendError::Disconnected(_)) => {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        self.bell.raise();
        let answered = answer.recv_timeout(PATIENCE);
        if answered.is_err() && !decided.swap(true, Ordering::AcqRel) {
            return Ok(refusal(
                "the agent had no time for it and has done nothing; ask again",
            ));
        }
        // What the loop has begun it ends, and what has become of it must not be guessed here.
        let answered = answered.or_else(|_| answer.recv_timeout(PATIENCE));
        answered.map_err(|_| io::ErrorKind::TimedOut.into())
    }
}

fn denial(peer: u32, what: &str) -> Value {
    let why = format!(
        "{what}this agent belongs to uid {}, and you are uid {peer}; ask as its user or as root",
        user_id()
    );
    json!({ "error": why, "kind": DENIED })
}

/// Whether a process of the user `peer` may ask, and change, the agent of the user `own`.
fn may_ask(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

/// Takes a request, or says what is wrong with it. However slowly it comes, the clerk has others to
/// serve.
fn read(client: &UnixStream) -> io::Result<Result<Request, Value>> {
    let end = Instant::now() + PATIENCE;
    let (line, mut heard) = match read_line(client, end)? {
        Ok(said) => said,
        Err(why) => return Ok(Err(refusal(&why))),
    };
    let line = match protocol::unmark(&line) {
        Ok(line) => line,
        Err(number) => {
            let why = protocol::refusal(&number);
            return Ok(Err(json!({ "error": why, "kind": protocol::SKEWED })));
        }
    };
    let request = match line {
        IMPORT => {
            while heard.len() <= DOCUMENT_MAX && more(client, &mut heard, end)? {}
            let document = RailsDocument::import(&String::from_utf8_lossy(&heard));
            let replace = |document| Request::Change(Change::Replace(Box::new(document)));
            document.map(replace).map_err(|error| error.to_string())
        }
        line if !heard.trim_ascii().is_empty() => {
            let more = String::from_utf8_lossy(heard.trim_ascii()).into_owned();
            let more = more.lines().next().unwrap_or_default();
            Err(format!(
                "a request is one line, and behind {line:?} comes {more:?}; ask for one thing at a time"
            ))
        }
        line => line.parse::<Request>().map_err(|error| error.to_string()),
    };
    Ok(request.map_err(|why| refusal(&why)))
}

/// The first line, and what was heard behind it.
fn read_line(client: &UnixStream, end: Instant) -> io::Result<Result<(String, Vec<u8>), String>> {
    let mut heard: Vec<u8> = Vec::new();
    let line_end = |heard: &[u8]| heard.iter().position(|byte| *byte == b'\n');
    while line_end(&heard).is_none() && heard.len() <= LINE_MAX && more(client, &mut heard, end)? {}
    let at = line_end(&heard).unwrap_or(heard.len());
    if at > LINE_MAX {
        return Ok(Err(format!("the request is longer than {LINE_MAX} bytes")));
    }
    let line = String::from_utf8_lossy(&heard[..at]).trim().to_owned();
    heard.drain(..heard.len().min(at + 1));
    Ok(Ok((line, heard)))
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
fn write(mut client: &UnixStream, mut value: Value) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    protocol::stamp(&mut value);
    // By the line end the reader knows that it has all of it.
    let text = format!("{value}\n");
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
    /// The agent is of another release.
    #[error("the agent at {path} cannot be asked: {why}")]
    Skewed {
        /// The door.
        path: PathBuf,
        /// Both versions.
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
    let said = marked(request);
    let trust = trust_in(path);
    let text = stream::ask(path, said.as_bytes(), ANSWER_MAX, 2 * PATIENCE, trust)
        .map_err(|cause| AskError::of(path, cause))?;
    if !text.ends_with(b"\n") {
        return Err(AskError::of(path, io::ErrorKind::UnexpectedEof.into()));
    }
    AskError::check(path, &text)
}

/// What is said at the door.
fn marked(request: &Request) -> String {
    let (mark, version) = (protocol::MARK, protocol::PROTOCOL);
    format!(
        "{mark}{version} {request}\n{}",
        request.body().unwrap_or_default()
    )
}

/// A socket that everybody may speak to is meant for others than its user.
fn trust_in(path: &Path) -> Trust {
    match fs::metadata(path).is_ok_and(|found| found.mode() & 0o002 != 0) {
        true => Trust::Named,
        false => Trust::Own,
    }
}

impl AskError {
    fn of(path: &Path, cause: io::Error) -> Self {
        let path = path.to_owned();
        match cause.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::UnexpectedEof => {
                Self::NoAnswer { path, cause }
            }
            _ => Self::NoAgent { path, cause },
        }
    }

    /// An answer that was understood and is no refusal.
    fn check(path: &Path, text: &[u8]) -> Result<Value, Self> {
        let path = path.to_owned();
        let value: Value = match serde_json::from_slice(text) {
            Ok(value) => value,
            Err(error) => {
                let why = error.to_string();
                return Err(Self::Refused { path, why });
            }
        };
        if let Some(why) = protocol::skew(&value) {
            return Err(Self::Skewed { path, why });
        }
        match value
            .get("error")
            .and_then(Value::as_str)
            .map(str::to_owned)
        {
            Some(why) if value["kind"] == DENIED => Err(Self::Denied { path, why }),
            Some(why) => Err(Self::Refused { path, why }),
            None => Ok(value),
        }
    }
}

#[cfg(test)]
mod tests;
