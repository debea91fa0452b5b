//! Names: peers' addresses of a provider's own kind, found by threads of their own.
//!
//! psm's address of a peer is known on the peer's node: libfabric asks a name server there over TCP, and
//! waits without a deadline. The host's loop may not: so somebody else asks, and the address is not known
//! *yet* until there is an answer. What was asked and never answered keeps its thread; there are few. It is asked
//! again, ever more rarely: the node may have started anew, and its name server may never have had the question.

use super::info::Info;
use super::library::Libfabric;
use super::table::Row;
use crate::error::CallError;
use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Questions that wait for an answer, at most; further ones are asked later.
const ASKED_MAX: usize = 16;

/// A question that was not answered in this time keeps its thread, and no place among those that wait. It is asked
/// again, and each time after twice as long.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest of these times.
const PATIENCE_MAX: Duration = Duration::from_secs(640);

/// Threads, at most, whatever they wait for.
const THREADS_MAX: usize = 64;

/// Answers that nobody has fetched, at most; all are forgotten then.
const KNOWN_MAX: usize = 4096;

/// After an error nobody is asked about this address for so long.
const PAUSE: Duration = Duration::from_secs(1);

/// What is known of one address.
#[derive(Debug)]
enum Name {
    Asked(Question),
    Found(Vec<u8>),
    Failed(CallError, Instant),
}

/// A question that is not answered.
#[derive(Debug, Clone, Copy)]
struct Question {
    /// When it was asked last.
    at: Instant,
    /// How long its answer is waited for before it is asked again.
    patience: Duration,
}

impl Question {
    /// Whether it is to be asked once more.
    fn is_late(&self) -> bool {
        self.at.elapsed() >= self.patience
    }
}

type Answer = (SocketAddrV4, Result<Vec<u8>, CallError>);

/// Questions and answers of one lane.
#[derive(Debug)]
pub(super) struct Names {
    names: BTreeMap<SocketAddrV4, Name>,
    /// Threads that ask.
    threads: usize,
    answer: SyncSender<Answer>,
    answers: Receiver<Answer>,
}

impl Names {
    pub(super) fn new() -> Names {
        let (answer, answers) = sync_channel(ASKED_MAX);
        Names {
            names: BTreeMap::new(),
            threads: 0,
            answer,
            answers,
        }
    }

    /// The provider's address of this one; none if it is not known yet. What was found is handed out
    /// once: a peer that is asked for again may have another one.
    pub(super) fn find(
        &mut self,
        library: Libfabric,
        row: &'static Row,
        to: SocketAddrV4,
    ) -> Result<Option<Vec<u8>>, CallError> {
        self.hear();
        match self.names.remove(&to) {
            Some(Name::Found(name)) => return Ok(Some(name)),
            Some(Name::Failed(error, at)) if at.elapsed() < PAUSE => {
                self.names.insert(to, Name::Failed(error.clone(), at));
                return Err(error);
            }
            Some(Name::Asked(question)) if !question.is_late() || !self.has_place() => {
                self.names.insert(to, Name::Asked(question));
                return Ok(None);
            }
            Some(Name::Asked(question)) => self.ask(library, row, to, Some(question)),
            Some(Name::Failed(..)) | None if self.has_place() => self.ask(library, row, to, None),
            Some(Name::Failed(..)) | None => {}
        }
        Ok(None)
    }

    /// Asks, once more if it was asked before.
    fn ask(
        &mut self,
        library: Libfabric,
        row: &'static Row,
        to: SocketAddrV4,
        before: Option<Question>,
    ) {
        let answer = self.answer.clone();
        let ask = move || {
            // Nobody may be left who wants to know.
            let _ = answer.send((to, Info::destination(&library, row, to)));
        };
        let thread = thread::Builder::new().name("muster-names".into());
        let is_asked = thread.spawn(ask).is_ok();
        self.threads += usize::from(is_asked);
        let patience = before.map_or(PATIENCE, |before| (2 * before.patience).min(PATIENCE_MAX));
        if is_asked || before.is_some() {
            let at = Instant::now();
            self.names
                .insert(to, Name::Asked(Question { at, patience }));
        }
    }

    /// Whether one question more may be asked.
    fn has_place(&self) -> bool {
        let is_waiting =
            |name: &&Name| matches!(name, Name::Asked(one) if one.at.elapsed() < PATIENCE);
        let waiting = self.names.values().filter(is_waiting).count();
        waiting < ASKED_MAX && self.threads < THREADS_MAX
    }

    fn hear(&mut self) {
        while let Ok((to, answer)) = self.answers.try_recv() {
            self.threads -= 1;
            // One that was asked twice has its answer already, and the other one is not kept.
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
            self.names.retain(|_, name| matches!(name, Name::Asked(_)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn question(at: Instant, patience: Duration) -> Question {
        Question { at, patience }
    }

    /// A name server that has begun anew never had the question: it is asked again, ever more rarely, and each
    /// thread that still waits counts.
    #[test]
    fn a_question_that_nobody_answered_is_asked_again() {
        let Some(before) = Instant::now().checked_sub(PATIENCE) else {
            return;
        };
        let library = crate::load().expect("libfabric is installed where tests run");
        let row = super::super::table::datagram(crate::NetKind::Udp)[0];
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7);
        let patience = |names: &Names| match names.names.get(&to) {
            Some(Name::Asked(question)) => Some(question.patience),
            _ => None,
        };
        let mut names = Names::new();
        for (asked, threads, then, asks) in [
            (before, 1, 2 * PATIENCE, 2),
            // Not before its time, and not by too many.
            (Instant::now(), 1, PATIENCE, 1),
            (before, THREADS_MAX, PATIENCE, THREADS_MAX),
        ] {
            names
                .names
                .insert(to, Name::Asked(question(asked, PATIENCE)));
            names.threads = threads;
            assert_eq!(names.find(library, row, to), Ok(None));
            assert_eq!((patience(&names), names.threads), (Some(then), asks));
            if asks > threads {
                // Here there is an answer: it is handed out once, and that of the other thread is not kept.
                let (_, answer) = names.answers.recv().expect("the thread answers");
                for _ in 0..2 {
                    names
                        .answer
                        .send((to, answer.clone()))
                        .expect("there is room");
                }
                assert_eq!(
                    names.find(library, row, to),
                    Ok(Some(answer.clone().unwrap()))
                );
                names.threads = 2;
                names.answer.send((to, answer)).expect("there is room");
                names.hear();
                assert!(names.names.is_empty() && names.threads == 1);
            }
        }
    }

    #[test]
    fn questions_that_nobody_answers_leave_their_places_and_not_their_threads() {
        let now = Instant::now();
        let Some(before) = now.checked_sub(PATIENCE) else {
            return;
        };
        let mut names = Names::new();
        let ask = |names: &mut Names, count: usize, at| {
            for _ in 0..count {
                let port = names.names.len() as u16;
                let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
                names.names.insert(to, Name::Asked(question(at, PATIENCE)));
                names.threads += 1;
            }
            names.has_place()
        };
        assert!(ask(&mut names, ASKED_MAX, before));
        assert!(ask(&mut names, ASKED_MAX - 1, now));
        assert!(!ask(&mut names, 1, now));
        let mut names = Names::new();
        assert!(!ask(&mut names, THREADS_MAX, before));
    }
}
