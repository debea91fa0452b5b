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
mod tests {
    use super::*;
    use std::net::Shutdown;

    fn door() -> (tempfile::TempDir, PathBuf, Control) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let control = Control::open(&path, None, None).unwrap();
        (directory, path, control)
    }

    /// Asks until the loop is there in time: on a busy machine it may come when the clerk has withdrawn the question.
    fn insist(path: &Path, wanted: &Request) -> Result<Value, AskError> {
        loop {
            match request(path, wanted) {
                Err(AskError::Refused { why, .. }) if why.contains("ask again") => {}
                answered => return answered,
            }
        }
    }

    /// The next request that has not been withdrawn.
    fn take_one(control: &Control) -> Pending {
        let deadline = Duration::from_secs(30);
        loop {
            let is_there = crate::sys::poll::readable(&[control.descriptor()], Some(deadline));
            assert!(is_there.unwrap()[0], "nobody asks");
            if let Some(pending) = control.take() {
                return pending;
            }
        }
    }

    fn answer_one(control: &Control, value: &Value) -> Request {
        let pending = take_one(control);
        pending.reply.send(value.clone()).unwrap();
        pending.request
    }

    #[test]
    fn a_question_is_answered_by_the_loop() {
        let (_directory, path, control) = door();
        let why = Request::Ask(Question::Why("n3".into()));
        let asked = why.clone();
        let asking = std::thread::spawn(move || insist(&path, &asked));
        assert_eq!(answer_one(&control, &json!({"name": "n3"})), why);
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
        let asking = std::thread::spawn(move || insist(&path, &asked));
        hang_up(&control);
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

    /// On one rail, with age gossip.
    fn hang_up(control: &Control) {
        let text = "version: 1\nnets:\n  - net: udp0\n    rails:\n      - nid: 10.0.0.1@udp0\n";
        let own: NidList = "10.0.0.1@udp0".parse().unwrap();
        let document = RailsDocument::import(text).unwrap();
        control.hang_up(&document, own.as_slice(), Some(own.clone()));
    }

    /// What cannot be done is refused by the clerk alone, whatever it stands for: the loop never hears of it. A file
    /// that has no end is not even opened.
    #[test]
    fn what_is_wrong_with_a_change_is_found_before_the_loop_has_it() {
        let (directory, path, control) = door();
        hang_up(&control);
        let fifo = directory.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        let gossip = format!("gossip init 200 1 safe - file:{}", fifo.display());
        let many: Vec<String> = (0..12)
            .map(|one| format!("10.{one}.[0-3].[0-255]@udp0"))
            .collect();
        for (line, why) in [
            (
                &*format!("peers add {}", many.join(" ")),
                "more than 1024 peers",
            ),
            (
                "peers add 10.9.[0-15].[0-255]@udp0",
                "4096 names; at most 1024",
            ),
            (
                "peers add 10.9.0.[0-255]@o2ib0",
                "10.9.0.0@o2ib0 is on none of the nets",
            ),
            ("peers del 10.9.0.1@udp0", "10.9.0.1@udp0 is of no peer"),
            ("rails del 10.0.0.1@udp0", "last rail"),
            (
                "gossip init 200 1 safe - 10.[1-3].[0-255].[0-255]@udp0",
                "0 of the participants are rails of this",
            ),
            (&*gossip, "opens no files"),
        ] {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(format!("{line}\n").as_bytes()).unwrap();
            let mut text = String::new();
            stream
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            stream.read_to_string(&mut text).unwrap();
            assert!(text.contains(why), "{line}: {text}");
            assert!(control.take().is_none(), "{line}");
        }
    }

    /// Of two changes of the same state the second is judged anew.
    #[test]
    fn what_was_judged_holds_until_something_changes() {
        let (_directory, path, control) = door();
        let change = Request::Change("peers add 10.0.0.[2-3]@udp0".parse().unwrap());
        let asking = std::thread::spawn(move || insist(&path, &change));
        hang_up(&control);
        let pending = take_one(&control);
        let judged = pending.judged.expect("the document after it");
        assert!(control.still_holds(&judged));
        assert!(matches!(&judged.made, Made::Document(next) if next.peers.len() == 2));
        hang_up(&control);
        assert!(!control.still_holds(&judged));
        pending.reply.send(json!({})).unwrap();
        assert!(asking.join().unwrap().is_ok());
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
        let asking = std::thread::spawn(move || insist(&path, &Request::Ask(Question::Stats)));
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
        let asked = path.clone();
        let asking = std::thread::spawn(move || insist(&asked, &Request::Zero));
        let begun = take_one(&control);
        let unanswered = asking.join().unwrap().unwrap_err();
        assert!(
            matches!(unanswered, AskError::NoAnswer { .. }),
            "{unanswered}"
        );
        drop(begun);
        // The next one is served when that is over.
        let asking = std::thread::spawn(move || insist(&path, &Request::Ask(Question::Stats)));
        answer_one(&control, &json!({}));
        assert!(asking.join().unwrap().is_ok());
        assert_eq!(control.unanswered(), 1);
    }

    #[test]
    fn the_door_of_a_dead_agent_is_replaced_and_ours_is_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        // As if its agent had been killed: its socket is still there.
        drop(UnixListener::bind(&path).unwrap());
        let control = Control::open(&path, None, None).unwrap();
        let asked_path = path.clone();
        let rails = Request::Ask(Question::Rails);
        let asking = std::thread::spawn(move || insist(&asked_path, &rails));
        answer_one(&control, &json!({}));
        assert!(asking.join().unwrap().is_ok());
        drop(control);
        assert!(!path.exists());
    }

    #[test]
    fn the_door_of_a_living_agent_is_left_alone() {
        let (_directory, path, control) = door();
        let refused = Control::open(&path, None, None)
            .err()
            .map(|cause| cause.kind());
        assert_eq!(refused, Some(io::ErrorKind::AddrInUse));
        // Somebody else has taken the path meanwhile, all the same.
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(control);
        assert!(path.exists());
    }
}
