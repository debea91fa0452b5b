//! What comes in, and what its coming, or not coming, says about the rails.

use super::Fabric;
use crate::health::{Finding, HearingChange, Outcome, PAIRS_MAX, PairReport, infer, local_faults};
use crate::lifeline::{Held, LOOK_US};
use crate::link::Link;
use crate::peer::{Path, PeerHandle};
use crate::provider::Done;
use crate::rail::{READING_ORDER, Rail};
use crate::select::Choice;
use crate::stats::DropReason;
use crate::transport::{Arrival, Class, FabricEvent};

/// Completions of one lane that one call of `poll` handles at most, so that a flooded lane does not
/// keep the others waiting.
const POLL_BUDGET: usize = 64;

impl Fabric {
    pub(super) fn poll_rails(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool {
        self.more = self.hear_links(now_us) | self.tend_lifelines(now_us);
        for rail in 0..self.rails.len() {
            for class in READING_ORDER {
                self.more |= self.poll_lane(now_us, rail, class, deliver);
            }
        }
        self.more |= self.poll_bulk(now_us, deliver);
        self.more
    }

    pub(super) fn poll_beat_lanes(
        &mut self,
        now_us: u64,
        deliver: &mut dyn FnMut(Arrival<'_>),
    ) -> bool {
        self.more = false;
        for rail in 0..self.rails.len() {
            self.more |= self.poll_lane(now_us, rail, Class::Beat, deliver);
        }
        // The timer may have been for one of these.
        let lifelines = self.held.as_ref().and_then(Held::timeout);
        if lifelines.is_some_and(|due_us| due_us <= now_us) || self.look_us <= now_us {
            self.more |= self.tend_lifelines(now_us);
        }
        if self.has_bulk() {
            self.more |= self.poll_bulk(now_us, deliver);
        }
        self.more
    }

    /// Handles what one lane of one rail has, a bounded amount; says whether there may be more.
    fn poll_lane(
        &mut self,
        now_us: u64,
        rail: usize,
        class: Class,
        deliver: &mut dyn FnMut(Arrival<'_>),
    ) -> bool {
        let Some(open) = &mut self.rails[rail] else {
            return false;
        };
        open.lanes.of(class).repost_late();
        // hlt-005, hlt-010: the device has failed, and says so before any message does.
        if let Some(error) = open.lanes.of(class).device_error() {
            self.rail_refused(now_us, rail, None, &error);
        }
        for _ in 0..POLL_BUDGET {
            let Some(open) = &mut self.rails[rail] else {
                return false;
            };
            let Some(done) = open.lanes.of(class).next() else {
                return false;
            };
            match done {
                Done::Received { slot, length } => {
                    if let Some(envelope) = open.lanes.of(class).envelope(slot, length) {
                        open.lanes.of(class).repost(slot);
                        open.counters.count_receive(length);
                        self.envelope_came(now_us, rail, envelope, deliver);
                    } else {
                        receive(open, rail, class, slot, length, deliver);
                    }
                }
                Done::ReceiveFailed => open.counters.count_drop(DropReason::ReceiveError),
                Done::Sent(tag) => self.send_ended(now_us, rail, class, tag, None),
                Done::SendFailed(slot, tag, error) => {
                    let bytes = open
                        .lanes
                        .of(class)
                        .message(slot, tag.bytes as usize)
                        .to_vec();
                    open.lanes.of(class).free_send(slot);
                    self.send_failed(now_us, rail, class, tag, &error, &bytes);
                }
                // A queue that fails would do so again at once: not before the next poll.
                Done::QueueFailed(error) => {
                    self.rail_refused(now_us, rail, None, &error);
                    return false;
                }
            }
        }
        true
    }

    /// Notes whose lifelines have broken. True if there is more.
    fn tend_lifelines(&mut self, now_us: u64) -> bool {
        if self.look_us <= now_us {
            self.look_us = now_us + LOOK_US;
            self.config.lifeline.iter().for_each(|own| own.look());
        }
        let mut gone = Vec::new();
        let held = self.held.as_mut();
        let more = held.is_some_and(|held| held.tend(now_us, &mut gone));
        gone.dedup();
        for peer in gone {
            self.push_event(FabricEvent::PeerGone { peer });
        }
        more
    }

    /// Takes in what the kernel says about interfaces: what fails, fails now. True if there is more.
    fn hear_links(&mut self, now_us: u64) -> bool {
        let Some(links) = &mut self.links else {
            return false;
        };
        let mut told = Vec::new();
        let more = links.read(&mut told);
        for link in told {
            for rail in 0..self.rails.len() {
                self.note_link(now_us, rail, &link);
            }
        }
        more
    }

    fn note_link(&mut self, now_us: u64, index: usize, link: &Link) {
        let health = self.config.health;
        let Some(rail) = &mut self.rails[index] else {
            return;
        };
        if rail.interface() != Some(&link.name) || rail.link_down != link.up {
            return;
        }
        let change = rail.note_link(now_us, link.up, &health);
        if link.up {
            // Whatever failed on it failed because of it, as far as anybody knows.
            let paths = self.peers.iter_mut().flat_map(|peer| &mut peer.paths);
            for path in paths.filter(|path| path.rail == index) {
                for health_of in [&mut path.health, &mut path.bulk_health] {
                    // But for addresses that are wrong whatever the link is.
                    if !health_of.is_blocked() {
                        health_of.tell(now_us, Outcome::LocalUp, &health);
                    }
                }
            }
        }
        self.tell_rail(index, change, &format!("the link {} is down", link.name));
    }

    pub(super) fn note_heard(&mut self, now_us: u64, handle: PeerHandle, rail: usize) {
        let Some(known) = self.peers.get_mut(handle) else {
            return;
        };
        if let Some(path) = known.paths.iter_mut().find(|path| path.rail == rail) {
            path.counters.receives += 1;
        }
        known.relay.heard();
        if known.hearing.heard(now_us, rail) && !self.to_judge.contains(&handle) {
            self.to_judge.push(handle);
        }
    }

    /// Compares, for each peer that was heard, its rails with each other.
    pub(super) fn judge(&mut self) {
        let mut changed = false;
        let late = std::mem::take(&mut self.late);
        let mut handles = std::mem::take(&mut self.to_judge);
        handles.extend(late);
        handles.sort_unstable();
        handles.dedup();
        for handle in handles {
            let Some(peer) = self.peers.get_mut(handle) else {
                continue;
            };
            let mut changes = Vec::new();
            let now_us = self.now_us;
            peer.hearing.judge(now_us, |change| changes.push(change));
            if peer.hearing.ask_at().is_some() {
                self.late.push(handle);
            }
            let is_late = |change: &HearingChange| matches!(change, HearingChange::Late { .. });
            changed |= !changes.iter().all(is_late);
            for change in changes {
                self.tell_hearing(handle, change);
            }
        }
        if changed {
            self.find_deaf_rails();
        }
    }

    fn tell_hearing(&mut self, handle: PeerHandle, change: HearingChange) {
        let event = match change {
            HearingChange::Late { rail } => FabricEvent::RailLate { peer: handle, rail },
            HearingChange::Silent { rail, silent_us } => {
                if let Some(open) = self.rails.get_mut(rail).and_then(Option::as_mut) {
                    open.counters.count_timeout();
                }
                let peer = self.peers.get_mut(handle);
                if let Some(path) =
                    peer.and_then(|peer| peer.paths.iter_mut().find(|path| path.rail == rail))
                {
                    path.counters.count_timeout();
                }
                let on_it = |choice: &Choice, _: &Path| usize::from(choice.rail) == rail;
                self.leave_path(handle, on_it, DropReason::RailBusy);
                FabricEvent::RailSilent {
                    peer: handle,
                    rail,
                    silent_us,
                }
            }
            HearingChange::Back { rail } => FabricEvent::RailBack { peer: handle, rail },
            HearingChange::Indirect => FabricEvent::PeerIndirect { peer: handle },
            HearingChange::Direct => FabricEvent::PeerDirect { peer: handle },
        };
        self.push_event(event);
    }

    /// Where the faults are that hearing and sending show now. Of very many pairs only what is wrong with
    /// the rails of this node.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let reports: Vec<PairReport> = self.reports().collect();
        if reports.iter().all(|report| report.works) {
            return Vec::new();
        }
        if reports.len() > PAIRS_MAX {
            let rails = local_faults(reports.into_iter());
            return rails
                .into_iter()
                .map(|rail| Finding::Local { rail })
                .collect();
        }
        infer(&reports)
    }

    /// What is known of each home path that was tried lately.
    fn reports(&self) -> impl Iterator<Item = PairReport> {
        let peers = self.peers.iter();
        peers.flat_map(|(handle, peer)| {
            let paths = peer.paths.iter().filter(|path| !path.spare);
            paths.filter_map(move |path| {
                let judged = peer.hearing.is_judged(path.rail);
                let failed = path.health.is_failed() || path.bulk_health.is_failed();
                let tried = judged || failed || path.bulk_address.is_some();
                tried.then(|| PairReport {
                    rail: path.rail,
                    net: path.nid.net,
                    peer: handle.index,
                    remote: path.remote,
                    works: !failed && !peer.hearing.is_silent(path.rail),
                })
            })
        })
    }

    /// A rail on which several peers are silent that other rails hear is likely at fault itself: it
    /// is avoided for peers that are not watched too.
    pub(super) fn find_deaf_rails(&mut self) {
        let faults = local_faults(self.reports());
        for index in 0..self.rails.len() {
            let deaf = faults.contains(&index);
            let Some(rail) = &mut self.rails[index] else {
                continue;
            };
            if rail.deaf == deaf {
                continue;
            }
            rail.deaf = deaf;
            // What the provider said is told by itself.
            if rail.health.is_failed() {
                continue;
            }
            if deaf {
                self.leave_rail(index);
            }
            let reason = "several peers are silent on it that other rails reach".to_owned();
            self.push_event(match deaf {
                true => FabricEvent::RailFailing {
                    rail: index,
                    reason,
                },
                false => FabricEvent::RailRecovered { rail: index },
            });
        }
    }
}

fn receive(
    rail: &mut Rail,
    index: usize,
    class: Class,
    slot: usize,
    length: usize,
    deliver: &mut dyn FnMut(Arrival<'_>),
) {
    let Rail {
        lanes, counters, ..
    } = rail;
    let lane = lanes.of(class);
    if length > lane.message_max() {
        counters.count_drop(DropReason::ReceivedOversize);
    } else {
        counters.count_receive(length);
        deliver(Arrival {
            rail: index,
            bytes: lane.message(slot, length),
            relayed: None,
        });
    }
    lane.repost(slot);
}
