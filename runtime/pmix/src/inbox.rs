//! Answers of PMIx to requests for the data of other ranks.
//!
//! Each request has a ticket, a number that is unique in the process. The callback on libpmix's own thread delivers
//! the answer with that number, never with an address. A ticket that is unknown, because the requester has given up
//! or the answer came twice, has no effect, so a late callback is safe.
//!
//! An inbox has no deadline of its own (the requester keeps it), and a request cannot be withdrawn from PMIx, which
//! does not support that.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use super::error::Status;
use super::lock;

/// The number of one request. Unique in the process, never used again.
pub type Ticket = usize;

/// The answer to one request.
#[derive(Debug)]
pub struct Answer {
    /// The request.
    pub ticket: Ticket,
    /// The string, or the reason why there is none.
    pub value: Result<String, Status>,
}

/// A bounded queue of answers.
pub struct Inbox {
    sender: SyncSender<Answer>,
    receiver: Receiver<Answer>,
    own: Mutex<Vec<Ticket>>,
}

static WAITING: Mutex<BTreeMap<Ticket, SyncSender<Answer>>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicUsize = AtomicUsize::new(1);

impl Inbox {
    /// Room for `capacity` answers.
    pub fn new(capacity: usize) -> Self {
        let (sender, receiver) = sync_channel(capacity);
        Self {
            sender,
            receiver,
            own: Mutex::new(Vec::new()),
        }
    }

    /// The next answer that has arrived; never waits.
    pub fn take(&self) -> Option<Answer> {
        match self.receiver.try_recv() {
            Ok(answer) => {
                lock(&self.own).retain(|ticket| *ticket != answer.ticket);
                Some(answer)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }

    /// Forgets the ticket: an answer to it is dropped from now on.
    pub fn forget(&self, ticket: Ticket) {
        lock(&WAITING).remove(&ticket);
        lock(&self.own).retain(|own| *own != ticket);
    }

    /// A new ticket whose answer is delivered here.
    pub(super) fn expect(&self) -> Ticket {
        let ticket = NEXT.fetch_add(1, Ordering::Relaxed);
        lock(&WAITING).insert(ticket, self.sender.clone());
        lock(&self.own).push(ticket);
        ticket
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        for ticket in std::mem::take(&mut *lock(&self.own)) {
            lock(&WAITING).remove(&ticket);
        }
    }
}

/// Delivers an answer; called on libpmix's thread. An answer with an unknown ticket is dropped, as is one for a full
/// inbox (whose requester sent more requests than it has room for).
pub(super) fn deliver(ticket: Ticket, value: Result<String, Status>) {
    let waiting = lock(&WAITING).remove(&ticket);
    if let Some(sender) = waiting {
        let _ = sender.try_send(Answer { ticket, value });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_delivered_once() {
        let inbox = Inbox::new(2);
        let ticket = inbox.expect();
        assert!(inbox.take().is_none());
        deliver(ticket, Ok("127.0.0.1:7741@udp0".to_owned()));
        deliver(ticket, Ok("a second call of the callback".to_owned()));
        let answer = inbox.take().expect("delivered");
        assert_eq!(answer.ticket, ticket);
        assert_eq!(answer.value.as_deref(), Ok("127.0.0.1:7741@udp0"));
        assert!(inbox.take().is_none());
    }

    #[test]
    fn a_late_answer_is_harmless() {
        let first = Inbox::new(2);
        let forgotten = first.expect();
        let orphan = first.expect();
        first.forget(forgotten);
        deliver(forgotten, Err(Status(-24)));
        assert!(first.take().is_none());
        drop(first);
        deliver(orphan, Ok(String::new()));
        assert!(!lock(&WAITING).contains_key(&orphan));
    }

    #[test]
    fn a_full_inbox_drops_and_does_not_block() {
        let inbox = Inbox::new(1);
        let (one, two) = (inbox.expect(), inbox.expect());
        deliver(one, Ok("1".to_owned()));
        deliver(two, Ok("2".to_owned()));
        assert_eq!(inbox.take().map(|answer| answer.ticket), Some(one));
        assert!(inbox.take().is_none());
    }
}
