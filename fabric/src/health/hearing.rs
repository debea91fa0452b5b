//! Hearing: on which rails a peer is heard.
//!
//! *While this rail was silent, another kept talking for a whole interval.* That compares arrivals
//! with arrivals and never with the present, so a peer that dies is silent everywhere and accuses no
//! rail, and a host that was stopped for a minute accuses nobody when it goes on.
//!
//! Who is heard through another member talks, too, and so accuses every rail on which it is not heard;
//! but that says nothing for any rail.

/// A change that [`Hearing::judge`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HearingChange {
    Silent {
        rail: usize,
        silent_us: u64,
    },
    Back {
        rail: usize,
    },
    /// It is heard through others only.
    Indirect,
    /// It is heard directly again.
    Direct,
}

/// When one peer was heard on each local rail.
#[derive(Debug)]
pub(crate) struct Hearing {
    interval_us: Option<u64>,
    /// Silence on all rails for so long is worth a doubt.
    doubt_us: u64,
    rails: Vec<RailHearing>,
    /// When it was heard last through another member; 0: never.
    through_us: u64,
    indirect: bool,
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
            doubt_us: 0,
            through_us: 0,
            indirect: false,
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

    /// Starts to judge. Every rail counts as heard now, so that none begins as silent. So many rails
    /// share the interval.
    pub(crate) fn watch(&mut self, now_us: u64, interval_us: u64, rails: usize) {
        self.doubt_us = interval_us / (2 * rails.max(1) as u64);
        if self.interval_us.is_none() {
            self.rails.iter_mut().for_each(|rail| rail.last_us = now_us);
        }
        self.interval_us = Some(interval_us);
    }

    pub(crate) fn unwatch(&mut self) {
        self.interval_us = None;
        self.indirect = false;
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

    /// Notes an authentic message that came through another member. Returns whether there is something
    /// to judge.
    pub(crate) fn heard_through(&mut self, now_us: u64) -> bool {
        self.through_us = self.through_us.max(now_us);
        self.interval_us.is_some()
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
        self.interval_us.is_some() && now_us > self.direct_us() + self.doubt_us
    }

    /// Compares the rails with each other. Only to be called when everything that has arrived was
    /// noted, or a rail would be accused of what still waits in its buffer.
    pub(crate) fn judge(&mut self, mut change: impl FnMut(HearingChange)) {
        let Some(interval_us) = self.interval_us else {
            return;
        };
        let indirect = self.through_us > self.direct_us() + self.doubt_us;
        if indirect != self.indirect {
            self.indirect = indirect;
            change(match indirect {
                true => HearingChange::Indirect,
                false => HearingChange::Direct,
            });
        }
        let latest_us = self.latest_us();
        for (index, rail) in self.rails.iter_mut().enumerate() {
            let silent_us = latest_us - rail.last_us.min(latest_us);
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
        hearing.watch(1_000, 100, 1);
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
        hearing.watch(0, 100, 1);
        hearing.heard(500, 1);
        hearing.heard(540, 0);
        assert_eq!(changes(&mut hearing), []);
    }

    #[test]
    fn a_host_that_was_stopped_accuses_nobody() {
        let mut hearing = Hearing::new(&[true, true]);
        hearing.watch(0, 100, 1);
        // Both rails kept talking; after a minute the host reads one rail's buffer, then the other.
        hearing.heard(60_000_000, 0);
        hearing.heard(60_000_000, 1);
        assert_eq!(changes(&mut hearing), []);
    }

    /// What comes through another member accuses all rails and speaks for none.
    #[test]
    fn who_is_heard_through_another_only_is_silent_on_every_rail() {
        let mut hearing = Hearing::new(&[true, true]);
        hearing.watch(1_000, 100, 2);
        assert!(!hearing.doubts(1_025) && hearing.doubts(1_026));
        hearing.heard_through(1_020);
        assert_eq!(changes(&mut hearing), [], "it may come both ways");
        hearing.heard_through(1_101);
        let silent = |rail| HearingChange::Silent {
            rail,
            silent_us: 101,
        };
        let all = [HearingChange::Indirect, silent(0), silent(1)];
        assert_eq!(changes(&mut hearing), all);
        assert!(hearing.doubts(1_101), "no word of its own");
        hearing.heard(1_110, 1);
        let back = [HearingChange::Direct, HearingChange::Back { rail: 1 }];
        assert_eq!(changes(&mut hearing), back);
        assert!(!hearing.doubts(1_110) && hearing.is_silent(0));
    }

    /// A peer on none of our nets has no rail that could be silent.
    #[test]
    fn a_peer_without_a_rail_is_heard_through_others_and_that_is_said_once() {
        let mut hearing = Hearing::new(&[false]);
        hearing.watch(0, 100, 1);
        hearing.heard_through(60);
        assert_eq!(changes(&mut hearing), [HearingChange::Indirect]);
        hearing.heard_through(600);
        assert_eq!(changes(&mut hearing), []);
    }

    #[test]
    fn a_rail_without_a_path_to_the_peer_is_never_silent() {
        let mut hearing = Hearing::new(&[true, false]);
        hearing.watch(0, 100, 1);
        hearing.heard(500, 0);
        assert_eq!(changes(&mut hearing), []);
    }

    #[test]
    fn a_silent_rail_is_probed_once_an_interval() {
        let mut hearing = Hearing::new(&[true, true]);
        hearing.watch(0, 100, 1);
        hearing.heard(150, 0);
        changes(&mut hearing);
        assert!(hearing.probe_due(160, 1));
        assert!(!hearing.probe_due(259, 1));
        assert!(hearing.probe_due(260, 1));
        hearing.unwatch();
        assert!(!hearing.is_silent(1) && !hearing.probe_due(400, 1));
    }
}
