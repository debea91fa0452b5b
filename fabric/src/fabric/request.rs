//! What a bulk message is for: put, with acknowledgement or without; get, and the answer to it.
//!
//! An acknowledgement says that the peer's fabric has a message, an answer says that its host has read it.
//! A question is answered once or not at all, and its sender is told which: the time for an answer begins
//! when the question is known to have arrived, so what was never sent has no answer that is late.

use super::Fabric;
use super::bulk::STREAMS;
use crate::bulk::{Frame, Operation};
use crate::peer::PeerHandle;
use crate::stats::DropReason;
use crate::transport::{FabricEvent, PutOptions, Question};

/// Questions to one peer that wait for an answer, at most.
const GETS_MAX: usize = 16;

/// Longest question, bytes: it waits with the events until the host takes it.
pub const QUESTION_MAX: usize = 4096;

/// Questions to one peer that were not answered yet.
#[derive(Debug, Default)]
pub(super) struct Gets(Vec<Get>);

#[derive(Debug)]
struct Get {
    question: u64,
    /// None: it has not arrived, as far as is known.
    until_us: Option<u64>,
}

impl Gets {
    pub(super) fn begin(&mut self, question: u64) {
        self.0.push(Get {
            question,
            until_us: None,
        });
    }

    fn is_full(&self) -> bool {
        self.0.len() >= GETS_MAX
    }

    /// A message has arrived. If it is a question, its answer is due from now on.
    pub(super) fn sent(&mut self, message: u64, until_us: u64) {
        let get = self.0.iter_mut().find(|get| get.question == message);
        if let Some(get) = get {
            get.until_us = Some(until_us);
        }
    }

    /// If this message is a question, there is nothing to wait for any more.
    pub(super) fn end(&mut self, message: u64) {
        self.0.retain(|get| get.question != message);
    }

    fn has(&self, question: u64) -> bool {
        self.0.iter().any(|get| get.question == question)
    }

    /// Takes those whose time is over.
    pub(super) fn over(&mut self, now_us: u64) -> Vec<u64> {
        let is_over = |get: &mut Get| get.until_us.is_some_and(|until_us| until_us <= now_us);
        self.0
            .extract_if(.., is_over)
            .map(|get| get.question)
            .collect()
    }

    /// When one is over.
    pub(super) fn timeout(&self) -> Option<u64> {
        self.0.iter().filter_map(|get| get.until_us).min()
    }
}

impl Fabric {
    /// Like [`send_bulk`](Fabric::send_bulk), with a choice. An urgent message passes those that are not,
    /// and none that is. One without acknowledgement ends with [`FabricEvent::BulkSent`] when the provider
    /// has taken it; if it is lost then, nothing tells of it. Whoever must know wants an acknowledgement.
    /// What follows it stays on its pair as long as that works and the peer's pairs stay what they are (rails
    /// added or taken away, other addresses); one that was passed on the way all the same is dropped over there,
    /// and counted (`bulk_refused`).
    ///
    /// # Errors
    /// Why it was not taken; nothing of it was kept.
    pub fn put(
        &mut self,
        now_us: u64,
        peer: PeerHandle,
        put_options: PutOptions,
        bytes: &[u8],
    ) -> Result<u64, DropReason> {
        let operation = match put_options.acked {
            true => Operation::Put,
            false => Operation::PutUnacked,
        };
        self.send_operation(now_us, peer, put_options.urgent, operation, None, bytes)
    }

    /// Takes a question of up to [`QUESTION_MAX`](crate::QUESTION_MAX) bytes to a peer's host, which is
    /// told of it by [`FabricEvent::Asked`]; returns its number. After the event of its sending
    /// ([`FabricEvent::BulkDone`]), or before, comes [`FabricEvent::Answered`], without an answer if none
    /// has come in the reply time-out. After [`FabricEvent::BulkFailed`] comes none.
    ///
    /// # Errors
    /// Why it was not taken; nothing of it was kept.
    pub fn get(
        &mut self,
        now_us: u64,
        peer: PeerHandle,
        urgent: bool,
        question: &[u8],
    ) -> Result<u64, DropReason> {
        if question.len() > QUESTION_MAX {
            return Err(DropReason::Oversize);
        }
        if self.bulk_of(peer).is_some_and(|bulk| bulk.gets.is_full()) {
            return Err(DropReason::PeerBusy);
        }
        self.send_operation(now_us, peer, urgent, Operation::Get, None, question)
    }

    /// Answers a question of a peer, with up to sixteen bytes less than
    /// [`BULK_MESSAGE_MAX`](crate::BULK_MESSAGE_MAX). The answer goes back the way that the question came,
    /// from the NID that it was sent to and to the one that it came from; by another if that does not work.
    ///
    /// # Errors
    /// Why it was not taken; nothing of it was kept.
    pub fn answer(
        &mut self,
        now_us: u64,
        peer: PeerHandle,
        question: Question,
        bytes: &[u8],
    ) -> Result<u64, DropReason> {
        let Question {
            number,
            life,
            urgent,
            path,
        } = question;
        let bytes = [&number.to_le_bytes()[..], &life.to_le_bytes(), bytes].concat();
        self.send_operation(now_us, peer, urgent, Operation::Reply, path, &bytes)
    }

    /// A message that is whole: it is returned if it is for the host as it is; or it is a question, or the
    /// answer to one of ours.
    pub(super) fn open_request(
        &mut self,
        rail: usize,
        peer: PeerHandle,
        frame: &Frame,
        path: Option<u32>,
        bytes: Vec<u8>,
    ) -> Option<Vec<u8>> {
        match frame.operation {
            Operation::Put | Operation::PutUnacked => return Some(bytes),
            Operation::Get if bytes.len() <= QUESTION_MAX => self.push_event(FabricEvent::Asked {
                peer,
                question: Question {
                    number: frame.fragment.message,
                    life: frame.stamp.session,
                    urgent: frame.urgent,
                    path,
                },
                bytes,
            }),
            Operation::Get => self.count_bulk(rail, DropReason::BulkRefused),
            Operation::Reply => {
                // Each life of a node counts its messages from the beginning; its sessions have other numbers.
                let own = self.bulk_of(peer).map(|bulk| bulk.session.own());
                let number = bytes.split_first_chunk();
                let life = number.and_then(|(_, rest)| rest.split_first_chunk());
                let taken = number
                    .zip(life)
                    .is_some_and(|((number, _), (life, answer))| {
                        Some(u64::from_le_bytes(*life)) == own
                            && self.take_answer(peer, u64::from_le_bytes(*number), answer)
                    });
                if !taken {
                    // Too late, of an earlier life, or to a question that was never asked.
                    self.count_bulk(rail, DropReason::BulkRefused);
                }
            }
        }
        None
    }

    /// Takes an answer, if a question waits for it.
    fn take_answer(&mut self, peer: PeerHandle, question: u64, answer: &[u8]) -> bool {
        let (now_us, times) = (self.now_us, self.config.timeouts);
        let waits = self
            .bulk_of(peer)
            .is_some_and(|bulk| bulk.gets.has(question));
        if !waits {
            return false;
        }
        // Who answers has the question: its acknowledgement may have been lost.
        for urgent in STREAMS {
            let Some(stream) = self.stream_of(peer, urgent) else {
                continue;
            };
            let due = stream.sender.acked(now_us, question, u64::MAX, &times);
            stream.went_on();
            self.bulk_ended(peer, urgent, due);
        }
        if let Some(bulk) = self.bulk_of(peer) {
            bulk.gets.end(question);
        }
        self.push_event(FabricEvent::Answered {
            peer,
            question,
            answer: Some(answer.to_vec()),
        });
        true
    }

    /// Says of questions that they were not answered in time.
    pub(super) fn tick_gets(&mut self, now_us: u64, peer: PeerHandle) {
        let over = self.bulk_of(peer).map(|bulk| bulk.gets.over(now_us));
        self.say_unanswered(peer, over.unwrap_or_default());
    }

    pub(super) fn say_unanswered(&mut self, peer: PeerHandle, questions: Vec<u64>) {
        for question in questions {
            self.push_event(FabricEvent::Answered {
                peer,
                question,
                answer: None,
            });
        }
    }
}
