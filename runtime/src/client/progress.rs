//! Progress that a process promises to make: ticks, on the board.
//!
//! A process that computes cannot say that it is stuck in a loop or a deadlock; it can promise to say
//! now and then that it is not. One store a tick, and the agent looks.

use std::sync::atomic::Ordering;

use super::{Client, Error, Inner};

impl Client {
    /// Says that this process makes progress: one store, no system call. Any thread may; two that do
    /// at one moment count as one.
    #[inline]
    pub fn tick(&self) -> Result<(), Error> {
        self.board()?
            .tick(self.inner.slot.load(Ordering::Relaxed) as u32);
        Ok(())
    }

    /// Promises a tick at least every `period_ms` milliseconds from now on; 0 takes the promise back.
    /// Who breaks it is hung, on every node, until it ticks again: an event, and nothing else is done.
    /// Survives restarts of the agent. Below 20 ms the agent may notice a quarter of that later.
    pub fn promise_ticks(&self, period_ms: u32) -> Result<(), Error> {
        self.board()?;
        self.inner
            .tick_period_ms
            .store(period_ms, Ordering::Release);
        self.inner.promise_again();
        Ok(())
    }
}

impl Inner {
    /// Writes the promise on the present board.
    pub(super) fn promise_again(&self) {
        let period_ms = self.tick_period_ms.load(Ordering::Acquire);
        let board = self.boards.current();
        board.tick(self.slot.load(Ordering::Relaxed) as u32);
        if let Some(slot) = board.slot(self.slot.load(Ordering::Relaxed) as u32) {
            slot.promise_ticks(period_ms);
        }
    }
}
