//! Tests of selection: tables and properties.

use super::explain::Loss;
use super::*;
use proptest::prelude::*;

fn path(rail: u8, remote: u8) -> PathInput {
    PathInput {
        rail,
        remote,
        credits: 8,
        spare: rail != remote,
        ..PathInput::default()
    }
}

const RAIL: RailInput = RailInput {
    foreign: false,
    distance: 10,
    credits: 64,
    queued_bytes: 0,
};

/// Two rails, two NIDs, all four pairs.
fn square() -> Vec<PathInput> {
    [(0, 0), (1, 1), (0, 1), (1, 0)]
        .map(|(rail, remote)| path(rail, remote))
        .to_vec()
}

fn chosen(request: &Request, rails: &[RailInput], paths: &[PathInput]) -> (u8, u8) {
    let choice = choose(request, rails, paths).expect("a path is chosen");
    (choice.rail, choice.remote)
}

/// Sends `count` messages, each with the next turn, and returns the paths that they used.
fn messages(rails: &[RailInput], paths: &mut [PathInput], count: u64) -> Vec<u8> {
    let mut run = 0;
    (1..=count)
        .map(|turn| {
            let choice = choose(&Request::default(), rails, paths).unwrap().path;
            let index = usize::from(choice);
            run = if paths[index].in_run { run + 1 } else { 1 };
            let more = run < paths[index].ranks.messages;
            paths.iter_mut().for_each(|path| path.in_run = false);
            paths[index].in_run = more;
            paths[index].turn = turn;
            choice
        })
        .collect()
}

/// snd-075: a request without a preferred path may use any.
#[test]
fn home_pairs_get_equal_shares_of_the_messages() {
    let took = messages(&[RAIL; 2], &mut square(), 6);
    assert_eq!(took, [0, 1, 0, 1, 0, 1]);
    let mut three = [path(0, 0), path(1, 1), path(2, 2)];
    three[1].standing = Standing::Avoided;
    assert_eq!(messages(&[RAIL; 3], &mut three, 4), [0, 2, 0, 2]);
}

/// snd-040: the position of the memory matters only for the local side.
#[test]
fn distance_does_not_decide_among_remote_nids() {
    // All four pairs are home pairs here, so that a NID may be used on either rail.
    let mut paths = square();
    paths.iter_mut().for_each(|path| path.spare = false);
    let took = |distances: [u32; 2]| {
        let rails = distances.map(|distance| RailInput { distance, ..RAIL });
        let way = |index: u8| {
            (
                paths[usize::from(index)].rail,
                paths[usize::from(index)].remote,
            )
        };
        let took = messages(&rails, &mut paths.clone(), 8);
        took.into_iter()
            .map(way)
            .unzip::<u8, u8, Vec<u8>, Vec<u8>>()
    };
    let (rails, remotes) = took([10, 21]);
    assert_eq!(rails, [0; 8]);
    let (other_rails, other_remotes) = took([21, 10]);
    assert_eq!(other_rails, [1; 8]);
    // The NID whose own rail is far is used as often as the other, wherever the memory is.
    for remotes in [remotes, other_remotes] {
        assert_eq!(
            remotes.iter().filter(|remote| **remote == 0).count(),
            4,
            "{remotes:?}"
        );
    }
}

/// snd-060 and the order of the steps: each step is overruled by the one before it.
#[test]
fn each_step_decides_when_all_before_it_are_equal() {
    type Change = fn(&mut RailInput, &mut PathInput);
    let worse: [(Step, Change); 12] = [
        (Step::Standing, |_, path| path.standing = Standing::Avoided),
        (Step::NetPolicy, |_, path| path.ranks.net += 1),
        (Step::LocalPolicy, |_, path| path.ranks.local += 1),
        (Step::PairPolicy, |_, path| path.ranks.pair += 1),
        (Step::Home, |_, path| path.spare = true),
        (Step::Health, |_, path| path.shunned_by = 1),
        (Step::Partition, |rail, _| rail.foreign = true),
        (Step::Distance, |rail, _| rail.distance += 1),
        (Step::Run, |_, path| path.in_run = false),
        (Step::Credits, |rail, _| rail.credits -= 1),
        (Step::QueuedBytes, |rail, _| rail.queued_bytes += 1),
        (Step::Turn, |_, path| path.turn += 1),
    ];
    for (index, (step, make_worse)) in worse.iter().enumerate() {
        let mut rails = [RAIL; 2];
        let mut paths = [path(0, 0), path(1, 1)];
        paths.iter_mut().for_each(|path| path.in_run = true);
        make_worse(&mut rails[0], &mut paths[0]);
        // The other path is worse at every later step.
        for (_, later) in &worse[index + 1..] {
            later(&mut rails[1], &mut paths[1]);
        }
        let request = Request::default();
        assert_eq!(chosen(&request, &rails, &paths), (1, 1), "{step:?}");
        let explanation = explain(&request, &rails, &paths);
        let expected = [
            Candidate {
                index: 0,
                lost: Some(Loss::At(*step)),
            },
            Candidate {
                index: 1,
                lost: None,
            },
        ];
        assert_eq!(explanation.rails, expected, "{step:?}");
    }
}

/// snd-045, snd-070: a response takes the path of the request, and another one if that fails.
#[test]
fn a_response_takes_the_path_of_the_request_with_fallback() {
    let mut paths = square();
    let back = |rail, remote| Request {
        back: Some((rail, remote)),
        ..Request::default()
    };
    for (rail, remote) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let request = back(rail, remote);
        assert_eq!(chosen(&request, &[RAIL; 2], &paths), (rail, remote));
    }
    paths
        .iter_mut()
        .filter(|path| path.rail == 1)
        .for_each(|path| {
            path.standing = Standing::Avoided;
        });
    assert_eq!(chosen(&back(1, 1), &[RAIL; 2], &paths), (0, 1));
}

/// snd-050, snd-055: a refusal excludes the NID, then its net; after all paths were tried, none is chosen.
#[test]
fn a_refusal_excludes_the_nid_for_this_message_then_everything_is_tried_once() {
    let mut request = Request::default();
    let paths = square();
    let mut took = Vec::new();
    while let Some(choice) = choose(&request, &[RAIL; 2], &paths) {
        took.push((choice.rail, choice.remote));
        request.tried.note(choice, DropReason::ProviderError);
    }
    assert_eq!(took, [(0, 0), (1, 1), (0, 1), (1, 0)]);
    assert_eq!(request.tried.count(), 4);
    let explanation = explain(&request, &[RAIL; 2], &paths);
    assert!(explanation.choice.is_none());
    assert!(
        explanation
            .rails
            .iter()
            .all(|rail| rail.lost == Some(Loss::Exhausted))
    );
}

/// RS-06: local congestion moves to another rail, a fault on the peer's side to another NID.
#[test]
fn a_busy_rail_moves_to_another_rail_and_a_bad_nid_to_another_nid() {
    // One rail to two NIDs, and another rail to the first of them.
    let paths = [path(0, 0), path(0, 1), path(1, 0)];
    let next_after = |reason| {
        let mut request = Request::default();
        let first = choose(&request, &[RAIL; 2], &paths).unwrap();
        assert_eq!((first.rail, first.remote), (0, 0));
        request.tried.note(first, reason);
        chosen(&request, &[RAIL; 2], &paths)
    };
    assert_eq!(next_after(DropReason::RailBusy), (1, 0));
    assert_eq!(next_after(DropReason::ProviderError), (0, 1));
}

/// RS-06: a working pair that shares an interface with the failed one is tried before a pair that does not
/// work.
#[test]
fn a_working_pair_with_a_tried_interface_is_tried_before_a_failed_pair() {
    let mut paths = square();
    paths
        .iter_mut()
        .filter(|path| path.remote == 1)
        .for_each(|path| {
            path.standing = Standing::Avoided;
        });
    let mut request = Request::default();
    let first = choose(&request, &[RAIL; 2], &paths).unwrap();
    assert_eq!((first.rail, first.remote), (0, 0));
    request.tried.note(first, DropReason::ProviderError);
    assert_eq!(chosen(&request, &[RAIL; 2], &paths), (1, 0));
    let lost = explain(&request, &[RAIL; 2], &paths).rails[0].lost;
    assert_eq!(lost, Some(Loss::At(Step::Standing)));
}

/// snd-020, snd-025: a NUMA range makes the rails within it equal.
#[test]
fn the_nearest_rail_is_taken_and_a_numa_range_widens_the_choice() {
    let rails = [10, 21, 31].map(|distance| RailInput { distance, ..RAIL });
    let took = |numa_range| {
        let mut paths = [path(0, 0), path(1, 1), path(2, 2)];
        let mut rails_taken = [false; 3];
        for turn in 1..10 {
            let request = Request {
                numa_range,
                ..Request::default()
            };
            let choice = choose(&request, &rails, &paths).unwrap();
            rails_taken[usize::from(choice.rail)] = true;
            paths[usize::from(choice.path)].turn = turn;
        }
        rails_taken
    };
    assert_eq!(took(0), [true, false, false]);
    assert_eq!(took(21), [true, true, false]);
    assert_eq!(took(31), [true, true, true]);
}

/// cfg-145: a number of messages use one path before another has its turn.
#[test]
fn a_rule_with_a_count_gets_that_many_messages_in_a_row() {
    let mut paths = [path(0, 0), path(1, 1)];
    paths[0].ranks.messages = 3;
    paths[1].ranks.messages = 2;
    let took = messages(&[RAIL; 2], &mut paths, 12);
    assert_eq!(took, [0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0]);
}

#[test]
fn all_paths_are_tried_when_none_works() {
    let mut paths = square();
    paths
        .iter_mut()
        .for_each(|path| path.standing = Standing::Avoided);
    assert!(choose(&Request::default(), &[RAIL; 2], &paths).is_some());
    assert!(choose(&Request::default(), &[], &[]).is_none());
}

fn any_path(rails: u8, remotes: u8) -> impl Strategy<Value = PathInput> {
    let health = (0..3u8, 0..3u16, any::<bool>());
    let ranks = (0..3u16, 0..3u16, 0..3u16);
    let load = (0..3u32, 0..3u64, 0..4u64, any::<bool>());
    (0..rails, 0..remotes, health, ranks, load).prop_map(|(rail, remote, health, ranks, load)| {
        PathInput {
            rail,
            remote,
            standing: [Standing::Usable, Standing::Avoided, Standing::Blocked]
                [usize::from(health.0)],
            shunned_by: health.1,
            spare: health.2,
            ranks: Ranks {
                net: ranks.0,
                local: ranks.1,
                pair: ranks.2,
                messages: 1,
            },
            in_run: load.3,
            credits: load.0,
            queued_bytes: load.1,
            turn: load.2,
        }
    })
}

fn any_rails() -> impl Strategy<Value = Vec<RailInput>> {
    let rail = (0..3u32, 0..3u32, 0..3u64);
    let rail = rail.prop_map(|(distance, credits, queued_bytes)| RailInput {
        foreign: false,
        distance,
        credits,
        queued_bytes,
    });
    proptest::collection::vec(rail, 3..=3)
}

fn any_paths() -> impl Strategy<Value = Vec<PathInput>> {
    proptest::collection::vec(any_path(3, 3), 1..9)
}

/// A slow reference implementation of the document's order: it filters by each step in turn.
fn by_filters(rails: &[RailInput], paths: &[PathInput], numa_range: u32) -> u8 {
    let mut left: Vec<u8> = (0..3)
        .filter(|rail| paths.iter().any(|path| path.rail == *rail))
        .collect();
    let shared_of = |rail: u8| {
        let own = paths.iter().filter(|path| path.rail == rail);
        own.map(|path| shared(&Request::default(), path))
            .min()
            .unwrap()
    };
    let keep_least = |left: &mut Vec<u8>, value: &dyn Fn(u8) -> u64| {
        let least = left.iter().map(|rail| value(*rail)).min().unwrap();
        left.retain(|rail| value(*rail) == least);
    };
    for step in 0..SHARED.len() {
        keep_least(&mut left, &|rail| u64::from(shared_of(rail)[step]));
    }
    let of = |rail: u8| &rails[usize::from(rail)];
    let own = |rail: u8| paths.iter().filter(move |path| path.rail == rail);
    keep_least(&mut left, &|rail| {
        u64::from(of(rail).distance.max(numa_range))
    });
    keep_least(&mut left, &|rail| {
        u64::from(!own(rail).any(|path| path.in_run))
    });
    keep_least(&mut left, &|rail| u64::from(u32::MAX - of(rail).credits));
    keep_least(&mut left, &|rail| of(rail).queued_bytes);
    keep_least(&mut left, &|rail| {
        own(rail).map(|path| path.turn).max().unwrap()
    });
    left[0]
}

/// Marks these paths as tried, each for one of the two kinds of reason.
fn tried(paths: &[PathInput], tries: &[(prop::sample::Index, bool)]) -> Tried {
    let mut tried = Tried::default();
    for (index, busy) in tries {
        let path = index.index(paths.len());
        let choice = Choice {
            path: path as u8,
            rail: paths[path].rail,
            remote: paths[path].remote,
        };
        let reason = if *busy {
            DropReason::RailBusy
        } else {
            DropReason::ProviderError
        };
        tried.note(choice, reason);
    }
    tried
}

proptest! {
    /// snd-005: the chosen rail is the one that filtering step by step finds.
    #[test]
    fn the_rail_is_the_one_that_filtering_finds(rails in any_rails(), paths in any_paths(), numa_range in 0..4u32) {
        let request = Request { numa_range, ..Request::default() };
        let choice = choose(&request, &rails, &paths).unwrap();
        prop_assert_eq!(choice.rail, by_filters(&rails, &paths, numa_range));
    }

    /// snd-035: of equal NIDs, the one with the fewest queued bytes, then the most credits.
    #[test]
    fn fewest_queued_bytes_win_then_most_credits(
        loads in proptest::collection::vec((0..5u64, 0..5u32, 0..9u64), 1..8),
    ) {
        let of = |(remote, load): (u8, &(u64, u32, u64))| PathInput {
            remote,
            spare: false,
            queued_bytes: load.0,
            credits: load.1,
            turn: load.2,
            ..path(0, 0)
        };
        let paths: Vec<PathInput> = (0..).zip(&loads).map(of).collect();
        let choice = choose(&Request::default(), &[RAIL], &paths).unwrap();
        let taken = &paths[usize::from(choice.path)];
        let least = paths.iter().map(|path| (path.queued_bytes, Reverse(path.credits))).min().unwrap();
        prop_assert_eq!((taken.queued_bytes, Reverse(taken.credits)), least);
    }

    /// snd-030: of equal rails, the one with the most credits.
    #[test]
    fn most_credits_win_among_rails(credits in proptest::collection::vec(0..9u32, 1..8)) {
        let rails: Vec<RailInput> = credits.iter().map(|credits| RailInput { credits: *credits, ..RAIL }).collect();
        let paths: Vec<PathInput> = (0..rails.len() as u8).map(|rail| path(rail, rail)).collect();
        let choice = choose(&Request::default(), &rails, &paths).unwrap();
        prop_assert_eq!(Some(&credits[usize::from(choice.rail)]), credits.iter().max());
    }

    /// cfg-090: a range that is large enough disables distance.
    #[test]
    fn a_large_numa_range_disables_distance(rails in any_rails(), paths in any_paths()) {
        let large = Request { numa_range: 1000, ..Request::default() };
        let flat: Vec<RailInput> = rails.iter().map(|rail| RailInput { distance: 0, ..*rail }).collect();
        let none = choose(&Request::default(), &flat, &paths);
        prop_assert_eq!(choose(&large, &rails, &paths), none);
    }

    /// cfg-150: among working paths, none is chosen against a stronger rule.
    #[test]
    fn no_choice_contradicts_the_policy(rails in any_rails(), mut paths in any_paths()) {
        paths.iter_mut().for_each(|path| path.standing = Standing::Usable);
        let choice = choose(&Request::default(), &rails, &paths).unwrap();
        let ranks = |path: &PathInput| (path.ranks.net, path.ranks.local, path.ranks.pair);
        let strongest = paths.iter().map(ranks).min();
        prop_assert_eq!(Some(ranks(&paths[usize::from(choice.path)])), strongest);
    }

    /// RS-06: this holds whatever was tried for the message before.
    #[test]
    fn no_failed_path_is_chosen_before_a_working_one(
        rails in any_rails(),
        paths in any_paths(),
        tries in proptest::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..9),
    ) {
        let request = Request { tried: tried(&paths, &tries), ..Request::default() };
        let left = |index: &usize| !request.tried.has_path(*index);
        let best = (0..paths.len()).filter(left).map(|index| paths[index].standing).min();
        let choice = choose(&request, &rails, &paths);
        prop_assert_eq!(choice.map(|choice| paths[usize::from(choice.path)].standing), best);
        prop_assert!(choice.is_none_or(|choice| left(&usize::from(choice.path))));
    }

    /// No path is tried twice for one message, and in the end all are tried.
    #[test]
    fn every_pair_is_tried_once(rails in any_rails(), paths in any_paths(), busy in any::<bool>()) {
        let mut request = Request::default();
        let mut took = Vec::new();
        while let Some(choice) = choose(&request, &rails, &paths) {
            took.push(choice.path);
            request.tried.note(choice, if busy { DropReason::RailBusy } else { DropReason::PeerBusy });
        }
        took.sort_unstable();
        prop_assert_eq!(took, (0..paths.len() as u8).collect::<Vec<u8>>());
    }

    /// The explanation names the choice, and one reason for every other candidate.
    #[test]
    fn an_explanation_has_one_winner(rails in any_rails(), paths in any_paths()) {
        let request = Request::default();
        let explanation = explain(&request, &rails, &paths);
        prop_assert_eq!(explanation.choice, choose(&request, &rails, &paths));
        for candidates in [&explanation.rails, &explanation.remotes] {
            let taken = candidates.iter().filter(|one| one.lost.is_none()).count();
            prop_assert_eq!(taken, 1);
        }
    }

    /// This allows the fabric to leave out spare paths: without rules, none is chosen if a home path is usable.
    #[test]
    fn without_rules_a_spare_path_is_chosen_only_if_no_home_path_works(rails in any_rails(), mut paths in any_paths()) {
        paths.iter_mut().for_each(|path| path.ranks = Ranks::default());
        let usable_home = paths.iter().any(|path| !path.spare && path.standing == Standing::Usable);
        let choice = choose(&Request::default(), &rails, &paths).unwrap();
        prop_assert!(!usable_home || !paths[usize::from(choice.path)].spare);
    }
}
