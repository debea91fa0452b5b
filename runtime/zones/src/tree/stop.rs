//! Policy "stop": what the ranks have told their MPI is not taken back.
//!
//! MPI cannot revoke a failure. So a node whose ranks report failures to their MPI stops when it is declared failed.
//! The same holds for whole zones:
//! - A zone that the host was told has failed stays failed for it, also if the zone was only cut off. It counts as
//!   alive again once all its nodes have started anew.
//! - The nodes of an outcast zone stop, a while after they were told, so that all of them hear of it.

use muster_protocol::planted::{self, Fault};
use muster_protocol::{Input, Instant, Phase, Policy};

use crate::map::ZoneId;
use crate::tree::level::Level;
use crate::tree::{Tree, TreeEvent, zone_number};

/// The nodes of an outcast zone stop after so many deadlines.
const STOP_DEADLINES: u64 = 10;

impl Tree {
    /// Takes the policy of the local node.
    pub(super) fn set_policy(&mut self, policy: Policy) {
        self.config.policy = policy;
        self.keep_failed();
    }

    /// Brings the zones up to date that stay failed for the host.
    pub(super) fn keep_failed(&mut self) {
        if self.config.policy != Policy::Stop || planted::on(Fault::FailureRevoked) {
            return self.stays_failed.clear();
        }
        for (number, state) in self.told.those(|state| state.is_failed) {
            let of = self.stays_failed.entry(number).or_default();
            *of = state.of.max(*of);
        }
        self.stays_failed.retain(|number, of| {
            let Some(state) = self
                .told
                .zones
                .get(*number)
                .filter(|state| !state.is_failed)
            else {
                return true;
            };
            // Before it has formed again it does not say which of its nodes are missing.
            let has_formed = state.has_formed || number >> 24 > 0;
            !(has_formed && state.life.is_later_than(*of) == Some(true))
        });
    }

    /// Whether a zone has failed as far as the host is told; `None` if it was never alive.
    pub(super) fn has_failed(&self, zone: ZoneId) -> Option<bool> {
        let state = self.told.get(zone)?;
        Some(state.is_failed || self.stays_failed.contains_key(&zone_number(zone)))
    }

    /// A zone of the local node is outcast: the node stops soon, if that is its policy.
    pub(super) fn stop_soon(&mut self) {
        let stops = self.config.policy == Policy::Stop && !planted::on(Fault::OutcastGoesOn);
        if stops && self.stops_at == Instant::NEVER {
            self.stops_at = self.now.after(self.deadlines(STOP_DEADLINES));
        }
    }

    /// Whether the local node is about to stop, as the host was told.
    pub(super) fn is_stopping(&self) -> bool {
        self.stops_at != Instant::NEVER
    }

    /// Stops the engine of the base zone if it is time, and those above if it has stopped. The others see that as a
    /// death.
    pub(super) fn stop_if_due(&mut self) {
        if self.now >= self.stops_at && self.base().phase() == Phase::Running {
            let (now, version) = (self.now, self.base().version());
            // It is not refused: the engine runs, and nobody knows a later version of it.
            let _ = self.levels[0].engine.handle(now, Input::Outcast(version));
        }
        if self.base().phase() != Phase::Stopped {
            return;
        }
        let is_above =
            |level: &mut Level| level.zone.level > 0 && level.engine.phase() == Phase::Running;
        while let Some(level) = self.levels.pop_if(is_above) {
            self.tell(TreeEvent::Demoted { zone: level.zone });
        }
    }
}
