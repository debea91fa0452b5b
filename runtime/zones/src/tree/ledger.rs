//! Between the ledgers: what a supervisor writes into the zone above, and copies down from it.
//!
//! - *Up* go the states of the nodes and ranks of the zone, as its view has them, and what its nodes have found out
//!   about others (`lost`).
//! - *Down* goes all that is not of the zone itself.
//!
//! Entries are the same in all ledgers: their versions come from the nodes. So it does not matter in which order they
//! come, how often, or through which supervisor.

use muster_protocol::planted::{self, Fault};
use muster_protocol::{
    Input, LedgerEntry, LedgerKey, MemberId, NodeState, RankFact, RankState, Version,
};

use crate::directory::NodeIndex;
use crate::map::ZoneId;
use crate::tree::{Tree, TreeEvent};

impl Tree {
    /// Carries the changes of each ledger to the others. Returns whether there were any.
    pub(super) fn carry_ledgers(&mut self) -> bool {
        let mut is_busy = false;
        for level in 0..self.levels.len() {
            while let Some(key) = self.levels[level].engine.poll_ledger() {
                is_busy = true;
                self.carry(level, key);
            }
        }
        is_busy
    }

    fn carry(&mut self, level: usize, key: LedgerKey) {
        if level == 0 {
            self.is_reach_dirty = true;
            self.tell_change(key);
        }
        let Some(entry) = self.levels[level].engine.ledger_entry(key).copied() else {
            return;
        };
        let is_own = self.is_below(&entry, self.levels[level].zone);
        if level + 1 < self.levels.len() && (is_own || level == 0) {
            self.write(level + 1, entry);
        }
        if level == 0 {
            return;
        }
        match self.is_below(&entry, self.levels[level - 1].zone) {
            true => self.answer(level, &entry),
            false => self.copy_down(level - 1, entry),
        }
    }

    /// Repeats what the zone below knows, if the ledger of the zone above has something older. Otherwise the entry goes
    /// down, until it reaches the zone of the node that it is about, which may know better.
    fn answer(&mut self, level: usize, entry: &LedgerEntry) {
        if level > 1 {
            match self.entry(level - 1, entry.key()) {
                Some(own) if own > *entry => self.write(level, own),
                _ => self.copy_down(level - 1, *entry),
            }
            return;
        }
        let node = NodeIndex(entry.about_node());
        if let Some(member) = self.ids.get(&node).copied() {
            if self.base().member(member).is_none() {
                // No node of the zone remembers it.
                return self.copy_down(0, *entry);
            }
            self.report_node(member);
            self.note_contradiction(node, member);
            if let LedgerKey::Rank(rank) = entry.key() {
                self.report_ranks(member, Some(rank));
            }
        }
    }

    pub(super) fn entry(&self, level: usize, key: LedgerKey) -> Option<LedgerEntry> {
        self.levels[level].engine.ledger_entry(key).copied()
    }

    /// Whether an entry is about a node of the zone or of a zone below it, or about a rank there.
    fn is_below(&self, entry: &LedgerEntry, zone: ZoneId) -> bool {
        let node = NodeIndex(entry.about_node());
        self.map.zones_of(node).any(|of| of == zone)
    }

    pub(super) fn write(&mut self, level: usize, entry: LedgerEntry) {
        let now = self.now;
        // It is refused if the engine has stopped, or if its ledger is full: the engine counts that.
        let _ = self.levels[level].engine.handle(now, Input::Record(entry));
    }

    /// Copies an entry of the zone above into the ledger at this level.
    pub(super) fn copy_down(&mut self, level: usize, entry: LedgerEntry) {
        if planted::on(Fault::NotCopiedDown) {
            return;
        }
        self.write(level, entry);
    }

    /// Reports the state of a node of the base zone to the zone above.
    pub(super) fn report_node(&mut self, member: MemberId) {
        let Some((node, entry)) = self.node_entry(member) else {
            return;
        };
        if self.levels.len() < 2 {
            return;
        }
        let held = self.entry(1, LedgerKey::Node(node));
        let is_end = entry.node_state() != Some(NodeState::Alive);
        let is_end = is_end && !planted::on(Fault::EndNotReported);
        if is_end || held.is_some_and(|held| held < entry) {
            self.write(1, entry);
        }
    }

    fn node_entry(&self, member: MemberId) -> Option<(u32, LedgerEntry)> {
        let base = &self.levels[0];
        let node = base.node_of(&self.map, member)?;
        let view = base.engine.member(member)?;
        let (version, state) = (view.version(), view.state());
        let entry = LedgerEntry::node(node.0, version, state, view.cause(), view.exit_code());
        Some((node.0, entry))
    }

    /// Reports the state of a rank of the base zone to the zone above.
    pub(super) fn report_rank(&mut self, member: MemberId, incarnation: u64, fact: RankFact) {
        let Some(node) = self.levels[0].node_of(&self.map, member) else {
            return;
        };
        if self.levels.len() < 2 {
            return;
        }
        let entry = LedgerEntry::rank(node.0, incarnation, fact);
        let held = self.entry(1, LedgerKey::Rank(fact.rank));
        if fact.state != RankState::Alive || held.is_some_and(|held| held < entry) {
            self.write(1, entry);
        }
    }

    /// Reports all that is to be known above about the zone below this level.
    pub(super) fn report_all(&mut self, level: usize) {
        if level > 1 {
            let below = self.levels[level - 1].zone;
            let entries: Vec<LedgerEntry> =
                self.levels[level - 1].engine.ledger().copied().collect();
            for entry in entries {
                if self.is_below(&entry, below) {
                    self.write(level, entry);
                }
            }
            return;
        }
        let members: Vec<MemberId> = self.base().members().map(|member| member.id()).collect();
        for member in members {
            self.report_node(member);
            self.report_ranks(member, None);
        }
    }

    /// Reports one rank of a member of the base zone, or all.
    fn report_ranks(&mut self, member: MemberId, only: Option<u32>) {
        let Some(view) = self.base().member(member) else {
            return;
        };
        let incarnation = view.version().incarnation;
        let is_it = |fact: &&RankFact| only.is_none_or(|rank| rank == fact.rank);
        let ranks: Vec<RankFact> = view.ranks().filter(is_it).copied().collect();
        for fact in ranks {
            self.report_rank(member, incarnation, fact);
        }
    }

    /// A supervisor that leaves says so above itself: it may be the last of its zone.
    pub(super) fn report_leave(&mut self, exit_code: i32) {
        if self.levels.len() < 2 {
            return;
        }
        let version: Version = self.base().version();
        let cause = muster_protocol::CauseKind::Announced;
        let entry = LedgerEntry::node(self.node.0, version, NodeState::Left, cause, exit_code);
        self.write(1, entry);
    }

    /// Tells the host of a change of the base zone's ledger.
    fn tell_change(&mut self, key: LedgerKey) {
        match key {
            LedgerKey::Node(node) => self.tell_node(NodeIndex(node)),
            LedgerKey::Rank(rank) => self.tell(TreeEvent::Rank { rank }),
        }
    }
}
