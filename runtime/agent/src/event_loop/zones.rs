//! Events of a job's other zones: what the tree tells beside the events of this node's own zone.
//!
//! The state table has all nodes of the job. An event of a whole zone becomes one for each of its nodes, as
//! applications ask for nodes and ranks.

use super::{EventLoop, instant};
use crate::journal_record::journal_record;
use crate::printer;
use muster_protocol::{
    Cause, CauseKind, Event, EventKind, Input, Instant, LedgerEntry, LedgerKey, MemberId,
    NodeState, Reject, Reporters, Version,
};
use muster_sys::clock::monotonic_ns;
use muster_zones::{NodeIndex, Tree, TreeEvent};
use std::io;
use tracing::{info, warn};

impl EventLoop {
    /// Handles an event of another zone, or of this node's part in the zones above. Returns true if there is news for
    /// the ranks.
    pub(super) fn handle_zone_event(&mut self, event: TreeEvent) -> io::Result<bool> {
        match event {
            TreeEvent::Base(_) => Ok(false),
            TreeEvent::Node { node, state } => self.node_changed(node, state),
            TreeEvent::Degraded { node, is_degraded } => {
                let kind = match is_degraded {
                    true => EventKind::NodeDegraded,
                    false => EventKind::NodeRecovered,
                };
                let event = |id| event_of(id, kind, CauseKind::Rails);
                let event = self.member_id(node).map(event);
                event.map_or(Ok(false), |event| self.tell(node, &event))
            }
            TreeEvent::Rank { rank } => self.rank_changed(rank),
            TreeEvent::Zone { zone, state } => {
                let path = self.tree.map().path(zone);
                match state {
                    NodeState::Failed => warn!(zone = path, "a zone of the job has failed"),
                    _ => info!(zone = path, "a zone of the job is alive"),
                }
                let mut news = false;
                for node in self.tree.map().nodes_of(zone) {
                    let state = match self.tree.node_state(node) {
                        // An event of its own follows.
                        Some(NodeState::Degraded) => NodeState::Alive,
                        other => other.unwrap_or(state),
                    };
                    news |= self.node_changed(node, state)?;
                }
                Ok(news)
            }
            TreeEvent::Outcast { zone } => {
                let path = self.tree.map().path(zone);
                warn!(
                    zone = path,
                    "the rest of the job declared this node's zone failed"
                );
                self.lifetime.is_outcast = true;
                self.tell_of_job(EventKind::Outcast)
            }
            TreeEvent::Minority { reached, of } => self.tell_of_job(EventKind::Minority {
                reached,
                of,
                held: false,
            }),
            TreeEvent::Majority { reached, of } => {
                self.tell_of_job(EventKind::Majority { reached, of })
            }
            TreeEvent::Promoted { zone } | TreeEvent::Demoted { zone } => {
                let zone = self.tree.map().path(zone);
                info!(zone, ?event, "this node's part in a zone above has changed");
                Ok(false)
            }
        }
    }

    fn node_changed(&mut self, node: NodeIndex, state: NodeState) -> io::Result<bool> {
        let entry = self.tree.base().ledger_entry(LedgerKey::Node(node.0));
        let entry = entry.filter(|entry| entry.node_state() == Some(state));
        let kind = match state {
            NodeState::Alive => EventKind::NodeUp,
            NodeState::Degraded => EventKind::NodeDegraded,
            NodeState::Suspect => EventKind::NodeSuspect,
            NodeState::Failed => EventKind::NodeFailed,
            NodeState::Left => EventKind::NodeLeft {
                exit_code: entry.map_or(0, LedgerEntry::exit_code),
            },
            NodeState::Unknown => return Ok(false),
        };
        let cause = match kind {
            EventKind::NodeUp => Some(CauseKind::Joined),
            _ => entry.and_then(LedgerEntry::cause),
        };
        let Some(id) = self.member_id(node) else {
            return Ok(false);
        };
        let event = event_of(id, kind, cause.unwrap_or(CauseKind::Told));
        let news = self.tell(node, &event)?;
        if let (NodeState::Alive, Some(job)) = (state, &mut self.job) {
            let mut ranks: Vec<_> = self.tree.ranks_of_zone(node).ranks().collect();
            ranks.retain(|(_, of)| *of == node);
            return Ok(job.publish_ranks_elsewhere(&self.tree, &ranks, true) || news);
        }
        Ok(news)
    }

    fn rank_changed(&mut self, rank: u32) -> io::Result<bool> {
        let entry = self.tree.base().ledger_entry(LedgerKey::Rank(rank));
        let about = entry.and_then(|entry| Some((entry.about_node(), entry.rank_fact()?.1)));
        let Some((node, fact)) = about else {
            return Ok(false);
        };
        let node = NodeIndex(node);
        let Some(id) = self.member_id(node) else {
            return Ok(false);
        };
        let event = event_of(id, EventKind::RankChanged { fact }, CauseKind::Told);
        self.tell(node, &event)
    }

    /// Tells an event about this node's place in the job.
    fn tell_of_job(&mut self, kind: EventKind) -> io::Result<bool> {
        let event = event_of(self.tree.base().id(), kind, CauseKind::Told);
        self.tell(self.tree.node(), &event)
    }

    fn member_id(&self, node: NodeIndex) -> Option<MemberId> {
        let name = self.tree.map().directory().name(node)?;
        Some(MemberId::of(&name))
    }

    fn tell(&mut self, node: NodeIndex, event: &Event) -> io::Result<bool> {
        let name = self.tree.map().directory().name(node).unwrap_or_default();
        let Some(job) = &mut self.job else {
            printer::print(self.tree.base(), event, &name)?;
            return Ok(false);
        };
        let news = job.publish_elsewhere(self.tree.base(), event, &name);
        if news
            && let Some(journal) = &self.admin_endpoint.journal
            && let Some(line) = journal_record(&self.tree, event, &name)
        {
            journal.record(&line);
        }
        Ok(news)
    }
}

/// An event of a node that is not a member of this node's base zone.
fn event_of(member: MemberId, kind: EventKind, cause: CauseKind) -> Event {
    Event {
        at: instant(monotonic_ns()),
        kind,
        member,
        version: Version::first(1),
        cause: Cause {
            kind: cause,
            reporters: Reporters::default(),
            silent_us: 0,
        },
    }
}

/// Takes the address of another agent from a rank: `NODE=NIDS`, or NIDs of a member of this node's zone.
pub(super) fn seed(tree: &mut Tree, now: Instant, address: &[u8]) -> Result<(), Reject> {
    let nids = without_name(address);
    if nids.len() == address.len() || !tree.has_zones() {
        return tree.handle(now, Input::Seed { address: nids });
    }
    let name = String::from_utf8_lossy(&address[..address.len() - nids.len() - 1]);
    match tree.map().directory().find(&name) {
        Some(node) => tree.note_contact(now, node, nids),
        None => {
            warn!(%name, "an agent of a node that is not in the job's list of nodes (MUSTER_NODES) is ignored");
            Ok(())
        }
    }
}

/// The NIDs of an address, which may have the name of its node and `=` before them.
pub(super) fn without_name(address: &[u8]) -> &[u8] {
    let equals = address.iter().position(|byte| *byte == b'=');
    equals.map_or(address, |equals| &address[equals + 1..])
}
