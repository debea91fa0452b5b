//! The addresses of rails' lanes that peers have to be told.

use super::Fabric;
use crate::lane_names::{Announcement, Told};
use crate::message::Class;
use crate::peer::Path;
use crate::peer_handle::PeerHandle;
use crate::select::Tried;
use crate::stats::DropReason;

impl Fabric {
    /// Announces the addresses of a rail's lanes to a peer, before the first message on a path.
    pub(super) fn announce(&mut self, now_us: u64, handle: PeerHandle, index: usize) {
        let Some(peer) = self.peers.get_mut(handle) else {
            return;
        };
        let Some(path) = peer.paths.get_mut(index).filter(|path| !path.announced) else {
            return;
        };
        let (rail, key) = (self.rails[path.rail].as_ref(), self.config.key.as_ref());
        let Some((rail, key)) = rail.filter(|rail| rail.lanes.beats.has_name()).zip(key) else {
            return;
        };
        self.announcements += 1;
        let bulk = rail.bulk.as_ref().filter(|bulk| bulk.has_name());
        let is_missing =
            |told: &Told| told.beats.is_none() || bulk.is_some() && told.bulk.is_none();
        let names = rail.lanes.beats.name().and_then(|beats| {
            let bulk = bulk.map(|bulk| bulk.name()).transpose()?;
            Ok((beats, bulk))
        });
        let bytes = names.ok().and_then(|(beats, bulk)| {
            let announcement = Announcement {
                knows_receiver: !path.told.as_ref().is_none_or(is_missing),
                from: rail.nid.clone(),
                to: path.nid.clone(),
                stamp: (self.config.incarnation, self.announcements),
                beats,
                bulk,
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

    /// Takes the addresses that a peer has announced, and announces the own ones if the peer does not know them.
    pub(super) fn handle_announcement(&mut self, now_us: u64, rail: usize, bytes: &[u8]) {
        let key = self.config.key.as_ref();
        let Some(announcement) = key.and_then(|key| Announcement::open(key, bytes)) else {
            self.count_relay_drop(rail, DropReason::RelayMalformed);
            return;
        };
        // A peer that is not known yet announces its addresses again when it gets an announcement.
        let Some(&handle) = self.owners.get(&announcement.from) else {
            return;
        };
        let paths = self.peers.get(handle).map_or(&[][..], |peer| &peer.paths);
        // The provider may have to wait for the address's link layer, unless the link has just carried a message.
        let leads = |path: &Path| path.nid == announcement.from && path.rail == rail;
        let Some(index) = paths.iter().position(leads) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(handle) else {
            return;
        };
        let path = &mut peer.paths[index];
        let Some(open) = &mut self.rails[rail] else {
            return;
        };
        let is_old = |known: &Told| known.stamp >= announcement.stamp;
        let beats = &mut open.lanes.beats;
        if path.told.as_ref().is_some_and(is_old)
            || open.nid != announcement.to
            || !beats.has_name()
        {
            return;
        }
        let before = path.told.take();
        let known = before.as_ref().and_then(|before| before.beats);
        known.into_iter().for_each(|address| beats.remove(address));
        if before.and_then(|before| before.bulk) != announcement.bulk {
            let known = path.bulk_address.take().zip(open.bulk.as_mut());
            known
                .into_iter()
                .for_each(|(address, bulk)| bulk.remove(address));
        }
        path.told = Some(Told {
            beats: beats.insert_name(&announcement.beats).ok(),
            bulk: announcement.bulk,
            stamp: announcement.stamp,
        });
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
        if !lane.has_name() {
            return;
        }
        let Some(peer) = self.peers.get_mut(handle) else {
            return;
        };
        for path in peer.paths.iter_mut().filter(|path| path.rail == rail) {
            path.announced = false;
            let told = path.told.as_mut();
            let address = told.and_then(|told| told.beats.take());
            address.into_iter().for_each(|address| lane.remove(address));
        }
    }

    /// Announces the own addresses to a peer whose address for bulk messages is not known: it answers with its own.
    pub(super) fn ask_bulk_name(&mut self, now_us: u64, handle: PeerHandle, index: usize) {
        let path = self
            .peers
            .get(handle)
            .and_then(|peer| peer.paths.get(index));
        let rail = path.and_then(|path| self.rails.get(path.rail)?.as_ref());
        let lane = rail.and_then(|rail| rail.bulk.as_ref());
        let is_known = |path: &Path| path.told.as_ref().is_some_and(|told| told.bulk.is_some());
        if lane.is_some_and(|lane| lane.has_name()) && !path.is_some_and(is_known) {
            self.announce_again(handle, index);
            self.announce(now_us, handle, index);
        }
    }

    fn announce_again(&mut self, handle: PeerHandle, index: usize) {
        if let Some(peer) = self.peers.get_mut(handle) {
            peer.paths[index].announced = false;
        }
    }
}
