//! Signals that are to end a job, as whoever starts its launchers counts them.

use std::time::{Duration, Instant};

use signal_hook::consts::{SIGUSR1, SIGUSR2};

use crate::launch::DUPLICATE_SIGNAL_WINDOW;

/// How long launchers that were asked twice may take to kill their ranks and end.
const LAST: Duration = Duration::from_secs(5);

/// Who has asked for the end, and how often.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    first: Option<(i32, Instant)>,
    kill_at: Option<Instant>,
}

impl Shutdown {
    /// A signal has come.
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
                self.kill_at.get_or_insert(now + LAST);
            }
            Some(_) => {}
        }
    }

    pub(super) fn any(&self) -> bool {
        self.first.is_some()
    }

    /// The first that is to end the job.
    pub(super) fn first(&self) -> Option<i32> {
        self.first.map(|(signal, _)| signal)
    }

    /// When launchers that are still there are killed.
    pub(super) fn kill_at(&self) -> Option<Instant> {
        self.kill_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::{SIGINT, SIGTERM};

    #[test]
    fn the_second_that_is_no_echo_ends_all() {
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
                Some(start + 2 * DUPLICATE_SIGNAL_WINDOW + LAST)
            );
        }
        assert_eq!(shutdown.first(), Some(SIGINT));
    }
}
