//! What can be asked about all nodes of a world: who runs, who agrees, who told what.

use std::collections::BTreeSet;

use muster_protocol::{EventKind, Instant, NodeState, Phase};

use super::{NodeIndex, World};

impl World {
    /// Nodes whose engine runs, is not stopped and has not left.
    #[must_use]
    pub fn running(&self) -> Vec<NodeIndex> {
        (0..self.nodes.len())
            .filter(|index| {
                let node = &self.nodes[*index];
                let running = node
                    .engine
                    .as_ref()
                    .is_some_and(|engine| engine.phase() == Phase::Running);
                running && !node.paused && !node.foreign
            })
            .collect()
    }

    /// Whether a node belongs to another job.
    #[must_use]
    pub fn is_foreign(&self, node: NodeIndex) -> bool {
        self.nodes[node].foreign
    }

    /// Whether a node that is not crashed stands still.
    #[must_use]
    pub fn anybody_paused(&self) -> bool {
        self.nodes.iter().any(|node| node.paused)
    }

    /// Whether a node has no engine now.
    #[must_use]
    pub fn is_crashed(&self, node: NodeIndex) -> bool {
        self.nodes[node].engine.is_none()
    }

    /// Whether every running member's view is exactly the running members in their present
    /// versions, all alive, with the same rank facts.
    #[must_use]
    pub fn converged(&self) -> bool {
        if !self.agrees() {
            return false;
        }
        let running = self.running();
        running
            .iter()
            .all(|index| self.view_is_true(*index, &running))
    }

    /// Whether every running member's view has the digest of what the running members say of
    /// themselves. The same as `converged` but for a chance in 2^64, and quick at any size.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.agreement.is_whole()
    }

    /// Since when a running member's view is right; nothing if it is not.
    #[must_use]
    pub fn right_since(&self, node: NodeIndex) -> Option<Instant> {
        self.agreement.right_since(node)
    }

    /// Datagrams that were lost because a node's socket was full.
    #[must_use]
    pub fn overrun(&self) -> u64 {
        self.overrun
    }

    fn view_is_true(&self, observer: NodeIndex, running: &[NodeIndex]) -> bool {
        let engine = self.engine(observer);
        running.iter().all(|index| {
            let subject = self.engine(*index);
            let Some(own) = subject.member(subject.id()) else {
                return false;
            };
            engine.member(subject.id()).is_some_and(|seen| {
                seen.version() == own.version()
                    && matches!(seen.state(), NodeState::Alive | NodeState::Degraded)
                    && seen.ranks().eq(own.ranks())
            })
        })
    }

    /// The observers that told this kind of event about a node since `since`, with the time.
    #[must_use]
    pub fn told(
        &self,
        since: Instant,
        node: NodeIndex,
        kind: impl Fn(&EventKind) -> bool,
    ) -> Vec<(NodeIndex, Instant)> {
        let id = self.id(node);
        let mut seen = BTreeSet::new();
        self.records
            .iter()
            .filter(|record| record.at >= since && record.event.member == id)
            .filter(|record| kind(&record.event.kind))
            .filter(|record| seen.insert(record.observer))
            .map(|record| (record.observer, record.at))
            .collect()
    }
}
