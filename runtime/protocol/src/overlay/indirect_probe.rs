//! Indirect probe: probes a silent member for another member (the requester), and replies with the result.
//!
//! The engine probes the suspect for one heartbeat. It replies *alive*, with the time since the last frame
//! of the suspect, or *silent*.
//!
//! The engine also starts such a probe for itself: when a verdict comes with too few reporters for its own
//! threshold, and when the fabric cannot reach a member.

use crate::cause::CauseKind;
use crate::evidence::ObservationKind;
use crate::identity::{MemberId, Version};
use crate::interface::Route;
use crate::lateness::LATE_MAX_US;
use crate::overlay::Overlay;
use crate::overlay::outbox::Intent;
use crate::state::NodeState;
use crate::subjects::Subject;
use crate::table::Member;
use crate::time::Instant;

/// Most members probed for others at the same time.
pub(super) const INDIRECT_PROBES_MAX: usize = 256;
/// Most requesters of one probe.
const REQUESTERS_MAX: usize = 8;

/// The probe of one suspect.
#[derive(Clone, Debug)]
pub(super) struct IndirectProbe {
    pub(super) version: Version,
    since: Instant,
    pub(super) until: Instant,
    pub(super) probe_at: Instant,
    pub(super) requesters: Vec<MemberId>,
    /// The cause to report the suspect with if it stays silent; `None` if it is probed only for others.
    own: Option<CauseKind>,
}

impl IndirectProbe {
    /// The next time at which something is to be done.
    pub(super) fn next_at(&self) -> Instant {
        self.until.min(self.probe_at)
    }
}

impl Overlay {
    /// Takes the request of another member to probe a suspect.
    pub(super) fn take_indirect_probe(
        &mut self,
        from: MemberId,
        suspect: MemberId,
        version: Version,
    ) {
        let Some(member) = self.table.get(suspect) else {
            return;
        };
        let (state, last_heard) = (member.state, member.last_heard);
        let agrees = suspect != self.own && member.version == version;
        if !agrees || !state.in_view() {
            // The requester holds another version, or the suspect is not in the view: answer with the
            // record.
            self.enqueue(Intent::Direct {
                to: from,
                subject: Subject::Node(suspect),
                route: Route::Next,
            });
        }
        // A suspect that is held failed is probed all the same: the verdict may have too few reporters for
        // the requester, or only the requester itself.
        if !agrees || state == NodeState::Left {
            return;
        }
        if self.now.since(last_heard) < self.config.heartbeat_us / 2 {
            self.enqueue(Intent::IndirectProbeReply {
                to: from,
                suspect,
                version,
                alive: true,
            });
            return;
        }
        self.start_indirect_probe(suspect, Some(from), None);
    }

    /// Starts to probe a suspect, or adds a requester to the probe.
    pub(super) fn start_indirect_probe(
        &mut self,
        id: MemberId,
        requester: Option<MemberId>,
        own: Option<CauseKind>,
    ) {
        let Some(version) = self.table.get(id).map(|member| member.version) else {
            return;
        };
        let now = self.now;
        if !self.watch.indirect_probes.contains_key(&id)
            && self.watch.indirect_probes.len() >= INDIRECT_PROBES_MAX
        {
            self.counters.indirect_probes_refused += 1;
            return;
        }
        // As long as a watch after its first probe, and longer for late members.
        let theirs_us = self.table.get(id).map_or(0, Member::late_us);
        let late_us = (self.watch.lateness.figure_us() + theirs_us).min(LATE_MAX_US);
        let heartbeat_us = self.config.heartbeat_us;
        let until = now.after(heartbeat_us + late_us);
        let probe = self
            .watch
            .indirect_probes
            .get_or_insert_with(id, || IndirectProbe {
                version,
                since: now,
                until,
                probe_at: now,
                requesters: Vec::new(),
                own: None,
            });
        probe.own = probe.own.or(own);
        if let Some(requester) = requester
            && !probe.requesters.contains(&requester)
        {
            if probe.requesters.len() >= REQUESTERS_MAX {
                self.counters.indirect_probes_refused += 1;
                return;
            }
            probe.requesters.push(requester);
        }
    }

    /// Ends the probe of a member that was heard, by this engine or by another, since it began.
    pub(super) fn found_alive(&mut self, id: MemberId) {
        if let Some(probe) = self.watch.indirect_probes.remove(&id) {
            for to in probe.requesters {
                self.enqueue(Intent::IndirectProbeReply {
                    to,
                    suspect: id,
                    version: probe.version,
                    alive: true,
                });
            }
        }
    }

    /// Takes the reply of a prober.
    pub(super) fn take_indirect_probe_reply(
        &mut self,
        from: MemberId,
        suspect: MemberId,
        version: Version,
        alive: bool,
        age_us: u32,
    ) {
        let now = self.now;
        let Some(member) = self
            .table
            .in_view(suspect)
            .filter(|held| held.version == version)
        else {
            return;
        };
        let reported = member.reporters.contains(self.own);
        if alive {
            let at = Instant(now.0.saturating_sub(u64::from(age_us)));
            if at > member.alive_at() {
                self.table.note(suspect, |member| member.vouched_at = at);
                self.observe(suspect, from, ObservationKind::Vouched);
                if let Some(link) = self.links.get_mut(&suspect) {
                    link.heard();
                }
                if self
                    .watch
                    .indirect_probes
                    .get(&suspect)
                    .is_some_and(|probe| at > probe.since)
                {
                    self.found_alive(suspect);
                }
            }
            return;
        }
        self.observe(suspect, from, ObservationKind::FoundSilent);
        if let Some(link) = self.links.get_mut(&suspect).filter(|link| link.observes) {
            if link.rounds == 0 {
                // It was heard since the request: the reply is about a silence that is over.
                return;
            }
            link.found_silent(from, now);
        }
        if reported {
            self.report(suspect, CauseKind::Silence, Some(from));
        }
    }

    pub(super) fn run_indirect_probes(&mut self) {
        let (now, heartbeat_us) = (self.now, self.config.heartbeat_us);
        let due: Vec<MemberId> = self
            .watch
            .indirect_probes
            .iter()
            .filter(|(_, probe)| now >= probe.next_at())
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let Some(probe) = self.watch.indirect_probes.get_mut(&id) else {
                continue;
            };
            if now < probe.until {
                probe.probe_at = now.after(heartbeat_us / 3);
                self.probe(id);
                continue;
            }
            let Some(probe) = self.watch.indirect_probes.remove(&id) else {
                continue;
            };
            for to in probe.requesters {
                self.enqueue(Intent::IndirectProbeReply {
                    to,
                    suspect: id,
                    version: probe.version,
                    alive: false,
                });
            }
            if let Some(cause) = probe.own
                && self
                    .table
                    .in_view(id)
                    .is_some_and(|m| m.version == probe.version)
                && !self.doubts_itself()
            {
                self.report(id, cause, None);
                if self.table.in_view(id).is_some() {
                    // One report is not enough, and perhaps no other member observes the suspect. Members
                    // that hold it failed may have reported it before, to members that do not count their
                    // reports.
                    self.request_indirect_probes(id, probe.version);
                }
            }
        }
    }

    /// Sends a probe to a suspect.
    fn probe(&mut self, id: MemberId) {
        let is_new = |member: &Member| member.last_heard == Instant::default();
        if self.table.get(id).is_some_and(is_new) {
            // A member that does not know the local member does not answer it: introduce it first.
            self.enqueue(Intent::Link {
                to: id,
                asked: None,
                route: Route::All,
            });
        }
        self.enqueue(Intent::Probe { to: id });
    }
}
