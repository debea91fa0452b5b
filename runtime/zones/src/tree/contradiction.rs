//! Nodes that run though the rest of the job holds them failed.
//!
//! The members of a zone that declared a node failed may all end before it hears of it. If it runs, its own zone knows
//! nothing of the verdict then, but other zones do: it is in their ledger, and their ranks were told. So the node is
//! declared failed in its zone too: its ranks learn of it, and it returns with a later version, which all zones take.

use muster_protocol::{Input, Instant, LedgerKey, MemberId, NodeState, Told, Version};

use crate::directory::NodeIndex;
use crate::tree::Tree;

/// A contradiction that lasts for so many deadlines is settled: the zone may only not have heard of the verdict yet.
const CONTRADICTED_DEADLINES: u64 = 10;

impl Tree {
    /// Notes whether the ledger of the zone above holds a node of the base zone failed that runs.
    pub(super) fn note_contradiction(&mut self, node: NodeIndex, member: MemberId) {
        if self.verdict_against(node, member).is_some() {
            self.contradicted.entry(node.0).or_insert(self.now);
        }
    }

    /// The version in which the zone above holds a node failed that is in the view of the base zone in no later one.
    fn verdict_against(&self, node: NodeIndex, member: MemberId) -> Option<Version> {
        let view = self.base().member(member)?;
        let entry = self
            .levels
            .get(1)?
            .engine
            .ledger_entry(LedgerKey::Node(node.0))?;
        let version = entry.version()?;
        let is_failed = entry.node_state() == Some(NodeState::Failed);
        (is_failed && view.state().in_view() && version >= view.version()).then_some(version)
    }

    /// Declares nodes failed in the base zone that have been contradicted for long.
    pub(super) fn settle_contradictions(&mut self) {
        let open: Vec<(u32, Instant)> = self
            .contradicted
            .iter()
            .map(|(node, since)| (*node, *since))
            .collect();
        for (number, since) in open {
            let node = NodeIndex(number);
            let member = self.ids.get(&node).copied();
            let verdict = member.and_then(|member| self.verdict_against(node, member));
            let Some(version) = verdict else {
                self.contradicted.remove(&number);
                continue;
            };
            if self.now < since.after(self.deadlines(CONTRADICTED_DEADLINES)) {
                continue;
            }
            self.contradicted.remove(&number);
            let name = self.map.directory().name(node).unwrap_or_default();
            let input = match node == self.node {
                true => Input::Outcast(version),
                false => Input::Told(Told::NodeFailed { name: &name }),
            };
            let now = self.now;
            // It is refused only if the engine has stopped, or the node is no longer in the view.
            let _ = self.levels[0].engine.handle(now, input);
        }
    }

    /// Takes what the zone above knows about nodes of the base zone that its members have forgotten.
    pub(super) fn recall_nodes(&mut self) {
        if self.levels.len() < 2 {
            return;
        }
        let forgotten = self
            .ids
            .iter()
            .filter(|(_, id)| self.base().member(**id).is_none());
        let entries = forgotten.filter_map(|(node, _)| self.entry(1, LedgerKey::Node(node.0)));
        for entry in entries.collect::<Vec<_>>() {
            self.copy_down(0, entry);
        }
    }

    /// When a contradiction is to be settled next.
    pub(super) fn next_contradiction(&self) -> Instant {
        let ends = self.contradicted.values();
        let ends = ends.map(|since| since.after(self.deadlines(CONTRADICTED_DEADLINES)));
        ends.fold(Instant::NEVER, Instant::min)
    }
}
