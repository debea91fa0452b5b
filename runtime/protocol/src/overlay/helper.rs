//! Helping others to look: a silent member is probed for one heartbeat, and the answer given.
//!
//! The same look is taken for ourselves when a verdict comes from elsewhere with too few reporters for
//! our own rule, or when the fabric cannot reach a member; then with helpers, and three quarters of a
//! heartbeat longer: those who heard the member just before the fabric lost it say so at first, and
//! know better half a heartbeat later.

use crate::event::CauseKind;
use crate::evidence::ObservationKind;
use crate::identity::{MemberId, Version};
use crate::lateness::LATE_MAX_US;
use crate::link::Subject;
use crate::overlay::Overlay;
use crate::overlay::interface::Route;
use crate::overlay::outbox::Intent;
use crate::state::NodeState;
use crate::table::Member;
use crate::time::Instant;

/// Members one engine looks after for others at the same time.
pub(super) const CHECKS_MAX: usize = 256;
/// Askers remembered for one suspect.
const ASKERS_MAX: usize = 8;

/// Looking after one suspect.
#[derive(Clone, Debug)]
pub(super) struct Check {
    pub(super) version: Version,
    since: Instant,
    pub(super) until: Instant,
    pub(super) probe_at: Instant,
    pub(super) askers: Vec<MemberId>,
    /// When those who asked are told that it is silent; never if nobody did.
    pub(super) answer_at: Instant,
    /// Report it ourselves, with this cause, if it stays silent.
    own: Option<CauseKind>,
    /// Helpers are asked too.
    asks: bool,
}

impl Check {
    /// When there is something to do.
    pub(super) fn next_at(&self) -> Instant {
        self.until.min(self.probe_at).min(self.answer_at)
    }
}

impl Overlay {
    /// A helper's task: look after the suspect, and answer.
    pub(super) fn asked(&mut self, from: MemberId, suspect: MemberId, version: Version) {
        let Some(member) = self.table.get(suspect) else {
            return;
        };
        let (state, last_heard) = (member.state, member.last_heard);
        let agrees = suspect != self.own && member.version == version;
        if !agrees || !state.in_view() {
            // Whoever asks is behind, or ahead: the record itself is the better answer.
            self.say(Intent::Direct {
                to: from,
                subject: Subject::Node(suspect),
                route: Route::Next,
            });
        }
        // One that we hold failed too is looked after like any other: the reporters of our verdict
        // may be too few for the one who asks, or be nobody but itself.
        if !agrees || state == NodeState::Left {
            return;
        }
        if self.now.since(last_heard) < self.config.heartbeat_us / 2 {
            self.say(Intent::Answer {
                to: from,
                suspect,
                version,
                alive: true,
            });
            return;
        }
        self.check(suspect, Some(from), None);
    }

    /// Starts looking after a suspect, or adds an asker to it.
    pub(super) fn check(&mut self, id: MemberId, asker: Option<MemberId>, own: Option<CauseKind>) {
        let Some(version) = self.table.get(id).map(|member| member.version) else {
            return;
        };
        let now = self.now;
        if !self.checks.contains_key(&id) && self.checks.len() >= CHECKS_MAX {
            self.counters.checks_refused += 1;
            return;
        }
        // As long as the watch looks, after its first probe, and longer for who is late.
        let theirs_us = self.table.get(id).map_or(0, Member::late_us);
        let late_us = (self.lateness.figure_us() + theirs_us).min(LATE_MAX_US);
        let heartbeat_us = self.config.heartbeat_us;
        let until = now.after(heartbeat_us + late_us);
        let check = self.checks.entry(id).or_insert_with(|| Check {
            version,
            since: now,
            until,
            probe_at: now,
            askers: Vec::new(),
            answer_at: Instant::NEVER,
            own: None,
            asks: false,
        });
        check.own = check.own.or(own);
        if let Some(asker) = asker
            && !check.askers.contains(&asker)
        {
            if check.askers.len() >= ASKERS_MAX {
                self.counters.checks_refused += 1;
                return;
            }
            check.askers.push(asker);
            // Our own look may take longer than they wait.
            check.answer_at = check.answer_at.min(match check.asks {
                true => until,
                false => check.until,
            });
        }
    }

    /// Starts looking, with helpers, after one that the fabric cannot reach.
    pub(super) fn look(&mut self, id: MemberId) {
        self.check(id, None, Some(CauseKind::Unreachable));
        let (now, heartbeat_us) = (self.now, self.config.heartbeat_us);
        if let Some(check) = self.checks.get_mut(&id).filter(|check| !check.asks) {
            check.asks = true;
            check.until = check.until.after(heartbeat_us - heartbeat_us / 4);
            check.probe_at = now;
        }
    }

    /// One that is looked after was heard, by us or by somebody else, since we began.
    pub(super) fn found_alive(&mut self, id: MemberId) {
        if let Some(check) = self.checks.remove(&id) {
            for to in check.askers {
                self.say(Intent::Answer {
                    to,
                    suspect: id,
                    version: check.version,
                    alive: true,
                });
            }
        }
    }

    /// A helper's answer.
    pub(super) fn answered(
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
                    .checks
                    .get(&suspect)
                    .is_some_and(|check| at > check.since)
                {
                    self.found_alive(suspect);
                }
            }
            return;
        }
        self.observe(suspect, from, ObservationKind::FoundSilent);
        if let Some(link) = self.links.get_mut(&suspect).filter(|link| link.observes) {
            if link.rounds == 0 {
                // We have heard it since we asked: the answer is about a silence that is over.
                return;
            }
            link.found_silent(from, now);
        }
        if reported {
            self.report(suspect, CauseKind::Silence, Some(from));
        }
    }

    pub(super) fn run_checks(&mut self) {
        let (now, heartbeat_us) = (self.now, self.config.heartbeat_us);
        let due: Vec<MemberId> = self
            .checks
            .iter()
            .filter(|(_, check)| now >= check.next_at())
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let Some(check) = self.checks.get_mut(&id) else {
                continue;
            };
            let (version, with_helpers) = (check.version, check.asks);
            let (is_over, probes) = (now >= check.until, now >= check.probe_at);
            // Helpers are asked as long as their answers would be in time.
            let asks = with_helpers && now.after(heartbeat_us) <= check.until;
            if probes {
                check.probe_at = now.after(heartbeat_us / if with_helpers { 4 } else { 3 });
            }
            let mut askers = Vec::new();
            if is_over || now >= check.answer_at {
                check.answer_at = Instant::NEVER;
                askers = core::mem::take(&mut check.askers);
            }
            for to in askers {
                self.say(Intent::Answer {
                    to,
                    suspect: id,
                    version,
                    alive: false,
                });
            }
            if !is_over {
                match (probes, asks) {
                    (true, true) => _ = self.probe_round(id, version),
                    (true, false) => self.probe(id),
                    (false, _) => {}
                }
                continue;
            }
            let Some(check) = self.checks.remove(&id) else {
                continue;
            };
            if let Some(cause) = check.own
                && self
                    .table
                    .in_view(id)
                    .is_some_and(|m| m.version == check.version)
                && !self.doubts_itself()
            {
                self.report(id, cause, None);
                if self.table.in_view(id).is_some() {
                    // Our word alone is not enough, and perhaps nobody else observes it: those who
                    // hold it failed already reported it to others, whose word we do not count.
                    self.ask_helpers(id, check.version);
                }
            }
        }
    }

    /// Probes one that is looked after.
    fn probe(&mut self, id: MemberId) {
        let strange = |member: &Member| member.last_heard == Instant::default();
        if self.table.get(id).is_some_and(strange) {
            // It may not know us, and answers nobody it does not know: we introduce ourselves.
            self.say(Intent::Link {
                to: id,
                asked: None,
                route: Route::All,
            });
        }
        self.say(Intent::Probe { to: id });
    }
}
