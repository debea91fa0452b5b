//! Early ends of a `muster run` job (run-4): a second signal is obeyed at once, and a process that a rank
//! starts in its own environment is not taken for the rank.

use muster_tests::launch::{job, processes_of, signal_all};
use muster_tests::running::{Running, build_pmix};
use rustix::process::{Pid, Signal};
use std::path::Path;
use std::time::Duration;

fn own(run: &Running) -> Pid {
    Pid::from_raw(run.child.id() as i32).expect("a pid")
}

/// Ranks that ignore signals; nothing kills them for an hour.
const IGNORES_SIGNALS: &str = "trap '' INT TERM; echo UP; while :; do sleep 0.05; done";

/// Ctrl-C, and Ctrl-C once more; signals within a second count as one.
/// run-4.
#[test]
fn a_second_signal_kills_ranks_that_ignore_the_first() {
    let options = ["--nodes", "2", "-n", "4", "--grace", "3600"];
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut run = Running::start(&options, Path::new("sh"), &["-c", IGNORES_SIGNALS]);
        run.await_lines("UP", 4);
        signal_all(&[own(&run)], signal);
        let number = code - 128;
        run.await_lines(&format!("muster run: n1: ended by signal {number}"), 1);
        let words = "muster run: n1: second request to end; the ranks are killed";
        while run.count(words) == 0 && run.child.try_wait().expect("a child").is_none() {
            signal_all(&[own(&run)], signal);
            run.listen_for(Duration::from_millis(100));
        }
        let status = run.expect_end();
        let text = run.text();
        assert_eq!((status.code(), run.count(words)), (Some(code), 1), "{text}");
    }
}

/// The parent ends launchers that do not respond.
#[test]
fn a_second_signal_ends_launchers_that_hang() {
    let options = ["--nodes", "2", "--grace", "3600"];
    let mut run = Running::start(&options, Path::new("sh"), &["-c", IGNORES_SIGNALS]);
    run.await_lines("UP", 2);
    let directory = run.directory().join("m");
    let all = ["n1", "n2"]
        .map(|node| processes_of(node, &directory))
        .concat();
    let launchers: Vec<Pid> = all.into_iter().filter(|pid| is_launcher(*pid)).collect();
    assert_eq!(launchers.len(), 2);
    signal_all(&launchers, Signal::STOP);
    while run.child.try_wait().expect("a child").is_none() {
        signal_all(&[own(&run)], Signal::INT);
        run.listen_for(Duration::from_millis(100));
    }
    let status = run.expect_end();
    let text = run.text();
    assert_eq!(status.code(), Some(130), "{text}");
    assert_eq!(run.count("muster run: the launcher of n"), 2, "{text}");
}

fn is_launcher(pid: Pid) -> bool {
    let path = format!("/proc/{}/comm", pid.as_raw_nonzero());
    std::fs::read_to_string(path).is_ok_and(|name| name.trim() == "muster")
}

/// The signal that ended a rank is reported, unless the job was ended by it.
/// run-4.
#[test]
fn a_rank_that_a_signal_killed_is_named_with_it() {
    let options = ["--nodes", "2", "-n", "4"];
    for (word, number) in [("SEGV", 11), ("KILL", 9), ("TERM", 15)] {
        let script = format!("echo PID $PMIX_RANK $$; kill -{word} $$");
        let mut run = Running::start(&options, Path::new("sh"), &["-c", &script]);
        let status = run.expect_end();
        let text = run.text();
        assert_eq!(status.code(), Some(128 + number), "{text}");
        let printed = run.lines.iter().filter_map(|line| {
            let (rank, pid) = line.strip_prefix("PID ")?.split_once(' ')?;
            let killed = format!("was killed by signal {number} (SIG{word})");
            Some(format!("rank {rank} (pid {pid}) {killed}"))
        });
        let printed: Vec<String> = printed.collect();
        assert_eq!(printed.len(), 4, "{text}");
        for words in printed {
            assert_eq!(text.matches(&words).count(), 1, "{words}: {text}");
        }
    }
    for signal in [Signal::INT, Signal::TERM] {
        let script = "echo UP; exec sleep 1000";
        let mut run = Running::start(&options, Path::new("sh"), &["-c", script]);
        run.await_lines("UP", 4);
        signal_all(&[own(&run)], signal);
        run.expect_end();
        assert!(!run.text().contains("was killed"), "{}", run.text());
    }
}

/// For libpmix a process with the rank's environment is the rank itself. Whatever happens to that process,
/// the rank is not dead while it runs, and is dead when it is killed.
/// run-4.
#[test]
fn a_process_in_a_ranks_environment_is_not_taken_for_the_rank() {
    job(|folder| {
        let binary = build_pmix("second_session", &[], folder);
        for mode in ["exits", "dies", "kills"] {
            let options = ["-v", "--nodes", "2", "-n", "4", "--on-loss=continue"];
            let mut run = Running::start(&options, &binary, &[mode]);
            let lost = usize::from(mode == "kills");
            if lost == 1 {
                for node in ["n1", "n2"] {
                    let words = format!(
                        "muster run: {node}: the ranks of this node are told that rank 1 is dead"
                    );
                    run.await_lines(&words, 1);
                }
                signal_all(&[own(&run)], Signal::USR1);
            }
            let status = run.expect_end();
            let text = run.text();
            assert_eq!(
                (status.code(), run.count("SESSION 1")),
                (Some(0), 1),
                "{mode}: {text}"
            );
            assert_eq!(run.count("DONE"), 4 - lost, "{mode}: {text}");
            assert_eq!(text.contains("is dead"), lost == 1, "{mode}: {text}");
        }
    });
}
