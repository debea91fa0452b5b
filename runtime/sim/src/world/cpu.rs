//! What handling a datagram takes, where a world charges for it.
//!
//! By default nothing: a world that looks for faults of the protocol needs no costs. A world that
//! measures does: a member that boots handles thousands of datagrams. Each of them keeps a CPU
//! busy for the same time, at its sender and at its receiver; members that share a CPU wait for
//! each other; what waits for its CPU lies in the node's socket, which holds so many and no more.
//! A node that has several waiting handles all of them before it answers, as the agent does.
//! Not here: caches, interrupts, other processes.

use muster_protocol::Instant;

use super::NodeIndex;

/// Most datagrams handled before what follows from them is sent.
pub(super) const BATCH_MAX: u32 = 64;

/// What the CPUs of a world are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// How long a datagram keeps a CPU busy, at each end, in microseconds; 0: not at all.
    pub service_us: u64,
    /// How many members share a CPU.
    pub shared_by: usize,
}

impl Default for Cpus {
    fn default() -> Self {
        Self {
            service_us: 0,
            shared_by: 1,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Work {
    busy_until: Vec<Instant>,
}

impl Work {
    /// One more datagram for the node's CPU: when it will be done with it.
    pub(super) fn charge(&mut self, cpus: Cpus, node: NodeIndex, now: Instant) -> Instant {
        let cpu = node / cpus.shared_by.max(1);
        if self.busy_until.len() <= cpu {
            self.busy_until.resize(cpu + 1, Instant::default());
        }
        let done = self.busy_until[cpu].max(now).after(cpus.service_us);
        self.busy_until[cpu] = done;
        done
    }

    /// When the node's CPU has nothing more to do.
    pub(super) fn free_at(&self, cpus: Cpus, node: NodeIndex) -> Instant {
        let cpu = node / cpus.shared_by.max(1);
        self.busy_until.get(cpu).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_share_a_cpu_wait_for_each_other() {
        let cpus = Cpus {
            service_us: 10,
            shared_by: 2,
        };
        let mut work = Work::default();
        assert_eq!(work.charge(cpus, 0, Instant(100)), Instant(110));
        assert_eq!(work.charge(cpus, 1, Instant(101)), Instant(120));
        assert_eq!(work.charge(cpus, 2, Instant(101)), Instant(111));
        assert_eq!(work.charge(cpus, 1, Instant(500)), Instant(510));
        assert_eq!(work.free_at(cpus, 0), Instant(510));
    }
}
