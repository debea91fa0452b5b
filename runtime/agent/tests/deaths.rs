//! Every way in which a rank can end, stop or seem to, and what the watch makes of it.

mod support;

use muster_agent::watch::{FailedBy, Finding, HungBy, WaitMode};
use muster_shm::{RankState, TableLimits};
use muster_sys::process::{open_pidfd, send_signal};
use muster_sys::{futex, poll};
use std::os::fd::AsFd;
use support::agent::{Agent, Seen, limits};
use support::rank::{Rank, role as act};
use support::{DEADLINE, raw};
use tempfile::tempdir;

#[test]
fn role() {
    act();
}

fn is_failed(finding: Finding) -> bool {
    matches!(finding, Finding::Failed { .. })
}

#[test]
fn a_killed_rank_has_failed() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let rank = Rank::start(base.path(), 3);
    let slot = agent.await_armed();
    assert_eq!(agent.view.rank_state(3), RankState::Alive);
    rank.signal(libc::SIGKILL);
    let finding = agent.await_finding(slot);
    assert!(
        matches!(
            finding,
            Finding::Failed {
                signal: libc::SIGKILL,
                ..
            }
        ),
        "{finding:?}"
    );
    assert_eq!(agent.view.rank_state(3), RankState::Failed);
}

/// The word is released before the address space is torn down: with much memory the pidfd comes
/// long after, so the futex must be the one that told, whatever the load of this machine.
#[test]
fn a_large_rank_is_known_dead_while_it_is_still_being_torn_down() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start(base.path(), 0);
    let slot = agent.await_armed();
    rank.tell("grow 2048");
    rank.hear("grown");
    let pidfd = open_pidfd(rank.pid()).unwrap();
    rank.signal(libc::SIGKILL);
    let finding = agent.await_finding(slot);
    assert!(
        matches!(
            finding,
            Finding::Failed {
                by: FailedBy::Futex,
                ..
            }
        ),
        "{finding:?}"
    );
    assert!(poll::readable(&[pidfd.as_fd()], Some(DEADLINE)).unwrap()[0]);
}

#[test]
fn a_rank_that_finalizes_has_left_and_may_end_as_it_likes() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start(base.path(), 1);
    let slot = agent.await_armed();
    rank.tell("finalize 7");
    rank.hear("finalized");
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 7 });
    rank.signal(libc::SIGKILL);
    rank.wait();
    // The slot is free again, and whoever gets it next is the next to be heard of.
    let _next = Rank::start(base.path(), 2);
    assert_eq!(agent.await_armed(), slot);
    assert_eq!(agent.view.rank_state(1), RankState::Left);
}

#[test]
fn an_exit_without_finalize_is_a_failure() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start(base.path(), 0);
    let slot = agent.await_armed();
    rank.tell("exit 3");
    let finding = agent.await_finding(slot);
    assert!(
        matches!(
            finding,
            Finding::Failed {
                signal: 0,
                exit_code: 3,
                ..
            }
        ),
        "{finding:?}"
    );
}

#[test]
fn the_end_of_the_holding_thread_alone_is_no_failure() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start_with(base.path(), 0, "ends", base.path());
    let slot = agent.await_armed();
    rank.tell("end-thread");
    rank.hear("thread-ended");
    assert_eq!(agent.await_finding(slot), Finding::Detached);
    // From now on the pidfd tells.
    rank.signal(libc::SIGKILL);
    assert!(is_failed(agent.await_finding(slot)));
}

#[test]
fn a_rank_without_a_library_thread_is_seen_dying_by_its_mutex() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start_with(base.path(), 0, "no", base.path());
    let slot = agent.await_armed();
    rank.tell("grow 2048");
    rank.hear("grown");
    rank.signal(libc::SIGKILL);
    let finding = agent.await_finding(slot);
    assert!(
        matches!(
            finding,
            Finding::Failed {
                by: FailedBy::Futex,
                ..
            }
        ),
        "{finding:?}"
    );
}

#[test]
fn a_rank_without_a_library_thread_leaves_in_order() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start_with(base.path(), 0, "no", base.path());
    let slot = agent.await_armed();
    rank.tell("finalize");
    rank.hear("finalized");
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 0 });
}

#[test]
fn an_exec_detaches_and_the_new_image_keeps_slot_and_rank() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start(base.path(), 5);
    let slot = agent.await_armed();
    rank.tell("exec");
    rank.hear("executed");
    let finding = agent.await_notice(slot);
    assert_eq!(
        (finding.finding, finding.generation),
        (Finding::Detached, 1)
    );
    rank.tell("attach");
    rank.hear("attached");
    assert_eq!(agent.await_armed(), slot);
    assert_eq!(agent.view.rank_state(5), RankState::Alive);
    rank.signal(libc::SIGKILL);
    let finding = agent.await_notice(slot);
    assert!(is_failed(finding.finding));
    assert_eq!((finding.generation, finding.rank), (2, Some(5)));
}

#[test]
fn a_forked_child_that_holds_the_socket_does_not_hide_the_death_of_its_parent() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start(base.path(), 0);
    let slot = agent.await_armed();
    rank.tell("fork");
    let child: u32 = rank.hear("child").parse().unwrap();
    rank.signal(libc::SIGKILL);
    let finding = agent.await_finding(slot);
    // The child lives at this moment, with every descriptor of its parent.
    send_signal(child, libc::SIGKILL).unwrap();
    assert!(is_failed(finding), "{finding:?}");
}

#[test]
fn a_stopped_rank_is_hung_until_it_goes_on() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let rank = Rank::start(base.path(), 0);
    let slot = agent.await_armed();
    rank.signal(libc::SIGSTOP);
    assert_eq!(agent.await_finding(slot), Finding::Hung(HungBy::Stopped));
    assert_eq!(agent.view.rank_state(0), RankState::Hung);
    rank.signal(libc::SIGCONT);
    assert_eq!(agent.await_finding(slot), Finding::Resumed);
    assert_eq!(agent.view.rank_state(0), RankState::Alive);
}

/// A debugger's stop is neither death nor hang. That nothing is said about the traced rank while
/// it is looked at is shown by another one: it is stopped for real later, and found first.
#[test]
fn a_traced_rank_is_not_hung() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let traced = Rank::start(base.path(), 0);
    let traced_slot = agent.await_armed();
    let stopped = Rank::start(base.path(), 1);
    let stopped_slot = agent.await_armed();
    raw::trace_and_stop(traced.pid());
    // Two rounds of looking, in each of which the traced one is looked at first.
    for _ in 0..2 {
        stopped.signal(libc::SIGSTOP);
        assert_eq!(
            agent.await_finding(stopped_slot),
            Finding::Hung(HungBy::Stopped)
        );
        stopped.signal(libc::SIGCONT);
        assert_eq!(agent.await_finding(stopped_slot), Finding::Resumed);
    }
    raw::trace_no_more(traced.pid());
    traced.signal(libc::SIGKILL);
    assert!(is_failed(agent.await_finding(traced_slot)));
}

/// The kernel releases the word after it has written the dump: a large one takes long.
#[test]
fn a_core_dump_is_a_failure_before_the_word_is_released() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start_with(base.path(), 0, "yes", base.path());
    let slot = agent.await_armed();
    rank.tell("core");
    let dump = rank.hear("core-");
    let finding = agent.await_finding(slot);
    let Finding::Failed { by, signal, .. } = finding else {
        panic!("{finding:?}");
    };
    assert_eq!(signal, libc::SIGSEGV);
    // Where there is none, or another program takes it, the futex may tell first.
    if dump == "lasts" {
        assert_eq!(by, FailedBy::CoreDump);
        rank.signal(libc::SIGKILL);
    }
    rank.wait();
}

fn many_die(mode: WaitMode) {
    const RANKS: u32 = 140;
    let base = tempdir().unwrap();
    let mut agent = Agent::start_in(base.path(), Some(mode), limits());
    let mut ranks: Vec<Rank> = (0..RANKS)
        .map(|rank| Rank::start(base.path(), rank))
        .collect();
    let mut slots: Vec<u32> = (0..RANKS).map(|_| agent.await_armed()).collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..RANKS).collect::<Vec<_>>());
    // The last slots belong to the second waiting thread.
    for rank in [139usize, 0, 127, 126] {
        ranks[rank].signal(libc::SIGKILL);
        let slot = agent.await_seen("a death", |seen| match seen {
            Seen::Notice(notice) if is_failed(notice.finding) => Some(notice.rank),
            _ => None,
        });
        assert_eq!(slot, Some(rank as u32));
    }
    ranks.iter().for_each(|rank| rank.signal(libc::SIGKILL));
    for _ in 0..RANKS - 4 {
        agent.await_seen("a death", |seen| match seen {
            Seen::Notice(notice) if is_failed(notice.finding) => Some(()),
            _ => None,
        });
    }
    ranks.iter_mut().for_each(Rank::wait);
    // Nothing else is said of anybody. That one lives on after its holding thread may be taken for true for a
    // moment where another of its threads waits for a core longer than the classifier is patient.
    let unexpected = agent.has_seen(|seen| {
        matches!(seen, Seen::Notice(notice) if notice.finding != Finding::Detached && {
            eprintln!("not expected: {notice:?}");
            true
        })
    });
    assert!(!unexpected);
    assert!((0..RANKS).all(|rank| agent.view.rank_state(rank) == RankState::Failed));
}

#[test]
fn more_ranks_than_one_thread_can_wait_for() {
    if futex::wait_any_works() {
        many_die(WaitMode::Grouped);
    }
}

#[test]
fn more_ranks_than_one_thread_can_wait_for_on_an_old_kernel() {
    many_die(WaitMode::Parked);
}

#[test]
fn a_full_board_is_refused_with_its_size() {
    let base = tempdir().unwrap();
    let small = TableLimits {
        slots: 1,
        ..limits()
    };
    let mut agent = Agent::start_in(base.path(), None, small);
    let _rank = Rank::start(base.path(), 0);
    agent.await_armed();
    let options = muster_client::Options {
        rank: Some(1),
        ..support::agent::options(base.path())
    };
    let text = muster_client::Client::attach(options)
        .unwrap_err()
        .to_string();
    assert!(text.contains("all 1 slots"), "{text}");
}

/// The application's own robust mutex keeps working beside ours, in both ways of holding.
#[test]
fn the_robust_mutexes_of_the_application_are_not_disturbed() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    for thread in [true, false] {
        let mutex = raw::RobustMutex::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(mutex.lock(), 0);
                let options = muster_client::Options {
                    thread,
                    ..support::agent::options(base.path())
                };
                let client = muster_client::Client::attach(options).unwrap();
                client.finalize(0).unwrap();
                // The thread ends here and leaves its own mutex locked.
            });
        });
        assert_eq!(mutex.lock(), libc::EOWNERDEAD);
        let slot = agent.await_armed();
        assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 0 });
    }
}
