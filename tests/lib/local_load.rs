//! All that the processes of one node can ask of its agent, as fast as they can.

use crate::DEADLINE;
use crate::ranks::{Job, Rank};
use muster_sys::socket::Packets;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

/// Threads that put one question after the other at the control socket, and followers of the journal that read
/// nothing: as many as an agent has threads and room for.
const ASKERS: usize = 4;
const FOLLOWERS: usize = 16;
/// Different attributes that are written.
const KEYS: usize = 8;

/// What was asked so far.
#[derive(Debug, Default)]
pub struct Asked {
    /// Connections at the attach socket that said nothing.
    pub connections: AtomicU64,
    /// Ranks that attached, and were killed then.
    pub ranks: AtomicU64,
    /// Attributes that a rank wrote.
    pub attributes: AtomicU64,
    /// Questions of operators that were answered.
    pub questions: AtomicU64,
}

/// The load of one node. It ends when dropped.
pub struct LocalLoad {
    is_over: Arc<AtomicBool>,
    asked: Arc<Asked>,
    threads: Vec<JoinHandle<()>>,
    _followers: Vec<UnixStream>,
}

impl LocalLoad {
    /// Begins it on a node whose agent serves already. `rank` makes the ranks that come and go, and the one that
    /// writes attributes: none that the job has besides.
    ///
    /// # Panics
    /// If the agent does not serve, or a rank cannot be started; in its threads if a rank is not let in.
    pub fn begin(job: &Job, node: usize, mut rank: impl FnMut() -> Rank + Send + 'static) -> Self {
        let control = job.place(node).directory().join("control");
        let mut load = Self {
            is_over: Arc::default(),
            asked: Arc::default(),
            threads: Vec::new(),
            _followers: (0..FOLLOWERS).map(|_| follow(&control)).collect(),
        };
        let socket = job.place(node).socket();
        load.again_and_again(move |asked| {
            // One for which there is no room in the queue is none.
            let came = Packets::connect(&socket).is_ok();
            asked.connections.fetch_add(came.into(), Ordering::Relaxed);
        });
        for _ in 0..ASKERS {
            let control: PathBuf = control.clone();
            load.again_and_again(move |asked| {
                // What is refused for want of time is asked again.
                let answered = ask(&control).is_ok_and(|answer| !answer.is_empty());
                asked
                    .questions
                    .fetch_add(answered.into(), Ordering::Relaxed);
            });
        }
        let (mut writer, mut number) = (rank(), 0);
        load.again_and_again(move |asked| {
            let key = format!("key{}", number % KEYS);
            writer.tell(&format!("publish {key} {number}"));
            writer.await_line(|line| line.starts_with("PUBLISHED") || line.starts_with("ERROR"));
            writer.take_passed();
            number += 1;
            asked.attributes.fetch_add(1, Ordering::Relaxed);
        });
        load.again_and_again(move |asked| {
            let comer = rank();
            comer.await_words(&["ATTACHED"]);
            comer.kill();
            asked.ranks.fetch_add(1, Ordering::Relaxed);
        });
        load
    }

    /// What was asked so far.
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    fn again_and_again(&mut self, mut ask: impl FnMut(&Asked) + Send + 'static) {
        let (is_over, asked) = (Arc::clone(&self.is_over), Arc::clone(&self.asked));
        self.threads.push(thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                ask(&asked);
            }
        }));
    }

    /// Ends it.
    ///
    /// # Panics
    /// If one of its threads did: a rank was not served.
    pub fn end(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("the load goes on to its end");
        }
    }
}

impl Drop for LocalLoad {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn follow(control: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(control).expect("the control socket");
    let asked = stream.write_all(b"muster/1 events 0 follow\n");
    asked.expect("a question");
    stream
}

fn ask(control: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(control)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(b"muster/1 members\n")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map(|_| answer)
}
