//! The sending side: a short queue, a window, and a timer for missing acknowledgements.
//!
//! The path of each fragment is remembered until the fragment is acknowledged. So the bytes under way on each path
//! are known, as well as which path a silence counts against, and which fragments are to be sent again when one path
//! fails and the others continue.

use super::{BULK_MESSAGE_MAX, FRAGMENT_BYTES, Operation, QUEUE_MAX, WINDOW, all, fragments};
use crate::stats::DropReason;
use crate::timeouts::Timeouts;
use std::collections::VecDeque;

/// A fragment of a message, or the message that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// The message's number, counted from 1.
    pub(crate) message: u64,
    /// The length of the whole message.
    pub(crate) length: u32,
    /// The index of the fragment.
    pub(crate) index: u32,
}

/// What has become of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// All of it was acknowledged.
    Done(u64),
    /// The provider has taken all of it, and it is sent without acknowledgement.
    Sent(u64),
    /// It is to be sent again, by another path.
    Again(u64),
    /// It was given up after its last retry.
    GivenUp(u64),
}

/// Sends the messages of one stream to one peer.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    queue: VecDeque<Message>,
    /// The number of rails that fragments are spread over. The window is the sum of theirs.
    rails: u32,
}

#[derive(Debug)]
struct Message {
    id: u64,
    operation: Operation,
    /// The id of the path to use if it works: an answer takes the path of its question.
    back: Option<u32>,
    bytes: Vec<u8>,
    acked: u64,
    /// Fragments that were sent since the last retry, or acknowledged.
    sent: u64,
    /// The id of the path that each fragment took last; none if another member carried it.
    by: Vec<Option<u32>>,
    retries: u32,
    retry_us: u64,
    /// When the message is given up without progress.
    until_us: u64,
}

impl Message {
    /// Fragments that were sent on a path and are not acknowledged, each with its path.
    fn outstanding(&self) -> impl Iterator<Item = (u32, u32)> {
        let under_way = self.sent & !self.acked;
        let is_out = move |index: &u32| under_way & (1 << index) != 0;
        let indices = (0..self.by.len() as u32).filter(is_out);
        indices.filter_map(|index| Some((index, self.by[index as usize]?)))
    }

    fn piece(&self, index: u32) -> std::ops::Range<usize> {
        let start = index as usize * FRAGMENT_BYTES;
        start..(start + FRAGMENT_BYTES).min(self.bytes.len())
    }

    /// Notes progress: restarts all timers.
    fn note_progress(&mut self, now_us: u64, timeouts: &Timeouts) {
        self.retries = 0;
        self.retry_us = now_us.saturating_add(timeouts.transport_us);
        self.until_us = now_us.saturating_add(timeouts.retry_us);
    }
}

impl Sender {
    /// Adds a message, under a number greater than that of any message to this peer before. Refused if it is too long
    /// or too many wait.
    pub(crate) fn push(
        &mut self,
        now_us: u64,
        id: u64,
        operation: Operation,
        back: Option<u32>,
        bytes: &[u8],
        timeouts: &Timeouts,
    ) -> Result<(), DropReason> {
        if bytes.len() > BULK_MESSAGE_MAX {
            return Err(DropReason::Oversize);
        }
        if self.queue.len() >= QUEUE_MAX {
            return Err(DropReason::PeerBusy);
        }
        let mut message = Message {
            id,
            operation,
            back,
            bytes: bytes.to_vec(),
            acked: 0,
            sent: 0,
            by: vec![None; fragments(bytes.len()) as usize],
            retries: 0,
            retry_us: 0,
            until_us: 0,
        };
        message.note_progress(now_us, timeouts);
        self.queue.push_back(message);
        Ok(())
    }

    /// The next fragment to send, if the window has room for one.
    pub(crate) fn next(&self) -> Option<(Fragment, Operation, &[u8])> {
        let message = self.queue.front()?;
        let in_flight = (message.sent & !message.acked).count_ones();
        let index = (message.sent | message.acked).trailing_ones();
        if in_flight >= WINDOW * self.rails.max(1) || index >= fragments(message.bytes.len()) {
            return None;
        }
        let fragment = Fragment {
            message: message.id,
            length: message.bytes.len() as u32,
            index,
        };
        Some((
            fragment,
            message.operation,
            &message.bytes[message.piece(index)],
        ))
    }

    /// Notes that the provider has taken a fragment, with its path if it has one. A message without acknowledgement
    /// ends when all of it was taken.
    pub(crate) fn sent(
        &mut self,
        now_us: u64,
        fragment: Fragment,
        by: Option<u32>,
        timeouts: &Timeouts,
    ) -> Option<Due> {
        let message = self.queue.front_mut();
        let message = message.filter(|message| message.id == fragment.message)?;
        message.sent |= 1 << fragment.index;
        message.by[fragment.index as usize] = by;
        if message.operation != Operation::PutUnacked {
            return None;
        }
        message.acked = message.sent;
        message.note_progress(now_us, timeouts);
        if message.acked != all(fragments(message.bytes.len())) {
            return None;
        }
        self.end(now_us, timeouts);
        Some(Due::Sent(fragment.message))
    }

    /// Notes which fragments of a message the peer has.
    pub(crate) fn acked(
        &mut self,
        now_us: u64,
        id: u64,
        bits: u64,
        timeouts: &Timeouts,
    ) -> Option<Due> {
        let message = self.queue.front_mut().filter(|message| message.id == id)?;
        let count = fragments(message.bytes.len());
        let newly_acked = bits & all(count) & !message.acked;
        if newly_acked != 0 {
            message.acked |= newly_acked;
            message.sent |= newly_acked;
            message.note_progress(now_us, timeouts);
        }
        if message.acked != all(count) {
            return None;
        }
        self.end(now_us, timeouts);
        Some(Due::Done(id))
    }

    /// Checks the timer. As long as some paths are untried, a retry is not counted, and these paths share the time
    /// that is left.
    pub(crate) fn tick(&mut self, now_us: u64, untried: u32, timeouts: &Timeouts) -> Option<Due> {
        let message = self
            .queue
            .front_mut()
            .filter(|message| message.retry_us <= now_us)?;
        let id = message.id;
        let spent = untried == 0 && message.retries >= timeouts.retries_max;
        if spent || now_us >= message.until_us {
            self.end(now_us, timeouts);
            return Some(Due::GivenUp(id));
        }
        let pause_us = if untried > 0 {
            let left_us = message.until_us - now_us;
            let share_us = left_us / (u64::from(untried) + 1);
            timeouts.transport_us.min(share_us.max(1))
        } else {
            message.retries += 1;
            let times = 1 << message.retries.min(32);
            timeouts.transport_us.saturating_mul(times)
        };
        message.retry_us = now_us.saturating_add(pause_us).min(message.until_us);
        message.sent = message.acked;
        Some(Due::Again(id))
    }

    /// The peer has begun a new session and has nothing of the message under way: sends all of it again.
    pub(crate) fn restart(&mut self, now_us: u64, timeouts: &Timeouts) {
        if let Some(message) = self.queue.front_mut() {
            message.acked = 0;
            message.sent = 0;
            message.note_progress(now_us, timeouts);
        }
    }

    /// Marks all fragments without acknowledgement to be sent again now, by another path. The timer continues.
    pub(crate) fn resend(&mut self) {
        if let Some(message) = self.queue.front_mut() {
            message.sent = message.acked;
        }
    }

    /// Marks the fragments that were sent on these paths only. Returns the paths on which something was under way.
    pub(crate) fn resend_by(&mut self, is_meant: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut left = Vec::new();
        let Some(message) = self.queue.front_mut() else {
            return left;
        };
        let mut again = 0;
        for (index, path) in message.outstanding().filter(|(_, path)| is_meant(*path)) {
            again |= 1u64 << index;
            if !left.contains(&path) {
                left.push(path);
            }
        }
        message.sent &= !again;
        left
    }

    /// The fragments under way without acknowledgement: each one's path and its bytes.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = (u32, usize)> {
        let of = |message: &'_ Message, (index, path)| (path, message.piece(index).len());
        let message = self.queue.front().into_iter();
        message.flat_map(move |message| message.outstanding().map(move |one| of(message, one)))
    }

    /// Sets the number of rails that fragments are spread over from now on.
    pub(crate) fn spread(&mut self, rails: u32) {
        self.rails = rails;
    }

    /// Whether a fragment of the message under way was acknowledged.
    pub(crate) fn has_acked(&self) -> bool {
        self.queue.front().is_some_and(|message| message.acked != 0)
    }

    /// Extends the timer of a message that waits for other messages: that counts against no path.
    pub(crate) fn hold(&mut self, now_us: u64, timeouts: &Timeouts) {
        if let Some(message) = self.queue.front_mut() {
            let retry_us = message
                .retry_us
                .max(now_us.saturating_add(timeouts.transport_us));
            message.retry_us = retry_us.min(message.until_us);
        }
    }

    /// When [`Sender::tick`] has something to do; none if there is nothing to send.
    pub(crate) fn timeout(&self) -> Option<u64> {
        self.queue.front().map(|message| message.retry_us)
    }

    /// The path that the message under way should take, if it is an answer.
    pub(crate) fn back(&self) -> Option<u32> {
        self.queue.front()?.back
    }

    /// Whether no fragment was taken since the message was last to be sent.
    #[cfg(test)]
    pub(crate) fn waits(&self) -> bool {
        let message = self.queue.front();
        message.is_some_and(|message| message.sent == message.acked)
    }

    /// The messages that have not ended.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u64> {
        self.queue.iter().map(|message| message.id)
    }

    fn end(&mut self, now_us: u64, timeouts: &Timeouts) {
        self.queue.pop_front();
        if let Some(next) = self.queue.front_mut() {
            next.note_progress(now_us, timeouts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Timeouts = Timeouts {
        transport_us: 100_000,
        retry_us: 7_000_000,
        reply_us: 10_000_000,
        upper_us: None,
        retries_max: 5,
    };

    fn push(sender: &mut Sender, id: u64, bytes: &[u8]) -> Result<(), DropReason> {
        sender.push(0, id, Operation::Put, None, bytes, &TIMES)
    }

    /// RS-08: a message without acknowledgement ends when it was taken, and is not sent again.
    #[test]
    fn a_message_without_acknowledgement_ends_when_it_is_taken() {
        let mut sender = Sender::default();
        let bytes = vec![1; 10 * FRAGMENT_BYTES];
        let operation = Operation::PutUnacked;
        sender.push(0, 7, operation, None, &bytes, &TIMES).unwrap();
        let mut dues = Vec::new();
        while let Some((fragment, operation, _)) = sender.next() {
            assert_eq!(operation, Operation::PutUnacked);
            dues.push(sender.sent(0, fragment, Some(1), &TIMES));
        }
        assert_eq!(dues.len(), 10);
        assert_eq!(dues.iter().flatten().collect::<Vec<_>>(), [&Due::Sent(7)]);
        assert_eq!(sender.timeout(), None);
    }

    /// AG-16: a message that waits for urgent messages waits longer, but not for ever.
    #[test]
    fn a_message_that_waits_for_others_uses_no_retry_and_is_given_up_in_time() {
        let mut sender = Sender::default();
        push(&mut sender, 1, b"x").unwrap();
        let mut now_us = 0;
        while now_us + 50_000 < TIMES.retry_us {
            now_us += 50_000;
            sender.hold(now_us, &TIMES);
            assert_eq!(sender.tick(now_us, 0, &TIMES), None, "{now_us}");
        }
        assert_eq!(
            sender.tick(TIMES.retry_us, 0, &TIMES),
            Some(Due::GivenUp(1))
        );
    }

    #[test]
    fn the_queue_and_the_window_are_bounded() {
        let mut sender = Sender::default();
        let long = vec![1; BULK_MESSAGE_MAX];
        for id in 1..=QUEUE_MAX as u64 {
            push(&mut sender, id, &long).unwrap();
        }
        assert_eq!(push(&mut sender, 9, b"x"), Err(DropReason::PeerBusy));
        let too_long = vec![1; BULK_MESSAGE_MAX + 1];
        let refused = push(&mut sender, 9, &too_long);
        assert_eq!(refused, Err(DropReason::Oversize));
        let mut sent = 0;
        while let Some((fragment, _, _)) = sender.next() {
            sender.sent(0, fragment, Some(1), &TIMES);
            sent += 1;
        }
        assert_eq!(sent, WINDOW);
        sender.spread(3);
        while let Some((fragment, _, _)) = sender.next() {
            sender.sent(0, fragment, Some(1), &TIMES);
            sent += 1;
        }
        assert_eq!(sent, 3 * WINDOW);
    }

    /// RS-05, RS-06: fragments of a failed path are sent by another, and those of other paths stay under way.
    #[test]
    fn only_the_fragments_of_a_failed_path_are_sent_again() {
        let mut sender = Sender::default();
        push(&mut sender, 1, &[1; 3 * FRAGMENT_BYTES + 5]).unwrap();
        let mut by = [7, 8, 7, 8].into_iter();
        while let Some((fragment, _, _)) = sender.next() {
            sender.sent(0, fragment, by.next(), &TIMES);
        }
        let held = |sender: &Sender, path| -> usize {
            let of_path = sender.outstanding().filter(|(one, _)| *one == path);
            of_path.map(|(_, bytes)| bytes).sum()
        };
        assert_eq!(
            (held(&sender, 7), held(&sender, 8)),
            (2 * FRAGMENT_BYTES, FRAGMENT_BYTES + 5)
        );
        // An acknowledgement applies to fragments, whichever path it arrives by.
        assert_eq!(sender.acked(0, 1, 0b0001, &TIMES), None);
        assert_eq!(
            (held(&sender, 7), held(&sender, 8)),
            (FRAGMENT_BYTES, FRAGMENT_BYTES + 5)
        );
        let due_us = sender.timeout();
        assert_eq!(sender.resend_by(|path| path == 7), [7]);
        assert_eq!(
            (held(&sender, 7), held(&sender, 8)),
            (0, FRAGMENT_BYTES + 5)
        );
        assert_eq!(sender.timeout(), due_us, "its timer continues");
        let again = sender.next().unwrap().0;
        assert_eq!(
            again.index, 2,
            "the first has arrived, and path 8 carries its own"
        );
        sender.sent(0, again, Some(8), &TIMES);
        assert_eq!(sender.next(), None);
        assert_eq!(sender.resend_by(|path| path == 7), []);
        assert_eq!(sender.acked(0, 1, 0b1111, &TIMES), Some(Due::Done(1)));
        assert_eq!(sender.outstanding().count(), 0);
    }

    /// RS-05: retries are bounded in number and in time.
    #[test]
    fn a_message_without_answer_is_given_up_in_bounded_time_and_the_next_is_sent() {
        let mut sender = Sender::default();
        push(&mut sender, 1, b"lost").unwrap();
        push(&mut sender, 2, b"next").unwrap();
        let mut dues = Vec::new();
        let mut now_us = 0;
        while !dues.contains(&Due::GivenUp(1)) {
            now_us = sender.timeout().unwrap();
            dues.extend(sender.tick(now_us, 0, &TIMES));
        }
        assert_eq!(dues.len() as u32, TIMES.retries_max + 1);
        assert!(now_us <= TIMES.retry_us, "{now_us}");
        assert_eq!(sender.next().unwrap().2, b"next");
        // If the number of retries is not bounded, the time is.
        let often = Timeouts {
            retries_max: u32::MAX,
            ..TIMES
        };
        let start_us = now_us;
        while sender.timeout().is_some() {
            now_us = sender.timeout().unwrap();
            sender.tick(now_us, 0, &often);
        }
        assert_eq!(now_us, start_us + TIMES.retry_us);
    }

    /// RS-05: each path is tried before the message is given up, however many there are, and the message is given up
    /// when its time has passed.
    #[test]
    fn each_path_is_tried_before_a_message_is_given_up() {
        for (paths, transport_us) in [(2u32, 100_000), (64, 100_000), (64, 1_000_000)] {
            let times = Timeouts {
                transport_us,
                ..TIMES
            };
            let mut sender = Sender::default();
            sender
                .push(0, 1, Operation::Put, None, b"x", &times)
                .unwrap();
            let mut taken = 1;
            let ended_us = loop {
                let now_us = sender.timeout().expect("the message has not ended");
                match sender.tick(now_us, paths.saturating_sub(taken), &times) {
                    Some(Due::Again(1)) => taken += 1,
                    due => {
                        assert_eq!(due, Some(Due::GivenUp(1)));
                        break now_us;
                    }
                }
            };
            assert!(taken >= paths, "{taken} of {paths}");
            assert!(taken <= paths + times.retries_max, "{taken} of {paths}");
            assert!(ended_us <= times.retry_us, "{ended_us}");
        }
    }

    /// RS-06: moving to another path uses no retry and changes no timer.
    #[test]
    fn a_message_that_moves_to_another_path_keeps_its_timer() {
        let mut sender = Sender::default();
        sender.resend();
        sender
            .push(7, 1, Operation::Put, None, b"x", &TIMES)
            .unwrap();
        let (fragment, _, _) = sender.next().unwrap();
        sender.sent(0, fragment, Some(1), &TIMES);
        let due_us = sender.timeout();
        assert_eq!(sender.next(), None);
        sender.resend();
        assert_eq!(sender.next().unwrap().0, fragment);
        assert_eq!(sender.timeout(), due_us);
    }

    #[test]
    fn an_acknowledgement_of_an_unsent_message_changes_nothing() {
        let mut sender = Sender::default();
        assert_eq!(sender.acked(0, 1, u64::MAX, &TIMES), None);
        push(&mut sender, 1, b"one").unwrap();
        assert_eq!(sender.acked(0, 2, u64::MAX, &TIMES), None);
        assert_eq!(sender.acked(0, 1, !1, &TIMES), None);
        assert_eq!(sender.acked(0, 1, 1, &TIMES), Some(Due::Done(1)));
    }
}
