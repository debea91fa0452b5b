//! The study of a job with zones: how long until all nodes know of a change, and what it costs. All simulated.
//!
//! A job boots. Then nodes leave, join and die, one and several at once, then both supervisors of a zone, and a whole
//! zone. A node that dies falls silent: no fabric reports it. Nothing else happens meanwhile.

use muster_zones::ZoneId;

use super::fault::ZonedFault;
use super::setting::ZonedSetting;
use super::world::ZonedWorld;
use super::{BOOT_US, MS};

/// Longest time until all nodes know of a change.
const LIMIT_US: u64 = 120_000 * MS;
/// Interval of the question whether they do.
const ASK_US: u64 = MS;
/// Quiet time before each change, and the time for which an idle job is measured.
const QUIET_US: u64 = 2_000 * MS;
/// Nodes that change at once.
const SEVERAL: usize = 16;
/// Fewest base zones of a job that is measured: one dies, one loses its supervisors, and most have to be left.
pub const STUDY_ZONES_MIN: usize = 4;

/// One measurement of a job with zones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZonedMeasured {
    /// `boot`, `idle`, `leave`, `join`, `death`, `supervisors` or `zone`.
    pub what: &'static str,
    /// Nodes that change at once.
    pub count: usize,
    /// Until all nodes knew the truth, in microseconds; `None`: not in time. Of an idle job, the time measured.
    pub took_us: Option<u64>,
    /// Datagrams sent in that time, for each running node.
    pub datagrams_each: u64,
    /// Bytes sent in that time, for each running node.
    pub bytes_each: u64,
    /// Nodes that were reported failed while they ran.
    pub false_failures: usize,
}

/// Measures a job with zones, with the timing of the setting. Its faults and losses of datagrams are ignored.
///
/// # Panics
/// If the setting allows no map, or one of fewer than [`STUDY_ZONES_MIN`] base zones.
#[must_use]
pub fn study_zoned(setting: ZonedSetting, seed: u64) -> Vec<ZonedMeasured> {
    let setting = ZonedSetting {
        loss_permille: 0,
        ..setting
    };
    let mut world = ZonedWorld::new(setting, seed);
    let mut measured = vec![measure(&mut world, ("boot", setting.nodes), |world| {
        world.run_until_asking(BOOT_US, ASK_US, ZonedWorld::has_formed)
    })];
    world.run(QUIET_US);
    measured.push(measure(&mut world, ("idle", 0), |world| {
        world.run(QUIET_US);
        true
    }));
    for (what, faults) in changes(&world) {
        world.run(QUIET_US);
        measured.push(measure(&mut world, what, |world| {
            for fault in faults {
                world.schedule(0, fault);
            }
            world.run_until_asking(LIMIT_US, ASK_US, |world| world.differences(1).is_empty())
        }));
    }
    measured
}

/// The changes, in their order, each with its name and the number of nodes.
fn changes(world: &ZonedWorld) -> Vec<((&'static str, usize), Vec<ZonedFault>)> {
    let zones: Vec<ZoneId> = world.map().zones_at(0).collect();
    let of = |zone: usize| world.map().nodes(zones[zone % zones.len()]);
    // The last nodes of the zones, in turn, so that no zone loses many.
    let several: Vec<usize> = (0..SEVERAL.min(world.len() / 8).max(1))
        .filter_map(|turn| of(turn).iter().rev().nth(turn / zones.len()))
        .map(|node| node.0 as usize)
        .collect();
    let kills = |nodes: &[usize]| nodes.iter().map(|node| ZonedFault::Kill(*node)).collect();
    let (supervised, dead) = (zones[1], zones[2]);
    let dead_nodes = world.map().nodes(dead).len();
    [
        (("death", 1), kills(&several[..1])),
        (("join", 1), vec![ZonedFault::Restart]),
        (("death", several.len()), kills(&several)),
        (("join", several.len()), vec![ZonedFault::Restart]),
        // After all starts: a node that starts later never hears of one that has left, by the paper's rules.
        (("leave", 1), vec![ZonedFault::Leave(of(0)[0].0 as usize)]),
        (
            ("supervisors", 2),
            vec![ZonedFault::KillSupervisors(supervised)],
        ),
        (("zone", dead_nodes), vec![ZonedFault::KillZone(dead)]),
    ]
    .into()
}

/// Measures what is sent during `run`, which returns whether all came that it waited for.
fn measure(
    world: &mut ZonedWorld,
    (what, count): (&'static str, usize),
    run: impl FnOnce(&mut ZonedWorld) -> bool,
) -> ZonedMeasured {
    let (since, frames, bytes) = (world.now(), world.frames, world.bytes);
    let wrong = world.violations.len();
    let done = run(world);
    let running = world.running().max(1) as u64;
    ZonedMeasured {
        what,
        count,
        took_us: done.then(|| world.now().since(since)),
        datagrams_each: (world.frames - frames) / running,
        bytes_each: (world.bytes - bytes) / running,
        false_failures: world.violations.len() - wrong,
    }
}
