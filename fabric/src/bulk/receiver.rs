//! The receiving side: it assembles one message of a peer at a time, and delivers or drops it as a whole.

use super::{BULK_MESSAGE_MAX, FRAGMENT_BYTES, Fragment, all, fragments};

/// The result of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// To be acknowledged with these bits; with the message if this was its last missing fragment.
    Acked { bits: u64, whole: Option<Vec<u8>> },
    /// The fragment belongs to the last delivered message or an earlier one. It is a repetition, to be acknowledged
    /// with these bits, if each message is sent after the acknowledgement of the one before.
    Past { bits: u64 },
    /// The fragment is of an earlier session of the sender, or of a message that the sender has given up.
    Stale,
    /// The lengths contradict each other.
    Malformed,
}

/// Receives the messages of one stream of one peer.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    /// The session of the sender.
    session: u64,
    /// The last message that was delivered. No earlier message is delivered any more.
    done: u64,
    assembly: Option<Assembly>,
    /// Messages that were begun and not completed, since this was last counted.
    pub(crate) dropped: u64,
}

#[derive(Debug)]
struct Assembly {
    message: u64,
    have: u64,
    bytes: Vec<u8>,
    touched_us: u64,
}

impl Receiver {
    /// The memory that an incomplete message takes, in bytes.
    pub(crate) fn held(&self) -> usize {
        let assembly = self.assembly.as_ref();
        assembly.map_or(0, |assembly| assembly.bytes.len())
    }

    /// Whether this fragment would begin another message.
    pub(crate) fn begins(&self, session: u64, fragment: Fragment) -> bool {
        let assembly = self.assembly.as_ref();
        let latest = assembly.map_or(self.done, |assembly| assembly.message);
        session > self.session || session == self.session && fragment.message > latest
    }

    /// Takes a fragment.
    pub(crate) fn take(
        &mut self,
        now_us: u64,
        session: u64,
        fragment: Fragment,
        bytes: &[u8],
    ) -> Taken {
        let length = fragment.length as usize;
        let count = fragments(length);
        if length > BULK_MESSAGE_MAX || fragment.index >= count {
            return Taken::Malformed;
        }
        let start = fragment.index as usize * FRAGMENT_BYTES;
        let end = (start + FRAGMENT_BYTES).min(length);
        if bytes.len() != end - start || fragment.message == 0 {
            return Taken::Malformed;
        }
        if session < self.session {
            return Taken::Stale;
        }
        if session > self.session {
            self.drop_assembly();
            self.session = session;
            self.done = 0;
        }
        if fragment.message <= self.done {
            let bits = all(count);
            return Taken::Past { bits };
        }
        let current = self
            .assembly
            .as_ref()
            .map_or(0, |assembly| assembly.message);
        if fragment.message < current {
            return Taken::Stale;
        }
        if fragment.message > current {
            self.drop_assembly();
        }
        let assembly = self.assembly.get_or_insert_with(|| Assembly {
            message: fragment.message,
            have: 0,
            bytes: vec![0; length],
            touched_us: now_us,
        });
        if assembly.bytes.len() != length {
            return Taken::Malformed;
        }
        assembly.bytes[start..end].copy_from_slice(bytes);
        assembly.have |= 1 << fragment.index;
        assembly.touched_us = now_us;
        let bits = assembly.have;
        let whole = if bits == all(count) {
            self.done = fragment.message;
            self.assembly.take().map(|assembly| assembly.bytes)
        } else {
            None
        };
        Taken::Acked { bits, whole }
    }

    /// Drops an incomplete message that has not grown since then.
    pub(crate) fn drop_older(&mut self, than_us: u64) {
        if self
            .assembly
            .as_ref()
            .is_some_and(|assembly| assembly.touched_us < than_us)
        {
            self.drop_assembly();
        }
    }

    /// Whether a message is incomplete.
    pub(crate) fn is_busy(&self) -> bool {
        self.assembly.is_some()
    }

    fn drop_assembly(&mut self) {
        self.dropped += u64::from(self.assembly.take().is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(message: u64, length: usize, index: u32) -> (Fragment, Vec<u8>) {
        let fragment = Fragment {
            message,
            length: length as u32,
            index,
        };
        let start = index as usize * FRAGMENT_BYTES;
        (
            fragment,
            vec![9; length.min(start + FRAGMENT_BYTES) - start],
        )
    }

    #[test]
    fn an_incomplete_message_is_dropped_as_a_whole_and_counted() {
        let mut receiver = Receiver::default();
        let (fragment, bytes) = piece(1, 2 * FRAGMENT_BYTES, 0);
        receiver.take(5, 1, fragment, &bytes);
        receiver.drop_older(5);
        assert!(receiver.is_busy());
        receiver.drop_older(6);
        assert!(!receiver.is_busy());
        let (fragment, bytes) = piece(1, 2 * FRAGMENT_BYTES, 1);
        assert_eq!(
            receiver.take(7, 1, fragment, &bytes),
            Taken::Acked {
                bits: 2,
                whole: None
            }
        );
        let (fragment, bytes) = piece(2, 3, 0);
        let whole = Some(vec![9; 3]);
        assert_eq!(
            receiver.take(8, 1, fragment, &bytes),
            Taken::Acked { bits: 1, whole }
        );
        assert_eq!(receiver.dropped, 2);
    }

    #[test]
    fn a_message_is_delivered_once_in_each_session_of_its_sender() {
        let mut receiver = Receiver::default();
        let (fragment, bytes) = piece(1, 3, 0);
        let mut take = |session| receiver.take(0, session, fragment, &bytes);
        let first = Taken::Acked {
            bits: 1,
            whole: Some(vec![9; 3]),
        };
        assert_eq!(take(4), first);
        assert_eq!(take(4), Taken::Past { bits: 1 });
        assert_eq!(take(5), first);
        assert_eq!(take(4), Taken::Stale);
    }

    proptest! {
        /// AG-15: lengths are used only if they are consistent.
        #[test]
        fn lengths_that_contradict_are_refused(
            length in 0..3 * BULK_MESSAGE_MAX as u32 / 2, index in 0..100u32, beyond in 0..3usize,
        ) {
            let mut receiver = Receiver::default();
            let fragment = Fragment { message: 1, length, index };
            let start = index as usize * FRAGMENT_BYTES;
            let right = (length as usize).saturating_sub(start).min(FRAGMENT_BYTES);
            // One byte too few, right, one too many.
            let given = (right + beyond).saturating_sub(1);
            let taken = receiver.take(0, 1, fragment, &vec![0; given]);
            let fits = given == right
                && index < fragments(length as usize) && length as usize <= BULK_MESSAGE_MAX;
            prop_assert_eq!(taken != Taken::Malformed, fits);
        }
    }
}
