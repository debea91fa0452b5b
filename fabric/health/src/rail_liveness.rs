//! Rail liveness: on which rails messages of a peer arrive.
//!
//! A rail is *silent* if nothing arrived on it for a whole interval, up to the last arrival on another rail.
//! This compares arrivals with arrivals and never with the present time. So a peer that fails is silent on all
//! rails and no rail is reported, and a host that was stopped for a minute reports no rail when it continues.
//!
//! A peer's beats alternate between the rails, so each rail carries few of them, and two that are lost by
//! chance would look like a fault. So a rail is *late* before it is silent: the host requests a sign of life
//! from the peer on all rails, and the rail is silent if several requests brought none on it while another rail
//! brought some.
//!
//! A peer that is heard through another member also counts as sending: each rail on which nothing arrives
//! becomes late or silent. Such messages are no sign that any rail works.

/// A change that [`RailLiveness::judge`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LivenessChange {
    /// This rail is late: the host should request a sign of life from the peer on all rails.
    Late {
        /// Index of the rail.
        rail: usize,
    },
    /// This rail is silent, and others are not.
    Silent {
        /// Index of the rail.
        rail: usize,
        /// Time since the peer was heard on it, in microseconds.
        silent_us: u64,
        /// Whether the peer was heard on the rail since a path uses it.
        worked: bool,
    },
    /// The peer is heard on this rail again.
    Back {
        /// Index of the rail.
        rail: usize,
    },
    /// The peer is heard only through other members.
    Indirect,
    /// The peer is heard directly again.
    Direct,
}

/// Limits of a rail's silence while another rail receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// A longer silence makes the rail late.
    late_us: u64,
    /// A longer silence makes the rail silent, if the requests brought nothing either.
    silent_us: u64,
    /// Requests for a sign of life while the rail is late.
    requests: u32,
    /// Time between two requests.
    pause_us: u64,
    /// A longer silence on all rails makes it doubtful that the peer reaches this node.
    doubt_us: u64,
}

/// Requests that a late rail must miss to be silent.
const REQUESTS: u32 = 3;
/// Time between two probes of a rail that the peer reports as failing, if the peer is not watched and so has no
/// pace.
const UNWATCHED_PROBE_US: u64 = 100_000;

impl Pace {
    /// The pace for a peer that sends one beat in each interval, on its rails in turn. A rail that stops
    /// working is found silent within two deadlines if a round over all rails takes no longer than one deadline
    /// (`standard`: up to three rails); otherwise about two beats after the round that it missed.
    #[must_use]
    pub fn of_beats(beat_us: u64, deadline_us: u64, rails: u64) -> Pace {
        let round_us = beat_us * rails;
        let late_us = round_us + beat_us / 4;
        let two_deadlines_us = (2 * deadline_us).saturating_sub(2 * beat_us + beat_us / 2);
        let silent_us = two_deadlines_us.max(round_us + 3 * beat_us / 4);
        Pace {
            late_us,
            silent_us,
            requests: REQUESTS,
            pause_us: (beat_us / 4).max((silent_us - late_us) / u64::from(REQUESTS)),
            doubt_us: 2 * beat_us + beat_us / 2,
        }
    }

    /// The pace that finds a rail silent after this time, without requests.
    #[must_use]
    pub fn without_requests(silent_us: u64) -> Pace {
        Pace {
            late_us: silent_us,
            silent_us,
            requests: 0,
            pause_us: 0,
            doubt_us: silent_us / 2,
        }
    }
}

/// The last arrival from one peer on each local rail.
#[derive(Debug)]
pub struct RailLiveness {
    pace: Option<Pace>,
    rails: Vec<RailState>,
    /// The last arrival through another member; 0: never.
    through_us: u64,
    indirect: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct RailState {
    /// Whether any path to the peer uses this rail.
    used: bool,
    last_us: u64,
    /// The peer was heard on the rail since a path uses it.
    worked: bool,
    silent: bool,
    /// The rail is silent, and the peer was heard on it since.
    back: bool,
    probe_us: u64,
    /// Requests since the last arrival, and the time of the last request.
    requested: u32,
    requested_us: u64,
}

impl RailState {
    /// Whether the rail is late or silent, given the time of the peer's last arrival on any rail.
    fn is_late(&self, pace: Pace, latest_us: u64) -> bool {
        self.used && !self.silent && latest_us - self.last_us > pace.late_us
    }
}

impl RailLiveness {
    /// Creates the state; `used` is true for local rails that have a path to the peer.
    pub fn new(used: &[bool]) -> RailLiveness {
        let rail = |&used| RailState {
            used,
            ..RailState::default()
        };
        RailLiveness {
            pace: None,
            through_us: 0,
            indirect: false,
            rails: used.iter().map(rail).collect(),
        }
    }

    /// Sets whether a path to the peer uses this rail. A newly used rail counts as heard at the last arrival on
    /// any rail. Returns true if a silence ends because no path uses the rail any more.
    pub fn set_used(&mut self, rail: usize, used: bool) -> bool {
        let latest_us = self.rails.iter().map(|one| one.last_us).max();
        let Some(rail_liveness) = self.rails.get_mut(rail) else {
            return false;
        };
        if used == rail_liveness.used {
            return false;
        }
        let was_silent = rail_liveness.silent;
        *rail_liveness = RailState {
            used,
            last_us: match used {
                true => latest_us.unwrap_or(0),
                false => rail_liveness.last_us,
            },
            ..RailState::default()
        };
        was_silent
    }

    /// Whether the peer is watched and a path to it uses this rail.
    pub fn is_judged(&self, rail: usize) -> bool {
        self.pace.is_some() && self.rails[rail].used
    }

    /// Whether the peer is watched.
    pub fn is_watched(&self) -> bool {
        self.pace.is_some()
    }

    /// Starts to watch the peer. Every rail counts as heard now, so that no rail is silent at the start.
    pub fn watch(&mut self, now_us: u64, pace: Pace) {
        if self.pace.is_none() {
            self.rails.iter_mut().for_each(|rail| rail.last_us = now_us);
        }
        self.pace = Some(pace);
    }

    /// Does not watch the peer any more.
    pub fn unwatch(&mut self) {
        self.pace = None;
        self.indirect = false;
        for rail in &mut self.rails {
            rail.requested = 0;
            rail.silent = false;
            rail.back = false;
        }
    }

    /// Records an authenticated message. Returns whether `judge` should be called.
    pub fn heard(&mut self, now_us: u64, rail: usize) -> bool {
        let Some(rail_liveness) = self.rails.get_mut(rail) else {
            return false;
        };
        rail_liveness.last_us = rail_liveness.last_us.max(now_us);
        rail_liveness.worked = true;
        rail_liveness.back |= rail_liveness.silent;
        rail_liveness.requested = 0;
        self.pace.is_some()
    }

    /// Records an authenticated message that arrived through another member. Returns whether `judge` should be
    /// called.
    pub fn heard_through(&mut self, now_us: u64) -> bool {
        self.through_us = self.through_us.max(now_us);
        self.pace.is_some()
    }

    /// The time of the last direct arrival, or of the start of the watch; 0: never.
    pub fn direct_us(&self) -> u64 {
        let latest_us = self.rails.iter().map(|rail| rail.last_us).max();
        latest_us.unwrap_or(0)
    }

    /// The time of the last arrival, direct or through another member.
    pub fn latest_us(&self) -> u64 {
        self.direct_us().max(self.through_us)
    }

    /// Whether the peer is watched and nothing has arrived directly for a while: the peer may not reach this
    /// node.
    pub fn doubts(&self, now_us: u64) -> bool {
        let pace = self.pace.as_ref();
        pace.is_some_and(|pace| now_us > self.direct_us() + pace.doubt_us)
    }

    /// Compares the rails with each other. Call it only after all received messages were recorded; otherwise a
    /// rail would be judged without messages that are still in its buffer.
    pub fn judge(&mut self, now_us: u64, mut change: impl FnMut(LivenessChange)) {
        let Some(pace) = self.pace else {
            return;
        };
        let indirect = self.through_us > self.direct_us() + pace.doubt_us;
        if indirect != self.indirect {
            self.indirect = indirect;
            change(match indirect {
                true => LivenessChange::Indirect,
                false => LivenessChange::Direct,
            });
        }
        let latest_us = self.latest_us();
        for (index, rail) in self.rails.iter_mut().enumerate() {
            let silent_us = latest_us - rail.last_us;
            // A rail that is skipped here must have no time in [`RailLiveness::next_request_at`].
            if rail.back {
                rail.silent = false;
                rail.back = false;
                change(LivenessChange::Back { rail: index });
            } else if !rail.is_late(pace, latest_us) {
                continue;
            } else if rail.requested < pace.requests {
                if rail.requested == 0 || now_us >= rail.requested_us + pace.pause_us {
                    rail.requested += 1;
                    rail.requested_us = now_us;
                    change(LivenessChange::Late { rail: index });
                }
            // Something has arrived since the last request.
            } else if silent_us > pace.silent_us
                && (pace.requests == 0 || latest_us > rail.requested_us)
            {
                rail.silent = true;
                rail.probe_us = latest_us;
                change(LivenessChange::Silent {
                    rail: index,
                    silent_us,
                    worked: rail.worked,
                });
            }
        }
    }

    /// The time of the next request; none if no rail is late, or all requests were made.
    pub fn next_request_at(&self) -> Option<u64> {
        let pace = self.pace?;
        let latest_us = self.latest_us();
        let requesting = |rail: &&RailState| {
            rail.is_late(pace, latest_us) && (1..pace.requests).contains(&rail.requested)
        };
        let late = self.rails.iter().filter(requesting);
        late.map(|rail| rail.requested_us + pace.pause_us).min()
    }

    /// Whether the peer is silent on this rail and heard on others.
    ///
    /// # Panics
    /// The index is not below the maximum of rails.
    #[must_use]
    pub fn is_silent(&self, rail: usize) -> bool {
        self.rails[rail].silent
    }

    /// Whether the peer was heard on this rail since a path uses it.
    pub fn has_worked(&self, rail: usize) -> bool {
        self.rails[rail].worked
    }

    /// Whether to probe a rail that is silent or that the peer reports as failing. If so, the next probe is one
    /// interval later. The peer learns only from our messages that its receiving works again, so the rail must
    /// be probed even if messages from the peer arrive on it.
    pub fn probe_due(&mut self, now_us: u64, rail: usize, reported_failing: bool) -> bool {
        let interval_us = self.pace.map_or(UNWATCHED_PROBE_US, |pace| pace.silent_us);
        let rail = &mut self.rails[rail];
        let due = (rail.silent || reported_failing) && now_us >= rail.probe_us;
        if due {
            rail.probe_us = now_us + interval_us;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn changes(rail_liveness: &mut RailLiveness) -> Vec<LivenessChange> {
        let mut changes = Vec::new();
        rail_liveness.judge(u64::MAX, |change| changes.push(change));
        changes
    }

    #[test]
    fn a_rail_is_silent_when_another_received_for_a_whole_interval() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(1_000, Pace::without_requests(100));
        for now_us in [1_040, 1_080, 1_100] {
            rail_liveness.heard(now_us, 0);
            assert_eq!(changes(&mut rail_liveness), []);
        }
        rail_liveness.heard(1_140, 0);
        assert_eq!(
            changes(&mut rail_liveness),
            [LivenessChange::Silent {
                rail: 1,
                silent_us: 140,
                worked: false,
            }]
        );
        rail_liveness.heard(1_180, 0);
        assert_eq!(changes(&mut rail_liveness), [], "reported once");
        rail_liveness.heard(1_190, 1);
        assert_eq!(
            changes(&mut rail_liveness),
            [LivenessChange::Back { rail: 1 }]
        );
    }

    #[test]
    fn no_rail_is_silent_when_the_peer_fails() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(0, Pace::without_requests(100));
        rail_liveness.heard(500, 1);
        rail_liveness.heard(540, 0);
        assert_eq!(changes(&mut rail_liveness), []);
    }

    #[test]
    fn no_rail_is_silent_after_the_host_was_stopped() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(0, Pace::without_requests(100));
        // Both rails received; after a minute the host reads one rail's buffer, then the other's.
        rail_liveness.heard(60_000_000, 0);
        rail_liveness.heard(60_000_000, 1);
        assert_eq!(changes(&mut rail_liveness), []);
    }

    /// A message through another member makes every rail late, and is no sign of life on any rail.
    #[test]
    fn a_peer_that_is_heard_only_through_another_is_silent_on_every_rail() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(1_000, Pace::without_requests(100));
        assert!(!rail_liveness.doubts(1_050) && rail_liveness.doubts(1_051));
        rail_liveness.heard_through(1_050);
        assert_eq!(
            changes(&mut rail_liveness),
            [],
            "the silence is not longer than the limit"
        );
        rail_liveness.heard_through(1_101);
        let silent = |rail| LivenessChange::Silent {
            rail,
            silent_us: 101,
            worked: false,
        };
        let all = [LivenessChange::Indirect, silent(0), silent(1)];
        assert_eq!(changes(&mut rail_liveness), all);
        assert!(rail_liveness.doubts(1_101), "nothing arrived directly");
        rail_liveness.heard(1_110, 1);
        let back = [LivenessChange::Direct, LivenessChange::Back { rail: 1 }];
        assert_eq!(changes(&mut rail_liveness), back);
        assert!(!rail_liveness.doubts(1_110) && rail_liveness.is_silent(0));
    }

    /// A peer that shares no net with this node has no rail that could be silent.
    #[test]
    fn a_peer_without_a_rail_is_reported_indirect_once() {
        let mut rail_liveness = RailLiveness::new(&[false]);
        rail_liveness.watch(0, Pace::without_requests(100));
        rail_liveness.heard_through(60);
        assert_eq!(changes(&mut rail_liveness), [LivenessChange::Indirect]);
        rail_liveness.heard_through(600);
        assert_eq!(changes(&mut rail_liveness), []);
    }

    #[test]
    fn a_rail_without_a_path_to_the_peer_is_never_silent() {
        let mut rail_liveness = RailLiveness::new(&[true, false]);
        rail_liveness.watch(0, Pace::without_requests(100));
        rail_liveness.heard(500, 0);
        assert_eq!(changes(&mut rail_liveness), []);
    }

    #[test]
    fn a_silent_rail_is_probed_once_an_interval() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(0, Pace::without_requests(100));
        rail_liveness.heard(150, 0);
        changes(&mut rail_liveness);
        assert!(rail_liveness.probe_due(160, 1, false));
        assert!(!rail_liveness.probe_due(259, 1, false));
        assert!(rail_liveness.probe_due(260, 1, false));
        rail_liveness.unwatch();
        assert!(!rail_liveness.is_silent(1) && !rail_liveness.probe_due(400, 1, false));
    }

    /// Otherwise the request time of a rail that is no longer judged would stay in the past and keep the host
    /// awake.
    #[test]
    fn a_late_rail_without_a_path_to_the_peer_has_no_request_time() {
        let begin = || {
            let mut rail_liveness = RailLiveness::new(&[true, true]);
            rail_liveness.watch(0, Pace::of_beats(20_000, 60_000, 2));
            rail_liveness.heard(60_000, 0);
            rail_liveness.judge(60_000, |_| {});
            assert!(rail_liveness.next_request_at().is_some());
            rail_liveness
        };
        let mut rail_liveness = begin();
        assert!(!rail_liveness.set_used(1, false), "late, not silent");
        assert_eq!(rail_liveness.next_request_at(), None);
        rail_liveness.set_used(1, true);
        assert_eq!(
            rail_liveness.next_request_at(),
            None,
            "a new path starts as heard"
        );
        // The same at a pace at which the rail is not late.
        let mut rail_liveness = begin();
        rail_liveness.watch(60_000, Pace::of_beats(200_000, 1_000_000, 2));
        assert_eq!(rail_liveness.next_request_at(), None);
    }

    #[test]
    fn a_silence_ends_once_with_the_last_path_over_its_rail() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(0, Pace::without_requests(100));
        rail_liveness.heard(150, 0);
        changes(&mut rail_liveness);
        assert!(!rail_liveness.set_used(0, true) && rail_liveness.is_silent(1));
        assert!(rail_liveness.set_used(1, false) && !rail_liveness.is_silent(1));
        assert!(!rail_liveness.set_used(1, false) && !rail_liveness.set_used(1, true));
    }

    /// Simulates a peer whose beats alternate between its rails until one rail fails. The host reads arrivals
    /// at its own ticks and whenever an answer arrives. Returns the time from the fault until the rail is found
    /// silent.
    fn found_after(
        beat_us: u64,
        deadline_us: u64,
        rails: usize,
        fault_us: u64,
        tick_us: u64,
    ) -> u64 {
        const ROUND_TRIP_US: u64 = 400;
        let pace = Pace::of_beats(beat_us, deadline_us, rails as u64);
        let mut rail_liveness = RailLiveness::new(&vec![true; rails]);
        rail_liveness.watch(0, pace);
        let bad = 0;
        // Arrivals as time and rail; a beat is read at the tick after it.
        let mut coming: Vec<(u64, usize)> = Vec::new();
        for beat in 1..200u64 {
            let (sent_us, rail) = (beat * beat_us, beat as usize % rails);
            let read_us = (sent_us.saturating_sub(tick_us)).div_ceil(beat_us) * beat_us + tick_us;
            if rail != bad || sent_us < fault_us {
                coming.push((read_us, rail));
            }
        }
        loop {
            let arrival = coming
                .iter()
                .map(|one| one.0)
                .min()
                .expect("the silence is found before the last arrival");
            let now_us = arrival.min(rail_liveness.next_request_at().unwrap_or(u64::MAX));
            let (here, later) = coming.into_iter().partition(|one| one.0 <= now_us);
            coming = later;
            let _: Vec<(u64, usize)> = here
                .into_iter()
                .inspect(|one: &(u64, usize)| _ = rail_liveness.heard(now_us, one.1))
                .collect();
            let mut changes = Vec::new();
            rail_liveness.judge(now_us, |change| changes.push(change));
            for change in changes {
                match change {
                    LivenessChange::Late { .. } => {
                        let answers = (0..rails).filter(|rail| *rail != bad || now_us < fault_us);
                        coming.extend(answers.map(|rail| (now_us + ROUND_TRIP_US, rail)));
                    }
                    LivenessChange::Silent { rail, .. } => {
                        assert_eq!(rail, bad);
                        return now_us - fault_us;
                    }
                    other => panic!("unexpected change: {other:?}"),
                }
            }
        }
    }

    proptest! {
        /// tst-010: a rail that falls silent is found within two heartbeat deadlines, at any time of the fault.
        #[test]
        fn a_silent_rail_is_found_within_two_deadlines(
            profile in 0..3usize, rails in 2..=3usize, fault in 0..1_000u64, tick in 0..1_000u64,
        ) {
            let (beat_us, deadline_us) = [(10_000, 40_000), (20_000, 60_000), (200_000, 1_000_000)][profile];
            // At some time within a round, long after the start.
            let fault_us = 50 * beat_us + fault * (rails as u64 * beat_us) / 1_000;
            let after_us = found_after(beat_us, deadline_us, rails, fault_us, tick * beat_us / 1_000);
            prop_assert!(after_us <= 2 * deadline_us, "found after {after_us} us, the limit is {} us", 2 * deadline_us);
        }
    }

    #[test]
    fn after_one_lost_beat_a_sign_of_life_is_requested_and_no_rail_is_silent() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(0, Pace::of_beats(20_000, 60_000, 2));
        let mut changes = Vec::new();
        // The beat on rail 1 at 40 ms is lost; the answer to the request is not.
        let arrivals = [
            (20_000, 0),
            (60_000, 0),
            (60_400, 0),
            (60_400, 1),
            (80_000, 1),
            (100_000, 0),
        ];
        for (now_us, rail) in arrivals {
            rail_liveness.heard(now_us, rail);
            rail_liveness.judge(now_us, |change| changes.push((now_us, change)));
        }
        assert_eq!(changes, [(60_000, LivenessChange::Late { rail: 1 })]);
        assert_eq!(rail_liveness.next_request_at(), None);
    }

    #[test]
    fn a_failed_peer_gets_a_few_requests_and_no_rail_is_silent() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(0, Pace::of_beats(20_000, 60_000, 2));
        rail_liveness.heard(60_000, 0);
        let mut requested = 0;
        for now_us in (60_000..10_000_000).step_by(1_000) {
            rail_liveness.judge(now_us, |change| match change {
                LivenessChange::Late { .. } => requested += 1,
                other => panic!("unexpected change: {other:?}"),
            });
        }
        assert_eq!(requested, REQUESTS);
    }
}
