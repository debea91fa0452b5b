//! The agent's side door for people: one question a connection, one JSON document as answer.
//!
//! Intuition: a counter with one clerk. The clerk (a thread that sleeps in `accept`) takes a
//! question, hands it to the host loop through a window, waits for the answer and gives it out;
//! the loop answers from what it knows at that moment and is never held up by a slow reader.
//! Nothing can be changed through this door.

mod answer;
mod question;

pub(crate) use answer::answer;
pub use question::{Question, QuestionError};

use crate::sys::descriptor::EventFd;
use crate::sys::process::user_id;
use rustix::net::sockopt::socket_peercred;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;
use thiserror::Error;

/// Questions that wait for the loop at one time.
const WAITING_MAX: usize = 4;
/// How long a client may take to ask or to read, and the loop to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Longest question and longest answer, in bytes.
const QUESTION_MAX: u64 = 512;
const ANSWER_MAX: u64 = 64 << 20;

/// A question at the window.
pub(crate) struct Pending {
    pub(crate) question: Question,
    pub(crate) reply: Sender<Value>,
}

/// The loop's end of the door.
pub(crate) struct Control {
    path: PathBuf,
    window: Receiver<Pending>,
    bell: Arc<EventFd>,
}

impl Control {
    /// Opens the door at `path`; a socket that a dead agent left there is replaced.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let fresh = path.with_extension("new");
        let _ = fs::remove_file(&fresh);
        let listener = UnixListener::bind(&fresh)?;
        fs::set_permissions(&fresh, Permissions::from_mode(0o600))?;
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
            window,
            bell,
        })
    }

    /// Readable when somebody asks.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The next question, if there is one.
    pub(crate) fn take(&self) -> Option<Pending> {
        self.bell.drain();
        self.window.try_recv().ok()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
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
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let peer = socket_peercred(client)?.uid.as_raw();
    if peer != user_id() && peer != 0 {
        return write(
            client,
            &refusal(&format!("this agent belongs to uid {}", user_id())),
        );
    }
    let mut line = String::new();
    BufReader::new(client.take(QUESTION_MAX)).read_line(&mut line)?;
    let question = match line.trim().parse::<Question>() {
        Ok(question) => question,
        Err(error) => return write(client, &refusal(&error.to_string())),
    };
    let (reply, answer) = channel();
    if window.try_send(Pending { question, reply }).is_err() {
        return write(
            client,
            &refusal("the agent has too many questions waiting; ask again"),
        );
    }
    bell.raise();
    match answer.recv_timeout(PATIENCE) {
        Ok(value) => write(client, &value),
        Err(_) => write(client, &refusal("the agent did not answer in time")),
    }
}

fn write(mut client: &UnixStream, value: &Value) -> io::Result<()> {
    client.write_all(value.to_string().as_bytes())
}

fn refusal(why: &str) -> Value {
    json!({ "error": why })
}

/// Why a question got no answer.
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
    /// The agent refused or did not understand.
    #[error("the agent at {path} says: {why}")]
    Refused {
        /// The door.
        path: PathBuf,
        /// Its words.
        why: String,
    },
}

/// Asks the agent at `path`.
///
/// # Errors
/// See [`AskError`]; nothing has changed anywhere.
pub fn ask(path: &Path, question: &Question) -> Result<Value, AskError> {
    let no_agent = |cause| AskError::NoAgent {
        path: path.to_owned(),
        cause,
    };
    let refused = |why: String| AskError::Refused {
        path: path.to_owned(),
        why,
    };
    let mut stream = UnixStream::connect(path).map_err(no_agent)?;
    let patience = Some(2 * PATIENCE);
    stream.set_read_timeout(patience).map_err(no_agent)?;
    stream
        .write_all(format!("{question}\n").as_bytes())
        .map_err(no_agent)?;
    let mut text = String::new();
    stream
        .take(ANSWER_MAX)
        .read_to_string(&mut text)
        .map_err(no_agent)?;
    let value: Value = serde_json::from_str(&text).map_err(|error| refused(error.to_string()))?;
    match value.get("error").and_then(Value::as_str) {
        Some(why) => Err(refused(why.to_owned())),
        None => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door() -> (tempfile::TempDir, PathBuf, Control) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let control = Control::open(&path).unwrap();
        (directory, path, control)
    }

    fn answer_one(control: &Control, value: &Value) -> Question {
        crate::sys::poll::readable(&[control.descriptor()], Some(Duration::from_secs(30))).unwrap();
        let pending = control.take().expect("a question");
        pending.reply.send(value.clone()).unwrap();
        pending.question
    }

    #[test]
    fn a_question_is_answered_by_the_loop() {
        let (_directory, path, control) = door();
        let asking = std::thread::spawn(move || ask(&path, &Question::Why("n3".into())));
        assert_eq!(
            answer_one(&control, &json!({"name": "n3"})),
            Question::Why("n3".into())
        );
        assert_eq!(asking.join().unwrap().unwrap()["name"], "n3");
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
            let _ = stream.shutdown(std::net::Shutdown::Write);
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

    #[test]
    fn the_door_of_a_dead_agent_is_replaced_and_ours_is_taken_away() {
        let (_directory, path, control) = door();
        // As if the first had been killed: its socket is still there.
        let second = Control::open(&path).unwrap();
        let asked_path = path.clone();
        let asking = std::thread::spawn(move || ask(&asked_path, &Question::Rails));
        answer_one(&second, &json!({}));
        assert!(asking.join().unwrap().is_ok());
        drop(second);
        drop(control);
        assert!(!path.exists());
    }
}
