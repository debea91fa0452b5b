//! What the watch says to the agent, and the bounded box it says it through.
//!
//! The agent may be slow; the watch never waits for it. When the box is full the latest finding
//! of a slot is kept in that slot's own place instead: what is lost is a step in between (hung,
//! then resumed), never the last word. Every such loss is counted.

use std::collections::VecDeque;

use muster_sys::descriptor::EventFd;
use muster_sys::priority_mutex::{PriorityGuard, PriorityMutex};

/// What was found about the process in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// It announced that it leaves. Final.
    Left {
        /// The exit code it announced.
        exit_code: i32,
    },
    /// It is dead or dying and had not announced it. Final.
    Failed {
        /// Which signal of the kernel told first.
        by: FailedBy,
        /// The signal that ended it, 0 if unknown or none.
        signal: i32,
        /// The exit code, 0 if unknown or none.
        exit_code: i32,
    },
    /// Its holding thread ended but the process lives (exec, or a thread's end): from now on it
    /// is followed by other means. Says nothing about the rank's health.
    Detached,
    /// It makes no progress.
    Hung(HungBy),
    /// A hung one runs again.
    Resumed,
}

impl Finding {
    /// Whether nothing more will come for this slot and generation.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Left { .. } | Self::Failed { .. })
    }
}

/// How a death was known first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedBy {
    /// The kernel released the word and every task was exiting.
    Futex,
    /// The kernel told of the end of the process.
    Pidfd,
    /// The process writes a core dump: it cannot come back.
    CoreDump,
    /// `/proc` knows the process no more.
    Gone,
}

/// Why a process is taken to be hung.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HungBy {
    /// Stopped by a signal.
    Stopped,
    /// Two seconds in uninterruptible sleep without using the processor.
    Stuck,
    /// It promised to tick and has not for longer than it promised.
    NoTick,
}

/// One finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankNotice {
    /// The slot.
    pub slot: u32,
    /// The slot's generation that it is about; older ones are of no interest.
    pub generation: u32,
    /// The rank in the slot, if it has one.
    pub rank: Option<u32>,
    /// What was found.
    pub finding: Finding,
    /// When, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
}

/// The box. `raised` becomes readable when something is in it.
#[derive(Debug)]
pub(super) struct NoticeQueue {
    inner: PriorityMutex<Inner>,
    pub(super) raised: EventFd,
}

#[derive(Debug)]
struct Inner {
    queue: VecDeque<RankNotice>,
    capacity: usize,
    /// The latest finding of each slot that found the queue full.
    unsaid: Vec<Option<RankNotice>>,
    dropped: u64,
}

impl NoticeQueue {
    pub(super) fn new(slots: usize, capacity: usize) -> std::io::Result<Self> {
        let inner = Inner {
            queue: VecDeque::with_capacity(capacity),
            capacity,
            unsaid: vec![None; slots],
            dropped: 0,
        };
        Ok(Self {
            inner: PriorityMutex::new(inner)?,
            raised: EventFd::new()?,
        })
    }

    pub(super) fn put(&self, notice: RankNotice) {
        let mut inner = self.lock();
        let place = notice.slot as usize;
        if inner.queue.len() < inner.capacity && inner.unsaid[place].is_none() {
            inner.queue.push_back(notice);
        } else if inner.unsaid[place].replace(notice).is_some() {
            inner.dropped += 1;
        }
        drop(inner);
        self.raised.raise();
    }

    /// Takes everything: first what was queued, then what found the queue full.
    pub(super) fn take(&self, notices: &mut Vec<RankNotice>) {
        self.raised.drain();
        let mut inner = self.lock();
        notices.extend(inner.queue.drain(..));
        notices.extend(inner.unsaid.iter_mut().filter_map(Option::take));
    }

    pub(super) fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    fn lock(&self) -> PriorityGuard<'_, Inner> {
        self.inner.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(slot: u32, finding: Finding) -> RankNotice {
        RankNotice {
            slot,
            generation: 1,
            rank: None,
            finding,
            at_ns: 0,
        }
    }

    #[test]
    fn a_full_box_keeps_the_last_word_and_counts_what_was_between() {
        let outbox = NoticeQueue::new(4, 2).unwrap();
        outbox.put(notice(0, Finding::Detached));
        outbox.put(notice(1, Finding::Detached));
        outbox.put(notice(2, Finding::Hung(HungBy::Stopped)));
        outbox.put(notice(2, Finding::Resumed));
        outbox.put(notice(2, Finding::Left { exit_code: 3 }));
        assert_eq!(outbox.dropped(), 2);
        let mut taken = Vec::new();
        outbox.take(&mut taken);
        assert_eq!(taken.len(), 3);
        assert_eq!(taken[2].finding, Finding::Left { exit_code: 3 });
        taken.clear();
        outbox.take(&mut taken);
        assert!(taken.is_empty());
    }
}
