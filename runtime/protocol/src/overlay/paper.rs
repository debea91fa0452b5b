//! The plain algorithm of the zone membership paper, selectable for comparison (ZM-08, ZM-09).
//!
//! Intuition: the same letters and the same table, but no judgement of our own. Three kinds of
//! news (alive, leave, suspicion) go through three procedures; what changed something waits for
//! tau from the first change on and then goes to every neighbour, the one it came from included.
//! A member is removed when Theta distinct reporters have accused it, whatever the size of the
//! view; it objects by raising its minor, at every single accusation; who is removed stays in the
//! history, and comes back with any higher version.
//!
//! What is absent here and present in the default mode: probes and helpers, direct pushes, doubts
//! about oneself, repair by digests, the rule for small views, claims and outcasts (so a policy of
//! stopping has no effect), adaptive deadlines. What stays, because the algorithm does not speak
//! of it: only ring successors are watched; letters are acknowledged and repeated, as a reliable
//! connection would do it; what is said of a member is its state when the letter is written;
//! nobody but the member itself decides over its own record; the own lateness is not held against
//! others.

use crate::event::{CauseKind, EventKind};
use crate::evidence::ObservationKind;
use crate::identity::{MemberId, Version};
use crate::link::{AckWait, Subject};
use crate::overlay::Overlay;
use crate::state::NodeState;
use crate::table::{Member, Reporters};
use crate::wire::NodeFact;

impl Overlay {
    pub(super) fn is_paper(&self) -> bool {
        self.config.mode.is_paper()
    }

    /// Time that a link rests after a letter: the default mode's use of tau.
    pub(super) fn pause_us(&self) -> u64 {
        if self.is_paper() {
            0
        } else {
            self.config.mode.tau_us()
        }
    }

    /// Puts a change on the list of every link; the first one sets the clock.
    pub(super) fn aggregate(&mut self, subject: Subject) {
        let at = self.now.after(self.config.mode.tau_us());
        for link in self.links.values_mut() {
            link.wait_until(at);
            link.mark(subject);
        }
    }

    /// One record that came with a letter.
    pub(super) fn process(&mut self, from: MemberId, fact: &NodeFact<'_>) {
        match fact.state {
            NodeState::Left => self.process_leave(from, fact),
            NodeState::Alive => self.process_alive(from, fact),
            // Removals do not travel here, only the reports that make them.
            _ => self.counters.facts_refused += 1,
        }
    }

    fn process_alive(&mut self, from: MemberId, fact: &NodeFact<'_>) {
        let id = fact.id;
        let Some(member) = self.table.get(id) else {
            return self.admit_unknown(from, fact);
        };
        if fact.version <= member.version {
            return;
        }
        if !member.in_view() {
            return self.merge_newer_removed(from, fact);
        }
        if let Some(reports) = self.suspicions.get_mut(&id) {
            reports.retain(|_, version| *version >= fact.version);
        }
        let was_suspect = member.state == NodeState::Suspect;
        if fact.version.incarnation > member.version.incarnation {
            let nobody = Reporters::default();
            self.tell(id, EventKind::NodeFailed, CauseKind::Superseded, nobody, 0);
            self.links.remove(&id);
            self.adopt(fact);
            self.joined(from, fact);
        } else {
            self.adopt(fact);
            self.spread(Subject::Node(id), None);
        }
        self.mark_suspect(id);
        if was_suspect && !self.suspicions.contains_key(&id) {
            self.observe(id, id, ObservationKind::Refuted);
            let nobody = Reporters::default();
            self.tell(id, EventKind::NodeRecovered, CauseKind::Refuted, nobody, 0);
        }
    }

    fn process_leave(&mut self, from: MemberId, fact: &NodeFact<'_>) {
        let Some(member) = self.table.get(fact.id) else {
            return;
        };
        if member.in_view() && fact.version >= member.version {
            self.suspicions.remove(&fact.id);
            self.left(from, fact);
        } else if !member.in_view() && fact.version > member.version {
            self.merge_newer_removed(from, fact);
        }
    }

    /// One report, whoever made it.
    pub(super) fn process_suspicion(
        &mut self,
        reporter: MemberId,
        suspect: MemberId,
        version: Version,
    ) {
        if suspect == self.own {
            self.counters.refutations += 1;
            return self.renew_own(self.own_version().raised());
        }
        let Some(member) = self.table.in_view(suspect) else {
            return;
        };
        if version < member.version {
            return;
        }
        let silent_us = u32::try_from(self.now.since(member.alive_at())).unwrap_or(u32::MAX);
        let was_suspect = member.state == NodeState::Suspect;
        let reports = self.suspicions.entry(suspect).or_default();
        if reports.get(&reporter).is_some_and(|held| *held >= version) {
            return;
        }
        reports.insert(reporter, version);
        let reporters = Reporters::from_iter(reports.keys().copied());
        let cause = CauseKind::Silence;
        self.observe(suspect, reporter, ObservationKind::Reported(cause));
        self.spread(
            Subject::Suspicion {
                suspect,
                reporter,
                version,
            },
            None,
        );
        if reporters.len() < self.config.theta {
            self.mark_suspect(suspect);
            if !was_suspect {
                self.tell(suspect, EventKind::NodeSuspect, cause, reporters, silent_us);
            }
            return;
        }
        self.suspicions.remove(&suspect);
        self.table.change(suspect, |member| member.enter(version));
        self.fail(suspect, cause, reporters, silent_us, None);
    }

    /// How long acknowledgements hold up a link: not at all in the plain algorithm.
    pub(super) fn hold(&self) -> AckWait {
        let mut wait = self.ack_wait();
        if self.is_paper() {
            wait.least_us = 0;
        }
        wait
    }

    /// What we see ourselves is a report like any other.
    pub(super) fn suspect_plainly(&mut self, id: MemberId) {
        if let Some(version) = self.table.in_view(id).map(|member| member.version) {
            self.counters.reports += 1;
            self.process_suspicion(self.own, id, version);
            self.tell_monitors(Subject::Suspicion {
                suspect: id,
                reporter: self.own,
                version,
            });
        }
    }

    /// A discovery request or its answer: of two who met through the history, both speak up.
    pub(super) fn met(&mut self, boot: bool) {
        if self.is_paper() && !boot {
            self.renew_own(self.own_version().raised());
        }
    }

    /// A record as it travels; `None` if it does not.
    pub(super) fn record_of<'a>(&self, member: &'a Member) -> Option<NodeFact<'a>> {
        let mut record = NodeFact::of(member);
        if self.is_paper() {
            match record.state {
                NodeState::Failed => return None,
                NodeState::Suspect => record.state = NodeState::Alive,
                _ => {}
            }
            record.reporters = Reporters::default();
        }
        Some(record)
    }

    /// Whether an answer to a discovery has this member in it.
    pub(super) fn tells_in_view(&self, member: &Member) -> bool {
        !self.is_paper() || member.in_view()
    }

    /// Brings the record of a member in line with the reports against it.
    fn mark_suspect(&mut self, id: MemberId) {
        let reports = self
            .suspicions
            .get(&id)
            .filter(|reports| !reports.is_empty());
        let reporters = reports.map(|reports| Reporters::from_iter(reports.keys().copied()));
        if reporters.is_none() {
            self.suspicions.remove(&id);
        }
        self.table.change(id, |member| {
            member.state = match reporters {
                Some(_) => NodeState::Suspect,
                None => NodeState::Alive,
            };
            member.reporters = reporters.unwrap_or_default();
        });
    }
}
