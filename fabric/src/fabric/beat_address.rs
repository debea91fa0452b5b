//! The addresses for beats of rails whose peers have to be told them.

use super::Fabric;
use crate::beat_address::{Announcement, Told};
use crate::message::Class;
use crate::peer::Path;
use crate::peer_handle::PeerHandle;
use crate::select::Tried;
use crate::stats::DropReason;

impl Fabric {
    /// Announces a rail's address for beats to a peer, before the first message on a path.
    pub(super) fn announce(&mut self, now_us: u64, handle: PeerHandle, index: usize) {
        let Some(peer) = self.peers.get_mut(handle) else {
            return;
        };
        let Some(path) = peer.paths.get_mut(index).filter(|path| !path.announced) else {
            return;
        };
        let (rail, key) = (self.rails[path.rail].as_ref(), self.config.key.as_ref());
        let Some((rail, key)) = rail.filter(|rail| rail.lanes.beats.is_told()).zip(key) else {
            return;
        };
        self.announcements += 1;
        let address = rail.lanes.beats.name();
        let bytes = address.ok().and_then(|address| {
            let announcement = Announcement {
                knows_receiver: path.beat_address().is_some(),
                from: rail.nid.clone(),
                to: path.nid.clone(),
                stamp: (self.config.incarnation, self.announcements),
                address,
            };
            announcement.seal(key)
        });
        path.announced = true;
        let posted = bytes.map(|bytes| {
            let tried = Tried::default();
            self.post_on(now_us, handle, index, Class::News, &bytes, tried)
        });
        // A lane that is busy, or is still connecting: before the next message.
        if !matches!(posted, Some(Ok(()))) {
            self.announce_again(handle, index);
        }
    }

    /// Takes the address that a peer has announced, and announces the own one if the peer does not know it.
    pub(super) fn handle_announcement(&mut self, now_us: u64, rail: usize, bytes: &[u8]) {
        let key = self.config.key.as_ref();
        let Some(announcement) = key.and_then(|key| Announcement::open(key, bytes)) else {
            self.count_relay_drop(rail, DropReason::RelayMalformed);
            return;
        };
        // A peer that is not known yet announces its address again when it gets an announcement.
        let Some(&handle) = self.owners.get(&announcement.from) else {
            return;
        };
        let paths = self.peers.get(handle).map_or(&[][..], |peer| &peer.paths);
        // The provider may have to wait for the address's link layer, unless the link has just carried a message.
        let leads = |path: &Path| path.nid == announcement.from && path.rail == rail;
        let Some(index) = paths.iter().position(leads) else {
            return;
        };
        let known = paths[index].told;
        let Some(open) = &mut self.rails[rail] else {
            return;
        };
        let is_old = known.is_some_and(|known| known.stamp >= announcement.stamp);
        let lane = &mut open.lanes.beats;
        if is_old || open.nid != announcement.to || !lane.is_told() {
            return;
        }
        let before = known.and_then(|known| known.address);
        before.into_iter().for_each(|address| lane.remove(address));
        let told = Told {
            address: lane.insert_told(&announcement.address).ok(),
            stamp: announcement.stamp,
        };
        if let Some(peer) = self.peers.get_mut(handle) {
            peer.paths[index].told = Some(told);
        }
        if !announcement.knows_receiver {
            self.announce_again(handle, index);
            self.announce(now_us, handle, index);
        }
    }

    /// Sends beats on the paths of a rail in the lane of news, until the peer has announced its address again: they may
    /// not arrive at the one that is known.
    pub(super) fn doubt_beat_addresses(&mut self, handle: PeerHandle, rail: usize) {
        let Some(lane) = self.rails.get_mut(rail).and_then(Option::as_mut) else {
            return;
        };
        let lane = &mut lane.lanes.beats;
        if !lane.is_told() {
            return;
        }
        let Some(peer) = self.peers.get_mut(handle) else {
            return;
        };
        for path in peer.paths.iter_mut().filter(|path| path.rail == rail) {
            path.announced = false;
            let told = path.told.as_mut();
            let address = told.and_then(|told| told.address.take());
            address.into_iter().for_each(|address| lane.remove(address));
        }
    }

    fn announce_again(&mut self, handle: PeerHandle, index: usize) {
        if let Some(peer) = self.peers.get_mut(handle) {
            peer.paths[index].announced = false;
        }
    }
}
