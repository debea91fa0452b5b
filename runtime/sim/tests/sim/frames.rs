//! Frames that must not be believed, and members with the same name.

use muster_protocol::{Config, EventKind, Input, Instant, Overlay, Phase, Profile, Reject, Target};
use muster_sim::World;

use crate::common::{MS, SECOND, booted, sound};

fn engine(name: &str, key: Option<[u8; 32]>) -> Overlay {
    let mut config = Config::new(name, name.as_bytes(), Profile::Standard);
    config.key = key;
    config.seeds = vec![b"elsewhere".to_vec()];
    Overlay::new(config).unwrap()
}

fn frames(engine: &mut Overlay, now: Instant) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; 2000];
    let mut frames = Vec::new();
    while let Some(transmit) = engine.poll_transmit(now, &mut buffer) {
        frames.push(buffer[..transmit.size].to_vec());
    }
    frames
}

/// Delivers what this engine sends, but collects the frames for the index in `keep`. The seed address is the
/// first engine's.
fn deliver(
    engines: &mut [Overlay],
    sender: usize,
    now: Instant,
    mut keep: Option<(usize, &mut Vec<Vec<u8>>)>,
) {
    let mut buffer = vec![0; 2000];
    while let Some(transmit) = engines[sender].poll_transmit(now, &mut buffer) {
        let to = match transmit.target {
            Target::Member(id) => engines.iter().position(|engine| engine.id() == id),
            Target::Seed(_) => Some(0),
            target @ Target::Address(_) => {
                let address = engines[sender].address_of(target).map(<[u8]>::to_vec);
                let own = |engine: &Overlay| {
                    engine
                        .address_of(Target::Member(engine.id()))
                        .map(<[u8]>::to_vec)
                };
                engines.iter().position(|engine| own(engine) == address)
            }
        };
        let bytes = &buffer[..transmit.size];
        match (&mut keep, to) {
            (Some((kept, frames)), Some(to)) if to == *kept => frames.push(bytes.to_vec()),
            // A refusal does not matter here.
            (_, Some(to)) => drop(engines[to].handle(now, Input::Datagram { bytes })),
            (_, None) => {}
        }
    }
}

/// Beats may be read late and several at a time: a member is not silent while its own beats may still be
/// unread.
#[test]
fn a_datagram_suspects_no_member_whose_beats_may_be_unread() {
    let key = Some([1; 32]);
    let mut engines = ["a", "b", "c"].map(|name| engine(name, key));
    let mut now = Instant(SECOND);
    let mut step = |engines: &mut [Overlay], lane: &mut Option<Vec<Vec<u8>>>| {
        for index in 0..engines.len() {
            engines[index].handle(now, Input::Wake).unwrap();
            deliver(engines, index, now, lane.as_mut().map(|lane| (0, lane)));
        }
        now = now.after(MS);
        now
    };
    while step(&mut engines, &mut None) < Instant(3 * SECOND) {}
    assert_eq!(engines[0].observing().count(), 2);
    // No frame reaches the first engine, until it would probe a silent member if it were woken.
    let mut lane = Some(Vec::new());
    let probes = engines[0].counters().probes_sent;
    loop {
        let now = step(&mut engines, &mut lane);
        let mut woken = engines[0].clone();
        woken.handle(now, Input::Wake).unwrap();
        if woken.counters().probes_sent > probes {
            break;
        }
    }
    let mut lane = lane.unwrap();
    // The order of the unread beats does not matter.
    for _ in 0..2 {
        lane.reverse();
        let mut woken = engines[0].clone();
        for bytes in &lane {
            woken.handle(now, Input::Datagram { bytes }).unwrap();
        }
        woken.handle(now, Input::Wake).unwrap();
        assert_eq!(woken.counters().probes_sent, probes);
    }
}

/// Section 8 of the design: without the key nothing is sent and nothing is believed.
#[test]
fn without_a_key_nothing_is_sent() {
    let mut engine = engine("a", None);
    assert_eq!(engine.handle(Instant(5), Input::Wake), Ok(()));
    assert!(frames(&mut engine, Instant(5)).is_empty());
    let datagram = Input::Datagram { bytes: &[0; 100] };
    assert_eq!(engine.handle(Instant(6), datagram), Err(Reject::NoKey));
    assert_eq!(engine.counters().rejected(Reject::NoKey), 1);
    assert_eq!(engine.handle(Instant(7), Input::Key([1; 32])), Ok(()));
    assert_eq!(
        frames(&mut engine, Instant(7)).len(),
        1,
        "it requests contact at its seed"
    );
}

/// A frame of another job, a damaged one, a copy, and an authentic one.
#[test]
fn only_fresh_frames_of_this_job_are_believed() {
    let (mut left, mut right) = (engine("a", Some([1; 32])), engine("b", Some([1; 32])));
    let mut outsider = engine("c", Some([2; 32]));
    for member in [&mut left, &mut right, &mut outsider] {
        member.handle(Instant(5), Input::Wake).unwrap();
    }
    let request = frames(&mut left, Instant(5)).remove(0);
    let foreign = frames(&mut outsider, Instant(5)).remove(0);
    let mut give = |bytes: &[u8]| right.handle(Instant(6), Input::Datagram { bytes });
    assert_eq!(give(&foreign), Err(Reject::Forged));
    let mut damaged = request.clone();
    damaged[40] ^= 1;
    assert_eq!(give(&damaged), Err(Reject::Forged));
    assert_eq!(give(&request[..20]), Err(Reject::Truncated));
    assert_eq!(
        give(b"GET / HTTP/1.1, and many more bytes than a frame needs to be one"),
        Err(Reject::Foreign)
    );
    // A contact request is for any receiver, so it may be a recording: it is answered each time, and has no
    // other effect.
    assert_eq!(give(&request), Err(Reject::Unproven));
    assert_eq!(give(&request), Err(Reject::Unproven));
    assert_eq!(right.live(), 1);
    let answer = frames(&mut right, Instant(6)).pop().unwrap();
    assert_eq!(
        left.handle(Instant(7), Input::Datagram { bytes: &answer }),
        Ok(())
    );
    let own = frames(&mut left, Instant(7)).remove(0);
    let mut give = |bytes: &[u8]| right.handle(Instant(8), Input::Datagram { bytes });
    assert_eq!(give(&own), Ok(()));
    assert_eq!(give(&own), Err(Reject::Duplicate));
    assert_eq!(right.live(), 2);
    let counters = right.counters();
    assert_eq!(
        (
            counters.rejected(Reject::Forged),
            counters.rejected(Reject::Duplicate)
        ),
        (2, 1)
    );
    let a = right
        .members()
        .find(|member| member.name() == "a")
        .unwrap()
        .id();
    assert_eq!(right.address_of(Target::Member(a)), Some(&b"a"[..]));
    assert_eq!(muster_protocol::frame::sender(&request), Some(a));
}

/// Section 8 of the design: recorded frames that are sent again are not believed, not even in another
/// incarnation of the receiver's peer.
#[test]
fn recorded_frames_are_not_believed_again() {
    let (mut left, mut right) = (engine("a", Some([1; 32])), engine("b", Some([1; 32])));
    left.handle(Instant(5), Input::Wake).unwrap();
    right.handle(Instant(5), Input::Wake).unwrap();
    let (request, own) = meet(&mut left, &mut right, Instant(6));
    // Another incarnation of `a` begins, and the old recording is replayed.
    let mut config = Config::new("a", b"a", Profile::Standard);
    config.key = Some([1; 32]);
    config.seeds = vec![b"elsewhere".to_vec()];
    config.incarnation = 2;
    let mut reborn = Overlay::new(config).unwrap();
    reborn.handle(Instant(7), Input::Wake).unwrap();
    meet(&mut reborn, &mut right, Instant(8));
    let replayed = right.handle(Instant(9), Input::Datagram { bytes: &own });
    assert_eq!(replayed, Err(Reject::OldIncarnation));
    let replayed = right.handle(Instant(9), Input::Datagram { bytes: &request });
    assert_eq!(replayed, Err(Reject::Unproven));
    // Nor does another incarnation of the receiver, which the sender did not know, believe them.
    let mut config = Config::new("b", b"b", Profile::Standard);
    config.key = Some([1; 32]);
    config.incarnation = 2;
    let mut later = Overlay::new(config).unwrap();
    later.handle(Instant(10), Input::Wake).unwrap();
    let replayed = later.handle(Instant(10), Input::Datagram { bytes: &own });
    assert_eq!(replayed, Err(Reject::Misdirected));
    let replayed = later.handle(Instant(10), Input::Datagram { bytes: &request });
    assert_eq!(replayed, Err(Reject::Unproven));
    assert_eq!((right.live(), later.live()), (2, 1));
}

/// The newcomer requests contact, is answered, and introduces itself: its request and its introduction.
fn meet(newcomer: &mut Overlay, member: &mut Overlay, now: Instant) -> (Vec<u8>, Vec<u8>) {
    let request = frames(newcomer, now).remove(0);
    let taken = member.handle(now, Input::Datagram { bytes: &request });
    assert_eq!(taken, Err(Reject::Unproven));
    // The answer may be among frames for an earlier incarnation.
    for bytes in frames(member, now) {
        let _ = newcomer.handle(now, Input::Datagram { bytes: &bytes });
    }
    let mut sent = frames(newcomer, now).into_iter();
    let is_taken = |bytes: &Vec<u8>| member.handle(now, Input::Datagram { bytes }).is_ok();
    let own = sent.find(is_taken).expect("it introduces itself");
    (request, own)
}

/// Noise, copies and damage change nothing.
#[test]
fn garbage_and_copies_change_nothing() {
    let mut world = booted(1, 6, Profile::Standard);
    world.network.duplicate_permille = 300;
    world.network.corrupt_permille = 50;
    for round in 0..200_u8 {
        world.run(10 * MS);
        let garbage: Vec<u8> = (0..round).map(|byte| byte.wrapping_mul(round)).collect();
        assert!(world.inject(0, &garbage).is_err());
    }
    assert!(world.run_until(SECOND, World::converged));
    assert!(world.engine(0).counters().rejected(Reject::Forged) > 0);
    assert!(world.engine(0).counters().rejected(Reject::Duplicate) > 0);
    sound(&world);
}

/// ZM-01: of two members with one name, the first one keeps it without harm. Both are notified.
#[test]
fn the_earlier_of_two_members_with_one_name_keeps_it() {
    for (seed, loss_permille) in [(2, 0), (5, 100), (6, 100)] {
        let mut world = booted(seed, 6, Profile::Standard);
        world.network.loss_permille = loss_permille;
        let at = world.now();
        let config = world.config("node3", Profile::Standard);
        let duplicate = world.add(config);
        let stopped = |world: &World| world.engine(duplicate).phase() == Phase::Stopped;
        assert!(world.run_until(2 * SECOND, stopped), "seed={seed}");
        world.run(SECOND);
        assert!(world.run_until(2 * SECOND, World::converged));
        assert_eq!(world.engine(3).phase(), Phase::Running);
        let told = |kind| -> Vec<usize> {
            let told = world.reported(at, 3, |told| *told == kind);
            told.into_iter().map(|(observer, _)| observer).collect()
        };
        assert_eq!(told(EventKind::NameTaken), [duplicate]);
        assert_eq!(told(EventKind::NameClaimed), [3]);
        assert!(told(EventKind::NodeFailed).is_empty() && told(EventKind::NodeUp).is_empty());
        sound(&world);
    }
}

/// ZM-01: a node that really died comes back at another address: its name is free as soon as its failure is
/// detected.
#[test]
fn a_node_comes_back_at_another_address() {
    let mut slowest_us = 0;
    for seed in 0..20 {
        let mut world = booted(seed, 6, Profile::Standard);
        let at = world.now();
        world.crash(3);
        let config = world.config("node3", Profile::Standard);
        let moved = world.add(config);
        assert!(world.run_until(2 * SECOND, World::converged), "seed={seed}");
        slowest_us = slowest_us.max(world.now().since(at));
        assert_eq!(world.engine(moved).live(), 6);
        assert!(
            world
                .reported(at, 3, |kind| *kind == EventKind::NameTaken)
                .is_empty()
        );
        sound(&world);
    }
    println!(
        "simulated: back at another address after at most {} ms",
        slowest_us / MS
    );
}

/// ZM-01: of two members that start together, neither was there first: both stop and are notified of the
/// reason.
#[test]
fn two_members_with_one_name_that_start_together_both_stop() {
    let mut world = World::new(7);
    for name in ["a", "b", "same", "c", "same", "d"] {
        let config = world.config(name, Profile::Standard);
        world.add(config);
        // No two nodes start in the same microsecond: that would be one incarnation.
        world.run(MS);
    }
    let stopped = |world: &World, node: usize| world.engine(node).phase() == Phase::Stopped;
    assert!(world.run_until(5 * SECOND, |world| stopped(world, 2) && stopped(world, 4)));
    let told = world.reported(Instant(0), 2, |kind| *kind == EventKind::NameTaken);
    assert_eq!(told.len(), 2);
    assert!(world.run_until(5 * SECOND, World::converged));
    assert_eq!(world.running(), [0, 1, 3, 5]);
}

/// ZM-01: the later member was accepted on the other side of a split. When the sides meet again, the earlier
/// one has its name back.
#[test]
fn a_name_that_was_given_away_in_a_split_comes_back() {
    for seed in 0..10 {
        let mut world = booted(seed, 8, Profile::Standard);
        world.split(&[0, 1], &[2, 3, 4, 5, 6, 7]);
        world.run(500 * MS);
        let config = world.config("node3", Profile::Standard);
        let duplicate = world.add(config);
        (2..8).for_each(|node| {
            world.network.cut(node, duplicate);
            world.network.cut(duplicate, node);
        });
        world.run(500 * MS);
        assert_eq!(world.engine(0).live(), 3, "the later one was accepted");
        world.network.heal();
        let stopped = |world: &World| world.engine(duplicate).phase() == Phase::Stopped;
        assert!(world.run_until(10 * SECOND, stopped), "seed={seed}");
        assert!(
            world.run_until(10 * SECOND, World::converged),
            "seed={seed}"
        );
        assert_eq!(world.running(), (0..8).collect::<Vec<_>>());
        assert_eq!(world.engine(2).live(), 8);
    }
}

/// Two members with one name where the newcomer's incarnation is lower (its clock is wrong).
#[test]
fn a_duplicate_with_a_lower_incarnation_stops_itself() {
    let mut world = booted(3, 6, Profile::Standard);
    let mut config = world.config("node3", Profile::Standard);
    config.incarnation = 5;
    let duplicate = world.add(config);
    assert!(
        world.run_until(2 * SECOND, |world| world.engine(duplicate).phase()
            == Phase::Stopped)
    );
    world.run(200 * MS);
    assert_eq!(world.engine(3).phase(), Phase::Running);
    assert!(world.converged());
    sound(&world);
}

/// ZM-01: a node whose clock was set back at a restart comes back above its earlier incarnation.
#[test]
fn a_clock_that_was_set_back_does_not_lock_a_node_out() {
    let mut world = booted(4, 6, Profile::Standard);
    let mut config = world.config("node6", Profile::Standard);
    let address = config.address.clone();
    let late = world.add(config.clone());
    assert!(world.run_until(SECOND, World::converged));
    world.crash(late);
    assert!(world.run_until(SECOND, World::converged));
    config.incarnation = 5;
    config.address = address;
    world.checker = Default::default();
    let reborn = world.add(config);
    assert!(world.run_until(5 * SECOND, World::converged));
    assert!(world.engine(reborn).version().incarnation > 5);
}
