//! Hearing: on which rails a peer is heard.
//!
//! *While this rail was silent, another kept talking for a whole interval.* That compares arrivals
//! with arrivals and never with the present, so a peer that dies is silent everywhere and accuses no
//! rail, and a host that was stopped for a minute accuses nobody when it goes on.

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

    /// Says whether a path to the peer uses this rail. One that comes new counts as heard as late as
    /// any other.
    pub(crate) fn set_used(&mut self, rail: usize, used: bool) {
        let latest_us = self.rails.iter().map(|one| one.last_us).max();
        let Some(hearing) = self.rails.get_mut(rail) else {
            return;
        };
        if used && !hearing.used {
            hearing.last_us = latest_us.unwrap_or(0);
        }
        if !used {
            hearing.silent = false;
            hearing.back = false;
        }
        hearing.used = used;
    }

    /// Whether the peer is watched and a path to it uses this rail.
    pub(crate) fn is_judged(&self, rail: usize) -> bool {
        self.interval_us.is_some() && self.rails[rail].used
    }

    /// Whether the peer is watched.
    pub(crate) fn is_watched(&self) -> bool {
        self.interval_us.is_some()
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
}
