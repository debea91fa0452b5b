//! `Facts` is what is true of a job, and what its nodes have to know. What they are told is compared with it.

use std::sync::Arc;

use muster_protocol::{EventKind, Instant, LedgerKey, NodeState, RankState};
use muster_zones::{NodeIndex, Tree, TreeEvent, ZoneId, ZoneMap};

/// Most subjects of one change.
pub(super) const SUBJECTS_MAX: usize = 64;

/// What a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A node has failed.
    Node(u32),
    /// All nodes of a zone have failed.
    Zone(ZoneId),
    /// A rank has ended.
    Rank(u32),
}

/// What a node was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Ended(Subject),
    /// That it, or its zone, is outcast, or that it is in a minority.
    Outcast,
}

impl Told {
    /// A number for the digest.
    pub(super) const fn number(self) -> u64 {
        match self {
            Self::Ended(Subject::Node(node)) => 1 << 32 | node as u64,
            Self::Ended(Subject::Zone(zone)) => (2 + zone.level as u64) << 33 | zone.number as u64,
            Self::Ended(Subject::Rank(rank)) => 1 << 40 | rank as u64,
            Self::Outcast => 1 << 41,
        }
    }
}

/// A node was told what is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) at: Instant,
    pub(super) node: usize,
    pub(super) told: Told,
}

/// What is true of a job.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) map: Arc<ZoneMap>,
    /// The nodes that have ended.
    pub(super) ended: Vec<bool>,
    /// The ranks that have ended.
    pub(super) ended_ranks: Vec<u32>,
    /// What the present change is about.
    pub(super) subjects: Vec<Subject>,
}

impl Facts {
    /// The bits of all subjects of the present change.
    pub(super) const fn all_bits(&self) -> u64 {
        match self.subjects.len() {
            0 => 0,
            count => u64::MAX >> (SUBJECTS_MAX - count),
        }
    }

    /// What an event tells a node that has to be true; `None` if it tells nothing of the kind.
    pub(super) fn told(&self, tree: &Tree, event: TreeEvent) -> Option<Told> {
        let subject = match event {
            TreeEvent::Outcast { .. } | TreeEvent::Minority { .. } => return Some(Told::Outcast),
            TreeEvent::Node {
                node,
                state: NodeState::Failed,
            } => Subject::Node(node.0),
            TreeEvent::Zone {
                zone,
                state: NodeState::Failed,
            } => Subject::Zone(zone),
            TreeEvent::Rank { rank } => {
                let entry = tree.base().ledger_entry(LedgerKey::Rank(rank));
                let (_, fact) = entry?.rank_fact()?;
                (fact.state >= RankState::Failed).then_some(Subject::Rank(rank))?
            }
            TreeEvent::Base(event) => match event.kind {
                EventKind::Outcast => return Some(Told::Outcast),
                EventKind::NodeFailed => {
                    let name = tree.base().name_of(event.member)?;
                    Subject::Node(self.map.directory().find(name)?.0)
                }
                EventKind::RankChanged { fact } if fact.state >= RankState::Failed => {
                    Subject::Rank(fact.rank)
                }
                _ => return None,
            },
            _ => return None,
        };
        Some(Told::Ended(subject))
    }

    /// The subjects of the present change that a node knows of if it is told this; `None` if it is not so.
    pub(super) fn bits(&self, told: Told) -> Option<u64> {
        let Told::Ended(told) = told else {
            return None;
        };
        if !self.is_true(told) {
            return None;
        }
        let is_told = |subject: &Subject| match (told, *subject) {
            (Subject::Zone(zone), Subject::Node(node)) => self.is_in(node, zone),
            _ => told == *subject,
        };
        let subjects = self.subjects.iter().enumerate();
        let told = subjects.filter(|(_, subject)| is_told(subject));
        Some(told.fold(0, |bits, (place, _)| bits | 1 << place))
    }

    fn is_in(&self, node: u32, zone: ZoneId) -> bool {
        let mut zones = self.map.zones_of(NodeIndex(node));
        zones.any(|of| of == zone)
    }

    fn is_true(&self, told: Subject) -> bool {
        let has_ended = |node: NodeIndex| self.ended[node.0 as usize];
        match told {
            Subject::Node(node) => has_ended(NodeIndex(node)),
            Subject::Zone(zone) => self.map.nodes_of(zone).into_iter().all(has_ended),
            Subject::Rank(rank) => self.ended_ranks.contains(&rank),
        }
    }
}
