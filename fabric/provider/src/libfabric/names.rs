//! Resolves peers' addresses of a provider's own kind, on threads.
//!
//! psm's address of a peer is known only on the peer's node. libfabric requests it there from a name server
//! over TCP, and waits without a time limit. The host's loop must not block, so a thread makes the query, and
//! the address is not known *yet* until the answer arrives. A query that is never answered keeps its thread;
//! there are few such threads. It is repeated at growing intervals: the node may have restarted, and its new
//! name server has not received the earlier query.

use super::info::Info;
use super::library::Libfabric;
use super::table::Row;
use crate::error::CallError;
use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Queries that may be pending at once; further ones are made later.
const PENDING_MAX: usize = 16;

/// Time after which an unanswered query no longer counts as pending, though it keeps its thread. It is then
/// repeated, each time after twice as long.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Upper limit of this time.
const TIMEOUT_MAX: Duration = Duration::from_secs(640);

/// Upper limit of the number of threads.
const THREADS_MAX: usize = 64;

/// Entries that may be kept; beyond this, all entries except pending queries are dropped.
const KNOWN_MAX: usize = 4096;

/// After an error, no query is made about the address for this time.
const PAUSE: Duration = Duration::from_secs(1);

/// The state of one address.
#[derive(Debug)]
enum Name {
    Pending(Query),
    Found(Vec<u8>),
    Failed(CallError, Instant),
}

/// A query without an answer.
#[derive(Debug, Clone, Copy)]
struct Query {
    /// When the query was last made.
    at: Instant,
    /// Time to wait for the answer before the query is repeated.
    timeout: Duration,
}

impl Query {
    /// Whether the query should be repeated.
    fn is_late(&self) -> bool {
        self.at.elapsed() >= self.timeout
    }
}

type Answer = (SocketAddrV4, Result<Vec<u8>, CallError>);

/// Pending queries and their results, for one lane.
#[derive(Debug)]
pub(super) struct Names {
    names: BTreeMap<SocketAddrV4, Name>,
    /// Threads that run a query.
    threads: usize,
    answer: SyncSender<Answer>,
    answers: Receiver<Answer>,
}

impl Names {
    pub(super) fn new() -> Names {
        let (answer, answers) = sync_channel(PENDING_MAX);
        Names {
            names: BTreeMap::new(),
            threads: 0,
            answer,
            answers,
        }
    }

    /// Returns the provider's address of `to`; `None` if it is not known yet. Each result is returned once: at
    /// a later query, the peer may have another address.
    pub(super) fn find(
        &mut self,
        library: Libfabric,
        row: &'static Row,
        to: SocketAddrV4,
    ) -> Result<Option<Vec<u8>>, CallError> {
        self.collect_answers();
        match self.names.remove(&to) {
            Some(Name::Found(name)) => return Ok(Some(name)),
            Some(Name::Failed(error, at)) if at.elapsed() < PAUSE => {
                self.names.insert(to, Name::Failed(error.clone(), at));
                return Err(error);
            }
            Some(Name::Pending(query)) if !query.is_late() || !self.has_capacity() => {
                self.names.insert(to, Name::Pending(query));
                return Ok(None);
            }
            Some(Name::Pending(query)) => self.start_query(library, row, to, Some(query)),
            Some(Name::Failed(..)) | None if self.has_capacity() => {
                self.start_query(library, row, to, None);
            }
            Some(Name::Failed(..)) | None => {}
        }
        Ok(None)
    }

    /// Starts a query. `before` is the unanswered query that it repeats.
    fn start_query(
        &mut self,
        library: Libfabric,
        row: &'static Row,
        to: SocketAddrV4,
        before: Option<Query>,
    ) {
        let answer = self.answer.clone();
        let run_query = move || {
            // The lane, and its receiver, may be gone.
            let _ = answer.send((to, Info::destination(&library, row, to)));
        };
        let thread = thread::Builder::new().name("muster-names".into());
        let is_started = thread.spawn(run_query).is_ok();
        self.threads += usize::from(is_started);
        let timeout = before.map_or(TIMEOUT, |before| (2 * before.timeout).min(TIMEOUT_MAX));
        if is_started || before.is_some() {
            let at = Instant::now();
            self.names.insert(to, Name::Pending(Query { at, timeout }));
        }
    }

    /// Whether one more query may be started.
    fn has_capacity(&self) -> bool {
        let is_waiting =
            |name: &&Name| matches!(name, Name::Pending(one) if one.at.elapsed() < TIMEOUT);
        let waiting = self.names.values().filter(is_waiting).count();
        waiting < PENDING_MAX && self.threads < THREADS_MAX
    }

    fn collect_answers(&mut self) {
        while let Ok((to, answer)) = self.answers.try_recv() {
            self.threads -= 1;
            // A repeated query may be answered twice: later answers are dropped.
            if !self.names.contains_key(&to) {
                continue;
            }
            let name = match answer {
                Ok(name) => Name::Found(name),
                Err(error) => Name::Failed(error, Instant::now()),
            };
            self.names.insert(to, name);
        }
        if self.names.len() > KNOWN_MAX {
            self.names
                .retain(|_, name| matches!(name, Name::Pending(_)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn query(at: Instant, timeout: Duration) -> Query {
        Query { at, timeout }
    }

    /// A name server that has restarted never received the query: the query is repeated at growing intervals,
    /// and each thread that still waits counts.
    #[test]
    fn an_unanswered_query_is_repeated() {
        let Some(before) = Instant::now().checked_sub(TIMEOUT) else {
            return;
        };
        let library = crate::load().expect("libfabric is installed where tests run");
        let row = super::super::table::datagram(crate::NetKind::Udp)[0];
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7);
        let timeout = |names: &Names| match names.names.get(&to) {
            Some(Name::Pending(query)) => Some(query.timeout),
            _ => None,
        };
        let mut names = Names::new();
        for (started_at, threads, then, threads_after) in [
            (before, 1, 2 * TIMEOUT, 2),
            // Not before its time-out, and not beyond the limit of threads.
            (Instant::now(), 1, TIMEOUT, 1),
            (before, THREADS_MAX, TIMEOUT, THREADS_MAX),
        ] {
            names
                .names
                .insert(to, Name::Pending(query(started_at, TIMEOUT)));
            names.threads = threads;
            assert_eq!(names.find(library, row, to), Ok(None));
            assert_eq!(
                (timeout(&names), names.threads),
                (Some(then), threads_after)
            );
            if threads_after > threads {
                // This query has an answer: it is returned once, and the other thread's answer is dropped.
                let (_, answer) = names.answers.recv().expect("the thread answers");
                for _ in 0..2 {
                    names
                        .answer
                        .send((to, answer.clone()))
                        .expect("the channel has capacity");
                }
                assert_eq!(
                    names.find(library, row, to),
                    Ok(Some(answer.clone().unwrap()))
                );
                names.threads = 2;
                names
                    .answer
                    .send((to, answer))
                    .expect("the channel has capacity");
                names.collect_answers();
                assert!(names.names.is_empty() && names.threads == 1);
            }
        }
    }

    #[test]
    fn queries_that_time_out_are_no_longer_pending_but_keep_their_threads() {
        let now = Instant::now();
        let Some(before) = now.checked_sub(TIMEOUT) else {
            return;
        };
        let mut names = Names::new();
        let add_queries = |names: &mut Names, count: usize, at| {
            for _ in 0..count {
                let port = names.names.len() as u16;
                let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
                names.names.insert(to, Name::Pending(query(at, TIMEOUT)));
                names.threads += 1;
            }
            names.has_capacity()
        };
        assert!(add_queries(&mut names, PENDING_MAX, before));
        assert!(add_queries(&mut names, PENDING_MAX - 1, now));
        assert!(!add_queries(&mut names, 1, now));
        let mut names = Names::new();
        assert!(!add_queries(&mut names, THREADS_MAX, before));
    }
}
