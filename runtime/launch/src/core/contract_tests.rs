//! What the driver relies on: single steps of a core.

use std::time::Duration;

use super::messages::{Action, Answer, Entering, Input, Looking, RankEnd, RequestId};
use super::node_status::{DataChunk, Ended, NodeStatus, Wanted};
use super::policy::ExitPolicy;
use super::start::ORPHANED;
use super::{Config, Core};
use crate::layout::Layout;

/// The core of the first of two nodes with two ranks each, after the start.
fn started() -> Core {
    let names = vec!["n0".to_owned(), "n1".to_owned()];
    let config = Config {
        own: 0,
        pid: 1,
        signature: "job".into(),
        layout: Layout::new(names, None, Some(2)).unwrap(),
        policy: ExitPolicy::Survivors,
        on_loss: None,
        timeout: Duration::from_secs(60),
        grace: Duration::from_secs(2),
        serve_from: None,
        serve_max: 0,
        signals_all: false,
        verbose: false,
    };
    let mut core = Core::new(config, Duration::ZERO);
    tell(&mut core, Input::Status(1, Box::new(other())));
    let actions = turn(&mut core);
    assert!(matches!(actions[0], Action::StartRanks), "{actions:?}");
    for rank in 0..2 {
        tell(&mut core, Input::RankStarted(rank));
        tell(&mut core, Input::Connected { rank, mpi: None });
    }
    turn(&mut core);
    core
}

/// The status of the other node.
fn other() -> NodeStatus {
    NodeStatus {
        job: "job".into(),
        ready: true,
        ..NodeStatus::default()
    }
}

fn tell(core: &mut Core, input: Input) {
    core.handle(input, Duration::from_secs(1));
}

/// A turn and its actions. Those that are answered by an input end it.
fn turn(core: &mut Core) -> Vec<Action> {
    core.advance(Duration::from_secs(1));
    actions(core)
}

fn actions(core: &mut Core) -> Vec<Action> {
    std::iter::from_fn(|| core.poll_action()).collect()
}

#[test]
fn a_lookup_of_a_rank_that_has_ended_is_forgotten() {
    let mut core = started();
    let looking = Looking {
        request: RequestId(7),
        rank: 0,
        keys: vec!["name".into()],
        wait: true,
        timeout_s: None,
    };
    tell(&mut core, Input::LookUp(looking));
    let answers = |actions: &[Action]| {
        let is_one = |one: &&Action| matches!(one, Action::Answer(..) | Action::Forget(_));
        actions.iter().filter(is_one).count()
    };
    assert_eq!(answers(&turn(&mut core)), 0);
    let end = RankEnd {
        rank: 0,
        status: 0,
        how: 0,
        killed: None,
    };
    tell(&mut core, Input::RankEnded(end));
    let after = turn(&mut core);
    let is_forgotten = |one: &Action| matches!(one, Action::Forget(RequestId(7)));
    assert!(after.iter().any(is_forgotten), "{after:?}");
    assert_eq!(answers(&after), 1);
    assert_eq!(answers(&turn(&mut core)), 0, "once");
}

#[test]
fn data_without_room_does_not_hold_up_other_data() {
    let mut core = started();
    let wanted = (0..2).map(|rank| Wanted { rank, after: 0 }).collect();
    let status = NodeStatus { wanted, ..other() };
    tell(&mut core, Input::Status(1, Box::new(status)));
    let asked = turn(&mut core);
    let is_question = |one: &&Action| matches!(one, Action::AskServer(_));
    assert_eq!(asked.iter().filter(is_question).count(), 2, "{asked:?}");
    for rank in 0..2 {
        let data = vec![7; 10];
        tell(&mut core, Input::Found { rank, data });
    }
    let stored_first = |actions: &[Action]| {
        actions.iter().find_map(|one| match one {
            Action::Put {
                chunk: DataChunk::Rank(rank, _),
                ..
            } => Some(*rank),
            _ => None,
        })
    };
    assert_eq!(stored_first(&turn(&mut core)), Some(0));
    tell(&mut core, Input::Stored(false));
    assert_eq!(stored_first(&actions(&mut core)), Some(1), "in one turn");
    tell(&mut core, Input::Stored(true));
    let published = turn(&mut core).into_iter().find_map(|one| match one {
        Action::Publish(status) => Some(status),
        _ => None,
    });
    let blobs = published.expect("a status").blobs;
    let state = |rank: usize| (blobs[rank].rank, blobs[rank].size, blobs[rank].too_much);
    assert_eq!([state(0), state(1)], [(0, 0, true), (1, 10, false)]);
}

/// The other node never publishes a state of the fence: it may have seen the fence only when that was over, and has
/// forgotten it at once. Contributions that are kept for it would take the room of later ones for ever.
#[test]
fn a_contribution_is_not_kept_for_a_node_whose_ranks_have_ended() {
    let end = |rank| Ended {
        rank,
        status: 0,
        connected: true,
        finalized: true,
    };
    let ranks_left = |left: &[u32]| {
        let mut core = started();
        let ended = (2..4).filter(|rank| !left.contains(rank)).map(end);
        let status = NodeStatus {
            ended: ended.collect(),
            ..other()
        };
        tell(&mut core, Input::Status(1, Box::new(status)));
        let entering = Entering {
            request: RequestId(7),
            tag: "a".into(),
            is_group: false,
            ranks: vec![0, 1, 2],
            data: vec![7; 90_000],
            timeout_s: None,
        };
        tell(&mut core, Input::Enter(entering));
        let put = turn(&mut core);
        let is_put = |one: &Action| matches!(one, Action::Put { .. });
        assert!(put.iter().any(is_put), "{put:?}");
        tell(&mut core, Input::Stored(true));
        let (first, second) = (turn(&mut core), turn(&mut core));
        let is_over = |one: &Action| matches!(one, Action::Answer(_, Answer::Collected { .. }));
        let is_withdrawn = |one: &Action| matches!(one, Action::Clear { .. });
        let all = || first.iter().chain(&second);
        (all().any(is_over), all().any(is_withdrawn))
    };
    assert_eq!(ranks_left(&[]), (true, true));
    assert_eq!(ranks_left(&[3]), (true, true), "it takes no part");
    assert_eq!(ranks_left(&[2]), (false, false));
}

/// A status that could not be published may be why a launcher fails.
#[test]
fn a_launcher_that_fails_publishes_its_status_again() {
    let mut core = started();
    for _ in 0..2 {
        core.fail(1, "no room");
        let published = actions(&mut core).into_iter().find_map(|one| match one {
            Action::Publish(status) => status.abort,
            _ => None,
        });
        assert_eq!(published.map(|abort| abort.why).as_deref(), Some("no room"));
    }
}

#[test]
fn the_end_of_the_parent_is_not_taken_for_a_closed_output_only() {
    let mut core = started();
    tell(&mut core, Input::ChannelCut);
    tell(&mut core, Input::NoReader);
    let printed: Vec<String> = turn(&mut core)
        .into_iter()
        .filter_map(|one| match one {
            Action::Print(text) => Some(text),
            _ => None,
        })
        .collect();
    assert!(printed[0].starts_with(ORPHANED), "{printed:?}");
}
