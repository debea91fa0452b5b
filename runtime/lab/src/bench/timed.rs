//! `measure` times faults of a group on loopback, each fault by itself, for `muster sim calibrate`.

use super::detect::{ours, pause_between};
pub(crate) use super::figures::quantile;
use super::figures::{Count, Metric};
use super::group::Group;
use super::machine;
use super::member::{GroupOptions, Network};
use muster_terminal::CliError;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

/// When each other member knew of each fault, in milliseconds.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) left: Vec<Vec<f64>>,
    pub(crate) killed: Vec<Vec<f64>>,
    pub(crate) silent: Vec<Vec<f64>>,
    /// Faults that not all others reported in time.
    pub(crate) missing: Vec<String>,
}

/// Boots a group of one rail, and lets as many members leave, be killed, and be stopped, one after the other.
///
/// # Errors
/// The group did not start, a member did not come back, or the measurement was interrupted.
pub(crate) fn measure(members: u32, faults: u32, seed: u64) -> Result<Measured, CliError> {
    let directory = machine::scratch()?;
    let options = GroupOptions {
        members,
        rails: 1,
        profile: "standard".to_owned(),
        directory: directory.path().to_owned(),
        network: Network::Loopback(78),
        unprivileged: false,
    };
    let system = ours();
    let mut group = Group::boot(&system, &options, None)?;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut measured = Measured::default();
    for metric in [Metric::Left, Metric::Killed, Metric::Silent] {
        let times = match metric {
            Metric::Left => &mut measured.left,
            Metric::Killed => &mut measured.killed,
            _ => &mut measured.silent,
        };
        for _ in 0..faults {
            pause_between(&mut random)?;
            // The first member is the seed of all.
            let at = random.random_range(1..members as usize);
            let before = group.figures.values(metric).len();
            let missing_before = group.figures.counted(Count::Missing);
            match metric {
                Metric::Left => group.leave(at)?,
                Metric::Killed => group.kill(&[at], metric)?,
                _ => group.stop(at, Duration::ZERO)?,
            }
            times.push(group.figures.values(metric)[before..].to_vec());
            let missing = group.figures.counted(Count::Missing) - missing_before;
            if missing > 0 {
                let (what, name) = (metric.labels().1, &group.members[at].name);
                let text = format!("{what}: {missing} members did not report {name}");
                measured.missing.push(text);
            }
        }
    }
    group.end();
    Ok(measured)
}
