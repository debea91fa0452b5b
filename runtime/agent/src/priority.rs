//! The priority of the loop's thread: real-time if permitted, else a larger expected lateness.
//!
//! A detector that waits behind a rank's busy loop suspects live members, and is suspected itself. But a real-time
//! thread that runs without a pause blocks other threads, including other agents. A guard demotes such a thread well
//! before a deadline passes because of it, and the thread requests the priority again some time later.

use std::time::Duration;

use muster_zones::Tree;
use tracing::{info, warn};

use muster_sys::schedule::{Granted, ask_real_time, demotions};

/// Longest time that a real-time thread may compute without a pause: beyond it, the thread is taken to be in an
/// endless loop. With short deadlines it is a third of one, so that other agents on the core still meet theirs.
const SPIN_US_MAX: u64 = 50_000;
/// Time without real-time priority after a demotion.
const DEMOTION_TIME: Duration = Duration::from_secs(10);

/// The priority of the calling thread.
#[derive(Debug)]
pub(super) struct Priority {
    deadline_us: u64,
    demotions: u64,
    retry_us: Option<u64>,
}

impl Priority {
    /// Requests real-time priority. Without it, a lateness of one deadline is expected from the start: waiting for
    /// the first late wake-up would cause a false suspicion.
    pub(super) fn request(tree: &mut Tree, deadline_us: u64) -> Self {
        let priority = Self {
            deadline_us,
            demotions: demotions(),
            retry_us: None,
        };
        match ask_real_time(SPIN_US_MAX.min(deadline_us / 3)) {
            Granted::RealTime => {
                tree.expect_lateness(0);
                info!("the loop has real-time priority");
            }
            Granted::Refused(cause) => {
                tree.expect_lateness(deadline_us);
                warn!(
                    %cause,
                    expected_ms = deadline_us / 1000,
                    "no real-time priority: deadlines are up to three times as long, and grow by the \
                     lateness of this thread, up to 1 s; grant CAP_SYS_NICE or an rtprio limit to \
                     avoid that"
                );
            }
        }
        priority
    }

    /// Checks once per round whether the guard has demoted the thread.
    pub(super) fn check(&mut self, now_us: u64, tree: &mut Tree) {
        if demotions() != self.demotions {
            self.demotions = demotions();
            self.retry_us = Some(now_us + DEMOTION_TIME.as_micros() as u64);
            tree.expect_lateness(self.deadline_us);
            warn!(
                demotions = self.demotions,
                again_s = DEMOTION_TIME.as_secs(),
                "the loop ran too long without a pause; it has no real-time priority for some seconds"
            );
        }
        if self.retry_us.is_some_and(|at| now_us >= at) {
            *self = Self::request(tree, self.deadline_us);
        }
    }
}
