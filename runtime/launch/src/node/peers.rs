//! The other launchers of the job, as this node's agent shows them.
//!
//! Launchers communicate through the agents: each writes attributes of its node, and the agents carry them over
//! Muster's own rails. This module turns the agent's events into inputs of the core, and writes and reads the
//! attributes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::Error;
use crate::core::messages::Input;
use crate::core::node_status::{self, DataChunk, NodeStatus, PART};
use crate::layout::Layout;
use muster_client::Client;
use muster_shm::{Cause, Event, EventKind, NO_RANK, NodeState};

/// How often the agent is checked for being alive.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The launchers, by node.
pub(super) struct Peers {
    client: Client,
    layout: Layout,
    own: usize,
    /// Each node's index in the state table.
    indices: Vec<Option<u32>>,
    /// Nodes whose launcher has published a status.
    known: BTreeSet<usize>,
    gone: BTreeSet<usize>,
    /// When the agent last answered.
    last_answer: Instant,
}

impl Peers {
    pub(super) fn new(client: Client, layout: Layout, own: usize) -> Result<Self, Error> {
        client.watch(node_status::KEY)?;
        Ok(Self {
            client,
            indices: vec![None; layout.nodes().len()],
            layout,
            own,
            known: BTreeSet::new(),
            gone: BTreeSet::new(),
            last_answer: Instant::now(),
        })
    }

    /// Takes all events of the agent.
    pub(super) fn take_events(&mut self) -> Result<Vec<Input>, Error> {
        let mut inputs = Vec::new();
        while let Some(event) = self.client.next_event()? {
            self.take(&event, &mut inputs)?;
        }
        Ok(inputs)
    }

    fn take(&mut self, event: &Event, inputs: &mut Vec<Input>) -> Result<(), Error> {
        match event.kind {
            // The values that the lost agent had published are lost, and nodes that leave now go
            // unnoticed.
            EventKind::Overflow if event.cause == Cause::NewAgent && self.indices.len() > 1 => {
                return Err(Error::NewAgent);
            }
            EventKind::Overflow => return self.read_all(inputs),
            EventKind::Outcast => inputs.push(Input::Outcast),
            EventKind::RankFailed if event.rank != NO_RANK => {
                inputs.push(Input::RankFailed(event.rank));
            }
            EventKind::Attribute | EventKind::NodeUp => {
                return self.read_status(event.node, inputs);
            }
            EventKind::NodeFailed | EventKind::NodeLeft => {
                if let Some(node) = self.node_at(event.node)? {
                    self.lose(node, inputs);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads the statuses that exist.
    pub(super) fn read_all(&mut self, inputs: &mut Vec<Input>) -> Result<(), Error> {
        for index in 0..self.client.node_count()? {
            self.read_status(index, inputs)?;
            let state = self.client.node_state(index)?;
            if matches!(state, NodeState::Failed | NodeState::Left)
                && let Some(node) = self.node_at(index)?
                && self.known.contains(&node)
            {
                self.lose(node, inputs);
            }
        }
        Ok(())
    }

    fn lose(&mut self, node: usize, inputs: &mut Vec<Input>) {
        if node != self.own && self.gone.insert(node) {
            inputs.push(Input::Gone(node));
        }
    }

    fn node_at(&self, index: u32) -> Result<Option<usize>, Error> {
        let name = self.client.node_name(index)?;
        Ok(name.and_then(|name| self.layout.node_named(&name)))
    }

    /// Reads the status of a node's launcher.
    fn read_status(&mut self, index: u32, inputs: &mut Vec<Input>) -> Result<(), Error> {
        let Some(node) = self.node_at(index)? else {
            return Ok(());
        };
        if self.gone.contains(&node) || node == self.own {
            return Ok(());
        }
        self.indices[node] = Some(index);
        let value = self.client.attribute_get(index, node_status::KEY)?;
        if let Some(node_status) = value.as_deref().and_then(NodeStatus::decode) {
            self.known.insert(node);
            inputs.push(Input::Status(node, Box::new(node_status)));
        }
        Ok(())
    }

    /// Checks periodically that the agent answers: an agent that hangs cannot report that the other nodes have
    /// given this one up. In a job of a single node this is not needed.
    pub(super) fn check_agent(&mut self) -> Result<(), Error> {
        if self.indices.len() > 1 && self.last_answer.elapsed() >= CHECK_INTERVAL {
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

    /// Whether the launchers of all other nodes that are left have published a status.
    pub(super) fn are_all_known(&self) -> bool {
        let is_known = |node: usize| {
            node == self.own || self.gone.contains(&node) || self.known.contains(&node)
        };
        (0..self.indices.len()).all(is_known)
    }

    /// Publishes this launcher's status.
    pub(super) fn publish_status(&self, node_status: &NodeStatus) -> Result<(), Error> {
        let value = node_status.encode();
        if value.len() > PART {
            return Err(Error::TooMuch {
                what: "a launcher's status of its ranks and fences",
                size: value.len(),
                most: PART,
            });
        }
        Ok(self.client.publish(node_status::KEY, &value)?)
    }

    /// Writes data into attributes, if those of this node have room for it. Returns whether they had.
    pub(super) fn put_if_room(&self, chunk: DataChunk, data: &[u8]) -> Result<bool, Error> {
        for (part, bytes) in data.chunks(PART).enumerate() {
            match self.client.publish(&chunk.key(part), bytes) {
                Err(muster_client::Error::Limit(_)) => {
                    self.clear(chunk, data.len())?;
                    return Ok(false);
                }
                put => put?,
            }
        }
        Ok(true)
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
        match self.fetch_parts(chunk, node, size) {
            // A node that is gone may be forgotten.
            Err(_) if self.gone.contains(&node) => Ok(None),
            fetched => fetched,
        }
    }

    fn fetch_parts(
        &self,
        chunk: DataChunk,
        node: usize,
        size: usize,
    ) -> Result<Option<Vec<u8>>, Error> {
        let Some(index) = self.indices.get(node).copied().flatten() else {
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
