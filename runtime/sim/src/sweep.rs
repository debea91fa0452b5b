//! Many seeds of one scenario, on all cores. The result does not depend on the number of cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::run::{Figures, Outcome, Report, run};
use crate::scenario::Scenario;

/// The result of a sweep.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    /// Number of seeds that were run.
    pub runs: u64,
    /// The failed runs, by seed.
    pub failed: Vec<Report>,
    /// Sums over all runs; for `boot_us` and `rest_us` the largest value.
    pub figures: Figures,
}

/// Runs this many seeds, starting with `first`. `progress` is called with the number of finished ones.
pub fn sweep(
    scenario: &Scenario,
    first: u64,
    count: u64,
    threads: usize,
    progress: impl Fn(u64) + Sync,
) -> Sweep {
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let found = Mutex::new(Sweep::default());
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            let report = run(scenario, first.wrapping_add(index));
            let mut found = found.lock().unwrap_or_else(|error| error.into_inner());
            found.add(report);
            drop(found);
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut found = found
        .into_inner()
        .unwrap_or_else(|error| error.into_inner());
    found.failed.sort_by_key(|report| report.seed);
    found
}

impl Sweep {
    fn add(&mut self, report: Report) {
        self.runs += 1;
        let (sum, figures) = (&mut self.figures, report.figures);
        sum.boot_us = sum.boot_us.max(figures.boot_us);
        sum.rest_us = sum.rest_us.max(figures.rest_us);
        sum.virtual_us += figures.virtual_us;
        sum.frames += figures.frames;
        sum.bytes += figures.bytes;
        sum.events += figures.events;
        if report.outcome != Outcome::Sound {
            self.failed.push(report);
        }
    }
}
