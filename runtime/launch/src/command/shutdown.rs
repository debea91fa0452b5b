//! `Shutdown` counts the signals that are to end a job, in the process that starts its launchers.

use std::time::{Duration, Instant};

use signal_hook::consts::{SIGUSR1, SIGUSR2};

use crate::core::signalling::DUPLICATE_SIGNAL_WINDOW;

/// Time in which launchers that were asked twice must kill their ranks and end.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// The first signal that is to end the job, and the time to kill after a second one.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    first: Option<(i32, Instant)>,
    kill_at: Option<Instant>,
}

impl Shutdown {
    /// Records a signal. SIGUSR1 and SIGUSR2 do not end a job.
    pub(super) fn note(&mut self, signal: i32) {
        self.note_at(signal, Instant::now());
    }

    fn note_at(&mut self, signal: i32, now: Instant) {
        if signal == SIGUSR1 || signal == SIGUSR2 {
            return;
        }
        match self.first {
            None => self.first = Some((signal, now)),
            Some((_, at)) if now.saturating_duration_since(at) > DUPLICATE_SIGNAL_WINDOW => {
                self.kill_at.get_or_insert(now + KILL_AFTER);
            }
            Some(_) => {}
        }
    }

    pub(super) fn any(&self) -> bool {
        self.first.is_some()
    }

    /// The first signal that is to end the job.
    pub(super) fn first(&self) -> Option<i32> {
        self.first.map(|(signal, _)| signal)
    }

    /// Time at which launchers that still run are killed.
    pub(super) fn kill_at(&self) -> Option<Instant> {
        self.kill_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::{SIGINT, SIGTERM};

    #[test]
    fn a_second_signal_that_is_not_an_echo_ends_all() {
        let start = Instant::now();
        let mut shutdown = Shutdown::default();
        shutdown.note_at(SIGUSR1, start);
        assert!(!shutdown.any());
        shutdown.note_at(SIGINT, start);
        shutdown.note_at(SIGINT, start + DUPLICATE_SIGNAL_WINDOW);
        shutdown.note_at(SIGUSR2, start + 2 * DUPLICATE_SIGNAL_WINDOW);
        assert_eq!((shutdown.first(), shutdown.kill_at()), (Some(SIGINT), None));
        for later in [2, 3] {
            shutdown.note_at(SIGTERM, start + later * DUPLICATE_SIGNAL_WINDOW);
            assert_eq!(
                shutdown.kill_at(),
                Some(start + 2 * DUPLICATE_SIGNAL_WINDOW + KILL_AFTER)
            );
        }
        assert_eq!(shutdown.first(), Some(SIGINT));
    }
}
