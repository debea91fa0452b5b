//! Members compare parameters when they meet: both refuse a member with different parameters and name it. Row
//! AG-05.

use muster_protocol::{Config, EventKind, Mode, Parameter, Profile, Reject};
use muster_sim::World;

use crate::common::{MS, SECOND, booted, sound};

/// AG-05: each parameter separately; the zone goes on as before.
#[test]
fn members_with_different_parameters_refuse_each_other() {
    type Change = fn(&mut Config);
    let changes: [(Parameter, Change); 4] = [
        (Parameter::Heartbeat, |config| config.heartbeat_us += 1_000),
        (Parameter::Deadline, |config| config.deadline_us += 1_000),
        (Parameter::Theta, |config| config.theta = 1),
        (Parameter::Mode, |config| {
            config.mode = Mode::Paper { tau_us: 2_000 };
        }),
    ];
    for (parameter, change) in changes {
        let mut world = booted(1, 6, Profile::Standard);
        let at = world.now();
        let mut config = world.config("other", Profile::Standard);
        change(&mut config);
        let other = world.add(config);
        world.run(3 * SECOND);
        assert_eq!(world.engine(other).live(), 1, "{parameter:?}");
        assert!((0..6).all(|node| world.engine(node).live() == 6));
        let refused = |kind: &EventKind| matches!(kind, EventKind::Refused(one) if one.parameter == parameter);
        let told: Vec<usize> = world
            .reported(at, other, refused)
            .iter()
            .map(|(observer, _)| *observer)
            .collect();
        assert_eq!(told, [0], "{parameter:?}: the seed names the newcomer");
        let told = world.reported(at, 0, refused);
        assert_eq!(told.len(), 1, "{parameter:?}");
        assert_eq!(
            told[0].0, other,
            "{parameter:?}: the newcomer names the seed"
        );
        let events = world
            .records()
            .iter()
            .filter(|record| matches!(record.event.kind, EventKind::Refused(_)));
        assert_eq!(events.count(), 2, "{parameter:?}: each reports it once");
        assert_eq!(world.engine(0).name_of(world.id(other)), Some("other"));
        assert!(world.engine(0).counters().rejected(Reject::Parameters) > 0);
        assert!(world.engine(other).counters().rejected(Reject::Parameters) > 0);
        sound(&world);
    }
}

/// AG-05: a new incarnation with the right parameters is accepted.
#[test]
fn a_refused_member_is_accepted_with_the_right_parameters() {
    let mut world = booted(2, 6, Profile::Standard);
    let mut config = world.config("other", Profile::Standard);
    let right = config.clone();
    config.deadline_us *= 2;
    let other = world.add(config);
    world.run(500 * MS);
    world.crash(other);
    let mut again = right;
    again.incarnation = world.now().0 * 1000;
    again.first_sequence = world.now().0;
    let again = world.add(again);
    assert!(world.run_until(5 * SECOND, World::converged));
    assert_eq!(world.engine(again).live(), 7);
    sound(&world);
}
