//! Where the agent sits: which NUMA node its memory is on, and which hardware thread it takes.
//!
//! Intuition: a guest who takes the free chair next to the door. Ranks have their cores; if one is left
//! that no rank may use, the loop takes it, near the first rail; if none is left, or nothing is known
//! of the machine, the scheduler decides, as it would have without us. Only the loop's own thread is
//! bound, and only while there are ranks.

use muster_fabric::locality::{Machine, Sharing};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use tracing::{info, warn};

/// The machine, and the seat that was taken.
#[derive(Debug, Default)]
pub(super) struct CpuPlacement {
    machine: Option<Machine>,
    /// What this thread may use, from the beginning.
    allowed: Option<CpuSet>,
    taken: Option<u32>,
}

impl CpuPlacement {
    /// Looks around; takes no seat yet.
    pub(super) fn look(machine: Option<Machine>) -> CpuPlacement {
        CpuPlacement {
            machine,
            allowed: sched_getaffinity(None).ok(),
            taken: None,
        }
    }

    pub(super) fn machine(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }

    /// The node that this thread runs on, and allocates on.
    pub(super) fn node(&self) -> Option<u32> {
        let thread = u32::try_from(sched_getcpu()).ok()?;
        self.machine.as_ref()?.node_of_thread(thread)
    }

    /// The ranks of this node are these processes now: takes a free seat near this NUMA node, or gets
    /// up if there is none. Says which.
    pub(super) fn choose(&mut self, near: Option<u32>, ranks: &[u32]) {
        let (Some(machine), Some(allowed)) = (&self.machine, &self.allowed) else {
            return;
        };
        let used = threads_of(ranks);
        let choice = machine.choose_thread(&threads(allowed), &used, near);
        let free = choice.filter(|choice| choice.sharing == Sharing::Free && !used.is_empty());
        let thread = free.map(|choice| choice.thread);
        if thread == self.taken {
            return;
        }
        let mut set = *allowed;
        if let Some(thread) = thread {
            set.clear();
            set.set(thread as usize);
        }
        match sched_setaffinity(None, &set) {
            Ok(()) => {
                self.taken = thread;
                let node = free.and_then(|choice| choice.node);
                let said = match thread {
                    Some(_) => "the agent takes a core that no rank uses",
                    None => {
                        "no core is free of ranks, or none is left: the scheduler places the agent"
                    }
                };
                info!(?thread, ?node, "{said}");
            }
            Err(cause) => warn!(?thread, %cause, "the agent cannot choose its core"),
        }
    }
}

/// The hardware threads that these processes may use, each once.
fn threads_of(processes: &[u32]) -> Vec<u32> {
    let mut all = CpuSet::new();
    for pid in processes {
        // One that has just ended uses nothing, nor does a number that somebody scribbled on the board.
        let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
        let set = pid.and_then(|pid| sched_getaffinity(Some(pid)).ok());
        for thread in set.iter().flat_map(threads) {
            all.set(thread as usize);
        }
    }
    threads(&all)
}

fn threads(set: &CpuSet) -> Vec<u32> {
    let within = |thread: &u32| set.is_set(*thread as usize);
    let count = set.count() as usize;
    let all = (0..CpuSet::MAX_CPU as u32).filter(within);
    // Behind the last one nothing is looked for.
    all.take(count).collect()
}

/// What hwloc says of this machine, or of the one in `HWLOC_XMLFILE`. It takes some 10 ms, and more on
/// large machines, so a keeper asks once for all its workers.
#[cfg(feature = "hwloc")]
pub(super) fn read_machine() -> Option<Machine> {
    let machine = muster_fabric::locality::read();
    machine
        .inspect_err(|error| warn!(%error, "all rails count as equally near"))
        .ok()
}

/// Built without hwloc: nothing is known.
#[cfg(not(feature = "hwloc"))]
pub(super) fn read_machine() -> Option<Machine> {
    None
}
