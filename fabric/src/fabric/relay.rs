//! Relaying: which members carry messages to a peer, what is sent that way, and what is carried for others.

use super::Fabric;
use super::send::input;
use crate::message::{Arrival, Class, Relayed};
use crate::peer::Peer;
use crate::peer_handle::PeerHandle;
use crate::relay::{
    Allowance, Carried, ENVELOPE_BYTES, Envelope, Late, Need, Owner, Verdict, WAYS_MAX, Way,
    is_proven, judge, mark_carried,
};
use crate::select::{CarrierInput, Tried, choose_carriers, compare};
use crate::stats::DropReason;
use crate::transport::FabricEvent;
use muster_provider::{Net, Nid, NidList};
use std::collections::VecDeque;

/// A peer that was heard within this time counts as alive when carriers are chosen.
const HEARD_US: u64 = 1_000_000;

/// The maximum of pairs that are tried for a message that is carried.
const CARRY_TRIES: usize = 3;

/// The minimum time between two reports of unknown NIDs.
const UNKNOWN_NID_US: u64 = 100_000;

/// State of relaying that belongs to no single peer.
#[derive(Debug)]
pub(crate) struct RelayState {
    all: Allowance,
    pub(super) carried: Carried,
    turn: u64,
    /// The number of envelopes that were made.
    made: u64,
    pub(super) late: VecDeque<Late>,
    unknown_nid_us: Option<u64>,
}

impl Default for RelayState {
    fn default() -> RelayState {
        RelayState {
            all: Allowance::ALL,
            carried: Carried::default(),
            turn: 0,
            made: 0,
            late: VecDeque::new(),
            unknown_nid_us: None,
        }
    }
}

/// The sender and the carrier of an envelope that is for this node.
pub(super) struct Taken {
    pub(super) from: PeerHandle,
    pub(super) relayed: Relayed,
}

/// What is done with an envelope that has arrived.
pub(super) enum Outcome {
    Take(Taken),
    Carry { from: PeerHandle, to: PeerHandle },
    Dropped,
}

impl Fabric {
    /// Switches relaying on or off, for this node's messages and for those of other members.
    pub fn set_relay(&mut self, relay: bool) {
        self.config.relay = relay;
        if !relay {
            self.stop_relaying();
        }
    }

    /// Why messages to a peer are relayed now; none if they are not.
    pub(super) fn relay_need(&self, now_us: u64, peer: &Peer) -> Option<Need> {
        let health = &self.config.health;
        let mut paths = peer.paths.iter();
        if peer.paths.is_empty() {
            Some(Need::NoCommonNet)
        } else if !paths.any(|path| input(&self.rails, peer, path, health).is_usable()) {
            Some(Need::NoneWorks)
        } else if peer.rail_liveness.doubts(now_us)
            || peer.relay.is_unanswered(now_us) && peer.rail_liveness.latest_us() > 0
        {
            Some(Need::NotHeard)
        } else {
            peer.relay
                .not_heard_by_peer(now_us)
                .then_some(Need::NotHeardByPeer)
        }
    }

    pub(super) fn relay_copies(
        &mut self,
        now_us: u64,
        handle: PeerHandle,
        class: Class,
        bytes: &[u8],
    ) -> u8 {
        let Some(peer) = self.peers.get_mut(handle).filter(|_| self.config.relay) else {
            return 0;
        };
        if class == Class::News {
            peer.relay.news_sent(now_us);
        }
        let Some(peer) = self.peers.get(handle) else {
            return 0;
        };
        let Some(need) = self
            .relay_need(now_us, peer)
            .filter(|_| bytes.len() <= self.mtu)
        else {
            return 0;
        };
        self.find_carriers(now_us, handle);
        let mut copies = 0;
        // A peer that is only late may be busy, and so may be its neighbours. One carrier at a time is tried.
        let limit = if need == Need::NotHeard { 1 } else { 2 };
        let carriers = self.carriers(now_us, handle, &[]).into_iter().flatten();
        for by in carriers.take(limit) {
            let handed =
                self.send_to_carrier(now_us, handle, by, need != Need::NotHeardByPeer, bytes);
            copies += u8::from(handed);
        }
        copies
    }

    /// At intervals, looks for members that can carry to a peer, and keeps the best.
    pub(super) fn find_carriers(&mut self, now_us: u64, handle: PeerHandle) {
        let due = |peer: &mut Peer| peer.relay.selection_due(now_us);
        if !self.peers.get_mut(handle).is_some_and(due) {
            return;
        }
        let Some(peer) = self.peers.get(handle) else {
            return;
        };
        let others = self.peers.iter().filter(|(by, _)| *by != handle);
        let input = |(by, _)| (by, self.carrier_input(now_us, peer, by));
        let mut able: Vec<(PeerHandle, CarrierInput)> = others
            .map(input)
            .filter(|(_, input)| input.is_able())
            .collect();
        able.sort_by(|one, other| compare(&one.1, &other.1));
        able.truncate(WAYS_MAX);
        if let Some(peer) = self.peers.get_mut(handle) {
            let known = std::mem::take(&mut peer.relay.ways);
            let way = |(by, input): (PeerHandle, CarrierInput)| Way {
                by,
                proved_us: known
                    .iter()
                    .find(|way| way.by == by)
                    .map_or(0, |way| way.proved_us),
                turn: input.turn,
            };
            peer.relay.ways = able.into_iter().map(way).collect();
        }
    }

    /// The carriers of a peer that are chosen now, without those that were tried.
    pub(super) fn carriers(
        &self,
        now_us: u64,
        handle: PeerHandle,
        tried: &[PeerHandle],
    ) -> [Option<PeerHandle>; 2] {
        let Some(peer) = self.peers.get(handle) else {
            return [None; 2];
        };
        let ways = &peer.relay.ways;
        let input = |way: &Way| self.carrier_input(now_us, peer, way.by);
        let inputs: Vec<CarrierInput> = ways.iter().map(input).collect();
        let tried: Vec<bool> = ways.iter().map(|way| tried.contains(&way.by)).collect();
        choose_carriers(&inputs, &tried).map(|chosen| Some(ways[chosen?].by))
    }

    /// What is known about a member as a carrier to a peer.
    pub(super) fn carrier_input(&self, now_us: u64, peer: &Peer, by: PeerHandle) -> CarrierInput {
        let Some(carrier) = self.peers.get(by) else {
            return CarrierInput::default();
        };
        let has = |nids: &NidList, net: Net| nids.iter().any(|nid| nid.net == net);
        let shared = carrier.nids.iter().map(|nid| nid.net);
        let mut shared = shared.filter(|net| has(&peer.nids, *net)).peekable();
        let shares = shared.peek().is_some();
        let failed = |net| self.has_failed(carrier, net) || self.has_failed(peer, net);
        let (proved, turn) = peer.relay.way(now_us, by);
        let heard_us = carrier.rail_liveness.direct_us();
        CarrierInput {
            reached: self.reaches(carrier) && !carrier.rail_liveness.doubts(now_us),
            shares,
            doubtful: shares && shared.all(failed),
            proved,
            heard: heard_us > 0 && now_us < heard_us + HEARD_US,
            turn,
        }
    }

    /// Whether a direct pair to a peer works.
    fn reaches(&self, peer: &Peer) -> bool {
        let health = &self.config.health;
        let mut paths = peer.paths.iter();
        paths.any(|path| input(&self.rails, peer, path, health).is_usable())
    }

    /// Whether a peer's interfaces on a net are known to have failed: working rails of this node have pairs to them,
    /// and none of these pairs works.
    fn has_failed(&self, peer: &Peer, net: Net) -> bool {
        let works = |rail: usize| {
            let rail = self.rails[rail].as_ref();
            rail.is_some_and(|rail| !rail.is_avoided())
        };
        let mut tried = peer
            .paths
            .iter()
            .filter(|path| path.nid.net == net && !path.spare && works(path.rail))
            .peekable();
        let health = &self.config.health;
        tried.peek().is_some()
            && tried.all(|path| !input(&self.rails, peer, path, health).is_usable())
    }

    /// Hands a message for a peer to the member that carries it.
    fn send_to_carrier(
        &mut self,
        now_us: u64,
        to: PeerHandle,
        by: PeerHandle,
        no_direct_contact: bool,
        bytes: &[u8],
    ) -> bool {
        let Some(choice) = self.select_path(by, &Tried::default()) else {
            return false;
        };
        let path = usize::from(choice.path);
        let Some(envelope) = self.envelope(to, by, path, no_direct_contact) else {
            return false;
        };
        let key = self.config.key.as_ref();
        let Some(sealed) = key.and_then(|key| envelope.seal(key, &[bytes])) else {
            return false;
        };
        let posted = self.post_on(now_us, by, path, Class::News, &sealed, Tried::default());
        let is_posted = posted.is_ok();
        if is_posted {
            self.count_way(to, by, bytes.len());
        }
        is_posted
    }

    /// The envelope of a message for a peer that goes to its carrier by this path.
    pub(super) fn envelope(
        &mut self,
        to: PeerHandle,
        by: PeerHandle,
        path: usize,
        no_direct_contact: bool,
    ) -> Option<Envelope> {
        let (peer, carrier) = (self.peers.get(to)?, self.peers.get(by)?);
        let path = carrier.paths.get(path)?;
        let mut nids = peer.nids.iter();
        let on_shared = |nid: &&Nid| carrier.nids.iter().any(|one| one.net == nid.net);
        self.relay_state.made += 1;
        Some(Envelope {
            hops: 1,
            no_direct_contact,
            from: self.rails[path.rail].as_ref()?.nid.clone(),
            by: path.nid.clone(),
            to: nids.find(on_shared)?.clone(),
            incarnation: self.config.incarnation,
            number: self.relay_state.made,
        })
    }

    /// Counts a message that a carrier has taken, and ends the carrier's turn.
    pub(super) fn count_way(&mut self, to: PeerHandle, by: PeerHandle, bytes: usize) {
        self.relay_state.turn += 1;
        let turn = self.relay_state.turn;
        if let Some(peer) = self.peers.get_mut(to) {
            let way = peer.relay.ways.iter_mut().find(|way| way.by == by);
            way.into_iter().for_each(|way| way.turn = turn);
        }
        let ends = [None, Some(by), Some(to)];
        self.relay_state.carried.count(ends, bytes);
    }

    /// Handles an envelope that has arrived on a datagram lane.
    pub(super) fn handle_envelope(
        &mut self,
        now_us: u64,
        rail: usize,
        mut bytes: Vec<u8>,
        deliver: &mut dyn FnMut(Arrival<'_>),
    ) {
        match self.sort(now_us, rail, &bytes) {
            Outcome::Dropped => {}
            Outcome::Take(taken) => deliver(Arrival {
                rail,
                bytes: &bytes[ENVELOPE_BYTES..],
                relayed: Some(taken.relayed),
            }),
            Outcome::Carry { from, to } => {
                mark_carried(&mut bytes);
                if self.carry(now_us, to, &bytes) {
                    let length = bytes.len() - ENVELOPE_BYTES;
                    let ends = [Some(from), None, Some(to)];
                    self.relay_state.carried.count(ends, length);
                } else {
                    self.count_relay_drop(rail, DropReason::RelayNoPath);
                }
            }
        }
    }

    /// Forwards an envelope at once.
    fn carry(&mut self, now_us: u64, to: PeerHandle, bytes: &[u8]) -> bool {
        let mut tried = Tried::default();
        for _ in 0..CARRY_TRIES {
            let Some(choice) = self.select_path(to, &tried) else {
                return false;
            };
            let path = usize::from(choice.path);
            let Some(peer) = self.peers.get(to) else {
                return false;
            };
            let health = &self.config.health;
            if !input(&self.rails, peer, &peer.paths[path], health).is_usable() {
                return false;
            }
            match self.post_on(now_us, to, path, Class::News, bytes, tried) {
                Ok(()) => return true,
                Err(reason) => tried.note(choice, reason),
            }
        }
        false
    }

    /// Decides what is done with an envelope. A dropped envelope is counted.
    pub(super) fn sort(&mut self, now_us: u64, rail: usize, bytes: &[u8]) -> Outcome {
        let Some((envelope, message)) = Envelope::read(bytes) else {
            return self.refuse(rail, DropReason::RelayMalformed);
        };
        if !self.config.relay {
            return self.refuse(rail, DropReason::RelayOff);
        }
        let key = self.config.key.as_ref();
        if !key.is_some_and(|key| is_proven(key, bytes)) {
            return self.refuse(rail, DropReason::RelayMalformed);
        }
        let own = |nid: &Nid| self.open_rails().any(|(_, rail)| rail.nid == *nid);
        let owner_of = |nid: &Nid| match self.owners.get(nid) {
            _ if own(nid) => Owner::Local,
            Some(peer) => Owner::Peer(*peer),
            None => Owner::Unknown,
        };
        let verdict = judge(&envelope, owner_of);
        if let Verdict::Take { from, .. } | Verdict::Carry { from, .. } = verdict {
            let peer = self.peers.get_mut(from);
            let (incarnation, number) = (envelope.incarnation, envelope.number);
            if !peer.is_some_and(|peer| peer.relay.received.take(now_us, incarnation, number)) {
                return self.refuse(rail, DropReason::RelayRepeated);
            }
        }
        match verdict {
            Verdict::Take { from, by } => {
                let ends = [Some(from), Some(by), None];
                self.relay_state.carried.count(ends, message.len());
                let no_direct_contact = envelope.no_direct_contact;
                let relayed = Relayed {
                    by,
                    no_direct_contact,
                };
                Outcome::Take(Taken { from, relayed })
            }
            Verdict::Carry { from, to } => {
                let peer = self.peers.get_mut(from);
                let within =
                    peer.is_some_and(|peer| peer.relay.allowance.take(now_us, bytes.len()));
                if within && self.relay_state.all.take(now_us, bytes.len()) {
                    Outcome::Carry { from, to }
                } else {
                    self.refuse(rail, DropReason::RelayRate)
                }
            }
            Verdict::Drop(reason) => self.refuse(rail, reason),
            Verdict::UnknownNid(which) => {
                let [from, by, to] = [envelope.from, envelope.by, envelope.to];
                self.report_unknown_nid(now_us, [from, by, to][usize::from(which)].clone());
                self.refuse(rail, DropReason::RelayUnknown)
            }
        }
    }

    fn refuse(&mut self, rail: usize, reason: DropReason) -> Outcome {
        self.count_relay_drop(rail, reason);
        Outcome::Dropped
    }

    pub(super) fn count_relay_drop(&mut self, rail: usize, reason: DropReason) {
        if let Some(rail) = self.rails.get_mut(rail).and_then(Option::as_mut) {
            rail.counters.count_drop(reason);
        }
    }

    /// Reports an unknown NID. The host may know the member that has it, and add the member: then the next envelope
    /// passes.
    fn report_unknown_nid(&mut self, now_us: u64, nid: Nid) {
        let reported_us = self.relay_state.unknown_nid_us;
        if reported_us.is_none_or(|reported_us| now_us >= reported_us + UNKNOWN_NID_US) {
            self.relay_state.unknown_nid_us = Some(now_us);
            self.push_event(FabricEvent::UnknownNid { nid });
        }
    }

    pub(super) fn note_heard_through(&mut self, now_us: u64, handle: PeerHandle, relayed: Relayed) {
        let Some(peer) = self.peers.get_mut(handle) else {
            return;
        };
        peer.relay
            .heard_through(now_us, relayed.by, relayed.no_direct_contact);
        if peer.rail_liveness.heard_through(now_us) && !self.to_judge.contains(&handle) {
            self.to_judge.push(handle);
        }
    }
}
