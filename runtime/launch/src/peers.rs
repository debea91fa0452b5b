//! The other launchers of the job: their statuses, and which of them are gone.
//!
//! Launchers communicate through the agents: each writes attributes of its node, and the agents carry them over
//! Muster's own rails. The agents' verdict decides whether a launcher is gone. What has become of a rank on a
//! living node its launcher states. An agent's report counts if the launcher states nothing for a while: the report
//! may arrive before the launcher's status, lacks the job's abort, and in the start may be about a program that a
//! rank has run before MPI's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::Error;
use super::layout::Layout;
use super::node_status::{self, DataChunk, NodeStatus, PART};
use muster_client::Client;
use muster_shm::{Cause, Event, EventKind, NO_RANK, NodeState};

/// How often the agent is checked for being alive.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long a launcher has to state that a rank has ended before the agents' report counts.
const SETTLED: Duration = Duration::from_millis(250);

/// What is known of the launcher of a node.
#[derive(Debug, Default, Clone)]
struct Peer {
    /// The node's index in the state table.
    index: Option<u32>,
    node_status: Option<NodeStatus>,
}

/// The launchers, by node.
pub(super) struct Peers {
    client: Client,
    layout: Layout,
    own: usize,
    peers: Vec<Peer>,
    gone: BTreeSet<usize>,
    /// Ranks that the agents report as failed, and when the report came.
    failed: BTreeMap<u32, Instant>,
    outcast: bool,
    /// When the agent last answered.
    last_answer: Instant,
}

impl Peers {
    /// Creates the list and reads the statuses that exist.
    pub(super) fn new(client: Client, layout: Layout, own: usize) -> Result<Self, Error> {
        client.watch(node_status::KEY)?;
        let count = layout.nodes().len();
        let mut peers = Self {
            client,
            layout,
            own,
            peers: vec![Peer::default(); count],
            gone: BTreeSet::new(),
            failed: BTreeMap::new(),
            outcast: false,
            last_answer: Instant::now(),
        };
        peers.read_all()?;
        Ok(peers)
    }

    pub(super) fn gone(&self) -> &BTreeSet<usize> {
        &self.gone
    }

    /// Ranks that have failed as the agents report, if their launchers have had the time to state it: a
    /// launcher may be killed itself, or wait while a core is written.
    pub(super) fn failed(&self) -> impl Iterator<Item = u32> {
        let settled = self.failed.iter().filter(|(_, at)| at.elapsed() >= SETTLED);
        settled.map(|(rank, _)| *rank)
    }

    /// Whether more of them will follow soon.
    pub(super) fn is_settling(&self) -> bool {
        self.failed.values().any(|at| at.elapsed() < SETTLED)
    }

    /// Forgets reports from the start: they show nothing of the ranks' MPI.
    pub(super) fn forget_failed(&mut self) {
        self.failed.clear();
    }

    /// Whether this node was declared failed by the others.
    pub(super) fn is_outcast(&self) -> bool {
        // An agent that was started in place of a killed one may never learn it; the other launchers state
        // it, too. Those that are gone in this node's view do not count: of two sides of a split one goes
        // on.
        let mut others = self
            .node_statuses()
            .filter(|(node, _)| !self.gone.contains(node));
        self.outcast || others.any(|(_, node_status)| node_status.gone.contains(self.own as u32))
    }

    pub(super) fn node_status(&self, node: usize) -> Option<&NodeStatus> {
        self.peers.get(node)?.node_status.as_ref()
    }

    /// The last status of every launcher, with its node. The own one is included once it is published.
    pub(super) fn node_statuses(&self) -> impl Iterator<Item = (usize, &NodeStatus)> {
        let node_statuses = self.peers.iter().enumerate();
        node_statuses.filter_map(|(node, peer)| Some((node, peer.node_status.as_ref()?)))
    }

    /// Nodes whose launcher has no status, or one that does not satisfy `wanted`.
    pub(super) fn without(&self, wanted: impl Fn(&NodeStatus) -> bool) -> Vec<usize> {
        let lacks = |node: &usize| {
            *node != self.own
                && !self.gone.contains(node)
                && !self.node_status(*node).is_some_and(&wanted)
        };
        (0..self.peers.len()).filter(lacks).collect()
    }

    /// Takes all events; returns whether there were any.
    pub(super) fn take_events(&mut self) -> Result<bool, Error> {
        let mut any = false;
        while let Some(event) = self.client.next_event()? {
            any = true;
            self.take(&event)?;
        }
        Ok(any)
    }

    fn take(&mut self, event: &Event) -> Result<(), Error> {
        match event.kind {
            // The values that the lost agent had published are lost, and nodes that leave now go
            // unnoticed.
            EventKind::Overflow if event.cause == Cause::NewAgent && self.peers.len() > 1 => {
                return Err(Error::NewAgent);
            }
            EventKind::Overflow => return self.read_all(),
            EventKind::Outcast => self.outcast = true,
            EventKind::RankFailed if event.rank != NO_RANK => {
                self.failed.entry(event.rank).or_insert_with(Instant::now);
            }
            EventKind::Attribute | EventKind::NodeUp => return self.read_status(event.node),
            EventKind::NodeFailed | EventKind::NodeLeft => {
                let name = self.client.node_name(event.node)?;
                let node = name.and_then(|name| self.layout.node_named(&name));
                if let Some(node) = node.filter(|node| *node != self.own) {
                    self.gone.insert(node);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn read_all(&mut self) -> Result<(), Error> {
        for index in 0..self.client.node_count()? {
            self.read_status(index)?;
            let state = self.client.node_state(index)?;
            if matches!(state, NodeState::Failed | NodeState::Left)
                && let Some(node) = self.node_at(index)?.filter(|node| *node != self.own)
                && self.peers[node].node_status.is_some()
            {
                self.gone.insert(node);
            }
        }
        Ok(())
    }

    fn node_at(&self, index: u32) -> Result<Option<usize>, Error> {
        let name = self.client.node_name(index)?;
        Ok(name.and_then(|name| self.layout.node_named(&name)))
    }

    /// Reads the status of a node's launcher.
    fn read_status(&mut self, index: u32) -> Result<(), Error> {
        let Some(node) = self.node_at(index)? else {
            return Ok(());
        };
        if self.gone.contains(&node) || node == self.own {
            return Ok(());
        }
        let node_status = self.client.attribute_get(index, node_status::KEY)?;
        let peer = &mut self.peers[node];
        peer.index = Some(index);
        if let Some(node_status) = node_status.as_deref().and_then(NodeStatus::decode) {
            peer.node_status = Some(node_status);
        }
        Ok(())
    }

    /// Checks periodically that the agent answers: an agent that hangs cannot report that the other nodes have
    /// given this one up. In a job of a single node this is not needed.
    pub(super) fn check_agent(&mut self) -> Result<(), Error> {
        if self.peers.len() > 1 && self.last_answer.elapsed() >= CHECK_INTERVAL {
            self.predecessor()?;
            self.last_answer = Instant::now();
        }
        Ok(())
    }

    /// The status that the attribute of this node already has.
    pub(super) fn predecessor(&self) -> Result<Option<NodeStatus>, Error> {
        let Some(own) = self.client.my_node()? else {
            return Ok(None);
        };
        let node_status = self.client.attribute_get(own, node_status::KEY)?;
        Ok(node_status.as_deref().and_then(NodeStatus::decode))
    }

    /// Publishes this launcher's status.
    pub(super) fn publish_status(&mut self, node_status: &NodeStatus) -> Result<(), Error> {
        let value = node_status.encode();
        if value.len() > PART {
            return Err(Error::TooMuch {
                what: "a launcher's status of its ranks and fences",
                size: value.len(),
                most: PART,
            });
        }
        self.client.publish(node_status::KEY, &value)?;
        let own = self.own;
        self.peers[own].node_status = Some(node_status.clone());
        Ok(())
    }

    /// Writes a large contribution into attributes; to be called before [`Peers::publish_status`].
    pub(super) fn put(&self, chunk: DataChunk, data: &[u8]) -> Result<(), Error> {
        for (part, bytes) in data.chunks(PART).enumerate() {
            self.client.publish(&chunk.key(part), bytes)?;
        }
        Ok(())
    }

    /// The same, if the attributes of this node have room for it. Returns whether they had.
    pub(super) fn put_if_room(&self, chunk: DataChunk, data: &[u8]) -> Result<bool, Error> {
        match self.put(chunk, data) {
            Err(Error::Agent(muster_client::Error::Limit(_))) => {
                self.clear(chunk, data.len())?;
                Ok(false)
            }
            put => put.map(|()| true),
        }
    }

    /// Withdraws data that no node needs any more.
    pub(super) fn clear(&self, chunk: DataChunk, size: usize) -> Result<(), Error> {
        for part in 0..size.div_ceil(PART) {
            self.client.withdraw(&chunk.key(part))?;
        }
        Ok(())
    }

    /// Reads data from a node's attributes; `None` if not all of it is there (any more).
    pub(super) fn fetch(
        &self,
        chunk: DataChunk,
        node: usize,
        size: usize,
    ) -> Result<Option<Vec<u8>>, Error> {
        let Some(index) = self.peers.get(node).and_then(|peer| peer.index) else {
            return Ok(None);
        };
        let mut data = Vec::new();
        for part in 0..size.div_ceil(PART) {
            match self.client.attribute_get(index, &chunk.key(part))? {
                Some(bytes) => data.extend(bytes),
                None => return Ok(None),
            }
        }
        Ok((data.len() == size).then_some(data))
    }
}
