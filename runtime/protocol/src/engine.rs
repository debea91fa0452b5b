//! `Engine` is one of the two engines, behind one interface.
//!
//! Results that only one engine has are empty for the other: ring neighbours and attributes belong to the
//! overlay.

use crate::counters::Counters;
use crate::event::{Event, KeyHandle};
use crate::evidence::Observation;
use crate::identity::{MemberId, Version};
use crate::interface::{Input, MemberView, Phase, Target, Transmit};
use crate::ledger::{LedgerEntry, LedgerKey};
use crate::overlay::{GroupFailure, Overlay};
use crate::reject::Reject;
use crate::time::Instant;
use muster_age::Age;
use muster_age::carried::GOSSIP_AHEAD_MEMBERS_MAX;

/// An engine, chosen by configuration.
#[derive(Clone, Debug)]
pub enum Engine {
    /// Zone membership.
    Overlay(Box<Overlay>),
    /// Age-vector gossip.
    Age(Box<Age>),
}

impl From<Overlay> for Engine {
    fn from(engine: Overlay) -> Self {
        Self::Overlay(Box::new(engine))
    }
}

impl From<Age> for Engine {
    fn from(engine: Age) -> Self {
        Self::Age(Box::new(engine))
    }
}

/// Calls the same method on either engine.
macro_rules! either {
    ($self:ident, $engine:ident => $call:expr) => {
        match $self {
            Self::Overlay($engine) => $call,
            Self::Age($engine) => $call,
        }
    };
}

impl Engine {
    /// Takes one input at time `now`, which never goes back.
    ///
    /// # Errors
    /// Why the input was rejected. It changed nothing but a counter; time and timers went on.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) -> Result<(), Reject> {
        either!(self, engine => engine.handle(now, input))
    }

    /// Writes the next frame into `buffer`; `None` if there is nothing to send now.
    pub fn poll_transmit(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        either!(self, engine => engine.poll_transmit(now, buffer))
    }

    /// The next event, oldest first.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        either!(self, engine => engine.poll_event())
    }

    /// The latest time for the next `handle` with [`Input::Wake`].
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        either!(self, engine => engine.poll_timeout())
    }

    /// The overlay, if it is one.
    #[must_use]
    pub fn overlay(&self) -> Option<&Overlay> {
        match self {
            Self::Overlay(engine) => Some(engine),
            Self::Age(_) => None,
        }
    }

    /// The age engine, if it is one.
    #[must_use]
    pub fn age(&self) -> Option<&Age> {
        match self {
            Self::Age(engine) => Some(engine),
            Self::Overlay(_) => None,
        }
    }

    /// The entry of the ledger with this key. The ledger belongs to the overlay.
    #[must_use]
    pub fn ledger_entry(&self, key: LedgerKey) -> Option<&LedgerEntry> {
        self.overlay()?.ledger_entry(key)
    }

    /// All entries of the ledger.
    pub fn ledger(&self) -> impl Iterator<Item = &LedgerEntry> {
        self.overlay().into_iter().flat_map(Overlay::ledger)
    }

    /// The key of the next entry of the ledger that has changed.
    pub fn poll_ledger(&mut self) -> Option<LedgerKey> {
        match self {
            Self::Overlay(engine) => engine.poll_ledger(),
            Self::Age(_) => None,
        }
    }

    /// All known members: removed ones and the local member too.
    pub fn members(&self) -> impl Iterator<Item = MemberView<'_>> {
        let overlay = self.overlay().into_iter().flat_map(Overlay::members);
        overlay.chain(self.age().into_iter().flat_map(Age::members))
    }

    /// Number of removed members; 0 for age gossip, whose list is fixed.
    #[must_use]
    pub fn gone(&self) -> usize {
        self.overlay().map_or(0, Overlay::gone)
    }

    /// One member.
    #[must_use]
    pub fn member(&self, id: MemberId) -> Option<MemberView<'_>> {
        either!(self, engine => engine.member(id))
    }

    /// The name of a known or refused member.
    #[must_use]
    pub fn name_of(&self, id: MemberId) -> Option<&str> {
        either!(self, engine => engine.name_of(id))
    }

    /// The address of a target.
    #[must_use]
    pub fn address_of(&self, target: Target) -> Option<&[u8]> {
        either!(self, engine => engine.address_of(target))
    }

    /// The last observations about a member, oldest first.
    pub fn why(&self, id: MemberId) -> impl Iterator<Item = &Observation> {
        let overlay = self.overlay().into_iter().flat_map(move |one| one.why(id));
        overlay.chain(self.age().into_iter().flat_map(move |one| one.why(id)))
    }

    /// The engine's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        either!(self, engine => engine.counters())
    }

    /// The engine's own id.
    #[must_use]
    pub fn id(&self) -> MemberId {
        either!(self, engine => engine.id())
    }

    /// The local version now.
    #[must_use]
    pub fn version(&self) -> Version {
        either!(self, engine => engine.version())
    }

    /// The engine's phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        either!(self, engine => engine.phase())
    }

    /// Size of the view, the local member included.
    #[must_use]
    pub fn live(&self) -> usize {
        either!(self, engine => engine.live())
    }

    /// Sets a lateness to expect, see [`Overlay::expect_lateness`].
    pub fn expect_lateness(&mut self, least_us: u64) {
        either!(self, engine => engine.expect_lateness(least_us));
    }

    /// The host has had more to read for `busy_us`, see [`Overlay::strained`].
    pub fn strained(&mut self, busy_us: u64) {
        if let Self::Overlay(engine) = self {
            engine.strained(busy_us);
        }
    }

    /// Makes these members monitors, see [`Overlay::appoint_monitors`].
    pub fn appoint_monitors(&mut self, members: impl Iterator<Item = MemberId>) {
        if let Self::Overlay(engine) = self {
            engine.appoint_monitors(members);
        }
    }

    /// The measured lateness of the host, in microseconds.
    #[must_use]
    pub fn lateness_us(&self) -> u64 {
        either!(self, engine => engine.lateness_us())
    }

    /// The present deadline for a member, in microseconds.
    #[must_use]
    pub fn deadline_us(&self, id: MemberId) -> u64 {
        match self {
            Self::Overlay(engine) => engine.deadline_us(id),
            Self::Age(engine) => engine.deadline_us(),
        }
    }

    /// The seeds of the configuration and of `Input::Seed`.
    pub fn seeds(&self) -> impl Iterator<Item = &[u8]> {
        self.overlay().into_iter().flat_map(Overlay::seeds)
    }

    /// Whether the engine has the job's key: without it all frames are rejected and none is sent.
    #[must_use]
    pub fn has_key(&self) -> bool {
        match self {
            Self::Overlay(engine) => engine.has_key(),
            Self::Age(engine) => engine.config().key.is_some(),
        }
    }

    /// The observed members, which send beats to this one. None in age gossip.
    pub fn observing(&self) -> impl Iterator<Item = MemberId> {
        self.overlay().into_iter().flat_map(Overlay::observing)
    }

    /// The observers: this member sends beats to them.
    pub fn observers(&self) -> impl Iterator<Item = MemberId> {
        self.overlay().into_iter().flat_map(Overlay::observers)
    }

    /// Writes the next beat or ping to a member ahead of time, see [`Overlay::write_ahead`] and
    /// [`Age::write_ahead`].
    pub fn write_ahead(&mut self, now: Instant, to: MemberId, buffer: &mut [u8]) -> Option<usize> {
        either!(self, engine => engine.write_ahead(now, to, buffer))
    }

    /// The members for which a frame may be written ahead now.
    pub fn ahead_for(&mut self, now: Instant) -> Vec<MemberId> {
        match self {
            Self::Overlay(engine) => engine.observers().collect(),
            Self::Age(engine) => engine.draw_ahead(now).into_iter().collect(),
        }
    }

    /// The members for which a frame may be written ahead at some time.
    pub fn carried_to(&self) -> impl Iterator<Item = MemberId> {
        self.observers().chain(self.others())
    }

    /// The members whose messages may carry a frame.
    pub fn carried_from(&self) -> impl Iterator<Item = MemberId> {
        self.observing().chain(self.others())
    }

    /// The members in the view of age gossip, if its frames are small enough to be carried.
    fn others(&self) -> impl Iterator<Item = MemberId> {
        let age = self.age().into_iter();
        let fits = |age: &&Age| age.ages().count() <= GOSSIP_AHEAD_MEMBERS_MAX;
        let members = age.filter(fits).flat_map(Age::members);
        let is_there = |one: &MemberView<'_>| one.state().in_view() && one.id() != self.id();
        members.filter(is_there).map(|one| one.id())
    }

    /// When the next beats or the next ping are due.
    #[must_use]
    pub fn next_beat(&self) -> Instant {
        match self {
            Self::Overlay(engine) => engine.next_beat(),
            Self::Age(engine) => engine.next_ping(),
        }
    }

    /// When those after them may be written ahead.
    #[must_use]
    pub fn following_ahead(&self, now: Instant) -> Instant {
        match self {
            Self::Overlay(engine) => engine.next_ahead().after(self.beat_us()),
            Self::Age(engine) => engine.following_ahead(now),
        }
    }

    /// The time between two beats or pings, in microseconds.
    #[must_use]
    pub fn beat_us(&self) -> u64 {
        match self {
            Self::Overlay(engine) => engine.heartbeat_us(),
            Self::Age(engine) => engine.config().interval_us,
        }
    }

    /// The value of a member's attribute.
    #[must_use]
    pub fn attribute(&self, member: MemberId, key: &[u8]) -> Option<&[u8]> {
        self.overlay()?.attribute(member, key)
    }

    /// All attributes of a member: key, value, and version of the write.
    pub fn attributes(&self, member: MemberId) -> impl Iterator<Item = (&[u8], &[u8], u64)> {
        let overlay = self.overlay().into_iter();
        overlay.flat_map(move |one| one.attributes(member))
    }

    /// The version up to which a member's attributes are held; 0 if there are none.
    #[must_use]
    pub fn attributes_version(&self, member: MemberId) -> u64 {
        self.overlay()
            .map_or(0, |one| one.attributes_version(member))
    }

    /// The key of an `AttributeChanged` event.
    #[must_use]
    pub fn changed_key(&self, key: KeyHandle) -> Option<&[u8]> {
        self.overlay()?.changed_key(key)
    }

    /// The group and the list of a `GroupFailed` event.
    #[must_use]
    pub fn group_failure(&self, number: u32) -> Option<&GroupFailure> {
        self.overlay()?.group_failure(number)
    }

    /// Appends the state for another worker; nothing for age gossip, which learns all of it in a few
    /// cycles.
    pub fn snapshot(&self, bytes: &mut Vec<u8>) {
        if let Self::Overlay(engine) = self {
            engine.snapshot(bytes);
        }
    }
}
