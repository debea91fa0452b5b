//! Hearing: on which rails a peer is heard.
//!
//! *While this rail was silent, another kept talking for a whole interval.* That compares arrivals
//! with arrivals and never with the present, so a peer that dies is silent everywhere and accuses no
//! rail, and a host that was stopped for a minute accuses nobody when it goes on.
//!
//! Messages go round the rails, so each carries few of them, and two that are lost by accident would look
//! like a fault. So a rail is *late* before it is silent: the peer is asked for a sign by all of them, and
//! a rail is silent when it brought none of several while others did.
//!
//! Who is heard through another member talks, too, and so accuses every rail on which it is not heard;
//! but that says nothing for any rail.

/// A change that [`RailLiveness::judge`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LivenessChange {
    /// The peer is to be asked for a sign by all rails: this one is late.
    Late {
        rail: usize,
    },
    Silent {
        rail: usize,
        silent_us: u64,
        /// Whether the peer was heard on it since there is a path.
        worked: bool,
    },
    Back {
        rail: usize,
    },
    /// It is heard through others only.
    Indirect,
    /// It is heard directly again.
    Direct,
}

/// How long a rail may be silent while another talks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Beyond this it is late.
    late_us: u64,
    /// Beyond this it is silent, if it has missed its questions too.
    silent_us: u64,
    /// Questions that are asked while it is late.
    asks: u32,
    /// Between two of them.
    pause_us: u64,
    /// Silence on all rails for longer is worth a doubt.
    doubt_us: u64,
}

/// Questions that a late rail must miss to be silent.
const ASKS: u32 = 3;
/// Between two tries of a rail that a peer says fails, if the peer is not watched and so has no pace.
const UNWATCHED_PROBE_US: u64 = 100_000;

impl Pace {
    /// For a peer that sends a beat in each interval, over its rails in turn. A rail that brings nothing
    /// any more is silent within two deadlines, where a round of the rails takes no longer than one
    /// (`standard`: up to three rails); where it does, about two beats after the round that it missed.
    #[must_use]
    pub fn of_beats(beat_us: u64, deadline_us: u64, rails: u64) -> Pace {
        let round_us = beat_us * rails;
        let late_us = round_us + beat_us / 4;
        let patient_us = (2 * deadline_us).saturating_sub(2 * beat_us + beat_us / 2);
        let silent_us = patient_us.max(round_us + 3 * beat_us / 4);
        Pace {
            late_us,
            silent_us,
            asks: ASKS,
            pause_us: (beat_us / 4).max((silent_us - late_us) / u64::from(ASKS)),
            doubt_us: 2 * beat_us + beat_us / 2,
        }
    }

    /// Silent after this, without a question.
    #[must_use]
    pub fn unasked(silent_us: u64) -> Pace {
        Pace {
            late_us: silent_us,
            silent_us,
            asks: 0,
            pause_us: 0,
            doubt_us: silent_us / 2,
        }
    }
}

/// When one peer was heard on each local rail.
#[derive(Debug)]
pub(crate) struct RailLiveness {
    pace: Option<Pace>,
    rails: Vec<RailState>,
    /// When it was heard last through another member; 0: never.
    through_us: u64,
    indirect: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct RailState {
    /// Whether any path to the peer uses this rail.
    used: bool,
    last_us: u64,
    /// The peer was heard on it since there is a path.
    worked: bool,
    silent: bool,
    /// Silent, and heard since.
    back: bool,
    probe_us: u64,
    /// Questions since it was heard last, and when the last of them was.
    asked: u32,
    asked_us: u64,
}

impl RailState {
    /// Whether it is to be asked for, or found silent, when the peer was heard last at this time.
    fn is_late(&self, pace: Pace, latest_us: u64) -> bool {
        self.used && !self.silent && latest_us - self.last_us > pace.late_us
    }
}

impl RailLiveness {
    /// Hearing over these local rails: true for those that have a path to the peer.
    pub(crate) fn new(used: &[bool]) -> RailLiveness {
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

    /// Says whether a path to the peer uses this rail. One that comes new counts as heard as late as
    /// any other. True if a silence ends because no path uses the rail any more.
    pub(crate) fn set_used(&mut self, rail: usize, used: bool) -> bool {
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
    pub(crate) fn is_judged(&self, rail: usize) -> bool {
        self.pace.is_some() && self.rails[rail].used
    }

    /// Whether the peer is watched.
    pub(crate) fn is_watched(&self) -> bool {
        self.pace.is_some()
    }

    /// Starts to judge. Every rail counts as heard now, so that none begins as silent.
    pub(crate) fn watch(&mut self, now_us: u64, pace: Pace) {
        if self.pace.is_none() {
            self.rails.iter_mut().for_each(|rail| rail.last_us = now_us);
        }
        self.pace = Some(pace);
    }

    pub(crate) fn unwatch(&mut self) {
        self.pace = None;
        self.indirect = false;
        for rail in &mut self.rails {
            rail.asked = 0;
            rail.silent = false;
            rail.back = false;
        }
    }

    /// Notes an authentic message. Returns whether there is something to judge.
    pub(crate) fn heard(&mut self, now_us: u64, rail: usize) -> bool {
        let Some(rail_liveness) = self.rails.get_mut(rail) else {
            return false;
        };
        rail_liveness.last_us = rail_liveness.last_us.max(now_us);
        rail_liveness.worked = true;
        rail_liveness.back |= rail_liveness.silent;
        rail_liveness.asked = 0;
        self.pace.is_some()
    }

    /// Notes an authentic message that came through another member. Returns whether there is something
    /// to judge.
    pub(crate) fn heard_through(&mut self, now_us: u64) -> bool {
        self.through_us = self.through_us.max(now_us);
        self.pace.is_some()
    }

    /// When it was heard directly last, or the watch began; 0: never.
    pub(crate) fn direct_us(&self) -> u64 {
        let latest_us = self.rails.iter().map(|rail| rail.last_us).max();
        latest_us.unwrap_or(0)
    }

    /// When it was heard last, however.
    pub(crate) fn latest_us(&self) -> u64 {
        self.direct_us().max(self.through_us)
    }

    /// Whether it is watched and nothing came directly for a while: it may not reach us.
    pub(crate) fn doubts(&self, now_us: u64) -> bool {
        let pace = self.pace.as_ref();
        pace.is_some_and(|pace| now_us > self.direct_us() + pace.doubt_us)
    }

    /// Compares the rails with each other. Only to be called when everything that has arrived was
    /// noted, or a rail would be accused of what still waits in its buffer.
    pub(crate) fn judge(&mut self, now_us: u64, mut change: impl FnMut(LivenessChange)) {
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
            // [`RailLiveness::ask_at`] names no time for a rail that is passed over here.
            if rail.back {
                rail.silent = false;
                rail.back = false;
                change(LivenessChange::Back { rail: index });
            } else if !rail.is_late(pace, latest_us) {
                continue;
            } else if rail.asked < pace.asks {
                if rail.asked == 0 || now_us >= rail.asked_us + pace.pause_us {
                    rail.asked += 1;
                    rail.asked_us = now_us;
                    change(LivenessChange::Late { rail: index });
                }
            // Somebody has answered since.
            } else if silent_us > pace.silent_us && (pace.asks == 0 || latest_us > rail.asked_us) {
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

    /// When the next question is to be asked; none if no rail is late, or all were.
    pub(crate) fn ask_at(&self) -> Option<u64> {
        let pace = self.pace?;
        let latest_us = self.latest_us();
        let asking = |rail: &&RailState| {
            rail.is_late(pace, latest_us) && (1..pace.asks).contains(&rail.asked)
        };
        let late = self.rails.iter().filter(asking);
        late.map(|rail| rail.asked_us + pace.pause_us).min()
    }

    pub(crate) fn is_silent(&self, rail: usize) -> bool {
        self.rails[rail].silent
    }

    /// Whether the peer was heard on this rail since there is a path.
    pub(crate) fn has_worked(&self, rail: usize) -> bool {
        self.rails[rail].worked
    }

    /// Whether a rail is to be tried again now that is silent, or that the peer says fails. If so, the next time is
    /// one interval later. The peer finds out by what we send that its rail works again: it has to be tried, however
    /// well we hear the peer on it.
    pub(crate) fn probe_due(&mut self, now_us: u64, rail: usize, told_failing: bool) -> bool {
        let interval_us = self.pace.map_or(UNWATCHED_PROBE_US, |pace| pace.silent_us);
        let rail = &mut self.rails[rail];
        let due = (rail.silent || told_failing) && now_us >= rail.probe_us;
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
    fn a_rail_is_silent_when_another_talked_for_a_whole_interval_meanwhile() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(1_000, Pace::unasked(100));
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
        assert_eq!(changes(&mut rail_liveness), [], "said once");
        rail_liveness.heard(1_190, 1);
        assert_eq!(
            changes(&mut rail_liveness),
            [LivenessChange::Back { rail: 1 }]
        );
    }

    #[test]
    fn a_peer_that_dies_accuses_no_rail() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(0, Pace::unasked(100));
        rail_liveness.heard(500, 1);
        rail_liveness.heard(540, 0);
        assert_eq!(changes(&mut rail_liveness), []);
    }

    #[test]
    fn a_host_that_was_stopped_accuses_nobody() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(0, Pace::unasked(100));
        // Both rails kept talking; after a minute the host reads one rail's buffer, then the other.
        rail_liveness.heard(60_000_000, 0);
        rail_liveness.heard(60_000_000, 1);
        assert_eq!(changes(&mut rail_liveness), []);
    }

    /// What comes through another member accuses all rails and speaks for none.
    #[test]
    fn who_is_heard_through_another_only_is_silent_on_every_rail() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(1_000, Pace::unasked(100));
        assert!(!rail_liveness.doubts(1_050) && rail_liveness.doubts(1_051));
        rail_liveness.heard_through(1_050);
        assert_eq!(changes(&mut rail_liveness), [], "it may come both ways");
        rail_liveness.heard_through(1_101);
        let silent = |rail| LivenessChange::Silent {
            rail,
            silent_us: 101,
            worked: false,
        };
        let all = [LivenessChange::Indirect, silent(0), silent(1)];
        assert_eq!(changes(&mut rail_liveness), all);
        assert!(rail_liveness.doubts(1_101), "no word of its own");
        rail_liveness.heard(1_110, 1);
        let back = [LivenessChange::Direct, LivenessChange::Back { rail: 1 }];
        assert_eq!(changes(&mut rail_liveness), back);
        assert!(!rail_liveness.doubts(1_110) && rail_liveness.is_silent(0));
    }

    /// A peer on none of our nets has no rail that could be silent.
    #[test]
    fn a_peer_without_a_rail_is_heard_through_others_and_that_is_said_once() {
        let mut rail_liveness = RailLiveness::new(&[false]);
        rail_liveness.watch(0, Pace::unasked(100));
        rail_liveness.heard_through(60);
        assert_eq!(changes(&mut rail_liveness), [LivenessChange::Indirect]);
        rail_liveness.heard_through(600);
        assert_eq!(changes(&mut rail_liveness), []);
    }

    #[test]
    fn a_rail_without_a_path_to_the_peer_is_never_silent() {
        let mut rail_liveness = RailLiveness::new(&[true, false]);
        rail_liveness.watch(0, Pace::unasked(100));
        rail_liveness.heard(500, 0);
        assert_eq!(changes(&mut rail_liveness), []);
    }

    #[test]
    fn a_silent_rail_is_probed_once_an_interval() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(0, Pace::unasked(100));
        rail_liveness.heard(150, 0);
        changes(&mut rail_liveness);
        assert!(rail_liveness.probe_due(160, 1, false));
        assert!(!rail_liveness.probe_due(259, 1, false));
        assert!(rail_liveness.probe_due(260, 1, false));
        rail_liveness.unwatch();
        assert!(!rail_liveness.is_silent(1) && !rail_liveness.probe_due(400, 1, false));
    }

    /// A deadline of a rail that is judged no more would stay in the past for ever, and its host awake.
    #[test]
    fn a_rail_that_was_late_and_leads_to_the_peer_no_more_is_not_asked_for() {
        let begin = || {
            let mut rail_liveness = RailLiveness::new(&[true, true]);
            rail_liveness.watch(0, Pace::of_beats(20_000, 60_000, 2));
            rail_liveness.heard(60_000, 0);
            rail_liveness.judge(60_000, |_| {});
            assert!(rail_liveness.ask_at().is_some());
            rail_liveness
        };
        let mut rail_liveness = begin();
        assert!(!rail_liveness.set_used(1, false), "late, not silent");
        assert_eq!(rail_liveness.ask_at(), None);
        rail_liveness.set_used(1, true);
        assert_eq!(rail_liveness.ask_at(), None, "a new path, a new judgement");
        // The same by a pace at which it is not late.
        let mut rail_liveness = begin();
        rail_liveness.watch(60_000, Pace::of_beats(200_000, 1_000_000, 2));
        assert_eq!(rail_liveness.ask_at(), None);
    }

    #[test]
    fn a_silence_ends_with_the_last_path_over_its_rail_and_that_is_said_once() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(0, Pace::unasked(100));
        rail_liveness.heard(150, 0);
        changes(&mut rail_liveness);
        assert!(!rail_liveness.set_used(0, true) && rail_liveness.is_silent(1));
        assert!(rail_liveness.set_used(1, false) && !rail_liveness.is_silent(1));
        assert!(!rail_liveness.set_used(1, false) && !rail_liveness.set_used(1, true));
    }

    /// A peer whose beats go round its rails, until one carries nothing more; we read what has come at our
    /// own ticks and whenever an answer comes. When it was found, after the rail had fallen silent.
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
        // Arrivals by time, each on a rail; a beat waits for the tick after it.
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
                .expect("it is found before");
            let now_us = arrival.min(rail_liveness.ask_at().unwrap_or(u64::MAX));
            let (here, rest) = coming.into_iter().partition(|one| one.0 <= now_us);
            coming = rest;
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
                    other => panic!("nothing else was to be found: {other:?}"),
                }
            }
        }
    }

    proptest! {
        /// tst-010: whenever a rail falls silent, that is found within two heartbeat deadlines.
        #[test]
        fn a_silent_rail_is_found_within_two_deadlines(
            profile in 0..3usize, rails in 2..=3usize, fault in 0..1_000u64, tick in 0..1_000u64,
        ) {
            let (beat_us, deadline_us) = [(10_000, 40_000), (20_000, 60_000), (200_000, 1_000_000)][profile];
            // Somewhere in a round, when all is steady.
            let fault_us = 50 * beat_us + fault * (rails as u64 * beat_us) / 1_000;
            let after_us = found_after(beat_us, deadline_us, rails, fault_us, tick * beat_us / 1_000);
            prop_assert!(after_us <= 2 * deadline_us, "{after_us} us, of {}", 2 * deadline_us);
        }
    }

    #[test]
    fn one_lost_beat_is_asked_after_and_no_rail_is_silent() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(0, Pace::of_beats(20_000, 60_000, 2));
        let mut changes = Vec::new();
        // The beat on rail 1 at 40 ms is lost, the answer to the question is not.
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
        assert_eq!(rail_liveness.ask_at(), None);
    }

    #[test]
    fn a_peer_that_dies_is_asked_a_few_times_and_no_rail_is_accused() {
        let mut rail_liveness = RailLiveness::new(&[true, true]);
        rail_liveness.watch(0, Pace::of_beats(20_000, 60_000, 2));
        rail_liveness.heard(60_000, 0);
        let mut asked = 0;
        for now_us in (60_000..10_000_000).step_by(1_000) {
            rail_liveness.judge(now_us, |change| match change {
                LivenessChange::Late { .. } => asked += 1,
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(asked, ASKS);
    }
}
