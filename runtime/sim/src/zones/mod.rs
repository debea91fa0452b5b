//! Simulated jobs with zones: a tree on every node, faults of nodes and of whole zones, and checkers that see all.
//!
//! `world` has the nodes, the time and the network, and checks what must hold; `fault` draws what happens; `setting`
//! is the size of a job;
//! `study` measures a job in which little happens.

mod fault;
mod setting;
mod study;
mod world;

use muster_zones::ZoneId;

use fault::draw;
pub use setting::ZonedSetting;
pub use study::{STUDY_ZONES_MIN, ZonedMeasured, study_zoned};
use world::ZonedWorld;

const MS: u64 = 1_000;
/// The longest boot.
const BOOT_US: u64 = 30_000 * MS;
/// How long the faults last.
const FAULTS_US: u64 = 6_000 * MS;
/// The longest time until all nodes know the truth after the last fault: the sides of a cut find each other by rare
/// requests.
const SETTLE_US: u64 = 38_000 * MS;
/// Quiet at the end: what is wrong only for a moment comes to light, and all nodes of the weaker side are told.
const QUIET_US: u64 = 4_000 * MS;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZonedReport {
    /// The seed.
    pub seed: u64,
    /// What was wrong; empty if nothing was.
    pub violations: Vec<String>,
    /// Faults, and events about zones, each with its time.
    pub story: Vec<String>,
    /// From the start until all nodes were supervised and knew all others, in microseconds.
    pub boot_us: u64,
    /// From the last fault until all nodes knew the truth, in microseconds.
    pub settle_us: u64,
    /// Datagrams sent.
    pub frames: u64,
    /// Bytes sent.
    pub bytes: u64,
}

/// Runs a job with zones: boot, faults drawn by the seed, and the time until all nodes know the truth.
///
/// # Panics
/// If the setting allows no map.
#[must_use]
pub fn run_zoned(setting: ZonedSetting, seed: u64) -> ZonedReport {
    let mut world = ZonedWorld::new(setting, seed);
    let booted_at = world.now();
    let has_booted = world.run_until(BOOT_US, ZonedWorld::has_formed);
    let boot_us = world.now().since(booted_at);
    let mut settle_us = 0;
    if has_booted {
        let zones: Vec<ZoneId> = world.map().zones_at(0).collect();
        for (at_us, fault) in draw(world.chance(), setting, &zones, FAULTS_US) {
            world.schedule(at_us, fault);
        }
        world.run(FAULTS_US);
        let missed = world.missed(4);
        world.violations.extend(missed);
        world.heal();
        let healed_at = world.now();
        world.run_until(SETTLE_US, |world| world.differences(1).is_empty());
        settle_us = world.now().since(healed_at);
        world.run(QUIET_US);
        let differences = world.differences(4);
        world.violations.extend(differences);
        let kept = match setting.stops_outcasts {
            true => world.taken_back(4),
            false => world.kept(4),
        };
        world.violations.extend(kept);
    } else {
        let missing = world.why_not_formed();
        world
            .violations
            .push(format!("the zones did not form: {missing}"));
    }
    ZonedReport {
        seed,
        boot_us,
        settle_us,
        frames: world.frames,
        bytes: world.bytes,
        violations: world.violations,
        story: world.story,
    }
}
