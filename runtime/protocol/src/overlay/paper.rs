//! Paper mode: the plain algorithm of the zone membership paper, for comparison (ZM-08, ZM-09).
//!
//! It uses the same frames and the same table. The two sides of each link watch each other: ring neighbours
//! and random ones. Three kinds of news (alive, leave, suspicion) go through three procedures. A change
//! waits for tau, from the first change on, and is then sent to every neighbour, including the one it came
//! from. A member is removed when Theta distinct reporters have reported it, whatever the size of the view.
//! It refutes each report by raising its minor. A removed member stays in the history, and comes back with
//! any higher version.
//!
//! Not in paper mode: probes and indirect probes, direct pushes, self-doubt, repair by digests, the rule
//! for small views, failure claims and outcasts (so the policy `Stop` has no effect), adaptive deadlines.
//!
//! The algorithm leaves these open, and they are as in the default mode: a link is established by a request
//! and a reply; news is acknowledged and retransmitted, as a reliable connection would do; a fact is the
//! state at the time when the frame is written; only a member itself decides over its own record; the local
//! lateness is not held against others.

use crate::cause::CauseKind;
use crate::event::EventKind;
use crate::evidence::ObservationKind;
use crate::identity::{MemberId, Version};
use crate::link::AckWait;
use crate::overlay::Overlay;
use crate::reporters::Reporters;
use crate::state::NodeState;
use crate::subjects::Subject;
use crate::table::Member;
use crate::wire::NodeFact;

impl Overlay {
    /// Time that a link rests after a news frame: the default mode's use of tau.
    pub(super) fn pause_us(&self) -> u64 {
        if self.rules.aggregates {
            0
        } else {
            self.config.mode.tau_us()
        }
    }

    /// Puts a change on the list of every link; the first one starts the clock.
    pub(super) fn aggregate(&mut self, subject: Subject) {
        let at = self.now.after(self.config.mode.tau_us());
        for link in self.links.values_mut() {
            link.wait_until(at);
            link.mark(subject);
        }
    }

    /// Takes one record of a news frame.
    pub(super) fn process(&mut self, from: MemberId, fact: &NodeFact<'_>) {
        match fact.state {
            NodeState::Left => self.process_leave(from, fact),
            NodeState::Alive => self.process_alive(from, fact),
            // Removals are not sent in paper mode, only the reports that cause them.
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
        if let Some(reports) = self.watch.suspicions.get_mut(&id) {
            reports.retain(|_, version| *version >= fact.version);
        }
        let was_suspect = member.state == NodeState::Suspect;
        if fact.version.incarnation > member.version.incarnation {
            let nobody = Reporters::default();
            self.emit(id, EventKind::NodeFailed, CauseKind::Superseded, nobody, 0);
            self.links.remove(&id);
            self.adopt(fact);
            self.joined(from, fact);
        } else {
            self.adopt(fact);
            self.spread(Subject::Node(id), None);
        }
        self.mark_suspect(id);
        if was_suspect && !self.watch.suspicions.contains_key(&id) {
            self.observe(id, id, ObservationKind::Refuted);
            let nobody = Reporters::default();
            self.emit(id, EventKind::NodeRecovered, CauseKind::Refuted, nobody, 0);
        }
    }

    fn process_leave(&mut self, from: MemberId, fact: &NodeFact<'_>) {
        let Some(member) = self.table.get(fact.id) else {
            return;
        };
        if member.in_view() && fact.version >= member.version {
            self.watch.suspicions.remove(&fact.id);
            self.left(from, fact);
        } else if !member.in_view() && fact.version > member.version {
            self.merge_newer_removed(from, fact);
        }
    }

    /// Takes one report, whichever member made it.
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
        let reports = self.watch.suspicions.get_or_default(suspect);
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
                self.emit(suspect, EventKind::NodeSuspect, cause, reporters, silent_us);
            }
            return;
        }
        self.watch.suspicions.remove(&suspect);
        self.table.change(suspect, |member| member.enter(version));
        self.fail(suspect, cause, reporters, silent_us, None);
    }

    /// How long acknowledgements delay a link: not at all in paper mode.
    pub(super) fn hold(&self) -> AckWait {
        let mut wait = self.ack_wait();
        if !self.rules.waits_for_acks {
            wait.least_us = 0;
        }
        wait
    }

    /// Takes an observation of the local member as a report like any other.
    pub(super) fn suspect_plainly(&mut self, id: MemberId) {
        if let Some(version) = self.table.in_view(id).map(|member| member.version) {
            self.counters.reports += 1;
            self.process_suspicion(self.own, id, version);
            self.send_to_monitors(Subject::Suspicion {
                suspect: id,
                reporter: self.own,
                version,
            });
        }
    }

    /// Takes a join request or its answer: two members that met through the history both refute.
    pub(super) fn met(&mut self, boot: bool) {
        if self.rules.renews_at_meeting && !boot {
            self.renew_own(self.own_version().raised());
        }
    }

    /// A record as it is sent; `None` if it is not sent.
    pub(super) fn record_of<'a>(&self, member: &'a Member) -> Option<NodeFact<'a>> {
        let mut record = NodeFact::of(member);
        if !self.rules.sends_verdicts {
            match record.state {
                NodeState::Failed => return None,
                NodeState::Suspect => record.state = NodeState::Alive,
                _ => {}
            }
            record.reporters = Reporters::default();
        }
        Some(record)
    }

    /// Whether the answer to a join request contains this member.
    pub(super) fn tells_in_view(&self, member: &Member) -> bool {
        self.rules.sends_verdicts || member.in_view()
    }

    /// Updates the state of a member from the reports against it.
    fn mark_suspect(&mut self, id: MemberId) {
        let reports = self
            .watch
            .suspicions
            .get(&id)
            .filter(|reports| !reports.is_empty());
        let reporters = reports.map(|reports| Reporters::from_iter(reports.keys().copied()));
        if reporters.is_none() {
            self.watch.suspicions.remove(&id);
        }
        self.table.change(id, |member| {
            member.state = match reporters {
                Some(_) => NodeState::Suspect,
                None => NodeState::Alive,
            };
            member.reporters = reporters.unwrap_or_default().into();
        });
    }
}
