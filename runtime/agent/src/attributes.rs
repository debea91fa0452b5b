//! Attributes between the ranks of this node and the protocol: questions in, answers and events
//! out.

use super::rank_service::RankService;
use super::slice::Slice;
use super::status::RAILS_KEY;
use muster_ipc::{ASK_MAX, ATTRIBUTE_KEY_MAX, ATTRIBUTE_VALUE_MAX, Answer, Ask, key_hash, listed};
use muster_protocol::{
    Engine, Event, Input, Instant, KEY_MAX, KeyHandle, MemberId, Reject, VALUE_MAX,
};
use muster_sys::socket::Received;
use tracing::warn;

const _: () = assert!(ATTRIBUTE_KEY_MAX == KEY_MAX && ATTRIBUTE_VALUE_MAX == VALUE_MAX);

/// Most keys that the processes of this node watch.
const WATCHED_MAX: usize = 4096;

impl RankService {
    /// Answers what the ranks asked, as far as there is time; says whether more wait. What is answered as
    /// written is kept for the next worker first.
    pub(super) fn answer(&mut self, engine: &mut Engine, now: Instant, slice: &Slice) -> bool {
        if !self.ipc.has_asks() {
            return false;
        }
        let mut buffer = vec![0; ASK_MAX];
        let version = engine.attributes_version(engine.id());
        let mut answers = Vec::new();
        while let Some((slot, socket)) = self.ipc.take_ask() {
            // The question was written before the socket was handed over; one that is not there,
            // or no question, is answered by the hang-up.
            if let Ok(Received::Message(length, _)) = socket.receive(&mut buffer) {
                match Ask::decode(buffer.get(..length).unwrap_or_default()) {
                    Ok(ask) => answers.push((socket, self.answer_one(engine, now, slot, ask))),
                    Err(error) => warn!(%error, "a question of a rank was refused"),
                }
            }
            if slice.is_over() {
                break;
            }
        }
        if engine.attributes_version(engine.id()) != version {
            self.keep(engine);
        }
        for (socket, answer) in answers {
            // Whoever asked and went away does not need to know.
            let _ = socket.send(&answer, None);
        }
        self.ipc.has_asks()
    }

    fn answer_one(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        slot: u32,
        ask: Ask<'_>,
    ) -> Vec<u8> {
        let (mut text, mut keys) = (String::new(), Vec::new());
        let answer = match ask {
            Ask::Publish { key, .. } | Ask::Withdraw { key } if key == RAILS_KEY => {
                Answer::Limit("this key says which rails fail, and the agent alone writes it")
            }
            Ask::Publish { key, value } => {
                answer_to(engine.handle(now, Input::Publish { key, value }), &mut text)
            }
            Ask::Withdraw { key } => {
                answer_to(engine.handle(now, Input::Withdraw { key }), &mut text)
            }
            Ask::Get { node, key } => match self.node_name(node) {
                None => Answer::NoNode,
                Some(name) => engine
                    .attribute(MemberId::of(&name), key)
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
                    let all = engine.attributes(MemberId::of(&name)).map(|(key, ..)| key);
                    keys.extend(listed(all.filter(|key| *key > after)));
                    Answer::Value(&keys)
                }
            },
        };
        answer.encode()
    }

    /// A process has ended: what only it wanted to know of is not written on the board any more.
    pub(super) fn forget_watcher(&mut self, slot: u32) {
        self.watched.retain(|_, slots| {
            slots.remove(&slot);
            !slots.is_empty()
        });
    }

    /// Writes a change on the board if anybody here watches the key. True if there is news.
    pub(super) fn tell_attribute(
        &mut self,
        engine: &Engine,
        event: &Event,
        key: KeyHandle,
    ) -> bool {
        let Some(hash) = engine.changed_key(key).map(key_hash) else {
            return false;
        };
        self.watched.contains_key(&hash) && self.publish_attribute(engine, event, hash)
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
