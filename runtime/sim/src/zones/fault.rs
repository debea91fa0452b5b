//! What can happen to nodes and zones.

use muster_zones::ZoneId;

use super::setting::ZonedSetting;
use crate::chance::Chance;

/// A fault. Nodes by their place in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ZonedFault {
    /// A node dies.
    Kill(usize),
    /// A supervisor of this base zone dies.
    KillSupervisor(ZoneId),
    /// All supervisors of this base zone die at once.
    KillSupervisors(ZoneId),
    /// All nodes of a base zone die at once.
    KillZone(ZoneId),
    /// A zone dies, and at the same time the supervisors of another.
    KillZoneAndSupervisors(ZoneId, ZoneId),
    /// Several nodes of a base zone die at once.
    KillRack(ZoneId, usize),
    /// Nodes that have died start again.
    Restart,
    /// A node leaves.
    Leave(usize),
    /// A node stops for this long, in microseconds.
    Pause(usize, u64),
    /// These base zones are cut off from the others for this long, in microseconds.
    Cut(Vec<ZoneId>, u64),
}

/// Draws faults with their times.
pub(super) fn draw(
    chance: &mut Chance,
    setting: ZonedSetting,
    zones: &[ZoneId],
    span_us: u64,
) -> Vec<(u64, ZonedFault)> {
    // The last numbers are cuts and stops.
    let last = if setting.has_cuts { 19 } else { 14 };
    let nodes = setting.nodes as u64;
    let mut faults = Vec::new();
    for _ in 0..setting.faults {
        let at_us = chance.between(0, span_us);
        let node = chance.between(0, nodes - 1) as usize;
        let Some(zone) = chance.pick(zones).copied() else {
            continue;
        };
        let fault = match chance.between(0, last) {
            0..=2 => ZonedFault::Kill(node),
            3 | 4 => ZonedFault::KillSupervisor(zone),
            5 | 6 => ZonedFault::KillSupervisors(zone),
            7 | 8 => ZonedFault::KillZone(zone),
            9 => {
                let others: Vec<ZoneId> =
                    zones.iter().copied().filter(|one| *one != zone).collect();
                match chance.pick(&others) {
                    Some(other) => ZonedFault::KillZoneAndSupervisors(zone, *other),
                    None => ZonedFault::KillZone(zone),
                }
            }
            10 | 11 => ZonedFault::KillRack(zone, chance.between(2, 6) as usize),
            12 | 13 => ZonedFault::Restart,
            14 => ZonedFault::Leave(node),
            15 | 16 => ZonedFault::Pause(node, chance.between(50_000, 1_500_000)),
            17 | 18 => ZonedFault::Cut(vec![zone], chance.between(100_000, 3_000_000)),
            _ => {
                let half: Vec<ZoneId> = zones
                    .iter()
                    .copied()
                    .filter(|_| chance.permille(400))
                    .collect();
                ZonedFault::Cut(half, chance.between(100_000, 3_000_000))
            }
        };
        faults.push((at_us, fault));
    }
    faults.sort_by_key(|(at_us, _)| *at_us);
    faults
}
