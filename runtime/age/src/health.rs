//! Health: from ages to states and events.
//!
//! Younger than the first threshold is alive, older is suspect, older than the second is failed. A member
//! whose age gets far below the first threshold has come up, or is back. A participant that was never heard
//! of has no state. After the local member has overslept, ages say more about its sleep than about others:
//! then no member becomes suspect until it had time to be heard of again.

use super::Age;
use muster_wire::cause::{Cause, CauseKind};
use muster_wire::event::{Event, EventKind};
use muster_wire::evidence::{Observation, ObservationKind};
use muster_wire::identity::{MemberId, Version};
use muster_wire::reporters::Reporters;
use muster_wire::state::NodeState;
use muster_wire::table::Member;

/// Most events waiting for the host.
const EVENTS_MAX: usize = 65_536;

/// State of one participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Unknown,
    Alive,
    Suspect,
    Failed,
}

impl Age {
    /// Finds members that became younger, after every message.
    pub(super) fn judge_up(&mut self) {
        // Far below the threshold: some members know of a failure later than others.
        let young = self.config.up_within;
        let mut at = 0;
        while let Some(&index) = self.absent.get(at) {
            if self.gossip.ages()[index as usize] > young {
                at += 1;
                continue;
            }
            self.absent.swap_remove(at);
            self.appear(index as usize);
        }
    }

    /// Finds members that became too old, once a cycle.
    pub(super) fn judge_down(&mut self) {
        if self.gossip_cycles < self.grace_until {
            return;
        }
        let (old, dead) = (self.config.suspect_after, self.config.dead_after);
        for index in 0..self.config.participants.len() {
            let age = self.gossip.ages()[index];
            if age <= old {
                continue;
            }
            match self.health[index] {
                Health::Alive => {
                    self.health[index] = Health::Suspect;
                    self.absent.push(index as u32);
                    self.age_event(index, NodeState::Suspect, EventKind::NodeSuspect);
                    if age > dead {
                        self.fail(index, CauseKind::Silence);
                    }
                }
                Health::Suspect if age > dead => self.fail(index, CauseKind::Silence),
                Health::Suspect | Health::Failed | Health::Unknown => {}
            }
        }
    }

    pub(super) fn fail(&mut self, index: usize, cause: CauseKind) {
        self.health[index] = Health::Failed;
        // Others may tell of its return first, in any incarnation.
        self.incarnations[index] = 0;
        let now = self.now;
        self.table.change(self.ids[index], |member| {
            member.state = NodeState::Failed;
            member.cause = cause;
            member.removed_at = now;
        });
        self.observe(index, ObservationKind::Failed(cause));
        self.emit(index, EventKind::NodeFailed, cause);
    }

    /// This participant was there when an earlier engine ended: it is suspect until it is heard of, and
    /// fails at the usual time. Its age is the greatest, so that no other member takes it for young.
    pub fn expect(&mut self, id: MemberId) {
        let Ok(index) = self.place_of(id) else {
            return;
        };
        if self.health[index] != Health::Unknown {
            return;
        }
        self.health[index] = Health::Suspect;
        self.gossip.expect(index, self.config.suspect_after);
        let info = self.config.participants[index].info();
        let mut member = Member::new(id, info, Version::first(1));
        member.joined_at = self.now;
        member.state = NodeState::Suspect;
        member.cause = CauseKind::Silence;
        self.table.insert(member);
    }

    /// The host knows that a participant runs with this incarnation: frames to it are for that one from the
    /// first on.
    pub fn know(&mut self, id: MemberId, incarnation: u64) {
        if let Ok(index) = self.place_of(id) {
            self.receivers[index] = incarnation;
        }
    }

    fn age_event(&mut self, index: usize, state: NodeState, kind: EventKind) {
        self.table.change(self.ids[index], |member| {
            member.state = state;
            member.cause = CauseKind::Silence;
        });
        self.observe(index, ObservationKind::Reported(CauseKind::Silence));
        self.emit(index, kind, CauseKind::Silence);
    }

    /// A member is young: for the first time, again, or still.
    fn appear(&mut self, index: usize) {
        let before = std::mem::replace(&mut self.health[index], Health::Alive);
        let (id, now) = (self.ids[index], self.now);
        let (kind, cause) = match before {
            Health::Unknown => {
                let participant = &self.config.participants[index];
                let info = participant.info();
                let mut member =
                    Member::new(id, info, Version::first(self.incarnations[index].max(1)));
                member.joined_at = now;
                self.table.insert(member);
                (EventKind::NodeUp, CauseKind::Joined)
            }
            Health::Failed => {
                self.table.change(id, |member| {
                    let version = member.version.raised();
                    member.enter(version);
                    member.joined_at = now;
                });
                (EventKind::NodeUp, CauseKind::Joined)
            }
            Health::Suspect | Health::Alive => (EventKind::NodeRecovered, CauseKind::Refuted),
        };
        self.table.change(id, |member| {
            member.state = NodeState::Alive;
            member.cause = cause;
        });
        let observed = match cause {
            CauseKind::Refuted => ObservationKind::Refuted,
            _ => ObservationKind::Joined,
        };
        self.observe(index, observed);
        self.emit(index, kind, cause);
    }

    /// A frame of this incarnation came from the member itself.
    pub(super) fn heard(&mut self, index: usize, incarnation: u64) {
        let (id, now) = (self.ids[index], self.now);
        let known = self.incarnations[index];
        if incarnation > known {
            let is_here = matches!(self.health[index], Health::Alive | Health::Suspect);
            if known != 0 && is_here {
                // Others may not notice; a member that hears it directly reports that the previous
                // incarnation ended.
                self.fail(index, CauseKind::Superseded);
                self.absent.retain(|absent| *absent as usize != index);
                self.absent.push(index as u32);
            }
            let version = Version::first(incarnation);
            self.table.change(id, |member| {
                if version > member.version {
                    member.enter(version);
                }
            });
        }
        self.incarnations[index] = incarnation;
        self.table.note(id, |member| member.last_heard = now);
    }

    pub(super) fn emit(&mut self, index: usize, kind: EventKind, cause: CauseKind) {
        let id = self.ids[index];
        let version = self.table.get(id).map(|member| member.version);
        let silent_us =
            u64::from(self.gossip.ages()[index]).saturating_mul(self.config.interval_us);
        let is_silence = cause == CauseKind::Silence;
        self.push_event(Event {
            at: self.now,
            kind,
            member: id,
            version: version.unwrap_or(Version::first(1)),
            cause: Cause {
                kind: cause,
                reporters: if is_silence {
                    Reporters::from_iter([self.own])
                } else {
                    Reporters::default()
                },
                silent_us: if is_silence {
                    u32::try_from(silent_us).unwrap_or(u32::MAX)
                } else {
                    0
                },
            },
        });
    }

    pub(super) fn push_event(&mut self, event: Event) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
            self.counters.events_dropped += 1;
        }
        self.events.push_back(event);
    }

    pub(super) fn observe(&mut self, index: usize, kind: ObservationKind) {
        let (at, by) = (self.now, self.own);
        self.table.note(self.ids[index], |member| {
            let version = member.version;
            member.evidence.push(Observation {
                at,
                by,
                version,
                kind,
            });
        });
    }
}
