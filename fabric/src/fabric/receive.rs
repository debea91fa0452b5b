//! Incoming messages, and what their arrival or absence shows about the rails.

use super::Fabric;
use crate::lane::own;
use crate::lane_names::is_announcement;
use crate::liveness_connection::{Evidence, LivenessObserver};
use crate::message::{Arrival, Class};
use crate::peer::{Path, Peer};
use crate::peer_handle::PeerHandle;
use crate::rail::{READING_ORDER, Rail};
use crate::relay::is_envelope;
use crate::select::Choice;
use crate::stats::DropReason;
use crate::transport::FabricEvent;
use muster_provider::{Done, Link, Speeds};
use muster_rail_health::{
    Finding, LivenessChange, Outcome, PAIRS_MAX, PairReport, infer, local_faults,
};

/// Completions of one lane that one call of `poll` handles at most, so that a flooded lane does not delay the others.
const POLL_BUDGET: usize = 64;
/// The minimum time between two requests for the speeds of interfaces, in microseconds.
const SPEEDS_PAUSE_US: u64 = 1_000_000;
/// The minimum time between two searches for connections that are not marked, in microseconds.
const MARK_PAUSE_US: u64 = 2_000_000;

/// The reason given for a rail that fails although the provider reports no error.
pub(super) const RECEIVE_FAILING: &str = "several peers are silent on it that other rails reach";

impl Fabric {
    pub(super) fn poll_rails(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool {
        self.more = self.poll_links(now_us) | self.poll_observer(now_us);
        for rail in 0..self.rails.len() {
            for class in READING_ORDER {
                self.more |= self.poll_lane(now_us, rail, class, deliver);
            }
        }
        self.more |= self.poll_bulk(now_us, deliver);
        self.resend_late(now_us, deliver);
        self.note_more()
    }

    pub(super) fn poll_beat_lanes(
        &mut self,
        now_us: u64,
        deliver: &mut dyn FnMut(Arrival<'_>),
    ) -> bool {
        self.more = false;
        for rail in 0..self.rails.len() {
            self.more |= self.poll_lane(now_us, rail, Class::Beat, deliver);
            if self.rails[rail]
                .as_ref()
                .is_some_and(|rail| !rail.lanes.news.wakes())
            {
                self.more |= self.poll_lane(now_us, rail, Class::News, deliver);
            }
        }
        self.update_speeds(now_us);
        self.mark_connections(now_us);
        // The timer may have been for one of these.
        let liveness_connections = self.observer.as_ref().and_then(LivenessObserver::timeout);
        if liveness_connections.is_some_and(|due_us| due_us <= now_us)
            || self.queue_check_us <= now_us
        {
            self.more |= self.poll_observer(now_us);
        }
        self.resend_late(now_us, deliver);
        self.probe_stale(now_us);
        if self.has_bulk() {
            self.more |= self.poll_bulk(now_us, deliver);
        }
        self.note_more()
    }

    fn note_more(&mut self) -> bool {
        self.unjudged = match self.more {
            true => self.unjudged.saturating_add(1),
            false => 0,
        };
        self.more
    }

    /// Handles a bounded number of completions of one lane. Returns true if there may be more.
    pub(super) fn poll_lane(
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
        // hlt-005, hlt-010: the device has failed, and reports it before any message fails.
        if let Some(error) = open.lanes.of(class).device_error() {
            self.rail_refused(now_us, rail, None, &error);
        }
        for _ in 0..POLL_BUDGET {
            let Some(open) = &mut self.rails[rail] else {
                return false;
            };
            let Some(done) = open.lanes.of(class).next_done() else {
                return false;
            };
            match done {
                Done::Received { slot, length } => {
                    let lane = open.lanes.of(class);
                    if let Some(envelope) = own(lane, slot, length, is_envelope) {
                        lane.repost(slot);
                        open.counters.count_receive(length);
                        self.handle_envelope(now_us, rail, envelope, deliver);
                    } else if let Some(bytes) = own(lane, slot, length, is_announcement) {
                        lane.repost(slot);
                        open.counters.count_receive(length);
                        self.handle_announcement(now_us, rail, &bytes);
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
                // A failing queue fails again at once, so it is read again at the next poll only.
                Done::QueueFailed(error) => {
                    self.rail_refused(now_us, rail, None, &error);
                    return false;
                }
            }
        }
        true
    }

    /// Reports peers whose liveness connections have broken. Returns true if there may be more.
    fn poll_observer(&mut self, now_us: u64) -> bool {
        if self.queue_check_us <= now_us {
            self.check_own_liveness(now_us);
        }
        let mut gone = Vec::new();
        let observer = self.observer.as_mut();
        let more = observer.is_some_and(|observer| observer.poll(now_us, &mut gone));
        gone.dedup();
        for (peer, evidence) in gone {
            self.push_event(match evidence {
                Evidence::Broken => FabricEvent::PeerGone { peer },
                Evidence::Ended => FabricEvent::PeerEnded { peer },
            });
        }
        more
    }

    /// Processes link changes, so that a rail fails as soon as its link does. Returns true if there may be more.
    fn poll_links(&mut self, now_us: u64) -> bool {
        let Ok(links) = &mut self.links else {
            return false;
        };
        let mut received = Vec::new();
        let more = links.read(&mut received);
        for link in &received {
            for rail in 0..self.rails.len() {
                self.note_link(now_us, rail, link);
            }
        }
        self.speeds_due |= !received.is_empty();
        self.update_speeds(now_us);
        more
    }

    /// AG-16: marks the connections that tcp rails have begun. They cannot be told from those of bulk lanes.
    fn mark_connections(&mut self, now_us: u64) {
        let has_bulk = self.open_rails().any(|(_, rail)| rail.bulk.is_some());
        if now_us < self.mark_at_us || has_bulk {
            return;
        }
        self.mark_at_us = now_us + MARK_PAUSE_US;
        self.open_rails()
            .for_each(|(_, rail)| rail.lanes.news.mark_connections());
    }

    /// Fetches the speeds of the rails, and requests them again if a link has changed since the last request.
    fn update_speeds(&mut self, now_us: u64) {
        let answer = self.speeds.as_mut().and_then(Speeds::take);
        self.note_speeds(&answer.unwrap_or_default());
        if self.speeds_due && now_us >= self.speeds_at_us {
            let rails = self.rails.iter().flatten();
            let names = rails.filter_map(Rail::interface).map(str::to_owned);
            let names = names.collect();
            let requested = |speeds: &mut Speeds| speeds.request(names);
            if self.speeds.as_mut().is_none_or(requested) {
                self.speeds_due = false;
                self.speeds_at_us = now_us + SPEEDS_PAUSE_US;
            }
        }
    }

    /// hlt-015, hlt-020: notes the speeds of interfaces. The speeds of all rails are read whichever link has changed,
    /// since an interface may consist of others.
    fn note_speeds(&mut self, speeds: &[(String, u32)]) {
        let mut events = Vec::new();
        for (rail, open) in self.rails.iter_mut().enumerate() {
            let Some(open) = open else {
                continue;
            };
            let own = speeds
                .iter()
                .find(|(name, _)| Some(&name[..]) == open.interface());
            if let Some((mbits, best_mbits)) = own.and_then(|(_, mbits)| open.note_speed(*mbits)) {
                events.push(FabricEvent::RailSpeed {
                    rail,
                    mbits,
                    best_mbits,
                });
            }
        }
        events.into_iter().for_each(|event| self.push_event(event));
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
        let is_stale = link.up && rail.nid.net.kind.keeps_broken_connections();
        if link.up {
            // Failures on the rail are attributed to its link.
            let paths = self.peers.iter_mut().flat_map(|peer| &mut peer.paths);
            for path in paths.filter(|path| path.rail == index) {
                for health_of in [&mut path.health, &mut path.bulk_health] {
                    // Blocked paths have a wrong address, whatever the link's state.
                    if !health_of.is_blocked() {
                        health_of.tell(now_us, Outcome::LocalUp, &health);
                    }
                }
            }
            self.rails_in_doubt = true;
        }
        self.report_rail_change(index, change, &format!("the link {} is down", link.name));
        if is_stale {
            let reason = "its link was down, and connections stay broken";
            self.push_event(FabricEvent::RailStale {
                rail: index,
                reason,
            });
        }
    }

    pub(super) fn note_heard(&mut self, now_us: u64, handle: PeerHandle, rail: usize) {
        let Some(known) = self.peers.get_mut(handle) else {
            return;
        };
        if let Some(path) = known.paths.iter_mut().find(|path| path.rail == rail) {
            path.counters.receives += 1;
        }
        known.relay.heard();
        if known.rail_liveness.heard(now_us, rail) && !self.to_judge.contains(&handle) {
            self.to_judge.push(handle);
        }
    }

    /// Compares the rails of each peer that was heard with each other.
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
            peer.rail_liveness
                .judge(now_us, |change| changes.push(change));
            if peer.rail_liveness.next_request_at().is_some() {
                self.late.push(handle);
            }
            let is_late = |change: &LivenessChange| matches!(change, LivenessChange::Late { .. });
            changed |= !changes.iter().all(is_late);
            for change in changes {
                self.report_liveness_change(handle, change);
            }
        }
        if changed {
            self.find_receive_failing_rails();
        }
    }

    fn report_liveness_change(&mut self, handle: PeerHandle, change: LivenessChange) {
        let event = match change {
            LivenessChange::Late { rail } => {
                self.doubt_beat_addresses(handle, rail);
                FabricEvent::RailLate { peer: handle, rail }
            }
            LivenessChange::Silent {
                rail,
                silent_us,
                worked,
            } => {
                if let Some(open) = self.rails.get_mut(rail).and_then(Option::as_mut) {
                    open.counters.count_timeout();
                }
                // The silence counts for all NIDs of the peer that the rail is paired with.
                let peer = self.peers.get_mut(handle);
                let paths = peer.into_iter().flat_map(|peer| &mut peer.paths);
                for path in paths.filter(|path| path.rail == rail && !path.spare) {
                    path.counters.count_timeout();
                }
                let on_it = |choice: &Choice, _: &Path| usize::from(choice.rail) == rail;
                self.leave_path(handle, on_it, DropReason::RailBusy);
                if worked {
                    self.note_stale(handle, rail);
                }
                FabricEvent::RailSilent {
                    peer: handle,
                    rail,
                    silent_us,
                    worked,
                }
            }
            LivenessChange::Back { rail } => FabricEvent::RailBack { peer: handle, rail },
            LivenessChange::Indirect => FabricEvent::PeerIndirect { peer: handle },
            LivenessChange::Direct => FabricEvent::PeerDirect { peer: handle },
        };
        self.push_event(event);
    }

    /// Where the faults are that received and sent datagrams show now. If there are more than `PAIRS_MAX` pairs, only
    /// faults of this node's rails are found.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        find(self.reports().collect())
    }

    /// The same for bulk messages: their lane may fail where datagrams pass.
    #[must_use]
    pub fn bulk_findings(&self) -> Vec<Finding> {
        find(self.bulk_reports().collect())
    }

    /// A report on each home path that was tried with datagrams lately.
    fn reports(&self) -> impl Iterator<Item = PairReport> {
        self.reports_of(|_| true)
    }

    fn reports_of(&self, of: impl Fn(&(&Peer, &Path)) -> bool) -> impl Iterator<Item = PairReport> {
        let paths = self.home_paths();
        let paths = paths.filter(move |(_, peer, path)| of(&(peer, path)));
        paths.filter_map(|(handle, peer, path)| {
            let failed = path.health.is_failed();
            let works = !failed && !peer.rail_liveness.is_silent(path.rail);
            let tried = failed || peer.rail_liveness.is_judged(path.rail);
            tried.then(|| report(handle, path, works))
        })
    }

    /// A report on each home path that was tried with bulk messages.
    fn bulk_reports(&self) -> impl Iterator<Item = PairReport> {
        self.home_paths().filter_map(|(handle, _, path)| {
            let failed = path.bulk_health.is_failed();
            let tried = failed || path.bulk_address.is_some();
            tried.then(|| report(handle, path, !failed))
        })
    }

    fn home_paths(&self) -> impl Iterator<Item = (PeerHandle, &Peer, &Path)> {
        self.peers.iter().flat_map(|(handle, peer)| {
            let paths = peer.paths.iter().filter(|path| !path.spare);
            paths.map(move |path| (handle, peer, path))
        })
    }

    /// Finds rails on which several peers are silent that are heard on other rails. Such a rail is likely at fault
    /// itself, and is avoided for peers that are not watched, too.
    pub(super) fn find_receive_failing_rails(&mut self) {
        self.find_bulk_receive_failing_rails();
        let faults = local_faults(self.reports());
        // A pair that never worked is not a failure: the two may have no connection.
        let may_tell = |(peer, path): &(&Peer, &Path)| {
            path.health.is_failed()
                || !peer.rail_liveness.is_silent(path.rail)
                || peer.rail_liveness.has_worked(path.rail)
        };
        let failures = local_faults(self.reports_of(may_tell));
        for index in 0..self.rails.len() {
            let silent = faults.contains(&index);
            let receive_failing = silent && failures.contains(&index);
            let Some(rail) = &mut self.rails[index] else {
                continue;
            };
            let unproved = silent && !receive_failing;
            if std::mem::replace(&mut rail.unproved, unproved) != unproved && unproved {
                self.leave_rail(index);
            }
            let Some(rail) = &mut self.rails[index] else {
                continue;
            };
            if rail.receive_failing == receive_failing {
                continue;
            }
            rail.receive_failing = receive_failing;
            // An error of the provider is reported separately.
            if rail.health.is_failed() {
                continue;
            }
            if receive_failing {
                self.leave_rail(index);
            }
            let reason = RECEIVE_FAILING.to_owned();
            self.push_event(match receive_failing {
                true => FabricEvent::RailFailing {
                    rail: index,
                    reason,
                },
                false => FabricEvent::RailRecovered { rail: index },
            });
        }
    }

    /// The same for bulk messages. Such a rail is used for datagrams only and reported as degraded.
    pub(super) fn find_bulk_receive_failing_rails(&mut self) {
        let faults = local_faults(self.bulk_reports());
        for index in 0..self.rails.len() {
            let is_failing = faults.contains(&index);
            let rail = self.rails[index].as_mut();
            let was_failing =
                rail.map(|rail| std::mem::replace(&mut rail.bulk_receive_failing, is_failing));
            if is_failing && was_failing == Some(false) {
                self.leave_rail(index);
            }
        }
    }
}

fn find(reports: Vec<PairReport>) -> Vec<Finding> {
    if reports.iter().all(|report| report.works) {
        return Vec::new();
    }
    if reports.len() > PAIRS_MAX {
        let rails = local_faults(reports.into_iter()).into_iter();
        return rails.map(|rail| Finding::Local { rail }).collect();
    }
    infer(&reports)
}

fn report(peer: PeerHandle, path: &Path, works: bool) -> PairReport {
    PairReport {
        rail: path.rail,
        net: path.nid.net,
        peer: peer.index,
        remote: path.remote,
        works,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FabricConfig, HealthState, Pace, Route, Transport};
    use rustix::io::Errno;
    use std::time::{Duration, Instant};

    fn open(rails: &str) -> Fabric {
        let library = crate::load().expect("libfabric is installed where tests run");
        let rails = rails.split(',').map(|nid| nid.parse().unwrap()).collect();
        Fabric::open(&FabricConfig::new(library, rails)).unwrap()
    }

    fn events(fabric: &mut Fabric) -> Vec<FabricEvent> {
        std::iter::from_fn(|| fabric.poll_event()).collect()
    }

    /// dbg-055: a rail that leads to two NIDs of a peer is silent: neither was heard.
    #[test]
    fn a_silence_is_counted_for_each_nid_that_the_rail_leads_to() {
        let mut a = open("127.0.0.1:0@udp,127.0.0.2:0@udp");
        let nids = "127.9.0.1:7001@udp,127.9.0.2:7001@udp,127.9.0.3:7001@udp";
        let peer = a.peer(&nids.parse().unwrap()).unwrap();
        let silent = LivenessChange::Silent {
            rail: 0,
            silent_us: 1,
            worked: true,
        };
        a.report_liveness_change(peer, silent);
        let counted = |remote: &str| {
            let paths = a.paths(peer).into_iter();
            let of = paths.filter(|path| path.nid.to_string().starts_with(remote));
            of.map(|path| path.counters.timeouts).sum::<u64>()
        };
        let counts = ["127.9.0.1", "127.9.0.2", "127.9.0.3"].map(counted);
        assert_eq!(counts, [1, 0, 1]);
    }

    /// Under endless load, a rail that is cut is found all the same.
    #[test]
    fn rails_are_judged_although_there_is_always_more_to_read() {
        let mut a = open("127.41.42.1:0@udp0,127.41.42.2:0@udp1");
        let mut b = open("127.41.43.1:0@udp0");
        let b_nids = format!("{},127.41.43.9:7001@udp1", b.local_nids());
        let to_b = a.peer(&b_nids.parse().unwrap()).unwrap();
        let to_a = b.peer(&a.local_nids()).unwrap();
        a.watch(0, to_b, Pace::without_requests(100));
        let mut told = Vec::new();
        for turn in 1..=u64::from(super::super::UNJUDGED_MAX) {
            for _ in 0..=POLL_BUDGET {
                b.send(turn, to_a, Class::News, Route::Next, b"x");
            }
            assert!(a.poll(100 * turn, &mut |_| {}), "turn {turn}");
            a.heard(100 * turn, to_b, 0);
            told.extend(events(&mut a));
        }
        assert!(
            matches!(told[..], [FabricEvent::RailSilent { rail: 1, .. }]),
            "{told:?}"
        );
    }

    #[test]
    fn a_rail_whose_link_comes_up_is_failing_while_peers_are_silent_on_it() {
        let mut a = open("127.0.0.1:0@udp");
        let link = |up| Link {
            name: a.rails[0].as_ref().unwrap().interface().unwrap().to_owned(),
            up,
            point_to_point: false,
            kind: None,
        };
        let (down, up) = (link(false), link(true));
        let reported = |a: &mut Fabric, link: &Link, receive_failing| {
            a.rails[0].as_mut().unwrap().receive_failing = receive_failing;
            a.note_link(1, 0, link);
            a.events.drain(..).collect::<Vec<_>>()
        };
        assert!(matches!(
            reported(&mut a, &down, false)[..],
            [FabricEvent::RailFailing { .. }]
        ));
        let failing = FabricEvent::RailFailing {
            rail: 0,
            reason: RECEIVE_FAILING.to_owned(),
        };
        assert_eq!(reported(&mut a, &up, true), [failing]);
        reported(&mut a, &down, false);
        assert_eq!(
            reported(&mut a, &up, false),
            [FabricEvent::RailRecovered { rail: 0 }]
        );
    }

    /// Link states are requested again when a rail is opened later.
    #[test]
    fn a_rail_that_is_opened_later_gets_the_state_of_its_link() {
        let mut a = open("127.0.0.1:0@udp");
        while a.poll(1, &mut |_| {}) {}
        let link_down = |a: &mut Fabric| {
            let rail = a.rails[0].as_mut().unwrap();
            std::mem::replace(&mut rail.link_down, true)
        };
        assert!(!link_down(&mut a));
        while a.poll(2, &mut |_| {}) {}
        assert!(
            link_down(&mut a),
            "the kernel does not repeat a state on its own"
        );
        a.add_rail(&"127.41.42.3:0@udp".parse().unwrap()).unwrap();
        while a.poll(3, &mut |_| {}) {}
        assert!(!link_down(&mut a), "the loopback interface is up");
    }

    /// hlt-005: a kernel that does not report links is a finding, since faults are then found later.
    #[test]
    fn a_kernel_that_does_not_report_links_is_a_finding() {
        let mut fabric = open("127.41.82.1:0@udp");
        let has_link = |line: &String| line.contains("does not report link changes");
        assert!(!fabric.findings_in_words().iter().any(has_link));
        fabric.links = Err(Errno::PERM);
        let words = fabric.findings_in_words();
        let expected = format!(
            "the kernel does not report link changes ({}): a link that goes down is found by silence only",
            Errno::PERM
        );
        assert_eq!(words, [expected]);
        while fabric.poll(1, &mut |_| {}) {}
        assert!(fabric.may_sleep(), "the fabric runs without link changes");
    }

    /// hlt-015, hlt-020: a device that has become slower than it was is degraded, and used all the same. A device
    /// with unknown speed, as while it is down, is left as it was.
    #[test]
    fn a_rail_whose_interface_has_become_slower_is_degraded() {
        let mut fabric = open("127.41.80.1:0@udp");
        let name = fabric.rails[0].as_ref().unwrap().interface();
        let name = name.unwrap().to_owned();
        let mut seen = Vec::new();
        for mbits in [0, 10_000, 10_000, 1_000, 0, 500, 10_000, 25_000] {
            let speeds = (mbits > 0).then(|| (name.clone(), mbits));
            let others = [("another0".to_owned(), 1)];
            fabric.note_speeds(&others.into_iter().chain(speeds).collect::<Vec<_>>());
            let reported = fabric.poll_event().map(|event| match event {
                FabricEvent::RailSpeed {
                    rail: 0,
                    mbits,
                    best_mbits,
                } => (mbits, best_mbits),
                other => panic!("{other:?}"),
            });
            let state = fabric.rails()[0].state;
            seen.push((mbits, reported, state == HealthState::Degraded));
        }
        let expected = [
            (0, None, false),
            (10_000, None, false),
            (10_000, None, false),
            (1_000, Some((1_000, 10_000)), true),
            (0, None, true),
            (500, Some((500, 10_000)), true),
            (10_000, Some((10_000, 10_000)), false),
            (25_000, None, false),
        ];
        assert_eq!(seen, expected);
    }

    /// hlt-020: any link change is a reason to request the speeds. The answer is fetched with the beats.
    #[test]
    fn a_link_change_requests_the_speeds_of_interfaces() {
        let mut fabric = open("127.41.81.1:0@udp");
        let name = fabric.rails[0].as_ref().unwrap().interface();
        let directory = std::env::temp_dir().join(format!("muster-asked-{}", std::process::id()));
        let of_rail = directory.join(name.unwrap());
        std::fs::create_dir_all(&of_rail).unwrap();
        fabric.speeds = Some(Speeds::start(directory.clone()).unwrap());
        let deadline = Instant::now() + Duration::from_secs(30);
        // The current state is read first; then a link has changed.
        for (now_us, mbits) in [(1, 10_000), (2 * SPEEDS_PAUSE_US, 1_000)] {
            std::fs::write(of_rail.join("speed"), format!("{mbits}\n")).unwrap();
            fabric.links.as_mut().unwrap().request_again();
            while fabric.poll(now_us, &mut |_: Arrival<'_>| {}) {}
            let known = |fabric: &Fabric| fabric.rails[0].as_ref().unwrap().mbits;
            while known(&fabric) != mbits {
                assert!(Instant::now() < deadline);
                fabric.poll_beats(now_us, &mut |_: Arrival<'_>| {});
            }
        }
        std::fs::remove_dir_all(&directory).unwrap();
        let slower = FabricEvent::RailSpeed {
            rail: 0,
            mbits: 1_000,
            best_mbits: 10_000,
        };
        assert_eq!(fabric.poll_event(), Some(slower));
    }
}
