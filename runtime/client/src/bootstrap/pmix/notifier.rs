//! The event notifier: raises events in this process's PMIx about the state of the job's ranks.
//!
//! There are two kinds, and both stay inside this process. *State events* (suspect, degraded, hung, failed, back)
//! go to the handlers that are registered for their codes. They follow the states in the state table, so a slow
//! reader receives the latest state and not every change. *Deaths* are for MPI, where the application has requested
//! them. MPI cannot take a death back, so deaths follow from confirmed verdicts alone, each rank once.
//!
//! The notifier never blocks. An event for which libpmix is too busy is raised later; one that libpmix refuses
//! (PMIx was finalized) is counted and dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_pmix::{Error, Job, Session, StatusCode};
use muster_shm::{Cause, Event, EventKind, NO_RANK, NodeState, RankState, TableView};

/// What is to be raised, and what was raised.
#[derive(Default)]
pub(super) struct EventNotifier {
    feed_mpi: bool,
    notify_states: bool,
    /// No event is raised.
    is_disabled: bool,
    /// Ranks that are dead for MPI: MPI was told of them or will be, or has told Muster.
    dead: BTreeSet<u32>,
    /// Those of them that MPI is still to be told of.
    pending: Vec<u32>,
    /// Names of failed nodes, whose ranks are still to be looked up in the launcher's map. Each has the ranks
    /// that the state table knows on other nodes; those are left out, since a node name may be wrong.
    dead_nodes: BTreeMap<String, BTreeSet<u32>>,
    /// Ranks whose state may differ from the last one raised.
    changed: BTreeSet<u32>,
    raised: BTreeMap<u32, StatusCode>,
    /// Ranks without a state in the table that died with their node and are still to be reported.
    lost_with_node: BTreeSet<u32>,
    counts: Arc<Counts>,
}

/// Counters, which are read without a lock.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Events that libpmix accepted.
    pub(super) notified: AtomicU64,
    /// Events that libpmix refused.
    pub(super) refused: AtomicU64,
}

impl EventNotifier {
    pub(super) fn new(feed_mpi: bool, notify_states: bool) -> Self {
        Self {
            feed_mpi,
            notify_states,
            ..Self::default()
        }
    }

    pub(super) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Notes what follows from an event; an overflow means that every state may have changed.
    pub(super) fn note(&mut self, event: &Event, table: &TableView) {
        match event.kind {
            EventKind::RankFailed if event.rank != NO_RANK && event.cause == Cause::NodeFailed => {
                self.lose_rank(event.rank, table);
            }
            EventKind::RankFailed if event.rank != NO_RANK => {
                self.mark_dead(event.rank);
                self.changed.insert(event.rank);
            }
            EventKind::RankUp | EventKind::RankHung | EventKind::RankResumed => {
                self.changed.insert(event.rank);
            }
            // A new incarnation of the agent joined before its predecessor was missed: the predecessor
            // is dead, the ranks of the node are not.
            EventKind::NodeFailed if event.cause == Cause::Joined => {}
            EventKind::NodeFailed => self.lose_node(event.node, table),
            // Ranks that have a state get an event each.
            EventKind::NodeUp => {
                let is_unknown = |rank: &u32| table.rank_state(*rank) == RankState::Unknown;
                let ranks = ranks_on(table, event.node).into_iter();
                self.changed.extend(ranks.filter(is_unknown));
            }
            EventKind::NodeSuspect | EventKind::NodeDegraded | EventKind::NodeRecovered => {
                self.changed.extend(ranks_on(table, event.node));
            }
            // The states contain what was missed.
            EventKind::Overflow => self.note_all(table),
            _ => {}
        }
    }

    /// Turns on the deaths for MPI, first those in the state table. Returns `false` if events are disabled.
    pub(super) fn feed_mpi(&mut self, table: Option<&TableView>) -> bool {
        if self.is_disabled || self.feed_mpi {
            return !self.is_disabled;
        }
        self.feed_mpi = true;
        if let Some(table) = table {
            self.note_all(table);
        }
        true
    }

    /// Disables all events and forgets the pending ones. Returns whether MPI was to be told of deaths.
    pub(super) fn disable(&mut self) -> bool {
        let was_fed = self.feed_mpi;
        *self = Self {
            counts: self.counts(),
            is_disabled: true,
            ..Self::default()
        };
        was_fed
    }

    /// Notes the states of all ranks and nodes. A node whose agent was replaced does not look failed.
    fn note_all(&mut self, table: &TableView) {
        for rank in 0..table.rank_count() {
            self.changed.insert(rank);
            if table.rank_state(rank) == RankState::Failed {
                self.mark_dead(rank);
            }
        }
        for node in (0..table.node_count()).filter(|node| Some(*node) != table.own_node()) {
            if table.node_state(node) == NodeState::Failed {
                self.lose_node(node, table);
            }
        }
    }

    /// A node has failed, and all its ranks with it.
    fn lose_node(&mut self, node: u32, table: &TableView) {
        for rank in ranks_on(table, node) {
            self.lose_rank(rank, table);
        }
        self.note_dead_node(node, table);
    }

    fn lose_rank(&mut self, rank: u32, table: &TableView) {
        self.mark_dead(rank);
        self.changed.insert(rank);
        // With age gossip a rank has a node and no state.
        if table.rank_state(rank) == RankState::Unknown {
            self.lost_with_node.insert(rank);
        }
    }

    fn mark_dead(&mut self, rank: u32) {
        if self.feed_mpi && self.dead.insert(rank) {
            self.pending.push(rank);
        }
    }

    /// Notes a failed node for the lookup in the launcher's map: ranks that never attached are only there.
    fn note_dead_node(&mut self, node: u32, table: &TableView) {
        let Some(name) = table.node_name(node) else {
            return;
        };
        let is_elsewhere = |rank: &u32| table.rank_node(*rank).is_some_and(|on| on != node);
        let elsewhere = (0..table.rank_count()).filter(is_elsewhere).collect();
        self.dead_nodes.insert(name, elsewhere);
    }

    /// Raises all pending events. `true`: libpmix is busy, call again soon.
    pub(super) fn notify_process(
        &mut self,
        session: &Session,
        job: &Job,
        table: Option<&TableView>,
    ) -> bool {
        for (name, elsewhere) in std::mem::take(&mut self.dead_nodes) {
            for rank in job.ranks_on(&name) {
                if !elsewhere.contains(&rank) && rank != session.rank() {
                    self.mark_dead(rank);
                    self.lost_with_node.insert(rank);
                }
            }
        }
        self.notify_deaths(session, job)
            || self.notify_lost_with_node(session)
            || self.notify_states(session, job, table)
    }

    fn notify_deaths(&mut self, session: &Session, job: &Job) -> bool {
        let own = session.rank();
        self.pending.retain(|rank| *rank != own && *rank < job.size);
        while let Some(rank) = self.pending.last() {
            if !self.notify(session, StatusCode::Dead, *rank) {
                return true;
            }
            self.pending.pop();
        }
        false
    }

    fn notify_states(&mut self, session: &Session, job: &Job, table: Option<&TableView>) -> bool {
        let Some(table) = table.filter(|_| self.notify_states) else {
            self.changed.clear();
            return false;
        };
        while let Some(rank) = self.changed.pop_first() {
            let status = status_of(rank, table).filter(|_| rank < job.size);
            let Some(status) = status.filter(|status| self.is_new(rank, *status)) else {
                continue;
            };
            if !self.notify_state(session, rank, status) {
                self.changed.insert(rank);
                return true;
            }
        }
        false
    }

    fn is_new(&self, rank: u32, status: StatusCode) -> bool {
        self.raised.get(&rank).copied().unwrap_or(StatusCode::Back) != status
    }

    /// Raises a state event; `false` if libpmix is busy.
    fn notify_state(&mut self, session: &Session, rank: u32, status: StatusCode) -> bool {
        let is_done = self.notify(session, status, rank);
        if is_done {
            self.raised.insert(rank, status);
        }
        is_done
    }

    /// Raises an event; `false` if libpmix is busy.
    fn notify(&self, session: &Session, status: StatusCode, rank: u32) -> bool {
        let count = match session.notify(status, rank) {
            Ok(()) => &self.counts.notified,
            Err(Error::Busy) => return false,
            Err(_) => &self.counts.refused,
        };
        count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Reports ranks without a state that died with their node.
    fn notify_lost_with_node(&mut self, session: &Session) -> bool {
        while let Some(rank) = self.lost_with_node.pop_first() {
            let is_new = self.notify_states && self.is_new(rank, StatusCode::NodeFailed);
            if is_new && !self.notify_state(session, rank, StatusCode::NodeFailed) {
                self.lost_with_node.insert(rank);
                return true;
            }
        }
        false
    }
}

/// The ranks whose last known node is this one.
fn ranks_on(table: &TableView, node: u32) -> Vec<u32> {
    let on_it = |rank: &u32| table.rank_node(*rank) == Some(node);
    (0..table.rank_count()).filter(on_it).collect()
}

/// Returns the status that a rank's and its node's states amount to; `None` for a rank that left or is unknown.
fn status_of(rank: u32, table: &TableView) -> Option<StatusCode> {
    let node = table.rank_node(rank).map(|node| table.node_state(node));
    match (table.rank_state(rank), node?) {
        (RankState::Left, _) => None,
        (RankState::Failed, NodeState::Failed) => Some(StatusCode::NodeFailed),
        (RankState::Failed, _) => Some(StatusCode::RankFailed),
        (RankState::Hung, _) => Some(StatusCode::Hung),
        (_, NodeState::Suspect) => Some(StatusCode::Suspect),
        (_, NodeState::Degraded) => Some(StatusCode::Degraded),
        (RankState::Alive | RankState::Unknown, NodeState::Alive) => Some(StatusCode::Back),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shm::{TableLimits, TableWriter};

    /// Ranks 0 and 1 on node 0, ranks 2 and 3 on node 1.
    fn table() -> TableWriter {
        let mut table =
            TableWriter::create(TableLimits::default()).expect("memory for a state table");
        for (node, ranks) in [("nodea", [0, 1]), ("nodeb", [2, 3])] {
            let node = table.add_node(node).expect("room for a node");
            table.set_node_state(node, NodeState::Alive);
            for rank in ranks {
                table.raise_rank_count(rank + 1);
                table.set_rank_node(rank, node);
                table.set_rank_state(rank, RankState::Alive);
            }
        }
        table
    }

    fn event(kind: EventKind, cause: Cause, node: u32, rank: u32) -> Event {
        Event {
            node,
            rank,
            ..Event::new(kind, cause)
        }
    }

    fn pending_deaths(table: &TableWriter, events: &[Event]) -> Vec<u32> {
        let mut notifier = EventNotifier::new(true, true);
        for event in events {
            notifier.note(event, &table.view());
        }
        notifier.pending
    }

    /// MPI cannot take a death back, so it is told confirmed deaths only, each rank once.
    #[test]
    fn mpi_is_told_of_confirmed_deaths_only() {
        let mut table = table();
        let killed = event(EventKind::RankFailed, Cause::KernelFutex, 1, 3);
        let lost = event(EventKind::NodeFailed, Cause::Silence, 1, NO_RANK);
        assert_eq!(pending_deaths(&table, &[killed, lost, lost]), vec![3, 2]);

        let suspected = event(EventKind::NodeSuspect, Cause::Silence, 1, NO_RANK);
        let hung = event(EventKind::RankHung, Cause::Stopped, 1, 2);
        let left = event(EventKind::RankLeft, Cause::Announced, 1, 2);
        let restarted = event(EventKind::NodeFailed, Cause::Joined, 1, NO_RANK);
        assert!(pending_deaths(&table, &[suspected, hung, left, restarted]).is_empty());

        table.set_rank_state(1, RankState::Failed);
        let missed = Event::new(EventKind::Overflow, Cause::Unspecified);
        assert_eq!(pending_deaths(&table, &[missed]), vec![1]);
        let mut silent = EventNotifier::new(false, true);
        silent.note(&missed, &table.view());
        assert!(
            silent.pending.is_empty(),
            "MPI is told of deaths only on request"
        );
    }

    /// A failed node is looked up in the launcher's map for ranks that never attached: when it fails, and by a
    /// process that attaches later, once each.
    #[test]
    fn failed_nodes_are_looked_up() {
        let mut table = table();
        let view = table.view();
        let mut notifier = EventNotifier::new(true, true);
        let lost = event(EventKind::NodeFailed, Cause::Silence, 1, NO_RANK);
        notifier.note(&lost, &view);
        let looked_up = BTreeMap::from([("nodeb".to_owned(), BTreeSet::from([0, 1]))]);
        assert_eq!(notifier.dead_nodes, looked_up);

        let attached = Event::new(EventKind::Overflow, Cause::NewAgent);
        let mut late = EventNotifier::new(true, true);
        late.note(&attached, &view);
        assert!(late.dead_nodes.is_empty() && late.pending.is_empty());
        table.set_node_state(1, NodeState::Failed);
        for _ in 0..2 {
            late.note(&attached, &view);
            assert_eq!(
                (&late.dead_nodes, &late.pending[..]),
                (&looked_up, &[2, 3][..])
            );
        }
        // A failed node without known ranks is looked up, too.
        let unknown = table.add_node("nodec").expect("room for a node");
        table.set_node_state(unknown, NodeState::Failed);
        late.note(&attached, &view);
        assert_eq!((late.dead_nodes.len(), late.pending.len()), (2, 2));
        // The agent's own node is never reported.
        table.set_own_node(1);
        let mut own = EventNotifier::new(true, true);
        own.note(&attached, &view);
        assert!(own.pending.is_empty());
    }

    /// With age gossip a rank has a node and no state, and may get its node after that node has failed. It is
    /// reported as usual, or found by a process that attaches or turns on deaths later, once.
    #[test]
    fn ranks_whose_node_is_known_late_are_reported() {
        let mut table = table();
        let view = table.view();
        table.set_node_state(1, NodeState::Failed);
        let mut notifier = EventNotifier::new(true, true);
        notifier.note(
            &event(EventKind::NodeFailed, Cause::Silence, 1, NO_RANK),
            &view,
        );
        assert_eq!(notifier.pending, [2, 3]);
        table.set_rank_node(4, 1);
        notifier.note(
            &event(EventKind::RankFailed, Cause::NodeFailed, 1, 4),
            &view,
        );
        assert_eq!(
            (&notifier.pending[..], &notifier.lost_with_node),
            (&[2, 3, 4][..], &BTreeSet::from([4]))
        );
        notifier.note(&Event::new(EventKind::Overflow, Cause::Unspecified), &view);
        assert_eq!(notifier.pending, [2, 3, 4]);
        let mut late = EventNotifier::new(false, true);
        late.note(&Event::new(EventKind::Overflow, Cause::NewAgent), &view);
        assert!(late.pending.is_empty() && late.feed_mpi(Some(&view)));
        assert_eq!(late.pending, [2, 3, 4]);
    }

    /// MPI is told once of ranks that died before deaths were turned on. A disabled notifier stays disabled.
    #[test]
    fn a_late_request_gets_all_deaths() {
        let mut table = table();
        let mut notifier = EventNotifier::new(false, true);
        notifier.note(
            &event(EventKind::NodeFailed, Cause::Silence, 1, NO_RANK),
            &table.view(),
        );
        assert!(notifier.pending.is_empty());
        table.set_node_state(1, NodeState::Failed);
        table.set_rank_state(2, RankState::Failed);
        table.set_rank_state(3, RankState::Failed);
        for _ in 0..2 {
            assert!(notifier.feed_mpi(Some(&table.view())));
            assert_eq!(notifier.pending, [2, 3]);
            assert!(
                notifier.dead_nodes.contains_key("nodeb"),
                "looked up for MPI as well"
            );
        }
        notifier.note(
            &event(EventKind::RankFailed, Cause::KernelFutex, 0, 1),
            &table.view(),
        );
        assert_eq!(notifier.pending, [2, 3, 1]);
        assert!(notifier.disable() && !notifier.feed_mpi(Some(&table.view())));
        assert!(notifier.pending.is_empty());
    }

    /// The status follows from the states; the worst one wins.
    #[test]
    fn the_status_follows_the_states() {
        let mut table = table();
        let view = table.view();
        assert_eq!(status_of(2, &view), Some(StatusCode::Back));
        table.set_node_state(1, NodeState::Degraded);
        assert_eq!(status_of(2, &view), Some(StatusCode::Degraded));
        table.set_node_state(1, NodeState::Suspect);
        assert_eq!(status_of(2, &view), Some(StatusCode::Suspect));
        table.set_rank_state(2, RankState::Hung);
        assert_eq!(status_of(2, &view), Some(StatusCode::Hung));
        table.set_rank_state(2, RankState::Failed);
        assert_eq!(status_of(2, &view), Some(StatusCode::RankFailed));
        table.set_node_state(1, NodeState::Failed);
        assert_eq!(status_of(2, &view), Some(StatusCode::NodeFailed));
        table.set_rank_state(2, RankState::Left);
        assert_eq!(status_of(2, &view), None);
        assert_eq!(status_of(9, &view), None, "an unknown rank");
    }

    /// With age gossip a rank has a node and no state: its status follows from its node.
    #[test]
    fn ranks_without_a_state_follow_their_node() {
        let mut table = table();
        table.set_rank_node(4, 1);
        let view = table.view();
        assert_eq!(status_of(4, &view), Some(StatusCode::Back));
        table.set_node_state(1, NodeState::Suspect);
        assert_eq!(status_of(4, &view), Some(StatusCode::Suspect));
        let mut notifier = EventNotifier::new(true, true);
        table.set_node_state(1, NodeState::Failed);
        let lost = event(EventKind::NodeFailed, Cause::Silence, 1, NO_RANK);
        notifier.note(&lost, &view);
        assert!(notifier.pending.contains(&4));
        assert_eq!(notifier.lost_with_node, BTreeSet::from([4]));
        notifier.changed.clear();
        table.set_node_state(1, NodeState::Alive);
        notifier.note(&event(EventKind::NodeUp, Cause::Joined, 1, NO_RANK), &view);
        assert_eq!(notifier.changed, BTreeSet::from([4]));
    }

    /// A rank that was always well raises no event, and no event is raised twice.
    #[test]
    fn only_new_states_are_raised() {
        let mut notifier = EventNotifier::new(false, true);
        assert!(!notifier.is_new(1, StatusCode::Back) && notifier.is_new(1, StatusCode::Hung));
        notifier.raised.insert(1, StatusCode::Hung);
        assert!(notifier.is_new(1, StatusCode::Back) && !notifier.is_new(1, StatusCode::Hung));
    }
}
