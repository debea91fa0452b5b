//! Knocking at doors: how a newcomer finds the others, and how the sides of a split find back.
//!
//! Targets are, in turn from a random one on (in paper mode at random), the seeds that are not in the view
//! and the members held failed; to the latter goes a claim with it, so that whoever lives after all learns of its death
//! and speaks up: with a higher minor if the verdict does not stand by our rules, with a higher
//! incarnation if it does (the paper raises the minor in both cases). The answer is the
//! target's whole view. Frequent at first, then rarer, at last every five seconds; a member that
//! is alone keeps trying more often, and most often when it has just begun: the others may open
//! their doors a moment after it. Targets do not stay neighbours, and when there is no target
//! nothing is sent.

use std::collections::BTreeSet;

use crate::config::{Config, Mode};
use crate::identity::MemberId;
use crate::overlay::Overlay;
use crate::overlay::interface::Target;
use crate::overlay::outbox::Intent;
use crate::state::NodeState;
use crate::time::Instant;

/// Longest pause between two discoveries.
const WAIT_MAX_US: u64 = 5_000_000;
/// Longest pause of a member that is alone, in heartbeats.
const ALONE_BEATS: u64 = 10;
/// Doors a member that is alone knocks at each time: most of a long list may be stale.
const ALONE_KNOCKS: usize = 4;

/// The first pause between two discoveries, in microseconds.
pub(super) fn first_wait_us(config: &Config) -> u64 {
    match config.mode {
        Mode::Prompt { .. } => config.heartbeat_us / 4,
        Mode::Paper { .. } => 2 * config.heartbeat_us,
    }
}

/// Coming back after having been declared failed: whose view we take over first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rejoin {
    pub(super) with: MemberId,
    ask_at: Instant,
    until: Instant,
}

impl Overlay {
    pub(super) fn discover_soon(&mut self) {
        self.discover_wait_us = 2 * self.config.heartbeat_us;
        self.discover_at = self.now;
    }

    pub(super) fn run_discovery(&mut self) {
        let alone = self.table.live() == 1 || self.doubted_since.is_some();
        let begins = self.discover_wait_us < 2 * self.config.heartbeat_us;
        let alone = alone || (begins && self.table.live() <= ALONE_KNOCKS);
        if begins && !alone {
            // The first knocks were answered: the other doors have time.
            return self.discover_later();
        }
        let cap_us = if alone {
            ALONE_BEATS * self.config.heartbeat_us
        } else {
            WAIT_MAX_US
        };
        self.discover_wait_us =
            (self.discover_wait_us + self.discover_wait_us / 2).min(cap_us.min(WAIT_MAX_US));
        let jitter_us = self.random(self.discover_wait_us / 4);
        self.discover_at = self.now.after(self.discover_wait_us + jitter_us);
        let mut targets = self.seeds_out_of_view();
        let failed = self
            .table
            .iter_removed()
            .filter(|m| m.state == NodeState::Failed || self.is_paper());
        targets.extend(failed.map(|member| (Target::Member(member.id), false)));
        let knocks = targets.len().min(if alone { ALONE_KNOCKS } else { 1 });
        for _ in 0..knocks {
            let index = match self.is_paper() {
                true => self.random(targets.len() as u64) as usize,
                false => self.discover_turn,
            };
            self.discover_turn = self.discover_turn.wrapping_add(1);
            let (target, boot) = targets[index % targets.len()];
            self.say(Intent::Discover { target, boot });
        }
    }

    fn discover_later(&mut self) {
        self.discover_wait_us = 2 * self.config.heartbeat_us;
        let jitter_us = self.random(self.discover_wait_us / 4);
        self.discover_at = self.now.after(self.discover_wait_us + jitter_us);
    }

    /// Seeds that need to be knocked at: at the address of somebody in the view we talk anyway, and
    /// those that we hold failed are to be told so when we knock.
    fn seeds_out_of_view(&self) -> Vec<(Target, bool)> {
        let seeds = self.config.seeds.iter();
        let mut missing: BTreeSet<&[u8]> = seeds.map(Vec::as_slice).collect();
        let is_paper = self.is_paper();
        for member in self.table.iter() {
            if member.in_view() || (member.state == NodeState::Failed && !is_paper) {
                missing.remove(member.address());
            }
        }
        let seeds = self.config.seeds.iter().enumerate();
        seeds
            .filter(|(_, seed)| missing.contains(seed.as_slice()))
            .map(|(index, _)| (Target::Seed(index), true))
            .collect()
    }

    /// We were declared failed: for one deadline, or until its view has come, we listen to the
    /// one who told us and to nobody else, and tell nobody what we hold.
    pub(super) fn rejoin_with(&mut self, with: MemberId) {
        let until = self.now.after(self.config.deadline_us);
        self.rejoin = Some(Rejoin {
            with,
            ask_at: self.now,
            until,
        });
        self.run_rejoin();
    }

    pub(super) fn run_rejoin(&mut self) {
        let Some(rejoin) = &mut self.rejoin else {
            return;
        };
        if self.now >= rejoin.until {
            if rejoin.ask_at == Instant::NEVER {
                // The view that has come is not what we slept through.
                self.drowsy_until = self.now;
            }
            self.rejoin = None;
            self.topology_dirty = true;
            self.lacks_view = true;
        } else if self.now >= rejoin.ask_at {
            rejoin.ask_at = self.now.after(self.config.heartbeat_us / 2);
            let with = rejoin.with;
            self.introduce_to(with);
        }
    }

    /// Whether it is this member's view that we take over.
    pub(super) fn rejoins_with(&self, id: MemberId) -> bool {
        self.rejoin.is_some_and(|rejoin| rejoin.with == id)
    }

    /// A view came. It may have more datagrams: we give them half a heartbeat.
    pub(super) fn rejoined_with(&mut self, from: MemberId) {
        if let Some(rejoin) = self.rejoin.as_mut().filter(|rejoin| rejoin.with == from) {
            rejoin.until = rejoin
                .until
                .min(self.now.after(self.config.heartbeat_us / 2));
            rejoin.ask_at = Instant::NEVER;
        }
    }

    pub(super) fn next_rejoin_timer(&self) -> Instant {
        self.rejoin
            .map_or(Instant::NEVER, |rejoin| rejoin.until.min(rejoin.ask_at))
    }
}
