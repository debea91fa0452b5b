//! The journal records the events of an agent, one line each, and sends them to clients that ask for events.
//!
//! The loop queues the text of an event and continues. A thread numbers and dates it, keeps the last ones in memory,
//! appends it to the job's file if there is one, and sends it to all followers. A full queue, a full disk and a
//! follower that does not read are counted and logged once; none of them delays the loop.
//!
//! A line is one JSON object. The file is JSON Lines in at most two parts, so its size is bounded.

mod file;
mod readers;

use crate::line_queue::{LineReceiver, LineSender, line_queue};
use file::JournalFile;
use muster_control::{EventRequest, EventSource, protocol};
use muster_sys::date::{rfc3339, unix_us_now};
use readers::Readers;
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;
use tracing::{info, warn};

/// Bytes of the events that wait: some 4000 events.
const BYTES_MAX: usize = 2 << 20;
/// Clients that wait.
const CLIENTS_MAX: usize = 64;
/// How often followers are probed that may have gone without closing their connection.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// Where the lines of an agent are written to.
#[derive(Clone, Debug)]
pub(crate) struct JournalDirectory {
    /// The file; a second one, the part before it, ends with `.1`.
    pub(crate) path: PathBuf,
    /// Bytes of each of the two.
    pub(crate) bytes_max: u64,
}

/// The queue's end of the loop and of the control socket's threads.
#[derive(Clone)]
pub(crate) struct Journal {
    queue: Arc<LineSender<Client>>,
    counts: Arc<Counts>,
    /// Why the first line could not be written.
    failure: Option<Arc<str>>,
}

/// What was lost, and why.
#[derive(Debug, Default)]
struct Counts {
    lines_unwritten: AtomicU64,
    rotations: AtomicU64,
    followers_lost: AtomicU64,
}

/// A client that asks for events.
type Client = (UnixStream, EventRequest);

impl Journal {
    /// Starts the journal of this node's agent. `None` if there is no thread for it; the agent runs without a journal
    /// then.
    pub(crate) fn start(node: &str, job: &str, place: Option<JournalDirectory>) -> Option<Self> {
        let counts = Arc::new(Counts::default());
        let mut writer = Writer {
            counts: Arc::clone(&counts),
            readers: Readers::new(node),
            file: place.map(JournalFile::new),
            seq: 0,
            failure: None,
            unwritten: 0,
        };
        writer.write(json!({ "event": "journal-opened", "node": node, "job": job,
            "release": protocol::RELEASE }));
        let failure = writer.failure.as_deref().map(Arc::from);
        let started = line_queue(BYTES_MAX, CLIENTS_MAX).and_then(|(queue, lines)| {
            std::thread::Builder::new()
                .name("muster-journal".into())
                .stack_size(256 << 10)
                .spawn(move || writer.run(lines))?;
            Ok(Arc::new(queue))
        });
        match started {
            Ok(queue) => Some(Self {
                queue,
                counts,
                failure,
            }),
            Err(cause) => {
                warn!(%cause, "no thread for the journal: events are not kept");
                None
            }
        }
    }

    /// Queues an event. It does not wait; an event that finds the queue full is dropped and counted.
    pub(crate) fn record(&self, event: &Value) {
        self.queue.add(format!("{event}\n").as_bytes());
    }

    /// Why its file could not be written at the start.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// What was lost, by name.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 4] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("journal_queue_full", self.queue.lost()),
            (
                "journal_lines_unwritten",
                read(&self.counts.lines_unwritten),
            ),
            ("journal_rotations", read(&self.counts.rotations)),
            ("journal_followers_lost", read(&self.counts.followers_lost)),
        ]
    }
}

impl EventSource for Journal {
    /// The client gets the lines with a higher number that are still kept and, if it follows, all later ones.
    fn read(&self, stream: UnixStream, request: EventRequest) -> bool {
        self.queue.request((stream, request))
    }
}

struct Writer {
    counts: Arc<Counts>,
    readers: Readers,
    file: Option<JournalFile>,
    seq: u64,
    /// Why the file could not be written the last time; that has been said.
    failure: Option<String>,
    /// Lines that the file lacks since then.
    unwritten: u64,
}

impl Writer {
    fn run(mut self, mut queue: LineReceiver<Client>) {
        loop {
            match queue.next(PROBE_INTERVAL) {
                Ok(taken) => {
                    let lines = taken.lines.split_inclusive(|byte| *byte == b'\n');
                    lines.for_each(|line| self.write_event(line));
                    if let Some((stream, request)) = taken.request
                        && !self.readers.serve(stream, request)
                    {
                        self.lost(1);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    let lost = self.readers.keep_alive();
                    self.lost(lost);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Writes an event. It parses the text, so that all memory of the line is this thread's.
    fn write_event(&mut self, text: &[u8]) {
        match serde_json::from_slice(text) {
            Ok(line) => self.write(line),
            Err(cause) => warn!(%cause, "an event is not in the journal: its text is not valid"),
        }
    }

    fn lost(&self, followers: usize) {
        let followers_lost = &self.counts.followers_lost;
        followers_lost.fetch_add(followers as u64, Ordering::Relaxed);
    }

    fn write(&mut self, mut line: Value) {
        self.seq += 1;
        let unix_us = line["unix_us"].as_u64().unwrap_or_else(unix_us_now);
        line["schema"] = "muster/event/v1".into();
        line["seq"] = self.seq.into();
        line["unix_us"] = unix_us.into();
        line["time"] = rfc3339(unix_us).into();
        let text = format!("{line}\n");
        self.write_file(&text);
        let lost = self.readers.send(self.seq, text);
        self.lost(lost);
    }

    fn write_file(&mut self, text: &str) {
        let Some(file) = &mut self.file else {
            return;
        };
        let gap = match self.unwritten {
            0 => String::new(),
            lines => {
                let gap =
                    json!({ "schema": "muster/event/v1", "event": "journal-gap", "lines": lines });
                format!("{gap}\n")
            }
        };
        match file.append(&(gap + text)) {
            Ok(rotated) => {
                let rotations = &self.counts.rotations;
                rotations.fetch_add(u64::from(rotated), Ordering::Relaxed);
                if self.failure.take().is_some() {
                    info!(path = %file.path().display(), lines = self.unwritten, "the journal goes on");
                }
                self.unwritten = 0;
            }
            Err(cause) => {
                self.unwritten += 1;
                self.counts.lines_unwritten.fetch_add(1, Ordering::Relaxed);
                if self.failure.is_none() {
                    let path = file.path().display();
                    let why = format!(
                        "the journal {path} cannot be written, and goes on when it can: {cause}; lines are counted \
                         until then; make room there, or name another directory with MUSTER_JOURNAL"
                    );
                    warn!("{why}");
                    self.failure = Some(why);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::time::Instant;

    /// Reads so many lines; blank ones are to see whether we are there.
    fn lines(stream: &UnixStream, count: usize) -> Vec<Value> {
        let timeout = Some(Duration::from_secs(30));
        stream.set_read_timeout(timeout).unwrap();
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        let lines = lines.filter(|line| !line.is_empty());
        lines
            .take(count)
            .map(|line| serde_json::from_str(&line).unwrap())
            .collect()
    }

    fn reading(since: u64, follow: bool) -> EventRequest {
        EventRequest {
            since,
            follow,
            other_user: None,
        }
    }

    #[test]
    fn who_follows_hears_what_was_and_what_comes() {
        let journal = Journal::start("n1", "j", None).unwrap();
        journal.record(&json!({ "event": "node-up", "member": "n2" }));
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(journal.read(theirs, reading(1, true)));
        let heard = lines(&ours, 2);
        assert_eq!(heard[0]["schema"], "muster/events/v1");
        assert_eq!(
            (&heard[1]["seq"], &heard[1]["member"]),
            (&2.into(), &"n2".into())
        );
        journal.record(&json!({ "event": "node-failed", "member": "n2" }));
        assert_eq!(lines(&ours, 1)[0]["event"], "node-failed");
        // Who does not follow is at the end then.
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(journal.read(theirs, reading(0, false)));
        let heard = lines(&ours, 99);
        let events: Vec<_> = heard.iter().map(|line| line["event"].as_str()).collect();
        assert_eq!(
            events[1..],
            [Some("journal-opened"), Some("node-up"), Some("node-failed")]
        );
    }

    /// A full disk: counted, said once, and the agent goes on. `/dev/full` is one.
    #[test]
    fn a_full_disk_is_counted_and_nothing_else_suffers() {
        let place = JournalDirectory {
            path: "/dev/full".into(),
            bytes_max: 1 << 20,
        };
        let journal = Journal::start("n1", "j", Some(place)).unwrap();
        for _ in 0..3 {
            journal.record(&json!({ "event": "node-up", "member": "n2" }));
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(journal.read(theirs, reading(0, false)));
        assert_eq!(lines(&ours, 99).len(), 5);
        let counters = journal.counters();
        assert_eq!(counters[1], ("journal_lines_unwritten", 4));
    }

    #[test]
    fn lines_that_were_lost_are_a_gap_in_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("not-yet/j.jsonl");
        let place = JournalDirectory {
            path: path.clone(),
            bytes_max: 1 << 20,
        };
        let journal = Journal::start("n1", "j", Some(place)).unwrap();
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        journal.record(&json!({ "event": "node-up", "member": "n2" }));
        let end = Instant::now() + Duration::from_secs(30);
        let text = loop {
            match std::fs::read_to_string(&path) {
                Ok(text) if text.lines().count() == 2 => break text,
                _ => assert!(Instant::now() < end, "nothing was written"),
            }
        };
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(
            (&lines[0]["event"], &lines[0]["lines"]),
            (&"journal-gap".into(), &1.into())
        );
        assert_eq!(lines[1]["member"], "n2");
    }
}
