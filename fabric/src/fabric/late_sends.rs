//! News that a provider has accepted and does not complete in time (RS-05, RS-06).
//!
//! A provider that keeps messages for a peer whose network is cut may report the loss only after many seconds. So
//! news that is under way for longer than the transport time-out is sent by another path as well. The first copy may
//! still arrive: a host accepts each message more than once, as on any datagram network. A provider that takes each
//! message at once, as that of udp does, has none under way.

use super::Fabric;
use crate::lane::SendTag;
use crate::lane_names::is_announcement;
use crate::message::{Arrival, Class};
use crate::stats::DropReason;
use muster_rail_health::Outcome;

/// Checks in one transport time-out.
const CHECKS: u64 = 4;

impl Fabric {
    /// Sends news by another path whose time is over. If there is no other path now, waits once more.
    ///
    /// The lane is read before: a provider may have completed the send without a signal.
    pub(super) fn resend_late(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) {
        if now_us < self.late_check_us {
            return;
        }
        let pause_us = self.config.timeouts.transport_us / CHECKS;
        self.late_check_us = now_us.saturating_add(pause_us);
        for index in 0..self.rails.len() {
            if self.late_news(now_us, index).is_empty() {
                continue;
            }
            match self.poll_lane(now_us, index, Class::News, deliver) {
                true => self.more = true,
                false => self.send_late_news(now_us, index),
            }
        }
    }

    fn send_late_news(&mut self, now_us: u64, index: usize) {
        let transport_us = self.config.timeouts.transport_us;
        let reason = format!("it was not sent within {transport_us} us");
        for (slot, mut tag, bytes) in self.late_news(now_us, index) {
            self.count_late(now_us, index, &tag);
            // A message that the peer's side does not take is sent to another NID of the peer, if it has one.
            let mut tried = self.tried_with(&tag, DropReason::ProviderError);
            tag.again_us = match self.send_again(&tag, &mut tried, &bytes, &reason) {
                true => u64::MAX,
                false => self.config.timeouts.again_us(now_us, tried.count()),
            };
            if let Some(rail) = &mut self.rails[index] {
                rail.lanes.news.set_tag(slot, tag);
            }
        }
    }

    /// The news of a rail whose time is over. An announcement is about its own path, so no other path can send it.
    fn late_news(&self, now_us: u64, index: usize) -> Vec<(usize, SendTag, Vec<u8>)> {
        let Some(rail) = &self.rails[index] else {
            return Vec::new();
        };
        let news = rail.lanes.news.under_way();
        let late = news.filter(|(_, tag, bytes)| tag.again_us <= now_us && !is_announcement(bytes));
        late.map(|(slot, tag, bytes)| (slot, tag, bytes.to_vec()))
            .collect()
    }

    fn count_late(&mut self, now_us: u64, index: usize, tag: &SendTag) {
        let health = &self.config.health;
        if let Some(path) = self.peers.path_by_id(tag.peer(), tag.path) {
            path.counters.count_timeout();
            path.health.tell(now_us, Outcome::Unreachable, health);
        }
        if let Some(rail) = &mut self.rails[index] {
            rail.counters.count_timeout();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Route;
    use crate::peer_handle::PeerHandle;
    use crate::transport::{FabricEvent, Transport};
    use crate::{FabricConfig, Timeouts};
    use rustix::io::Errno;

    const TRANSPORT_US: u64 = 50_000;

    /// The provider completes sends later: it copies nothing, and the lanes are not read.
    fn open(rails: &str) -> Fabric {
        let library = crate::load().expect("libfabric is installed where tests run");
        let rails = rails.split(',').map(|nid| nid.parse().unwrap()).collect();
        let timeouts = Timeouts {
            transport_us: TRANSPORT_US,
            ..Timeouts::default()
        };
        Fabric::open(&FabricConfig {
            inject: false,
            timeouts,
            ..FabricConfig::new(library, rails)
        })
        .unwrap()
    }

    /// The messages that have arrived, each with its rail.
    fn received(fabric: &mut Fabric) -> Vec<(usize, Vec<u8>)> {
        let mut received = Vec::new();
        let mut keep = |arrival: Arrival<'_>| received.push((arrival.rail, arrival.bytes.to_vec()));
        while fabric.poll(0, &mut keep) {}
        received
    }

    fn send(a: &mut Fabric, to: PeerHandle, class: Class, bytes: &[u8]) {
        assert_eq!(a.send(1, to, class, Route::Next, bytes).copies, 1);
    }

    fn send_late(a: &mut Fabric, now_us: u64) {
        for rail in 0..a.rails.len() {
            a.send_late_news(now_us, rail);
        }
    }

    fn timeouts(a: &Fabric, to: PeerHandle) -> u64 {
        a.paths(to).iter().map(|path| path.counters.timeouts).sum()
    }

    /// RS-05, RS-06, dbg-115: news that does not complete is sent by another path, once. A beat is not.
    #[test]
    fn news_that_does_not_complete_in_time_is_sent_by_another_rail() {
        let mut a = open("127.41.84.1:0@udp,127.41.84.2:0@udp");
        let mut b = open("127.41.85.1:0@udp,127.41.85.2:0@udp");
        let to_b = a.peer(&b.local_nids()).unwrap();
        send(&mut a, to_b, Class::News, b"news");
        send(&mut a, to_b, Class::Beat, b"beat");
        let first = [(0, b"news".to_vec()), (1, b"beat".to_vec())];
        assert_eq!(received(&mut b), first);
        send_late(&mut a, TRANSPORT_US);
        assert_eq!(received(&mut b), [], "its time is not over");
        send_late(&mut a, TRANSPORT_US + 20_000);
        assert_eq!(received(&mut b), [(1, b"news".to_vec())]);
        let moved = std::iter::from_fn(|| a.poll_event()).filter(|event| {
            matches!(event, FabricEvent::Moved { reason, .. } if reason == "it was not sent within 50000 us")
        });
        assert_eq!(moved.count(), 1);
        assert_eq!(timeouts(&a, to_b), 1);
        // The first copy fails in the end. Nothing is sent again, and nothing is lost.
        let news = &a.rails[0].as_ref().unwrap().lanes.news;
        let tags = news.under_way().map(|(_, tag, _)| tag);
        let tags: Vec<SendTag> = tags.filter(SendTag::is_sent_again).collect();
        assert_eq!(tags.len(), 1);
        let error = Errno::TIMEDOUT.raw_os_error();
        let error = a.config.library.error("fi_cq_readerr", error.into());
        a.send_failed(2, 0, Class::News, tags[0], &error, b"news");
        assert_eq!(received(&mut b), []);
        assert_eq!(a.under_way_drops(), 0);
    }

    /// RS-06: with one path news waits for it, and is sent by another one that comes later.
    #[test]
    fn late_news_without_another_path_waits_for_one() {
        let mut a = open("127.41.86.1:0@udp");
        let mut b = open("127.41.87.1:0@udp,127.41.87.2:0@udp");
        let first = b.local_nids().as_slice()[0].to_string();
        let to_b = a.peer(&first.parse().unwrap()).unwrap();
        send(&mut a, to_b, Class::News, b"news");
        send_late(&mut a, 2 * TRANSPORT_US);
        assert_eq!(received(&mut b), [(0, b"news".to_vec())]);
        assert_eq!((a.under_way_drops(), a.poll_event()), (0, None));
        a.renew(to_b, &b.local_nids()).unwrap();
        send_late(&mut a, 8 * TRANSPORT_US);
        assert_eq!(received(&mut b), [(1, b"news".to_vec())]);
    }
}
