//! Progress that a process promises to make: ticks, on the board.
//!
//! A process that computes cannot say that it is stuck in a loop or a deadlock; it can promise to say
//! now and then that it is not. One store a tick, and the agent looks.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use super::{Client, Error, Inner, lock};

impl Client {
    /// Says that this process makes progress: one store, no system call. Any thread may; two that do
    /// at one moment count as one.
    #[inline]
    pub fn tick(&self) -> Result<(), Error> {
        self.table()?
            .tick(self.inner.slot.load(Ordering::Relaxed) as u32);
        Ok(())
    }

    /// Promises a tick at least every `period_ms` milliseconds from now on; 0 takes the promise back.
    /// Who breaks it is hung, on every node, until it ticks again: an event, and nothing else is done.
    /// Survives restarts of the agent. Below 20 ms the agent may notice a quarter of that later.
    pub fn tick_every(&self, period_ms: u32) -> Result<(), Error> {
        self.table()?;
        let mut promised = lock(&self.inner.tick_period_ms);
        *promised = period_ms;
        self.inner.write_promise(&promised);
        Ok(())
    }
}

impl Inner {
    /// Writes the promise on the present board, unless the slot there is another's by now: then the
    /// next agent is told. Whoever changes board and slot holds the promise meanwhile, too.
    pub(super) fn write_promise(&self, period_ms: &MutexGuard<'_, u32>) {
        let table = self.tables.current();
        let word = self.slot.load(Ordering::Acquire);
        let (number, generation) = (word as u32, (word >> 32) as u32);
        // Not by the pid: in a container this process has another one for itself than for the agent.
        let slot = table.slot(number);
        if let Some(slot) = slot.filter(|slot| slot.facts().generation == generation) {
            table.tick(number);
            slot.promise_ticks(self.mark(), **period_ms);
        }
    }
}
