//! `queue` makes a bounded queue between threads, whose lock inherits priority.
//!
//! The agent's loop runs at real-time priority and hands data to threads that do not. A queue of `std::sync::mpsc`
//! is not for that: a thread that reads it spins while another one, which was preempted, is in the middle of a write
//! (`Backoff::spin_heavy`). A real-time thread that spins so keeps the writer off its processor.
//!
//! The functions are those of `std::sync::mpsc` and return its errors. No call allocates memory while it holds the
//! lock.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError, TrySendError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::priority_mutex::PriorityMutex;

struct State<T> {
    items: VecDeque<T>,
    capacity: usize,
    senders: usize,
    has_receiver: bool,
    /// The thread that waits for an item.
    waiting: Option<Thread>,
}

/// The end at which items are put in. It can be cloned.
pub struct Sender<T>(Arc<PriorityMutex<State<T>>>);

/// The end at which items are taken out.
pub struct Receiver<T>(Arc<PriorityMutex<State<T>>>);

/// Makes a queue of at most `capacity` items.
///
/// # Errors
/// The C library or the kernel knows no priority inheritance.
pub fn queue<T>(capacity: usize) -> io::Result<(Sender<T>, Receiver<T>)> {
    let state = Arc::new(PriorityMutex::new(State {
        items: VecDeque::with_capacity(capacity),
        capacity,
        senders: 1,
        has_receiver: true,
        waiting: None,
    })?);
    Ok((Sender(Arc::clone(&state)), Receiver(state)))
}

impl<T> Sender<T> {
    /// Puts an item in. It does not wait for room.
    ///
    /// # Errors
    /// The queue is full or has no receiver; the error holds the item.
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        let mut state = self.0.lock();
        if !state.has_receiver {
            drop(state);
            return Err(TrySendError::Disconnected(item));
        }
        if state.items.len() >= state.capacity {
            drop(state);
            return Err(TrySendError::Full(item));
        }
        state.items.push_back(item);
        let waiting = state.waiting.take();
        drop(state);
        if let Some(thread) = waiting {
            thread.unpark();
        }
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.senders -= 1;
        let waiting = match state.senders {
            0 => state.waiting.take(),
            _ => None,
        };
        drop(state);
        if let Some(thread) = waiting {
            thread.unpark();
        }
    }
}

impl<T> Receiver<T> {
    /// Takes the oldest item out. It does not wait.
    ///
    /// # Errors
    /// There is no item; with `Disconnected` there will be none.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.take(None)
    }

    /// Waits for an item for at most `timeout`.
    ///
    /// # Errors
    /// None came; with `Disconnected` none will come.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        let end = Instant::now().checked_add(timeout);
        let own = thread::current();
        loop {
            match self.take(Some(&own)) {
                Ok(item) => return Ok(item),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            match end.map(|end| end.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(Duration::ZERO) => return Err(RecvTimeoutError::Timeout),
                Some(left) => thread::park_timeout(left),
            }
        }
    }

    /// Takes the oldest item, or notes the thread that is to be woken for the next one.
    fn take(&self, waits: Option<&Thread>) -> Result<T, TryRecvError> {
        let mut state = self.0.lock();
        match state.items.pop_front() {
            Some(item) => Ok(item),
            None if state.senders == 0 => Err(TryRecvError::Disconnected),
            None => {
                let before = std::mem::replace(&mut state.waiting, waits.cloned());
                drop(state);
                drop(before);
                Err(TryRecvError::Empty)
            }
        }
    }
}

impl<T> Iterator for Receiver<T> {
    type Item = T;

    /// Waits for an item; none when the last sender is gone.
    fn next(&mut self) -> Option<T> {
        self.recv_timeout(Duration::MAX).ok()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.has_receiver = false;
        let left = std::mem::take(&mut state.items);
        drop(state);
        // An item may hold a sender of this very queue.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_order_and_no_more_than_there_is_room() {
        let (sender, receiver) = queue(2).unwrap();
        sender.try_send(1).unwrap();
        sender.try_send(2).unwrap();
        assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
        assert_eq!(receiver.try_recv(), Ok(1));
        sender.try_send(3).unwrap();
        assert_eq!((receiver.try_recv(), receiver.try_recv()), (Ok(2), Ok(3)));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    }

    #[test]
    fn either_end_sees_that_the_other_is_gone() {
        let (sender, receiver) = queue(1).unwrap();
        let other = sender.clone();
        drop(sender);
        other.try_send(1).unwrap();
        drop(other);
        assert_eq!(receiver.try_recv(), Ok(1));
        let gone = receiver.recv_timeout(Duration::MAX);
        assert_eq!(gone, Err(RecvTimeoutError::Disconnected));

        let (sender, receiver) = queue(1).unwrap();
        drop(receiver);
        assert_eq!(sender.try_send(1), Err(TrySendError::Disconnected(1)));
    }

    #[test]
    fn a_thread_that_waits_is_woken_for_every_item_and_for_the_end() {
        const ITEMS: u32 = 20_000;
        let (sender, receiver) = queue(1).unwrap();
        thread::scope(|scope| {
            let reader = scope.spawn(|| receiver.collect::<Vec<u32>>());
            for item in 0..ITEMS {
                while sender.try_send(item).is_err() {
                    thread::yield_now();
                }
            }
            drop(sender);
            assert!(reader.join().unwrap().into_iter().eq(0..ITEMS));
        });
    }

    #[test]
    fn a_wait_ends_with_its_timeout() {
        let (_sender, receiver) = queue::<u32>(1).unwrap();
        let answer = receiver.recv_timeout(Duration::from_millis(1));
        assert_eq!(answer, Err(RecvTimeoutError::Timeout));
    }
}
