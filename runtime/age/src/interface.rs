//! Getters of the age engine.

use super::gossip::NEVER;
use super::{Age, AgeConfig, Participant};
use muster_wire::counters::Counters;
use muster_wire::evidence::Observation;
use muster_wire::identity::{MemberId, Version};
use muster_wire::interface::{MemberView, Phase, Target};
use muster_wire::parameter::Difference;

impl Age {
    /// All members heard of, in the order of ids, the local one too.
    pub fn members(&self) -> impl Iterator<Item = MemberView<'_>> {
        self.table.iter().map(MemberView::new)
    }

    /// One member.
    #[must_use]
    pub fn member(&self, id: MemberId) -> Option<MemberView<'_>> {
        self.table.get(id).map(MemberView::new)
    }

    /// The name of a participant or of a refused member.
    #[must_use]
    pub fn name_of(&self, id: MemberId) -> Option<&str> {
        if let Some(place) = self.places.get(&id) {
            return Some(&self.config.participants[*place as usize].name);
        }
        let (refused, name, _) = self.refused.as_ref()?;
        (*refused == id && !name.is_empty()).then_some(name)
    }

    /// The address of a target.
    #[must_use]
    pub fn address_of(&self, target: Target) -> Option<&[u8]> {
        match target {
            Target::Member(id) => {
                let place = *self.places.get(&id)?;
                Some(self.config.participants[place as usize].address.as_bytes())
            }
            Target::Seed(_) => None,
            Target::Address(_) => Some(&self.verify_address),
        }
    }

    /// The last observations about a member, oldest first.
    pub fn why(&self, id: MemberId) -> impl Iterator<Item = &Observation> {
        let member = self.table.get(id).into_iter();
        member.flat_map(|member| member.evidence.iter())
    }

    /// The engine's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The engine's own id.
    #[must_use]
    pub fn id(&self) -> MemberId {
        self.own
    }

    /// The engine's own version.
    #[must_use]
    pub fn version(&self) -> Version {
        Version::first(self.config.incarnation)
    }

    /// The engine's phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Number of members alive or suspect, the local one included.
    #[must_use]
    pub fn live(&self) -> usize {
        self.table.live()
    }

    /// A digest of the view.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.table.digest()
    }

    /// The Lamport clock.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.gossip.clock()
    }

    /// The Lamport clock of the last message that counted.
    #[must_use]
    pub fn message_clock(&self) -> Option<u64> {
        self.message_clock
    }

    /// All participants with their ages, in the order of the vector; no age if not known.
    pub fn ages(&self) -> impl Iterator<Item = (&Participant, Option<u8>)> {
        let ages = self.gossip.ages().iter();
        let participants = self.config.participants.iter();
        participants.zip(ages.map(|age| (*age != NEVER).then_some(*age)))
    }

    /// The configuration; participants in the order of the vector.
    #[must_use]
    pub fn config(&self) -> &AgeConfig {
        &self.config
    }

    /// The SHA-1 of the participants' NIDs.
    #[must_use]
    pub fn participants_digest(&self) -> [u8; 20] {
        self.digest
    }

    /// Whether gossip runs.
    #[must_use]
    pub fn is_gossiping(&self) -> bool {
        self.is_running
    }

    /// The member because of which gossip stopped, and what differs.
    #[must_use]
    pub fn refused(&self) -> Option<(MemberId, Difference)> {
        self.refused
            .as_ref()
            .map(|(id, _, difference)| (*id, *difference))
    }

    /// Number of cycles begun.
    #[must_use]
    pub fn cycles(&self) -> u64 {
        self.gossip_cycles
    }

    /// Sets a lateness to expect.
    pub fn expect_lateness(&mut self, least_us: u64) {
        self.late_us = least_us;
    }

    /// The lateness to expect, in microseconds.
    #[must_use]
    pub fn lateness_us(&self) -> u64 {
        self.late_us
    }

    /// The silence after which a member is failed, in microseconds.
    #[must_use]
    pub fn deadline_us(&self) -> u64 {
        u64::from(self.config.dead_after) * self.config.interval_us
    }
}
