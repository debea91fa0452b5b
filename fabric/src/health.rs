//! Which rails work: by hearing, and by what the provider says when we send.
//!
//! Two small state machines. [`Hearing`] listens for one peer on all rails: *while this rail was
//! silent, another kept talking for a whole interval*. That compares arrivals with arrivals and
//! never with the present, so a peer that dies is silent everywhere and accuses no rail, and a host
//! that was stopped for a minute accuses nobody when it goes on. [`SendHealth`] follows one path or
//! one local rail: errors in a row make it failing, one success makes it well, and between them it
//! is tried again after a pause that doubles.
//!
//! Not here: verdicts about peers. Silence on every rail is the protocol's business.

/// Errors in a row that make a path or a rail failing: one may be a passing lack of buffers.
const ERRORS_MAX: u32 = 3;

/// First pause before what is failing is tried again, microseconds.
const PAUSE_MIN_US: u64 = 20_000;

/// Longest pause, microseconds.
const PAUSE_MAX_US: u64 = 1_000_000;

/// A change that [`Hearing::judge`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HearingChange {
    Silent { rail: usize, silent_us: u64 },
    Back { rail: usize },
}

/// When one peer was heard on each local rail.
#[derive(Debug)]
pub(crate) struct Hearing {
    interval_us: Option<u64>,
    rails: Vec<RailHearing>,
}

#[derive(Debug, Clone, Copy)]
struct RailHearing {
    /// Whether any path to the peer uses this rail.
    used: bool,
    last_us: u64,
    silent: bool,
    /// Silent, and heard since.
    back: bool,
    probe_us: u64,
}

impl Hearing {
    /// Hearing over these local rails: true for those that have a path to the peer.
    pub(crate) fn new(used: &[bool]) -> Hearing {
        let rail = |&used| RailHearing {
            used,
            last_us: 0,
            silent: false,
            back: false,
            probe_us: 0,
        };
        Hearing {
            interval_us: None,
            rails: used.iter().map(rail).collect(),
        }
    }

    /// Starts to judge. Every rail counts as heard now, so that none begins as silent.
    pub(crate) fn watch(&mut self, now_us: u64, interval_us: u64) {
        if self.interval_us.is_none() {
            self.rails.iter_mut().for_each(|rail| rail.last_us = now_us);
        }
        self.interval_us = Some(interval_us);
    }

    pub(crate) fn unwatch(&mut self) {
        self.interval_us = None;
        for rail in &mut self.rails {
            rail.silent = false;
            rail.back = false;
        }
    }

    /// Notes an authentic message. Returns whether there is something to judge.
    pub(crate) fn heard(&mut self, now_us: u64, rail: usize) -> bool {
        let Some(hearing) = self.rails.get_mut(rail) else {
            return false;
        };
        hearing.last_us = hearing.last_us.max(now_us);
        hearing.back |= hearing.silent;
        self.interval_us.is_some()
    }

    /// Compares the rails with each other. Only to be called when everything that has arrived was
    /// noted, or a rail would be accused of what still waits in its buffer.
    pub(crate) fn judge(&mut self, mut change: impl FnMut(HearingChange)) {
        let Some(interval_us) = self.interval_us else {
            return;
        };
        let latest_us = self
            .rails
            .iter()
            .map(|rail| rail.last_us)
            .max()
            .unwrap_or(0);
        for (index, rail) in self.rails.iter_mut().enumerate() {
            let silent_us = latest_us - rail.last_us;
            if rail.back {
                rail.silent = false;
                rail.back = false;
                change(HearingChange::Back { rail: index });
            } else if rail.used && !rail.silent && silent_us > interval_us {
                rail.silent = true;
                rail.probe_us = latest_us;
                change(HearingChange::Silent {
                    rail: index,
                    silent_us,
                });
            }
        }
    }

    pub(crate) fn is_silent(&self, rail: usize) -> bool {
        self.rails[rail].silent
    }

    /// Whether a silent rail is to be tried again now; if so, the next time is one interval later.
    pub(crate) fn probe_due(&mut self, now_us: u64, rail: usize) -> bool {
        let interval_us = self.interval_us.unwrap_or(0);
        let rail = &mut self.rails[rail];
        let due = rail.silent && now_us >= rail.probe_us;
        if due {
            rail.probe_us = now_us + interval_us;
        }
        due
    }
}

/// Whether the provider sends on one path, or on one local rail.
#[derive(Debug, Default)]
pub(crate) struct SendHealth {
    errors_in_a_row: u32,
    probe_us: u64,
    pause_us: u64,
}

impl SendHealth {
    pub(crate) fn is_failing(&self) -> bool {
        self.errors_in_a_row >= ERRORS_MAX
    }

    /// Whether what is failing is to be tried again now.
    pub(crate) fn probe_due(&self, now_us: u64) -> bool {
        self.is_failing() && now_us >= self.probe_us
    }

    /// Notes a refused send; true if that has made it failing.
    pub(crate) fn failed(&mut self, now_us: u64) -> bool {
        let was_failing = self.is_failing();
        self.errors_in_a_row = self.errors_in_a_row.saturating_add(1);
        if !self.is_failing() {
            return false;
        }
        self.pause_us = (self.pause_us * 2).clamp(PAUSE_MIN_US, PAUSE_MAX_US);
        self.probe_us = now_us + self.pause_us;
        !was_failing
    }

    /// Notes a send that was taken; true if it was failing.
    pub(crate) fn succeeded(&mut self) -> bool {
        let was_failing = self.is_failing();
        *self = SendHealth::default();
        was_failing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(hearing: &mut Hearing) -> Vec<HearingChange> {
        let mut changes = Vec::new();
        hearing.judge(|change| changes.push(change));
        changes
    }

    #[test]
    fn a_rail_is_silent_when_another_talked_for_a_whole_interval_meanwhile() {
        let mut hearing = Hearing::new(&[true, true]);
        hearing.watch(1_000, 100);
        for now_us in [1_040, 1_080, 1_100] {
            hearing.heard(now_us, 0);
            assert_eq!(changes(&mut hearing), []);
        }
        hearing.heard(1_140, 0);
        assert_eq!(
            changes(&mut hearing),
            [HearingChange::Silent {
                rail: 1,
                silent_us: 140
            }]
        );
        hearing.heard(1_180, 0);
        assert_eq!(changes(&mut hearing), [], "said once");
        hearing.heard(1_190, 1);
        assert_eq!(changes(&mut hearing), [HearingChange::Back { rail: 1 }]);
    }

    #[test]
    fn a_peer_that_dies_accuses_no_rail() {
        let mut hearing = Hearing::new(&[true, true]);
        hearing.watch(0, 100);
        hearing.heard(500, 1);
        hearing.heard(540, 0);
        assert_eq!(changes(&mut hearing), []);
    }

    #[test]
    fn a_host_that_was_stopped_accuses_nobody() {
        let mut hearing = Hearing::new(&[true, true]);
        hearing.watch(0, 100);
        // Both rails kept talking; after a minute the host reads one rail's buffer, then the other.
        hearing.heard(60_000_000, 0);
        hearing.heard(60_000_000, 1);
        assert_eq!(changes(&mut hearing), []);
    }

    #[test]
    fn a_rail_without_a_path_to_the_peer_is_never_silent() {
        let mut hearing = Hearing::new(&[true, false]);
        hearing.watch(0, 100);
        hearing.heard(500, 0);
        assert_eq!(changes(&mut hearing), []);
    }

    #[test]
    fn a_silent_rail_is_probed_once_an_interval() {
        let mut hearing = Hearing::new(&[true, true]);
        hearing.watch(0, 100);
        hearing.heard(150, 0);
        changes(&mut hearing);
        assert!(hearing.probe_due(160, 1));
        assert!(!hearing.probe_due(259, 1));
        assert!(hearing.probe_due(260, 1));
        hearing.unwatch();
        assert!(!hearing.is_silent(1) && !hearing.probe_due(400, 1));
    }

    #[test]
    fn three_errors_in_a_row_make_a_rail_failing_and_one_success_makes_it_well() {
        let mut health = SendHealth::default();
        assert!(!health.failed(0) && !health.failed(0) && !health.succeeded());
        assert!(!health.failed(0) && !health.failed(0) && health.failed(0));
        assert!(health.is_failing() && !health.failed(0), "said once");
        assert!(health.succeeded() && !health.is_failing());
    }

    #[test]
    fn the_pause_before_a_failing_rail_is_tried_doubles_up_to_a_second() {
        let mut health = SendHealth::default();
        (0..3).for_each(|_| _ = health.failed(0));
        assert!(!health.probe_due(19_999) && health.probe_due(20_000));
        health.failed(20_000);
        assert!(!health.probe_due(59_999) && health.probe_due(60_000));
        (0..20).for_each(|_| _ = health.failed(100_000));
        assert!(!health.probe_due(1_099_999) && health.probe_due(1_100_000));
    }
}
