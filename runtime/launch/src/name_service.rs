//! Words that ranks leave for each other under a name (`MPI_Publish_name`, `MPI_Comm_accept`; run-3).
//!
//! Each stands on the bell of its rank's launcher, so every launcher has all of them, and keeps those of a node that is
//! lost. Some are for the first who reads them. Whoever does says so on his own bell, and the launcher that has them
//! takes them down when it hears that.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::node::{Launcher, push_within};
use super::node_status::Contributed;
use muster_pmix::server::{Lookup, Publishing, Value};

/// Most bytes of notices of one node, as [`size_of`] counts: they have to fit on its bell beside all else.
const MAX: usize = 32_768;

/// Words under a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PublishedName {
    /// Which of its node's.
    pub(super) serial: u64,
    pub(super) rank: u32,
    pub(super) key: String,
    pub(super) kind: u16,
    pub(super) value: Contributed,
    /// It is for the first who reads it.
    pub(super) once: bool,
}

/// Those that may be waited for on a node at a time.
const SEARCHING_MAX: usize = 4096;
/// How long is waited for words by a rank that does not say how long: a program that is to come may stand in a queue.
const SEARCH_MAX: Duration = Duration::from_secs(3600);

/// Somebody who waits for words.
pub(super) struct Searching {
    lookup: Lookup,
    until: Instant,
}

impl Searching {
    fn new(lookup: Lookup) -> Self {
        Self {
            until: Instant::now() + patience(lookup.timeout_s),
            lookup,
        }
    }
}

fn patience(timeout_s: Option<u32>) -> Duration {
    let given = timeout_s.map(|seconds| Duration::from_secs(u64::from(seconds)));
    given.unwrap_or(SEARCH_MAX)
}

impl Launcher {
    /// A rank looks for words, which may still have to come.
    pub(super) fn look_up(&mut self, lookup: Lookup) {
        let searching = Searching::new(lookup);
        if let Err(one) = push_within(&mut self.searching, searching, SEARCHING_MAX) {
            one.lookup.refuse();
        }
    }

    pub(super) fn publish(&mut self, publishing: Publishing) {
        let stands = |key: &String| self.name_service().any(|(_, notice)| notice.key == *key);
        if publishing.entries.iter().any(|(key, _)| stands(key)) {
            return publishing.answer.refuse_duplicate();
        }
        let used = self
            .node_status
            .name_service
            .iter()
            .map(|one| one.size())
            .sum::<usize>();
        let more: usize = publishing
            .entries
            .iter()
            .map(|(key, value)| size_of(key, value.bytes.len()))
            .sum();
        if used + more > MAX {
            self.say(&format!(
                "rank {} has published what takes {more} bytes, and {} of {MAX} are left on this node; unpublish some",
                publishing.rank,
                MAX - used
            ));
            return publishing.answer.refuse();
        }
        for (key, value) in publishing.entries {
            self.notice_count += 1;
            self.node_status.name_service.push(PublishedName {
                serial: self.notice_count,
                rank: publishing.rank,
                key,
                kind: value.kind,
                value: Contributed::here(&value.bytes),
                once: publishing.once,
            });
        }
        self.node_status.posted = self.notice_count;
        self.unconfirmed
            .push((self.notice_count, publishing.answer));
    }

    pub(super) fn unpublish(&mut self, rank: u32, keys: &[String]) {
        let is_meant =
            |one: &PublishedName| one.rank == rank && (keys.is_empty() || keys.contains(&one.key));
        self.node_status.name_service.retain(|one| !is_meant(one));
    }

    /// A rank may go on when what it has published is known on every node: it may tell others of it right away.
    fn confirm(&mut self) {
        for (node, node_status) in self
            .peers
            .node_statuses()
            .filter(|(node, _)| *node != self.own)
        {
            // Not by those that stand: one may have been taken down before its bell was read here.
            if node_status.posted > 0 {
                self.node_status.noticed.insert(node, node_status.posted);
            }
        }
        let own = self.own;
        let others = (0..self.plan.layout.nodes().len())
            .filter(|node| *node != own && !self.peers.gone().contains(node));
        let known = |node: usize| {
            let node_status = self.peers.node_status(node);
            node_status.map_or(0, |node_status| {
                if node_status.done {
                    u64::MAX
                } else {
                    node_status.noticed.get(&own).copied().unwrap_or(0)
                }
            })
        };
        let known_to_all = others.map(known).min().unwrap_or(u64::MAX);
        for (serial, answer) in std::mem::take(&mut self.unconfirmed) {
            if serial <= known_to_all {
                answer.succeed();
            } else {
                self.unconfirmed.push((serial, answer));
            }
        }
    }

    /// Takes down what others have read, forgets what was taken down, and answers whom it can.
    pub(super) fn serve_names(&mut self) {
        self.confirm();
        let own = self.own;
        let taken: Vec<u64> = self
            .peers
            .node_statuses()
            .flat_map(|(_, node_status)| &node_status.taken)
            .filter(|(node, _)| *node == own)
            .map(|(_, serial)| *serial)
            .collect();
        self.node_status
            .name_service
            .retain(|one| !taken.contains(&one.serial));
        let stands = |(node, serial): &(usize, u64)| {
            let node_status = self.peers.node_status(*node);
            node_status.is_none_or(|node_status| {
                node_status
                    .name_service
                    .iter()
                    .any(|one| one.serial == *serial)
            })
        };
        let mut still = self.node_status.taken.clone();
        still.retain(stands);
        self.node_status.taken = still;
        for searching in std::mem::take(&mut self.searching) {
            // A dead rank must not take what is for the first who reads it.
            let rank = searching.lookup.rank;
            if self
                .node_status
                .ended
                .iter()
                .all(|ended| ended.rank != rank)
            {
                self.search(searching);
            }
        }
    }

    fn search(&mut self, searching: Searching) {
        let Searching { lookup, until } = searching;
        let mut found = Vec::new();
        let mut read = Vec::new();
        for key in &lookup.keys {
            let notice = self.name_service().find(|(_, notice)| notice.key == *key);
            if let Some((node, notice)) = notice {
                let bytes = notice.value.data().unwrap_or_default();
                found.push((
                    key.clone(),
                    notice.rank,
                    Value {
                        kind: notice.kind,
                        bytes,
                    },
                ));
                read.extend(notice.once.then_some((node, notice.serial)));
            }
        }
        let is_all = found.len() == lookup.keys.len();
        if is_all || !lookup.wait {
            for (node, serial) in read {
                if node == self.own {
                    self.node_status
                        .name_service
                        .retain(|one| one.serial != serial);
                } else {
                    self.node_status.taken.push((node, serial));
                }
            }
            lookup.give(&found, is_all);
        } else if Instant::now() > until {
            lookup.time_out();
        } else {
            self.searching.push(Searching { lookup, until });
        }
    }

    /// All that stand, with the node, but for those that this node's ranks have taken.
    fn name_service(&self) -> impl Iterator<Item = (usize, &PublishedName)> {
        let own = self
            .node_status
            .name_service
            .iter()
            .map(|notice| (self.own, notice));
        let others = self
            .peers
            .node_statuses()
            .filter(|(node, _)| *node != self.own);
        let others = others.flat_map(|(node, node_status)| {
            node_status
                .name_service
                .iter()
                .map(move |notice| (node, notice))
        });
        own.chain(others)
            .filter(|(node, notice)| !self.node_status.taken.contains(&(*node, notice.serial)))
    }
}

impl PublishedName {
    fn size(&self) -> usize {
        let value = self.value.data().map_or(0, |data| data.len());
        size_of(&self.key, value)
    }
}

/// What a notice takes on the bell: its numbers and names, a key with quotes, a value in hexadecimal digits.
fn size_of(key: &str, value: usize) -> usize {
    128 + 2 * key.len() + 2 * value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who does not say how long is not waited with for ever.
    #[test]
    fn every_search_has_an_end() {
        assert_eq!(patience(Some(3)), Duration::from_secs(3));
        assert_eq!(patience(None), SEARCH_MAX);
    }

    #[test]
    fn a_notice_takes_no_more_of_the_bell_than_is_counted() {
        for (key, value) in [("k", 0), ("\"\\", 1), ("ompi:port:4711", 4000)] {
            let notice = PublishedName {
                serial: u64::MAX / 1_000_000,
                rank: u32::MAX,
                key: key.to_owned(),
                kind: u16::MAX,
                value: Contributed::here(&vec![7; value]),
                once: false,
            };
            let written = serde_json::to_vec(&notice).unwrap().len();
            assert!(written <= notice.size(), "{key}: {written}");
        }
    }
}
