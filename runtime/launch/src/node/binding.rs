//! Which cores each rank may run on (run-2).
//!
//! The processors that this launcher may use are distributed over the node's ranks in order: neighbouring ranks get
//! neighbouring cores, and no core is shared. A core is assigned whole, with all its hardware threads. The
//! launcher's own binding (by Slurm, by a cpuset) limits what there is to distribute. The PMIx server tells each
//! rank its binding, so MPI sees which ranks share a core, a cache or a package.

use std::collections::BTreeMap;
use std::fs;

use crate::{Error, Plan};
use muster_fabric::locality::{self, Level};
use muster_pmix::server::Binding;

/// How ranks are bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bind {
    /// Each rank may run wherever the launcher may.
    #[default]
    None,
    /// Each rank has a share of the cores to itself.
    Core,
}

impl std::str::FromStr for Bind {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "none" => Ok(Self::None),
            "core" => Ok(Self::Core),
            _ => Err("unknown binding; write core or none".into()),
        }
    }
}

/// Returns the binding of each rank of this node, in order; `None` if ranks are not bound.
///
/// # Errors
/// There are more ranks than cores.
pub(super) fn of_ranks(plan: &Plan, own: usize) -> Result<Option<Vec<Binding>>, Error> {
    if plan.bind == Bind::None {
        return Ok(None);
    }
    let levels = levels();
    let cores = cores(&levels)?;
    let ranks = plan.layout.ranks_of(own);
    // Emulated nodes share the cores of one machine.
    let (skipped, parts) = match plan.neighbours {
        0 | 1 => (0, ranks.len()),
        _ => (ranks.start as usize, plan.layout.ranks() as usize),
    };
    let shares = split(&cores, parts).ok_or_else(|| Error::Cores {
        node: plan.layout.name(own).to_owned(),
        ranks: parts,
        cores: cores.len(),
    })?;
    let own = shares.into_iter().skip(skipped).take(ranks.len());
    Ok(Some(own.map(|mine| binding_of(mine, &levels)).collect()))
}

fn binding_of(processors: Vec<usize>, levels: &[Level]) -> Binding {
    let mut threads: Vec<u32> = processors.iter().map(|one| *one as u32).collect();
    threads.sort_unstable();
    Binding {
        cpuset: format!("hwloc:{}", locality::ranges(&threads)),
        locality: locality::locality(levels, &threads),
        processors,
    }
}

/// The machine's levels as hwloc sees them; empty if hwloc fails or is not built in.
fn levels() -> Vec<Level> {
    #[cfg(feature = "hwloc")]
    let levels = locality::read_levels().unwrap_or_default();
    #[cfg(not(feature = "hwloc"))]
    let levels = Vec::new();
    levels
}

/// The cores that this process may use, each with its processors; the cores of one package are neighbours.
fn cores(levels: &[Level]) -> Result<Vec<Vec<usize>>, Error> {
    let set = rustix::thread::sched_getaffinity(None)
        .map_err(|cause| Error::system("read this process's CPU affinity")(cause.into()))?;
    let mut known: Vec<Vec<usize>> = Vec::new();
    for core in levels
        .iter()
        .filter(|level| level.name == "CR")
        .flat_map(|level| &level.parts)
    {
        let allowed = core.iter().map(|thread| *thread as usize);
        known.push(allowed.filter(|thread| set.is_set(*thread)).collect());
    }
    known.retain(|core| !core.is_empty());
    if known.concat().len() == set.count() as usize {
        return Ok(known);
    }
    // The kernel may know processors that hwloc does not.
    let processors = (0..rustix::thread::CpuSet::MAX_CPU).filter(|one| set.is_set(*one));
    let mut cores: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for processor in processors {
        let read = |name: &str| -> Option<usize> {
            let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/{name}");
            fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        // If the kernel does not name a core, each processor counts as one.
        let place = read("physical_package_id").zip(read("core_id"));
        let place = place.unwrap_or((usize::MAX, processor));
        cores.entry(place).or_default().push(processor);
    }
    Ok(cores.into_values().collect())
}

/// Splits the cores into `parts` shares of neighbouring cores; the first shares have one more if they cannot be
/// equal. `None` if there are fewer cores than parts.
fn split(cores: &[Vec<usize>], parts: usize) -> Option<Vec<Vec<usize>>> {
    if parts == 0 || cores.len() < parts {
        return None;
    }
    let (each, more) = (cores.len() / parts, cores.len() % parts);
    let start = |part: usize| part * each + part.min(more);
    let share = |part: usize| cores[start(part)..start(part + 1)].concat();
    Some((0..parts).map(share).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// run-2.
    #[test]
    fn cores_are_split_whole_and_in_order() {
        let cores: Vec<Vec<usize>> = (0..5).map(|core| vec![core, core + 5]).collect();
        let shares = split(&cores, 2).unwrap();
        assert_eq!(shares, [vec![0, 5, 1, 6, 2, 7], vec![3, 8, 4, 9]]);
        assert_eq!(split(&cores, 5).unwrap().concat().len(), 10);
        assert_eq!((split(&cores, 6), split(&cores, 0)), (None, None));
    }

    #[test]
    fn own_cores_match_the_kernels_list() {
        for levels in [levels(), Vec::new()] {
            let own = cores(&levels).unwrap();
            let mut processors = own.concat();
            processors.sort_unstable();
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            let ranges = line.unwrap().trim().split(',');
            let listed: Vec<usize> = ranges
                .flat_map(|range| {
                    let (from, to) = range.split_once('-').unwrap_or((range, range));
                    from.parse().unwrap()..=to.parse().unwrap()
                })
                .collect();
            assert_eq!(processors, listed);
        }
    }
}
