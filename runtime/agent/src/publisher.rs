//! `Publisher` writes events to the state table.
//!
//! It writes states first, then the event about them, and only then wakes waiters of a state: a woken waiter also
//! finds the event.
//!
//! The engine names members; the state table has indices, assigned in the order in which names were first seen and
//! constant for the table's lifetime. The state of a rank depends on two facts that may arrive in any order: what its
//! node reported of it, and the state of the node itself. Only this module combines them.

use muster_control::MINUS;
use muster_shm::{Cause, EventKind as TableEvent, NO_NODE, RankState, TableView, TableWriter};

use muster_protocol::{
    CauseKind, Engine, Event, EventKind, LedgerKey, MemberId, MemberView, NodeState, RankFact,
    RankState as StatedRankState,
};
use muster_zones::NodeIndex;
use std::collections::{BTreeMap, BTreeSet};
use tracing::{info, warn};

/// Ranks of one list of another zone that get an event each.
const RANK_EVENTS_MAX: usize = 1024;

/// Writer of members, ranks and events to the state table.
pub(super) struct Publisher {
    indices: BTreeMap<MemberId, u32>,
    /// Nodes with their ranks, as far as this module has written or adopted them.
    ranks: BTreeSet<(u32, u32)>,
    /// Members for which the state table had no room. Ranks do not see them.
    pub(super) without_room: u64,
}

impl Publisher {
    /// Reads the indices that an earlier worker assigned.
    pub(super) fn adopt(table: &TableWriter) -> Self {
        let view = table.view();
        let names = (0..view.node_count()).filter_map(|i| Some((view.node_name(i)?, i)));
        let indices = names
            .map(|(name, index)| (MemberId::of(&name), index))
            .collect();
        let placed = |rank| Some((view.rank_node(rank)?, rank));
        let ranks = (0..view.rank_count()).filter_map(placed).collect();
        Self {
            indices,
            ranks,
            without_room: 0,
        }
    }

    /// Writes the node that a rank runs on.
    fn place(&mut self, table: &mut TableWriter, rank: u32, node: u32) {
        if let Some(before) = table.view().rank_node(rank) {
            self.ranks.remove(&(before, rank));
        }
        if table.set_rank_node(rank, node) {
            self.ranks.insert((node, rank));
        }
    }

    /// The live ranks of a node, according to the state table. With age gossip the rank map writes the nodes of ranks
    /// too, so all ranks of the job are looked at.
    fn live_ranks(&self, table: &TableWriter, engine: &Engine, node: u32) -> Vec<u32> {
        let view = table.view();
        let is_alive = |rank: &u32| {
            view.rank_node(*rank) == Some(node)
                && matches!(view.rank_state(*rank), RankState::Alive | RankState::Hung)
        };
        if engine.age().is_some() {
            return (0..view.rank_count()).filter(is_alive).collect();
        }
        let ranks = self.ranks.range((node, 0)..=(node, u32::MAX));
        ranks.map(|(_, rank)| *rank).filter(is_alive).collect()
    }

    /// The index of a member that has one in this table.
    pub(super) fn known(&self, id: MemberId) -> Option<u32> {
        self.indices.get(&id).copied()
    }

    /// The live members, according to the state table.
    pub(super) fn present(&self, table: TableView) -> impl Iterator<Item = MemberId> {
        let is_alive = move |node: u32| {
            matches!(
                table.node_state(node),
                muster_shm::NodeState::Alive
                    | muster_shm::NodeState::Degraded
                    | muster_shm::NodeState::Suspect
            )
        };
        let all = self.indices.iter();
        all.filter_map(move |(id, node)| is_alive(*node).then_some(*id))
    }

    /// The index of a member in this table. A new member gets the next one.
    pub(super) fn index(&mut self, table: &mut TableWriter, id: MemberId, name: &str) -> u32 {
        if let Some(index) = self.indices.get(&id) {
            return *index;
        }
        let Some(index) = table.add_node(name) else {
            self.without_room += 1;
            warn!(
                member = name,
                "the state table has no room for another node; ranks do not see this member"
            );
            return NO_NODE;
        };
        self.indices.insert(id, index);
        index
    }

    /// Writes a member's group (nodes that may fail together).
    fn note_group(&self, table: &mut TableWriter, engine: &Engine, id: MemberId) {
        if let (Some(node), Some(member)) = (self.indices.get(&id), engine.member(id)) {
            table.set_node_group(*node, member.group());
        }
    }

    /// Writes an event. Returns true if there is news for the ranks.
    pub(super) fn publish(
        &mut self,
        table: &mut TableWriter,
        engine: &Engine,
        event: &Event,
    ) -> bool {
        let name = engine.name_of(event.member);
        // A member of another release has no name that can be read. It gets no index.
        let nameless = name.is_none() && matches!(event.kind, EventKind::Refused(_));
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
            EventKind::RankChanged { fact } => {
                let node_is_alive = is_alive(engine, event.member);
                self.publish_rank(table, node_is_alive, event, node, &fact)
            }
            EventKind::Outcast => {
                self.push(table, event, TableEvent::Outcast, node);
                true
            }
            EventKind::GroupFailed { number, failed, of } => {
                let failure = engine.group_failure(number);
                let members = failure.iter().flat_map(|failure| &failure.members);
                let nodes: Vec<u32> = members
                    .filter_map(|m| self.indices.get(m))
                    .copied()
                    .collect();
                let mut entry = self.entry(event, TableEvent::GroupFailed, cause(event), node);
                (entry.count, entry.total) = (failed, of);
                table.push_event_about(&entry, &nodes);
                true
            }
            EventKind::Minority { reached, of, held } => {
                let mut entry = self.entry(event, TableEvent::Minority, cause(event), node);
                (entry.count, entry.total, entry.code) = (reached, of, i32::from(held));
                table.push_event(&entry);
                true
            }
            EventKind::Majority { reached, of } => {
                let mut entry = self.entry(event, TableEvent::Majority, cause(event), node);
                (entry.count, entry.total) = (reached, of);
                table.push_event(&entry);
                true
            }
            EventKind::Refused(one) => {
                let mut entry = self.entry(event, TableEvent::NodeRefused, cause(event), node);
                (entry.count, entry.total) = (one.own, one.other);
                entry.code = one.parameter as i32;
                table.push_event(&entry);
                true
            }
            // Attribute changes are published by `publish_attribute`, and only if a rank watches the key.
            EventKind::NameTaken | EventKind::NameClaimed | EventKind::AttributeChanged { .. } => {
                false
            }
            kind => self.publish_node(table, engine, event, node, kind),
        }
    }

    /// Writes members that had failed or left before this agent started. They are known from other members, and cause
    /// no event.
    pub(super) fn publish_gone(&mut self, table: &mut TableWriter, engine: &Engine) {
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

    /// Corrects the states of live members after a worker has taken over. This worker does not know of failing rails
    /// that the last one knew, and may not suspect the same members. States failed and left stay until an event
    /// changes them. Returns true if there is news for the ranks.
    pub(super) fn correct(&mut self, table: &mut TableWriter, engine: &Engine, at_ns: u64) -> bool {
        let mut news = false;
        for member in engine.members() {
            let Some(node) = self.indices.get(&member.id()).copied() else {
                continue;
            };
            let (published, state) = match member.state() {
                NodeState::Alive => (TableEvent::NodeRecovered, muster_shm::NodeState::Alive),
                NodeState::Degraded => (TableEvent::NodeDegraded, muster_shm::NodeState::Degraded),
                NodeState::Suspect => (TableEvent::NodeSuspect, muster_shm::NodeState::Suspect),
                NodeState::Unknown | NodeState::Failed | NodeState::Left => continue,
            };
            let before = table.view().node_state(node);
            let is_suspected = matches!(
                before,
                muster_shm::NodeState::Degraded | muster_shm::NodeState::Suspect
            );
            if !is_suspected || before == state {
                continue;
            }
            table.set_node_state(node, state);
            let mut entry = muster_shm::Event::new(published, Cause::Unspecified);
            (entry.node, entry.at_ns) = (node, at_ns);
            table.push_event(&entry);
            news = true;
        }
        news
    }

    /// Writes that an attribute changed.
    pub(super) fn publish_attribute(
        &mut self,
        table: &mut TableWriter,
        name: &str,
        event: &Event,
        key_hash: u64,
    ) {
        let node = self.index(table, event.member, name);
        let mut published = muster_shm::Event::new(TableEvent::Attribute, Cause::Announced);
        (published.node, published.key_hash) = (node, key_hash);
        published.at_ns = event.at.0 * 1000;
        table.push_event(&published);
    }

    /// Writes which ranks run in another zone. `is_back`: their node was lost and has returned. Returns true if there
    /// is news for the ranks.
    pub(super) fn publish_ranks_elsewhere(
        &mut self,
        table: &mut TableWriter,
        engine: &Engine,
        ranks: &[(u32, NodeIndex)],
        is_back: bool,
        at_ns: u64,
    ) -> bool {
        let is_new = |table: &TableWriter, rank: u32, node: u32| {
            let view = table.view();
            let state = view.rank_state(rank);
            let is_lost = matches!(state, RankState::Unknown | RankState::Failed) && is_back;
            view.rank_node(rank) != Some(node) || state == RankState::Unknown || is_lost
        };
        let mut news = 0;
        for &(rank, NodeIndex(node)) in ranks {
            // What has happened to a rank since it started is in the ledger.
            let entry = engine.ledger_entry(LedgerKey::Rank(rank));
            if entry.is_some() || node >= table.view().node_count() || !is_new(table, rank, node) {
                continue;
            }
            let (state, event) = match table.view().node_state(node) {
                muster_shm::NodeState::Failed => (RankState::Failed, TableEvent::RankFailed),
                muster_shm::NodeState::Left => (RankState::Unknown, TableEvent::RankLeft),
                _ => (RankState::Alive, TableEvent::RankUp),
            };
            self.place(table, rank, node);
            if !table.set_rank_state(rank, state) {
                continue;
            }
            news += 1;
            // More events than that would push out those that ranks have not read yet.
            if news <= RANK_EVENTS_MAX {
                let mut entry = muster_shm::Event::new(event, Cause::Joined);
                (entry.node, entry.rank, entry.at_ns) = (node, rank, at_ns);
                table.push_event(&entry);
            }
        }
        news > 0
    }

    /// Writes an event of a node of another zone. The engine of this node's zone does not have it as a member.
    /// Returns true if there is news for the ranks.
    pub(super) fn publish_elsewhere(
        &mut self,
        table: &mut TableWriter,
        engine: &Engine,
        event: &Event,
        name: &str,
    ) -> bool {
        let node = self.index(table, event.member, name);
        if node == NO_NODE {
            return false;
        }
        info!(member = %name, kind = ?event.kind, cause = ?event.cause.kind, "event of another zone");
        match event.kind {
            EventKind::RankChanged { fact } => {
                let node_is_alive = !matches!(
                    table.view().node_state(node),
                    muster_shm::NodeState::Failed | muster_shm::NodeState::Left
                );
                self.publish_rank(table, node_is_alive, event, node, &fact)
            }
            EventKind::Outcast => {
                self.push(table, event, TableEvent::Outcast, node);
                true
            }
            EventKind::Minority { reached, of, .. } | EventKind::Majority { reached, of } => {
                let kind = match event.kind {
                    EventKind::Minority { .. } => TableEvent::Minority,
                    _ => TableEvent::Majority,
                };
                let mut entry = self.entry(event, kind, cause(event), node);
                (entry.count, entry.total) = (reached, of);
                table.push_event(&entry);
                true
            }
            kind => self.publish_node(table, engine, event, node, kind),
        }
    }

    fn publish_node(
        &mut self,
        table: &mut TableWriter,
        engine: &Engine,
        event: &Event,
        node: u32,
        kind: EventKind,
    ) -> bool {
        let (published, state) = match kind {
            EventKind::NodeUp => (TableEvent::NodeUp, muster_shm::NodeState::Alive),
            EventKind::NodeDegraded => (TableEvent::NodeDegraded, muster_shm::NodeState::Degraded),
            EventKind::NodeRecovered => (TableEvent::NodeRecovered, muster_shm::NodeState::Alive),
            EventKind::NodeSuspect => (TableEvent::NodeSuspect, muster_shm::NodeState::Suspect),
            // The next incarnation of its agent follows, so the failure is not final.
            EventKind::NodeFailed if event.cause.kind == CauseKind::Superseded => {
                (TableEvent::NodeFailed, muster_shm::NodeState::Suspect)
            }
            EventKind::NodeFailed => (TableEvent::NodeFailed, muster_shm::NodeState::Failed),
            _ => (TableEvent::NodeLeft, muster_shm::NodeState::Left),
        };
        let is_superseded =
            published == TableEvent::NodeFailed && state == muster_shm::NodeState::Suspect;
        if table.view().node_state(node) == state && !is_superseded {
            // The previous worker has published it already.
            return false;
        }
        // The ranks that the state table shows on the node. The engine may already know the ranks of the node's next
        // incarnation.
        let ranks = match published {
            TableEvent::NodeFailed | TableEvent::NodeLeft => self.live_ranks(table, engine, node),
            _ => Vec::new(),
        };
        // An agent that was replaced, or requested to end, reports nothing of its ranks. They are unknown until its
        // successor reports them.
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
            self.push(table, event, published, node);
            let what = (TableEvent::RankFailed, Cause::NodeFailed);
            for rank in ranks.iter().filter(|_| failed) {
                self.push_rank(table, event, what, node, (*rank, 0));
            }
        });
        if published == TableEvent::NodeUp {
            let member = engine.member(event.member);
            let facts: Vec<RankFact> = member.iter().flat_map(|m| m.ranks()).copied().collect();
            let node_is_alive = is_alive(engine, event.member);
            for fact in &facts {
                self.publish_rank(table, node_is_alive, event, node, fact);
            }
        }
        true
    }

    fn publish_rank(
        &mut self,
        table: &mut TableWriter,
        node_is_alive: bool,
        event: &Event,
        node: u32,
        fact: &RankFact,
    ) -> bool {
        let before = table.view().rank_state(fact.rank);
        let state = match fact.state {
            StatedRankState::Alive | StatedRankState::Hung if !node_is_alive => RankState::Failed,
            StatedRankState::Alive => RankState::Alive,
            StatedRankState::Hung => RankState::Hung,
            StatedRankState::Failed => RankState::Failed,
            StatedRankState::Left => RankState::Left,
            StatedRankState::Unknown => RankState::Unknown,
        };
        self.place(table, fact.rank, node);
        if before == state {
            return false;
        }
        let published = match state {
            RankState::Alive if before == RankState::Hung => TableEvent::RankResumed,
            RankState::Alive => TableEvent::RankUp,
            RankState::Hung => TableEvent::RankHung,
            RankState::Failed => TableEvent::RankFailed,
            RankState::Left => TableEvent::RankLeft,
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
                self.push_rank(table, event, (published, cause), node, (fact.rank, code));
            }
            has_room
        })
    }

    fn push(&self, table: &mut TableWriter, event: &Event, published: TableEvent, node: u32) {
        let mut entry = self.entry(event, published, cause(event), node);
        if let EventKind::NodeLeft { exit_code } = event.kind {
            entry.code = exit_code;
        }
        table.push_event(&entry);
    }

    fn push_rank(
        &self,
        table: &mut TableWriter,
        event: &Event,
        (published, cause): (TableEvent, Cause),
        node: u32,
        (rank, code): (u32, i32),
    ) {
        let mut entry = self.entry(event, published, cause, node);
        entry.rank = rank;
        entry.code = code;
        table.push_event(&entry);
    }

    fn entry(
        &self,
        event: &Event,
        published: TableEvent,
        cause: Cause,
        node: u32,
    ) -> muster_shm::Event {
        let mut entry = muster_shm::Event::new(published, cause);
        entry.node = node;
        entry.silent_us = event.cause.silent_us;
        entry.at_ns = event.at.0 * 1000;
        for reporter in event.cause.reporters.iter() {
            let index = self.indices.get(&reporter).copied().unwrap_or(NO_NODE);
            if let Some(reporter) = entry.reporters.get_mut(entry.reporter_count as usize) {
                *reporter = index;
            }
            entry.reporter_count += 1;
        }
        entry
    }
}

/// Whether a member of this node's zone is alive, as far as its engine knows.
fn is_alive(engine: &Engine, member: MemberId) -> bool {
    let is_in_view = |member: MemberView<'_>| member.state().in_view();
    member == engine.id() || engine.member(member).is_some_and(is_in_view)
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
    use muster_protocol::{Config, Instant, Overlay, Profile, RankDetail, Reporters, Version};
    use muster_shm::TableLimits;

    /// A table with the node of the engine, `n1`, and the engine.
    fn table_of_n1() -> (TableWriter, Engine, u32) {
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
        (table, engine, node)
    }

    fn event(engine: &Engine, kind: EventKind, cause: CauseKind) -> Event {
        Event {
            at: Instant(1),
            kind,
            member: engine.id(),
            version: Version::first(1),
            cause: muster_protocol::Cause {
                kind: cause,
                reporters: Reporters::default(),
                silent_us: 0,
            },
        }
    }

    /// The last worker reported a silent rail, which the next one does not know of.
    #[test]
    fn a_new_worker_resets_suspicions_that_it_does_not_have() {
        let (mut table, engine, node) = table_of_n1();
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

    /// While a new agent replaces another one, the node is shown as suspect, because it is alive again shortly after.
    /// Events report both changes.
    #[test]
    fn a_node_whose_agent_is_replaced_is_never_shown_as_failed() {
        let (mut table, engine, node) = table_of_n1();
        let mut publisher = Publisher::adopt(&table);
        let mut cursor = table.view().cursor();
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
            assert!(publisher.publish(
                &mut table,
                &engine,
                &event(&engine, EventKind::NodeFailed, cause)
            ));
            assert_eq!(table.view().node_state(node), state);
            let published = table
                .view()
                .next_event(&mut cursor)
                .map(|published| published.kind);
            assert_eq!(published, Some(TableEvent::NodeFailed));
        }
    }

    /// A failed node's live ranks fail with it, in their order: those of an earlier worker, those stated since, and
    /// those that came from another node. Ranks of other nodes, and ranks that have ended, do not.
    #[test]
    fn the_ranks_of_a_failed_node_are_found_by_their_node() {
        let (mut table, engine, node) = table_of_n1();
        let other = table.add_node("n2").unwrap();
        table.set_node_state(node, muster_shm::NodeState::Alive);
        for (rank, on, state) in [
            (1, node, RankState::Alive),
            (2, other, RankState::Alive),
            (3, other, RankState::Alive),
            (4, node, RankState::Left),
        ] {
            table.set_rank_node(rank, on);
            table.set_rank_state(rank, state);
        }
        let mut publisher = Publisher::adopt(&table);
        for rank in [5, 3, 0] {
            let fact = RankFact {
                rank,
                state: StatedRankState::Hung,
                detail: RankDetail::default(),
                sequence: 1,
            };
            let stated = event(
                &engine,
                EventKind::RankChanged { fact },
                CauseKind::Announced,
            );
            assert!(publisher.publish(&mut table, &engine, &stated));
        }
        let (view, mut cursor) = (table.view(), table.view().cursor());
        let failed = event(&engine, EventKind::NodeFailed, CauseKind::Silence);
        assert!(publisher.publish(&mut table, &engine, &failed));
        let published = std::iter::from_fn(|| view.next_event(&mut cursor));
        let published: Vec<_> = published.map(|event| (event.kind, event.rank)).collect();
        let ranks = [0, 1, 3, 5].map(|rank| (TableEvent::RankFailed, rank));
        assert_eq!(published[0].0, TableEvent::NodeFailed);
        assert_eq!(published[1..], ranks);
        let states = [0, 1, 2, 3, 4, 5].map(|rank| view.rank_state(rank));
        let (gone, live, left) = (RankState::Failed, RankState::Alive, RankState::Left);
        assert_eq!(states, [gone, gone, live, gone, left, gone]);
        let others = publisher.ranks.range((other, 0)..);
        assert!(others.eq(&[(other, 2)]));
    }
}
