//! The agent's control socket, for operators: one request a connection, one JSON document as answer.
//!
//! Each of a few server threads accepts a connection, checks the user, reads the request, puts it into a queue for
//! the host loop, waits for the answer and writes it. The loop answers from what it knows at that moment and makes a
//! change between two of its turns. It waits neither for a slow reader nor for the validation of a change, which is
//! the server thread's ([`validator`]). Only the agent's own user and root are served. Where the site opens a second
//! socket, other users may ask there and change nothing; [`admission`] limits the connections of each user. Requests
//! for events are passed to the journal and never reach the loop.
//!
//! A request is one line. After the line `import` a document follows, to the end of the stream.
//! [`protocol`] has the version that both sides name.
#![forbid(unsafe_code)]

mod admission;
mod answer;
mod events;
pub mod explanation;
mod follow;
mod listen;
mod member;
mod metrics;
pub mod protocol;
mod question;
pub mod rail_status;
mod rails;
mod rank;
mod sources;
pub mod unreachable;
mod validator;
mod words;
mod zones;

pub use answer::{answer, done};
pub use follow::{Followed, Follower};
pub use listen::name_for_all;
pub use question::{GossipCommand, Question, Request, RequestError};
pub use rank::{MINUS, tell_rank};
pub use sources::Sources;
pub use validator::{Made, Validated};
pub use words::{cause_word, state_word};

use admission::Admission;
pub use events::{EventRequest, EventSource};
use listen::{Socket, listen, listen_for_all};
use muster_config::{Change, DOCUMENT_MAX, RailsDocument};
use muster_fabric::{Nid, NidList};
use muster_sys::descriptor::EventFd;
use muster_sys::priority_queue::{Receiver, Sender, queue};
use muster_sys::process::user_id;
use muster_sys::socket::Peer;
use muster_sys::stream::{self, Trust};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::iter;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::TrySendError;
use std::time::{Duration, Instant};
use thiserror::Error;
use tracing::warn;
use validator::ConfigSnapshot;

/// Clients that are served at a time: on the socket of the agent's user, where further ones wait in the socket's
/// queue, and on the socket for other users.
const OWN_SERVED_MAX: usize = 3;
const OTHERS_SERVED_MAX: usize = 6;
/// Requests that wait for the loop: one of each client that is served.
const WAITING_MAX: usize = OWN_SERVED_MAX + OTHERS_SERVED_MAX;
/// The line before a document.
const IMPORT: &str = "import";
/// Kind of a refusal because of the client's user.
const DENIED: &str = "not allowed";
/// Kind of a refusal because of other requests of the same user: nothing was done, and the client may ask again.
const BUSY: &str = "busy";
/// How long a client may take to ask or to read, and the loop to answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long another user's client may take to ask.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause of a client that was told to ask again.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Longest line and longest answer, in bytes. A rule has up to 128 patterns.
const LINE_MAX: usize = 16 << 10;
const ANSWER_MAX: usize = 64 << 20;
/// An answer of fewer bytes needs no more memory than there is for it at first.
const ANSWER_TYPICAL: usize = 32 << 10;

/// A request that waits for the loop.
pub struct Pending {
    /// What is requested.
    pub request: Request,
    /// The result of its validation.
    pub validated: Option<Validated>,
    /// Where the answer goes.
    pub reply: Reply,
    /// Set by the loop when it begins to serve the request, or by the control thread when its time is over; the first
    /// one decides whether the request is served.
    decided: Arc<AtomicBool>,
}

/// Where the loop puts an answer.
pub struct Reply {
    /// Memory of the server thread: what one thread allocates and another one frees makes the two wait for each
    /// other in malloc(3), and an answer is thousands of pieces. The loop frees these itself and hands on the text.
    buffer: String,
    answers: Sender<String>,
}

impl Reply {
    /// Answers. A client that has lost timeout gets nothing.
    pub fn send(mut self, answer: Value) {
        append(answer, &mut self.buffer);
        let _ = self.answers.try_send(self.buffer);
    }
}

/// The loop's side of the control socket.
pub struct Control {
    _socket: Socket,
    requests: Receiver<Pending>,
    wakeup: Arc<EventFd>,
    config: Arc<ConfigSnapshot>,
    unanswered: Arc<AtomicU64>,
    /// The socket for other users, if there is one.
    _others: Option<Socket>,
}

/// The control threads' side of one socket.
struct Server {
    listener: UnixListener,
    requests: Sender<Pending>,
    wakeup: Arc<EventFd>,
    config: Arc<ConfigSnapshot>,
    unanswered: Arc<AtomicU64>,
    journal: Option<Arc<dyn EventSource>>,
    /// Limits the clients of other users, if these may ask here.
    others: Option<Admission>,
}

impl Control {
    /// Opens the control socket at `path`, and one at `others` for other users, who may only ask. A socket that a dead
    /// agent has left is replaced; the second socket is optional.
    ///
    /// # Errors
    /// `AddrInUse`: a living agent has the socket. Others: the system call failed.
    pub fn open(
        path: &Path,
        others: Option<&Path>,
        journal: Option<&Arc<dyn EventSource>>,
    ) -> io::Result<Self> {
        if stream::is_anybody_there(path, TIMEOUT) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (wakeup, config) = (Arc::new(EventFd::new()?), Arc::<ConfigSnapshot>::default());
        let unanswered = Arc::<AtomicU64>::default();
        let (queue_in, requests) = queue(WAITING_MAX)?;
        let server = |listener, others| Server {
            listener,
            requests: queue_in.clone(),
            wakeup: Arc::clone(&wakeup),
            config: Arc::clone(&config),
            unanswered: Arc::clone(&unanswered),
            journal: journal.cloned(),
            others,
        };
        let (listener, socket) = listen(path)?;
        server(listener, None).start(OWN_SERVED_MAX)?;
        let open_others = |path: &Path| {
            let (listener, socket) = listen_for_all(path)?;
            server(listener, Some(Admission::default())).start(OTHERS_SERVED_MAX)?;
            Ok(socket)
        };
        let others = others.and_then(|path| {
            let refused = |cause: &io::Error| {
                let path = path.display();
                warn!(%path, %cause, "no socket for other users; name another directory with MUSTER_READABLE_IN");
            };
            open_others(path).inspect_err(refused).ok()
        });
        Ok(Self {
            _socket: socket,
            requests,
            wakeup,
            config,
            unanswered,
            _others: others,
        })
    }

    /// Readable when a request waits.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    /// Publishes the configuration in force; `gossips_at` are the node's rails if it runs age gossip.
    pub fn publish_config(
        &self,
        document: &RailsDocument,
        open: &[Nid],
        gossips_at: Option<NidList>,
    ) {
        self.config.publish(document, open, gossips_at);
    }

    /// Number of clients that got no answer, or not all of it.
    pub fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Whether the configuration is the one that this was validated against.
    pub fn is_current(&self, validated: &Validated) -> bool {
        self.config.is_current(validated)
    }

    /// Makes the descriptor readable again: not all requests were taken.
    pub fn look_again(&self) {
        self.wakeup.raise();
    }

    /// The next request whose client still waits, if there is one.
    pub fn take(&self) -> Option<Pending> {
        self.wakeup.drain();
        iter::from_fn(|| self.requests.try_recv().ok()).find(Pending::is_ours)
    }
}

impl Pending {
    /// Takes the decision about it; false if it was taken before.
    fn is_ours(&self) -> bool {
        !self.decided.swap(true, Ordering::AcqRel)
    }
}

impl Server {
    /// So many threads serve one client at a time each.
    fn start(self, threads: usize) -> io::Result<()> {
        let server = Arc::new(self);
        for number in 0..threads {
            let server = Arc::clone(&server);
            let thread = std::thread::Builder::new().name("muster-control".into());
            let started = thread.stack_size(256 << 10).spawn(move || server.serve());
            // One is enough to serve.
            if number == 0 {
                started?;
            }
        }
        Ok(())
    }

    fn serve(&self) {
        loop {
            match self.listener.accept() {
                // The failure of one client does not concern the others. It is counted.
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
        let peer = Peer::of(client.as_fd())?.uid;
        let is_trusted = may_ask(peer, user_id());
        let timeout = if is_trusted { TIMEOUT } else { OTHERS_TIMEOUT };
        let _place = match (is_trusted, &self.others) {
            (true, _) => None,
            (false, Some(others)) => match others.enter(peer) {
                Some(place) => Some(place),
                // It may not have said anything yet, and hears the answer all the same.
                None => {
                    self.unanswered.fetch_add(1, Ordering::Relaxed);
                    return write(&client, admission::refusal(peer));
                }
            },
            (false, None) => {
                // Hung up on before it has said everything, it would not hear the answer.
                let end = Instant::now() + timeout;
                let mut unread = Vec::new();
                while unread.len() <= LINE_MAX && more(&client, &mut unread, end)? {}
                return write(&client, denial(peer, ""));
            }
        };
        let request = match read(&client, timeout)? {
            Ok(request) => request,
            Err(refusal) => return write(&client, refusal),
        };
        if !is_trusted && !request.is_for_all() {
            return write(&client, denial(peer, "this is for its user alone: "));
        }
        if let Request::Events { since, follow } = request {
            let request = EventRequest {
                since,
                follow,
                other_user: (!is_trusted).then_some(peer),
            };
            return self.hand_on(client, request);
        }
        match self.config.validate(&request, TIMEOUT) {
            Ok(validated) => write_text(&client, &self.ask_loop(request, validated)?),
            Err(why) => write(&client, refusal(&why)),
        }
    }

    /// To the journal.
    fn hand_on(&self, client: UnixStream, request: EventRequest) -> io::Result<()> {
        let refused = client.try_clone()?;
        let taken = self
            .journal
            .as_ref()
            .map(|journal| journal.read(client, request));
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

    fn ask_loop(&self, request: Request, validated: Option<Validated>) -> io::Result<String> {
        let (answers, answer) = queue(1)?;
        let buffer = String::with_capacity(ANSWER_TYPICAL);
        let reply = Reply { buffer, answers };
        let decided = Arc::new(AtomicBool::new(false));
        let pending = Pending {
            request,
            validated,
            reply,
            decided: Arc::clone(&decided),
        };
        match self.requests.try_send(pending) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                return Ok(text(refusal(
                    "the agent has too many questions waiting; ask again",
                )));
            }
            // The loop has ended. The client sees that its connection is closed.
            Err(TrySendError::Disconnected(_)) => {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        self.wakeup.raise();
        let answered = answer.recv_timeout(TIMEOUT);
        if answered.is_err() && !decided.swap(true, Ordering::AcqRel) {
            return Ok(text(refusal(
                "the agent had no time for it and has done nothing; ask again",
            )));
        }
        // What the loop has begun it ends, and what has become of it must not be guessed here.
        let answered = answered.or_else(|_| answer.recv_timeout(TIMEOUT));
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

/// Reads a request, or says what is wrong with it. It waits for at most `timeout` in all: the thread serves other
/// clients, too.
fn read(client: &UnixStream, timeout: Duration) -> io::Result<Result<Request, Value>> {
    let end = Instant::now() + timeout;
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

/// Reads more bytes; false at the end of the stream.
fn more(mut client: &UnixStream, heard: &mut Vec<u8>, end: Instant) -> io::Result<bool> {
    client.set_read_timeout(Some(left(end)?))?;
    let mut buffer = [0; 4096];
    let count = client.read(&mut buffer)?;
    heard.extend(&buffer[..count]);
    Ok(count > 0)
}

fn write(client: &UnixStream, answer: Value) -> io::Result<()> {
    write_text(client, &text(answer))
}

fn text(answer: Value) -> String {
    let mut text = String::new();
    append(answer, &mut text);
    text
}

/// By the line end the reader knows that it has all of it.
fn append(mut answer: Value, text: &mut String) {
    protocol::stamp(&mut answer);
    let _ = writeln!(text, "{answer}");
}

/// Writes an answer. It waits for at most [`TIMEOUT`] in all: the thread serves other clients, too.
fn write_text(mut client: &UnixStream, text: &str) -> io::Result<()> {
    let end = Instant::now() + TIMEOUT;
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
    /// No agent accepts connections on this socket.
    #[error("no agent answers at {path} ({cause})")]
    NoAgent {
        /// The control socket.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// The agent accepted the connection but did not answer in time, or closed it. It may have done what was asked.
    #[error(
        "the agent at {path} gives no answer ({cause}); what it was asked for may have been done"
    )]
    NoAnswer {
        /// The control socket.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// The agent belongs to another user.
    #[error("the agent at {path} says: {why}")]
    Denied {
        /// The control socket.
        path: PathBuf,
        /// The agent's answer.
        why: String,
    },
    /// The agent is of another release.
    #[error("the agent at {path} cannot be asked: {why}")]
    Skewed {
        /// The control socket.
        path: PathBuf,
        /// Both versions.
        why: String,
    },
    /// The agent serves the maximum number of this user's clients. It has done nothing.
    #[error("the agent at {path} says: {why}")]
    Busy {
        /// The control socket.
        path: PathBuf,
        /// The agent's answer.
        why: String,
    },
    /// The agent refused the request or did not understand it.
    #[error("the agent at {path} says: {why}")]
    Refused {
        /// The control socket.
        path: PathBuf,
        /// The agent's answer.
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
    let end = Instant::now() + 2 * TIMEOUT;
    loop {
        let left = left(end).map_err(|cause| AskError::of(path, cause))?;
        let text = stream::ask(path, said.as_bytes(), ANSWER_MAX, left, trust)
            .map_err(|cause| AskError::of(path, cause))?;
        if !text.ends_with(b"\n") {
            return Err(AskError::of(path, io::ErrorKind::UnexpectedEof.into()));
        }
        match AskError::check(path, &text) {
            Err(AskError::Busy { .. }) if Instant::now() + BUSY_PAUSE < end => {
                std::thread::sleep(BUSY_PAUSE);
            }
            checked => return checked,
        }
    }
}

/// The request as it is sent.
fn marked(request: &Request) -> String {
    let (mark, version) = (protocol::MARK, protocol::PROTOCOL);
    format!(
        "{mark}{version} {request}\n{}",
        request.body().unwrap_or_default()
    )
}

/// Whose word counts at this path: the name of a socket for all says whose it is, since anybody may have bound it.
fn trust_in(path: &Path) -> Trust {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(listen::user_in)
        .map_or(Trust::Own, Trust::User)
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
            Some(why) if value["kind"] == BUSY => Err(Self::Busy { path, why }),
            Some(why) => Err(Self::Refused { path, why }),
            None => Ok(value),
        }
    }
}

#[cfg(test)]
mod other_users;
#[cfg(test)]
mod tests;
