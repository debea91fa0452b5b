//! The name service: values that ranks publish under a name (`MPI_Publish_name`, `MPI_Comm_accept`; run-3).
//!
//! Each entry is in the node status of its rank's launcher, so every launcher has all entries, and keeps those of a
//! lost node. Some entries are for the first reader only. The launcher of that reader states in its own node status
//! that the entry was taken, and the publishing launcher then removes it.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::node::{Launcher, push_within};
use super::node_status::Contributed;
use muster_pmix::server::{Lookup, Publishing, Value};

/// Most bytes of a node's entries, as [`size_of`] counts: they share the node status with everything else.
const MAX: usize = 32_768;

/// A published name and its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PublishedName {
    /// Its number among its node's entries.
    pub(super) serial: u64,
    pub(super) rank: u32,
    pub(super) key: String,
    pub(super) kind: u16,
    pub(super) value: Contributed,
    /// It is for the first reader only.
    pub(super) once: bool,
}

/// Most lookups of a node that may wait at a time.
const LOOKUPS_MAX: usize = 4096;
/// How long a lookup without a limit waits: the program that publishes the name may still be in a queue.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3600);

/// A lookup that waits for its names.
pub(super) struct PendingLookup {
    lookup: Lookup,
    until: Instant,
}

impl PendingLookup {
    fn new(lookup: Lookup) -> Self {
        Self {
            until: Instant::now() + lookup_timeout(lookup.timeout_s),
            lookup,
        }
    }
}

fn lookup_timeout(timeout_s: Option<u32>) -> Duration {
    let given = timeout_s.map(|seconds| Duration::from_secs(u64::from(seconds)));
    given.unwrap_or(LOOKUP_TIMEOUT)
}

impl Launcher {
    /// A rank looks up names, which may still have to be published.
    pub(super) fn look_up(&mut self, lookup: Lookup) {
        let pending_lookups = PendingLookup::new(lookup);
        if let Err(one) = push_within(&mut self.pending_lookups, pending_lookups, LOOKUPS_MAX) {
            one.lookup.refuse();
        }
    }

    pub(super) fn publish(&mut self, publishing: Publishing) {
        let is_there = |key: &String| self.name_service().any(|(_, entry)| entry.key == *key);
        if publishing.entries.iter().any(|(key, _)| is_there(key)) {
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
            self.print(&format!(
                "rank {} publishes {more} bytes, and {} of {MAX} are left on this node; unpublish some names",
                publishing.rank,
                MAX - used
            ));
            return publishing.answer.refuse();
        }
        for (key, value) in publishing.entries {
            self.entry_count += 1;
            self.node_status.name_service.push(PublishedName {
                serial: self.entry_count,
                rank: publishing.rank,
                key,
                kind: value.kind,
                value: Contributed::here(&value.bytes),
                once: publishing.once,
            });
        }
        self.node_status.posted = self.entry_count;
        self.unconfirmed.push((self.entry_count, publishing.answer));
    }

    pub(super) fn unpublish(&mut self, rank: u32, keys: &[String]) {
        let is_selected =
            |one: &PublishedName| one.rank == rank && (keys.is_empty() || keys.contains(&one.key));
        self.node_status
            .name_service
            .retain(|one| !is_selected(one));
    }

    /// Answers the ranks whose entries are known on every node: after the answer a rank may tell others of
    /// them.
    fn confirm(&mut self) {
        for (node, node_status) in self
            .peers
            .node_statuses()
            .filter(|(node, _)| *node != self.own)
        {
            // `posted` counts, not the entries: one may have been removed before its node status was
            // read here.
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

    /// Removes entries that other nodes have taken, forgets taken entries that are removed, and answers
    /// lookups.
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
        let is_there = |(node, serial): &(usize, u64)| {
            let node_status = self.peers.node_status(*node);
            node_status.is_none_or(|node_status| {
                node_status
                    .name_service
                    .iter()
                    .any(|one| one.serial == *serial)
            })
        };
        let mut still = self.node_status.taken.clone();
        still.retain(is_there);
        self.node_status.taken = still;
        for pending_lookups in std::mem::take(&mut self.pending_lookups) {
            // A dead rank must not take an entry that is for the first reader.
            let rank = pending_lookups.lookup.rank;
            if self
                .node_status
                .ended
                .iter()
                .all(|ended| ended.rank != rank)
            {
                self.answer_lookup(pending_lookups);
            }
        }
    }

    fn answer_lookup(&mut self, pending_lookups: PendingLookup) {
        let PendingLookup { lookup, until } = pending_lookups;
        let mut found = Vec::new();
        let mut read = Vec::new();
        for key in &lookup.keys {
            let entry = self.name_service().find(|(_, entry)| entry.key == *key);
            if let Some((node, entry)) = entry {
                let bytes = entry.value.data().unwrap_or_default();
                found.push((
                    key.clone(),
                    entry.rank,
                    Value {
                        kind: entry.kind,
                        bytes,
                    },
                ));
                read.extend(entry.once.then_some((node, entry.serial)));
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
            self.pending_lookups.push(PendingLookup { lookup, until });
        }
    }

    /// All entries, each with its node, without those that this node's ranks have taken.
    fn name_service(&self) -> impl Iterator<Item = (usize, &PublishedName)> {
        let own = self
            .node_status
            .name_service
            .iter()
            .map(|entry| (self.own, entry));
        let others = self
            .peers
            .node_statuses()
            .filter(|(node, _)| *node != self.own);
        let others = others.flat_map(|(node, node_status)| {
            node_status
                .name_service
                .iter()
                .map(move |entry| (node, entry))
        });
        own.chain(others)
            .filter(|(node, entry)| !self.node_status.taken.contains(&(*node, entry.serial)))
    }
}

impl PublishedName {
    fn size(&self) -> usize {
        let value = self.value.data().map_or(0, |data| data.len());
        size_of(&self.key, value)
    }
}

/// Size of an entry in the node status: its numbers and field names, a key with quotes, a value in hexadecimal
/// digits.
fn size_of(key: &str, value: usize) -> usize {
    128 + 2 * key.len() + 2 * value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lookup without a limit does not wait for ever.
    #[test]
    fn every_lookup_has_a_limit() {
        assert_eq!(lookup_timeout(Some(3)), Duration::from_secs(3));
        assert_eq!(lookup_timeout(None), LOOKUP_TIMEOUT);
    }

    #[test]
    fn an_entry_takes_at_most_its_counted_size() {
        for (key, value) in [("k", 0), ("\"\\", 1), ("ompi:port:4711", 4000)] {
            let entry = PublishedName {
                serial: u64::MAX / 1_000_000,
                rank: u32::MAX,
                key: key.to_owned(),
                kind: u16::MAX,
                value: Contributed::here(&vec![7; value]),
                once: false,
            };
            let written = serde_json::to_vec(&entry).unwrap().len();
            assert!(written <= entry.size(), "{key}: {written}");
        }
    }
}
