//! Who is alive: what ages become, and the events of it.
//!
//! Younger than the first threshold is alive, older is suspect, older than the second is failed;
//! whoever gets far younger than the first one has come up, or back. A participant that was never
//! heard of has no state at all. After this member itself slept, ages say more about its sleep than
//! about the others: then nobody grows suspect until they had time to be heard of again.

use super::Age;
use crate::event::{Cause, CauseKind, Event, EventKind};
use crate::evidence::{Observation, ObservationKind};
use crate::identity::{MemberId, Version};
use crate::member_info::MemberInfo;
use crate::state::NodeState;
use crate::table::{Member, Reporters};

/// Most events waiting for the host.
const EVENTS_MAX: usize = 65_536;

/// What is known of one participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Unknown,
    Alive,
    Suspect,
    Failed,
}

impl Age {
    /// Looks who got younger: after every message.
    pub(super) fn judge_up(&mut self) {
        // Not just below the threshold: of one who has just died some know from later than others.
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

    /// Looks who got too old: once a cycle.
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
        // Others may tell that it is back before it does so itself, in whatever life.
        self.incarnations[index] = 0;
        let now = self.now;
        self.table.change(self.ids[index], |member| {
            member.state = NodeState::Failed;
            member.cause = cause;
            member.removed_at = now;
        });
        self.observe(index, ObservationKind::Failed(cause));
        self.tell(index, EventKind::NodeFailed, cause);
    }

    /// Whoever this is was there when an engine before this one ended: it is suspect until it is heard of,
    /// and failed at the time it would be. It is as old as can be without anybody taking it for young by us.
    pub fn expect(&mut self, id: MemberId) {
        let Ok(index) = self.place_of(id) else {
            return;
        };
        if self.health[index] != Health::Unknown {
            return;
        }
        self.health[index] = Health::Suspect;
        self.gossip.expect(index, self.config.suspect_after);
        let info = MemberInfo::of_participant(&self.config.participants[index]);
        let mut member = Member::new(id, info, Version::first(1));
        member.joined_at = self.now;
        member.state = NodeState::Suspect;
        member.cause = CauseKind::Silence;
        self.table.insert(member);
    }

    /// A participant runs in this life, as the host knows: frames to it are for that life from the first one on.
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
        self.tell(index, kind, CauseKind::Silence);
    }

    /// It is young: for the first time, again, or still.
    fn appear(&mut self, index: usize) {
        let before = std::mem::replace(&mut self.health[index], Health::Alive);
        let (id, now) = (self.ids[index], self.now);
        let (kind, cause) = match before {
            Health::Unknown => {
                let participant = &self.config.participants[index];
                let info = MemberInfo::of_participant(participant);
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
        self.tell(index, kind, cause);
    }

    /// A frame of this life came straight from it.
    pub(super) fn heard(&mut self, index: usize, incarnation: u64) {
        let (id, now) = (self.ids[index], self.now);
        let known = self.incarnations[index];
        if incarnation > known {
            let is_here = matches!(self.health[index], Health::Alive | Health::Suspect);
            if known != 0 && is_here {
                // Others may not notice; whoever hears it itself tells that the former life ended.
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

    pub(super) fn tell(&mut self, index: usize, kind: EventKind, cause: CauseKind) {
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
