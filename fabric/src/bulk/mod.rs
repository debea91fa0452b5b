//! The protocol of the bulk lane: messages longer than a datagram, sent in fragments with acknowledgements.
//!
//! A connection-oriented provider reports a send as done when the bytes are in its own buffers, and refuses sends to
//! a peer that is slow, new or gone with the same error: try again. So only an acknowledgement of this protocol
//! proves that a message has arrived. Each peer has a [`Sender`] and a [`Receiver`] for each of its two streams,
//! urgent and regular. Both are pure: they take time and bytes as arguments. One message of a stream is under way at
//! a time, so messages stay in order. Its fragments in flight are bounded and spread over all rails. A fragment
//! without an acknowledgement is sent again, by another path if there is one, a bounded number of times; then the
//! message is given up as a whole.
//!
//! A frame is used if its tag proves that its sender has the key, and its [`Stamp`] proves that it is new: a repeated
//! frame of this run or an earlier one changes nothing. Its lengths are still checked against fixed limits before
//! anything is kept.

mod frame;
mod gets;
mod peer;
mod receiver;
mod sender;
mod session;

pub(crate) use frame::{FRAME_BYTES, Frame, Key, Kind, NO_FRAGMENT, NO_SENDER, is_same};
#[cfg(test)]
pub(crate) use peer::PendingAck;
pub(crate) use peer::{Back, FrameTaken, PeerBulk, STREAMS, Stream};
pub(crate) use receiver::{Receiver, Taken};
pub(crate) use sender::{Due, Fragment, Sender};
pub(crate) use session::{Session, Stamp, Standing};

/// The longest message, in bytes.
pub const BULK_MESSAGE_MAX: usize = 1 << 20;

/// The longest fragment, in bytes. A message has at most 64 fragments: one bit each.
pub(crate) const FRAGMENT_BYTES: usize = 16 << 10;

/// The maximum of messages to one peer that may wait.
pub(crate) const QUEUE_MAX: usize = 8;

/// The maximum of fragments of one message in flight, for each rail that they are spread over.
pub(crate) const WINDOW: u32 = 8;

/// The maximum of memory for incomplete messages of all peers, in bytes. A message that would exceed it is refused;
/// its sender tries again.
pub(crate) const HELD_BYTES_MAX: usize = 32 << 20;

/// The operation of a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Acknowledged.
    #[default]
    Put,
    /// Not acknowledged: nothing is known after the provider has taken it.
    PutUnacked,
    /// A question; acknowledged, and answered by the receiving host.
    Get,
    /// An answer, after the question's number and the session that asked it, 8 bytes each; acknowledged.
    Reply,
}

impl Operation {
    /// Indexed by their numbers on the wire.
    pub(crate) const ALL: [Operation; 4] = [
        Operation::Put,
        Operation::PutUnacked,
        Operation::Get,
        Operation::Reply,
    ];
}

const _: () = assert!(BULK_MESSAGE_MAX.div_ceil(FRAGMENT_BYTES) <= u64::BITS as usize);

/// The number of fragments of a message of this length. An empty message has one.
fn fragments(length: usize) -> u32 {
    length.div_ceil(FRAGMENT_BYTES).max(1) as u32
}

/// A bit map with a bit for each fragment.
fn all(count: u32) -> u64 {
    u64::MAX >> (u64::BITS - count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeouts::Timeouts;
    use proptest::prelude::*;

    /// A sender and a receiver, connected by a network that loses, duplicates and delays by random numbers.
    fn carry(messages: &[Vec<u8>], dice: &[u8]) -> (Vec<Vec<u8>>, Vec<Due>) {
        let (mut sender, mut receiver) = (Sender::default(), Receiver::default());
        let mut dice = dice.iter().cycle();
        let (mut arrived, mut ended) = (Vec::new(), Vec::new());
        for (id, message) in (1..).zip(messages) {
            let times = Timeouts::default();
            sender
                .push(0, id, Operation::Put, None, message, &times)
                .unwrap();
        }
        let mut held: Vec<(Fragment, Vec<u8>)> = Vec::new();
        let mut now_us = 0;
        while sender.timeout().is_some() {
            now_us += 10_000;
            ended.extend(sender.tick(now_us, 0, &Timeouts::default()));
            while let Some((fragment, _, bytes)) = sender.next() {
                held.push((fragment, bytes.to_vec()));
                sender.sent(now_us, fragment, None, &Timeouts::default());
            }
            for (fragment, bytes) in std::mem::take(&mut held) {
                let roll = *dice.next().unwrap();
                let copies = match roll % 8 {
                    0 | 1 => 0,
                    2 => 2,
                    3 => {
                        held.push((fragment, bytes));
                        continue;
                    }
                    _ => 1,
                };
                for _ in 0..copies {
                    let (bits, whole) = match receiver.take(now_us, 7, fragment, &bytes) {
                        Taken::Acked { bits, whole } => (bits, whole),
                        Taken::Past { bits } => (bits, None),
                        Taken::Stale | Taken::Malformed => continue,
                    };
                    arrived.extend(whole);
                    if roll % 16 != 4 {
                        ended.extend(sender.acked(
                            now_us,
                            fragment.message,
                            bits,
                            &Timeouts::default(),
                        ));
                    }
                }
            }
        }
        (arrived, ended)
    }

    const PATHS: u32 = 3;

    /// Several paths between a sender and a receiver. All but one lose and delay by random numbers, and are sometimes
    /// known to have failed. Of the paths that have not failed, the one with the least under way takes the next
    /// fragment.
    fn spread(messages: &[Vec<u8>], dice: &[u8], good: u32) -> Vec<Vec<u8>> {
        let times = Timeouts::default();
        let (mut sender, mut receiver) = (Sender::default(), Receiver::default());
        sender.spread(PATHS);
        for (id, message) in (1..).zip(messages) {
            sender
                .push(0, id, Operation::Put, None, message, &times)
                .unwrap();
        }
        let mut dice = dice.iter().cycle();
        let mut arrived = Vec::new();
        let mut held: Vec<(u32, Fragment, Vec<u8>)> = Vec::new();
        let (mut now_us, mut tried) = (0, Vec::new());
        while sender.timeout().is_some() {
            now_us += 10_000;
            let silent: Vec<u32> = sender.outstanding().map(|(path, _)| path).collect();
            let untried = (0..PATHS).filter(|path| !tried.contains(path)).count() as u32;
            match sender.tick(now_us, untried, &times) {
                Some(Due::Again(_)) => tried.extend(silent),
                Some(_) => tried.clear(),
                None => {}
            }
            let roll = *dice.next().unwrap();
            if roll.is_multiple_of(5) {
                tried.extend(sender.resend_by(|path| path == u32::from(roll) % PATHS));
            }
            if (0..PATHS).all(|path| tried.contains(&path)) {
                tried.clear();
            }
            while let Some((fragment, _, bytes)) = sender.next() {
                let held_by = |path: &u32| -> usize {
                    let of_path = sender.outstanding().filter(|(one, _)| one == path);
                    of_path.map(|(_, bytes)| bytes).sum()
                };
                let may = (0..PATHS).filter(|path| !tried.contains(path));
                let path = may
                    .min_by_key(held_by)
                    .expect("at least one path is untried");
                held.push((path, fragment, bytes.to_vec()));
                sender.sent(now_us, fragment, Some(path), &times);
            }
            for (path, fragment, bytes) in std::mem::take(&mut held) {
                let roll = *dice.next().unwrap();
                match roll % 4 {
                    _ if path == good => {}
                    0 | 1 => continue,
                    2 => {
                        held.push((path, fragment, bytes));
                        continue;
                    }
                    _ => {}
                }
                let (bits, whole) = match receiver.take(now_us, 7, fragment, &bytes) {
                    Taken::Acked { bits, whole } => (bits, whole),
                    Taken::Past { bits } => (bits, None),
                    Taken::Stale | Taken::Malformed => continue,
                };
                arrived.extend(whole);
                // The acknowledgement comes back by the path of its fragment.
                if path == good || roll % 16 != 3 {
                    let due = sender.acked(now_us, fragment.message, bits, &times);
                    if due.is_some() {
                        tried.clear();
                    }
                }
            }
        }
        arrived
    }

    #[test]
    fn without_loss_every_message_arrives_once_and_in_order() {
        let messages: Vec<Vec<u8>> = [0, 1, FRAGMENT_BYTES, FRAGMENT_BYTES + 1, BULK_MESSAGE_MAX]
            .iter()
            .map(|length| vec![*length as u8; *length])
            .collect();
        let (arrived, ended) = carry(&messages, &[7]);
        assert_eq!(arrived, messages);
        let done: Vec<Due> = (1..=5).map(Due::Done).collect();
        assert_eq!(ended, done);
    }

    proptest! {
        /// RS-05: no message is delivered twice, in part or out of order. A message that is reported as done has
        /// arrived. A message that is not done in bounded time is given up and reported.
        #[test]
        fn with_losses_messages_arrive_whole_and_once_or_are_reported(
            lengths in proptest::collection::vec(0..5 * FRAGMENT_BYTES, 1..QUEUE_MAX),
            dice in proptest::collection::vec(any::<u8>(), 1..200),
        ) {
            let messages: Vec<Vec<u8>> = (0u8..).zip(&lengths).map(|(mark, length)| vec![mark; *length]).collect();
            let (arrived, ended) = carry(&messages, &dice);
            let mut rest = messages.iter();
            for one in &arrived {
                prop_assert!(rest.any(|message| message == one), "twice, changed or out of order");
            }
            let ends: Vec<u64> = ended.iter().filter_map(|due| match due {
                Due::Done(id) | Due::Sent(id) | Due::GivenUp(id) => Some(*id),
                Due::Again(_) => None,
            }).collect();
            prop_assert_eq!(ends, (1..=messages.len() as u64).collect::<Vec<_>>());
            for due in &ended {
                if let Due::Done(id) = due {
                    prop_assert!(arrived.contains(&messages[*id as usize - 1]));
                }
            }
        }

        /// RS-05, RS-06: fragments of one message are spread over several paths, which lose, delay and fail at
        /// random. As long as one path carries, every message arrives once, in order and unchanged.
        #[test]
        fn messages_spread_over_failing_paths_arrive_while_one_path_works(
            lengths in proptest::collection::vec(0..9 * FRAGMENT_BYTES, 1..QUEUE_MAX),
            dice in proptest::collection::vec(any::<u8>(), 1..200), good in 0..PATHS,
        ) {
            let messages: Vec<Vec<u8>> = (0u8..).zip(&lengths).map(|(mark, length)| vec![mark; *length]).collect();
            let arrived = spread(&messages, &dice, good);
            prop_assert!(arrived == messages, "lost, twice, changed or out of order");
        }
    }
}
