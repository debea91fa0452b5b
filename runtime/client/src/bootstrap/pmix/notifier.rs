//! The crier: says in this process's PMIx what has become of the ranks of the job.
//!
//! Two things are cried, both inside this process only. *Words* (suspect, degraded, hung, failed, back)
//! are for whoever registered a handler for their codes; they follow the states on the board, so that a
//! reader who is slow hears the last word and not every one. *Deaths* are for MPI, where the application
//! asked for it; MPI cannot take them back, so they follow from confirmed verdicts alone, each rank once.
//!
//! What it is not: it waits for nothing. What libpmix cannot take now is said later; what it refuses
//! (PMIx was finalized) is counted and not said again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_pmix::{Error, Job, Session, StatusCode};
use muster_shm::{Cause, Event, EventKind, NO_RANK, NodeState, RankState, TableView};

/// What there is to say, and what was said.
#[derive(Default)]
pub(super) struct EventNotifier {
    feed_mpi: bool,
    say_words: bool,
    /// Nothing is said, whoever asks.
    is_silent: bool,
    /// Ranks that are dead for MPI: it was told of them or shall be, or has told us.
    dead: BTreeSet<u32>,
    /// Those of them of whom it is still to be told.
    pending: Vec<u32>,
    /// Names of failed nodes whose ranks are to be looked up in the launcher's map, but for those that the board
    /// knows elsewhere: names may lie.
    dead_nodes: BTreeMap<String, BTreeSet<u32>>,
    /// Ranks that may have another state than was said last.
    moved: BTreeSet<u32>,
    said: BTreeMap<u32, StatusCode>,
    /// Ranks that were on no board and have died with their node, of whom it is still to be said.
    buried: BTreeSet<u32>,
    counts: Arc<Counts>,
}

/// What was said, counted: to be read without waiting for the crier.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Events that PMIx took.
    pub(super) notified: AtomicU64,
    /// Events that it did not.
    pub(super) refused: AtomicU64,
}

impl EventNotifier {
    pub(super) fn new(feed_mpi: bool, say_words: bool) -> Self {
        Self {
            feed_mpi,
            say_words,
            ..Self::default()
        }
    }

    pub(super) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Notes what follows from an event; an overflow means that all may have changed.
    pub(super) fn note(&mut self, event: &Event, table: &TableView) {
        match event.kind {
            EventKind::RankFailed if event.rank != NO_RANK && event.cause == Cause::NodeFailed => {
                self.lose_rank(event.rank, table);
            }
            EventKind::RankFailed if event.rank != NO_RANK => {
                self.condemn(event.rank);
                self.moved.insert(event.rank);
            }
            EventKind::RankUp | EventKind::RankHung | EventKind::RankResumed => {
                self.moved.insert(event.rank);
            }
            // An agent came back with a new incarnation before it was missed: its predecessor is
            // dead, the ranks of the node are not.
            EventKind::NodeFailed if event.cause == Cause::Joined => {}
            EventKind::NodeFailed => self.lose(event.node, table),
            // Of ranks that are told of, each is told by itself.
            EventKind::NodeUp => {
                let is_unknown = |rank: &u32| table.rank_state(*rank) == RankState::Unknown;
                let ranks = ranks_on(table, event.node).into_iter();
                self.moved.extend(ranks.filter(is_unknown));
            }
            EventKind::NodeSuspect | EventKind::NodeDegraded | EventKind::NodeRecovered => {
                self.moved.extend(ranks_on(table, event.node));
            }
            // What was missed is in the states.
            EventKind::Overflow => self.look_at_all(table),
            _ => {}
        }
    }

    /// Has MPI told of the dead from now on, of those on the board first. `false` if nothing may be said.
    pub(super) fn feed_mpi(&mut self, table: Option<&TableView>) -> bool {
        if self.is_silent || self.feed_mpi {
            return !self.is_silent;
        }
        self.feed_mpi = true;
        if let Some(table) = table {
            self.look_at_all(table);
        }
        true
    }

    /// Says nothing any more, and forgets what it was about to. Says whether MPI was to be fed.
    pub(super) fn fall_silent(&mut self) -> bool {
        let was_fed = self.feed_mpi;
        *self = Self {
            counts: self.counts(),
            is_silent: true,
            ..Self::default()
        };
        was_fed
    }

    /// Whatever became of whom, it is in the states. A node that a new agent takes over does not look failed.
    fn look_at_all(&mut self, table: &TableView) {
        for rank in 0..table.rank_count() {
            self.moved.insert(rank);
            if table.rank_state(rank) == RankState::Failed {
                self.condemn(rank);
            }
        }
        for node in (0..table.node_count()).filter(|node| Some(*node) != table.own_node()) {
            if table.node_state(node) == NodeState::Failed {
                self.lose(node, table);
            }
        }
    }

    /// A node is dead, and all its ranks.
    fn lose(&mut self, node: u32, table: &TableView) {
        for rank in ranks_on(table, node) {
            self.lose_rank(rank, table);
        }
        self.bury(node, table);
    }

    fn lose_rank(&mut self, rank: u32, table: &TableView) {
        self.condemn(rank);
        self.moved.insert(rank);
        // Age gossip tells nothing of ranks but where they are.
        if table.rank_state(rank) == RankState::Unknown {
            self.buried.insert(rank);
        }
    }

    fn condemn(&mut self, rank: u32) {
        if self.feed_mpi && self.dead.insert(rank) {
            self.pending.push(rank);
        }
    }

    /// Ranks that never attached are known to the launcher alone.
    fn bury(&mut self, node: u32, table: &TableView) {
        let Some(name) = table.node_name(node) else {
            return;
        };
        let is_elsewhere = |rank: &u32| table.rank_node(*rank).is_some_and(|on| on != node);
        let elsewhere = (0..table.rank_count()).filter(is_elsewhere).collect();
        self.dead_nodes.insert(name, elsewhere);
    }

    /// Says what there is to say. `true` if libpmix has its hands full: again soon.
    pub(super) fn notify_process(
        &mut self,
        session: &Session,
        job: &Job,
        table: Option<&TableView>,
    ) -> bool {
        for (name, elsewhere) in std::mem::take(&mut self.dead_nodes) {
            for rank in job.ranks_on(&name) {
                if !elsewhere.contains(&rank) && rank != session.rank() {
                    self.condemn(rank);
                    self.buried.insert(rank);
                }
            }
        }
        self.tell_deaths(session, job)
            || self.say_burials(session)
            || self.say_words(session, job, table)
    }

    fn tell_deaths(&mut self, session: &Session, job: &Job) -> bool {
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

    fn say_words(&mut self, session: &Session, job: &Job, table: Option<&TableView>) -> bool {
        let Some(table) = table.filter(|_| self.say_words) else {
            self.moved.clear();
            return false;
        };
        while let Some(rank) = self.moved.pop_first() {
            let word = word_for(rank, table).filter(|_| rank < job.size);
            let Some(word) = word.filter(|word| self.is_new(rank, *word)) else {
                continue;
            };
            if !self.say(session, rank, word) {
                self.moved.insert(rank);
                return true;
            }
        }
        false
    }

    fn is_new(&self, rank: u32, word: StatusCode) -> bool {
        self.said.get(&rank).copied().unwrap_or(StatusCode::Back) != word
    }

    /// Says a word; `false` if libpmix has its hands full.
    fn say(&mut self, session: &Session, rank: u32, word: StatusCode) -> bool {
        let is_over = self.notify(session, word, rank);
        if is_over {
            self.said.insert(rank, word);
        }
        is_over
    }

    /// `false` if libpmix has its hands full.
    fn notify(&self, session: &Session, word: StatusCode, rank: u32) -> bool {
        let count = match session.notify(word, rank) {
            Ok(()) => &self.counts.notified,
            Err(Error::Busy) => return false,
            Err(_) => &self.counts.refused,
        };
        count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// A rank that is on no board has died with its node.
    fn say_burials(&mut self, session: &Session) -> bool {
        while let Some(rank) = self.buried.pop_first() {
            let is_new = self.say_words && self.is_new(rank, StatusCode::NodeFailed);
            if is_new && !self.say(session, rank, StatusCode::NodeFailed) {
                self.buried.insert(rank);
                return true;
            }
        }
        false
    }
}

/// The ranks whose last known place is this node.
fn ranks_on(table: &TableView, node: u32) -> Vec<u32> {
    let on_it = |rank: &u32| table.rank_node(*rank) == Some(node);
    (0..table.rank_count()).filter(on_it).collect()
}

/// What the states say of a rank; none for one that left, or that nobody knows.
fn word_for(rank: u32, table: &TableView) -> Option<StatusCode> {
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
        let mut table = TableWriter::create(TableLimits::default()).expect("memory for a board");
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

    fn condemned(table: &TableWriter, events: &[Event]) -> Vec<u32> {
        let mut notifier = EventNotifier::new(true, true);
        for event in events {
            notifier.note(event, &table.view());
        }
        notifier.pending
    }

    /// What MPI is told can never be taken back, so it is told confirmed deaths, each rank once.
    #[test]
    fn only_confirmed_deaths_are_told() {
        let mut table = table();
        let killed = event(EventKind::RankFailed, Cause::KernelFutex, 1, 3);
        let lost = event(EventKind::NodeFailed, Cause::Silence, 1, NO_RANK);
        assert_eq!(condemned(&table, &[killed, lost, lost]), vec![3, 2]);

        let suspected = event(EventKind::NodeSuspect, Cause::Silence, 1, NO_RANK);
        let hung = event(EventKind::RankHung, Cause::Stopped, 1, 2);
        let left = event(EventKind::RankLeft, Cause::Announced, 1, 2);
        let restarted = event(EventKind::NodeFailed, Cause::Joined, 1, NO_RANK);
        assert!(condemned(&table, &[suspected, hung, left, restarted]).is_empty());

        table.set_rank_state(1, RankState::Failed);
        let missed = Event::new(EventKind::Overflow, Cause::Unspecified);
        assert_eq!(condemned(&table, &[missed]), vec![1]);
        let mut silent = EventNotifier::new(false, true);
        silent.note(&missed, &table.view());
        assert!(
            silent.pending.is_empty(),
            "MPI is told where it was asked for"
        );
    }

    /// A failed node is looked up in the launcher's map for the ranks that never attached: when it fails,
    /// and by who attaches later, once each.
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
        // One that nobody knew a rank of, too.
        let unknown = table.add_node("nodec").expect("room for a node");
        table.set_node_state(unknown, NodeState::Failed);
        late.note(&attached, &view);
        assert_eq!((late.dead_nodes.len(), late.pending.len()), (2, 2));
        // What its agent says of its own node is another matter.
        table.set_own_node(1);
        let mut own = EventNotifier::new(true, true);
        own.note(&attached, &view);
        assert!(own.pending.is_empty());
    }

    /// With age gossip a rank has a place and no state, and may get its place when its node has failed: told as ever,
    /// or found by who attaches or asks later, once.
    #[test]
    fn ranks_that_are_placed_late_are_told() {
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
            (&notifier.pending[..], &notifier.buried),
            (&[2, 3, 4][..], &BTreeSet::from([4]))
        );
        notifier.note(&Event::new(EventKind::Overflow, Cause::Unspecified), &view);
        assert_eq!(notifier.pending, [2, 3, 4]);
        let mut late = EventNotifier::new(false, true);
        late.note(&Event::new(EventKind::Overflow, Cause::NewAgent), &view);
        assert!(late.pending.is_empty() && late.feed_mpi(Some(&view)));
        assert_eq!(late.pending, [2, 3, 4]);
    }

    /// MPI is told of who died before it was asked for, once; who fell silent stays that.
    #[test]
    fn who_asks_late_is_told_of_all() {
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
        assert!(notifier.fall_silent() && !notifier.feed_mpi(Some(&table.view())));
        assert!(notifier.pending.is_empty());
    }

    /// A word follows from the states, and is the worst that can be said.
    #[test]
    fn words_follow_the_states() {
        let mut table = table();
        let view = table.view();
        assert_eq!(word_for(2, &view), Some(StatusCode::Back));
        table.set_node_state(1, NodeState::Degraded);
        assert_eq!(word_for(2, &view), Some(StatusCode::Degraded));
        table.set_node_state(1, NodeState::Suspect);
        assert_eq!(word_for(2, &view), Some(StatusCode::Suspect));
        table.set_rank_state(2, RankState::Hung);
        assert_eq!(word_for(2, &view), Some(StatusCode::Hung));
        table.set_rank_state(2, RankState::Failed);
        assert_eq!(word_for(2, &view), Some(StatusCode::RankFailed));
        table.set_node_state(1, NodeState::Failed);
        assert_eq!(word_for(2, &view), Some(StatusCode::NodeFailed));
        table.set_rank_state(2, RankState::Left);
        assert_eq!(word_for(2, &view), None);
        assert_eq!(word_for(9, &view), None, "a rank that nobody knows");
    }

    /// With age gossip a rank has a place and no state: what is said of it is what becomes of its node.
    #[test]
    fn ranks_without_a_state_follow_their_node() {
        let mut table = table();
        table.set_rank_node(4, 1);
        let view = table.view();
        assert_eq!(word_for(4, &view), Some(StatusCode::Back));
        table.set_node_state(1, NodeState::Suspect);
        assert_eq!(word_for(4, &view), Some(StatusCode::Suspect));
        let mut notifier = EventNotifier::new(true, true);
        table.set_node_state(1, NodeState::Failed);
        let lost = event(EventKind::NodeFailed, Cause::Silence, 1, NO_RANK);
        notifier.note(&lost, &view);
        assert!(notifier.pending.contains(&4));
        assert_eq!(notifier.buried, BTreeSet::from([4]));
        notifier.moved.clear();
        table.set_node_state(1, NodeState::Alive);
        notifier.note(&event(EventKind::NodeUp, Cause::Joined, 1, NO_RANK), &view);
        assert_eq!(notifier.moved, BTreeSet::from([4]));
    }

    /// Nothing is said of a rank that was always well, and nothing twice.
    #[test]
    fn only_what_is_new_is_said() {
        let mut notifier = EventNotifier::new(false, true);
        assert!(!notifier.is_new(1, StatusCode::Back) && notifier.is_new(1, StatusCode::Hung));
        notifier.said.insert(1, StatusCode::Hung);
        assert!(notifier.is_new(1, StatusCode::Back) && !notifier.is_new(1, StatusCode::Hung));
    }
}
