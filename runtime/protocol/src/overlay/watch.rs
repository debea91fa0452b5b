//! Watch: silence, probes, indirect probes and reports. The rules are in `verdict`.
//!
//! Watched members send beats to the local member: its ring successors, in paper mode all of its neighbours.
//! After one and a half heartbeats of silence, the local member probes the silent one directly over all
//! rails, and asks up to three probers, every half heartbeat, until it is heard or the deadline is over. A
//! prober probes for one heartbeat and replies *alive* (with the time since the last frame) or *silent*.
//! *Silent* counts as a report of the prober when the local deadline is over.

use crate::cause::CauseKind;
use crate::event::EventKind;
use crate::evidence::ObservationKind;
use crate::identity::{MemberId, Version};
use crate::interface::Route;
use crate::overlay::Overlay;
use crate::overlay::outbox::Intent;
use crate::planted::{self, Fault};
use crate::reject::Reject;
use crate::reporters::Reporters;
use crate::state::{NodeState, RankState};
use crate::subjects::Subject;
use crate::table::Member;
use crate::time::Instant;
use crate::verdict::{self, Silence};

/// Probers asked in one round.
const PROBERS_MAX: usize = 3;
/// Rounds in a heartbeat when there are no probers.
const LONELY_ROUNDS: u64 = 8;

impl Overlay {
    /// Notes an authentic frame of a member's present incarnation.
    pub(super) fn heard(&mut self, id: MemberId) {
        let now = self.now;
        self.watch.heard_any = now;
        self.watch.doubted_since = None;
        if let Some(member) = self.table.in_view(id) {
            self.watch.minority.heard(now, member.last_heard);
        }
        self.table.note(id, |member| member.last_heard = now);
        if let Some(link) = self.links.get_unfiled(&id) {
            self.topology.dirty |= link.rounds > 1;
            link.heard();
        }
        self.found_alive(id);
    }

    /// The fabric cannot reach a member: probe it at once instead of waiting for its silence.
    pub(super) fn unreachable(&mut self, id: MemberId) -> Result<(), Reject> {
        if id == self.own || self.table.in_view(id).is_none() {
            return Err(Reject::Unknown);
        }
        self.observe(id, self.own, ObservationKind::Unreachable);
        if self.rules.counts_reports {
            self.suspect_plainly(id);
            return Ok(());
        }
        let alive_at = self.table.get(id).map_or(self.now, Member::alive_at);
        if let Some(link) = self.links.get_mut(&id).filter(|link| link.rounds == 0) {
            // Probers are asked from now on: their replies are about this silence.
            link.rounds = 1;
            link.round_at = verdict::probe_at(alive_at.max(link.since), self.config.heartbeat_us);
        }
        self.start_indirect_probe(id, None, None);
        Ok(())
    }

    /// The process of a member has ended: report it at once, unless living ranks start another agent.
    pub(super) fn ended(&mut self, id: MemberId) -> Result<(), Reject> {
        if id == self.own || self.table.in_view(id).is_none() {
            return Err(Reject::Unknown);
        }
        self.observe(id, self.own, ObservationKind::Ended);
        let returns = self.table.get(id).is_some_and(|member| {
            let mut states = member.ranks.values().map(|fact| fact.state);
            states.any(|state| matches!(state, RankState::Alive | RankState::Hung))
        });
        if !returns && !self.rules.counts_reports && !self.doubts_itself() {
            self.report(id, CauseKind::Unreachable, None);
            if let Some(member) = self.table.in_view(id) {
                // Perhaps its other observers have ended too.
                self.request_indirect_probes(id, member.version);
            }
        }
        Ok(())
    }

    pub(super) fn run_watch(&mut self) {
        let mut watched = core::mem::take(&mut self.watch.room);
        watched.extend(self.observing());
        for id in watched.drain(..) {
            self.watch(id);
        }
        self.watch.room = watched;
        self.run_indirect_probes();
    }

    /// Watches one member.
    fn watch(&mut self, id: MemberId) {
        let (now, heartbeat_us) = (self.now, self.config.heartbeat_us);
        let Some(member) = self.table.in_view(id) else {
            return;
        };
        let version = member.version;
        let deadline_us = self.deadline_us(id);
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let alive_at = member.alive_at().max(link.since);
        if self.rules.counts_reports {
            if now >= alive_at.after(deadline_us) && link.reported != Some(version) {
                link.reported = Some(version);
                self.suspect_plainly(id);
            }
            return;
        }
        let silence = verdict::silence(now, alive_at, heartbeat_us, deadline_us);
        if silence == Silence::Usual {
            return;
        }
        // A late member has a long deadline, and a reply from its start may be wrong by now.
        link.forget_silent(now, self.config.deadline_us);
        if link.rounds == 0 || now >= link.round_at {
            link.rounds += 1;
            // After the report, probes are half as frequent.
            let pause_us = if link.reported.is_some() {
                heartbeat_us
            } else {
                heartbeat_us / 2
            };
            link.round_at = now.after(pause_us);
            self.topology.dirty |= link.rounds == 2;
            let has_probers = self.probe_round(id, version);
            if !has_probers
                && let Some(link) = self.links.get_mut(&id).filter(|l| l.is_unattested())
            {
                // Without probers the only evidence would be a few lost datagrams. A prober that also found
                // it silent is stronger evidence.
                link.round_at = now.after(heartbeat_us / LONELY_ROUNDS);
            }
        }
        if silence == Silence::Report && !self.doubts_itself() {
            let Some(link) = self.links.get_mut(&id) else {
                return;
            };
            if link.reported == Some(version) {
                return;
            }
            link.reported = Some(version);
            let answered = self
                .table
                .get(id)
                .is_some_and(|m| m.last_heard > Instant::default());
            let cause = if answered {
                CauseKind::Silence
            } else {
                CauseKind::Unanswered
            };
            self.report(id, cause, None);
        }
    }

    /// Probes a silent member over all rails, and asks probers. Returns false if there are none.
    pub(super) fn probe_round(&mut self, id: MemberId, version: Version) -> bool {
        if planted::on(Fault::NoProbes) {
            return true;
        }
        self.observe(id, self.own, ObservationKind::Probed);
        self.counters.probes_sent += 1;
        self.enqueue(Intent::Link {
            to: id,
            asked: None,
            route: Route::All,
        });
        self.request_indirect_probes(id, version)
    }

    /// Asks up to three probers, other observers of the member first. Returns false if there are none.
    pub(super) fn request_indirect_probes(&mut self, id: MemberId, version: Version) -> bool {
        let answered = self
            .links
            .get(&id)
            .map(|link| link.silent)
            .unwrap_or_default();
        let able = |table: &crate::table::Table, prober: MemberId, own: MemberId| {
            prober != own
                && prober != id
                && !answered.contains(prober)
                && table
                    .get(prober)
                    .is_some_and(|m| m.state == NodeState::Alive)
        };
        let mut probers: Vec<MemberId> = self
            .table
            .predecessors(id)
            .take(self.config.successors)
            .map(|member| member.id)
            .filter(|prober| able(&self.table, *prober, self.own))
            .take(PROBERS_MAX - 1)
            .collect();
        let mut others: Vec<MemberId> = self
            .table
            .iter_live()
            .map(|member| member.id)
            .filter(|prober| able(&self.table, *prober, self.own) && !probers.contains(prober))
            .collect();
        while probers.len() < PROBERS_MAX && !others.is_empty() {
            let index = self.random(others.len() as u64) as usize;
            probers.push(others.swap_remove(index));
        }
        let any = !probers.is_empty();
        for to in probers {
            self.enqueue(Intent::IndirectProbe {
                to,
                suspect: id,
                version,
            });
        }
        any
    }

    /// Whether the local member hears no other member, and doubts itself first.
    pub(super) fn doubts_itself(&mut self) -> bool {
        let deadline_us = self.widened_deadline_us(0);
        let others = self.table.live() - 1;
        let doubts = verdict::doubts_itself(
            self.now,
            self.watch.heard_any,
            self.watch.doubted_since,
            others,
            deadline_us,
        );
        if doubts && self.watch.doubted_since.is_none() {
            self.watch.doubted_since = Some(self.now);
            self.counters.self_doubts += 1;
            self.join_soon();
            let all: Vec<MemberId> = self.table.iter_live().map(|member| member.id).collect();
            let to = all[self.random(all.len() as u64) as usize];
            if to != self.own {
                self.enqueue(Intent::Probe { to });
            }
        }
        doubts
    }

    /// Reports a member, for the local member and for the probers that found it silent; `found` is the last
    /// of them.
    pub(super) fn report(&mut self, id: MemberId, cause: CauseKind, found: Option<MemberId>) {
        let Some(member) = self.table.in_view(id) else {
            return;
        };
        let before = self.that_count(*member.reporters);
        let mut reporters = before;
        let own = reporters.add(self.own, self.mark_of(self.own));
        for prober in self
            .links
            .get(&id)
            .map(|link| link.silent)
            .unwrap_or_default()
            .iter()
            .chain(found)
            .filter(|prober| self.may_report(*prober))
        {
            reporters.add(prober, self.mark_of(prober));
        }
        if reporters == before {
            return;
        }
        let silent_us = u32::try_from(self.now.since(member.alive_at())).unwrap_or(u32::MAX);
        let cause = if before.is_empty() {
            cause
        } else {
            member.cause
        };
        if own {
            self.counters.reports += 1;
            self.observe(id, self.own, ObservationKind::Reported(cause));
        }
        self.set_reporters(id, reporters, cause, silent_us, None);
        self.push_directly(Subject::Node(id));
        if self.table.in_view(id).is_some() {
            // Tells the reported member at once, on every rail, so that it can refute.
            let subject = Subject::Node(id);
            self.enqueue(Intent::Direct {
                to: id,
                subject,
                route: Route::All,
            });
        }
    }

    /// Judges all suspects again: the set of members that can report may have changed.
    pub(super) fn judge_suspects(&mut self) {
        if self.table.suspects() == 0 || self.rules.counts_reports {
            self.watch.confront_at = Instant::NEVER;
            return;
        }
        let confronts = self.is_time_to_confront();
        let suspects: Vec<MemberId> = self
            .table
            .iter_live()
            .filter(|member| member.state == NodeState::Suspect)
            .map(|member| member.id)
            .collect();
        for id in suspects {
            let Some(member) = self.table.get(id) else {
                continue;
            };
            let (cause, silent_us) = (member.cause, member.silent_us);
            let reporters = self.that_count(*member.reporters);
            let threshold = self.threshold_for(id);
            if verdict::judge(reporters.len(), threshold) == NodeState::Failed
                && !self.has_overslept()
                && !self.must_hold(id, reporters)
            {
                self.fail(id, cause, reporters, silent_us, None);
                self.push_directly(Subject::Node(id));
            } else if confronts {
                self.enqueue(Intent::Direct {
                    to: id,
                    subject: Subject::Node(id),
                    route: Route::All,
                });
            }
        }
    }

    /// Whether to send lasting suspicions to the suspects, which refute them if they can. Others may have
    /// dropped the suspicion, because they hold its reporter failed, and then no other member tells the
    /// suspect.
    fn is_time_to_confront(&mut self) -> bool {
        let due = self.now >= self.watch.confront_at;
        if due || self.watch.confront_at == Instant::NEVER {
            self.watch.confront_at = self.now.after(4 * self.config.deadline_us);
        }
        due
    }

    pub(super) fn next_watch_timer(&self) -> Instant {
        let mut next = Instant::NEVER;
        for (id, link) in self.links.watched() {
            let Some(member) = self.table.in_view(id) else {
                continue;
            };
            let alive_at = member.alive_at().max(link.since);
            let probe_at = if self.rules.counts_reports {
                Instant::NEVER
            } else if link.rounds == 0 {
                verdict::probe_at(alive_at, self.config.heartbeat_us)
            } else {
                // A forgiven silence has begun anew.
                let silent_at = verdict::probe_at(alive_at, self.config.heartbeat_us);
                link.round_at.max(silent_at)
            };
            next = next.min(probe_at);
            if link.reported != Some(member.version) {
                let report_at = alive_at.after(self.deadline_of(Some(member), Some(link)));
                // During self-doubt the rounds set the time.
                let report_at = if report_at <= self.now {
                    link.round_at
                } else {
                    report_at
                };
                next = next.min(report_at);
            }
        }
        for probe in self.watch.indirect_probes.values() {
            next = next.min(probe.next_at());
        }
        next
    }

    /// The deadline, widened by the local lateness, by the peer's, and by slow acknowledgements, by at most
    /// one second.
    pub(super) fn widened_deadline_us(&self, theirs_us: u64) -> u64 {
        let late_us = self.watch.lateness.figure_us() + theirs_us + self.slow_us();
        self.config.deadline_us + late_us.min(crate::lateness::LATE_MAX_US)
    }

    /// By how much acknowledgements are too slow: then beats are slow too, and a silence says less. A dead
    /// member acknowledges nothing, and so does not change this.
    fn slow_us(&self) -> u64 {
        if !self.rules.waits_for_acks || planted::on(Fault::NoLatenessShift) {
            return 0;
        }
        self.news
            .ack_rtt
            .rto_us()
            .saturating_sub(self.ack_wait_us())
    }

    /// How many distinct reporters remove this member: the rule for small views.
    pub(super) fn threshold_for(&self, id: MemberId) -> usize {
        let steady = self.table.live() - self.table.suspects();
        let is_steady = self
            .table
            .in_view(id)
            .is_some_and(|m| m.state != NodeState::Suspect);
        verdict::threshold(self.config.theta, steady - usize::from(is_steady))
    }

    /// The local member overslept: silence in that time does not count. All members are probed before they
    /// are judged, since the same lateness has widened the deadlines.
    pub(super) fn forgive(&mut self, late_us: u64) {
        let now = self.now;
        self.table.note_all(|member| {
            let shifted = member.alive_at().after(late_us).min(now);
            member.vouched_at = member.vouched_at.max(shifted);
        });
        for link in self.links.values_mut() {
            link.since = link.since.after(late_us).min(now);
            link.arrivals.forget_last();
            link.forgive(now, late_us);
        }
        for probe in self.watch.indirect_probes.values_mut() {
            probe.until = probe.until.after(late_us);
            probe.probe_at = probe.probe_at.min(now);
        }
        if late_us >= self.config.deadline_us {
            self.watch.overslept_until = now.after(2 * self.config.deadline_us);
            self.watch.minority.overslept();
            self.forget_suspicions();
        }
        self.watch.heard_any = self.watch.heard_any.after(late_us).min(now);
        self.watch.doubted_since = self
            .watch
            .doubted_since
            .map(|at| at.after(late_us).min(now));
    }

    /// Drops old suspicions: what became of them is not known, and passed on they would count as new, the
    /// local reports among them.
    fn forget_suspicions(&mut self) {
        if !self.rules.drops_old_suspicions {
            return;
        }
        self.table.drop_suspicions().into_iter().for_each(|id| {
            let nobody = Reporters::default();
            self.emit(id, EventKind::NodeRecovered, CauseKind::Refuted, nobody, 0);
        });
        for link in self.links.values_mut() {
            self.topology.dirty |= link.rounds > 1;
            link.heard();
        }
    }

    /// Whether the local member overslept a deadline, less than two deadlines ago: its view, and the frames
    /// in its sockets, are as old. Until then it makes no verdict, takes no report and passes none on, and
    /// its view counts as the weakest.
    pub(super) fn has_overslept(&self) -> bool {
        self.now < self.watch.overslept_until
    }

    /// Restarts all silences now.
    pub(super) fn grace(&mut self) {
        let now = self.now;
        self.table.note_all(|member| member.vouched_at = now);
        self.watch.heard_any = now;
    }
}
