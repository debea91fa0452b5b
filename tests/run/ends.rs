//! Early ends of a `muster run` job (run-4): a second signal is obeyed at once, and a process that a rank
//! starts in its own environment is not taken for the rank.

use muster_tests::compile::build_pmix;
use muster_tests::job::{Job, job};
use muster_tests::process::{name_of, signal_all};
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;

/// Ranks that ignore signals; nothing kills them for an hour.
const IGNORES_SIGNALS: &str = "trap '' INT TERM; echo UP; while :; do sleep 0.05; done";

/// Ctrl-C, and Ctrl-C once more; signals within a second count as one.
/// run-4.
#[test]
fn a_second_signal_kills_ranks_that_ignore_the_first() {
    let options = ["--nodes", "2", "-n", "4", "--grace", "3600"];
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut run = Job::of(&options, Path::new("sh"), &["-c", IGNORES_SIGNALS]);
        run.await_lines("UP", 4);
        run.signal(signal);
        let number = code - 128;
        run.await_lines(&format!("muster run: n1: ended by signal {number}"), 1);
        let words = "muster run: n1: second request to end; the ranks are killed";
        while run.count(words) == 0 && !run.has_ended() {
            run.signal(signal);
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
    let mut run = Job::of(&options, Path::new("sh"), &["-c", IGNORES_SIGNALS]);
    run.await_lines("UP", 2);
    let mut launchers = ["n1", "n2"].map(|node| run.processes_of(node)).concat();
    launchers.retain(|pid| name_of(*pid) == "muster");
    assert_eq!(launchers.len(), 2);
    signal_all(&launchers, Signal::STOP);
    while !run.has_ended() {
        run.signal(Signal::INT);
        run.listen_for(Duration::from_millis(100));
    }
    let status = run.expect_end();
    let text = run.text();
    assert_eq!(status.code(), Some(130), "{text}");
    assert_eq!(run.count("muster run: the launcher of n"), 2, "{text}");
}

/// The signal that ended a rank is reported, unless the job was ended by it.
/// run-4.
#[test]
fn a_rank_that_a_signal_killed_is_named_with_it() {
    let options = ["--nodes", "2", "-n", "4"];
    for (word, number) in [("SEGV", 11), ("KILL", 9), ("TERM", 15)] {
        let script = format!("echo PID $PMIX_RANK $$; kill -{word} $$");
        let mut run = Job::of(&options, Path::new("sh"), &["-c", &script]);
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
        let mut run = Job::of(&options, Path::new("sh"), &["-c", script]);
        run.await_lines("UP", 4);
        run.signal(signal);
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
            let mut run = Job::of(&options, &binary, &[mode]);
            let lost = usize::from(mode == "kills");
            if lost == 1 {
                for node in ["n1", "n2"] {
                    let words = format!(
                        "muster run: {node}: the ranks of this node are told that rank 1 is dead"
                    );
                    run.await_lines(&words, 1);
                }
                run.signal(Signal::USR1);
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
