//! Operations of bulk messages: put, with or without acknowledgement; get, and the answer to it.
//!
//! An acknowledgement states that the peer's fabric has received a message, an answer that its host has read it. A
//! question is answered at most once, and its sender is told whether it was. The time for an answer begins when the
//! question is known to have arrived, so a question that was never sent has no late answer.

use super::Fabric;
use crate::bulk::{Frame, Operation, STREAMS};
use crate::message::{PutOptions, Question};
use crate::peer_handle::PeerHandle;
use crate::stats::DropReason;
use crate::transport::FabricEvent;

/// The longest question, in bytes. It waits with the events until the host fetches it.
pub const QUESTION_MAX: usize = 4096;

impl Fabric {
    /// Like [`send_bulk`](Fabric::send_bulk), with options. An urgent message overtakes messages that are not urgent,
    /// but no urgent one. A message without acknowledgement ends with [`FabricEvent::BulkSent`] when the provider has
    /// taken it. If it is lost then, no event reports that; where that matters, use an acknowledgement. The messages
    /// after it stay on its pair as long as that pair works and the peer's pairs do not change (rails added or
    /// removed, other addresses). If one is overtaken nevertheless, the receiver drops and counts it
    /// (`bulk_refused`).
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

    /// Sends a question of up to [`QUESTION_MAX`](crate::QUESTION_MAX) bytes to a peer's host, which receives it as
    /// [`FabricEvent::Asked`]; returns its number. [`FabricEvent::Answered`] comes before or after the event of its
    /// sending ([`FabricEvent::BulkDone`]). It has no answer if none has arrived within the reply time-out. After
    /// [`FabricEvent::BulkFailed`] it does not come.
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

    /// Answers a question of a peer, with at most [`BULK_MESSAGE_MAX`](crate::BULK_MESSAGE_MAX) - 16 bytes. The
    /// answer takes the path of the question in reverse, from the NID that the question was sent to and to the one
    /// that it came from; another path if that does not work.
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
            session,
            urgent,
            path,
        } = question;
        let bytes = [&number.to_le_bytes()[..], &session.to_le_bytes(), bytes].concat();
        self.send_operation(now_us, peer, urgent, Operation::Reply, path, &bytes)
    }

    /// Handles a whole message. Returns it if it is a put, for the host. Otherwise it is a question, or the answer to
    /// a question of this node.
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
                    session: frame.stamp.session,
                    urgent: frame.urgent,
                    path,
                },
                bytes,
            }),
            Operation::Get => self.count_bulk(rail, DropReason::BulkRefused),
            Operation::Reply => {
                // Each incarnation of a node counts its messages from 1; its sessions have other numbers.
                let own = self.bulk_of(peer).map(|bulk| bulk.session.own());
                let number = bytes.split_first_chunk();
                let session = number.and_then(|(_, rest)| rest.split_first_chunk());
                let taken = number
                    .zip(session)
                    .is_some_and(|((number, _), (session, answer))| {
                        Some(u64::from_le_bytes(*session)) == own
                            && self.take_answer(peer, u64::from_le_bytes(*number), answer)
                    });
                if !taken {
                    // The answer is late, of an earlier session, or to a question that was never sent.
                    self.count_bulk(rail, DropReason::BulkRefused);
                }
            }
        }
        None
    }

    /// Takes an answer if a question waits for it.
    fn take_answer(&mut self, peer: PeerHandle, question: u64, answer: &[u8]) -> bool {
        let (now_us, times) = (self.now_us, self.config.timeouts);
        let waits = self
            .bulk_of(peer)
            .is_some_and(|bulk| bulk.gets.has(question));
        if !waits {
            return false;
        }
        // An answer proves that the question has arrived, although its acknowledgement may have been lost.
        for urgent in STREAMS {
            let Some(stream) = self.stream_of(peer, urgent) else {
                continue;
            };
            let due = stream.sender.acked(now_us, question, u64::MAX, &times);
            stream.note_progress();
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

    /// Reports questions that were not answered in time.
    pub(super) fn tick_gets(&mut self, now_us: u64, peer: PeerHandle) {
        let expired = self.bulk_of(peer).map(|bulk| bulk.gets.expired(now_us));
        self.report_unanswered(peer, expired.unwrap_or_default());
    }

    pub(super) fn report_unanswered(&mut self, peer: PeerHandle, questions: Vec<u64>) {
        for question in questions {
            self.push_event(FabricEvent::Answered {
                peer,
                question,
                answer: None,
            });
        }
    }
}
