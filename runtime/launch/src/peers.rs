//! The other launchers of the job: what they say, and which of them are gone.
//!
//! They speak through the agents: each writes attributes of its node, and the agents carry them over Muster's
//! own rails. Whether one is gone is the agents' verdict, not ours. Of the ranks of a living node their launcher says
//! what has become of them; the agents' word counts where it says nothing for a while. It may be here before the
//! launcher's, without the job's abort, and in the start be about a program that a rank has run before MPI's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::Error;
use super::layout::Layout;
use super::node_status::{self, DataChunk, NodeStatus, PART};
use muster_client::Client;
use muster_shm::{Cause, Event, EventKind, NO_RANK, NodeState};

/// How often the agent is asked for a sign of life.
const ASKED_EVERY: Duration = Duration::from_secs(5);
/// How long a launcher has to say that a rank has ended before the agents' word counts.
const SETTLED: Duration = Duration::from_millis(250);

/// What is known of the launcher of a node.
#[derive(Debug, Default, Clone)]
struct Peer {
    /// The node's place on the board.
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
    /// Ranks of which the agents say that they have failed, and when that was heard.
    failed: BTreeMap<u32, Instant>,
    outcast: bool,
    /// When the agent has answered last.
    answered: Instant,
}

impl Peers {
    /// Looks at once at who is there.
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
            answered: Instant::now(),
        };
        peers.look_at_all()?;
        Ok(peers)
    }

    pub(super) fn gone(&self) -> &BTreeSet<usize> {
        &self.gone
    }

    /// Ranks that have failed by the agents' word, if their launchers have had the time to say so: one may be killed
    /// itself, or wait while a core is written.
    pub(super) fn failed(&self) -> impl Iterator<Item = u32> {
        let settled = self.failed.iter().filter(|(_, at)| at.elapsed() >= SETTLED);
        settled.map(|(rank, _)| *rank)
    }

    /// Whether there will soon be more of them.
    pub(super) fn is_settling(&self) -> bool {
        self.failed.values().any(|at| at.elapsed() < SETTLED)
    }

    /// What was heard of ranks in the start says nothing of their MPI.
    pub(super) fn forget_failed(&mut self) {
        self.failed.clear();
    }

    /// Whether this node was declared failed by the others.
    pub(super) fn is_outcast(&self) -> bool {
        // An agent that was started in the place of a killed one may never hear it; the other launchers say it, too.
        // Those that are gone in this node's eyes do not count: of two sides of a split one goes on.
        let mut others = self
            .node_statuses()
            .filter(|(node, _)| !self.gone.contains(node));
        self.outcast || others.any(|(_, node_status)| node_status.gone.contains(self.own as u32))
    }

    pub(super) fn node_status(&self, node: usize) -> Option<&NodeStatus> {
        self.peers.get(node)?.node_status.as_ref()
    }

    /// What every launcher but our own has said last.
    pub(super) fn node_statuses(&self) -> impl Iterator<Item = (usize, &NodeStatus)> {
        let node_statuses = self.peers.iter().enumerate();
        node_statuses.filter_map(|(node, peer)| Some((node, peer.node_status.as_ref()?)))
    }

    /// Nodes that have not come, or have not said this of themselves.
    pub(super) fn without(&self, wanted: impl Fn(&NodeStatus) -> bool) -> Vec<usize> {
        let lacks = |node: &usize| {
            *node != self.own
                && !self.gone.contains(node)
                && !self.node_status(*node).is_some_and(&wanted)
        };
        (0..self.peers.len()).filter(lacks).collect()
    }

    /// Takes all events; says whether there were any.
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
            // What the lost one had published went with it, and who leaves now cannot be heard any more.
            EventKind::Overflow if event.cause == Cause::NewAgent && self.peers.len() > 1 => {
                return Err(Error::NewAgent);
            }
            EventKind::Overflow => return self.look_at_all(),
            EventKind::Outcast => self.outcast = true,
            EventKind::RankFailed if event.rank != NO_RANK => {
                self.failed.entry(event.rank).or_insert_with(Instant::now);
            }
            EventKind::Attribute | EventKind::NodeUp => return self.look_at(event.node),
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

    fn look_at_all(&mut self) -> Result<(), Error> {
        for index in 0..self.client.node_count()? {
            self.look_at(index)?;
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

    /// Reads what the launcher of a node says now.
    fn look_at(&mut self, index: u32) -> Result<(), Error> {
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

    /// Asks the agent for a sign of life, now and then: one that hangs cannot say that the others have given this
    /// node up. A node without others can wait for it.
    pub(super) fn ask_for_heartbeat(&mut self) -> Result<(), Error> {
        if self.peers.len() > 1 && self.answered.elapsed() >= ASKED_EVERY {
            self.predecessor()?;
            self.answered = Instant::now();
        }
        Ok(())
    }

    /// Whoever speaks for this node already.
    pub(super) fn predecessor(&self) -> Result<Option<NodeStatus>, Error> {
        let Some(own) = self.client.my_node()? else {
            return Ok(None);
        };
        let node_status = self.client.attribute_get(own, node_status::KEY)?;
        Ok(node_status.as_deref().and_then(NodeStatus::decode))
    }

    /// Says what this launcher has to say.
    pub(super) fn ring(&mut self, node_status: &NodeStatus) -> Result<(), Error> {
        let value = node_status.encode();
        if value.len() > PART {
            return Err(Error::TooMuch {
                what: "what a launcher says of its ranks and fences",
                size: value.len(),
                most: PART,
            });
        }
        self.client.publish(node_status::KEY, &value)?;
        let own = self.own;
        self.peers[own].node_status = Some(node_status.clone());
        Ok(())
    }

    /// Writes what the own ranks have put, where it is much; to be called before [`Peers::ring`].
    pub(super) fn put(&self, parcel: DataChunk, data: &[u8]) -> Result<(), Error> {
        for (part, bytes) in data.chunks(PART).enumerate() {
            self.client.publish(&parcel.key(part), bytes)?;
        }
        Ok(())
    }

    /// The same, if the attributes of this node have room for it. Whether they had.
    pub(super) fn put_if_room(&self, parcel: DataChunk, data: &[u8]) -> Result<bool, Error> {
        match self.put(parcel, data) {
            Err(Error::Agent(muster_client::Error::Limit(_))) => {
                self.clear(parcel, data.len())?;
                Ok(false)
            }
            put => put.map(|()| true),
        }
    }

    /// Takes away what nobody needs any more.
    pub(super) fn clear(&self, parcel: DataChunk, size: usize) -> Result<(), Error> {
        for part in 0..size.div_ceil(PART) {
            self.client.withdraw(&parcel.key(part))?;
        }
        Ok(())
    }

    /// What lies beside the bell of a node; none if not all of it is there (any more).
    pub(super) fn fetch(
        &self,
        parcel: DataChunk,
        node: usize,
        size: usize,
    ) -> Result<Option<Vec<u8>>, Error> {
        let Some(index) = self.peers.get(node).and_then(|peer| peer.index) else {
            return Ok(None);
        };
        let mut data = Vec::new();
        for part in 0..size.div_ceil(PART) {
            match self.client.attribute_get(index, &parcel.key(part))? {
                Some(bytes) => data.extend(bytes),
                None => return Ok(None),
            }
        }
        Ok((data.len() == size).then_some(data))
    }
}
