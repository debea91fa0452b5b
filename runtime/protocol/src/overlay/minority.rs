//! Minority: which side of a split the local member is on, and what follows by policy.
//!
//! The sides are compared by the rule that decides which side yields when they meet again
//! (`verdict::yields`). The smaller side is the minority; of two equal sides, the one whose first member
//! comes later on the ring.
//!
//! **Continue.** Silent members are failed as ever. Failures with less than four deadlines from one to the
//! next are one loss. When the lost members outweigh the remaining ones, `Minority` is reported, and
//! `Majority` when more than half of all are back. A view of which half has died looks the same.
//!
//! **Hold.** A member that has reported a suspect makes the verdict only after it has heard the heavier
//! side of the view in a poll. All other members wait for that verdict. The poll asks all members, suspects
//! too, every half heartbeat, for one deadline. Members without an answer are judged half a heartbeat after
//! its start; so a verdict costs that time, and two datagrams a member. A failed poll is reported as
//! `Minority`, and repeated four deadlines later while suspects remain; the reports are old by then, so
//! members are judged only at the end of that poll. So the smaller side makes no verdicts: its suspects
//! stay in its view until they answer, or until the local member learns that the others hold it failed. For
//! four deadlines after its start a member does not poll: it may not have heard of most members. A failure
//! told by a launcher or an administrator needs no majority.

use std::collections::BTreeSet;

use crate::cause::CauseKind;
use crate::config::Minority;
use crate::event::EventKind;
use crate::identity::MemberId;
use crate::overlay::Overlay;
use crate::overlay::correlation::WINDOW_DEADLINES;
use crate::overlay::outbox::Intent;
use crate::planted::{self, Fault};
use crate::reporters::Reporters;
use crate::table::Member;
use crate::time::Instant;
use crate::verdict;
use crate::wire::Strength;

/// A poll of all members.
#[derive(Clone, Copy, Debug)]
struct Poll {
    began_at: Instant,
    /// No verdict before this: suspects may answer too.
    ripe_at: Instant,
    round_at: Instant,
    until: Instant,
}

/// State of the local side.
#[derive(Clone, Debug, Default)]
pub(super) struct Side {
    poll: Option<Poll>,
    /// A member was heard since the poll was last counted.
    news: bool,
    /// Members of the view that were heard; `None` if they must be counted again. Cached, since each
    /// suspect and each frame needs it.
    here: Option<usize>,
    /// The last poll failed: the waiting reports are old.
    vain: bool,
    /// No poll before this.
    again_at: Instant,
    /// Size of the whole when `Minority` was reported; `None` otherwise.
    told: Option<u32>,
    /// The members of one loss, when it ends, and whether it was reported.
    lost: BTreeSet<MemberId>,
    /// Those of them that have entered the view since the last one was lost.
    returned: BTreeSet<MemberId>,
    lost_until: Instant,
    lost_told: bool,
}

impl Side {
    /// The local member overslept: the poll is out of date.
    pub(super) fn overslept(&mut self) {
        self.poll = None;
    }

    /// Notes a frame of a member in the view that was last heard at `last_heard`.
    pub(super) fn heard(&mut self, now: Instant, last_heard: Instant) {
        let asked = self.poll.filter(|poll| now > poll.began_at);
        if asked.is_some_and(|poll| last_heard <= poll.began_at) {
            self.news = true;
            self.here = self.here.map(|here| here + 1);
        }
    }

    /// A member entered the view.
    pub(super) fn entered(&mut self, id: MemberId) {
        self.here = None;
        if self.lost.contains(&id) {
            self.returned.insert(id);
        }
    }

    /// A member left the view.
    pub(super) fn removed(&mut self) {
        self.here = None;
    }
}

impl Overlay {
    /// Whether the policy holds the verdict on this member, for which there are enough reports.
    pub(super) fn must_hold(&mut self, id: MemberId, reporters: Reporters) -> bool {
        if self.config.minority == Minority::Continue || planted::on(Fault::NothingHeld) {
            return false;
        }
        let version = self.table.get(id).map(|member| member.version);
        let reported = self.links.get(&id).and_then(|link| link.reported);
        if !reporters.contains(self.own) && (version.is_none() || reported != version) {
            return true;
        }
        if self.watch.minority.poll.is_none() && self.now >= self.watch.minority.again_at {
            let until = self.now.after(self.config.deadline_us);
            let soon = self.now.after(self.config.heartbeat_us / 2);
            self.watch.minority.here = None;
            self.watch.minority.poll = Some(Poll {
                began_at: self.now,
                ripe_at: if self.watch.minority.vain {
                    until
                } else {
                    soon
                },
                round_at: self.now,
                until,
            });
        }
        let Some(poll) = self.watch.minority.poll else {
            return true;
        };
        let answers = self
            .table
            .get(id)
            .is_some_and(|member| self.is_here(member, poll));
        answers || self.now < poll.ripe_at || !self.has_majority()
    }

    /// Whether the members heard since the start of the poll outweigh the others.
    fn has_majority(&mut self) -> bool {
        let Some(poll) = self.watch.minority.poll else {
            return false;
        };
        let is_ours = |member: &&Member| self.is_here(member, poll);
        let count = || self.table.iter_live().filter(is_ours).count();
        let (here, live) = (
            self.watch.minority.here.unwrap_or_else(count),
            self.table.live(),
        );
        self.watch.minority.here = Some(here);
        if 2 * here != live {
            return 2 * here > live;
        }
        let is_ours = |member: &&Member| self.is_here(member, poll);
        let ours = strength(self.table.iter_live().filter(is_ours));
        let theirs = strength(self.table.iter_live().filter(|member| !is_ours(member)));
        !verdict::yields(ours, theirs)
    }

    fn is_here(&self, member: &Member, poll: Poll) -> bool {
        member.id == self.own || member.last_heard > poll.began_at
    }

    pub(super) fn run_minority(&mut self) {
        self.run_poll();
        self.run_told();
    }

    fn run_poll(&mut self) {
        let Some(mut poll) = self.watch.minority.poll else {
            return;
        };
        if self.table.suspects() == 0 {
            self.watch.minority.poll = None;
            self.watch.minority.vain = false;
            return;
        }
        let due = core::mem::take(&mut self.watch.minority.news) || self.now >= poll.round_at;
        if (due || self.now >= poll.until) && self.has_majority() {
            self.judge_suspects();
        }
        if self.now >= poll.until {
            if !self.has_majority() && self.table.suspects() > 0 {
                self.watch.minority.vain = true;
                self.watch.minority.again_at = self.window();
                let here = |member: &&Member| self.is_here(member, poll);
                let reached = self.table.iter_live().filter(here).count();
                self.emit_minority(reached, self.table.live(), true);
            }
            self.watch.minority.poll = None;
            return;
        }
        if self.now >= poll.round_at {
            poll.round_at = self.now.after(self.config.heartbeat_us / 2);
            self.watch.minority.poll = Some(poll);
            let silent = |member: &&Member| !self.is_here(member, poll);
            let members = self.table.iter_live().filter(silent);
            let silent: Vec<MemberId> = members.map(|member| member.id).collect();
            for to in silent {
                self.enqueue(Intent::Probe { to });
            }
        }
    }

    /// Reports `Majority` when the minority is over.
    fn run_told(&mut self) {
        let Some(of) = self.watch.minority.told else {
            return;
        };
        let reached = self.table.live() - self.table.suspects();
        let of = match self.config.minority {
            Minority::Hold => self.table.live() as u32,
            Minority::Continue => of,
        };
        if 2 * reached as u32 > of {
            self.emit_majority(of);
        }
    }

    pub(super) fn next_minority_timer(&self) -> Instant {
        let poll = self.watch.minority.poll;
        poll.map_or(Instant::NEVER, |poll| poll.round_at.min(poll.until))
    }

    /// Notes a member that was found silent and failed.
    pub(super) fn note_lost(&mut self, id: MemberId, cause: CauseKind) {
        let silent = matches!(
            cause,
            CauseKind::Silence | CauseKind::Unreachable | CauseKind::Unanswered
        );
        if !silent || self.config.minority == Minority::Hold {
            return;
        }
        if self.now >= self.watch.minority.lost_until {
            self.watch.minority.lost.clear();
            self.watch.minority.lost_told = false;
        }
        self.watch.minority.lost_until = self.window();
        self.watch.minority.lost.insert(id);
        for id in core::mem::take(&mut self.watch.minority.returned) {
            if self.table.in_view(id).is_some() {
                self.watch.minority.lost.remove(&id);
            }
        }
        let lost = Strength {
            live: self.watch.minority.lost.len() as u32,
            root: *self.watch.minority.lost.first().unwrap_or(&id),
        };
        if !self.watch.minority.lost_told && verdict::yields(self.strength(), lost) {
            self.watch.minority.lost_told = true;
            let live = self.table.live();
            self.emit_minority(live, live + lost.live as usize, false);
        }
    }

    /// The view is only being filled: a majority of it means nothing.
    pub(super) fn begin_side(&mut self) {
        self.watch.minority.again_at = self.window();
    }

    /// The view of members that hold the local member failed is taken over.
    pub(super) fn rejoin_majority(&mut self) {
        self.watch.minority.poll = None;
        self.begin_side();
        self.watch.minority.lost.clear();
        if self.watch.minority.told.is_some() {
            self.emit_majority(self.table.live() as u32);
        }
    }

    fn window(&self) -> Instant {
        self.now.after(WINDOW_DEADLINES * self.config.deadline_us)
    }

    fn emit_minority(&mut self, reached: usize, of: usize, held: bool) {
        // A repeated failure of the poll is not reported again.
        if held && self.watch.minority.told.is_some() {
            return;
        }
        let (reached, of) = (reached as u32, of as u32);
        self.watch.minority.told = Some(of);
        self.counters.minorities += 1;
        let kind = EventKind::Minority { reached, of, held };
        let nobody = Reporters::default();
        self.emit(self.own, kind, CauseKind::Silence, nobody, 0);
    }

    fn emit_majority(&mut self, of: u32) {
        self.watch.minority.told = None;
        let reached = (self.table.live() - self.table.suspects()) as u32;
        let kind = EventKind::Majority { reached, of };
        let nobody = Reporters::default();
        self.emit(self.own, kind, CauseKind::Joined, nobody, 0);
    }
}

/// The number of members, and the first of them on the ring.
fn strength<'a>(members: impl Iterator<Item = &'a Member>) -> Strength {
    let mut side = Strength {
        live: 0,
        root: MemberId(u64::MAX),
    };
    for member in members {
        side.live += 1;
        side.root = side.root.min(member.id);
    }
    side
}
