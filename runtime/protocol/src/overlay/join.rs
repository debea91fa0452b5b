//! Join: finds other members at the start, and the other side of a split.
//!
//! The targets of join requests are the seeds that are not in the view and the members that are held
//! failed. They take turns, beginning with a random one; in paper mode each is drawn at random. A request
//! to a failed member carries a failure claim. A member that lives after all learns of the verdict from it,
//! and answers: with a higher minor if the verdict does not stand by the local rules, with a higher
//! incarnation if it does. (In the paper it raises the minor in both cases.) The reply is the whole view of
//! the target.
//!
//! The pause between requests grows, up to five seconds, or one where views merge. A member that is alone
//! sends more often, most often at its start, since its seeds may start a moment later. Targets do not
//! become neighbours. Without targets nothing is sent.

use std::collections::BTreeSet;

use crate::config::{Config, Mode, Policy};
use crate::identity::MemberId;
use crate::interface::Target;
use crate::overlay::Overlay;
use crate::overlay::outbox::Intent;
use crate::state::NodeState;
use crate::time::Instant;

/// Longest pause between two join requests.
const WAIT_MAX_US: u64 = 5_000_000;
/// The same where views merge after a split: whole zones depend on it, and few members send it.
const MERGE_WAIT_MAX_US: u64 = 1_000_000;
/// Longest pause of a member that is alone, in heartbeats.
const ALONE_BEATS: u64 = 10;
/// Most targets in one round of a member that is alone: many entries of a long seed list may be out of
/// date.
const ALONE_TARGETS_MAX: usize = 4;

/// The first pause between two rounds, in microseconds.
pub(super) fn first_wait_us(config: &Config) -> u64 {
    match config.mode {
        Mode::Prompt { .. } => config.heartbeat_us / 4,
        Mode::Paper { .. } => 2 * config.heartbeat_us,
    }
}

/// The rejoin of a member that was declared failed: the member whose view is taken over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rejoin {
    pub(super) with: MemberId,
    ask_at: Instant,
    until: Instant,
}

/// The seeds that need a join request, by index, in one state of the table.
#[derive(Clone, Debug)]
pub(super) struct SeedsOutOfView {
    table: u64,
    seeds: Vec<usize>,
}

impl Overlay {
    pub(super) fn join_soon(&mut self) {
        self.join.wait_us = 2 * self.config.heartbeat_us;
        self.join.at = self.now;
    }

    pub(super) fn run_join(&mut self) {
        let alone = self.table.live() == 1 || self.watch.doubted_since.is_some();
        let begins = self.join.wait_us < 2 * self.config.heartbeat_us;
        let alone = alone || (begins && self.table.live() <= ALONE_TARGETS_MAX);
        if begins && !alone {
            // The first requests were answered: the other targets can wait.
            return self.join_later();
        }
        let cap_us = match self.config.policy {
            _ if alone => ALONE_BEATS * self.config.heartbeat_us,
            Policy::Merge => MERGE_WAIT_MAX_US,
            _ => WAIT_MAX_US,
        };
        self.join.wait_us =
            (self.join.wait_us + self.join.wait_us / 2).min(cap_us.min(WAIT_MAX_US));
        let jitter_us = self.random(self.join.wait_us / 4);
        self.join.at = self.now.after(self.join.wait_us + jitter_us);
        let seeds = self.seeds_out_of_view().iter();
        let mut targets: Vec<(Target, bool)> =
            seeds.map(|seed| (Target::Seed(*seed), true)).collect();
        let failed = self
            .table
            .iter_removed()
            .filter(|m| m.state == NodeState::Failed || self.rules.rejoins_at_random);
        targets.extend(failed.map(|member| (Target::Member(member.id), false)));
        let count = targets.len().min(if alone { ALONE_TARGETS_MAX } else { 1 });
        for _ in 0..count {
            let index = match self.rules.rejoins_at_random {
                true => self.random(targets.len() as u64) as usize,
                false => self.join.turn,
            };
            self.join.turn = self.join.turn.wrapping_add(1);
            let (target, boot) = targets[index % targets.len()];
            self.enqueue(Intent::Join { target, boot });
        }
    }

    fn join_later(&mut self) {
        self.join.wait_us = 2 * self.config.heartbeat_us;
        let jitter_us = self.random(self.join.wait_us / 4);
        self.join.at = self.now.after(self.join.wait_us + jitter_us);
    }

    /// Seeds that need a join request, by index. A seed with the address of a member in the view needs none. A
    /// failed member is sent a failure claim with its own request instead. Members are looked at only if some
    /// have changed since the last call.
    pub(super) fn seeds_out_of_view(&mut self) -> &[usize] {
        let table = self.table.changes();
        let found = self.join.seeds_out_of_view.take();
        let found = match found.filter(|found| found.table == table) {
            Some(found) => found,
            None => SeedsOutOfView {
                table,
                seeds: self.find_seeds_out_of_view(),
            },
        };
        &self.join.seeds_out_of_view.insert(found).seeds
    }

    fn find_seeds_out_of_view(&self) -> Vec<usize> {
        let seeds = self.config.seeds.iter();
        let mut missing: BTreeSet<&[u8]> = seeds.map(Vec::as_slice).collect();
        let counts_failed = !self.rules.rejoins_at_random;
        for member in self.table.iter() {
            if member.in_view() || (member.state == NodeState::Failed && counts_failed) {
                missing.remove(member.address());
            }
        }
        let seeds = self.config.seeds.iter().enumerate();
        let missing = seeds.filter(|(_, seed)| missing.contains(seed.as_slice()));
        missing.map(|(index, _)| index).collect()
    }

    /// The local member was declared failed by the view of `with`. Until that view has come, and for at
    /// most one deadline, it takes frames from `with` only, and sends its own view to no member.
    pub(super) fn rejoin_with(&mut self, with: MemberId) {
        let until = self.now.after(self.config.deadline_us);
        self.join.rejoin = Some(Rejoin {
            with,
            ask_at: self.now,
            until,
        });
        self.run_rejoin();
    }

    pub(super) fn run_rejoin(&mut self) {
        let Some(rejoin) = &mut self.join.rejoin else {
            return;
        };
        if self.now >= rejoin.until {
            if rejoin.ask_at == Instant::NEVER {
                // The view is up to date again after the time overslept.
                self.watch.overslept_until = self.now;
            }
            self.join.rejoin = None;
            self.topology.dirty = true;
            self.join.lacks_view = true;
        } else if self.now >= rejoin.ask_at {
            rejoin.ask_at = self.now.after(self.config.heartbeat_us / 2);
            let with = rejoin.with;
            self.introduce_to(with);
        }
    }

    /// Whether this is the member whose view is taken over.
    pub(super) fn rejoins_with(&self, id: MemberId) -> bool {
        self.join.rejoin.is_some_and(|rejoin| rejoin.with == id)
    }

    /// A view came. More datagrams of it may follow for half a heartbeat.
    pub(super) fn rejoined_with(&mut self, from: MemberId) {
        if let Some(rejoin) = self
            .join
            .rejoin
            .as_mut()
            .filter(|rejoin| rejoin.with == from)
        {
            rejoin.until = rejoin
                .until
                .min(self.now.after(self.config.heartbeat_us / 2));
            rejoin.ask_at = Instant::NEVER;
        }
    }

    pub(super) fn next_rejoin_timer(&self) -> Instant {
        self.join
            .rejoin
            .map_or(Instant::NEVER, |rejoin| rejoin.until.min(rejoin.ask_at))
    }
}
