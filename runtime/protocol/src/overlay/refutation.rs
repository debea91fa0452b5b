//! Refutation: takes facts about the local member from others.
//!
//! A suspicion is refuted with a higher minor. A verdict that stands makes the local member an outcast: the
//! engine tells the application, and then rejoins with a higher incarnation or stops, by policy.

use crate::cause::CauseKind;
use crate::config::Policy;
use crate::event::EventKind;
use crate::identity::{ADDRESS_MAX, INCARNATION_MAX, MemberId, Version};
use crate::interface::{Phase, Target};
use crate::overlay::Overlay;
use crate::overlay::outbox::{Intent, Outbox};
use crate::overlay::views::Views;
use crate::planted::{self, Fault};
use crate::reject::Reject;
use crate::reporters::Reporters;
use crate::state::NodeState;
use crate::subjects::Subject;
use crate::time::Instant;
use crate::verdict;
use crate::wire::NodeFact;

/// Most own incarnations that frames are accepted for; the others learn of a new one later.
const OWN_INCARNATIONS_MAX: usize = 4;

/// Most failed members that are asked at once.
const ASKED_MAX: usize = 128;

impl Overlay {
    /// Takes a fact about the local member. `from` is `None` for the record of a former worker.
    pub(super) fn merge_own(&mut self, from: Option<MemberId>, fact: &NodeFact<'_>) {
        let own = self.own_version();
        if self.phase != Phase::Running {
            return;
        }
        let elsewhere = fact.state.in_view() && self.is_elsewhere(fact);
        if elsewhere && fact.version.incarnation != own.incarnation {
            // The local member before it moved, or another member with this name: if it lives, it answers.
            self.send_name_conflict(fact);
        }
        if fact.version.incarnation > own.incarnation {
            if elsewhere {
                return;
            }
            // An incarnation of this node that was lost (its clock went back): begin a higher one.
            self.renew_own(fact.version.reborn());
            return;
        }
        if fact.version.incarnation < own.incarnation {
            // An old fact: its sender gets the present record.
            if let Some(link) = from.and_then(|from| self.links.get_mut(&from)) {
                link.mark(Subject::Node(self.own));
            }
            return;
        }
        match fact.state {
            NodeState::Failed | NodeState::Left | NodeState::Suspect
                if fact.version.minor < own.minor =>
            {
                if let Some(from) = from {
                    match self.links.get_mut(&from) {
                        Some(link) => link.mark(Subject::Node(self.own)),
                        None => self.introduce_to(from),
                    }
                }
            }
            NodeState::Failed if self.is_believed(fact) => self.outcast(from, fact),
            _ if planted::on(Fault::SkippedRefutation) => {}
            NodeState::Failed
                if self.is_by_another_side(fact.reporters)
                    && self.config.policy != Policy::Merge =>
            {
                // A higher minor would bring the local member into that side's view, and its verdicts into the
                // local one. One of the two views must be given up as a whole.
                from.into_iter().for_each(|from| self.disown(from));
            }
            NodeState::Failed | NodeState::Suspect | NodeState::Left => {
                self.counters.refutations += 1;
                self.renew_own(fact.version.raised());
                if let Some(from) = from.filter(|from| !self.links.contains_key(from)) {
                    self.introduce_to(from);
                }
            }
            _ if fact.version.minor > own.minor => self.renew_own(fact.version.raised()),
            _ => {}
        }
    }

    /// Whether a verdict on the local member stands. With policy `Stop` a failure that applications were told is not
    /// taken back. So a member that knows that it was silent believes any reporter.
    fn is_believed(&self, fact: &NodeFact<'_>) -> bool {
        let count = self.that_count(fact.reporters).len();
        verdict::stands(fact.cause, count, self.threshold_for(self.own))
            || self.config.policy == Policy::Stop && self.has_overslept()
    }

    /// Whether these reports are of another side of a split: all are of members that are held failed.
    fn is_by_another_side(&self, reporters: Reporters) -> bool {
        let is_failed = |by: MemberId| {
            let held = self.table.get(by);
            held.is_some_and(|held| held.state == NodeState::Failed)
        };
        reporters.iter().all(is_failed) && !reporters.is_empty()
    }

    /// A member that joined another side of a split holds its verdicts, and no member has declared it failed. The
    /// local member holds it failed from now on: so the two exchange failure claims, and the weaker side yields.
    fn disown(&mut self, id: MemberId) {
        if self.table.in_view(id).is_none() || !self.rules.claims_failures {
            return;
        }
        let (now, reporters) = (
            self.now,
            Reporters::from_iter([(self.own, self.mark_of(self.own))]),
        );
        self.table.change(id, |member| {
            member.state = NodeState::Failed;
            member.cause = CauseKind::Claimed;
            member.reporters = reporters.into();
            member.removed_at = now;
            member.answered_at = Instant::default();
        });
        self.emit(id, EventKind::NodeFailed, CauseKind::Claimed, reporters, 0);
        self.removed(id, None);
        self.enqueue(Intent::Join {
            target: Target::Member(id),
            boot: false,
        });
    }

    /// The rails have changed: tells all members the new address with a higher minor of the same
    /// incarnation.
    pub(super) fn move_to(&mut self, address: &[u8]) -> Result<(), Reject> {
        if address.is_empty() || address.len() > ADDRESS_MAX {
            return Err(Reject::Unknown);
        }
        if self.config.address == address {
            return Ok(());
        }
        self.config.address = address.to_vec();
        let info = self.config.info();
        self.table.change(self.own, |own| own.info = info);
        if self.phase == Phase::Running {
            self.renew_own(self.own_version().raised());
        }
        Ok(())
    }

    /// Raises the own version and spreads it.
    pub(super) fn renew_own(&mut self, version: Version) {
        if version.incarnation >= INCARNATION_MAX {
            return self.stop();
        }
        self.table.change(self.own, |own| own.version = version);
        if !self.news.incarnations.contains(&version.incarnation) {
            if self.news.incarnations.len() >= OWN_INCARNATIONS_MAX {
                self.news.incarnations.remove(0);
            }
            self.news.incarnations.push(version.incarnation);
        }
        self.spread(Subject::Node(self.own), None);
        self.carry_own_attributes();
    }

    /// Returns with a higher incarnation, and asks those that it holds failed itself: if one is alive, it returns too.
    fn return_to_all(&mut self, version: Version) {
        self.counters.refutations += 1;
        self.renew_own(version.max(self.own_version()).reborn());
        let failed = self.table.iter_removed();
        let failed = failed.filter(|member| member.state == NodeState::Failed);
        let failed: Vec<MemberId> = failed.map(|member| member.id).take(ASKED_MAX).collect();
        for id in failed {
            self.introduce_to(id);
        }
    }

    /// Other zones hold the local member failed in this version.
    pub(super) fn outcast_by_job(&mut self, version: Version) {
        let own = self.table.get(self.own).cloned();
        if let Some(own) = own.filter(|own| version >= own.version) {
            self.outcast(None, &NodeFact::of(&own));
        }
    }

    /// Enough members declared the local member failed: tells the application and follows the policy.
    ///
    /// Before a rejoin the engine forgets which members *it* held failed (the two views diverged) and all
    /// reports, and takes over the view of the sender before it talks to any other member.
    pub(super) fn outcast(&mut self, from: Option<MemberId>, fact: &NodeFact<'_>) {
        if self.config.policy == Policy::Merge {
            return self.return_to_all(fact.version);
        }
        self.counters.outcasts += 1;
        self.emit(
            self.own,
            EventKind::Outcast,
            CauseKind::Claimed,
            fact.reporters,
            fact.silent_us,
        );
        if self.config.policy == Policy::Stop {
            return self.stop();
        }
        let failed: Vec<MemberId> = self
            .table
            .iter_removed()
            .filter(|member| member.state == NodeState::Failed)
            .map(|member| member.id)
            .collect();
        for id in failed {
            if Some(id) == from {
                self.table.change(id, |member| {
                    member.state = NodeState::Alive;
                    member.reporters = Reporters::default().into();
                });
                self.emit(
                    id,
                    EventKind::NodeUp,
                    CauseKind::Joined,
                    Reporters::default(),
                    0,
                );
            } else {
                self.forget_attributes(id);
                self.table.remove(id);
            }
        }
        for id in self.table.drop_suspicions() {
            let nobody = Reporters::default();
            self.emit(id, EventKind::NodeRecovered, CauseKind::Claimed, nobody, 0);
        }
        self.links.clear();
        self.watch.indirect_probes.clear();
        self.news.acks.clear();
        // Waiting messages belong to the old view.
        self.outbox = Outbox::default();
        self.news.views = Views::default();
        self.watch.correlation.forget();
        self.rejoin_majority();
        self.watch.doubted_since = None;
        self.watch.heard_any = self.now;
        self.topology.dirty = true;
        self.join_soon();
        self.grace();
        self.renew_own(fact.version.max(self.own_version()).reborn());
        if let Some(with) = from {
            self.rejoin_with(with);
        }
    }
}
