//! The census: what every node knows about the zones outside of its own.
//!
//! A member of the zone above knows the zones beside its own from the view there (`guard`), what is below them from
//! what their members publish, and what is beside the zone above from what is published there. It publishes all of it
//! in its own zone. Where several members tell about the same zone, it has failed if all of them say so.

use std::collections::BTreeSet;

use muster_protocol::{
    Input, Instant, KeyHandle, LedgerKey, MemberId, MemberView, NodeState, Phase, Policy,
};
use muster_sorted::SortedMap;

use crate::directory::NodeIndex;
use crate::map::ZoneId;
use crate::roles::{Role, choose};
use crate::tree::level::{Child, Level};
use crate::tree::publication::{BELOW_KEY, CONTACTS_MAX, OUTSIDE_KEY, Publication};
use crate::tree::states::{ZoneState, ZoneStates, ancestors};
use crate::tree::supervision::FORM_DEADLINES;
use crate::tree::{Tree, TreeEvent, zone_of_number};

/// The publications of a member that has failed count for this many deadlines.
const LINGER_DEADLINES: u64 = 2;
/// A member publishes in a zone again after this part of a heartbeat: zones that become known one after the other while
/// a job starts are not published one by one to all nodes.
const PAUSE_PARTS: u64 = 4;

impl Tree {
    /// Takes an attribute that a tree has published in the zone at this level. Returns whether it was one.
    pub(super) fn take_publication(
        &mut self,
        level: usize,
        member: MemberId,
        key: KeyHandle,
    ) -> bool {
        let engine = &self.levels[level].engine;
        let Some(key) = engine.changed_key(key) else {
            return false;
        };
        let is_outside = key == OUTSIDE_KEY;
        if !is_outside && key != BELOW_KEY {
            return false;
        }
        let value = engine.attribute(member, key);
        let publication = value.and_then(|value| Publication::decode(&self.map, value));
        let now = self.now;
        let level = &mut self.levels[level];
        let is_gone = level.gone.contains_key(&member) && !level.sees(member);
        level.known_since.get_or_insert_with(member, || now);
        let publications = match is_outside {
            true => &mut level.outside_from,
            false => &mut level.below_from,
        };
        match publication {
            Some(publication) => publications.insert(member, publication),
            // The attributes of a member that is held failed are dropped.
            None if is_gone => None,
            None => publications.remove(&member),
        };
        level.is_dirty = true;
        true
    }

    /// Brings what is known about other zones up to date on all levels, and publishes it.
    pub(super) fn review_states(&mut self) {
        for level in 0..self.levels.len() {
            self.levels[level].publish_at = Instant::NEVER;
            self.forget_gone(level);
        }
        for level in 1..self.levels.len() {
            if self.levels[level].engine.phase() == Phase::Running {
                self.take_reminders(level - 1);
                self.review_children(level);
            }
        }
        for level in 0..self.levels.len() {
            self.find_life(level);
        }
        for level in (0..self.levels.len()).rev() {
            match self.levels.get(level + 1).map(is_running) {
                Some(true) => self.publish_outside(level),
                Some(false) => self.publish_outcast(level),
                None => {}
            }
            self.follow_outside(level);
        }
        self.remind();
        for level in 1..self.levels.len() {
            if is_running(&self.levels[level]) {
                self.publish_below(level);
            }
        }
        self.tell_states();
        self.report_lost();
        self.settle_contradictions();
        self.settle();
        self.tell_outcasts();
        self.stop_if_due();
    }

    /// Publishes, in the zone at this level, what the local node knows about the others as a member of the zone above.
    fn publish_outside(&mut self, level: usize) {
        let (own, above) = (&self.levels[level], &self.levels[level + 1]);
        let mut outcasts = above.outside.outcasts.clone();
        outcasts.insert(above.zone.level, above.outcast);
        outcasts.insert(own.zone.level, own.outcast);
        let mut states = above.outside.states.clone();
        states.extend(self.states_below(level + 1, own.zone, false));
        let publication = Publication {
            contacts: self.contacts_above(level),
            outcasts,
            states,
            ..Publication::default()
        };
        self.publish(level, OUTSIDE_KEY, publication);
    }

    /// Publishes that the zone at this level is outcast, as a member that is about to leave the zone above: nobody else
    /// may have seen the split.
    fn publish_outcast(&mut self, level: usize) {
        let own = &self.levels[level];
        if let Some(published) = own.outside_from.get(&own.engine.id()) {
            let mut publication = published.clone();
            publication.outcasts.insert(own.zone.level, own.outcast);
            self.publish(level, OUTSIDE_KEY, publication);
        }
    }

    /// Publishes, in the zone at this level, what the local node knows about the zones below its own, and the
    /// declarations.
    fn publish_below(&mut self, level: usize) {
        let mut states = self.below(level - 1);
        states.extend(self.declarations(level));
        let below = &self.levels[level - 1];
        let publication = Publication {
            has_formed: self.levels[0].has_formed,
            outcasts: [(below.zone.level, below.outcast)].into_iter().collect(),
            states,
            ..Publication::default()
        };
        self.publish(level, BELOW_KEY, publication);
    }

    pub(super) fn publish(&mut self, level: usize, key: &[u8], publication: Publication) {
        let now = self.now;
        let pause_us = self.config.heartbeat_us / PAUSE_PARTS;
        let level = &mut self.levels[level];
        let own = level.engine.id();
        let publications = match key == OUTSIDE_KEY {
            true => &mut level.outside_from,
            false => &mut level.below_from,
        };
        if publications.get(&own) == Some(&publication) {
            return;
        }
        let next = level.published_at.after(pause_us);
        if level.published_at < now && now < next {
            level.publish_at = next;
            return;
        }
        level.published_at = now;
        let value = publication.encode();
        let input = Input::Publish { key, value: &value };
        match level.engine.handle(now, input) {
            Ok(()) => _ = publications.insert(own, publication),
            Err(_) => self.reports_refused += 1,
        }
    }

    /// Addresses of members of the zone above that of this level, of other zones. Those that were published and are
    /// alive stay, so that few changes are news in the zone.
    fn contacts_above(&self, level: usize) -> Vec<Vec<u8>> {
        let (own, above) = (&self.levels[level], &self.levels[level + 1]);
        // Both are in the order of the ids.
        let mut origins = above.origins.iter().peekable();
        let is_other = |member: &MemberView<'_>| {
            while origins.next_if(|(id, _)| *id < member.id()).is_some() {}
            let origin = origins.next_if(|(id, _)| *id == member.id());
            origin.is_some_and(|(_, number)| *number != own.zone.number)
        };
        let others = above.engine.members().filter(is_other);
        let addresses: Vec<&[u8]> = others.map(|member| member.address()).collect();
        let published = own.outside_from.get(&own.engine.id());
        let published = published.map_or(&[][..], |published| &published.contacts);
        let kept = published.iter().map(Vec::as_slice);
        let mut contacts: Vec<&[u8]> = kept.filter(|one| addresses.contains(one)).collect();
        for address in addresses {
            if contacts.len() == CONTACTS_MAX {
                break;
            }
            if !contacts.contains(&address) {
                contacts.push(address);
            }
        }
        contacts.into_iter().map(<[u8]>::to_vec).collect()
    }

    /// Takes over what the supervisors of the zone at this level have published. What none of them knows stays.
    fn follow_outside(&mut self, level: usize) {
        let current = &self.levels[level];
        if current.outside_from.is_empty() {
            return;
        }
        let mut states = current.by_supervisors().map(|(_, one)| &one.states);
        let first = states.next().cloned().unwrap_or_default();
        let mut agreed = states.fold(first, |one, other| one.agree(other, &self.map, None));
        let own = current.engine.id();
        let has_just_come = |id: &MemberId| *id != own && self.has_just_come(current, *id);
        if current.outside_from.keys().any(has_just_come) {
            agreed.keep_unfailed(&current.outside.states);
        }
        let mut outside = current.outside.clone();
        agreed.keep_missing(&outside.states, &self.map);
        outside.states.zones.extend(&agreed.zones);
        outside.states.missing = agreed.missing;
        for outcast in outside.outcasts.values_mut() {
            (outcast.least, outcast.most) = (0, 0);
        }
        let published = current.outside_from.values();
        for (of, outcast) in published.flat_map(|one| one.outcasts.iter()) {
            let held = outside.outcasts.get_or_default(*of);
            held.merge(*outcast);
        }
        let members = current.by_supervisors().map(|(id, _)| id);
        let first = choose(Role::Supervisor, self.map.path(current.zone), members, 1);
        let first = current.by_supervisors().find(|(id, _)| first.contains(id));
        if let Some((_, first)) = first.filter(|(_, first)| !first.contacts.is_empty()) {
            outside.contacts.clone_from(&first.contacts);
        }
        let has_other = current.outside_from.keys().any(|id| *id != own);
        let is_old = self.now >= current.began_at.after(self.deadlines(FORM_DEADLINES));
        let current = &mut self.levels[level];
        current.outside = outside;
        current.has_outside |= has_other || is_old;
    }

    /// The nodes of the base zone that its members do not know, once it has formed.
    pub(super) fn missing(&self) -> BTreeSet<u32> {
        let base = &self.levels[0];
        // Where the ledger says what became of one, others may not know that before they know that the zone is back.
        let is_missing = |(_, id): &(&NodeIndex, &MemberId)| base.engine.member(**id).is_none();
        let missing = self
            .ids
            .iter()
            .filter(|_| base.has_formed)
            .filter(is_missing);
        missing.map(|(node, _)| node.0).collect()
    }

    /// What a new member of the zone above that of this level knows beforehand.
    pub(super) fn hand_over(&self, level: usize, above: &mut Level) {
        let known = &self.levels[level].outside;
        above.children = self.children_of(above.zone, &known.states);
        above.outside.states = known.states.outside(&self.map, above.zone);
        above.has_outside = !above.outside.states.zones.is_empty();
        let outcasts = known.outcasts.iter();
        let outcasts = outcasts.filter(|(of, _)| **of >= above.zone.level);
        above.outside.outcasts = outcasts.map(|(of, outcast)| (*of, *outcast)).collect();
    }

    /// The zones below `above`, as others know them.
    pub(super) fn children_of(&self, above: ZoneId, known: &ZoneStates) -> SortedMap<u32, Child> {
        let zones = known.iter(&self.map);
        let zones = zones.filter(|(zone, _)| self.map.parent(*zone) == Some(above));
        let children = zones.map(|(zone, state)| {
            let child = Child {
                absent_since: Some(self.now),
                state: ZoneState {
                    is_absent: false,
                    ..state
                },
                below: known.below(&self.map, zone),
                ..Child::default()
            };
            (zone.number, child)
        });
        children.collect()
    }

    /// Withdraws what the local node has published as a member of a zone above that of this level.
    pub(super) fn withdraw_outside(&mut self, level: usize) {
        let now = self.now;
        let level = &mut self.levels[level];
        level.outside_from.remove(&level.engine.id());
        // It is refused if the engine has stopped, or if nothing was published.
        let _ = level
            .engine
            .handle(now, Input::Withdraw { key: OUTSIDE_KEY });
    }

    /// Tells the host which zones and nodes outside of the base zone have another state.
    ///
    /// Of a base zone nothing is told until it has formed: it does not know yet which of its nodes run.
    fn tell_states(&mut self) {
        let states = &self.levels[0].outside.states;
        let formed = states
            .zones
            .filter_map(|state| state.has_formed.then_some(()));
        self.formed.extend(&formed);
        let states = states.of_formed(&self.map, &self.formed);
        if self.told == states {
            return;
        }
        let changed = states.zones.merge(&self.told.zones, |new, old| {
            (new.is_some() && new != old).then_some(())
        });
        let changed = changed.iter().map(|(number, ())| number);
        let zones: Vec<ZoneId> = changed
            .filter_map(|number| zone_of_number(&self.map, number))
            .collect();
        let failed_before: Vec<_> = zones.iter().map(|zone| self.has_failed(*zone)).collect();
        let before = core::mem::replace(&mut self.told, states);
        self.keep_failed();
        let with_status = self.nodes_with_status();
        for (zone, had_failed) in zones.into_iter().zip(failed_before) {
            let has_failed = self.has_failed(zone);
            let is_below_failed = || {
                let mut above = ancestors(&self.map, zone);
                above.any(|above| self.has_failed(above) == Some(true))
            };
            if has_failed != had_failed && !(has_failed == Some(true) && is_below_failed()) {
                let state = match has_failed {
                    Some(true) => NodeState::Failed,
                    _ => NodeState::Alive,
                };
                self.tell(TreeEvent::Zone { zone, state });
                self.note_degraded_of(zone, &with_status);
            }
        }
        self.note_missing(&before);
        let nodes = before
            .missing
            .symmetric_difference(&self.told.missing)
            .copied();
        let base = &self.levels[0].engine;
        let is_stated = |node: &u32| base.ledger_entry(LedgerKey::Node(*node)).is_some();
        for node in nodes.filter(|node| !is_stated(node)).collect::<Vec<_>>() {
            self.tell_node(NodeIndex(node));
        }
        self.is_reach_dirty = true;
    }

    /// Tells the host the state of a node outside of the base zone.
    pub(super) fn tell_node(&mut self, node: NodeIndex) {
        let Some(state) = self.node_state(node) else {
            return;
        };
        // That an alive node is degraded is told as an event of its own.
        let state = match state {
            NodeState::Degraded => NodeState::Alive,
            other => other,
        };
        // Where its zone has failed, the host was told that of all nodes.
        let has_failed = |zone| self.has_failed(zone) == Some(true);
        let is_known = self.map.zones_of(node).any(has_failed);
        if state != NodeState::Failed || !is_known {
            self.tell(TreeEvent::Node { node, state });
        }
        self.note_degraded(node);
    }

    /// Tells the host if zones of the local node have become outcast since it was told last.
    fn tell_outcasts(&mut self) {
        let is_stop = self.config.policy == Policy::Stop;
        if !self.levels[0].has_outside {
            return;
        }
        let outcasts = self.levels[0].outside.outcasts.clone();
        let counts = outcasts.iter();
        let counts = counts.map(|(level, outcast)| (*level, (outcast.count, outcast.newest)));
        let counts = counts.collect();
        let before = match self.outcasts_told.replace(counts) {
            Some(before) => before,
            // Those nodes of the zone that run are about to stop.
            None if is_stop => SortedMap::new(),
            // What happened before the local node started.
            None => return,
        };
        for (level, outcast) in outcasts {
            let (count, newest) = before.get(&level).copied().unwrap_or_default();
            let started = self.config.incarnation;
            // A node that has started since learns of it late if it has met those that were there late.
            let is_new = count < outcast.count && (is_stop || started <= outcast.newest);
            // Or it has started on the weaker side since, which is known now.
            let has_started_since = newest < started && started <= outcast.newest;
            let is_new = is_new || (outcast.count > 0 && has_started_since);
            let zone = self.map.zones_of(self.node).nth(usize::from(level));
            if let Some(zone) = zone.filter(|_| is_new && !self.is_stopping()) {
                self.tell(TreeEvent::Outcast { zone });
                self.stop_soon();
            }
        }
    }

    /// A member is no longer in the view of the zone at this level. If it has failed, its publications count for a
    /// while: when the sides of a split merge, members that are alive may be held failed for a moment.
    pub(super) fn member_is_gone(&mut self, level: usize, member: MemberId, has_failed: bool) {
        let until = self.now.after(self.deadlines(LINGER_DEADLINES));
        let level = &mut self.levels[level];
        match has_failed {
            true => _ = level.gone.insert(member, until),
            false => level.forget_publications(member),
        }
    }

    /// Forgets the publications of members that have been gone for long, or are back without them: after a new start.
    pub(super) fn forget_gone(&mut self, level: usize) {
        let now = self.now;
        let level = &mut self.levels[level];
        let over = level.gone.iter().filter(|(_, until)| now >= **until);
        for id in over.map(|(id, _)| *id).collect::<Vec<_>>() {
            level.gone.remove(&id);
            let is_in_view = level.sees(id);
            let has = |key: &[u8]| is_in_view && level.engine.attribute(id, key).is_some();
            let (has_outside, has_below) = (has(OUTSIDE_KEY), has(BELOW_KEY));
            if !has_outside {
                level.outside_from.remove(&id);
            }
            if !has_below {
                level.below_from.remove(&id);
            }
            if !has_outside && !has_below {
                level.known_since.remove(&id);
            }
        }
    }
}

fn is_running(level: &Level) -> bool {
    level.engine.phase() == Phase::Running
}
