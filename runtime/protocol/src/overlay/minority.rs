//! Which side of a split we are on, and what the policy makes of it.
//!
//! The sides are weighed by the rule that decides who yields when they meet again
//! (`verdict::yields`): the smaller one is the minority; of two equal ones the one whose first member
//! comes later on the ring.
//!
//! **Continue.** Members found silent are failed as ever. Those that fail one after the other, with
//! less than four deadlines between two of them, are one loss; when the lost outweigh those who are
//! left, `Minority` is told, and `Majority` when more than half of them all are here again. Half a
//! view that has died looks just the same.
//!
//! **Hold.** Who has reported a suspect turns the reports into a verdict only after it has heard,
//! since it began to ask, the heavier side of the view; everybody else waits for that verdict. It
//! asks everybody, suspects too, every half heartbeat, for one deadline. It judges half a heartbeat
//! after it began, those who have not answered; so a verdict costs that, and two datagrams a member.
//! A vain attempt is told as `Minority` and repeated four deadlines later while suspects remain; as
//! the reports are old by then, it takes the whole deadline before anybody is judged. So the smaller
//! side speaks no verdict: its suspects stay in its view until they answer, or until we learn that
//! the others hold us failed. Who has just begun, and may not have heard of most, does not ask for
//! four deadlines. What a launcher or an administrator says needs no majority.

use std::collections::BTreeSet;

use crate::config::Minority;
use crate::event::{CauseKind, EventKind};
use crate::identity::MemberId;
use crate::overlay::Overlay;
use crate::overlay::correlation::WINDOW_DEADLINES;
use crate::overlay::outbox::Intent;
use crate::planted::{self, Fault};
use crate::table::{Member, Reporters};
use crate::time::Instant;
use crate::verdict;
use crate::wire::Strength;

/// Asking everybody whether they hear us.
#[derive(Clone, Copy, Debug)]
struct Poll {
    began_at: Instant,
    /// No verdict before this: a suspect may answer as well as anybody.
    ripe_at: Instant,
    round_at: Instant,
    until: Instant,
}

/// What we know of our side.
#[derive(Clone, Debug, Default)]
pub(super) struct Side {
    poll: Option<Poll>,
    /// Somebody was heard since the poll was last counted.
    news: bool,
    /// How many of the view are here; nothing if it is to be counted anew. Asking about each suspect,
    /// and after each frame, must not take a walk through the view.
    here: Option<usize>,
    /// The last poll was in vain: the reports that wait are old.
    vain: bool,
    /// No poll before this.
    again_at: Instant,
    /// Of how many we were the minority, once that was told.
    told: Option<u32>,
    /// Those that failed in one loss, until when another one belongs to it, and whether it was told.
    lost: BTreeSet<MemberId>,
    lost_until: Instant,
    lost_told: bool,
}

impl Side {
    /// We stood still: what was asked before says nothing about now.
    pub(super) fn overslept(&mut self) {
        self.poll = None;
    }

    /// A frame of somebody in the view came, who was last heard then.
    pub(super) fn heard(&mut self, now: Instant, last_heard: Instant) {
        let asked = self.poll.filter(|poll| now > poll.began_at);
        if asked.is_some_and(|poll| last_heard <= poll.began_at) {
            self.news = true;
            self.here = self.here.map(|here| here + 1);
        }
    }

    /// Somebody came into the view, or went.
    pub(super) fn view_changed(&mut self) {
        self.here = None;
    }
}

impl Overlay {
    /// Whether enough reports against this member make no verdict yet, by policy.
    pub(super) fn must_hold(&mut self, id: MemberId, reporters: Reporters) -> bool {
        if self.config.minority == Minority::Continue || planted::on(Fault::NothingHeld) {
            return false;
        }
        let version = self.table.get(id).map(|member| member.version);
        let reported = self.links.get(&id).and_then(|link| link.reported);
        if !reporters.contains(self.own) && (version.is_none() || reported != version) {
            return true;
        }
        if self.minority.poll.is_none() && self.now >= self.minority.again_at {
            let until = self.now.after(self.config.deadline_us);
            let soon = self.now.after(self.config.heartbeat_us / 2);
            self.minority.here = None;
            self.minority.poll = Some(Poll {
                began_at: self.now,
                ripe_at: if self.minority.vain { until } else { soon },
                round_at: self.now,
                until,
            });
        }
        let Some(poll) = self.minority.poll else {
            return true;
        };
        let answers = self
            .table
            .get(id)
            .is_some_and(|member| self.is_here(member, poll));
        answers || self.now < poll.ripe_at || !self.has_majority()
    }

    /// Whether those who were heard since we asked outweigh the others.
    fn has_majority(&mut self) -> bool {
        let Some(poll) = self.minority.poll else {
            return false;
        };
        let is_ours = |member: &&Member| self.is_here(member, poll);
        let count = || self.table.iter_live().filter(is_ours).count();
        let (here, live) = (self.minority.here.unwrap_or_else(count), self.table.live());
        self.minority.here = Some(here);
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
        let Some(mut poll) = self.minority.poll else {
            return;
        };
        if self.table.suspects() == 0 {
            self.minority.poll = None;
            self.minority.vain = false;
            return;
        }
        let due = core::mem::take(&mut self.minority.news) || self.now >= poll.round_at;
        if (due || self.now >= poll.until) && self.has_majority() {
            self.judge_suspects();
        }
        if self.now >= poll.until {
            if !self.has_majority() && self.table.suspects() > 0 {
                self.minority.vain = true;
                self.minority.again_at = self.window();
                let here = |member: &&Member| self.is_here(member, poll);
                let reached = self.table.iter_live().filter(here).count();
                self.tell_minority(reached, self.table.live(), true);
            }
            self.minority.poll = None;
            return;
        }
        if self.now >= poll.round_at {
            poll.round_at = self.now.after(self.config.heartbeat_us / 2);
            self.minority.poll = Some(poll);
            let silent = |member: &&Member| !self.is_here(member, poll);
            let members = self.table.iter_live().filter(silent);
            let silent: Vec<MemberId> = members.map(|member| member.id).collect();
            for to in silent {
                self.say(Intent::Probe { to });
            }
        }
    }

    /// Says when it is over.
    fn run_told(&mut self) {
        let Some(of) = self.minority.told else {
            return;
        };
        let reached = self.table.live() - self.table.suspects();
        let of = match self.config.minority {
            Minority::Hold => self.table.live() as u32,
            Minority::Continue => of,
        };
        if 2 * reached as u32 > of {
            self.tell_majority(of);
        }
    }

    pub(super) fn next_minority_timer(&self) -> Instant {
        let poll = self.minority.poll;
        poll.map_or(Instant::NEVER, |poll| poll.round_at.min(poll.until))
    }

    /// A member was found silent, and failed.
    pub(super) fn note_lost(&mut self, id: MemberId, cause: CauseKind) {
        let silent = matches!(
            cause,
            CauseKind::Silence | CauseKind::Unreachable | CauseKind::Unanswered
        );
        if !silent || self.config.minority == Minority::Hold {
            return;
        }
        if self.now >= self.minority.lost_until {
            self.minority.lost.clear();
            self.minority.lost_told = false;
        }
        self.minority.lost_until = self.window();
        let table = &self.table;
        self.minority.lost.insert(id);
        self.minority.lost.retain(|id| table.in_view(*id).is_none());
        let lost = Strength {
            live: self.minority.lost.len() as u32,
            root: *self.minority.lost.first().unwrap_or(&id),
        };
        if !self.minority.lost_told && verdict::yields(self.strength(), lost) {
            self.minority.lost_told = true;
            let live = self.table.live();
            self.tell_minority(live, live + lost.live as usize, false);
        }
    }

    /// Our view is only being filled: a majority of it says nothing.
    pub(super) fn begin_side(&mut self) {
        self.minority.again_at = self.window();
    }

    /// We take over the view of those who hold us failed.
    pub(super) fn rejoin_majority(&mut self) {
        self.minority.poll = None;
        self.begin_side();
        self.minority.lost.clear();
        if self.minority.told.is_some() {
            self.tell_majority(self.table.live() as u32);
        }
    }

    fn window(&self) -> Instant {
        self.now.after(WINDOW_DEADLINES * self.config.deadline_us)
    }

    fn tell_minority(&mut self, reached: usize, of: usize, held: bool) {
        // A vain attempt that is repeated is no news.
        if held && self.minority.told.is_some() {
            return;
        }
        let (reached, of) = (reached as u32, of as u32);
        self.minority.told = Some(of);
        self.counters.minorities += 1;
        let kind = EventKind::Minority { reached, of, held };
        let nobody = Reporters::default();
        self.tell(self.own, kind, CauseKind::Silence, nobody, 0);
    }

    fn tell_majority(&mut self, of: u32) {
        self.minority.told = None;
        let reached = (self.table.live() - self.table.suspects()) as u32;
        let kind = EventKind::Majority { reached, of };
        let nobody = Reporters::default();
        self.tell(self.own, kind, CauseKind::Joined, nobody, 0);
    }
}

/// How many they are, and who is the first of them.
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
