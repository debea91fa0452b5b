//! Which zones were on the weaker side of a split.
//!
//! The nodes of a zone have told their ranks that other zones have failed. If such a zone is there again, and its nodes
//! have not all started anew, they were only cut off: one of the two sides has told its ranks what is not so. The side
//! that saw more than half of the job's nodes meanwhile was right. The zones of all others are outcast, once they have
//! told a wrong verdict or were declared failed themselves. So at most one side goes on as if nothing had happened, and
//! none does if no part of the job had a majority. Of two halves the one with the first zone of the map was right.
//!
//! Each zone counts for itself, and a zone whose nodes had just started may count wrongly. So it also goes with its
//! side: a zone is outcast if most other zones of its side are. A zone that was cut off for a short time has not
//! noticed it: if it was declared failed, and those who told their ranks so are stronger, it is outcast. `side` has
//! both rules.
//!
//! Of a zone's supervisors those judge that have seen the split. One that has started since judges only if there is no
//! other one.
//!
//! A zone that is outcast may go over to a side with most nodes of the job. From then on it counts as a part of that
//! side, also for its older verdicts (`has_gone_over`).

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::planted::{self, Fault};

use crate::map::ZoneId;
use crate::tree::guard::FIND_DEADLINES;
use crate::tree::publication::Outcast;
use crate::tree::reach::{deepest, is_deeper};
use crate::tree::states::ZoneState;
use crate::tree::{Instant, Tree};

/// How many deadlines before and after a verdict the nodes that are alive count for the strength of a side.
const SPLIT_DEADLINES: u64 = 10;
/// The same before a zone learns that it was declared failed. If it was cut off for longer, it has verdicts of its own.
const PAST_DEADLINES: u64 = 40;
/// A zone that has just started knows the others after so many deadlines.
pub(super) const NEW_DEADLINES: u64 = 10;
/// A fall of the number of nodes that are alive counts if it lasts for so many deadlines.
pub(super) const HOLD_DEADLINES: u64 = 2;
/// A zone that is back has told within so many deadlines in which life it is.
const KNOWN_DEADLINES: u64 = 40;
/// What the other zones found about a split is known within so many deadlines after a zone is back.
pub(super) const SIDE_DEADLINES: u64 = 10;

/// Of two halves the one with this zone is the stronger one.
pub(super) const FIRST: ZoneId = ZoneId {
    level: 0,
    number: 0,
};

/// That a zone has failed, as the ranks of the local zone were told.
#[derive(Clone, Debug)]
pub(super) struct ZoneVerdict {
    at: Instant,
    /// How often the zone had been declared failed, and in which life.
    declared: u32,
    of: u64,
    /// The nodes that the local side saw alive at the time.
    least: u32,
    /// Those that it had seen before.
    most: u32,
    /// The deepest fall that began after the verdict and lasts, or did shortly before the zone was back: to how many
    /// nodes, and from how many.
    later: (u32, u32),
    /// Since when the zone is there again.
    back_since: Option<Instant>,
    /// The nodes of the local side before.
    nodes_before: u32,
    /// Whether it was settled when the zone was back. It is kept for a while, since views that merge may hold the zone
    /// failed again for a moment.
    is_settled: bool,
    /// The other zones on the side of the local one, and how often each had been outcast at the time.
    side: BTreeMap<u32, u32>,
}

impl ZoneVerdict {
    /// Whether the zone is still failed, or is back and the verdict is not settled.
    fn is_open(&self) -> bool {
        !self.is_settled || self.back_since.is_none()
    }
}

impl Tree {
    /// Follows the verdicts on other zones, as a supervisor of the base zone.
    pub(super) fn settle(&mut self) {
        self.notice_outcast();
        if self.levels.len() < 2 {
            self.declared_seen = None;
            return self.verdicts.clear();
        }
        self.notice_others();
        let told = self.count_open();
        self.note_verdicts();
        let base = self.levels[0].zone;
        let own = self.levels[0].outside.outcasts.get(&base.level);
        let mut own = own.copied().unwrap_or_default();
        let has_just_begun = self.levels[0].began_at >= self.past();
        let is_new = self.now < self.levels[0].began_at.after(self.deadlines(NEW_DEADLINES));
        if has_just_begun && (is_new || self.has_older_supervisor()) {
            // It has not seen the split, others of its zone have.
            self.reach.note_fall(self.now, (own.least, own.most));
        }
        own.merge(self.levels[0].outcast);
        let was_wrong = self.settle_verdicts();
        let was_weak = self.count_declarations_of_base(&mut own) || was_wrong;
        // Those judge that have seen the split, where there are any.
        let is_judge = !has_just_begun || !self.has_older_supervisor();
        let (was_wrong, was_weak) = (was_wrong && is_judge, was_weak && is_judge);
        let is_counted = self.is_just_outcast();
        if was_weak && !is_counted {
            own.count += u32::from(!planted::on(Fault::OutcastNotTold));
            self.outcast_at = self.now;
        }
        if was_weak {
            self.weak_at = self.now;
        }
        // A node may have started on the weaker side since the zone was counted, and have told the same.
        if was_wrong || was_weak && !is_counted {
            let members = self.levels[0].live();
            let started = members.map(|member| member.version().incarnation);
            own.newest = started.max().unwrap_or_default();
        }
        let side_us = self.deadlines(SIDE_DEADLINES);
        let falls = self.verdicts.values();
        let falls = falls.filter(|one| {
            // Others ask for it until they have settled theirs.
            let is_recent = |since: Instant| self.now < since.after(side_us);
            one.is_open() || one.back_since.is_some_and(is_recent)
        });
        (own.least, own.most) = deepest(falls.map(|verdict| self.fall_of(verdict)));
        if self.count_open() != told {
            self.levels[1].is_dirty = true;
        }
        if core::mem::replace(&mut self.levels[0].outcast, own) != own {
            // It is published with the next review.
            self.levels[0].is_dirty = true;
        }
    }

    /// Notes when the local zone first meets another one.
    fn notice_others(&mut self) {
        let (now, own) = (self.now, self.levels[0].zone.number);
        let above = &mut self.levels[1];
        if above.met_at.is_none() && !above.is_alone(own) {
            above.met_at = Some(now);
        }
    }

    /// Whether the zone has started with the local node, and has met the others only now: they know more about what was
    /// before.
    fn is_new(&self) -> bool {
        let new_us = self.deadlines(NEW_DEADLINES);
        // A node that starts knows members of its zone before they tell it when the zone has started.
        let members = self.levels[0].live();
        let started = members.map(|member| member.version().incarnation);
        let began = self.levels[0].outcast.life.began;
        let began = started.fold(began, u64::min);
        let is_first = self.config.incarnation.saturating_sub(began) < 1000 * new_us;
        let until = self.levels[1].met_at.map(|at| at.after(new_us));
        is_first && until.is_none_or(|until| self.now < until)
    }

    /// Whether another supervisor of the base zone has started before the local node.
    fn has_older_supervisor(&self) -> bool {
        let base = &self.levels[0];
        let supervisors = base.by_supervisors().filter(|(id, _)| base.sees(*id));
        let supervisors = supervisors.filter_map(|(id, _)| base.engine.member(id));
        let mut started = supervisors.map(|member| member.version().incarnation);
        started.any(|incarnation| incarnation < self.config.incarnation)
    }

    fn count_open(&self) -> usize {
        let verdicts = self.verdicts.values();
        verdicts.filter(|verdict| verdict.is_open()).count()
    }

    /// Whether the ranks were told that a zone has failed, and the two sides have not met since.
    pub(super) fn is_on_other_side(&self, zone: ZoneId) -> bool {
        let verdict = self.verdicts.get(&super::zone_number(zone));
        verdict.is_some_and(ZoneVerdict::is_open)
    }

    /// Whether the local zone, as one that judges others, has told its ranks that a zone failed. A zone that is outcast
    /// does not judge, nor do its verdicts from before count.
    pub(super) fn has_told(&self, zone: u32) -> bool {
        let counts = |verdict: &ZoneVerdict| !verdict.is_settled && !self.has_gone_over(verdict);
        !self.is_just_outcast() && self.verdicts.get(&zone).is_some_and(counts)
    }

    /// Settles the verdicts on zones that are there again. Returns whether one was wrong and the local side weaker.
    fn settle_verdicts(&mut self) -> bool {
        let (now, known_us) = (self.now, self.deadlines(KNOWN_DEADLINES));
        let side_us = self.deadlines(SIDE_DEADLINES);
        let hold_us = self.deadlines(HOLD_DEADLINES);
        let mut was_weak = false;
        let (mut back, mut settled) = (Vec::new(), Vec::new());
        let still_failed: BTreeSet<u32> = self.stated_failed().map(|(zone, _)| zone).collect();
        for (number, verdict) in &self.verdicts {
            let (number, told) = (*number, self.told.zones.get(*number));
            let Some(state) = told else {
                continue;
            };
            // The local node may be the first of the zone's supervisors that holds it failed.
            let is_first = now < verdict.at.after(hold_us) && still_failed.contains(&number);
            let since = match state.is_failed || is_first {
                true => None,
                false => verdict.back_since.or(Some(now)),
            };
            back.push((number, since));
            let is_late = since.is_some_and(|since| now >= since.after(known_us));
            let is_later = match verdict.declared {
                // It failed with a zone above it: the verdict on that one decides.
                0 => Some(true),
                _ => state.life.is_later_than(verdict.of),
            };
            let is_known = is_later.is_some() || is_late;
            // One zone may have counted wrongly, the more so if its nodes have just started. What becomes of the other
            // zones of its side is known a little later.
            let (least, most) = self.fall_of(verdict);
            let was_side_weak = !self.has_gone_over(verdict) && self.is_side_outcast(&verdict.side);
            let is_weak = self.is_weak(least, most) || was_side_weak;
            let is_open = !is_weak && since.is_some_and(|since| now < since.after(side_us));
            if since.is_some() && is_known && !is_open && !verdict.is_settled {
                settled.push(number);
                // If the zone has been outcast since the verdict, its ranks know that it was wrong.
                let is_old = is_later.is_none() && verdict.at <= self.outcast_at;
                was_weak |= is_weak && is_later != Some(true) && !is_old;
            }
        }
        for (number, since) in back {
            self.note_back(number, since);
        }
        for number in settled {
            if let Some(verdict) = self.verdicts.get_mut(&number) {
                verdict.is_settled = true;
            }
        }
        self.verdicts.retain(|_, verdict| {
            let is_late = |since: Instant| now >= since.after(known_us);
            !verdict.is_settled || !verdict.back_since.is_some_and(is_late)
        });
        was_weak
    }

    /// Notes since when the zone of a verdict is there again, and with how many nodes the local side has met it.
    fn note_back(&mut self, number: u32, since: Option<Instant>) {
        let Some(at) = self.verdicts.get(&number).map(|verdict| verdict.at) else {
            return;
        };
        let has_met = since == Some(self.now);
        let met = has_met.then(|| (self.nodes_before(), self.later_fall(at, &self.met_at())));
        let Some(verdict) = self.verdicts.get_mut(&number) else {
            return;
        };
        verdict.back_since = since;
        if let Some((nodes, later)) = met {
            (verdict.nodes_before, verdict.later) = (nodes, later);
        }
    }

    /// Notes how often the base zone was declared failed. Returns whether that is new and the local side was weaker.
    ///
    /// Each supervisor that saw the split judges for itself: the first to hear may be one that did not run meanwhile.
    fn count_declarations_of_base(&mut self, own: &mut Outcast) -> bool {
        let child = self.levels[1].children.get(&self.levels[0].zone.number);
        let (declared, of) = child.map_or((0, 0), |child| (child.state.declared, child.state.of));
        let Some(is_later) = self.levels[0].outcast.life.is_later_than(of) else {
            return false;
        };
        let seen = self.declared_seen.unwrap_or(own.known);
        self.declared_seen = Some(seen.max(declared));
        own.known = own.known.max(declared);
        if declared > seen && !is_later {
            let (least, most) = self.recent_fall();
            if self.is_weak(least, most) {
                return true;
            }
            // What is counted already is not counted again when that is long ago.
            self.overruled_since = (!self.is_just_outcast()).then_some(self.now);
        }
        self.is_overruled()
    }

    /// The nodes of the local side shortly before now, when views may merge.
    fn nodes_before(&self) -> u32 {
        let hold_us = self.deadlines(HOLD_DEADLINES);
        self.reach
            .total_at(Instant(self.now.0.saturating_sub(hold_us)))
    }

    /// The fall that counts for a verdict: that of its time, unless the zone has gone over to another side since.
    fn fall_of(&self, verdict: &ZoneVerdict) -> (u32, u32) {
        match self.has_gone_over(verdict) {
            true => (self.alive_at(verdict), self.map.directory().len() as u32),
            false => deepest([(verdict.least, verdict.most), verdict.later].into_iter()),
        }
    }

    /// The deepest fall around a verdict of this time, or since then if it has just ended. One that began later and
    /// ended earlier was part of another split.
    fn later_fall(&self, at: Instant, met: &[Instant]) -> (u32, u32) {
        let split_us = self.deadlines(SPLIT_DEADLINES);
        let begin = at.0.saturating_sub(split_us);
        let shortly_before = Instant(self.now.0.saturating_sub(split_us));
        let hold_us = self.deadlines(HOLD_DEADLINES);
        self.reach
            .fall(Instant(begin), self.now, hold_us, met, (at, shortly_before))
    }

    /// Whether the zone was outcast after a verdict, and has gone over to the side with most nodes of the job. Its side
    /// of the time, which was outcast with it, does not count for the verdict any more either.
    fn has_gone_over(&self, verdict: &ZoneVerdict) -> bool {
        let nodes = self.map.directory().len() as u32;
        verdict.at <= self.outcast_at && 2 * self.alive_at(verdict) > nodes
    }

    /// The nodes of the local side before the zone of a verdict was back, or now.
    fn alive_at(&self, verdict: &ZoneVerdict) -> u32 {
        match verdict.back_since {
            None => self.nodes_before(),
            Some(_) => verdict.nodes_before,
        }
    }

    /// When what may have led to a declaration that is known now began.
    pub(super) fn past(&self) -> Instant {
        Instant(self.now.0.saturating_sub(self.deadlines(PAST_DEADLINES)))
    }

    /// The deepest fall that lasted until shortly before the zone learned that it was declared failed, after it was
    /// outcast last.
    pub(super) fn recent_fall(&self) -> (u32, u32) {
        let mut met = self.met_at();
        met.extend(self.overruled_since);
        let hold_us = self.deadlines(HOLD_DEADLINES);
        let since = self.past().max(self.outcast_at);
        let learned_at = self.overruled_since.unwrap_or(self.now);
        let shortly_before = learned_at.0.saturating_sub(self.deadlines(SPLIT_DEADLINES));
        let lasting = (Instant::default(), Instant(shortly_before));
        self.reach.fall(since, self.now, hold_us, &met, lasting)
    }

    /// When the sides of splits met whose verdicts are not settled: when each of their zones was back, or now. There
    /// may be two splits at once.
    fn met_at(&self) -> Vec<Instant> {
        let open = self.verdicts.values().filter(|one| one.is_open());
        let mut met: Vec<Instant> = open.filter_map(|one| one.back_since).collect();
        if met.is_empty() {
            met.push(self.now);
        }
        met
    }

    /// When a verdict has to be settled at the latest.
    pub(super) fn next_settlement(&self) -> Instant {
        let back = self
            .verdicts
            .values()
            .filter_map(|verdict| verdict.back_since);
        let known_us = self.deadlines(KNOWN_DEADLINES);
        let side_us = self.deadlines(SIDE_DEADLINES);
        let settled = back.flat_map(|since| [since.after(known_us), since.after(side_us)]);
        let settled = settled.filter(|at| *at > self.now);
        // The side may have become weaker until then.
        let split_us = self.deadlines(SPLIT_DEADLINES);
        let verdicts = self.verdicts.values();
        let counted = verdicts.map(|verdict| verdict.at.after(split_us));
        let overruled = self.overruled_from().into_iter();
        let next = settled.chain(counted.chain(overruled).filter(|at| *at > self.now));
        next.fold(Instant::NEVER, Instant::min)
    }

    /// Notes when the zone is counted as outcast by its other supervisors, or counted with the local node, which has
    /// started since.
    fn notice_outcast(&mut self) {
        let base = &self.levels[0];
        let Some(told) = base.outside.outcasts.get(&base.zone.level) else {
            return;
        };
        let of = |outcast: &Outcast| (outcast.count, outcast.newest);
        let counted = of(told).max(of(&base.outcast));
        // What was before the local node started is not of a split that it has seen.
        let Some((count, newest)) = self.outcast_seen.replace(counted) else {
            return;
        };
        let started = self.config.incarnation;
        let has_started_since = newest < started && started <= counted.1;
        if count < counted.0 || has_started_since {
            self.outcast_at = self.now;
        }
    }

    /// Whether the zone has been counted as outcast for this split: each of its supervisors finds out, and once more
    /// for each zone of the other side that is back.
    fn is_just_outcast(&self) -> bool {
        let last = self.outcast_at.max(self.weak_at);
        let until = last.after(self.deadlines(2 * SPLIT_DEADLINES));
        self.outcast_at != Instant::default() && self.now < until
    }

    fn note_verdicts(&mut self) {
        let told = self.told.those(|state| state.is_failed);
        let failed: BTreeMap<u32, ZoneState> = self.stated_failed().chain(told).collect();
        if failed.is_empty() && self.verdicts.is_empty() {
            return;
        }
        let split_us = self.deadlines(SPLIT_DEADLINES);
        let since = Instant(self.now.0.saturating_sub(split_us));
        // A fall that did not last may be over before the sides meet.
        let told = match self.is_new() {
            true => self.fall_by_others(),
            false => (0, 0),
        };
        self.follow_falls(told);
        let (mut least, mut most) = deepest([self.fall(since, &[]), told].into_iter());
        // A new supervisor does not know when the zones failed. Those before it do.
        let begins_until = self.levels[1].began_at;
        let begins_until = begins_until.after(self.deadlines(FIND_DEADLINES));
        let base = self.levels[0].zone.level;
        let known = self.levels[0].outside.outcasts.get(&base);
        let known = known.map(|known| (known.least, known.most));
        if let Some(known) =
            known.filter(|known| self.now < begins_until && is_deeper(*known, (least, most)))
        {
            (least, most) = known;
        }
        let away = self.told.those(|state| state.is_failed || state.is_absent);
        let away: BTreeSet<u32> = away.map(|(zone, _)| zone).collect();
        for verdict in self.verdicts.values_mut().filter(|one| !one.is_settled) {
            verdict.side.retain(|zone, _| !away.contains(zone));
        }
        let hold_us = self.deadlines(HOLD_DEADLINES);
        let mut side = self.side();
        // One that was cut off shortly before and is back may be outcast for what it saw there.
        side.retain(|zone, _| !away.contains(zone) && !self.reach.was_gone(*zone, since, hold_us));
        for (number, state) in failed {
            let verdict = ZoneVerdict {
                at: self.now,
                declared: state.declared,
                of: state.of,
                least,
                most,
                later: (0, 0),
                back_since: None,
                nodes_before: 0,
                is_settled: false,
                side: side.clone(),
            };
            // One that was back and was declared failed again is judged anew.
            match self.verdicts.get(&number) {
                Some(held) if state.declared <= held.declared => {}
                Some(held) if held.back_since.is_none() && !held.is_settled => {}
                _ => _ = self.verdicts.insert(number, verdict),
            }
        }
    }

    /// Notes what the local side has lost shortly after its verdicts. `told` is a fall that others have told of.
    fn follow_falls(&mut self, told: (u32, u32)) {
        let split_us = self.deadlines(SPLIT_DEADLINES);
        let hold_us = self.deadlines(HOLD_DEADLINES);
        let since = Instant(self.now.0.saturating_sub(split_us));
        for verdict in self.verdicts.values_mut() {
            if self.now > verdict.at.after(split_us) {
                continue;
            }
            let fall = |since, lasting| self.reach.fall(since, self.now, hold_us, &[], lasting);
            let begun_before = fall(since, (verdict.at, Instant::NEVER));
            let falls = [(verdict.least, verdict.most), told, begun_before];
            (verdict.least, verdict.most) = deepest(falls.into_iter());
            if verdict.back_since.is_none() {
                verdict.later = fall(verdict.at, (verdict.at, since));
            }
        }
    }

    /// The zones that the local node itself states to have failed, as a supervisor, by number. Supervisors that change
    /// their minds one after the other may agree for a moment, as members see it.
    fn stated_failed(&self) -> impl Iterator<Item = (u32, ZoneState)> {
        let base = &self.levels[0];
        let stated = base.outside_from.get(&base.engine.id());
        stated
            .into_iter()
            .flat_map(|one| one.states.those(|state| state.is_failed))
    }

    /// The deepest fall of the number of nodes that are alive since a time: one that lasted, or went on until the sides
    /// met.
    fn fall(&self, since: Instant, met: &[Instant]) -> (u32, u32) {
        let hold_us = self.deadlines(HOLD_DEADLINES);
        let lasting = (self.now, self.now);
        self.reach.fall(since, self.now, hold_us, met, lasting)
    }

    /// Whether a side that saw so many of the nodes before was the weaker one.
    fn is_weak(&self, least: u32, most: u32) -> bool {
        let has_first = self.levels[0].zone == FIRST || !self.is_on_other_side(FIRST);
        match (2 * least).cmp(&most) {
            _ if most == 0 => false,
            core::cmp::Ordering::Less => true,
            core::cmp::Ordering::Equal => !has_first,
            core::cmp::Ordering::Greater => false,
        }
    }
}
