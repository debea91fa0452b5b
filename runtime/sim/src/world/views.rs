//! Queries about all nodes of a world: which run, which agree, which reported an event.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{Event, EventKind, Instant, MemberId, Minority, NodeState, Phase};

use super::{NodeIndex, World};

/// Facts that arrived in news frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FactsHeard {
    /// All of them.
    pub all: u64,
    /// Those that were new to the receiver.
    pub new: u64,
}

/// All members miss a crashed member within this time, whatever widens deadlines.
const LONG_GONE_US: u64 = 2_000_000;

impl World {
    /// The facts that every running node has received since its start.
    #[must_use]
    pub fn facts_heard(&self) -> BTreeMap<NodeIndex, FactsHeard> {
        let heard = |node| {
            let counters = self.engine(node).counters();
            let (all, old) = (counters.news_facts, counters.news_duplicates);
            FactsHeard {
                all,
                new: all - old,
            }
        };
        let running = self.running().into_iter();
        running.map(|node| (node, heard(node))).collect()
    }

    /// The facts that all running nodes together have received since an earlier count.
    #[must_use]
    pub fn facts_heard_since(&self, before: &BTreeMap<NodeIndex, FactsHeard>) -> FactsHeard {
        let mut sum = FactsHeard::default();
        for (node, heard) in self.facts_heard() {
            // A node that was restarted meanwhile counts from its start.
            let before = before.get(&node).copied().unwrap_or_default();
            sum.all += heard.all.checked_sub(before.all).unwrap_or(heard.all);
            sum.new += heard.new.checked_sub(before.new).unwrap_or(heard.new);
        }
        sum
    }

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

    /// When a node's present incarnation began.
    pub(crate) fn started_at(&self, node: NodeIndex) -> Instant {
        self.nodes[node].started_at
    }

    /// Whether a node belongs to another job.
    #[must_use]
    pub fn is_foreign(&self, node: NodeIndex) -> bool {
        self.nodes[node].foreign
    }

    /// Whether a node that has not crashed is stopped.
    #[must_use]
    pub fn any_paused(&self) -> bool {
        self.nodes.iter().any(|node| node.paused)
    }

    /// Whether a node has no engine now.
    #[must_use]
    pub fn is_crashed(&self, node: NodeIndex) -> bool {
        self.nodes[node].engine.is_none()
    }

    /// Whether every running member's view is exactly the running members in their present versions, all
    /// alive, with the same rank facts.
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

    /// Whether every running member's view has the digest of the running members' own records. The same as
    /// `converged` except with a probability of 2^-64, and fast at any size.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.agreement.is_whole()
    }

    /// Since when a running member's view is right; `None` if it is not.
    #[must_use]
    pub fn right_since(&self, node: NodeIndex) -> Option<Instant> {
        self.agreement.right_since(node)
    }

    /// Datagrams dropped because a node's socket was full.
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

    /// Whether a member runs in the incarnation that an event is about.
    pub(super) fn runs(&self, event: &Event) -> bool {
        self.nodes.iter().any(|node| {
            node.engine.as_ref().is_some_and(|engine| {
                engine.id() == event.member
                    && engine.phase() == Phase::Running
                    && engine.version().incarnation == event.version.incarnation
            })
        })
    }

    /// Whether a member that comes into this observer's view crashed so long ago that no member should accept
    /// it: later than it was missed, and than the network delayed what it sent. An observer that learns of
    /// the member from one that was stopped meanwhile receives old knowledge: the member is missed once that
    /// one has continued.
    pub(super) fn is_long_gone(&self, observer: NodeIndex, event: &Event) -> bool {
        let limit_us = LONG_GONE_US + self.network.replay_us;
        let tellers = (0..self.len()).filter(|node| event.cause.reporters.contains(self.id(*node)));
        let awake_at = tellers.map(|node| self.excused_until(node)).max();
        let awake_at = awake_at.unwrap_or_default();
        let gone = self.nodes.iter().any(|node| {
            node.id == event.member
                && node.engine.is_none()
                && self.now.since(node.gone_at.max(awake_at)) > limit_us
        });
        gone && !self.is_behind(observer)
    }

    /// All members that news from a node can reach, or whose news can reach it, over any path; `None` if
    /// nothing is cut or the node's policy is not `hold`. A cut that is younger than a deadline makes no sides: a
    /// poll counts answers for one deadline, so some of them may be from before the cut.
    pub(super) fn side_of(&self, node: NodeIndex) -> Option<Vec<MemberId>> {
        let holds = self.nodes[node].config.minority == Minority::Hold;
        if !holds || !self.network.has_cuts() {
            return None;
        }
        let mut side = BTreeSet::from([node]);
        let mut open = vec![node];
        while let Some(from) = open.pop() {
            for to in 0..self.nodes.len() {
                let cut = self.network.is_cut(from, to) && self.network.is_cut(to, from);
                let cut = cut && self.cut_for_us(from, to) > self.deadline_us(node);
                if !cut && self.nodes[to].engine.is_some() && side.insert(to) {
                    open.push(to);
                }
            }
        }
        Some(side.into_iter().map(|node| self.id(node)).collect())
    }

    /// Whether all members hold every running node's attributes as that node does.
    #[must_use]
    pub fn attributes_agree(&self) -> bool {
        let running = self.running();
        running.iter().all(|observer| {
            let engine = self.engine(*observer);
            running.iter().all(|subject| {
                let id = self.id(*subject);
                engine
                    .attributes(id)
                    .eq(self.engine(*subject).attributes(id))
            })
        })
    }

    /// Frames of all nodes that requested or carried attributes.
    #[must_use]
    pub fn attribute_frames(&self) -> u64 {
        let engines = self.nodes.iter().filter_map(|node| node.engine.as_ref());
        let counters = engines.map(|engine| engine.counters());
        counters
            .map(|counted| counted.attribute_requests_sent + counted.attribute_replies_sent)
            .sum()
    }

    /// The observers that reported this kind of event about a node since `since`, with the time.
    #[must_use]
    pub fn reported(
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
