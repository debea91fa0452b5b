//! Views: rails, nets, paths, NIDs and peers as their owner sees them, with their figures.
//!
//! Rails and paths carry the figures; nets and remote NIDs are sums of theirs.

use crate::health::HealthState;
use crate::net::Net;
use crate::nid::Nid;
use crate::provider::TrafficClass;
use crate::relay::Tally;
use crate::stats::Counters;
use std::fmt;

/// A rail as its owner sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailView {
    /// What stands for it in arrivals, paths and events, as long as it is open.
    pub index: usize,
    /// Its NID, with the address and the port that it is bound to.
    pub nid: Nid,
    /// The interface that has its address, if the kernel names one.
    pub interface: Option<String>,
    /// libfabric's provider.
    pub provider: &'static str,
    /// What the provider says to the traffic class that its datagrams ask for.
    pub class: TrafficClass,
    /// Longest message, bytes.
    pub mtu: usize,
    /// Whether it can be relied on.
    pub state: HealthState,
    /// The same in a number, 0 to 1000.
    pub health: u16,
    /// Sends that it has room for, over both lanes: now, at least so far, and when idle.
    pub credits: Credits,
    /// Bytes under way.
    pub queued_bytes: u64,
    /// The NUMA node that it is nearest to, if known.
    pub numa_node: Option<u32>,
    /// CPU partitions that it serves; all, if empty.
    pub partitions: Vec<u32>,
    /// How busy it is: a sum of its uses that halves every second.
    pub usage: u64,
    /// What went over it.
    pub counters: Counters,
}

impl RailView {
    /// Whether it serves messages whose memory is in this CPU partition. One that is bound to none serves
    /// all, and of messages of which nothing is known nothing is said.
    #[must_use]
    pub fn serves(&self, partition: Option<u32>) -> bool {
        serves(&self.partitions, partition)
    }
}

/// Whether a rail that is bound to these partitions, or to none, serves messages of this one.
pub(crate) fn serves(bound: &[u32], partition: Option<u32>) -> bool {
    bound.is_empty() || partition.is_none_or(|one| bound.contains(&one))
}

/// Room for sends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Credits {
    /// Now.
    pub now: u32,
    /// The least there ever was.
    pub least: u32,
    /// All there is.
    pub most: u32,
}

/// Whether a path is used for messages that take one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PathState {
    /// Nothing speaks against it.
    Active,
    /// Errors lately, on this path or on the whole rail.
    Degraded,
    /// The peer is silent on the local rail, see
    /// [`FabricEvent::RailSilent`](crate::FabricEvent::RailSilent).
    Silent,
    /// The provider refused several messages in a row, on this path or on the whole rail; or the
    /// peer acknowledged none of several bulk messages, or says that its interface fails.
    Failed,
}

impl PathState {
    /// The state as a word for tables.
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

/// One path to a peer as its owner sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathView {
    /// Index of the local rail.
    pub rail: usize,
    /// The remote NID.
    pub nid: Nid,
    /// Rail and NID are not paired by index: used when the regular pairs do not work, or the policy
    /// says so.
    pub spare: bool,
    /// Whether it is used.
    pub state: PathState,
    /// Its own health, 0 to 1000, whatever that of the rail: the worse of its lanes.
    pub health: u16,
    /// Sends to this NID that there is room for.
    pub credits: Credits,
    /// Bytes under way.
    pub queued_bytes: u64,
    /// How busy it is: a sum of its uses that halves every second.
    pub usage: u64,
    /// What went over it. Receives are counted on the first path of a rail, since what arrives does
    /// not say reliably which of the peer's interfaces it left by.
    pub counters: Counters,
}

/// A net: all rails on it, and the sum of their figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetView {
    /// The net.
    pub net: Net,
    /// Its rails, in order.
    pub rails: Vec<RailView>,
    /// What went over them.
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
    /// Sends to it that there is room for, over all rails.
    pub credits: Credits,
    /// Bytes under way.
    pub queued_bytes: u64,
    /// How busy it is.
    pub usage: u64,
    /// What went to and came from it.
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
    /// What went to and came from it.
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

/// Why a message to a peer would take the path that it would take now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Why {
    /// The local rail's NID and the remote one; none if the peer is unknown or has no path.
    pub taken: Option<(Nid, Nid)>,
    /// The rails that lead to the peer, and what decided against each; none for the one that is taken.
    pub rails: Vec<(Nid, Option<&'static str>)>,
    /// The NIDs that the taken rail leads to, likewise.
    pub remotes: Vec<(Nid, Option<&'static str>)>,
    /// Through whom it goes as well; none if it goes directly only.
    pub relay: Option<Through>,
}

/// Through whom messages to a peer go, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Through {
    /// Why not directly.
    pub because: &'static str,
    /// Relaying is off, so they go through nobody.
    pub off: bool,
    /// The first NIDs of those who may carry, and what decided against each; none for those who do.
    pub members: Vec<(Nid, Option<&'static str>)>,
}

/// What went through whom.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RelayView {
    /// Whether relaying is on.
    pub on: bool,
    /// From whom, through whom, to whom: first NIDs, none for this node.
    pub pairs: Vec<([Option<Nid>; 3], Tally)>,
    /// What is counted for no pair by itself.
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
        writeln!(f, "  through others, since {}{off}", relay.because)?;
        for (nid, lost) in &relay.members {
            match lost {
                None => writeln!(f, "  through {nid}: taken")?,
                Some(reason) => writeln!(f, "  through {nid}: not taken, since {reason}")?,
            }
        }
        Ok(())
    }
}
