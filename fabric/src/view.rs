//! Views: rails, nets, paths, NIDs and peers of this node, with their figures.
//!
//! Rails and paths have figures of their own; those of nets and remote NIDs are sums.

use crate::relay::Tally;
use crate::stats::Counters;
use muster_provider::{Net, Nid, TrafficClass};
use muster_rail_health::HealthState;
use std::fmt;

/// A local rail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailView {
    /// The index of the rail in arrivals, paths and events, as long as it is open.
    pub index: usize,
    /// Its NID, with the address and the port that it is bound to.
    pub nid: Nid,
    /// The interface that has its address, if the kernel names one.
    pub interface: Option<String>,
    /// libfabric's provider.
    pub provider: &'static str,
    /// The provider's reply to the traffic class that its datagrams request.
    pub class: TrafficClass,
    /// Longest message, bytes.
    pub mtu: usize,
    /// The health state.
    pub state: HealthState,
    /// The health as a number, 0 to 1000.
    pub health: u16,
    /// Room for sends over both lanes: now, the least so far, and when idle.
    pub credits: Credits,
    /// Bytes under way.
    pub queued_bytes: u64,
    /// The nearest NUMA node, if known.
    pub numa_node: Option<u32>,
    /// CPU partitions that it serves; all if empty.
    pub partitions: Vec<u32>,
    /// Usage rate: a sum of its uses that halves every second.
    pub usage: u64,
    /// Counters of its messages.
    pub counters: Counters,
}

impl RailView {
    /// Whether it serves messages whose memory is in this CPU partition. A rail that is bound to no partition serves
    /// all messages, and every rail serves messages whose partition is not known.
    #[must_use]
    pub fn serves(&self, partition: Option<u32>) -> bool {
        serves(&self.partitions, partition)
    }
}

/// Whether a rail that is bound to these partitions serves messages of this partition.
pub(crate) fn serves(bound: &[u32], partition: Option<u32>) -> bool {
    bound.is_empty() || partition.is_none_or(|one| bound.contains(&one))
}

/// Room for sends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Credits {
    /// Now.
    pub now: u32,
    /// The least room so far.
    pub least: u32,
    /// The room when nothing is under way.
    pub most: u32,
}

/// Whether a path is used for messages that take one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PathState {
    /// No errors.
    Active,
    /// Recent errors, on this path or on the whole rail.
    Degraded,
    /// The peer is silent on the local rail, see
    /// [`FabricEvent::RailSilent`](crate::FabricEvent::RailSilent).
    Silent,
    /// The provider refused several messages in a row, on this path or on the whole rail; or the peer acknowledged
    /// none of several bulk messages, or reports that its interface fails.
    Failed,
}

impl PathState {
    /// The name of the state in tables.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            PathState::Active => "active",
            PathState::Degraded => "degraded",
            PathState::Silent => "silent",
            PathState::Failed => "failed",
        }
    }
}

/// One path to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathView {
    /// Index of the local rail.
    pub rail: usize,
    /// The remote NID.
    pub nid: Nid,
    /// Rail and NID are not a home pair. A spare path is used if no home pair works or the policy requires it.
    pub spare: bool,
    /// The state.
    pub state: PathState,
    /// The path's own health, 0 to 1000, without that of the rail: the lower one of its lanes.
    pub health: u16,
    /// Room for sends to this NID.
    pub credits: Credits,
    /// Bytes under way.
    pub queued_bytes: u64,
    /// Usage rate: a sum of its uses that halves every second.
    pub usage: u64,
    /// Counters of its messages. Receives are counted on the first path of a rail, since a message does not show
    /// reliably which of the peer's interfaces it left by.
    pub counters: Counters,
}

/// A net: all rails on it, and the sum of their figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetView {
    /// The net.
    pub net: Net,
    /// Its rails, in order.
    pub rails: Vec<RailView>,
    /// The sum of the rails' counters.
    pub counters: Counters,
}

/// Groups rails by their nets, in the order in which the nets first appear.
#[must_use]
pub fn by_net(rails: Vec<RailView>) -> Vec<NetView> {
    let mut nets: Vec<NetView> = Vec::new();
    for rail in rails {
        let of_rail = rail.nid.net;
        let found = nets.iter().position(|one| one.net == of_rail);
        let index = found.unwrap_or_else(|| {
            nets.push(NetView {
                net: of_rail,
                rails: Vec::new(),
                counters: Counters::default(),
            });
            nets.len() - 1
        });
        nets[index].counters.add(&rail.counters);
        nets[index].rails.push(rail);
    }
    nets
}

/// One of a peer's NIDs: the sum of the paths to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerNidView {
    /// The NID.
    pub nid: Nid,
    /// The local rails that lead to it.
    pub rails: Vec<usize>,
    /// The best of its paths' states.
    pub state: PathState,
    /// Room for sends to it, over all rails.
    pub credits: Credits,
    /// Bytes under way.
    pub queued_bytes: u64,
    /// Usage rate.
    pub usage: u64,
    /// Counters of messages to and from it.
    pub counters: Counters,
}

/// Sums up the paths of a peer by NID, in the order in which the NIDs first appear.
#[must_use]
pub fn by_nid(paths: &[PathView]) -> Vec<PeerNidView> {
    let mut nids: Vec<PeerNidView> = Vec::new();
    for path in paths {
        let found = nids.iter().position(|one| one.nid == path.nid);
        let index = found.unwrap_or_else(|| {
            nids.push(PeerNidView {
                nid: path.nid.clone(),
                rails: Vec::new(),
                state: path.state,
                credits: Credits::default(),
                queued_bytes: 0,
                usage: 0,
                counters: Counters::default(),
            });
            nids.len() - 1
        });
        let nid = &mut nids[index];
        nid.rails.push(path.rail);
        if (path.state as u8) < nid.state as u8 {
            nid.state = path.state;
        }
        nid.credits.now += path.credits.now;
        nid.credits.least += path.credits.least;
        nid.credits.most += path.credits.most;
        nid.queued_bytes += path.queued_bytes;
        nid.usage += path.usage;
        nid.counters.add(&path.counters);
    }
    nids
}

/// A peer: its NIDs, and the sum of their figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerView {
    /// Its NIDs that a rail leads to.
    pub nids: Vec<PeerNidView>,
    /// Counters of messages to and from it.
    pub counters: Counters,
}

impl PeerView {
    /// Sums up the paths of a peer.
    #[must_use]
    pub fn of(paths: &[PathView]) -> PeerView {
        let mut counters = Counters::default();
        paths.iter().for_each(|path| counters.add(&path.counters));
        PeerView {
            nids: by_nid(paths),
            counters,
        }
    }
}

/// Why a message to a peer would take a certain path now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Why {
    /// The local rail's NID and the remote one; none if the peer is unknown or has no path.
    pub taken: Option<(Nid, Nid)>,
    /// The rails that lead to the peer, each with what decided against it; none for the rail that is taken.
    pub rails: Vec<(Nid, Option<&'static str>)>,
    /// The NIDs that the taken rail leads to, likewise.
    pub remotes: Vec<(Nid, Option<&'static str>)>,
    /// The members that also carry the message; none if it is only sent directly.
    pub relay: Option<Through>,
}

/// The members that carry messages to a peer, and the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Through {
    /// Why messages are not only sent directly.
    pub because: &'static str,
    /// Relaying is off, so no member carries messages.
    pub off: bool,
    /// Possible carriers by their first NIDs, each with what decided against it; none for those that carry.
    pub members: Vec<(Nid, Option<&'static str>)>,
}

/// Counts of relayed messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RelayView {
    /// Whether relaying is on.
    pub on: bool,
    /// Sender, carrier and receiver, each by its first NID, none for this node; with what was relayed.
    pub pairs: Vec<([Option<Nid>; 3], Tally)>,
    /// Relayed messages that are not counted for a pair.
    pub others: Tally,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.taken {
            Some((local, remote)) => writeln!(f, "{local} -> {remote}")?,
            None => writeln!(f, "no path")?,
        }
        for (side, candidates) in [("local", &self.rails), ("remote", &self.remotes)] {
            for (nid, lost) in candidates {
                match lost {
                    None => writeln!(f, "  {side} {nid}: taken")?,
                    Some(reason) => writeln!(f, "  {side} {nid}: not taken, since {reason}")?,
                }
            }
        }
        let Some(relay) = &self.relay else {
            return Ok(());
        };
        let off = if relay.off {
            ", but relaying is off"
        } else {
            ""
        };
        writeln!(f, "  through other members, since {}{off}", relay.because)?;
        for (nid, lost) in &relay.members {
            match lost {
                None => writeln!(f, "  through {nid}: taken")?,
                Some(reason) => writeln!(f, "  through {nid}: not taken, since {reason}")?,
            }
        }
        Ok(())
    }
}
