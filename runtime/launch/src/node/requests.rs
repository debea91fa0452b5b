//! Requests of ranks that wait for an answer of the core, with libpmix's callbacks.

use std::collections::BTreeMap;

use crate::core::messages::{Answer, Entering, Input, Looking, NamedValue, RequestId, Wanting};
use muster_pmix::server::{
    Collective, Contribution, Done, Lookup, Publishing, Signalling, Value, Want,
};

/// A request, to be answered once.
enum Request {
    Collective(Contribution),
    Done(Done),
    Lookup(Lookup),
    Want(Want),
    Signalling(Signalling),
}

/// The requests that wait.
#[derive(Default)]
pub(super) struct Requests {
    waiting: BTreeMap<RequestId, Request>,
    count: u64,
}

impl Requests {
    fn add(&mut self, request: Request) -> RequestId {
        self.count += 1;
        let id = RequestId(self.count);
        self.waiting.insert(id, request);
        id
    }

    /// Each of these keeps a request and returns it as an input of the core.
    pub(super) fn collective(&mut self, mut contribution: Contribution) -> Input {
        let data = std::mem::take(&mut contribution.data);
        let tag = contribution.collective.tag();
        let is_group = matches!(contribution.collective, Collective::Construct(_));
        let (ranks, timeout_s) = (contribution.ranks.clone(), contribution.timeout_s);
        Input::Enter(Entering {
            request: self.add(Request::Collective(contribution)),
            tag,
            is_group,
            ranks,
            data,
            timeout_s,
        })
    }

    pub(super) fn publishing(&mut self, publishing: Publishing) -> Input {
        let rank = publishing.rank;
        let named = |(key, value): (String, Value)| NamedValue {
            key,
            rank,
            kind: value.kind,
            bytes: value.bytes,
        };
        Input::Publish {
            request: self.add(Request::Done(publishing.answer)),
            rank,
            values: publishing.entries.into_iter().map(named).collect(),
            once: publishing.once,
        }
    }

    pub(super) fn lookup(&mut self, lookup: Lookup) -> Input {
        let keys = lookup.keys.clone();
        let (rank, wait, timeout_s) = (lookup.rank, lookup.wait, lookup.timeout_s);
        Input::LookUp(Looking {
            request: self.add(Request::Lookup(lookup)),
            rank,
            keys,
            wait,
            timeout_s,
        })
    }

    pub(super) fn unpublishing(&mut self, rank: u32, keys: Vec<String>, answer: Done) -> Input {
        let request = self.add(Request::Done(answer));
        Input::Unpublish {
            request,
            rank,
            keys,
        }
    }

    pub(super) fn want(&mut self, want: Want) -> Input {
        let (rank, key, timeout_s) = (want.rank, want.key.clone(), want.timeout_s);
        Input::Want(Wanting {
            request: self.add(Request::Want(want)),
            rank,
            key,
            timeout_s,
        })
    }

    pub(super) fn signalling(&mut self, signalling: Signalling) -> Input {
        let (ranks, signal) = (signalling.ranks.clone(), signalling.signal);
        Input::SignalRanks {
            request: self.add(Request::Signalling(signalling)),
            ranks,
            signal,
        }
    }

    pub(super) fn abort(&mut self, rank: u32, status: i32, message: String, answer: Done) -> Input {
        let request = self.add(Request::Done(answer));
        Input::Abort {
            request,
            rank,
            status,
            message,
        }
    }

    /// Forgets a request without an answer.
    pub(super) fn forget(&mut self, id: RequestId) {
        self.waiting.remove(&id);
    }

    /// Answers a request.
    pub(super) fn answer(&mut self, id: RequestId, answer: Answer) {
        let Some(request) = self.waiting.remove(&id) else {
            return;
        };
        match (request, answer) {
            (Request::Collective(one), Answer::Collected { data, number }) => {
                one.complete(&data, number as usize);
            }
            (Request::Collective(one), Answer::TimedOut) => one.time_out(),
            (Request::Collective(one), _) => one.refuse(),
            (Request::Done(one), Answer::Done) => one.succeed(),
            (Request::Done(one), Answer::Duplicate) => one.refuse_duplicate(),
            (Request::Done(one), _) => one.refuse(),
            (Request::Lookup(one), Answer::Values { found, is_all }) => {
                let value = |named: NamedValue| {
                    let (kind, bytes) = (named.kind, named.bytes);
                    (named.key, named.rank, Value { kind, bytes })
                };
                let found: Vec<_> = found.into_iter().map(value).collect();
                one.give(&found, is_all);
            }
            (Request::Lookup(one), Answer::TimedOut) => one.time_out(),
            (Request::Lookup(one), _) => one.refuse(),
            (Request::Want(one), Answer::Data(data)) => one.give(&data),
            (Request::Want(one), Answer::NotFound) => one.refuse(),
            (Request::Want(one), Answer::TimedOut) => one.time_out(),
            (Request::Want(one), _) => one.turn_away(),
            (Request::Signalling(one), Answer::Done) => one.succeed(),
            (Request::Signalling(one), _) => one.refuse(),
        }
    }
}
