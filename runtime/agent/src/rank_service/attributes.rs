//! Attributes between the ranks of this node and the engine: requests in, answers and events out.

use super::RankService;
use crate::slice::Slice;
use crate::status::RAILS_KEY;
use muster_ipc::{ASK_MAX, ATTRIBUTE_KEY_MAX, ATTRIBUTE_VALUE_MAX, Answer, Ask, listed};
use muster_protocol::{Input, Instant, KEY_MAX, Reject, VALUE_MAX};
use muster_sys::socket::Received;
use muster_zones::{Tree, ZONES_KEYS};
use tracing::warn;

const _: () = assert!(ATTRIBUTE_KEY_MAX == KEY_MAX && ATTRIBUTE_VALUE_MAX == VALUE_MAX);

/// Maximum number of keys that the processes of this node watch.
const WATCHED_MAX: usize = 4096;

impl RankService {
    /// Answers requests of the ranks, as far as there is time. Returns whether more wait. A write is stored for the
    /// next worker before it is acknowledged.
    pub(crate) fn answer(&mut self, tree: &mut Tree, now: Instant, slice: &Slice) -> bool {
        if !self.ipc.has_asks() {
            return false;
        }
        let mut buffer = vec![0; ASK_MAX];
        let version = tree.base().attributes_version(tree.base().id());
        let mut answers = Vec::new();
        while let Some((slot, socket)) = self.ipc.take_ask() {
            // The request was written before the socket was handed over. If it is missing or invalid, the socket is
            // closed without an answer.
            if let Ok(Received::Message(length, _)) = socket.receive(&mut buffer) {
                match Ask::decode(buffer.get(..length).unwrap_or_default()) {
                    Ok(ask) => answers.push((socket, self.answer_one(tree, now, slot, ask))),
                    Err(error) => {
                        warn!(%error, "a rank's attribute request is malformed; its socket is closed");
                    }
                }
            }
            if slice.is_over() {
                break;
            }
        }
        if tree.base().attributes_version(tree.base().id()) != version {
            self.save(tree.base());
        }
        for (socket, answer) in answers {
            // A rank that has closed its socket needs no answer.
            let _ = socket.send(&answer, None);
        }
        self.ipc.has_asks()
    }

    fn answer_one(&mut self, tree: &mut Tree, now: Instant, slot: u32, ask: Ask<'_>) -> Vec<u8> {
        let (mut text, mut keys) = (String::new(), Vec::new());
        let answer = match ask {
            Ask::Publish { key, .. } | Ask::Withdraw { key } if key == RAILS_KEY => {
                Answer::Limit("this key is reserved: the agent publishes the failing rails in it")
            }
            Ask::Publish { key, .. } | Ask::Withdraw { key } if key.starts_with(ZONES_KEYS) => {
                Answer::Limit(
                    "keys with this beginning are reserved: agents publish their zones in them",
                )
            }
            Ask::Publish { key, value } => {
                answer_to(tree.handle(now, Input::Publish { key, value }), &mut text)
            }
            Ask::Withdraw { key } => {
                answer_to(tree.handle(now, Input::Withdraw { key }), &mut text)
            }
            Ask::Get { node, key } => match self.node_name(node) {
                None => Answer::NoNode,
                Some(name) => tree
                    .attribute(&name, key)
                    .map_or(Answer::Absent, Answer::Value),
            },
            Ask::Watch { key_hash } => {
                if self.watched.len() >= WATCHED_MAX && !self.watched.contains_key(&key_hash) {
                    Answer::Limit("the processes of a node watch at most 4096 keys")
                } else {
                    self.watched.entry(key_hash).or_default().insert(slot);
                    Answer::Done
                }
            }
            Ask::Unwatch { key_hash } => {
                self.watched.entry(key_hash).or_default().remove(&slot);
                self.watched.retain(|_, slots| !slots.is_empty());
                Answer::Done
            }
            Ask::Keys { node, after } => match self.node_name(node) {
                None => Answer::NoNode,
                Some(name) => {
                    let all = tree.attribute_keys(&name).into_iter();
                    keys.extend(listed(all.filter(|key| *key > after)));
                    Answer::Value(&keys)
                }
            },
        };
        answer.encode()
    }

    /// Removes the watches of a process that has ended. Keys that no other process watches are no longer written to
    /// the state table.
    pub(super) fn forget_watcher(&mut self, slot: u32) {
        self.watched.retain(|_, slots| {
            slots.remove(&slot);
            !slots.is_empty()
        });
    }
}

fn answer_to(result: Result<(), Reject>, text: &mut String) -> Answer<'_> {
    match result {
        Ok(()) => Answer::Done,
        Err(Reject::Unknown) => Answer::Absent,
        Err(Reject::Stopped) => Answer::Stopped,
        Err(reject) => {
            *text = reject.to_string();
            Answer::Limit(text)
        }
    }
}
