//! A health: how far an interface, or the way to a remote one, can be relied on; 0 to 1000.
//!
//! Each error lowers it by the *sensitivity*, each success raises it by the *recovery*. At 1000 the
//! thing is ACTIVE, at 0 it is FAILED, between them DEGRADED: still used, unless it is below
//! [`HealthConfig::shun_below`] and a healthier one is there. What is shunned is probed after a pause
//! that doubles with each further error and starts anew only when the health is whole again, so a
//! link that flaps is tried ever less often.

use super::outcome::Outcome;

/// The health of what never failed.
pub const HEALTH_MAX: u16 = 1000;

/// How errors and successes move a health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthConfig {
    /// What an error costs, at most [`HEALTH_MAX`]. 0 switches health off: only what is reported
    /// down then counts as failed. The default makes the third error in a row one too many: one may
    /// be a passing lack of buffers.
    pub sensitivity: u16,
    /// What a success gives back, 1 to [`HEALTH_MAX`].
    pub recovery: u16,
    /// Below this, healthier ones are preferred; at least 1, so that the failed are.
    pub shun_below: u16,
    /// First pause before what is shunned is tried again, microseconds.
    pub pause_min_us: u64,
    /// Longest pause, microseconds.
    pub pause_max_us: u64,
}

impl Default for HealthConfig {
    fn default() -> HealthConfig {
        HealthConfig {
            sensitivity: 334,
            recovery: 334,
            shun_below: 300,
            pause_min_us: 20_000,
            pause_max_us: 1_000_000,
        }
    }
}

impl HealthConfig {
    /// What is wrong with these numbers, if anything, in words that say what to write instead.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        if self.sensitivity > HEALTH_MAX {
            let given = self.sensitivity;
            return Some(format!(
                "health sensitivity {given} is above {HEALTH_MAX}; give 0 to {HEALTH_MAX}"
            ));
        }
        if self.recovery == 0 || self.recovery > HEALTH_MAX {
            let given = self.recovery;
            return Some(format!(
                "health recovery {given} would never, or more than fully, recover; give 1 to {HEALTH_MAX}"
            ));
        }
        if self.shun_below == 0 || self.shun_below > HEALTH_MAX {
            let given = self.shun_below;
            return Some(format!(
                "health limit {given} for avoiding an interface; give 1 to {HEALTH_MAX}"
            ));
        }
        if self.pause_min_us == 0 || self.pause_min_us > self.pause_max_us {
            return Some(format!(
                "probes of failed interfaces pause {} to {} us; the first must be at least 1 and not \
                 above the second",
                self.pause_min_us, self.pause_max_us
            ));
        }
        None
    }
}

/// A health in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HealthState {
    /// Whole.
    Active,
    /// Errors lately, or on the way back.
    Degraded,
    /// Not used while there is anything else; probed.
    Failed,
}

impl HealthState {
    /// The state as a word for tables and logs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            HealthState::Active => "active",
            HealthState::Degraded => "degraded",
            HealthState::Failed => "failed",
        }
    }
}

/// A change that an outcome has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthChange {
    /// It has failed now.
    Failed,
    /// It is no longer failed.
    Recovered,
    /// It was active and is degraded, or the other way round. Told of rails only.
    Shifted,
}

/// One health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Health {
    value: u16,
    /// The address is wrong: no probe helps.
    blocked: bool,
    probe_us: u64,
    pause_us: u64,
}

impl Default for Health {
    fn default() -> Health {
        Health {
            value: HEALTH_MAX,
            blocked: false,
            probe_us: 0,
            pause_us: 0,
        }
    }
}

impl Health {
    /// 0 to [`HEALTH_MAX`].
    pub(crate) fn value(&self) -> u16 {
        self.value
    }

    pub(crate) fn state(&self) -> HealthState {
        match self.value {
            0 => HealthState::Failed,
            HEALTH_MAX => HealthState::Active,
            _ => HealthState::Degraded,
        }
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.value == 0
    }

    /// Whether the address behind it is known to be wrong.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// How far below the limit it is.
    pub(crate) fn shunned_by(&self, config: &HealthConfig) -> u16 {
        config.shun_below.saturating_sub(self.value)
    }

    /// Whether what is shunned is to be tried again now.
    pub(crate) fn probe_due(&self, now_us: u64, config: &HealthConfig) -> bool {
        !self.blocked && self.shunned_by(config) > 0 && now_us >= self.probe_us
    }

    /// When that is; none if it is not shunned, or no probe helps.
    pub(crate) fn probe_at(&self, config: &HealthConfig) -> Option<u64> {
        let shunned = !self.blocked && self.shunned_by(config) > 0;
        shunned.then_some(self.probe_us)
    }

    /// Notes that it was tried again, and the answer is not there yet: the next time is later.
    pub(crate) fn probed(&mut self, now_us: u64, config: &HealthConfig) {
        self.fall(now_us, 0, config);
    }

    /// Notes an outcome.
    pub(crate) fn tell(
        &mut self,
        now_us: u64,
        outcome: Outcome,
        config: &HealthConfig,
    ) -> Option<HealthChange> {
        let was_failed = self.is_failed();
        match outcome {
            Outcome::Success if self.value == HEALTH_MAX => return None,
            Outcome::Success if self.blocked => {}
            Outcome::Success => self.rise(config.recovery),
            Outcome::LocalUp => *self = Health::default(),
            Outcome::LocalDown => self.fall(now_us, HEALTH_MAX, config),
            Outcome::AddressError => {
                self.blocked = true;
                self.fall(now_us, HEALTH_MAX, config);
            }
            Outcome::SendTimeout
            | Outcome::Unreachable
            | Outcome::ConnectError
            | Outcome::Rejected => {
                self.fall(now_us, config.sensitivity, config);
            }
        }
        match (was_failed, self.is_failed()) {
            (false, true) => Some(HealthChange::Failed),
            (true, false) => Some(HealthChange::Recovered),
            _ => None,
        }
    }

    fn rise(&mut self, by: u16) {
        self.value = self.value.saturating_add(by).min(HEALTH_MAX);
        if self.value == HEALTH_MAX {
            *self = Health::default();
        }
    }

    fn fall(&mut self, now_us: u64, by: u16, config: &HealthConfig) {
        self.value = self.value.saturating_sub(by);
        if self.shunned_by(config) > 0 {
            let next_us = self.pause_us.saturating_mul(2);
            self.pause_us = next_us.clamp(config.pause_min_us, config.pause_max_us);
            self.probe_us = now_us.saturating_add(self.pause_us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CONFIG: HealthConfig = HealthConfig {
        sensitivity: 334,
        recovery: 334,
        shun_below: 300,
        pause_min_us: 20_000,
        pause_max_us: 1_000_000,
    };

    fn after(outcomes: &[Outcome]) -> Health {
        let mut health = Health::default();
        for outcome in outcomes {
            health.tell(0, *outcome, &CONFIG);
        }
        health
    }

    /// dbg-030.
    #[test]
    fn three_errors_fail_it_one_success_brings_it_back_and_three_make_it_whole() {
        use Outcome::{Success, Unreachable};
        let states = [
            (&[][..], HealthState::Active),
            (&[Unreachable], HealthState::Degraded),
            (&[Unreachable, Unreachable], HealthState::Degraded),
            (&[Unreachable; 3], HealthState::Failed),
            (
                &[Unreachable, Unreachable, Unreachable, Success],
                HealthState::Degraded,
            ),
            (
                &[
                    Unreachable,
                    Unreachable,
                    Unreachable,
                    Success,
                    Success,
                    Success,
                ],
                HealthState::Active,
            ),
        ];
        for (outcomes, state) in states {
            assert_eq!(after(outcomes).state(), state, "{outcomes:?}");
        }
    }

    #[test]
    fn a_change_is_said_once() {
        let mut health = after(&[Outcome::Rejected; 2]);
        let tell = |health: &mut Health, outcome| health.tell(9, outcome, &CONFIG);
        let failed = Some(HealthChange::Failed);
        assert_eq!(tell(&mut health, Outcome::Rejected), failed);
        assert_eq!(tell(&mut health, Outcome::Rejected), None);
        let recovered = Some(HealthChange::Recovered);
        assert_eq!(tell(&mut health, Outcome::Success), recovered);
        assert_eq!(tell(&mut health, Outcome::Success), None);
    }

    /// RS-02: a report of the provider counts at once, a time-out is a demerit.
    #[test]
    fn down_fails_at_once_up_heals_at_once_and_a_timeout_only_costs() {
        assert_eq!(
            after(&[Outcome::SendTimeout]).state(),
            HealthState::Degraded
        );
        assert_eq!(after(&[Outcome::LocalDown]).state(), HealthState::Failed);
        let up = [Outcome::LocalDown, Outcome::LocalUp];
        assert_eq!(after(&up).state(), HealthState::Active);
    }

    /// RS-03: a wrong address is left alone, everything else is tried again.
    #[test]
    fn a_wrong_address_is_never_probed_and_an_unreachable_one_is() {
        let wrong = after(&[Outcome::AddressError, Outcome::Success]);
        assert!(wrong.is_blocked() && wrong.is_failed());
        assert!(!wrong.probe_due(u64::MAX, &CONFIG));
        for outcome in [
            Outcome::Unreachable,
            Outcome::ConnectError,
            Outcome::Rejected,
        ] {
            assert!(after(&[outcome; 3]).probe_due(20_000, &CONFIG));
        }
    }

    /// RS-07: a failed interface is probed at growing intervals, and its health climbs back.
    #[test]
    fn the_pause_doubles_up_to_a_second_and_starts_anew_only_when_all_is_well() {
        let mut health = after(&[Outcome::Unreachable; 3]);
        let due = |health: &Health, us| health.probe_due(us, &CONFIG);
        assert!(!due(&health, 19_999) && due(&health, 20_000));
        health.tell(20_000, Outcome::Unreachable, &CONFIG);
        assert!(!due(&health, 59_999) && due(&health, 60_000));
        // A success and an error: it flaps, so the pause goes on growing.
        health.tell(60_000, Outcome::Success, &CONFIG);
        health.tell(60_000, Outcome::Unreachable, &CONFIG);
        assert!(!due(&health, 139_999) && due(&health, 140_000));
        (0..20).for_each(|_| _ = health.tell(200_000, Outcome::Unreachable, &CONFIG));
        assert!(!due(&health, 1_199_999) && due(&health, 1_200_000));
        (0..3).for_each(|_| _ = health.tell(0, Outcome::Success, &CONFIG));
        (0..3).for_each(|_| _ = health.tell(0, Outcome::Unreachable, &CONFIG));
        assert!(due(&health, 20_000), "from the start");
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused_by_name() {
        assert_eq!(CONFIG.fault(), None);
        let config = HealthConfig {
            recovery: 0,
            ..CONFIG
        };
        assert!(config.fault().unwrap().contains("recovery 0"));
        let config = HealthConfig {
            sensitivity: 1001,
            ..CONFIG
        };
        assert!(config.fault().unwrap().contains("1001"));
        let config = HealthConfig {
            pause_min_us: 5,
            pause_max_us: 4,
            ..CONFIG
        };
        assert!(config.fault().unwrap().contains("5 to 4 us"));
    }

    fn outcomes() -> impl Strategy<Value = Vec<Outcome>> {
        proptest::collection::vec(proptest::sample::select(&Outcome::ALL[..]), 0..200)
    }

    proptest! {
        #[test]
        fn whatever_happens_the_number_the_state_and_the_pause_stay_in_bounds(
            outcomes in outcomes(), sensitivity in 0..=HEALTH_MAX, recovery in 1..=HEALTH_MAX,
            shun_below in 1..=HEALTH_MAX,
        ) {
            let config = HealthConfig { sensitivity, recovery, shun_below, ..CONFIG };
            let mut health = Health::default();
            for (now_us, outcome) in (0u64..).zip(outcomes) {
                let before = health.clone();
                let change = health.tell(now_us, outcome, &config);
                prop_assert!(health.value() <= HEALTH_MAX);
                prop_assert_eq!(health.is_failed(), health.value() == 0);
                prop_assert!(health.pause_us <= config.pause_max_us);
                let flipped = before.is_failed() != health.is_failed();
                prop_assert_eq!(change.is_some(), flipped);
                if outcome == Outcome::Success {
                    prop_assert!(health.value() >= before.value());
                }
            }
        }

        #[test]
        fn without_sensitivity_errors_cost_nothing(errors in 0..100u64) {
            let config = HealthConfig { sensitivity: 0, ..CONFIG };
            let mut health = Health::default();
            for now_us in 0..errors {
                health.tell(now_us, Outcome::Unreachable, &config);
            }
            prop_assert_eq!(health.state(), HealthState::Active);
        }

        /// RS-07: what is probed with success climbs all the way.
        #[test]
        fn enough_successes_always_heal(outcomes in outcomes(), recovery in 1..=HEALTH_MAX) {
            let config = HealthConfig { recovery, ..CONFIG };
            let mut health = Health::default();
            for outcome in outcomes.into_iter().filter(|one| *one != Outcome::AddressError) {
                health.tell(0, outcome, &config);
            }
            for _ in 0..HEALTH_MAX.div_ceil(recovery) {
                health.tell(1, Outcome::Success, &config);
            }
            prop_assert_eq!(health, Health::default());
        }
    }
}
