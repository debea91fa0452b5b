//! What members of a zone tell supervisors that have just started: what those before them knew.
//!
//! All supervisors of a zone may die at once, and others start in their place. The other members know since when their
//! zone has run, what became of it in splits, and which zones beside it were alive. One of those may have failed
//! meanwhile, and if no other zone watches it, nobody else ever finds out.

use crate::tree::Tree;
use crate::tree::life::Life;
use crate::tree::publication::{OUTSIDE_KEY, Outcast, Publication};
use crate::tree::states::ZoneStates;

impl Tree {
    /// Publishes, in the highest zone of the local node, that not all its nodes have just started, while its
    /// supervisors do not know: they may all have. The zones beside it may have failed meanwhile: the supervisors look
    /// for them.
    pub(super) fn remind(&mut self) {
        let level = self.levels.len() - 1;
        let current = &self.levels[level];
        let (number, own) = (current.zone.level, current.engine.id());
        let others = current.outside_from.iter().filter(|(id, _)| **id != own);
        let (mut is_known, mut is_unknown) = (false, false);
        let held = current.outside.outcasts.get(&number).copied();
        let life = held.map_or(Life::default(), |held| held.life);
        for (_, other) in others {
            let told = other.outcasts.get(&number).map(|one| one.life.began);
            let knows = told == Some(life.began);
            is_unknown |= !knows;
            is_known |= knows && !other.is_reminder;
        }
        match held.filter(|_| life.is_sure && is_unknown && !is_known) {
            Some(held) => {
                let (least, most) = self.recent_fall();
                let held = Outcast {
                    least,
                    most,
                    ..held
                };
                let publication = Publication {
                    is_reminder: true,
                    outcasts: [(number, held)].into_iter().collect(),
                    states: self.states_beside(level),
                    ..Publication::default()
                };
                self.publish(level, OUTSIDE_KEY, publication);
            }
            None if current.outside_from.contains_key(&own) => self.withdraw_outside(level),
            None => {}
        }
    }

    /// What is known about the zones with the same zone above as that at this level, and below them.
    fn states_beside(&self, level: usize) -> ZoneStates {
        let (zone, known) = (self.levels[level].zone, &self.levels[level].outside.states);
        match self.map.parent(zone) {
            Some(above) => known.below(&self.map, above),
            None => ZoneStates::default(),
        }
    }

    /// Takes what members of the zone at this level remind its new supervisors of. A zone that the local node has not
    /// met as a member of the zone above fails if it is not found in time.
    pub(super) fn take_reminders(&mut self, level: usize) {
        let reminders = self.levels[level].outside_from.values();
        let reminders = reminders.filter(|one| one.is_reminder);
        let states: Vec<ZoneStates> = reminders.map(|one| one.states.clone()).collect();
        let above = self.levels[level + 1].zone;
        for states in states {
            for (number, child) in self.children_of(above, &states) {
                let children = &mut self.levels[level + 1].children;
                children.get_or_insert_with(number, || child);
            }
        }
    }
}
