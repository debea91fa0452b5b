//! The zones below a zone, as its members watch them.
//!
//! A zone is absent while none of its supervisors is in the view of the zone above. Its members replace supervisors
//! that fail within one or two deadlines; if no other comes for eight, its guards declare the whole zone failed.

use muster_protocol::planted::{self, Fault};
use muster_protocol::{Instant, LedgerEntry, LedgerKey, MemberId, NodeState, Phase};

use crate::assignment::GUARDS;
use crate::map::ZoneId;
use crate::roles::guards;
use crate::tree::level::Level;
use crate::tree::{Tree, zone_number, zone_of_number};

/// A zone that is absent for this many deadlines has failed.
const ABSENT_DEADLINES: u64 = 8;

impl Tree {
    /// When a zone below this level may have to be declared failed.
    pub(super) fn next_declaration(&self, level: &Level) -> Instant {
        let absent_us = ABSENT_DEADLINES * self.config.deadline_us;
        let absent = level.children.iter().filter_map(|(number, child)| {
            let zone = self.child(level, *number)?;
            let is_open = !is_failed(level, zone);
            child
                .absent_since
                .filter(|_| is_open)
                .map(|since| since.after(absent_us))
        });
        absent.fold(Instant::NEVER, Instant::min)
    }

    fn child(&self, level: &Level, number: u32) -> Option<ZoneId> {
        let below = level.zone.level.checked_sub(1)?;
        Some(ZoneId {
            level: below,
            number,
        })
    }

    /// Reviews the zones below the zone of this level. Returns whether anything was written.
    pub(super) fn review_children(&mut self, level: usize) -> bool {
        if self.levels[level].engine.phase() != Phase::Running {
            return false;
        }
        let origins = self.levels[level].origins(&self.map);
        let now = self.now;
        self.levels[level].count_children(&origins, now);
        self.look_further(level, &origins);
        self.copy_failed(level);
        let mut is_changed = self.refute(level);
        is_changed |= self.declare(level, &origins);
        is_changed |= self.compare(level);
        self.publish_handover(level, &origins);
        is_changed
    }

    /// Whether an entry of this level says that a zone below has failed, and its members are in the view. It comes
    /// from members that were cut off, through one that has just joined; or the zone is back, and says so soon.
    ///
    /// The zone of the local node is there in any case: the entry is right if the local node was cut off, or has
    /// just joined.
    pub(super) fn is_contradicted(&self, level: usize, entry: &LedgerEntry) -> bool {
        let LedgerKey::Zone(number) = entry.key() else {
            return false;
        };
        let current = &self.levels[level];
        let zone = zone_of_number(&self.map, number);
        let zone = zone.filter(|zone| zone.level + 1 == current.zone.level);
        let is_failed = entry.node_state() == Some(NodeState::Failed);
        let Some(zone) = zone.filter(|_| is_failed && !planted::on(Fault::ZoneBelieved)) else {
            return false;
        };
        if zone == self.levels[level - 1].zone {
            return self.now > current.compare_until;
        }
        let origins = current.origins(&self.map);
        origins.iter().any(|(_, number)| *number == zone.number)
    }

    /// Says that zones are alive that the ledger calls failed: the zone below, since the local node is in it, and
    /// those whose members are in the view.
    fn refute(&mut self, level: usize) -> bool {
        let own = self.levels[level - 1].zone;
        let current = &self.levels[level];
        let is_new = self.now <= current.compare_until;
        let wrong = current.children.iter().filter_map(|(number, child)| {
            let zone = self.child(current, *number)?;
            let is_there = zone == own || (child.live > 0 && !is_new);
            (is_there && is_failed(current, zone)).then_some(zone)
        });
        let wrong: Vec<ZoneId> = wrong.collect();
        if planted::on(Fault::ZoneNotRefuted) {
            return false;
        }
        for zone in &wrong {
            self.change(level, *zone);
        }
        !wrong.is_empty()
    }

    /// Copies down that zones have failed which are no longer in the view.
    fn copy_failed(&mut self, level: usize) {
        let current = &self.levels[level];
        let below = &self.levels[level - 1];
        let absent = current.children.iter().filter(|(_, child)| child.live == 0);
        let missed = absent.filter_map(|(number, _)| {
            let zone = self.child(current, *number)?;
            let is_missed = is_failed(current, zone) && !is_failed(below, zone);
            let entry = self.entry(level, LedgerKey::Zone(zone_number(zone)));
            entry.filter(|_| is_missed)
        });
        let missed: Vec<LedgerEntry> = missed.collect();
        for entry in missed {
            self.copy_down(level - 1, entry);
        }
    }

    /// Writes the opposite state of a zone below.
    fn change(&mut self, level: usize, zone: ZoneId) {
        let number = zone_number(zone);
        let entry = self.levels[level]
            .engine
            .ledger_entry(LedgerKey::Zone(number));
        let changes = entry.and_then(LedgerEntry::changes);
        let (epoch, changes) = changes.unwrap_or_default();
        self.write(level, LedgerEntry::zone(number, epoch, changes + 1));
    }

    /// Declares zones failed that have been absent for too long, if the local node guards them.
    fn declare(&mut self, level: usize, origins: &[(MemberId, u32)]) -> bool {
        let current = &self.levels[level];
        let own = current.engine.id();
        let absent_us = ABSENT_DEADLINES * self.config.deadline_us;
        let is_due = |since: Instant| self.now >= since.after(absent_us);
        let due = current.children.iter().filter_map(|(number, child)| {
            let zone = self.child(current, *number)?;
            let is_due = child.absent_since.is_some_and(is_due) && !is_failed(current, zone);
            let candidates = origins.iter().map(|(id, origin)| {
                let is_inside = *origin == *number;
                (*id, is_inside != planted::on(Fault::GuardInside))
            });
            let is_guard = || guards(self.map.path(zone), candidates, GUARDS).contains(&own);
            (is_due && is_guard() && self.has_live_nodes(current, zone)).then_some(zone)
        });
        let due: Vec<ZoneId> = due.collect();
        for zone in &due {
            self.change(level, *zone);
        }
        !due.is_empty()
    }

    /// Whether not all nodes of a zone have ended, by the ledger.
    fn has_live_nodes(&self, level: &Level, zone: ZoneId) -> bool {
        let is_in = |node: u32| {
            let node = crate::directory::NodeIndex(node);
            self.map.zones_of(node).any(|of| of == zone)
        };
        let ended = level.engine.ledger().filter(|entry| {
            let LedgerKey::Node(node) = entry.key() else {
                return false;
            };
            entry.node_state() != Some(NodeState::Alive) && is_in(node)
        });
        ended.count() < self.map.nodes_below(zone)
    }

    /// For a while after a membership has begun or yielded: zones that are alive here and failed in the ledger of
    /// the zone below are so by what that zone wrote while it was cut off.
    fn compare(&mut self, level: usize) -> bool {
        if self.now > self.levels[level].compare_until || planted::on(Fault::NotTakenBack) {
            return false;
        }
        let (current, below) = (&self.levels[level], &self.levels[level - 1]);
        let wrong = below.engine.ledger().filter_map(|entry| {
            let LedgerKey::Zone(number) = entry.key() else {
                return None;
            };
            let zone = zone_of_number(&self.map, number)?;
            let child = current.children.get(&zone.number);
            let is_here = child.is_some_and(|child| child.live > 0);
            let is_wrong = zone != below.zone
                && zone.level + 1 == current.zone.level
                && is_failed(below, zone)
                && !is_failed(current, zone);
            (is_here && is_wrong).then_some(number)
        });
        let wrong: Vec<u32> = wrong.collect();
        for number in &wrong {
            self.take_back(level - 1, *number);
        }
        !wrong.is_empty()
    }
}

fn is_failed(level: &Level, zone: ZoneId) -> bool {
    let entry = level
        .engine
        .ledger_entry(LedgerKey::Zone(zone_number(zone)));
    entry.is_some_and(|entry| entry.node_state() == Some(NodeState::Failed))
}
