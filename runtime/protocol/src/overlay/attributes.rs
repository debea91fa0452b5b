//! Attributes on the overlay: Algorithm 2 of the paper over links that lose datagrams.
//!
//! - *Update*: a new version of a map is news on every link, acknowledged and repaired like all news. The
//!   first change after a quiet time is sent at once, later ones wait for tau. The digest of the view
//!   includes the newest version known, so a member that missed one is found.
//! - *Request*: a member that holds less asks the sender of the update, once, and again after a timeout. If
//!   that member is gone, or has no more either, all neighbours are asked.
//! - *Reply*: newer entries, in the order of writes, a window at a time.
//!
//! Deviations: a reply may be taken in parts (an entry counts when it is complete), and the version
//! reported to the application is always that of the map, because the application is told at once.

use crate::attributes::message::{Ask, Section};
use crate::attributes::{KEY_MAX, MAP_BYTES_MAX, MAP_VERSION_MAX, MONITORS_MAX, Taken, VALUE_MAX};
use crate::cause::CauseKind;
use crate::codec::Writer;
use crate::event::{EventKind, KeyHandle};
use crate::frame::Kind;
use crate::identity::MemberId;
use crate::interface::{Class, Phase, Route, Target};
use crate::overlay::Overlay;
use crate::overlay::outbox::Intent;
use crate::overlay::send::Written;
use crate::reject::Reject;
use crate::reporters::Reporters;
use crate::subjects::Subject;
use crate::time::Instant;
use crate::wire::Fact;

impl Overlay {
    /// The value of a member's attribute, as far as it was received; `None` after the member has left the
    /// view.
    #[must_use]
    pub fn attribute(&self, member: MemberId, key: &[u8]) -> Option<&[u8]> {
        self.attributes.map(member)?.get(key)
    }

    /// All attributes of a member, in the order of keys: key, value, and version of the write.
    pub fn attributes(&self, member: MemberId) -> impl Iterator<Item = (&[u8], &[u8], u64)> {
        let map = self.attributes.map(member);
        map.into_iter().flat_map(|map| map.iter())
    }

    /// The version up to which a member's attributes are held; 0 if there are none.
    #[must_use]
    pub fn attributes_version(&self, member: MemberId) -> u64 {
        self.attributes.version(member)
    }

    /// Memory of the attributes of all members, in bytes, incomplete ones included.
    #[must_use]
    pub fn attribute_bytes(&self) -> usize {
        self.attributes.bytes()
    }

    /// The key of an `AttributeChanged` event; the last 8192 are remembered.
    #[must_use]
    pub fn changed_key(&self, key: KeyHandle) -> Option<&[u8]> {
        self.attributes.changed_key(key)
    }

    /// The members that declared themselves monitors, and those that the host appointed.
    pub fn monitors(&self) -> impl Iterator<Item = MemberId> {
        let declared = &self.attributes.monitors;
        declared.union(&self.attributes.appointed).copied()
    }

    /// Makes these members monitors, beside those that declare themselves so.
    pub fn appoint_monitors(&mut self, members: impl Iterator<Item = MemberId>) {
        self.attributes.appointed = members.collect();
    }

    /// Writes or deletes a local attribute.
    pub(super) fn publish(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), Reject> {
        if key.is_empty() || key.len() > KEY_MAX {
            return Err(Reject::KeyLength);
        }
        if value.is_some_and(|value| value.len() > VALUE_MAX) {
            return Err(Reject::ValueLength);
        }
        if self.phase != Phase::Running {
            return Err(Reject::Stopped);
        }
        self.attributes
            .open(self.own, self.own_version().incarnation);
        let (now, own) = (self.now, self.own);
        let map = self.attributes.map(own).ok_or(Reject::Unknown)?;
        if map.get(key) == value {
            return if value.is_some() {
                Ok(())
            } else {
                Err(Reject::Unknown)
            };
        }
        let too_large = map.bytes_with(key, value.map_or(0, <[u8]>::len)) > MAP_BYTES_MAX;
        if (value.is_some() && too_large) || map.version + 1 >= MAP_VERSION_MAX {
            return Err(Reject::MapFull);
        }
        let version = map.version + 1;
        self.attributes.change(own, |replica, _| {
            replica.map.write(now, key, value.map(Into::into), version);
            replica.map.advance(version);
            replica.known = version;
        });
        self.note_version(own, version);
        self.spread(Subject::Map(own), None);
        self.emit_change(own, key.into(), version);
        Ok(())
    }

    /// The local incarnation has changed: the map is the same, all replicas start anew.
    pub(super) fn carry_own_attributes(&mut self) {
        let own = self.own;
        let incarnation = self.own_version().incarnation;
        let carried = self.attributes.change(own, |replica, _| {
            core::mem::replace(&mut replica.incarnation, incarnation) != incarnation
        });
        if carried == Some(true) {
            self.spread(Subject::Map(own), None);
        }
    }

    /// Takes the version of a map that `from` holds. Returns false if the incarnation is not known yet.
    pub(super) fn merge_map(
        &mut self,
        from: MemberId,
        owner: MemberId,
        incarnation: u64,
        version: u64,
    ) -> bool {
        let Some(member) = self.table.get(owner) else {
            return self.is_refused();
        };
        if incarnation > member.version.incarnation {
            return false;
        }
        if incarnation < member.version.incarnation || !member.in_view() {
            return true;
        }
        if owner == self.own && version > self.attributes.version(owner) {
            self.jump_above(version);
            return true;
        }
        let subject = Subject::Map(owner);
        let held = self.attributes.version(owner);
        if let Some(link) = self.links.get_mut(&from) {
            match held.cmp(&version) {
                core::cmp::Ordering::Equal => link.unmark(subject),
                core::cmp::Ordering::Greater => link.mark(subject),
                core::cmp::Ordering::Less => {}
            }
        }
        if version > held {
            self.attributes.open(owner, incarnation);
            self.learn(from, owner, version);
        }
        true
    }

    /// Requests a newer version from `from`, unless it was requested before.
    fn learn(&mut self, from: MemberId, owner: MemberId, version: u64) {
        let now = self.now;
        self.attributes.change(owner, |replica, _| {
            replica.refused &= version <= replica.known;
            replica.known = replica.known.max(version);
        });
        self.note_version(owner, version);
        let pending = self.attributes.pending.get(owner);
        let asked = pending.is_some_and(|pending| {
            let waiting = pending
                .target
                .is_some_and(|target| self.links.contains_key(&target));
            waiting && pending.version >= version
        });
        let refused = self.attributes.get(owner).is_some_and(|held| held.refused);
        if !asked && !refused {
            let version = pending.map_or(version, |pending| pending.version.max(version));
            let due = now.after(self.ack_wait_us());
            self.attributes.request(owner, version, from, due);
        }
    }

    /// Others hold a newer version of the local map: a former worker wrote it, and it was lost.
    fn jump_above(&mut self, version: u64) {
        let own = self.own;
        self.attributes.open(own, self.own_version().incarnation);
        self.attributes.change(own, |replica, _| {
            replica.map.jump(version + 1);
            replica.known = version + 1;
        });
        self.note_version(own, version + 1);
        self.spread(Subject::Map(own), None);
    }

    /// Takes a request for attributes.
    pub(super) fn asked_attributes(&mut self, from: MemberId, asks: &[Ask]) {
        if !self.attributes.asked(from, asks) {
            self.counters.attribute_requests_dropped += 1;
        }
    }

    /// Takes a reply with attributes.
    pub(super) fn take_attributes(
        &mut self,
        from: MemberId,
        stop: bool,
        sections: Vec<Section<'_>>,
    ) {
        let due = self.now.after(self.ack_wait_us());
        self.attributes.heard(from, due);
        let last = sections.len().saturating_sub(1);
        let mut over = false;
        for (at, mut section) in sections.into_iter().enumerate() {
            section.stop = stop && at == last;
            over |= self.take_section(from, section);
        }
        if over {
            self.attributes.ask_on(from);
        } else if stop {
            let soon = self.now.after(self.ack_wait_us() / 4);
            self.attributes.hurry(from, soon);
        }
    }

    /// Takes one section. Returns true if it ends the sender's window and all before it was taken.
    fn take_section(&mut self, from: MemberId, section: Section<'_>) -> bool {
        let (now, owner, goal) = (self.now, section.owner, section.goal);
        let in_view = self.table.in_view(owner);
        let present = in_view.is_some_and(|m| m.version.incarnation == section.incarnation);
        if owner == self.own || !present {
            return section.stop;
        }
        let held = self.attributes.get(owner);
        if held.is_none_or(|held| held.incarnation != section.incarnation || held.refused) {
            return section.stop;
        }
        let before = self.attributes.version(owner);
        let Some(taken) = self
            .attributes
            .change(owner, |replica, limit| replica.take(now, section, limit))
        else {
            return false;
        };
        self.counters.attribute_duplicates += u64::from(!taken.progress && goal <= before);
        let version = self.attributes.version(owner);
        if version > self.attributes.get(owner).map_or(0, |held| held.known) {
            self.attributes
                .change(owner, |replica, _| replica.known = version);
        }
        self.note_version(owner, version);
        if version > before {
            self.spread(Subject::Map(owner), Some(from));
        }
        self.follow_up(from, owner, &taken);
        for (key, version) in taken.changes {
            self.emit_change(owner, key, version);
        }
        taken.stop
    }

    /// Decides how to get the rest of a map.
    fn follow_up(&mut self, from: MemberId, owner: MemberId, taken: &Taken) {
        let now = self.now;
        if taken.refused {
            self.counters.attributes_refused += 1;
            self.attributes.pending.remove(owner);
            self.attributes.change(owner, |replica, _| {
                replica.refused = true;
                replica.drop_unfinished();
            });
            return;
        }
        let due = now.after(self.ack_wait_us());
        let version = self.attributes.version(owner);
        let Some(mut pending) = self.attributes.pending.get(owner) else {
            return;
        };
        if version >= pending.version {
            self.attributes.pending.remove(owner);
        } else if taken.exhausted && pending.target == Some(from) {
            self.push_request(owner);
        } else if taken.restart || (taken.progress && pending.target.is_none()) {
            let version = pending.version;
            if taken.restart {
                self.attributes.request(owner, version, from, due);
            } else {
                pending.target = Some(from);
                (pending.due, pending.tries) = (due, 0);
                self.attributes.pending.set(owner, pending);
            }
        }
    }

    /// Asks all neighbours.
    fn push_request(&mut self, owner: MemberId) {
        self.counters.attribute_requests_pushed += 1;
        let wait_us = self.ack_wait_us();
        let links = self.links.ids();
        self.attributes.request_all(owner, links, self.now, wait_us);
    }

    /// Repeats requests that are overdue, or were sent to members that are gone.
    pub(super) fn run_attributes(&mut self) {
        let now = self.now;
        let wait_us = self.ack_wait_us();
        let links = &self.links;
        let is_gone = |target: MemberId| !links.contains_key(&target);
        let late = self.attributes.pending.late(now, is_gone);
        for (owner, gone) in late {
            self.counters.attribute_requests_repeated += 1;
            if gone || !self.attributes.request_again(owner, now, wait_us) {
                self.push_request(owner);
            }
        }
    }

    pub(super) fn next_attribute_timer(&self) -> Instant {
        self.attributes.pending.next()
    }

    /// Drops the map of a member that has left the view or has a new incarnation.
    pub(super) fn forget_attributes(&mut self, id: MemberId) {
        if id == self.own {
            return;
        }
        self.attributes.forget(id);
        self.table.change(id, |member| member.attributes = 0);
        let due = self.now;
        for (owner, version) in self.attributes.take_refused() {
            self.attributes.request(owner, version, owner, due);
        }
    }

    /// The fact about a map's version.
    pub(super) fn map_fact(&self, id: MemberId) -> Option<Fact<'static>> {
        let member = self.table.in_view(id)?;
        let replica = self.attributes.get(id)?;
        let incarnation = member.version.incarnation;
        let version = replica.map.version;
        (version > 0 && replica.incarnation == incarnation).then_some(Fact::Map {
            node: id,
            incarnation,
            version,
        })
    }

    /// Sends a fact to the monitors directly, beside the links.
    pub(super) fn send_to_monitors(&mut self, subject: Subject) {
        let about = subject.member();
        let monitors: Vec<MemberId> = self.monitors().take(MONITORS_MAX).collect();
        for to in monitors {
            if to != self.own && Some(to) != about {
                let route = Route::All;
                self.enqueue(Intent::Direct { to, subject, route });
            }
        }
    }

    /// Writes requests, then replies: after all frames that failure detection needs.
    pub(super) fn write_attributes(&mut self, body: &mut [u8]) -> Option<Written> {
        let mut writer = Writer::new(body);
        let kind = Kind::Request;
        let asked = self.attributes.write_asks(&mut writer).ok()?;
        let (to, kind) = match asked {
            Some(to) => {
                self.counters.attribute_requests_sent += 1;
                (to, kind)
            }
            None => {
                let to = self.attributes.write_answers(&mut writer).ok()??;
                self.counters.attribute_replies_sent += 1;
                (to, Kind::Reply)
            }
        };
        let target = Target::Member(to);
        Some((writer.used(), kind, target, Class::News, Route::Next))
    }

    /// Sets the newest version known, which is part of the view's digest.
    fn note_version(&mut self, owner: MemberId, version: u64) {
        let known = self.table.get(owner).map_or(0, |member| member.attributes);
        if version > known {
            self.table
                .change(owner, |member| member.attributes = version);
        }
    }

    fn emit_change(&mut self, owner: MemberId, key: Box<[u8]>, version: u64) {
        let key = self.attributes.remember(key);
        let kind = EventKind::AttributeChanged { key, version };
        let nobody = Reporters::default();
        self.emit(owner, kind, CauseKind::Announced, nobody, 0);
    }
}
