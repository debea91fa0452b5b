//! What the other zones say about a split: how many nodes they have seen, and which zones they have told their ranks
//! have failed.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use muster_protocol::planted::{self, Fault};

use crate::tree::publication::{Outcast, Publication};
use crate::tree::reach::{deepest, is_deeper};
use crate::tree::settle::{FIRST, HOLD_DEADLINES, NEW_DEADLINES, SIDE_DEADLINES};
use crate::tree::{Instant, Tree};

impl Tree {
    /// The other zones on the side of the local one, by number, and how often each has been outcast.
    pub(super) fn side(&self) -> BTreeMap<u32, u32> {
        let (base, above) = (&self.levels[0], &self.levels[1]);
        let mut side = BTreeMap::new();
        for (id, told) in above.below_from.iter() {
            let origin = above.origin(&self.map, *id);
            let count = told.outcasts.get(&base.zone.level).map(|one| one.count);
            if let Some(origin) = origin.filter(|origin| *origin != base.zone.number) {
                let held = side.entry(origin).or_default();
                *held = count.unwrap_or_default().max(*held);
            }
        }
        side
    }

    /// Whether most zones of a side have become outcast since.
    pub(super) fn is_side_outcast(&self, side: &BTreeMap<u32, u32>) -> bool {
        if side.is_empty() {
            return false;
        }
        let now = self.side();
        let outcast = side
            .iter()
            .filter(|(zone, count)| now.get(zone).is_some_and(|now| now > count));
        2 * outcast.count() > side.len()
    }

    /// The fall of the local side as a zone takes it that has just started: what zones tell of that started earlier. If
    /// none does, what is alive of the whole job.
    ///
    /// It counts only if no more than half of the job's nodes are alive now: otherwise those who tell come from the
    /// weaker side of another split.
    pub(super) fn fall_by_others(&self) -> (u32, u32) {
        let (base, above) = (self.levels[0].zone, &self.levels[1]);
        let new_ns = 1000 * self.deadlines(NEW_DEADLINES);
        let is_other = |id| above.origin(&self.map, id) != Some(base.number);
        let told = above.below_from.iter().filter(|(id, _)| is_other(**id));
        let outcasts = told.filter_map(|(_, told)| told.outcasts.get(&base.level));
        // Zones that started at the same time know no more.
        let began = self.levels[0].outcast.life.began;
        let is_older = |one: &&Outcast| one.life.began.saturating_add(new_ns) < began;
        let falls = outcasts.filter(is_older);
        let (least, most) = deepest(falls.map(|outcast| (outcast.least, outcast.most)));
        let alive = self
            .count_nodes(|state| !state.is_failed && !state.is_absent)
            .total();
        let nodes = self.map.directory().len() as u32;
        match most {
            _ if 2 * alive > nodes => (0, 0),
            0 => (alive, nodes),
            _ => (least, most),
        }
    }

    /// From when on the others' strength counts. Before, they may not have found yet all that their side has lost.
    pub(super) fn overruled_from(&self) -> Option<Instant> {
        let since = self.overruled_since?;
        Some(since.after(self.deadlines(HOLD_DEADLINES)))
    }

    /// Whether most zones that told their ranks that the base zone failed are stronger, for which it asks for a while.
    ///
    /// A zone that was cut off for a short time holds few of the others failed, or none, and counts them all as its
    /// side, while all of them have declared it failed.
    pub(super) fn is_overruled(&mut self) -> bool {
        let until = self.overruled_since;
        let until = until.map(|since| since.after(self.deadlines(SIDE_DEADLINES)));
        let is_over = until.is_none_or(|until| self.now >= until);
        if is_over || planted::on(Fault::ShortCutForgotten) {
            self.overruled_since = None;
            return false;
        }
        if self.overruled_from().is_none_or(|from| self.now < from) {
            return false;
        }
        let (base, above) = (self.levels[0].zone, &self.levels[1]);
        let own = self.recent_fall();
        let has_told = |told: &Publication| told.states.get(base).is_some_and(|one| one.is_told);
        let mut judges: BTreeMap<u32, bool> = BTreeMap::new();
        for (id, told) in above.below_from.iter().filter(|(_, told)| has_told(told)) {
            let origin = above.origin(&self.map, *id);
            let zone = origin.and_then(|number| above.child(number));
            let Some(zone) = zone.filter(|zone| *zone != base) else {
                continue;
            };
            let outcast = told.outcasts.get(&base.level).copied().unwrap_or_default();
            let is_weaker =
                self.is_on_other_side(zone) && !is_deeper(own, (outcast.least, outcast.most));
            let has_first =
                zone == FIRST || !told.states.get(FIRST).is_some_and(|first| first.is_told);
            let is_larger = match (2 * outcast.least).cmp(&outcast.most) {
                _ if outcast.most == 0 => false,
                Ordering::Less => false,
                Ordering::Equal => has_first && base != FIRST,
                Ordering::Greater => true,
            };
            let is_stronger = is_larger && !is_weaker;
            // One that has just started may not know how many its zone had lost.
            *judges.entry(zone.number).or_insert(true) &= is_stronger;
        }
        let stronger = judges.values().filter(|is_stronger| **is_stronger);
        2 * stronger.count() > judges.len()
    }
}
