//! Events on the board: states first, then the event that tells of them, and then those are woken who
//! wait for a state: they find the event, too.
//!
//! The protocol speaks of members; the board has indices, given out in the order in which
//! names were first seen and kept for the board's life. The states of ranks follow from two
//! things that may arrive in any order, what their node stated about them and whether the
//! node itself is there; this is the one place where they are put together.

use muster_control::MINUS;
use muster_shm::{Cause, EventKind as Told, NO_NODE, RankState, TableView, TableWriter};

use muster_protocol::{
    CauseKind, Engine, Event, EventKind, MemberId, NodeState, Parameter, RankFact,
    RankState as StatedRankState,
};
use std::collections::BTreeMap;
use tracing::{info, warn};

/// Writes on the board.
pub(super) struct Publisher {
    indices: BTreeMap<MemberId, u32>,
    /// Members that found no room on the board; they are missing in what ranks see.
    pub(super) without_room: u64,
}

impl Publisher {
    /// Takes up the indices that are on the board already (from a worker before us).
    pub(super) fn adopt(table: &TableWriter) -> Self {
        let view = table.view();
        let names = (0..view.node_count()).filter_map(|i| Some((view.node_name(i)?, i)));
        let indices = names
            .map(|(name, index)| (MemberId::of(&name), index))
            .collect();
        Self {
            indices,
            without_room: 0,
        }
    }

    /// The index of a member that has one on this board.
    pub(super) fn known(&self, id: MemberId) -> Option<u32> {
        self.indices.get(&id).copied()
    }

    /// Those who are there, as the board has it.
    pub(super) fn present(&self, table: TableView) -> impl Iterator<Item = MemberId> {
        let is_there = move |node: u32| {
            matches!(
                table.node_state(node),
                muster_shm::NodeState::Alive
                    | muster_shm::NodeState::Degraded
                    | muster_shm::NodeState::Suspect
            )
        };
        let all = self.indices.iter();
        all.filter_map(move |(id, node)| is_there(*node).then_some(*id))
    }

    /// The index of a member on this board; a new one gets the next.
    pub(super) fn index(&mut self, table: &mut TableWriter, id: MemberId, name: &str) -> u32 {
        if let Some(index) = self.indices.get(&id) {
            return *index;
        }
        let Some(index) = table.add_node(name) else {
            self.without_room += 1;
            warn!(member = name, "the board has no room for another node");
            return NO_NODE;
        };
        self.indices.insert(id, index);
        index
    }

    /// Writes what a member shares with those that may fail together with it.
    fn note_group(&self, table: &mut TableWriter, engine: &Engine, id: MemberId) {
        if let (Some(node), Some(member)) = (self.indices.get(&id), engine.member(id)) {
            table.set_node_group(*node, member.group());
        }
    }

    /// Writes what an event says. True if there is news for the ranks.
    pub(super) fn tell(&mut self, table: &mut TableWriter, engine: &Engine, event: &Event) -> bool {
        let name = engine.name_of(event.member);
        // One of another release has said no name that could be read: it gets no index.
        let nameless = name.is_none() && matches!(event.kind, EventKind::Refused { .. });
        let name = name.unwrap_or("?").to_owned();
        let node = if nameless {
            NO_NODE
        } else {
            self.index(table, event.member, &name)
        };
        info!(member = %name, kind = ?event.kind, cause = ?event.cause.kind, "event");
        if event.kind == EventKind::NodeUp {
            self.note_group(table, engine, event.member);
        }
        match event.kind {
            EventKind::RankChanged { fact } => self.tell_rank(table, engine, event, node, &fact),
            EventKind::Outcast => {
                self.push(table, event, Told::Outcast, cause(event), node);
                true
            }
            EventKind::GroupFailed { number, failed, of } => {
                let failure = engine.group_failure(number);
                let members = failure.iter().flat_map(|failure| &failure.members);
                let nodes: Vec<u32> = members
                    .filter_map(|m| self.indices.get(m))
                    .copied()
                    .collect();
                let mut entry = self.entry(event, Told::GroupFailed, cause(event), node);
                (entry.count, entry.total) = (failed, of);
                table.push_event_about(&entry, &nodes);
                true
            }
            EventKind::Minority { reached, of, held } => {
                let mut entry = self.entry(event, Told::Minority, cause(event), node);
                (entry.count, entry.total, entry.code) = (reached, of, i32::from(held));
                table.push_event(&entry);
                true
            }
            EventKind::Majority { reached, of } => {
                let mut entry = self.entry(event, Told::Majority, cause(event), node);
                (entry.count, entry.total) = (reached, of);
                table.push_event(&entry);
                true
            }
            EventKind::Refused { parameter } => {
                let mut entry = self.entry(event, Told::NodeRefused, cause(event), node);
                entry.code = setting_number(parameter);
                table.push_event(&entry);
                true
            }
            // Only what is watched is told, by `tell_attribute`.
            EventKind::NameTaken | EventKind::NameClaimed | EventKind::AttributeChanged { .. } => {
                false
            }
            kind => self.tell_node(table, engine, event, node, kind),
        }
    }

    /// Writes those on the board who were gone before this agent came, as the others tell: no event is about them.
    pub(super) fn note_gone(&mut self, table: &mut TableWriter, engine: &Engine) {
        for member in engine.members() {
            let state = match member.state() {
                NodeState::Failed => muster_shm::NodeState::Failed,
                NodeState::Left => muster_shm::NodeState::Left,
                _ => continue,
            };
            if self.indices.contains_key(&member.id()) {
                continue;
            }
            let node = self.index(table, member.id(), member.name());
            if node == NO_NODE {
                return;
            }
            table.set_node_group(node, member.group());
            table.set_node_state(node, state);
        }
    }

    /// A worker that takes up the service knows nothing of rails that fail, and may never have doubted whom
    /// the last one did: what the board says of members that are there is written anew. What it calls
    /// failed or left stays until there is news. True if there is news for the ranks.
    pub(super) fn correct(&mut self, table: &mut TableWriter, engine: &Engine, at_ns: u64) -> bool {
        let mut news = false;
        for member in engine.members() {
            let Some(node) = self.indices.get(&member.id()).copied() else {
                continue;
            };
            let (told, state) = match member.state() {
                NodeState::Alive => (Told::NodeRecovered, muster_shm::NodeState::Alive),
                NodeState::Degraded => (Told::NodeDegraded, muster_shm::NodeState::Degraded),
                NodeState::Suspect => (Told::NodeSuspect, muster_shm::NodeState::Suspect),
                NodeState::Unknown | NodeState::Failed | NodeState::Left => continue,
            };
            let before = table.view().node_state(node);
            let doubted = matches!(
                before,
                muster_shm::NodeState::Degraded | muster_shm::NodeState::Suspect
            );
            if !doubted || before == state {
                continue;
            }
            table.set_node_state(node, state);
            let mut entry = muster_shm::Event::new(told, Cause::Unspecified);
            (entry.node, entry.at_ns) = (node, at_ns);
            table.push_event(&entry);
            news = true;
        }
        news
    }

    /// Writes that an attribute changed.
    pub(super) fn tell_attribute(
        &mut self,
        table: &mut TableWriter,
        engine: &Engine,
        event: &Event,
        key_hash: u64,
    ) {
        let name = engine.name_of(event.member).unwrap_or("?").to_owned();
        let node = self.index(table, event.member, &name);
        let mut told = muster_shm::Event::new(Told::Attribute, Cause::Announced);
        (told.node, told.key_hash) = (node, key_hash);
        told.at_ns = event.at.0 * 1000;
        table.push_event(&told);
    }

    fn tell_node(
        &mut self,
        table: &mut TableWriter,
        engine: &Engine,
        event: &Event,
        node: u32,
        kind: EventKind,
    ) -> bool {
        let (told, state) = match kind {
            EventKind::NodeUp => (Told::NodeUp, muster_shm::NodeState::Alive),
            EventKind::NodeDegraded => (Told::NodeDegraded, muster_shm::NodeState::Degraded),
            EventKind::NodeRecovered => (Told::NodeRecovered, muster_shm::NodeState::Alive),
            EventKind::NodeSuspect => (Told::NodeSuspect, muster_shm::NodeState::Suspect),
            // The next life of its agent follows: nothing has failed that could not be taken back.
            EventKind::NodeFailed if event.cause.kind == CauseKind::Superseded => {
                (Told::NodeFailed, muster_shm::NodeState::Suspect)
            }
            EventKind::NodeFailed => (Told::NodeFailed, muster_shm::NodeState::Failed),
            _ => (Told::NodeLeft, muster_shm::NodeState::Left),
        };
        let is_doubt = told == Told::NodeFailed && state == muster_shm::NodeState::Suspect;
        if table.view().node_state(node) == state && !is_doubt {
            // A worker before us has said so already.
            return false;
        }
        // Those of whom the board says that they are there: the engine may be further by now, and
        // know the ranks of the node's next life.
        let ranks = match told {
            Told::NodeFailed | Told::NodeLeft => ranks_there(table, node),
            _ => Vec::new(),
        };
        // An agent that was replaced, or asked to end, says nothing about its ranks: they are lost
        // sight of until its successor states who is there.
        let failed = state == muster_shm::NodeState::Failed;
        let end = if failed {
            RankState::Failed
        } else {
            RankState::Unknown
        };
        table.together(|table| {
            table.set_node_state(node, state);
            for rank in &ranks {
                table.set_rank_state(*rank, end);
            }
            self.push(table, event, told, cause(event), node);
            for rank in ranks.iter().filter(|_| failed) {
                let about = (*rank, 0);
                self.push_rank(
                    table,
                    event,
                    Told::RankFailed,
                    Cause::NodeFailed,
                    node,
                    about,
                );
            }
        });
        if told == Told::NodeUp {
            let member = engine.member(event.member);
            let facts: Vec<RankFact> = member.iter().flat_map(|m| m.ranks()).copied().collect();
            for fact in &facts {
                self.tell_rank(table, engine, event, node, fact);
            }
        }
        true
    }

    fn tell_rank(
        &mut self,
        table: &mut TableWriter,
        engine: &Engine,
        event: &Event,
        node: u32,
        fact: &RankFact,
    ) -> bool {
        let before = table.view().rank_state(fact.rank);
        let node_is_there = event.member == engine.id()
            || engine
                .member(event.member)
                .is_some_and(|member| member.state().in_view());
        let state = match fact.state {
            StatedRankState::Alive | StatedRankState::Hung if !node_is_there => RankState::Failed,
            StatedRankState::Alive => RankState::Alive,
            StatedRankState::Hung => RankState::Hung,
            StatedRankState::Failed => RankState::Failed,
            StatedRankState::Left => RankState::Left,
            StatedRankState::Unknown => RankState::Unknown,
        };
        table.set_rank_node(fact.rank, node);
        if before == state {
            return false;
        }
        let told = match state {
            RankState::Alive if before == RankState::Hung => Told::RankResumed,
            RankState::Alive => Told::RankUp,
            RankState::Hung => Told::RankHung,
            RankState::Failed => Told::RankFailed,
            RankState::Left => Told::RankLeft,
            RankState::Unknown => return table.set_rank_state(fact.rank, state),
        };
        let number = u16::from(fact.detail.code & !MINUS);
        let cause = Cause::from_number(number).unwrap_or(Cause::Unspecified);
        let code = match i32::from(fact.detail.argument) {
            argument if fact.detail.code & MINUS != 0 => -argument,
            argument => argument,
        };
        table.together(|table| {
            let has_room = table.set_rank_state(fact.rank, state);
            if has_room {
                self.push_rank(table, event, told, cause, node, (fact.rank, code));
            }
            has_room
        })
    }

    fn push(&self, table: &mut TableWriter, event: &Event, told: Told, cause: Cause, node: u32) {
        let mut entry = self.entry(event, told, cause, node);
        if let EventKind::NodeLeft { exit_code } = event.kind {
            entry.code = exit_code;
        }
        table.push_event(&entry);
    }

    fn push_rank(
        &self,
        table: &mut TableWriter,
        event: &Event,
        told: Told,
        cause: Cause,
        node: u32,
        (rank, code): (u32, i32),
    ) {
        let mut entry = self.entry(event, told, cause, node);
        entry.rank = rank;
        entry.code = code;
        table.push_event(&entry);
    }

    fn entry(&self, event: &Event, told: Told, cause: Cause, node: u32) -> muster_shm::Event {
        let mut entry = muster_shm::Event::new(told, cause);
        entry.node = node;
        entry.silent_us = event.cause.silent_us;
        entry.at_ns = event.at.0 * 1000;
        for reporter in event.cause.reporters.iter() {
            let index = self.indices.get(&reporter).copied().unwrap_or(NO_NODE);
            if let Some(place) = entry.reporters.get_mut(entry.reporter_count as usize) {
                *place = index;
            }
            entry.reporter_count += 1;
        }
        entry
    }
}

/// The ranks of a node that are there, as far as the board says.
fn ranks_there(table: &TableWriter, node: u32) -> Vec<u32> {
    let view = table.view();
    let is_there = |rank: &u32| {
        view.rank_node(*rank) == Some(node)
            && matches!(view.rank_state(*rank), RankState::Alive | RankState::Hung)
    };
    (0..view.rank_count()).filter(is_there).collect()
}

/// As [`muster_shm::setting`] has it.
const fn setting_number(parameter: Parameter) -> i32 {
    match parameter {
        Parameter::WireVersion => 1,
        Parameter::Heartbeat => 2,
        Parameter::Deadline => 3,
        Parameter::Theta => 4,
        Parameter::Mode => 5,
        Parameter::Minority => 6,
        Parameter::Protocol => 7,
        Parameter::Interval => 8,
        Parameter::Participants => 9,
    }
}

fn cause(event: &Event) -> Cause {
    match event.cause.kind {
        CauseKind::Joined | CauseKind::Superseded => Cause::Joined,
        CauseKind::Silence | CauseKind::Rails => Cause::Silence,
        CauseKind::Unreachable | CauseKind::Unanswered => Cause::Unreachable,
        CauseKind::Told | CauseKind::Claimed => Cause::Told,
        CauseKind::Announced => Cause::Announced,
        CauseKind::Refuted => Cause::Refuted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_protocol::{Config, Instant, Overlay, Profile, Reporters, Version};
    use muster_shm::TableLimits;

    /// The last worker had called a rail silent; the next one never heard of it.
    #[test]
    fn a_later_worker_takes_back_doubts_that_it_does_not_share() {
        let limits = TableLimits {
            nodes: 4,
            ranks: 8,
            slots: 4,
            events: 16,
        };
        let mut table = TableWriter::create(limits).unwrap();
        let overlay = Overlay::new(Config::new("n1", b"address", Profile::Standard));
        let engine = Engine::from(overlay.unwrap());
        let node = table.add_node("n1").unwrap();
        let mut publisher = Publisher::adopt(&table);
        for (before, corrected) in [
            (muster_shm::NodeState::Degraded, true),
            (muster_shm::NodeState::Suspect, true),
            (muster_shm::NodeState::Alive, false),
        ] {
            table.set_node_state(node, before);
            assert_eq!(publisher.correct(&mut table, &engine, 1), corrected);
            assert_eq!(table.view().node_state(node), muster_shm::NodeState::Alive);
        }
        table.set_node_state(node, muster_shm::NodeState::Failed);
        assert!(!publisher.correct(&mut table, &engine, 1));
        assert_eq!(table.view().node_state(node), muster_shm::NodeState::Failed);
    }

    /// A new agent in the place of another: who looks in between sees a node in doubt, since it is there the next
    /// moment, and is told of both.
    #[test]
    fn a_node_whose_agent_is_replaced_never_looks_failed() {
        let limits = TableLimits {
            nodes: 4,
            ranks: 8,
            slots: 4,
            events: 16,
        };
        let mut table = TableWriter::create(limits).unwrap();
        let overlay = Overlay::new(Config::new("n1", b"address", Profile::Standard));
        let engine = Engine::from(overlay.unwrap());
        let node = table.add_node("n1").unwrap();
        let mut publisher = Publisher::adopt(&table);
        let mut cursor = table.view().cursor();
        let event = |kind, cause| Event {
            at: Instant(1),
            kind,
            member: engine.id(),
            version: Version::first(1),
            cause: muster_protocol::Cause {
                kind: cause,
                reporters: Reporters::default(),
                silent_us: 0,
            },
        };
        for (before, cause, state) in [
            (
                muster_shm::NodeState::Alive,
                CauseKind::Superseded,
                muster_shm::NodeState::Suspect,
            ),
            (
                muster_shm::NodeState::Suspect,
                CauseKind::Superseded,
                muster_shm::NodeState::Suspect,
            ),
            (
                muster_shm::NodeState::Suspect,
                CauseKind::Silence,
                muster_shm::NodeState::Failed,
            ),
        ] {
            table.set_node_state(node, before);
            assert!(publisher.tell(&mut table, &engine, &event(EventKind::NodeFailed, cause)));
            assert_eq!(table.view().node_state(node), state);
            let told = table.view().next_event(&mut cursor).map(|told| told.kind);
            assert_eq!(told, Some(Told::NodeFailed));
        }
    }
}
