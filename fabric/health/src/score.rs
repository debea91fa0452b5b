//! A health is a number from 0 to 1000: how reliable an interface, or the path to a remote one, has been
//! lately.
//!
//! Each error lowers it by the *sensitivity*, each success raises it by the *recovery*. At 1000 the state is
//! ACTIVE, at 0 it is FAILED, and between them it is DEGRADED: still used, unless the health is below
//! [`HealthConfig::shun_below`] and a healthier path exists. A shunned path is probed after a pause that
//! doubles with each further error. The pause returns to its minimum only at full health, so a flapping link is
//! tried ever less often.

use super::outcome::Outcome;

/// The health without any error.
pub const HEALTH_MAX: u16 = 1000;

/// How errors and successes change a health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthConfig {
    /// The decrease for each error, at most [`HEALTH_MAX`]. 0 disables health: then only an interface that is
    /// reported down counts as failed. With the default, the third error in a row fails the path: a single
    /// error may be a passing lack of buffers.
    pub sensitivity: u16,
    /// The increase for each success, 1 to [`HEALTH_MAX`].
    pub recovery: u16,
    /// Paths below this health are used only if there is no healthier one. At least 1, so that this includes
    /// failed ones.
    pub shun_below: u16,
    /// First pause before a shunned path is tried again, microseconds.
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
    /// Returns an error message if a value is out of range; it states the allowed range.
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
                "health recovery {given} is not in 1 to {HEALTH_MAX}; give 1 to {HEALTH_MAX}"
            ));
        }
        if self.shun_below == 0 || self.shun_below > HEALTH_MAX {
            let given = self.shun_below;
            return Some(format!(
                "health limit {given} below which an interface is avoided is not in range; give 1 to {HEALTH_MAX}"
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

/// The state that a health stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HealthState {
    /// Full health.
    Active,
    /// Errors occurred lately, or the path is recovering from a failure.
    Degraded,
    /// Not used while any other path exists; probed.
    Failed,
}

impl HealthState {
    /// The state's name in tables and logs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            HealthState::Active => "active",
            HealthState::Degraded => "degraded",
            HealthState::Failed => "failed",
        }
    }
}

/// A change of state that an outcome caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthChange {
    /// The state is failed now.
    Failed,
    /// The state is no longer failed.
    Recovered,
    /// The state changed between active and degraded. Reported for rails only.
    Shifted,
}

/// The health of an interface or a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    value: u16,
    /// The address is wrong: probes cannot help.
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
    pub fn value(&self) -> u16 {
        self.value
    }

    /// The state that the health stands for.
    pub fn state(&self) -> HealthState {
        match self.value {
            0 => HealthState::Failed,
            HEALTH_MAX => HealthState::Active,
            _ => HealthState::Degraded,
        }
    }

    /// Whether the state is [`HealthState::Failed`].
    pub fn is_failed(&self) -> bool {
        self.value == 0
    }

    /// Whether the address is known to be wrong.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// How far the health is below the limit.
    pub fn shunned_by(&self, config: &HealthConfig) -> u16 {
        config.shun_below.saturating_sub(self.value)
    }

    /// Whether a shunned path should be probed now.
    pub fn probe_due(&self, now_us: u64, config: &HealthConfig) -> bool {
        !self.blocked && self.shunned_by(config) > 0 && now_us >= self.probe_us
    }

    /// The time of the next probe; none if the path is not shunned, or its address is wrong.
    pub fn probe_at(&self, config: &HealthConfig) -> Option<u64> {
        let shunned = !self.blocked && self.shunned_by(config) > 0;
        shunned.then_some(self.probe_us)
    }

    /// Records a probe whose outcome is not known yet: the next probe is due after a longer pause.
    pub fn probed(&mut self, now_us: u64, config: &HealthConfig) {
        self.fall(now_us, 0, config);
    }

    /// Applies an outcome.
    pub fn tell(
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
    fn three_errors_fail_a_path_and_three_successes_restore_it() {
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
    fn a_change_is_reported_once() {
        let mut health = after(&[Outcome::Rejected; 2]);
        let tell = |health: &mut Health, outcome| health.tell(9, outcome, &CONFIG);
        let failed = Some(HealthChange::Failed);
        assert_eq!(tell(&mut health, Outcome::Rejected), failed);
        assert_eq!(tell(&mut health, Outcome::Rejected), None);
        let recovered = Some(HealthChange::Recovered);
        assert_eq!(tell(&mut health, Outcome::Success), recovered);
        assert_eq!(tell(&mut health, Outcome::Success), None);
    }

    /// RS-02: an interface that is reported down fails at once; a time-out only lowers the health.
    #[test]
    fn link_down_fails_link_up_restores_and_a_timeout_degrades() {
        assert_eq!(
            after(&[Outcome::SendTimeout]).state(),
            HealthState::Degraded
        );
        assert_eq!(after(&[Outcome::LocalDown]).state(), HealthState::Failed);
        let up = [Outcome::LocalDown, Outcome::LocalUp];
        assert_eq!(after(&up).state(), HealthState::Active);
    }

    /// RS-03: a wrong address is not probed; after any other error, the path is tried again.
    #[test]
    fn a_wrong_address_is_never_probed_but_an_unreachable_one_is() {
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

    /// RS-07: a failed interface is probed at growing intervals, and its health recovers.
    #[test]
    fn the_pause_doubles_up_to_a_second_and_resets_only_at_full_health() {
        let mut health = after(&[Outcome::Unreachable; 3]);
        let due = |health: &Health, us| health.probe_due(us, &CONFIG);
        assert!(!due(&health, 19_999) && due(&health, 20_000));
        health.tell(20_000, Outcome::Unreachable, &CONFIG);
        assert!(!due(&health, 59_999) && due(&health, 60_000));
        // A success and an error: the link flaps, so the pause keeps growing.
        health.tell(60_000, Outcome::Success, &CONFIG);
        health.tell(60_000, Outcome::Unreachable, &CONFIG);
        assert!(!due(&health, 139_999) && due(&health, 140_000));
        (0..20).for_each(|_| _ = health.tell(200_000, Outcome::Unreachable, &CONFIG));
        assert!(!due(&health, 1_199_999) && due(&health, 1_200_000));
        (0..3).for_each(|_| _ = health.tell(0, Outcome::Success, &CONFIG));
        (0..3).for_each(|_| _ = health.tell(0, Outcome::Unreachable, &CONFIG));
        assert!(due(&health, 20_000), "the pause is at its minimum again");
    }

    #[test]
    fn values_out_of_range_are_refused_and_named() {
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
        fn value_state_and_pause_stay_in_bounds(
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
        fn without_sensitivity_errors_change_nothing(errors in 0..100u64) {
            let config = HealthConfig { sensitivity: 0, ..CONFIG };
            let mut health = Health::default();
            for now_us in 0..errors {
                health.tell(now_us, Outcome::Unreachable, &config);
            }
            prop_assert_eq!(health.state(), HealthState::Active);
        }

        /// RS-07: enough successful probes restore full health.
        #[test]
        fn enough_successes_restore_full_health(outcomes in outcomes(), recovery in 1..=HEALTH_MAX) {
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
