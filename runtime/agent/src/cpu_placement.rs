//! CPU placement of the agent: the NUMA node of its memory, and the hardware thread that the loop runs on.
//!
//! Ranks are bound to their cores. If there is a hardware thread that no rank may use, the loop binds itself to it,
//! preferably near the first rail. If there is none, or the topology is unknown, the scheduler decides, as it does
//! for any process. Only the loop's own thread is bound, and only while there are ranks.

use muster_fabric::locality::{Machine, Sharing};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use tracing::{info, warn};

/// The machine, and the hardware thread that the loop is bound to.
#[derive(Debug, Default)]
pub(super) struct CpuPlacement {
    machine: Option<Machine>,
    /// The affinity mask of this thread before it bound itself.
    allowed: Option<CpuSet>,
    taken: Option<u32>,
}

impl CpuPlacement {
    /// Reads the affinity mask. Binds nothing yet.
    pub(super) fn new(machine: Option<Machine>) -> CpuPlacement {
        CpuPlacement {
            machine,
            allowed: sched_getaffinity(None).ok(),
            taken: None,
        }
    }

    pub(super) fn machine(&self) -> Option<&Machine> {
        self.machine.as_ref()
    }

    /// The NUMA node that this thread runs on and allocates from.
    pub(super) fn node(&self) -> Option<u32> {
        let thread = u32::try_from(sched_getcpu()).ok()?;
        self.machine.as_ref()?.node_of_thread(thread)
    }

    /// Binds the loop to a hardware thread that none of these ranks may use, near the given NUMA node, or unbinds it
    /// if there is none. Logs a change.
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
                let message = match thread {
                    Some(_) => "the agent is bound to a core that no rank uses",
                    None => {
                        "no core is free of ranks, or no ranks are left: the scheduler places the agent"
                    }
                };
                info!(?thread, ?node, "{message}");
            }
            Err(cause) => {
                warn!(?thread, %cause, "sched_setaffinity failed: the agent cannot bind itself to a core");
            }
        }
    }
}

/// The hardware threads that these processes may use, each once.
fn threads_of(processes: &[u32]) -> Vec<u32> {
    let mut all = CpuSet::new();
    for pid in processes {
        // A process that has just ended uses none. A rank may also have written an invalid pid to the state table.
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
    // Do not search past the last one.
    all.take(count).collect()
}

/// The topology of this machine, or of the one in `HWLOC_XMLFILE`, from hwloc. It takes about 10 ms, and more on
/// large machines, so a supervisor reads it once for all its workers.
#[cfg(feature = "hwloc")]
pub(super) fn read_machine() -> Option<Machine> {
    let machine = muster_fabric::locality::read();
    machine
        .inspect_err(
            |error| warn!(%error, "the topology cannot be read; all rails count as equally near"),
        )
        .ok()
}

/// Built without hwloc: the topology is unknown.
#[cfg(not(feature = "hwloc"))]
pub(super) fn read_machine() -> Option<Machine> {
    None
}
