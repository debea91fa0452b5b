//! Merges news into the table: Algorithm 1 of the paper, with the additions listed in the parent module.
//!
//! All changes of records are made here and spread from here. A new fact goes on the list of every link
//! except the one it came from. The sender of an old fact gets the present record.

use crate::cause::CauseKind;
use crate::event::EventKind;
use crate::evidence::ObservationKind;
use crate::identity::{MemberId, is_plausible};
use crate::interface::Target;
use crate::overlay::Overlay;
use crate::overlay::outbox::Intent;
use crate::planted::{self, Fault};
use crate::reporters::{NO_MARK, Reporters, mark};
use crate::state::{NodeState, RankFact};
use crate::subjects::Subject;
use crate::table::{Member, RANKS_MAX};
use crate::time::Instant;
use crate::verdict::{self, Order};
use crate::wire::NodeFact;

impl Overlay {
    /// Merges a record that `from` sent.
    pub(super) fn merge_node(&mut self, from: MemberId, fact: &NodeFact<'_>) {
        let held = self.table.get(fact.id).map_or(0, |m| m.version.incarnation);
        if !is_plausible(fact.version.incarnation, held) {
            self.counters.incarnations_refused += 1;
            return;
        }
        if fact.id == self.own {
            return self.merge_own(Some(from), fact);
        }
        if self.rules.counts_reports {
            return self.process(from, fact);
        }
        let Some(member) = self.table.get(fact.id) else {
            return self.admit_unknown(from, fact);
        };
        let subject = Subject::Node(fact.id);
        if planted::on(Fault::FailedBeatsNewerIncarnation)
            && fact.state == NodeState::Failed
            && member.in_view()
        {
            return self.fail(fact.id, fact.cause, fact.reporters, 0, Some(from));
        }
        if fact.state == NodeState::Failed && member.in_view() && self.rejoins_with(from) {
            // Its record replaces the local one, even one of a later incarnation: that began on the old
            // side and has the verdicts of that side. No member there reported such an incarnation: it ends by
            // one report, that of `from`, which is not enough for members that have it in their view.
            let reporters = match member.version > fact.version {
                true => Reporters::from_iter([(from, self.mark_of(from))]),
                false => fact.reporters,
            };
            let version = member.version.max(fact.version);
            self.table.change(fact.id, |member| member.enter(version));
            return self.fail(fact.id, fact.cause, reporters, fact.silent_us, Some(from));
        }
        match verdict::order((fact.version, fact.state), (member.version, member.state)) {
            Order::Newer => self.merge_newer(from, fact),
            Order::Same => {
                if member.state == NodeState::Suspect {
                    self.add_reports(from, fact);
                }
                self.settle_reports(from, fact);
            }
            Order::Older => {
                if let Some(link) = self.links.get_mut(&from) {
                    link.mark(subject);
                }
            }
        }
    }

    pub(super) fn admit_unknown(&mut self, from: MemberId, fact: &NodeFact<'_>) {
        // A full history may have dropped this very record: it must not displace later ones.
        let remembers = self.table.removed() < self.config.history_max;
        if (fact.state.in_view() && self.is_full()) || !(fact.state.in_view() || remembers) {
            self.counters.facts_refused += 1;
            return;
        }
        let mut member = Member::new(fact.id, fact.info(), fact.version);
        member.vouched_at = self.now;
        if !fact.state.in_view() {
            // Gone before the local member joined: kept, so that late news of it is known to be late.
            take_end(&mut member, fact, self.now);
            self.table.insert(member);
            self.prune_history();
            self.spread(Subject::Node(fact.id), Some(from));
            return;
        }
        self.table.insert(member);
        self.joined(from, fact);
    }

    pub(super) fn joined(&mut self, from: MemberId, fact: &NodeFact<'_>) {
        self.topology.dirty = true;
        self.watch.minority.entered(fact.id);
        let now = self.now;
        self.table.note(fact.id, |member| member.joined_at = now);
        self.observe(fact.id, from, ObservationKind::Joined);
        let reporters = Reporters::from_iter([from]);
        self.emit(fact.id, EventKind::NodeUp, CauseKind::Joined, reporters, 0);
        self.spread(Subject::Node(fact.id), Some(from));
        if fact.state == NodeState::Suspect {
            self.add_reports(from, fact);
        }
    }

    fn merge_newer(&mut self, from: MemberId, fact: &NodeFact<'_>) {
        let Some(member) = self.table.get(fact.id) else {
            return;
        };
        let (held, state) = (member.version, member.state);
        if !state.in_view() {
            return self.merge_newer_removed(from, fact);
        }
        match fact.state {
            NodeState::Left => self.left(from, fact),
            // A verdict on an incarnation not known here: the known one is over anyway. Reporters are not
            // counted again, or a healing split would admit incarnations from the smaller side.
            NodeState::Failed if fact.version.incarnation > held.incarnation => {
                self.table
                    .change(fact.id, |member| member.enter(fact.version));
                self.fail(
                    fact.id,
                    fact.cause,
                    fact.reporters,
                    fact.silent_us,
                    Some(from),
                );
            }
            NodeState::Failed | NodeState::Suspect => {
                if fact.version > held {
                    self.renew(from, fact);
                }
                self.add_reports(from, fact);
            }
            _ => self.renew(from, fact),
        }
    }

    pub(super) fn merge_newer_removed(&mut self, from: MemberId, fact: &NodeFact<'_>) {
        let id = fact.id;
        if !fact.state.in_view() {
            let now = self.now;
            self.table.change(id, |member| {
                member.enter(fact.version);
                take_end(member, fact, now);
            });
            self.spread(Subject::Node(id), Some(from));
            return;
        }
        if self.is_full() {
            self.counters.facts_refused += 1;
            return;
        }
        if self.is_unconfirmed_restart(from, fact) {
            return self.query_restart(id);
        }
        // A failed or departed member is back with a higher version.
        self.adopt(fact);
        self.joined(from, fact);
    }

    /// Whether `from` tells of a restart of a failed member that is not confirmed: `from` itself has only
    /// just joined. When a split heals, new members tell each side of the other, and incarnations that
    /// began on the smaller side would be admitted with all their verdicts.
    fn is_unconfirmed_restart(&self, from: MemberId, fact: &NodeFact<'_>) -> bool {
        let is_new = |member: &Member| self.now < member.joined_at.after(self.config.deadline_us);
        let held = self.table.get(fact.id);
        from != fact.id
            && self.rules.inquires_restarts
            && held.is_some_and(|held| {
                held.state == NodeState::Failed && held.address() == fact.address
            })
            && self.table.in_view(from).is_some_and(is_new)
    }

    /// Sends a join request to the restarted member. If it holds the local member failed, it answers the
    /// failure claim with its own, and the weaker side yields. Otherwise its answer admits it.
    fn query_restart(&mut self, id: MemberId) {
        self.counters.restarts_queried += 1;
        self.enqueue(Intent::Join {
            target: Target::Member(id),
            boot: false,
        });
    }

    /// Merges a higher version of a member in the view.
    fn renew(&mut self, from: MemberId, fact: &NodeFact<'_>) {
        let id = fact.id;
        let Some(member) = self.table.get(id) else {
            return;
        };
        let was_suspect = member.state == NodeState::Suspect;
        let reborn = fact.version.incarnation > member.version.incarnation;
        if reborn {
            if !planted::on(Fault::EndNotTold) {
                self.emit(
                    id,
                    EventKind::NodeFailed,
                    CauseKind::Superseded,
                    Reporters::default(),
                    0,
                );
            }
            self.watch.indirect_probes.remove(&id);
            self.links.remove(&id);
            self.adopt(fact);
            self.joined(from, fact);
            return;
        }
        self.adopt(fact);
        if planted::on(Fault::ToldTwice) {
            return self.joined(from, fact);
        }
        if was_suspect {
            self.observe(id, id, ObservationKind::Refuted);
            let nobody = Reporters::default();
            self.emit(id, EventKind::NodeRecovered, CauseKind::Refuted, nobody, 0);
        }
        if let Some(link) = self.links.get_mut(&id) {
            link.heard();
        }
        self.watch.indirect_probes.remove(&id);
        self.spread(Subject::Node(id), Some(from));
    }

    /// Takes a newer version of a living member; reports against the old one are dropped.
    pub(super) fn adopt(&mut self, fact: &NodeFact<'_>) {
        let now = self.now;
        let held = self.table.get(fact.id).map(|member| member.version);
        if held.is_some_and(|held| held.incarnation != fact.version.incarnation) {
            self.forget_attributes(fact.id);
        }
        self.table.change(fact.id, |member| {
            member.enter(fact.version);
            member.state = NodeState::Alive;
            member.info = fact.info();
            if !planted::on(Fault::SuspicionLeaks) {
                member.reporters = Reporters::default().into();
            }
            member.exit_code = 0;
            member.cause = CauseKind::Joined;
            member.vouched_at = now;
            member.answered_at = Instant::default();
        });
    }

    pub(super) fn left(&mut self, from: MemberId, fact: &NodeFact<'_>) {
        let now = self.now;
        self.table.change(fact.id, |member| {
            member.enter(fact.version);
            take_end(member, fact, now);
        });
        self.observe(fact.id, from, ObservationKind::Left);
        let kind = EventKind::NodeLeft {
            exit_code: fact.exit_code,
        };
        self.emit(fact.id, kind, CauseKind::Announced, Reporters::default(), 0);
        self.removed(fact.id, Some(from));
    }

    /// Adds the reports of a suspicion or a verdict on the version held.
    fn add_reports(&mut self, from: MemberId, fact: &NodeFact<'_>) {
        let id = fact.id;
        let Some(member) = self
            .table
            .in_view(id)
            .filter(|held| held.version == fact.version)
        else {
            return;
        };
        let before = self.that_count(*member.reporters);
        let mut reporters = before;
        for (reporter, mark) in self.that_count(fact.reporters).iter_marked() {
            if reporter != id {
                reporters.add(reporter, mark);
            }
        }
        if fact.state == NodeState::Failed
            && verdict::stands(fact.cause, reporters.len(), self.threshold_for(id))
        {
            return self.fail(id, fact.cause, reporters, fact.silent_us, Some(from));
        }
        let is_stale = self.has_overslept();
        if reporters != before && !is_stale {
            for reporter in reporters
                .iter()
                .filter(|reporter| !before.contains(*reporter))
            {
                self.observe(id, reporter, ObservationKind::Reported(fact.cause));
            }
            self.set_reporters(id, reporters, fact.cause, fact.silent_us, Some(from));
        }
        if fact.state == NodeState::Failed {
            // A verdict with too few reporters for the local threshold: probe the member.
            self.start_indirect_probe(id, None, Some(fact.cause));
        }
    }

    /// `from` sent a record as new as the local one: send it missing reports, or nothing.
    fn settle_reports(&mut self, from: MemberId, fact: &NodeFact<'_>) {
        let Some(member) = self.table.get(fact.id) else {
            return;
        };
        let held = (member.version, member.state);
        let lacks = match verdict::order(held, (fact.version, fact.state)) {
            Order::Newer => true,
            Order::Same => {
                let mut reporters = member.reporters.iter();
                member.state == NodeState::Suspect
                    && reporters.any(|reporter| !fact.reporters.contains(reporter))
            }
            Order::Older => false,
        };
        if let Some(link) = self.links.get_mut(&from) {
            if lacks {
                link.mark(Subject::Node(fact.id));
            } else {
                link.unmark(Subject::Node(fact.id));
            }
        }
    }

    /// Whether reports of this member count: those of a failed member do not, its view has diverged.
    pub(super) fn may_report(&self, id: MemberId) -> bool {
        self.table.in_view(id).is_some()
    }

    /// The reports that count now: reporters may have failed since, and may be back.
    pub(super) fn that_count(&self, reporters: Reporters) -> Reporters {
        let counts = |(by, mark): &(MemberId, u16)| {
            self.may_report(*by) && (*mark == NO_MARK || *mark == self.mark_of(*by))
        };
        reporters.iter_marked().filter(counts).collect()
    }

    /// The mark of a member's present incarnation, for its reports.
    pub(super) fn mark_of(&self, id: MemberId) -> u16 {
        let member = self.table.get(id);
        member.map_or(NO_MARK, |member| mark(member.version.incarnation))
    }

    /// Judges a member again after its reports have changed.
    pub(super) fn set_reporters(
        &mut self,
        id: MemberId,
        reporters: Reporters,
        cause: CauseKind,
        silent_us: u32,
        from: Option<MemberId>,
    ) {
        let mut state = verdict::judge(reporters.len(), self.threshold_for(id));
        if state == NodeState::Failed {
            if !self.has_overslept() && !self.must_hold(id, reporters) {
                return self.fail(id, cause, reporters, silent_us, from);
            }
            state = NodeState::Suspect;
        }
        let was_suspect = self
            .table
            .get(id)
            .is_some_and(|m| m.state == NodeState::Suspect);
        self.table.change(id, |member| {
            member.state = state;
            member.reporters = reporters.into();
            member.cause = cause;
            member.silent_us = silent_us;
        });
        if state == NodeState::Suspect && !was_suspect {
            self.emit(id, EventKind::NodeSuspect, cause, reporters, silent_us);
        }
        self.spread(Subject::Node(id), from);
    }

    /// Declares a member failed. `from` is the sender of the verdict, if it was not made here.
    pub(super) fn fail(
        &mut self,
        id: MemberId,
        cause: CauseKind,
        reporters: Reporters,
        silent_us: u32,
        from: Option<MemberId>,
    ) {
        let now = self.now;
        self.table.change(id, |member| {
            member.state = NodeState::Failed;
            member.cause = cause;
            member.reporters = reporters.into();
            member.silent_us = silent_us;
            member.removed_at = now;
            member.answered_at = Instant::default();
        });
        self.observe(id, from.unwrap_or(self.own), ObservationKind::Failed(cause));
        self.emit(id, EventKind::NodeFailed, cause, reporters, silent_us);
        self.correlate(id, cause);
        self.removed(id, from);
        self.note_lost(id, cause);
    }

    pub(super) fn removed(&mut self, id: MemberId, from: Option<MemberId>) {
        self.forget_attributes(id);
        self.links.remove(&id);
        self.watch.indirect_probes.remove(&id);
        self.news.acks.remove(&id);
        self.news.views.forget(id);
        self.watch.minority.removed();
        self.topology.dirty = true;
        self.prune_history();
        self.spread(Subject::Node(id), from);
    }

    /// Merges a rank's state. Returns false if the incarnation of its node is not known yet. Of local ranks
    /// other members know only what a previous incarnation stated.
    pub(super) fn merge_rank(
        &mut self,
        from: MemberId,
        node: MemberId,
        incarnation: u64,
        fact: RankFact,
    ) -> bool {
        let Some(member) = self.table.get(node) else {
            return self.is_refused();
        };
        if node == self.own && fact.sequence > 0 {
            return true;
        }
        if incarnation > member.version.incarnation {
            return node == self.own;
        }
        if incarnation < member.version.incarnation || !member.in_view() {
            return true;
        }
        let subject = Subject::Rank(node, fact.rank);
        let (known, news) = (
            member.ranks.get(&fact.rank).map(RankFact::order),
            fact.order(),
        );
        match known {
            Some(held) if held > news && planted::on(Fault::RankSequenceIgnored) => {
                self.set_rank(node, fact, CauseKind::Announced, Some(from));
            }
            Some(held) if held >= news => {
                if let Some(link) = self.links.get_mut(&from) {
                    if held > news {
                        link.mark(subject);
                    } else {
                        link.unmark(subject);
                    }
                }
            }
            None if member.ranks.len() >= RANKS_MAX => self.counters.facts_refused += 1,
            _ => self.set_rank(node, fact, CauseKind::Announced, Some(from)),
        }
        true
    }

    pub(super) fn set_rank(
        &mut self,
        node: MemberId,
        fact: RankFact,
        cause: CauseKind,
        from: Option<MemberId>,
    ) {
        self.table.change(node, |member| {
            member.ranks.insert(fact.rank, fact);
        });
        let reporters = Reporters::from_iter([node]);
        self.emit(node, EventKind::RankChanged { fact }, cause, reporters, 0);
        self.spread(Subject::Rank(node, fact.rank), from);
    }

    /// Whether facts about an unknown node are to be dropped, because there is no room for it. Otherwise
    /// they are retransmitted until the node is known.
    pub(super) fn is_refused(&mut self) -> bool {
        let full = self.is_full();
        self.counters.facts_refused += u64::from(full);
        full
    }

    pub(super) fn is_full(&self) -> bool {
        self.table.live() >= self.config.members_max
    }

    fn prune_history(&mut self) {
        let mut history_max = self.config.history_max;
        if planted::on(Fault::ForgottenHistory) {
            history_max = 0;
        } else if planted::on(Fault::HistoryUnbounded) {
            return;
        }
        while self.table.removed() > history_max {
            self.table.forget_oldest_removed();
            self.counters.history_pruned += 1;
        }
    }
}

/// Writes the end of an incarnation into its record.
fn take_end(member: &mut Member, fact: &NodeFact<'_>, now: Instant) {
    member.state = fact.state;
    member.exit_code = fact.exit_code;
    member.cause = fact.cause;
    member.silent_us = fact.silent_us;
    member.reporters = fact.reporters.into();
    member.removed_at = now;
    member.info = fact.info();
}
