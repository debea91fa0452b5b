//! Views of a fabric: paths, nets, peers, and why a path is taken.

use super::Fabric;
use super::send::{input, rail_inputs};
use crate::peer::{Path, Peer};
use crate::peer_handle::PeerHandle;
use crate::select::{self, CarrierInput, Loss, Request};
use crate::stats::Counters;
use crate::transport::Transport;
use crate::view::{
    Credits, NetView, PathState, PathView, PeerView, RelayView, Through, Why, by_net,
};
use muster_provider::Nid;
use muster_rail_health::{Finding, HealthState};

/// The maximum of carriers that an explanation names.
const CARRIERS_SHOWN: usize = 16;

impl Fabric {
    /// All nets with their rails, and the sums of their figures.
    #[must_use]
    pub fn nets(&self) -> Vec<NetView> {
        by_net(self.rails())
    }

    /// A peer's NIDs, and the sums of their figures; none if it is unknown.
    #[must_use]
    pub fn peer_view(&self, peer: PeerHandle) -> Option<PeerView> {
        self.peers.get(peer)?;
        Some(PeerView::of(&self.path_views(peer)))
    }

    /// At most `count` peers after this one in the order of handles; from the first one if none is given.
    #[must_use]
    pub fn peers(&self, behind: Option<PeerHandle>, count: usize) -> Vec<PeerHandle> {
        let handles = self.peers.iter().map(|(handle, _)| handle);
        let further =
            handles.filter(|handle| behind.is_none_or(|behind| handle.index > behind.index));
        further.take(count).collect()
    }

    /// [`Fabric::findings`] and [`Fabric::bulk_findings`] as sentences. A finding of both is listed once.
    #[must_use]
    pub fn findings_in_words(&self) -> Vec<String> {
        let (findings, of_bulk) = (self.findings(), self.bulk_findings());
        let is_own = |finding: &&Finding| !findings.contains(finding);
        let of_bulk = of_bulk.iter().filter(is_own);
        let in_words = |finding: &Finding| self.in_words(finding);
        let of_bulk = of_bulk.map(|finding| format!("bulk messages: {}", in_words(finding)));
        let no_links = self.links.as_ref().err().map(|why| {
            format!("the kernel does not report link changes ({why}): a link that goes down is found by silence only")
        });
        findings
            .iter()
            .map(in_words)
            .chain(of_bulk)
            .chain(no_links)
            .collect()
    }

    fn in_words(&self, finding: &Finding) -> String {
        let own = |rail: usize| match self.rails.get(rail) {
            Some(Some(rail)) => rail.nid.to_string(),
            _ => "a removed rail".to_owned(),
        };
        let mut peers = self.peers.iter();
        let mut nids = |index: u32| {
            let found = peers.find(|(handle, _)| handle.index == index);
            found.map_or(&[][..], |(_, peer)| peer.nids.as_slice())
        };
        let mut nid = |peer: u32, remote: u8| {
            let nid = nids(peer).get(usize::from(remote));
            nid.map_or_else(|| "a removed peer".to_owned(), ToString::to_string)
        };
        match *finding {
            Finding::Node { peer } => {
                format!("no interface of the node of {} answers", nid(peer, 0))
            }
            Finding::Net { net } => format!("no pair on net {net} works"),
            Finding::Local { rail } => {
                format!(
                    "no pair of {} works, while other rails of its net work",
                    own(rail)
                )
            }
            Finding::Remote { peer, remote } => format!(
                "no rail reaches {}, while other interfaces of its node answer",
                nid(peer, remote)
            ),
            Finding::Several { rail, count } => {
                format!(
                    "{} does not reach {count} interfaces that other rails reach",
                    own(rail)
                )
            }
            Finding::Pair { rail, peer, remote } => format!(
                "{} does not reach {}; each of them works with others",
                own(rail),
                nid(peer, remote)
            ),
            Finding::Undecided {
                rail,
                peer,
                remote,
                lacks,
            } => format!(
                "{} does not reach {}; which of them is at fault is not known: {}",
                own(rail),
                nid(peer, remote),
                lacks.words()
            ),
        }
    }

    /// Sets all counters to zero, and minima and maxima to the current values.
    pub fn zero_stats(&mut self) {
        self.rails
            .iter_mut()
            .flatten()
            .for_each(crate::rail::Rail::zero_stats);
        for path in self.peers.iter_mut().flat_map(|peer| &mut peer.paths) {
            path.counters = Counters::default();
            path.usage = Default::default();
            path.sends_most = path.sends.iter().sum();
        }
        self.relay_state.carried = Default::default();
        self.events_dropped = 0;
        self.bulk_unfinished = 0;
        self.unknown_peer_drops = 0;
        self.no_path_drops = 0;
        self.under_way_drops = 0;
    }

    pub(super) fn path_views(&self, peer: PeerHandle) -> Vec<PathView> {
        let Some(peer) = self.peers.get(peer) else {
            return Vec::new();
        };
        // A spare path that was never needed is not shown.
        let is_used =
            |path: &&Path| !path.spare || path.addresses.is_some() || path.bulk_address.is_some();
        let paths = peer.paths.iter().filter(is_used);
        paths.map(|path| self.path_view(peer, path)).collect()
    }

    fn path_view(&self, peer: &Peer, path: &Path) -> PathView {
        // On both lanes.
        let most = 2 * self.config.peer_sends_max as u32;
        let left = |sends: usize| most.saturating_sub(sends as u32);
        PathView {
            rail: path.rail,
            nid: path.nid.clone(),
            spare: path.spare,
            state: self.path_state(peer, path),
            health: path.health.value().min(path.bulk_health.value()),
            credits: Credits {
                now: left(path.sends.iter().sum()),
                least: left(path.sends_most),
                most,
            },
            queued_bytes: path.queued_bytes,
            usage: path.usage.at(self.now_us),
            counters: path.counters.clone(),
        }
    }

    fn path_state(&self, peer: &Peer, path: &Path) -> PathState {
        let of_rail = self.rails[path.rail].as_ref();
        let of_rail = of_rail.map_or(HealthState::Failed, |rail| rail.health.state());
        let of_path = path.health.state().max(path.bulk_health.state());
        match of_rail.max(of_path) {
            HealthState::Failed => PathState::Failed,
            _ if peer.told_failing.contains(&path.nid) => PathState::Failed,
            _ if peer.rail_liveness.is_silent(path.rail) => PathState::Silent,
            HealthState::Degraded => PathState::Degraded,
            HealthState::Active => PathState::Active,
        }
    }

    pub(super) fn explain_choice(&self, handle: PeerHandle) -> Why {
        let Some(peer) = self.peers.get(handle) else {
            return Why::default();
        };
        let health = &self.config.health;
        let input = |path: &Path| input(&self.rails, peer, path, health);
        let inputs: Vec<_> = peer.paths.iter().map(input).collect();
        let request = Request {
            numa_range: self.config.numa_range,
            ..Request::default()
        };
        let explanation = select::explain(
            &request,
            &rail_inputs(&self.rails, self.memory_node),
            &inputs,
        );
        let local = |rail: u8| {
            self.rails[usize::from(rail)]
                .as_ref()
                .map(|rail| rail.nid.clone())
        };
        let words = |lost: Option<Loss>| lost.map(Loss::words);
        let rails = explanation.rails.iter();
        let remotes = explanation.remotes.iter();
        let remote = |path: u8| peer.paths[usize::from(path)].nid.clone();
        Why {
            taken: explanation
                .choice
                .and_then(|choice| Some((local(choice.rail)?, remote(choice.path)))),
            rails: rails
                .filter_map(|one| Some((local(one.index)?, words(one.lost))))
                .collect(),
            remotes: remotes
                .map(|one| (remote(one.index), words(one.lost)))
                .collect(),
            relay: self.explain_relay(handle, peer),
        }
    }

    /// The members that carry a message to a peer, if it is relayed, and why not the others.
    fn explain_relay(&self, handle: PeerHandle, peer: &Peer) -> Option<Through> {
        let need = self.relay_need(self.now_us, peer)?;
        if !self.config.relay {
            return Some(Through {
                because: need.words(),
                off: true,
                members: Vec::new(),
            });
        }
        let others = self.peers.iter().filter(|(by, _)| *by != handle);
        let (nids, inputs): (Vec<&Nid>, Vec<CarrierInput>) = others
            .map(|(by, one)| {
                let input = self.carrier_input(self.now_us, peer, by);
                (&one.nids.as_slice()[0], input)
            })
            .unzip();
        let taken = select::choose_carriers(&inputs, &[]);
        let best = taken[0].map_or_else(CarrierInput::default, |best| inputs[best]);
        // The chosen ones come first; there may be many others.
        let others = (0..inputs.len()).filter(|at| !taken.contains(&Some(*at)));
        let order = taken.into_iter().flatten().chain(others);
        let members = order.take(CARRIERS_SHOWN).map(|at| {
            let lost = (!taken.contains(&Some(at))).then(|| inputs[at].lost_to(&best));
            (nids[at].clone(), lost)
        });
        let members = members.collect();
        Some(Through {
            because: need.words(),
            off: false,
            members,
        })
    }

    /// What was relayed: through other members for this node, and by this node for others.
    #[must_use]
    pub fn relayed(&self) -> RelayView {
        let (pairs, others) = self.relay_state.carried.each();
        let nid = |end: &Option<PeerHandle>| {
            let peer = self.peers.get((*end)?)?;
            Some(peer.nids.as_slice()[0].clone())
        };
        RelayView {
            on: self.config.relay,
            pairs: pairs
                .map(|([from, by, to], tally)| ([nid(from), nid(by), nid(to)], *tally))
                .collect(),
            others,
        }
    }
}
