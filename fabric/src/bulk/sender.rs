//! The sending side: a short queue, a window, and a clock for what is not acknowledged.
//!
//! Which path each piece has taken is remembered until it is acknowledged: so it is known how much is under way
//! by each, whom a silence speaks against, and what is to be sent again when one path fails and the others go on.

use super::{BULK_MESSAGE_MAX, FRAGMENT_BYTES, Operation, QUEUE_MAX, WINDOW, all, fragments};
use crate::stats::DropReason;
use crate::timeouts::Timeouts;
use std::collections::VecDeque;

/// A piece of a message, or the message that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// Counted from 1.
    pub(crate) message: u64,
    /// Of the whole message.
    pub(crate) length: u32,
    /// Which piece.
    pub(crate) index: u32,
}

/// What has come of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// All of it was acknowledged.
    Done(u64),
    /// All of it was taken, and nobody acknowledges it.
    Sent(u64),
    /// It is to be sent again, another way.
    Again(u64),
    /// It was sent as often as it may be, in vain.
    GivenUp(u64),
}

/// Messages of one stream to one peer.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    queue: VecDeque<Message>,
    /// Rails that pieces are spread over: the window is that of all of them.
    rails: u32,
}

#[derive(Debug)]
struct Message {
    id: u64,
    operation: Operation,
    /// The path, by its number, that it goes by if that works.
    back: Option<u32>,
    bytes: Vec<u8>,
    acked: u64,
    /// Sent since the last retry, or acknowledged.
    sent: u64,
    /// The path that each piece has taken last, by its number; none of one that another member carries.
    by: Vec<Option<u32>>,
    retries: u32,
    retry_us: u64,
    /// Without progress it is given up then.
    until_us: u64,
}

impl Message {
    /// Pieces that were sent by a path and are not acknowledged, each with its path.
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

    /// Something has come of it: all clocks anew.
    fn went_on(&mut self, now_us: u64, timeouts: &Timeouts) {
        self.retries = 0;
        self.retry_us = now_us.saturating_add(timeouts.transport_us);
        self.until_us = now_us.saturating_add(timeouts.retry_us);
    }
}

impl Sender {
    /// Takes a message in, under a number that is greater than any that the peer was sent before. Refused
    /// if it is too long or too many wait.
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
        message.went_on(now_us, timeouts);
        self.queue.push_back(message);
        Ok(())
    }

    /// The next piece to be sent, if the window has room for one.
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

    /// Notes that a piece was taken by the provider, and by which path it goes, if it goes by one. Of a message
    /// that nobody acknowledges that is all that is waited for.
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
        message.went_on(now_us, timeouts);
        if message.acked != all(fragments(message.bytes.len())) {
            return None;
        }
        self.end(now_us, timeouts);
        Some(Due::Sent(fragment.message))
    }

    /// Notes what the peer has of a message.
    pub(crate) fn acked(
        &mut self,
        now_us: u64,
        id: u64,
        bits: u64,
        timeouts: &Timeouts,
    ) -> Option<Due> {
        let message = self.queue.front_mut().filter(|message| message.id == id)?;
        let count = fragments(message.bytes.len());
        let news = bits & all(count) & !message.acked;
        if news != 0 {
            message.acked |= news;
            message.sent |= news;
            message.went_on(now_us, timeouts);
        }
        if message.acked != all(count) {
            return None;
        }
        self.end(now_us, timeouts);
        Some(Due::Done(id))
    }

    /// Looks at the clock. Ways that were not taken so far cost no retry, and share the time that is left.
    pub(crate) fn tick(&mut self, now_us: u64, untaken: u32, timeouts: &Timeouts) -> Option<Due> {
        let message = self
            .queue
            .front_mut()
            .filter(|message| message.retry_us <= now_us)?;
        let id = message.id;
        let spent = untaken == 0 && message.retries >= timeouts.retries_max;
        if spent || now_us >= message.until_us {
            self.end(now_us, timeouts);
            return Some(Due::GivenUp(id));
        }
        let pause_us = if untaken > 0 {
            let left_us = message.until_us - now_us;
            let share_us = left_us / (u64::from(untaken) + 1);
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

    /// The peer knows nothing of what it was sent: the message under way begins anew.
    pub(crate) fn restart(&mut self, now_us: u64, timeouts: &Timeouts) {
        if let Some(message) = self.queue.front_mut() {
            message.acked = 0;
            message.sent = 0;
            message.went_on(now_us, timeouts);
        }
    }

    /// What is not acknowledged is to be sent again now, by another path; its clock goes on.
    pub(crate) fn resend(&mut self) {
        if let Some(message) = self.queue.front_mut() {
            message.sent = message.acked;
        }
    }

    /// The same of what has gone by these paths only. Says by which of them something was under way.
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

    /// What is under way and not acknowledged: each piece's path, and its bytes.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = (u32, usize)> {
        let of = |message: &'_ Message, (index, path)| (path, message.piece(index).len());
        let message = self.queue.front().into_iter();
        message.flat_map(move |message| message.outstanding().map(move |one| of(message, one)))
    }

    /// Spreads pieces over so many rails from now on.
    pub(crate) fn spread(&mut self, rails: u32) {
        self.rails = rails;
    }

    /// Whether something of the message under way was acknowledged.
    pub(crate) fn has_acked(&self) -> bool {
        self.queue.front().is_some_and(|message| message.acked != 0)
    }

    /// What is under way waits for other messages: that speaks against no path.
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

    /// The path that the message under way would go by, if it is an answer.
    pub(crate) fn back(&self) -> Option<u32> {
        self.queue.front()?.back
    }

    /// Whether nothing of the message under way was taken since it was to be sent last.
    #[cfg(test)]
    pub(crate) fn waits(&self) -> bool {
        let message = self.queue.front();
        message.is_some_and(|message| message.sent == message.acked)
    }

    /// The messages that have not come to an end.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u64> {
        self.queue.iter().map(|message| message.id)
    }

    fn end(&mut self, now_us: u64, timeouts: &Timeouts) {
        self.queue.pop_front();
        if let Some(next) = self.queue.front_mut() {
            next.went_on(now_us, timeouts);
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

    /// RS-08: what nobody acknowledges is done with when it was taken, and never sent again.
    #[test]
    fn without_acknowledgement_taken_is_all_that_is_known() {
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

    /// AG-16: what waits for urgent messages waits longer, but not for ever.
    #[test]
    fn what_has_to_wait_for_others_costs_no_retry_and_is_given_up_all_the_same() {
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
    fn what_waits_and_what_is_in_flight_are_bounded() {
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

    /// RS-05, RS-06: what one path fails to carry goes by another, and what others carry is left alone.
    #[test]
    fn what_a_path_holds_is_known_until_it_is_acknowledged_and_sent_again_alone() {
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
        // Whichever path the word comes by, it is about the pieces.
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
        assert_eq!(sender.timeout(), due_us, "its clock goes on");
        let again = sender.next().unwrap().0;
        assert_eq!(
            again.index, 2,
            "not the first, which has arrived, nor what 8 carries"
        );
        sender.sent(0, again, Some(8), &TIMES);
        assert_eq!(sender.next(), None);
        assert_eq!(sender.resend_by(|path| path == 7), []);
        assert_eq!(sender.acked(0, 1, 0b1111, &TIMES), Some(Due::Done(1)));
        assert_eq!(sender.outstanding().count(), 0);
    }

    /// RS-05: bounded in number and in time.
    #[test]
    fn a_message_to_nobody_is_given_up_in_bounded_time_and_the_next_has_its_turn() {
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
        // And if the number does not bound it, the time does.
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

    /// RS-05: however many ways there are, each is taken before the message is given up, and it is given up
    /// when its time is over.
    #[test]
    fn each_way_is_taken_before_a_message_is_given_up() {
        for (ways, transport_us) in [(2u32, 100_000), (64, 100_000), (64, 1_000_000)] {
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
                let now_us = sender.timeout().expect("it has come to no end");
                match sender.tick(now_us, ways.saturating_sub(taken), &times) {
                    Some(Due::Again(1)) => taken += 1,
                    due => {
                        assert_eq!(due, Some(Due::GivenUp(1)));
                        break now_us;
                    }
                }
            };
            assert!(taken >= ways, "{taken} of {ways}");
            assert!(taken <= ways + times.retries_max, "{taken} of {ways}");
            assert!(ended_us <= times.retry_us, "{ended_us}");
        }
    }

    /// RS-06: moving to another path costs no retry and moves no clock.
    #[test]
    fn what_is_sent_again_by_another_path_keeps_its_clock() {
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
    fn an_acknowledgement_of_what_was_not_sent_changes_nothing() {
        let mut sender = Sender::default();
        assert_eq!(sender.acked(0, 1, u64::MAX, &TIMES), None);
        push(&mut sender, 1, b"one").unwrap();
        assert_eq!(sender.acked(0, 2, u64::MAX, &TIMES), None);
        assert_eq!(sender.acked(0, 1, !1, &TIMES), None);
        assert_eq!(sender.acked(0, 1, 1, &TIMES), Some(Due::Done(1)));
    }
}
