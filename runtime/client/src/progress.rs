//! Ticks: the progress that a process promises to make, noted in the state table.
//!
//! A process that computes cannot report that it is stuck in a loop or a deadlock. It can promise to report regularly
//! that it is not. A tick is one store; the agent checks the ticks.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use super::{Client, Error, Inner, lock};

impl Client {
    /// Notes that this process makes progress: one store, no system call. Any thread may call it; two ticks at the
    /// same moment count as one.
    #[inline]
    pub fn tick(&self) -> Result<(), Error> {
        self.table()?
            .tick(self.inner.slot.load(Ordering::Relaxed) as u32);
        Ok(())
    }

    /// Promises a tick at least every `period_ms` milliseconds from now on; 0 ends the promise. A process that breaks
    /// it is reported as hung on every node until it ticks again: an event, with no other effect. Survives restarts
    /// of the agent. Below 20 ms, the agent may notice it later by a quarter of that time.
    pub fn tick_every(&self, period_ms: u32) -> Result<(), Error> {
        self.table()?;
        let mut promised = lock(&self.inner.tick_period_ms);
        *promised = period_ms;
        self.inner.write_promise(&promised);
        Ok(())
    }
}

impl Inner {
    /// Writes the promise into the current state table, unless the slot there belongs to another process by now: then
    /// the next agent gets it. A thread that changes the state table and the slot holds the lock of the promise, too.
    pub(super) fn write_promise(&self, period_ms: &MutexGuard<'_, u32>) {
        let table = self.tables.current();
        let packed = self.slot.load(Ordering::Acquire);
        let (number, generation) = (packed as u32, (packed >> 32) as u32);
        // Compares the generation, not the pid: in a container this process has another pid for itself.
        let slot = table.slot(number);
        if let Some(slot) = slot.filter(|slot| slot.facts().generation == generation) {
            table.tick(number);
            slot.promise_ticks(self.mark(), **period_ms);
        }
    }
}
