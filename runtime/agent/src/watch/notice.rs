//! The findings that the watch reports to the agent, and the bounded queue for them.
//!
//! The watch never waits for the agent. When the queue is full, the latest finding of a slot is kept in an overflow
//! entry of that slot. An intermediate finding (hung, then resumed) may be replaced, and each replacement is counted;
//! the final finding of a slot is never lost.

use std::collections::VecDeque;

use muster_sys::descriptor::EventFd;
use muster_sys::priority_mutex::{PriorityGuard, PriorityMutex};

/// A finding about the process in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// It announced that it leaves. Final.
    Left {
        /// The exit code it announced.
        exit_code: i32,
    },
    /// It is dead or dying and had not announced it. Final.
    Failed {
        /// The source that reported it first.
        by: FailedBy,
        /// The signal that ended it, 0 if unknown or none.
        signal: i32,
        /// The exit code, 0 if unknown or none.
        exit_code: i32,
    },
    /// Its holding thread ended but the process lives (exec, or the end of that thread). It is now followed by pidfd
    /// and sampling. This is no evidence about the rank's health.
    Detached,
    /// It makes no progress.
    Hung(HungBy),
    /// A hung process runs again.
    Resumed,
}

impl Finding {
    /// Whether it is the last finding for this slot and generation.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Left { .. } | Self::Failed { .. })
    }
}

/// The source of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedBy {
    /// The kernel released the futex word and every task was exiting.
    Futex,
    /// The pidfd reported the end of the process.
    Pidfd,
    /// The process writes a core dump: it cannot continue.
    CoreDump,
    /// The process is not in `/proc` any more.
    Gone,
}

/// The reason why a process counts as hung.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HungBy {
    /// Stopped by a signal.
    Stopped,
    /// Two seconds in uninterruptible sleep without using the processor.
    Stuck,
    /// It announced a tick period and has not ticked for longer than that.
    NoTick,
}

/// A finding about a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankNotice {
    /// The slot.
    pub slot: u32,
    /// The slot's generation that it belongs to; the agent ignores older ones.
    pub generation: u32,
    /// The rank in the slot, if it has one.
    pub rank: Option<u32>,
    /// The finding.
    pub finding: Finding,
    /// Its time, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
}

/// The queue. `raised` becomes readable when it is not empty.
#[derive(Debug)]
pub(super) struct NoticeQueue {
    inner: PriorityMutex<Inner>,
    pub(super) raised: EventFd,
}

#[derive(Debug)]
struct Inner {
    queue: VecDeque<RankNotice>,
    capacity: usize,
    /// The latest finding of each slot that did not fit into the queue.
    overflow: Vec<Option<RankNotice>>,
    dropped: u64,
}

impl NoticeQueue {
    pub(super) fn new(slots: usize, capacity: usize) -> std::io::Result<Self> {
        let inner = Inner {
            queue: VecDeque::with_capacity(capacity),
            capacity,
            overflow: vec![None; slots],
            dropped: 0,
        };
        Ok(Self {
            inner: PriorityMutex::new(inner)?,
            raised: EventFd::new()?,
        })
    }

    pub(super) fn put(&self, notice: RankNotice) {
        let mut inner = self.lock();
        let slot = notice.slot as usize;
        if inner.queue.len() < inner.capacity && inner.overflow[slot].is_none() {
            inner.queue.push_back(notice);
        } else if inner.overflow[slot].replace(notice).is_some() {
            inner.dropped += 1;
        }
        drop(inner);
        self.raised.raise();
    }

    /// Takes all: first the queue, then the overflow.
    pub(super) fn take(&self, notices: &mut Vec<RankNotice>) {
        self.raised.drain();
        let mut inner = self.lock();
        notices.extend(inner.queue.drain(..));
        notices.extend(inner.overflow.iter_mut().filter_map(Option::take));
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
    fn a_full_queue_keeps_the_final_finding_and_counts_replaced_ones() {
        let queue = NoticeQueue::new(4, 2).unwrap();
        queue.put(notice(0, Finding::Detached));
        queue.put(notice(1, Finding::Detached));
        queue.put(notice(2, Finding::Hung(HungBy::Stopped)));
        queue.put(notice(2, Finding::Resumed));
        queue.put(notice(2, Finding::Left { exit_code: 3 }));
        assert_eq!(queue.dropped(), 2);
        let mut taken = Vec::new();
        queue.take(&mut taken);
        assert_eq!(taken.len(), 3);
        assert_eq!(taken[2].finding, Finding::Left { exit_code: 3 });
        taken.clear();
        queue.take(&mut taken);
        assert!(taken.is_empty());
    }
}
