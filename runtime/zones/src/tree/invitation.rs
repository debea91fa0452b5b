//! Guards ask the nodes of a zone that is absent to join the zone above, before they declare it failed.
//!
//! The nodes of a zone replace supervisors that have failed, but where most of them fail at once, those that are left
//! may take longer to agree on it than its guards wait. Then any of its nodes can answer for it: one that is asked
//! joins if no supervisor of its zone answers it within a deadline, and leaves again once it is clear that it is not
//! chosen. If no node joins, the zone has failed or is cut off.

use muster_protocol::planted::{self, Fault};
use muster_protocol::{Input, Instant, MemberId, Phase, frame};

use crate::directory::NodeIndex;
use crate::limits::SUPERVISORS;
use crate::map::ZoneId;
use crate::roles::{Role, candidates_of_bases, choose};
use crate::tree::level::Child;
use crate::tree::{Tree, zone_number};

/// Nodes of a zone that is absent for so many deadlines are asked to join.
const ASK_DEADLINES: u64 = 3;
/// Nodes that are asked at once.
const ASKED: usize = 4;
/// Zones whose nodes are asked at once: an engine sends to a few addresses at a time. Others wait for a heartbeat.
const ZONES_ASKED: usize = 2;
/// Most nodes of a zone that are asked.
const ASKED_MAX: usize = 64;

impl Tree {
    /// When nodes of an absent zone below are asked next.
    pub(super) fn next_invitation(&self, child: &Child) -> Instant {
        let first = child.absent_since.map_or(Instant::NEVER, |since| {
            since.after(self.deadlines(ASK_DEADLINES))
        });
        match child.asked >= ASKED_MAX {
            true => Instant::NEVER,
            false => first.max(child.ask_at),
        }
    }

    /// Asks nodes of each absent zone below that the local node guards, twice a deadline, others each time.
    pub(super) fn invite(&mut self, level: usize) {
        let (now, pause_us) = (self.now, self.config.deadline_us / 2);
        let children = self.levels[level].children.iter();
        let due = children.filter(|(_, child)| {
            !child.state.is_failed && child.live == 0 && now >= self.next_invitation(child)
        });
        let own = self.levels[level].engine.id();
        let due = due.map(|(number, _)| (*number, self.guards_of(level, *number).contains(&own)));
        let mut zones = 0;
        for (number, is_guard) in due.collect::<Vec<_>>() {
            zones += usize::from(is_guard);
            if zones > ZONES_ASKED {
                break;
            }
            let Some(child) = self.levels[level].children.get_mut(&number) else {
                continue;
            };
            child.ask_at = now.after(pause_us);
            let turn = child.asked;
            child.asked += ASKED;
            if let Some(zone) = self.levels[level].child(number).filter(|_| is_guard) {
                self.invite_nodes(level, zone, turn);
            }
        }
    }

    fn invite_nodes(&mut self, level: usize, zone: ZoneId, turn: usize) {
        let nodes = candidates_of_bases(&self.map, zone, ASKED_MAX);
        let nodes = nodes.iter().cycle().skip(turn % nodes.len().max(1));
        let address = |node: &NodeIndex| self.contacts.get(node.0 as usize);
        let addresses = nodes.take(ASKED).filter_map(address);
        for address in addresses.filter(|address| !address.is_empty()) {
            // It is refused only if the engine has stopped.
            let input = Input::Contact { address };
            let _ = self.levels[level].engine.handle(self.now, input);
        }
    }

    /// Takes a frame of the zone above, of which the local node is no member. Returns whether it was one, and
    /// authentic.
    ///
    /// It asks the supervisors of its own zone for a sign of life. They answer if the frame was for one of them, as
    /// when members of other zones start.
    pub(super) fn take_invitation(&mut self, bytes: &[u8]) -> bool {
        let level = self.levels.len() - 1;
        let current = &self.levels[level];
        let above = self.map.parent(current.zone).map(zone_number);
        let key = self.config.key.filter(|_| above.is_some());
        let is_ready = current.has_formed && current.engine.phase() == Phase::Running;
        let is_its =
            above == frame::zone(bytes) && key.is_some_and(|key| frame::is_for_anyone(&key, bytes));
        if !is_ready || !is_its {
            return false;
        }
        if self.invitation.is_some() {
            return true;
        }
        for id in self.supervisors(level) {
            // It is refused if the member has just left the view.
            let _ = self.levels[level].engine.handle(self.now, Input::Ask(id));
        }
        self.invitation = Some(Invitation {
            at: self.now,
            frame: bytes.to_vec(),
        });
        self.review_at = self.review_at.min(self.invited_until());
        true
    }

    /// Until when the supervisors of the local zone may answer after an invitation.
    pub(super) fn invited_until(&self) -> Instant {
        let at = self.invitation.as_ref().map(|invitation| invitation.at);
        at.map_or(Instant::NEVER, |at| at.after(self.config.deadline_us))
    }

    /// Joins the zone above after an invitation, if no supervisor of the local zone has answered in time. Returns
    /// whether it did.
    ///
    /// A recorded frame may make the node join too. It leaves again, as it is not chosen.
    pub(super) fn follow_invitation(&mut self) -> bool {
        if self.now < self.invited_until() {
            return false;
        }
        let Some(invitation) = self.invitation.take() else {
            return false;
        };
        let level = self.levels.len() - 1;
        let current = &self.levels[level];
        let has_answered = |id: MemberId| {
            let member = current.engine.member(id);
            member.is_some_and(|member| member.last_heard() > invitation.at)
        };
        let above = self.map.parent(current.zone);
        let called = frame::zone(&invitation.frame);
        let Some(above) = above.filter(|above| Some(zone_number(*above)) == called) else {
            return false;
        };
        if self.supervisors(level).any(has_answered) || planted::on(Fault::NoReplacement) {
            return false;
        }
        self.join_above(level, above);
        if let Some(joined) = self.levels.get_mut(level + 1) {
            let bytes = &invitation.frame;
            // A recorded one is refused.
            let _ = joined.engine.handle(self.now, Input::Datagram { bytes });
        }
        true
    }

    /// The supervisors of the zone at this level, as the local node, which is none, sees it.
    fn supervisors(&self, level: usize) -> impl Iterator<Item = MemberId> + use<> {
        let current = &self.levels[level];
        let (path, own) = (self.map.path(current.zone), current.engine.id());
        let members = current.live().map(|member| member.id());
        let chosen = choose(Role::Supervisor, path, members, SUPERVISORS);
        chosen.into_iter().filter(move |id| *id != own)
    }
}

/// A frame of the zone above that has come though the local node is no member of it.
#[derive(Clone, Debug)]
pub(super) struct Invitation {
    at: Instant,
    frame: Vec<u8>,
}
