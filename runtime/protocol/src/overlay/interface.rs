//! Getters, and what the host says of its own lateness.

use crate::arrivals::Arrivals;
use crate::counters::Counters;
use crate::evidence::Observation;
use crate::identity::{MemberId, Version};
use crate::interface::{MemberView, Phase, Target};
use crate::link::Link;
use crate::overlay::Overlay;
use crate::table::Member;
use crate::verdict;

impl Overlay {
    /// All known members in ring order: removed ones and the local member too.
    pub fn members(&self) -> impl Iterator<Item = MemberView<'_>> {
        self.table.iter().map(MemberView::new)
    }

    /// How many removed members are known.
    #[must_use]
    pub fn gone(&self) -> usize {
        self.table.removed()
    }

    /// The seeds of the configuration and of `Input::Seed`.
    pub fn seeds(&self) -> impl Iterator<Item = &[u8]> {
        self.config.seeds.iter().map(Vec::as_slice)
    }

    /// Whether the engine has the job's key.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.config.key.is_some()
    }

    /// One member.
    #[must_use]
    pub fn member(&self, id: MemberId) -> Option<MemberView<'_>> {
        self.table.get(id).map(MemberView::new)
    }

    /// The name of a known or refused member.
    #[must_use]
    pub fn name_of(&self, id: MemberId) -> Option<&str> {
        let known = self.table.get(id).map(|member| member.name());
        known.or_else(|| self.refused_name(id))
    }

    /// The address of a target.
    #[must_use]
    pub fn address_of(&self, target: Target) -> Option<&[u8]> {
        match target {
            Target::Member(id) => self.table.get(id).map(|member| member.address()),
            Target::Seed(index) => self.config.seeds.get(index).map(Vec::as_slice),
            Target::Address(slot) => self.outbox.slot_address(slot),
        }
    }

    /// The last observations about a member, oldest first: `muster why`.
    pub fn why(&self, id: MemberId) -> impl Iterator<Item = &Observation> {
        self.table
            .get(id)
            .into_iter()
            .flat_map(|member| member.evidence.iter())
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

    /// The local version now.
    #[must_use]
    pub fn version(&self) -> Version {
        self.own_version()
    }

    /// The engine's phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Size of the view, the local member included.
    #[must_use]
    pub fn live(&self) -> usize {
        self.table.live()
    }

    /// A digest of the view: equal views have equal digests.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.table.digest()
    }

    /// What the local record adds to the digest of a view that contains it.
    #[must_use]
    pub fn own_digest(&self) -> u64 {
        self.table.get(self.own).map_or(0, |own| own.digest())
    }

    /// Sets a lateness to expect before any is measured, in microseconds, at most one second: the host
    /// cannot promise to call in time. It is advertised, and peers widen their deadlines for this member.
    pub fn expect_lateness(&mut self, least_us: u64) {
        self.watch.lateness.expect(least_us);
    }

    /// The host has had more to read for `busy_us`, without coming to an end: received frames may have
    /// waited as long. Widens deadlines as lateness does, here and at peers.
    pub fn strained(&mut self, busy_us: u64) {
        self.watch.lateness.strain(busy_us);
    }

    /// The measured lateness of the host, decaying, in microseconds; widens every deadline.
    #[must_use]
    pub fn lateness_us(&self) -> u64 {
        self.watch.lateness.figure_us()
    }

    /// The present deadline for a member, from the arrivals of its beats and widened by the lateness of
    /// both sides, in microseconds.
    #[must_use]
    pub fn deadline_us(&self, id: MemberId) -> u64 {
        self.deadline_of(self.table.get(id), self.links.get(&id))
    }

    /// The same for a member whose record and link are at hand.
    pub(super) fn deadline_of(&self, member: Option<&Member>, link: Option<&Link>) -> u64 {
        let theirs_us = member.map_or(0, Member::late_us);
        let least_us = self.config.deadline_us;
        let most_us = least_us + self.config.deadline_slack_us;
        let fixed_us = self.widened_deadline_us(theirs_us);
        match link {
            Some(link) if link.observes && self.rules.adapts_deadlines => {
                let joining_us = member.map_or(0, |member| self.joining_us(member, link));
                let judged = |link: &Link| {
                    let known = link.arrivals.is_known();
                    known.then(|| link.arrivals.deadline_us(least_us, most_us))
                };
                // The beats of other members stand for those that did not come yet.
                let others = || self.links.watched().filter_map(|(_, link)| judged(link));
                let judged_us = judged(link).or_else(|| others().max());
                let judged_us = judged_us.unwrap_or(least_us) + (fixed_us - least_us);
                judged_us.max(joining_us)
            }
            _ => fixed_us,
        }
    }

    /// How long a member that has just joined may be silent before it has accepted the link: its reply may
    /// wait behind those to other members. 0 once it has accepted.
    fn joining_us(&self, member: &Member, link: &Link) -> u64 {
        if link.confirmed.is_some() {
            return 0;
        }
        let until = verdict::joining_until(member.joined_at, self.config.deadline_us);
        until.since(member.alive_at().max(link.since))
    }

    /// The arrivals of an observed member's beats.
    #[must_use]
    pub fn arrivals(&self, id: MemberId) -> Option<Arrivals> {
        let link = self.links.get(&id).filter(|link| link.observes)?;
        Some(link.arrivals)
    }

    /// Whether there is a link with a member, made by either side.
    #[must_use]
    pub fn is_linked(&self, id: MemberId) -> bool {
        self.links.contains_key(&id)
    }

    /// The watched members: they send beats to this one.
    pub fn observing(&self) -> impl Iterator<Item = MemberId> {
        self.links.watched().map(|(id, _)| id)
    }

    /// The members that watch this one, which sends beats to them.
    pub fn observers(&self) -> impl Iterator<Item = MemberId> {
        let mutual = self.rules.watches_neighbours;
        self.links
            .iter()
            .filter(move |(_, link)| link.is_watched(mutual))
            .map(|(id, _)| id)
    }
}
