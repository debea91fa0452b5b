//! Waits for other launchers with the same error, so that one of them prints it (`crate::core`).

use std::time::{Duration, Instant};

use super::Launcher;
use crate::Error;
use crate::core::TICK;
use crate::core::coalescing::ErrorText;
use crate::core::messages::Input;
use muster_sys::poll::readable;

/// How long a launcher waits for others with the same error: as long as launchers on a busy machine may take to
/// start after each other.
const COALESCE_WAIT: Duration = Duration::from_secs(10);

/// Stands for the name of the node in an error.
const NODE: char = '\0';

impl Launcher<'_> {
    /// Returns the error to print here, or only the exit status if another launcher prints it. The error must
    /// be in the node status already.
    pub(super) fn coalesce_error(&mut self, error: Error) -> Result<Option<u8>, Error> {
        let status = error.status();
        let Error::Program { program, why, .. } = error else {
            let is_reported = self.wait_for_reports(
                |launcher| launcher.core.has_an_earlier_node_aborted(),
                false,
            );
            return match is_reported {
                true => Ok(Some(status)),
                false => Err(error),
            };
        };
        let named = |node: String| Error::Program {
            program: program.clone(),
            node,
            why: why.clone(),
        };
        let text = named(NODE.into()).to_string();
        let (before, after) = text.split_once(NODE).unwrap_or_default();
        let error = ErrorText { before, after };
        let is_before = |launcher: &Self| {
            let failing = launcher.core.failing_alike(error);
            failing.first().is_some_and(|first| *first < launcher.own)
        };
        if self.wait_for_reports(is_before, true) {
            return Ok(Some(status));
        }
        let mut failing = self.core.failing_alike(error);
        failing.insert(self.own);
        let names = failing.iter().map(|node| self.plan.layout.name(*node));
        Err(named(muster_hostlist::fold(names)))
    }

    /// Waits until `is_reported`, or until the launchers of earlier nodes (or of all) have stated how they are.
    /// Returns `is_reported`.
    fn wait_for_reports(&mut self, is_reported: impl Fn(&Self) -> bool, of_all: bool) -> bool {
        let until = Instant::now() + COALESCE_WAIT;
        loop {
            for node in self.control.channel.take_lost() {
                self.tell(Input::NotStarted(node));
            }
            let is_awaited = self.core.are_others_silent(of_all);
            if is_reported(self) || !is_awaited || Instant::now() >= until {
                return is_reported(self);
            }
            self.ranks.poll();
            self.reap();
            self.perform_as_possible();
            // Wait for events only: signals are handled later.
            let descriptor = self.client.descriptor();
            let is_woken = descriptor.is_ok_and(|one| readable(&[one], Some(TICK)).is_ok());
            let Some(events) = is_woken.then(|| self.peers.take_events().ok()).flatten() else {
                return false;
            };
            self.tell_all(events);
        }
    }
}
