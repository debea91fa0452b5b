//! All requests that the processes of one node can send to its agent, as fast as possible.

use crate::DEADLINE;
use crate::nodes::Nodes;
use crate::rank::Rank;
use muster_sys::socket::Packets;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

/// Threads that send one request after the other to the control socket, and followers of the journal that
/// read nothing: as many as an agent has threads and space for.
const REQUESTERS: usize = 4;
const FOLLOWERS: usize = 16;
/// Different attributes that are written.
const KEYS: usize = 8;

/// Counts of the requests so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Connections to the attach socket without a request.
    pub connections: AtomicU64,
    /// Ranks that attached and were then killed.
    pub ranks: AtomicU64,
    /// Attributes that a rank wrote.
    pub attributes: AtomicU64,
    /// Operators' requests that were answered.
    pub requests: AtomicU64,
}

/// The load of one node. It ends when dropped.
pub struct LocalLoad {
    is_over: Arc<AtomicBool>,
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
    _followers: Vec<UnixStream>,
}

impl LocalLoad {
    /// Starts it on a node whose agent serves already. `rank` creates the ranks that start and end, and the
    /// one that writes attributes; the job must not have other ranks with their numbers.
    ///
    /// # Panics
    /// If the agent does not serve, or a rank cannot be started; in its threads if a rank is not accepted.
    pub fn begin(
        job: &Nodes,
        node: usize,
        mut rank: impl FnMut() -> Rank + Send + 'static,
    ) -> Self {
        let control = job.agent_directory(node).directory().join("control");
        let mut load = Self {
            is_over: Arc::default(),
            counts: Arc::default(),
            threads: Vec::new(),
            _followers: (0..FOLLOWERS).map(|_| follow(&control)).collect(),
        };
        let socket = job.agent_directory(node).socket();
        load.repeat(move |counts| {
            // A connection without space in the queue does not count.
            let came = Packets::connect(&socket).is_ok();
            counts.connections.fetch_add(came.into(), Ordering::Relaxed);
        });
        for _ in 0..REQUESTERS {
            let control: PathBuf = control.clone();
            load.repeat(move |counts| {
                // A request that is refused for lack of time is repeated.
                let answered = ask(&control).is_ok_and(|answer| !answer.is_empty());
                counts
                    .requests
                    .fetch_add(answered.into(), Ordering::Relaxed);
            });
        }
        let (mut writer, mut number) = (rank(), 0);
        load.repeat(move |counts| {
            let key = format!("key{}", number % KEYS);
            writer.send(&format!("publish {key} {number}"));
            writer.await_line(|line| line.starts_with("PUBLISHED") || line.starts_with("ERROR"));
            writer.take_passed();
            number += 1;
            counts.attributes.fetch_add(1, Ordering::Relaxed);
        });
        load.repeat(move |counts| {
            let newcomer = rank();
            newcomer.await_words(&["ATTACHED"]);
            newcomer.kill();
            counts.ranks.fetch_add(1, Ordering::Relaxed);
        });
        load
    }

    /// The counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    fn repeat(&mut self, mut ask: impl FnMut(&Counts) + Send + 'static) {
        let (is_over, counts) = (Arc::clone(&self.is_over), Arc::clone(&self.counts));
        self.threads.push(thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                ask(&counts);
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
            thread.join().expect("the load ran to its end");
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
    let counts = stream.write_all(b"muster/1 events 0 follow\n");
    counts.expect("a request");
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
