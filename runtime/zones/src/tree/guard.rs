//! The zones below a zone, as its members watch them.
//!
//! A zone is absent while none of its supervisors is in the view of the zone above. Its members replace supervisors
//! that fail within one or two deadlines; if no other comes for eight, nor any node that is asked (`invitation`), its
//! guards declare the whole zone failed: members of the zone above that are not nodes of it. For a zone of zones it is
//! four more for each level below it. The others follow a guard if they see the zone absent too. A zone that is in the
//! view is alive, whatever was declared.

use muster_protocol::planted::{self, Fault};
use muster_protocol::{Instant, LedgerKey, MemberId, Phase};

use crate::assignment::GUARDS;
use crate::map::ZoneId;
use crate::roles::guards;
use crate::tree::level::{Child, Level};
use crate::tree::life::Life;
use crate::tree::publication::Outcast;
use crate::tree::states::{ZoneState, ZoneStates, zone_numbers};
use crate::tree::supervision::FORM_DEADLINES;
use crate::tree::{Tree, zone_number};

/// A zone that is absent for this many deadlines has failed.
const ABSENT_DEADLINES: u64 = 8;
/// So much later for each level below it. A zone of zones replaces its supervisors later than a base zone, since their
/// loss is found later.
const LEVEL_DEADLINES: u64 = 4;
// A zone whose supervisors all started again has time to form and to join before its guards declare it failed.
const _: () = assert!(FORM_DEADLINES + FIND_DEADLINES < ABSENT_DEADLINES);
/// A member follows a guard if it sees the zone absent for so many deadlines: while the sides of a split merge, zones
/// that are alive may be absent for a moment.
const FOLLOW_DEADLINES: u64 = 4;
/// A member that joins a zone has found its other members after this many deadlines.
pub(super) const FIND_DEADLINES: u64 = 2;

impl Tree {
    /// When a zone below this level may have to be declared failed, a guard be followed that declares it so, or its
    /// nodes be asked.
    pub(super) fn next_declaration(&self, level: &Level) -> Instant {
        let open = level
            .children
            .values()
            .filter(|child| !child.state.is_failed);
        let times = open.filter_map(|child| {
            let since = child.absent_since?;
            let follows = since.after(self.deadlines(FOLLOW_DEADLINES));
            let declares = since.after(self.absence_us(level.zone));
            let next = if follows > self.now {
                follows
            } else {
                declares
            };
            Some(next.min(self.next_invitation(child)))
        });
        times.fold(Instant::NEVER, Instant::min)
    }

    /// Reviews the states of the zones below the zone of this level.
    pub(super) fn review_children(&mut self, level: usize) {
        let now = self.now;
        let found_by = self.found_by(&self.levels[level]);
        self.levels[level].find_origins(&self.map);
        self.levels[level].count_children(now, found_by);
        self.look_further(level);
        self.seek(level);
        self.meet(level);
        for child in self.levels[level].children.values_mut() {
            if child.live > 0 && !planted::on(Fault::ZoneNotRefuted) {
                child.state.is_failed = false;
            }
        }
        self.follow_members(level);
        self.invite(level);
        self.declare(level);
        for child in self.levels[level].children.values_mut() {
            if child.state.is_absent {
                child.below.lose();
            }
            if child.state.is_failed {
                child.below.fail();
                // What it was before says nothing about it once it is back.
                child.state.life = Life::default();
                child.state.has_formed = false;
            }
        }
    }

    /// When a member that joins a zone knows its other members, if it can reach them.
    pub(super) fn found_by(&self, level: &Level) -> Instant {
        level.began_at.after(self.deadlines(FIND_DEADLINES))
    }

    /// Finds the life of the zone at this level, as far as the local node knows.
    pub(super) fn find_life(&mut self, level: usize) {
        let began = match level.checked_sub(1) {
            None => self.config.incarnation,
            Some(below) => self.levels[below].outcast.life.began,
        };
        let current = &self.levels[level];
        let told = current.outside.outcasts.get(&current.zone.level);
        let told = told.map_or(Life::default(), |told| told.life);
        let own = Life {
            began,
            is_sure: false,
        };
        let mut life = current.outcast.life.earlier(told).earlier(own);
        // While a supervisor has not been above for long, those who know better may not have said so yet.
        let above = self.levels.get(level + 1);
        let above = above.filter(|above| above.engine.phase() == Phase::Running);
        life.is_sure |= above.is_some_and(|above| self.now >= self.found_by(above));
        self.levels[level].outcast.life = life;
    }

    /// Takes what the members of the zone have published about the zones below it.
    fn follow_members(&mut self, level: usize) {
        let current = &self.levels[level];
        let mut claims: Vec<(u32, MemberId, ZoneState)> = Vec::new();
        let mut tellers: Vec<(u32, MemberId)> = Vec::new();
        let children = zone_numbers(&self.map, current.zone).into_iter().nth(1);
        for (id, publication) in current.below_from.iter() {
            let states = &publication.states.zones;
            let of_children = children
                .iter()
                .flat_map(|numbers| states.within(numbers.clone()));
            let of_children =
                of_children.flat_map(|run| run.numbers().map(move |number| (number, run.value)));
            claims.extend(of_children.map(|(number, state)| (number & 0xff_ffff, *id, state)));
            if let Some(origin) = current.origin(&self.map, *id) {
                tellers.push((origin, *id));
            }
        }
        for (number, by, state) in claims {
            self.follow_claim(level, number, by, state);
        }
        self.follow_tellers(level, tellers);
    }

    /// Takes what one member of the zone says about a zone below it.
    fn follow_claim(&mut self, level: usize, number: u32, by: MemberId, state: ZoneState) {
        let held = self.levels[level].children.get(&number);
        let is_known = |child: &Child| {
            let held = child.state;
            held.declared == state.declared && (held.is_failed || !state.is_failed)
        };
        if held.is_some_and(is_known) {
            return;
        }
        let absence_us = self.absence_us(self.levels[level].zone);
        let is_guard = || self.guards_of(level, number).contains(&by);
        let is_open = held.is_some_and(|child| child.live == 0 && !child.state.is_failed);
        let is_hasty = match held {
            None => self.has_just_come(&self.levels[level], by),
            Some(child) => {
                // What the other side of a split has declared was about another absence.
                let came = self.levels[level].known_since.get(&by);
                let wait_us = match came > child.absent_since.as_ref() {
                    true => absence_us,
                    false => self.deadlines(FOLLOW_DEADLINES),
                };
                is_open && !self.is_absent_for(held, wait_us)
            }
        };
        if state.is_failed && is_hasty {
            return;
        }
        let is_absent = held.is_none_or(|child| child.live == 0);
        let fails = state.is_failed
            && is_absent
            && held.is_none_or(|child| {
                let is_late = || self.is_absent_for(held, absence_us);
                (state.declared > child.state.declared || is_late()) && is_guard()
            });
        let now = self.now;
        let children = &mut self.levels[level].children;
        let child = children.get_or_insert_with(number, || Child {
            absent_since: Some(now),
            ..Child::default()
        });
        if fails {
            child.state.is_failed = true;
            child.state.note_declaration(&state);
        } else if !state.is_failed || !is_absent || child.state.is_failed {
            child.state.note_declaration(&state);
        }
    }

    fn is_absent_for(&self, child: Option<&Child>, time_us: u64) -> bool {
        let since = child.and_then(|child| child.absent_since);
        since.is_some_and(|since| self.now >= since.after(time_us))
    }

    /// For how long a zone below this one is absent until it has failed.
    fn absence_us(&self, zone: ZoneId) -> u64 {
        let levels = u64::from(zone.level.saturating_sub(1));
        self.deadlines(ABSENT_DEADLINES + levels * LEVEL_DEADLINES)
    }

    /// Takes what the members of the zone, each with the zone that it comes from, have published about what is below
    /// their zones.
    fn follow_tellers(&mut self, level: usize, mut tellers: Vec<(u32, MemberId)>) {
        tellers.sort_unstable();
        let current = &self.levels[level];
        let own = self.levels[level - 1].zone.number;
        let zones = tellers.chunk_by(|one, other| one.0 == other.0);
        let below = zones
            .filter(|tellers| tellers[0].0 != own)
            .filter_map(|tellers| {
                let zone = current.child(tellers[0].0)?;
                let told = tellers
                    .iter()
                    .filter_map(|(_, id)| current.below_from.get(id));
                let has_formed = told.clone().all(|one| one.has_formed);
                let mut outcast = Outcast::default();
                let outcasts = told.clone().filter_map(|one| one.outcasts.get(&zone.level));
                outcasts.for_each(|one| outcast.merge(*one));
                let told = told.map(|publication| publication.states.below(&self.map, zone));
                let agreed = told.reduce(|one, other| one.agree(&other, &self.map, Some(zone)));
                let mut agreed = agreed?;
                if tellers
                    .iter()
                    .any(|(_, id)| self.has_just_come(current, *id))
                {
                    let child = current.children.get(&zone.number)?;
                    agreed.keep_unfailed(&child.below);
                }
                Some((zone.number, agreed, outcast, has_formed))
            });
        for (number, below, outcast, has_formed) in below.collect::<Vec<_>>() {
            if let Some(child) = self.levels[level].children.get_mut(&number) {
                child.below.replace(below);
                child.state.has_formed = has_formed && level == 1;
                child.state.life = outcast.life;
            }
        }
        let has_formed = level == 1 && self.levels[0].has_formed;
        let outcast = self.levels[level - 1].outcast;
        if let Some(child) = self.levels[level].children.get_mut(&own) {
            child.state.has_formed = has_formed;
            child.state.life = outcast.life;
        }
    }

    /// Whether the publications of a member have been known for less than a deadline. When a split ends, those of the
    /// weaker side may come first, which hold the stronger one failed.
    pub(super) fn has_just_come(&self, level: &Level, id: MemberId) -> bool {
        let since = level.known_since.get(&id);
        since.is_none_or(|since| self.now < since.after(self.config.deadline_us))
    }

    /// When a member that has just come to this level has been there for a deadline.
    pub(super) fn next_teller(&self, level: &Level) -> Instant {
        let settle = level.known_since.values();
        let settle = settle.map(|since| since.after(self.config.deadline_us));
        let next = settle.filter(|at| *at > self.now);
        next.fold(Instant::NEVER, Instant::min)
    }

    /// The guards of a zone below this level, as the local node sees its zone.
    pub(super) fn guards_of(&self, level: usize, number: u32) -> Vec<MemberId> {
        let candidates = self.levels[level].origins.iter().map(|(id, origin)| {
            let is_inside = *origin == number;
            (*id, is_inside != planted::on(Fault::GuardInside))
        });
        let zone = self.levels[level].child(number);
        zone.map_or_else(Vec::new, |zone| {
            guards(self.map.path(zone), candidates, GUARDS)
        })
    }

    /// Declares zones failed that have been absent for too long, if the local node guards them.
    fn declare(&mut self, level: usize) {
        let current = &self.levels[level];
        let (own, absence_us) = (current.engine.id(), self.absence_us(current.zone));
        let due = current.children.iter().filter_map(|(number, child)| {
            let is_due = self.is_absent_for(Some(child), absence_us) && !child.state.is_failed;
            let is_guard = || self.guards_of(level, *number).contains(&own);
            let zone = current.child(*number)?;
            (is_due && is_guard() && self.has_live_nodes(current, zone)).then_some(*number)
        });
        for number in due.collect::<Vec<_>>() {
            // A zone that has told nothing counts as older than the local node.
            let since = self.config.incarnation;
            if let Some(child) = self.levels[level].children.get_mut(&number) {
                child.state.is_failed = true;
                child.state.declared += 1;
                child.state.of = match child.state.life.began {
                    0 => since,
                    began => began,
                };
            }
        }
    }

    /// Whether not all nodes of a zone have ended, by the ledger.
    fn has_live_nodes(&self, level: &Level, zone: ZoneId) -> bool {
        let ended = level.engine.ledger().filter(|entry| {
            let LedgerKey::Node(node) = entry.key() else {
                return false;
            };
            let node = crate::directory::NodeIndex(node);
            !entry.node_state().is_some_and(|state| state.in_view())
                && self.map.zones_of(node).any(|of| of == zone)
        });
        ended.count() < self.map.nodes_below(zone)
    }

    /// The zones below the zone of this level, with their states, and the nodes of this zone that have never been
    /// alive.
    pub(super) fn below(&self, level: usize) -> ZoneStates {
        let Some(under) = level.checked_sub(1) else {
            return ZoneStates {
                missing: self.missing(),
                ..ZoneStates::default()
            };
        };
        let mut states = self.below(under);
        states.extend(self.states_below(level, self.levels[under].zone, true));
        states
    }

    /// The zones below the zone of this level, with their states, and what is below them; of `own`, and only if it
    /// `has_own`, just its state.
    pub(super) fn states_below(&self, level: usize, own: ZoneId, has_own: bool) -> ZoneStates {
        let current = &self.levels[level];
        let children = current.children.iter();
        let children =
            children.filter_map(|(number, child)| Some((current.child(*number)?, child)));
        let children: Vec<(ZoneId, &Child)> = children
            .filter(|(zone, _)| has_own || *zone != own)
            .collect();
        let zones = children.iter();
        let mut states = ZoneStates {
            zones: zones
                .map(|(zone, child)| (zone_number(*zone), child.state))
                .collect(),
            ..ZoneStates::default()
        };
        for (_, child) in children.iter().filter(|(zone, _)| *zone != own) {
            states.extend(child.below.clone());
        }
        states
    }

    /// The zones below the zone at this level that have been declared failed, or are absent: a member that joins now
    /// and guards one would not know that it has been there.
    pub(super) fn declarations(&self, level: usize) -> ZoneStates {
        let current = &self.levels[level];
        let declared = current
            .children
            .iter()
            .filter(|(_, child)| child.state.declared > 0 || child.state.is_absent);
        let states = declared.filter_map(|(number, child)| {
            let number = zone_number(current.child(*number)?);
            Some((
                number,
                ZoneState {
                    is_told: self.has_told(number),
                    ..child.state
                },
            ))
        });
        ZoneStates {
            zones: states.collect(),
            ..ZoneStates::default()
        }
    }
}
