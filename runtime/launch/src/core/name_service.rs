//! The name service: values that ranks publish under a name (`MPI_Publish_name`, `MPI_Comm_accept`; run-3).
//!
//! Each entry is in the node status of its rank's launcher, so every launcher has all entries, and keeps those of a
//! lost node. Some entries are for the first reader only. The launcher of that reader states in its own node status
//! that the entry was taken, and the publishing launcher then removes it.

use std::time::Duration;

use super::messages::{Action, Answer, Looking, NamedValue, RequestId};
use super::node_status::{Contributed, PublishedName};
use super::{Core, push_within};

/// Most bytes of a node's entries, as [`size_of`] counts: they share the node status with everything else.
const MAX: usize = 32_768;
/// Most lookups of a node that may wait at a time.
const LOOKUPS_MAX: usize = 4096;
/// How long a lookup without a limit waits: the program that publishes the name may still be in a queue.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3600);

/// A lookup that waits for its names.
#[derive(Debug)]
pub(super) struct PendingLookup {
    looking: Looking,
    until: Duration,
}

fn lookup_timeout(timeout_s: Option<u32>) -> Duration {
    let given = timeout_s.map(|seconds| Duration::from_secs(u64::from(seconds)));
    given.unwrap_or(LOOKUP_TIMEOUT)
}

impl Core {
    /// A rank looks up names, which may still have to be published.
    pub(super) fn look_up(&mut self, looking: Looking) {
        let until = self.now + lookup_timeout(looking.timeout_s);
        let pending = PendingLookup { looking, until };
        if let Err(one) = push_within(&mut self.pending_lookups, pending, LOOKUPS_MAX) {
            self.answer(one.looking.request, Answer::Refused);
        }
    }

    pub(super) fn publish_names(
        &mut self,
        request: RequestId,
        rank: u32,
        values: Vec<NamedValue>,
        once: bool,
    ) {
        let is_there = |key: &String| self.name_service().any(|(_, entry)| entry.key == *key);
        if values.iter().any(|value| is_there(&value.key)) {
            return self.answer(request, Answer::Duplicate);
        }
        let entries = self.node_status.name_service.iter();
        let used: usize = entries.map(PublishedName::size).sum();
        let sizes = values
            .iter()
            .map(|value| size_of(&value.key, value.bytes.len()));
        let more: usize = sizes.sum();
        if used + more > MAX {
            self.print(format!(
                "rank {rank} publishes {more} bytes, and {} of {MAX} are left on this node; unpublish some names",
                MAX - used
            ));
            return self.answer(request, Answer::Refused);
        }
        for value in values {
            self.entry_count += 1;
            self.node_status.name_service.push(PublishedName {
                serial: self.entry_count,
                rank,
                key: value.key,
                kind: value.kind,
                value: Contributed::here(&value.bytes),
                once,
            });
        }
        self.node_status.posted = self.entry_count;
        self.unconfirmed.push((self.entry_count, request));
    }

    pub(super) fn unpublish(&mut self, rank: u32, keys: &[String]) {
        let is_selected =
            |one: &PublishedName| one.rank == rank && (keys.is_empty() || keys.contains(&one.key));
        let entries = &mut self.node_status.name_service;
        entries.retain(|one| !is_selected(one));
    }

    /// Answers the ranks whose entries are known on every node: after the answer a rank may tell others of
    /// them.
    fn confirm(&mut self) {
        let own = self.config.own;
        for (node, node_status) in self.view.others() {
            // `posted` counts, not the entries: one may have been removed before its node status was
            // read here.
            if node_status.posted > 0 {
                self.node_status.noticed.insert(node, node_status.posted);
            }
        }
        let others = (0..self.config.layout.nodes().len())
            .filter(|node| *node != own && !self.view.gone().contains(node));
        let known = |node: usize| match self.view.status(node) {
            Some(node_status) if node_status.done => u64::MAX,
            Some(node_status) => node_status.noticed.get(&own).copied().unwrap_or(0),
            None => 0,
        };
        let known_to_all = others.map(known).min().unwrap_or(u64::MAX);
        for (serial, request) in std::mem::take(&mut self.unconfirmed) {
            if serial <= known_to_all {
                self.answer(request, Answer::Done);
            } else {
                self.unconfirmed.push((serial, request));
            }
        }
    }

    /// Removes entries that other nodes have taken, forgets taken entries that are removed, and answers
    /// lookups.
    pub(super) fn serve_names(&mut self) {
        self.confirm();
        let own = self.config.own;
        let statuses = self.view.statuses();
        let taken: Vec<u64> = statuses
            .flat_map(|(_, node_status)| &node_status.taken)
            .filter(|(node, _)| *node == own)
            .map(|(_, serial)| *serial)
            .collect();
        let entries = &mut self.node_status.name_service;
        entries.retain(|one| !taken.contains(&one.serial));
        let is_there = |(node, serial): &(usize, u64)| {
            let is_it = |one: &PublishedName| one.serial == *serial;
            let node_status = self.view.status(*node);
            node_status.is_none_or(|node_status| node_status.name_service.iter().any(is_it))
        };
        self.node_status.taken.retain(is_there);
        for pending in std::mem::take(&mut self.pending_lookups) {
            // A dead rank must not take an entry that is for the first reader.
            let rank = pending.looking.rank;
            let mut ended = self.node_status.ended.iter();
            if ended.all(|ended| ended.rank != rank) {
                self.answer_lookup(pending);
            } else {
                self.act(Action::Forget(pending.looking.request));
            }
        }
    }

    fn answer_lookup(&mut self, pending: PendingLookup) {
        let PendingLookup { looking, until } = pending;
        let mut found = Vec::new();
        let mut read = Vec::new();
        for key in &looking.keys {
            let entry = self.name_service().find(|(_, entry)| entry.key == *key);
            if let Some((node, entry)) = entry {
                found.push(NamedValue {
                    key: key.clone(),
                    rank: entry.rank,
                    kind: entry.kind,
                    bytes: entry.value.data().unwrap_or_default(),
                });
                read.extend(entry.once.then_some((node, entry.serial)));
            }
        }
        let is_all = found.len() == looking.keys.len();
        if is_all || !looking.wait {
            for (node, serial) in read {
                if node == self.config.own {
                    let entries = &mut self.node_status.name_service;
                    entries.retain(|one| one.serial != serial);
                } else {
                    self.node_status.taken.push((node, serial));
                }
            }
            self.answer(looking.request, Answer::Values { found, is_all });
        } else if self.now > until {
            self.answer(looking.request, Answer::TimedOut);
        } else {
            self.pending_lookups.push(PendingLookup { looking, until });
        }
    }

    /// All entries, each with its node, without those that this node's ranks have taken.
    fn name_service(&self) -> impl Iterator<Item = (usize, &PublishedName)> {
        let own = self.node_status.name_service.iter();
        let own = own.map(|entry| (self.config.own, entry));
        let others = self.view.others().flat_map(|(node, node_status)| {
            let entries = node_status.name_service.iter();
            entries.map(move |entry| (node, entry))
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
