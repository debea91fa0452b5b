//! Who takes part in the zone above.
//!
//! The members of a zone choose its supervisors by their weights among those in the view, without a message. Members
//! whose views differ for a moment choose more than two: that does no harm, as all that supervisors write is
//! idempotent. A member that is no longer chosen stays for a while, since its successor has to join first.

use std::sync::Arc;

use muster_protocol::planted::{self, Fault};
use muster_protocol::{Input, Instant, MemberId, Overlay, Phase, Policy, Reject};

use crate::directory::NodeIndex;
use crate::limits::SUPERVISORS;
use crate::map::ZoneId;
use crate::roles::{CANDIDATES, Role, candidates, choose};
use crate::tree::level::Level;
use crate::tree::{Tree, TreeEvent, zone_config};

/// A zone whose view is not complete counts as formed after this many deadlines, if the view has not changed for two.
/// Supervisors that were killed together and start again at once wait for that too, and their zone has to be in the
/// zone above before its guards declare it failed.
pub(super) const FORM_DEADLINES: u64 = 5;
/// A member that is alone in the zone above tries more addresses after this many deadlines.
const ALONE_DEADLINES: u64 = 10;
/// A member that is not chosen leaves the zone above after this many deadlines.
const SPARE_DEADLINES: u64 = 20;
/// Longest pause, in deadlines, between two turns in which a zone that is cut off seeks others.
const SEEK_MAX: usize = 10;
/// Nodes of other zones that are sought in one turn.
const SOUGHT: usize = 4;
/// Most addresses that are tried to find the zone above.
const SEEDS: usize = 64;

impl Tree {
    pub(super) fn deadlines(&self, count: u64) -> u64 {
        count * self.config.deadline_us
    }

    /// Reviews the roles, if views have changed or it is time. Returns whether anything was done.
    pub(super) fn review(&mut self) -> bool {
        let is_due = self.now >= self.review_at;
        let is_dirty = |level: &mut Level| core::mem::take(&mut level.is_dirty);
        let dirty = self.levels.iter_mut().map(is_dirty);
        if !dirty.fold(is_due, |any, one| any | one) {
            return false;
        }
        let mut is_changed = self.end_memberships();
        self.review_states();
        let mut level = 0;
        while level < self.levels.len() {
            is_changed |= self.review_membership(level);
            level += 1;
        }
        is_changed |= self.follow_invitation();
        self.review_at = self.next_review();
        is_changed
    }

    fn next_review(&self) -> Instant {
        let next = |level: &Level| {
            let forms = match level.has_formed || self.map.parent(level.zone).is_none() {
                true => Instant::NEVER,
                false => self.forms_at(level),
            };
            let spare = level.spare_since.map_or(Instant::NEVER, |since| {
                since.after(self.deadlines(SPARE_DEADLINES))
            });
            let further = match level.seeds_later.is_empty() {
                true => Instant::NEVER,
                false => level.began_at.after(self.deadlines(ALONE_DEADLINES)),
            };
            let found_by = self.found_by(level);
            let heard_by = self.heard_by(level);
            let ahead = [further, found_by, heard_by].into_iter();
            let ahead = ahead.filter(|at| *at > self.now);
            let next = ahead.fold(forms.min(spare), Instant::min);
            let next = level.gone.values().copied().fold(next, Instant::min);
            let next = next
                .min(level.meet_at)
                .min(level.seek_at)
                .min(level.publish_at);
            let next = next.min(self.next_teller(level));
            next.min(self.next_declaration(level))
        };
        let levels = self.levels.iter().map(next);
        let next = levels.fold(self.next_settlement(), Instant::min);
        let next = next.min(self.next_lost()).min(self.next_contradiction());
        let next = next.min(self.invited_until());
        let next = match self.base().phase() {
            Phase::Running => next.min(self.stops_at),
            _ => next,
        };
        // A step that could not be done now is tried again.
        match next <= self.now {
            true => self.now.after(self.config.heartbeat_us),
            false => next,
        }
    }

    fn forms_at(&self, level: &Level) -> Instant {
        let rests = level.view_changed_at.after(self.deadlines(2));
        rests.max(level.began_at.after(self.deadlines(FORM_DEADLINES)))
    }

    /// When a member that starts again has heard from the supervisors of its zone, if there are any.
    fn heard_by(&self, level: &Level) -> Instant {
        level.began_at.after(self.config.heartbeat_us / 2)
    }

    /// The members of the zone at this level that are to be its supervisors.
    fn choose_supervisors(&mut self, level: usize) -> Vec<MemberId> {
        let current = &self.levels[level];
        let choose = || {
            let candidates = current.live().map(|member| member.id());
            choose(
                Role::Supervisor,
                self.map.path(current.zone),
                candidates,
                SUPERVISORS,
            )
        };
        let chosen = current.chosen.clone().unwrap_or_else(choose);
        debug_assert_eq!(chosen, choose(), "the view has changed without an event");
        self.levels[level].chosen = Some(chosen.clone());
        chosen
    }

    /// Joins or leaves the zone above that of this level.
    fn review_membership(&mut self, level: usize) -> bool {
        let current = &self.levels[level];
        let Some(above) = self.map.parent(current.zone) else {
            return false;
        };
        if current.engine.phase() != Phase::Running {
            return false;
        }
        if !current.has_formed {
            // A zone that has been in the zone above has formed before.
            let has_been = current.has_outside && self.now >= self.found_by(current);
            let is_complete = current.engine.live() >= self.map.members(current.zone)
                && (current.has_outside || self.now >= self.heard_by(current));
            if !is_complete && !has_been && self.now < self.forms_at(current) {
                return false;
            }
            self.levels[level].has_formed = true;
            self.levels[level].is_dirty = true;
        }
        let chosen = self.choose_supervisors(level);
        // They are to know first what they report above.
        let engine = &mut self.levels[level].engine;
        engine.appoint_monitors(chosen.iter().copied());
        let current = &self.levels[level];
        let is_chosen = chosen.contains(&current.engine.id());
        let is_member = level + 1 < self.levels.len();
        let is_replacement = current.view_changed_at > current.began_at.after(self.deadlines(40));
        if is_replacement && planted::on(Fault::NoReplacement) {
            return false;
        }
        match (is_chosen, is_member) {
            (true, false) => return self.join_above(level, above),
            (false, true) => {
                let since = *self.levels[level].spare_since.get_or_insert(self.now);
                if self.now >= since.after(self.deadlines(SPARE_DEADLINES)) {
                    self.leave_above(level);
                }
            }
            _ => self.levels[level].spare_since = None,
        }
        false
    }

    pub(super) fn join_above(&mut self, level: usize, zone: ZoneId) -> bool {
        let base = self.base().version().incarnation;
        self.incarnation = self.incarnation.max(base) + 1;
        let mut config = self.config.clone();
        config.zone = zone_config(&self.map, zone);
        config.incarnation = self.incarnation;
        config.previous_incarnation = None;
        config.policy = Policy::Merge;
        config.random_seed ^= u64::from(zone.level) << 56;
        config.first_sequence = config.first_sequence.max(self.now.0);
        // Its other members above, and those that they have published, are on its side, if there is a split above.
        let (mut seeds, mut later) = (self.colleagues(level), Vec::new());
        seeds.extend(self.levels[level].outside.contacts.iter().cloned());
        match seeds.is_empty() {
            true => seeds = self.likely_members(level, zone),
            false => later = self.likely_members(level, zone),
        }
        config.seeds = seeds;
        // A configuration that is good for the base zone is good here too.
        let Ok(mut engine) = Overlay::new(config) else {
            return false;
        };
        engine.expect_lateness(self.lateness_us);
        if engine.handle(self.now, Input::Wake).is_err() {
            return false;
        }
        let mut above = Level::new(zone, engine.into(), self.now);
        above.seeds_later = later;
        if !planted::on(Fault::HandoverIgnored) {
            self.hand_over(level, &mut above);
        }
        self.levels[level].spare_since = None;
        self.levels.push(above);
        self.is_reach_dirty = true;
        self.report_all(level + 1);
        self.relay_all(level);
        let current = &mut self.levels[level];
        if let Some(known) = current.outside.outcasts.get(&current.zone.level) {
            // The supervisors before this one may all have died: it tells what they told.
            current.outcast = *known;
        }
        if level == 0 {
            self.note_rank();
        }
        self.tell(TreeEvent::Promoted { zone });
        true
    }

    /// Tries more addresses if nobody has answered at those that were published.
    pub(super) fn look_further(&mut self, level: usize) {
        let own = self.levels[level - 1].zone.number;
        let at = self.levels[level]
            .began_at
            .after(self.deadlines(ALONE_DEADLINES));
        if self.levels[level].seeds_later.is_empty()
            || !self.levels[level].is_alone(own)
            || self.now < at
        {
            return;
        }
        let now = self.now;
        for address in core::mem::take(&mut self.levels[level].seeds_later) {
            let input = Input::Seed { address: &address };
            // The engine keeps as many as it can.
            let _ = self.levels[level].engine.handle(now, input);
        }
    }

    /// Seeks members of other zones while there are none in the view. Where all supervisors of the local zone were
    /// replaced during a cut, neither side knows members of the other that still run. The pauses grow each time that
    /// all have been asked.
    pub(super) fn seek(&mut self, level: usize) {
        let (now, own) = (self.now, self.levels[level - 1].zone.number);
        let current = &mut self.levels[level];
        if !current.is_alone(own) {
            (current.seek_at, current.sought) = (Instant::NEVER, 0);
            return;
        }
        let first = current
            .began_at
            .after(ALONE_DEADLINES * self.config.deadline_us);
        if current.seek_at == Instant::NEVER {
            current.seek_at = first.max(now);
        }
        if now < current.seek_at {
            return;
        }
        let (turn, zone) = (current.sought, current.zone);
        current.sought += SOUGHT;
        let addresses = self.likely_members(level - 1, zone);
        let rounds = turn / addresses.len().max(1);
        let pause_us = self.deadlines((1 + rounds).min(SEEK_MAX) as u64);
        self.levels[level].seek_at = now.after(pause_us);
        let due = addresses.iter().cycle().skip(turn % addresses.len().max(1));
        for address in due.take(SOUGHT.min(addresses.len())) {
            // It is refused only if the engine has stopped.
            let input = Input::Contact { address };
            let _ = self.levels[level].engine.handle(now, input);
        }
    }

    /// Takes the address of a node. A node of the base zone is a seed of it; one that takes part in a zone above
    /// while all nodes are alive is a seed there.
    ///
    /// # Errors
    /// The engine of the base zone refused the seed. The address was stored.
    pub fn note_contact(
        &mut self,
        now: Instant,
        node: NodeIndex,
        address: &[u8],
    ) -> Result<(), Reject> {
        let contacts = Arc::make_mut(&mut self.contacts);
        let place = node.0 as usize;
        if contacts.len() <= place {
            contacts.resize(place + 1, Vec::new());
        }
        if contacts[place] == address {
            return Ok(());
        }
        contacts[place] = address.to_vec();
        let zones: Vec<ZoneId> = self.map.zones_of(node).collect();
        for level in 1..self.levels.len() {
            let above = self.levels[level].zone;
            let child = zones.iter().find(|zone| zone.level + 1 == above.level);
            let is_below = |child: &&ZoneId| {
                self.map.parent(**child) == Some(above) && **child != self.levels[level - 1].zone
            };
            let child = child.filter(is_below).copied();
            if child.is_some_and(|child| candidates(&self.map, child, CANDIDATES).contains(&node)) {
                // The engine keeps as many as it can.
                let _ = self.levels[level]
                    .engine
                    .handle(now, Input::Seed { address });
            }
        }
        match zones.first() == Some(&self.levels[0].zone) && node != self.node {
            true => self.handle(now, Input::Seed { address }),
            false => Ok(()),
        }
    }

    /// Addresses of the other members of the zone at this level that are members of the zone above.
    fn colleagues(&self, level: usize) -> Vec<Vec<u8>> {
        let level = &self.levels[level];
        let others = level.by_supervisors().filter(|(id, _)| level.sees(*id));
        let address = |(id, _)| Some(level.engine.member(id)?.address().to_vec());
        let addresses = others.filter_map(address);
        addresses.collect()
    }

    /// Addresses of the members that the other zones choose while all their nodes are alive.
    fn likely_members(&self, level: usize, zone: ZoneId) -> Vec<Vec<u8>> {
        let own = self.levels[level].zone;
        let mut seeds: Vec<Vec<u8>> = Vec::new();
        let others = self.map.children(zone).filter(|child| *child != own);
        for node in others.flat_map(|child| candidates(&self.map, child, CANDIDATES)) {
            let address = self.contacts.get(node.0 as usize);
            let is_new = |address: &&Vec<u8>| !address.is_empty() && !seeds.contains(*address);
            if let Some(address) = address.filter(is_new) {
                let address = address.clone();
                seeds.push(address);
            }
            if seeds.len() >= SEEDS {
                break;
            }
        }
        seeds
    }

    /// Leaves the zone above that of this level, and all above it.
    fn leave_above(&mut self, level: usize) {
        let now = self.now;
        let above = self.levels[level + 1..].iter_mut();
        for above in above.filter(|above| above.engine.phase() == Phase::Running) {
            // It is refused only if the engine has stopped.
            let _ = above.engine.handle(now, Input::Leave { exit_code: 0 });
        }
    }

    /// Removes memberships that have ended, and withdraws what the local node has published for them.
    fn end_memberships(&mut self) -> bool {
        let mut is_changed = false;
        while self.levels.len() > 1
            && self.base().phase() == Phase::Running
            && let Some(last) = self
                .levels
                .pop_if(|last| last.engine.phase() == Phase::Stopped)
        {
            self.incarnation = self.incarnation.max(last.engine.version().incarnation);
            let below = self.levels.len() - 1;
            self.withdraw_copies(below);
            self.withdraw_outside(below);
            self.tell(TreeEvent::Demoted { zone: last.zone });
            is_changed = true;
        }
        is_changed
    }
}
