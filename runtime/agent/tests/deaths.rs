//! Every way in which a rank can end, stop or seem to, and the watch's finding.

use crate::support::agent::{Agent, Seen, limits};
use crate::support::rank::Rank;
use crate::support::{DEADLINE, raw};
use muster_agent::watch::{FailedBy, Finding, HungBy, WaitMode};
use muster_shm::{RankState, TableLimits};
use muster_sys::process::{open_pidfd, send_signal};
use muster_sys::{futex, poll};
use std::os::fd::AsFd;
use tempfile::tempdir;

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

/// The futex is released before the address space is torn down. With much memory the pidfd signals much
/// later, so the futex must be what reports the death, whatever the load of this machine.
#[test]
fn a_large_rank_is_reported_dead_while_it_is_being_torn_down() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start(base.path(), 0);
    let slot = agent.await_armed();
    rank.send("grow 2048");
    rank.await_line("grown");
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
fn a_rank_that_finalizes_has_left_however_it_ends() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start(base.path(), 1);
    let slot = agent.await_armed();
    rank.send("finalize 7");
    rank.await_line("finalized");
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 7 });
    rank.signal(libc::SIGKILL);
    rank.wait();
    // The slot is free again: the next rank gets it, and the next finding is about that rank.
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
    rank.send("exit 3");
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
fn the_end_of_the_attaching_thread_alone_is_no_failure() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start_with(base.path(), 0, "ends", base.path());
    let slot = agent.await_armed();
    rank.send("end-thread");
    rank.await_line("thread-ended");
    assert_eq!(agent.await_finding(slot), Finding::Detached);
    // From now on the pidfd reports the death.
    rank.signal(libc::SIGKILL);
    assert!(is_failed(agent.await_finding(slot)));
}

#[test]
fn the_death_of_a_rank_without_a_library_thread_is_seen_by_its_mutex() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start_with(base.path(), 0, "no", base.path());
    let slot = agent.await_armed();
    rank.send("grow 2048");
    rank.await_line("grown");
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
    rank.send("finalize");
    rank.await_line("finalized");
    assert_eq!(agent.await_finding(slot), Finding::Left { exit_code: 0 });
}

#[test]
fn an_exec_detaches_and_the_new_image_keeps_slot_and_rank() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start(base.path(), 5);
    let slot = agent.await_armed();
    rank.send("exec");
    rank.await_line("executed");
    let finding = agent.await_notice(slot);
    assert_eq!(
        (finding.finding, finding.generation),
        (Finding::Detached, 1)
    );
    rank.send("attach");
    rank.await_line("attached");
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
    rank.send("fork");
    let child: u32 = rank.await_line("child").parse().unwrap();
    rank.signal(libc::SIGKILL);
    let finding = agent.await_finding(slot);
    // The child is alive at this moment, with every descriptor of its parent.
    send_signal(child, libc::SIGKILL).unwrap();
    assert!(is_failed(finding), "{finding:?}");
}

#[test]
fn a_stopped_rank_is_hung_until_it_continues() {
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

/// A debugger's stop is neither a death nor a hang. Another rank, which is stopped later and found first,
/// shows that no finding about the traced rank is made while it is polled.
#[test]
fn a_traced_rank_is_not_hung() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let traced = Rank::start(base.path(), 0);
    let traced_slot = agent.await_armed();
    let stopped = Rank::start(base.path(), 1);
    let stopped_slot = agent.await_armed();
    raw::trace_and_stop(traced.pid());
    // Two rounds of polling; in each the traced rank is polled first.
    for _ in 0..2 {
        stopped.signal(libc::SIGSTOP);
        assert_eq!(
            agent.await_finding(stopped_slot),
            Finding::Hung(HungBy::Stopped)
        );
        stopped.signal(libc::SIGCONT);
        assert_eq!(agent.await_finding(stopped_slot), Finding::Resumed);
    }
    raw::end_trace(traced.pid());
    traced.signal(libc::SIGKILL);
    assert!(is_failed(agent.await_finding(traced_slot)));
}

/// The kernel releases the futex after it has written the core dump, which takes long for a large one.
#[test]
fn a_core_dump_is_a_failure_before_the_futex_is_released() {
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let mut rank = Rank::start_with(base.path(), 0, "yes", base.path());
    let slot = agent.await_armed();
    rank.send("core");
    let dump = rank.await_line("core-");
    let finding = agent.await_finding(slot);
    let Finding::Failed { by, signal, .. } = finding else {
        panic!("{finding:?}");
    };
    assert_eq!(signal, libc::SIGSEGV);
    // If no core is written, or another program takes it, the futex may report first.
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
    // No other finding is made. `Detached` after the end of the holding thread may appear for a moment if
    // another thread of the process waits for a core longer than the classifier's time-out.
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
fn a_full_state_table_is_refused_with_its_size() {
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
        ..crate::support::agent::options(base.path())
    };
    let text = muster_client::Client::attach(options)
        .unwrap_err()
        .to_string();
    assert!(text.contains("all 1 slots"), "{text}");
}

/// The application's own robust mutex keeps working beside Muster's, with and without a library thread.
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
                    ..crate::support::agent::options(base.path())
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
