//! The loop's priority: real-time where it may have it, and what is expected of it where not.
//!
//! A detector that waits for its turn behind a rank's busy loop accuses the living, and is accused. One
//! that runs for long without a pause keeps others from their turn, other agents among them: a guard
//! puts it back, well before anybody is called failed for it, and some time later it asks again.

use std::time::Duration;

use muster_protocol::Engine;
use tracing::{info, warn};

use muster_sys::schedule::{Granted, ask_real_time, demotions};

/// A real-time thread that computes this long without a pause is out of its mind. Less where deadlines
/// are short: a third of one, which leaves its neighbours on the core time to answer.
const SPIN_US_MAX: u64 = 50_000;
/// How long it does without real-time priority after it was put back.
const PENANCE: Duration = Duration::from_secs(10);

/// What the calling thread has.
#[derive(Debug)]
pub(super) struct Priority {
    deadline_us: u64,
    demotions: u64,
    again_us: Option<u64>,
}

impl Priority {
    /// Asks for real-time priority. Without it a deadline's worth of lateness is expected from the
    /// start: the first time would be too late to find out.
    pub(super) fn ask(engine: &mut Engine, deadline_us: u64) -> Self {
        let priority = Self {
            deadline_us,
            demotions: demotions(),
            again_us: None,
        };
        match ask_real_time(SPIN_US_MAX.min(deadline_us / 3)) {
            Granted::RealTime => {
                engine.expect_lateness(0);
                info!("real-time priority");
            }
            Granted::Refused(cause) => {
                engine.expect_lateness(deadline_us);
                warn!(
                    %cause,
                    expected_ms = deadline_us / 1000,
                    "no real-time priority: deadlines are up to three times as long, and widen by \
                     what this thread is late, up to 1 s; grant CAP_SYS_NICE or an rtprio limit to \
                     avoid that"
                );
            }
        }
        priority
    }

    /// Once a turn: the guard may have put the thread back.
    pub(super) fn look(&mut self, now_us: u64, engine: &mut Engine) {
        if demotions() != self.demotions {
            self.demotions = demotions();
            self.again_us = Some(now_us + PENANCE.as_micros() as u64);
            engine.expect_lateness(self.deadline_us);
            warn!(
                demotions = self.demotions,
                again_s = PENANCE.as_secs(),
                "the loop ran for long without a pause and has lost its real-time priority for now"
            );
        }
        if self.again_us.is_some_and(|at| now_us >= at) {
            *self = Self::ask(engine, self.deadline_us);
        }
    }
}
