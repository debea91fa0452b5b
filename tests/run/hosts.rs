//! `muster run` on hosts that a user names (run-2): started over ssh, or by the user's own tool. The ssh of
//! these tests runs the command on this machine; each host is an address of loopback.

use muster_tests::compile::compile;
use muster_tests::job::{Job, await_nothing_left, job, processes_in, processes_on};
use muster_tests::launchers::{muster_run, venv};
use muster_tests::process::{signal_all, wait_for_ends};
use muster_tests::{make_program, program, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Four addresses that no other of these tests uses.
fn hosts(test: u8) -> String {
    format!("127.{test}.3.[1-4]")
}

/// Shared memory of the ranks of these hosts, and directories of their agents.
fn files(test: u8, folder: &Path) -> [Vec<PathBuf>; 2] {
    let of_test = format!("-127.{test}.3.");
    let memory = paths(Path::new("/dev/shm"));
    let memory = memory.filter(|path| path.to_string_lossy().contains(&of_test));
    [memory.collect(), paths(&folder.join("m")).collect()]
}

/// Waits until nothing is left of these hosts: a job of another test that starts or ends meanwhile may be about to
/// remove files of a killed one.
fn await_no_files(test: u8, folder: &Path) {
    await_nothing_left(folder);
    let are_gone = || files(test, folder).concat().is_empty().then_some(());
    until(|| format!("left: {:?}", files(test, folder)), are_gone);
}

fn paths(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// A replacement for ssh: its arguments are a host and a line for a shell.
fn fake_ssh(folder: &Path) -> PathBuf {
    let path = folder.join("fake-ssh");
    let script = "#!/bin/sh\n\
                  [ \"$1\" = -q ] || exit 255\n\
                  [ \"$2\" = 127.0.0.255 ] && exit 255\n\
                  MUSTER_RAILS=$2@udp0 sh -c \"$3\"\n\
                  code=$?\n\
                  # A command that was killed is a failure of ssh.\n\
                  [ $code = 137 ] && exit 255\n\
                  exit $code\n";
    make_program(&path, script);
    path
}

/// `muster run` over that ssh, with its files in a folder of the test.
fn over_ssh(folder: &Path, hosts: &str) -> Command {
    let mut run = muster_run();
    run.args([
        "--hosts",
        hosts,
        "--ssh",
        &format!("{} -q", fake_ssh(folder).display()),
    ])
    .env("TMPDIR", folder)
    .env("MUSTER_DIR", folder.join("m"));
    run
}

/// `muster run` over this script instead.
fn over(folder: &Path, script: &str) -> Command {
    let path = folder.join("other-ssh");
    make_program(&path, script);
    let mut run = muster_run();
    run.arg("--ssh").arg(&path).env("TMPDIR", folder);
    run
}

/// run-2.
#[test]
fn a_killed_host_is_survived_over_ssh() {
    job(|folder| {
        let binary = compile(&venv("venv").join("mpicc"), "survive", &[], folder);
        let hosts = hosts(81);
        let mut run = over_ssh(folder, &hosts);
        run.args(["-n", "8", "-v", "--"]).arg(&binary).arg("2");
        let mut run = Job::start(&mut run);
        let ready = run.await_ready();
        let victims = processes_on("127.81.3.3", folder);
        assert!(
            victims.len() >= 4,
            "launcher, agent, ranks: {victims:?} of {ready:?}"
        );
        signal_all(&victims, Signal::KILL);
        run.expect_survivors(2);
        let lost = "muster run: 127.81.3.3: its launcher was lost";
        assert_eq!(run.count(lost), 1, "{}", run.text());
        // What was killed cannot remove its own files: the launchers and agents of the other hosts do.
        await_no_files(81, folder);
    });
}

/// A rank that MPI cannot continue without ends the job on all hosts, and nothing is left on any of them
/// (run-4).
#[test]
fn a_lost_rank_ends_the_job_on_all_hosts() {
    job(|folder| {
        let binary = compile(&venv("venv").join("mpicc"), "waits", &[], folder);
        let mut run = over_ssh(folder, &hosts(98));
        run.args(["-n", "8", "-x", "OMPI_MCA_mpi_ft_enable=0", "--"]);
        let mut run = Job::start(run.arg(&binary).arg("exit"));
        let status = run.expect_end();
        let text = run.text();
        assert_eq!(status.code(), Some(1), "{text}");
        let words = "muster run: 127.98.3.4: the job is ended, since rank 7 on 127.98.3.4 ended with status 1";
        assert_eq!(run.count(words), 1, "{text}");
        await_no_files(98, folder);
    });
}

/// No process is left that could remove anything; the next job does (run-2).
#[test]
fn files_of_a_killed_job_are_removed_by_the_next_one() {
    job(|folder| {
        let hosts = hosts(93);
        let mut run = over_ssh(folder, &hosts);
        run.args(["-n", "4", "--", "sh", "-c", "echo UP; exec sleep 1000"]);
        let mut run = Job::start(&mut run);
        run.await_lines("UP", 4);
        let victims = processes_in(folder);
        // Stopped first, so that no process sees another's end and cleans up. Later, a job of another test may do so.
        signal_all(&victims, Signal::STOP);
        assert_eq!(files(93, folder).map(|files| files.len()), [4, 4]);
        signal_all(&victims, Signal::KILL);
        wait_for_ends(&victims);
        let mut next = over_ssh(folder, "127.93.3.1");
        next.args(["-n", "1", "--", "true"]);
        let mut next = Job::start(&mut next);
        assert!(next.expect_end().success(), "{}", next.text());
        await_no_files(93, folder);
    });
}

#[test]
fn a_signal_to_the_parent_ends_the_job_on_every_host() {
    job(|folder| {
        let hosts = hosts(82);
        let mut run = over_ssh(folder, &hosts);
        let script = "trap 'echo USR; exit 0' USR1; echo UP; while :; do sleep 0.05; done";
        run.args(["--ppn", "1", "--", "sh", "-c", script]);
        let mut run = Job::start(&mut run);
        run.await_lines("UP", 4);
        run.signal(Signal::USR1);
        run.await_lines("USR", 4);
        assert!(run.expect_end().success(), "{}", run.text());
        await_nothing_left(folder);

        let mut run = over_ssh(folder, &hosts);
        run.args(["--ppn", "1", "--", "sh", "-c", "echo UP; exec sleep 1000"]);
        let mut run = Job::start(&mut run);
        run.await_lines("UP", 4);
        run.signal(Signal::TERM);
        assert_eq!(run.expect_end().code(), Some(143), "{}", run.text());
    });
}

#[test]
fn a_killed_parent_leaves_nothing() {
    job(|folder| {
        let mut run = over_ssh(folder, &hosts(83));
        run.args(["--ppn", "1", "--", "sh", "-c", "echo UP; exec sleep 1000"]);
        let mut run = Job::start(&mut run);
        run.await_lines("UP", 4);
        run.stop();
    });
}

/// A broken connection costs only its own host, which ends its ranks; the others continue (run-2).
#[test]
fn a_connection_that_breaks_is_a_lost_host() {
    job(|folder| {
        let binary = compile(&venv("venv").join("mpicc"), "survive", &[], folder);
        let mut run = over_ssh(folder, &hosts(92));
        run.args(["-n", "8", "--"]).arg(&binary).arg("2");
        let mut run = Job::start(&mut run);
        run.await_ready();
        // The replacement of ssh: a child of the parent that has the host's name among its arguments.
        let parent = run.pid().as_raw_nonzero();
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let children = children.expect("a process that runs");
        let of_host = |pid: &&str| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words
                .split(|byte| *byte == 0)
                .any(|word| word == b"127.92.3.3")
        };
        let ssh = children.split_whitespace().find(of_host);
        let ssh = ssh.and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        signal_all(&[ssh.expect("the ssh of a host")], Signal::KILL);
        run.expect_survivors(2);
        let words =
            "127.92.3.3: the connection to the muster run that started this launcher is gone";
        assert_eq!(run.text().matches(words).count(), 1, "{}", run.text());
    });
}

/// A host that ssh does not reach ends the start, long before the time-out does, and is named.
#[test]
fn a_host_that_is_not_reached_is_named() {
    job(|folder| {
        let mut run = over_ssh(folder, "127.84.3.1,127.0.0.255");
        run.args(["--start-timeout", "3600", "--", "true"]);
        let mut run = Job::start(&mut run);
        let status = run.expect_end();
        let text = run.text();
        assert_eq!(status.code(), Some(5), "{text}");
        assert!(
            text.contains("127.0.0.255: its launcher could not be started"),
            "{text}"
        );
        assert!(
            text.contains("no launcher has come on 127.0.0.255"),
            "{text}"
        );
    });
}

/// The launcher that waits for the reader is not given up, though the others have ended long ago (run-2).
#[test]
fn a_slow_reader_loses_nothing_of_a_host() {
    let folder = tempfile::tempdir().expect("a folder");
    // Each rank's pipe holds its output, so the ranks end before it is read.
    let script = "test $PMIX_RANK -ge 4 || seq 10000";
    let mut run = over_ssh(folder.path(), "127.97.3.[1-2]");
    let mut child = run
        .args(["-n", "8", "-v", "--label", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("muster can be started");
    let mut errors = BufReader::new(child.stderr.take().expect("a pipe"));
    for _ in 0..2 {
        let mut line = String::new();
        while !line.contains("waiting until the ranks' output is read") {
            line.clear();
            let count = errors.read_line(&mut line).expect("lines");
            assert!(count > 0, "it does not wait");
        }
    }
    // Longer than the time that launchers without a reason to go on get.
    let mut one = [PollFd::new(errors.get_ref(), PollFlags::IN)];
    let time = Timespec {
        tv_sec: 24,
        tv_nsec: 0,
    };
    let words = poll(&mut one, Some(&time));
    let mut printed = String::new();
    let mut pipe = child.stdout.take().expect("a pipe");
    pipe.read_to_string(&mut printed).expect("words");
    let status = child.wait().expect("an end");
    assert_eq!(
        (words, printed.lines().count()),
        (Ok(0), 40_000),
        "{status}"
    );
    assert!(status.success(), "{status}");
}

/// ssh returns 255 if it fails itself, so a job returns another status.
#[test]
fn a_status_of_255_is_no_failure_of_ssh() {
    job(|folder| {
        let mut run = over_ssh(folder, "127.91.3.[1-2]");
        run.args(["--ppn", "1", "--", "sh", "-c", "exit 255"]);
        let mut run = Job::start(&mut run);
        let status = run.expect_end();
        let text = run.text();
        assert_eq!(status.code(), Some(254), "{text}");
        assert!(!text.contains("could not be started"), "{text}");
    });
}

/// Hosts that accept the command and do nothing do not delay an end that was requested.
#[test]
fn a_signal_ends_a_parent_whose_hosts_all_hang() {
    job(|folder| {
        let hang = folder.join("hang");
        make_program(&hang, "#!/bin/sh\necho UP\nexec sleep 1000\n");
        let mut run = muster_run();
        run.args(["--hosts", "127.90.3.[1-2]", "--ssh"])
            .arg(&hang)
            .args(["--", "true"])
            .env("TMPDIR", folder);
        let mut run = Job::start(&mut run);
        run.await_lines("UP", 2);
        run.signal(Signal::TERM);
        let status = run.expect_end();
        let text = run.text();
        assert_eq!(status.code(), Some(143), "{text}");
        let words = "its launcher should have ended; muster run does not wait for it";
        assert_eq!(text.matches(words).count(), 2, "{text}");
        await_nothing_left(folder);

        // Without a request the time-out ends it.
        let mut run = muster_run();
        run.args(["--hosts", "127.90.3.[1-2]", "--start-timeout", "2", "--ssh"])
            .arg(&hang)
            .args(["--", "true"])
            .env("TMPDIR", folder);
        let mut run = Job::start(&mut run);
        let status = run.expect_end();
        let text = run.text();
        assert_eq!(status.code(), Some(5), "{text}");
        let words =
            "its launcher did not start within 2 s (--start-timeout), or its standard error";
        assert_eq!(text.matches(words).count(), 2, "{text}");
    });
}

/// Each of these launchers waits for all others; further hosts are started as launchers report.
/// run-2.
#[test]
fn hosts_are_started_a_few_at_a_time() {
    job(|folder| {
        let mut run = over_ssh(folder, &hosts(94));
        run.args(["--fanout", "1", "--", "echo", "RAN"]);
        let mut run = Job::start(&mut run);
        let status = run.expect_end();
        assert!(status.success() && run.count("RAN") == 4, "{}", run.text());
        await_nothing_left(folder);

        // An ssh that reads the key and never reports.
        let mut run = over(
            folder,
            "#!/bin/sh\nread -r key\necho UP $2\nexec sleep 1000\n",
        );
        run.args(["--hosts", "127.94.3.[1-4]", "--fanout", "2"]);
        run.args(["--start-timeout", "10", "--", "true"]);
        let mut run = Job::start(&mut run);
        let status = run.expect_end();
        let text = run.text();
        assert_eq!((status.code(), run.count("UP")), (Some(5), 2), "{text}");
        for host in ["127.94.3.1", "127.94.3.2"] {
            let words = format!(
                "muster run: {host}: its launcher did not start within 10 s (--start-timeout)"
            );
            assert_eq!(run.count(&words), 1, "{text}");
        }
        let words = "muster run: 127.94.3.[3-4]: not started within 10 s (--start-timeout)";
        assert_eq!((run.count(words), run.lines.len()), (1, 5), "{text}");
    });
}

/// A process that ends before it is a launcher is none, whatever its status: a shell's, or that of a program
/// that panics.
/// run-2.
#[test]
fn a_host_without_a_launcher_ends_the_start_at_once() {
    job(|folder| {
        for (status, number) in [(101, 95), (1, 96), (0, 80)] {
            let host = format!("127.{number}.3.2");
            let inner = fake_ssh(folder);
            let script = format!(
                "#!/bin/sh\n[ $1 = {host} ] && echo GONE >&2 && exit {status}\nexec {} -q \"$@\"\n",
                inner.display()
            );
            let mut run = over(folder, &script);
            run.args(["--hosts", &format!("127.{number}.3.[1-3]")]);
            run.args(["--start-timeout", "3600", "--", "true"])
                .env("MUSTER_DIR", folder.join("m"));
            let mut run = Job::start(&mut run);
            let ended = run.expect_end();
            let text = run.text();
            assert_eq!((ended.code(), run.count("GONE")), (Some(5), 1), "{text}");
            let words = format!(
                "muster run: {host}: its launcher could not be started: ssh ended with status {status}"
            );
            let missing = format!("no launcher has come on {host}");
            assert!(run.count(&words) == 1 && text.contains(&missing), "{text}");
            assert!(!text.contains("should have ended"), "{text}");
            await_nothing_left(folder);
        }
    });
}

/// Another process may have taken the directory's name.
#[test]
fn a_symlink_in_place_of_the_directory_is_not_used_and_does_no_harm() {
    job(|folder| {
        let here = Here::new(folder, "127.89.3.1");
        let other = folder.join("other");
        std::fs::create_dir(&other).expect("a folder");
        let link = folder.join("muster-run-here-0");
        std::os::unix::fs::symlink(&other, &link).expect("a link");
        let mut run = here.start(0, &["-n", "1", "--", "echo", "RAN"], None);
        let status = run.expect_end();
        let text = run.text();
        assert!(status.success() && run.count("RAN") == 1, "{text}");
        assert_eq!(std::fs::read_dir(&other).expect("a folder").count(), 0);
        let left: Vec<_> = paths(folder)
            .filter(|path| path.to_string_lossy().contains("muster-run-here-0-"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        std::fs::remove_file(link).expect("the link is not removed");
    });
}

/// A host on which the user's own tool starts a launcher.
struct Here<'a> {
    folder: &'a Path,
    hosts: &'a str,
}

impl Here<'_> {
    fn new<'a>(folder: &'a Path, hosts: &'a str) -> Here<'a> {
        let key = folder.join("key");
        std::fs::write(&key, "ab".repeat(32)).expect("a key");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("its mode");
        std::fs::write(folder.join("hosts"), hosts.replace(',', "\n# another\n")).expect("a file");
        Here { folder, hosts }
    }

    /// Starts a launcher as one of the hosts, with these arguments, and this further folder for programs.
    fn start(&self, index: usize, words: &[&str], programs: Option<&Path>) -> Job {
        let host = self.hosts.split(',').nth(index).expect("a host");
        let mut run = muster_run();
        if let Some(programs) = programs {
            let path = std::env::var("PATH").expect("a PATH");
            run.env("PATH", format!("{}:{path}", programs.display()));
        }
        run.arg("--hostfile")
            .arg(self.folder.join("hosts"))
            .arg("--here")
            .args(words)
            .env("MUSTER_JOB", "here")
            .env("MUSTER_NODE", host)
            .env("MUSTER_RAILS", format!("{host}@udp0"))
            .env("MUSTER_KEY_FILE", self.folder.join("key"))
            .env("MUSTER_DIR", self.folder.join("m"))
            .env("TMPDIR", self.folder)
            // A launcher's last output must still exist when a slow one reads it. The parent of these launchers, the
            // test, runs on, so their agents stay ten times as long.
            .env("MUSTER_LINGER_MS", "500");
        Job::start(&mut run)
    }
}

/// With `--here` the user's own tool starts a launcher on each host, as `parallel` would (run-2).
#[test]
fn launchers_started_by_the_user_find_each_other() {
    job(|folder| {
        let binary = compile(&venv("venv").join("mpicc"), "sum", &[], folder);
        let here = Here::new(folder, "127.85.3.1,127.85.3.2");
        let words = ["-n", "4", "--", binary.to_str().expect("a path in UTF-8")];
        let mut both = [here.start(0, &words, None), here.start(1, &words, None)];
        for run in &mut both {
            let status = run.expect_end();
            assert!(
                status.success() && run.count("SUM 6 of 4") == 2,
                "{}",
                run.text()
            );
        }
        assert!(folder.join("key").exists(), "the user's own key stays");
    });
}

/// A program that is missing on one host is not started on the other either.
#[test]
fn a_program_that_one_host_lacks_is_started_on_none() {
    job(|folder| {
        let here = Here::new(folder, "127.86.3.1,127.86.3.2");
        let programs = folder.join("programs");
        std::fs::create_dir(&programs).expect("a folder");
        let program = programs.join("only-here");
        make_program(&program, "#!/bin/sh\necho RAN\n");
        let words = ["-n", "2", "--", "only-here"];
        let mut with = here.start(0, &words, Some(&programs));
        let mut without = here.start(1, &words, None);
        for run in [&mut with, &mut without] {
            let status = run.expect_end();
            assert_eq!(
                (status.code(), run.count("RAN")),
                (Some(127), 0),
                "{}",
                run.text()
            );
        }
        let words = "only-here cannot be started on 127.86.3.2: no such program in PATH";
        assert!(without.text().contains(words), "{}", without.text());
    });
}

/// In a Slurm step the first launcher makes the key. If that launcher fails, the others still read the key,
/// so they receive the reason, and then the key is removed.
#[test]
fn the_failure_of_the_first_launcher_reaches_the_others() {
    job(|folder| {
        let programs = folder.join("programs");
        std::fs::create_dir(&programs).expect("a folder");
        let program = programs.join("only-there");
        make_program(&program, "#!/bin/sh\necho RAN\n");
        let start = |index: usize| {
            let mut run = muster_run();
            if index == 1 {
                let path = std::env::var("PATH").expect("a PATH");
                run.env("PATH", format!("{}:{path}", programs.display()));
            }
            run.args(["-n", "2", "--", "only-there"])
                .env("SLURM_STEP_NODELIST", "127.99.3.[1-2]")
                .env("SLURM_STEP_NUM_TASKS", "2")
                .env("SLURM_NODEID", index.to_string())
                .env("SLURM_JOB_ID", "98")
                .env("SLURM_STEP_ID", "3")
                .env("MUSTER_RAILS", format!("127.99.3.{}@udp0", index + 1))
                .env("MUSTER_DIR", folder.join(format!("m{index}")))
                .env("HOME", folder)
                .env("TMPDIR", folder)
                .env_remove("MUSTER_KEY_FILE")
                .env_remove("MUSTER_JOB");
            Job::start(&mut run)
        };
        // The others wait for the key, so they are running when it appears.
        let mut second = start(1);
        let mut first = start(0);
        let (first_ended, second_ended) = (first.expect_end(), second.expect_end());
        let text = first.text() + &second.text();
        assert_eq!(
            (first_ended.code(), second_ended.code()),
            (Some(127), Some(127)),
            "{text}"
        );
        let words = "only-there cannot be started on 127.99.3.1: no such program in PATH";
        assert_eq!(first.text().matches(words).count(), 1, "{text}");
        assert_eq!(second.count("RAN"), 0, "{text}");
        assert!(!folder.join(".muster-run-98.3.key").exists(), "{text}");
    });
}

/// The second launcher of a job on one host is refused, and the job of the first one continues to its end.
#[test]
fn a_second_launcher_of_a_job_leaves_the_first_alone() {
    job(|folder| {
        let here = Here::new(folder, "127.87.3.1");
        let gate = folder.join("gate");
        let script = format!(
            "echo UP; while ! [ -e {} ]; do sleep 0.05; done",
            gate.display()
        );
        let words = ["-n", "1", "--", "sh", "-c", &script];
        let mut first = here.start(0, &words, None);
        first.await_lines("UP", 1);
        let mut second = here.start(0, &words, None);
        let status = second.expect_end();
        let text = second.text();
        assert!(
            status.code() == Some(2) && second.count("UP") == 0,
            "{text}"
        );
        assert!(
            text.contains("already; set a different MUSTER_JOB for each muster run"),
            "{text}"
        );
        std::fs::write(&gate, "").expect("a file");
        assert!(first.expect_end().success(), "{}", first.text());
    });
}

/// Only emulated nodes are limited by their addresses.
#[test]
fn many_hosts_may_be_named() {
    let mut command = Command::new(program("muster"));
    command.args(["run", "--hosts", "n[1-255]", "--ssh", "false", "true"]);
    let refused = command.output().expect("muster can be started");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    // The error of the failing ssh, not of a wrong argument.
    assert_eq!(refused.status.code(), Some(5), "{text}");
    let words = "its launcher could not be started: ssh ended with status 1";
    assert_eq!(text.matches(words).count(), 255, "{text}");
}

#[test]
fn hosts_that_cannot_be_used_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("none");
    let missing = missing.to_str().expect("a path in UTF-8");
    for (options, words) in [
        (&["--hosts", "n[1-"][..], "n[1-"),
        (&["--hosts", "n1,n1"], "n1 is named twice"),
        (&["--hosts", "me@n1"], "-l USER"),
        (&["--hosts", "n1", "--nodes", "2"], "it excludes --"),
        (&["--hostfile", missing], "none"),
        (&["--here"], "--hosts or --hostfile"),
        (&["--hosts", "n1", "--here"], "MUSTER_KEY_FILE"),
        (&["--hosts", "n1", "--here"], "MUSTER_JOB"),
        (&["--hosts", "n1,n2", "-n", "1"], "1 ranks on 2 nodes"),
    ] {
        let mut command = Command::new(program("muster"));
        command
            .arg("run")
            .args(options)
            .arg("true")
            .stdin(Stdio::null());
        command
            .env_remove("MUSTER_KEY_FILE")
            .env_remove("MUSTER_JOB");
        if words == "MUSTER_JOB" {
            // Any file: it is checked later.
            command.env("MUSTER_KEY_FILE", missing);
        }
        let refused = command.output().expect("muster can be started");
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{options:?}: {text}");
        assert!(text.contains(words) && !text.contains("panicked"), "{text}");
    }
}
