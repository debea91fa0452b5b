//! Names: peers' addresses of a provider's own kind, found by threads of their own.
//!
//! psm's address of a peer is known on the peer's node: libfabric asks a name server there over TCP, and
//! waits without a deadline. The host's loop may not: so somebody else asks, and the address is not known
//! *yet* until there is an answer. What was asked and never answered keeps its thread; there are few.

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

/// A question that was not answered in this time keeps its thread, and no place among those that wait.
const PATIENCE: Duration = Duration::from_secs(10);

/// Threads, at most, whatever they wait for.
const THREADS_MAX: usize = 64;

/// Answers that nobody has fetched, at most; all are forgotten then.
const KNOWN_MAX: usize = 4096;

/// After an error nobody is asked about this address for so long.
const PAUSE: Duration = Duration::from_secs(1);

/// What is known of one address.
#[derive(Debug)]
enum Name {
    Asked(Instant),
    Found(Vec<u8>),
    Failed(CallError, Instant),
}

type Answer = (SocketAddrV4, Result<Vec<u8>, CallError>);

/// Questions and answers of one lane.
#[derive(Debug)]
pub(super) struct Names {
    names: BTreeMap<SocketAddrV4, Name>,
    answer: SyncSender<Answer>,
    answers: Receiver<Answer>,
}

impl Names {
    pub(super) fn new() -> Names {
        let (answer, answers) = sync_channel(ASKED_MAX);
        Names {
            names: BTreeMap::new(),
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
            Some(Name::Asked(at)) => {
                self.names.insert(to, Name::Asked(at));
                return Ok(None);
            }
            Some(Name::Failed(..)) | None => {}
        }
        if self.has_place() {
            let answer = self.answer.clone();
            let ask = move || {
                // Nobody may be left who wants to know.
                let _ = answer.send((to, Info::destination(&library, row, to)));
            };
            let thread = thread::Builder::new().name("muster-names".into());
            if thread.spawn(ask).is_ok() {
                self.names.insert(to, Name::Asked(Instant::now()));
            }
        }
        Ok(None)
    }

    /// Whether one question more may be asked.
    fn has_place(&self) -> bool {
        let asked = self.names.values().filter_map(|name| match name {
            Name::Asked(at) => Some(at.elapsed()),
            Name::Found(_) | Name::Failed(..) => None,
        });
        let (late, waiting): (Vec<_>, Vec<_>) = asked.partition(|waited| *waited >= PATIENCE);
        waiting.len() < ASKED_MAX && late.len() + waiting.len() < THREADS_MAX
    }

    fn hear(&mut self) {
        while let Ok((to, answer)) = self.answers.try_recv() {
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
                names.names.insert(to, Name::Asked(at));
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
