//! `muster run`: the output of ranks (run-2), with any reader at any speed.

use muster_tests::job::Job;
use muster_tests::launchers::muster_run;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};

/// More than one pipe holds from all ranks together, but less than each rank's pipe holds: the ranks end
/// before their output is read.
const LINES: usize = 10_000;

fn run(options: &[&str], words: &[&str]) -> Output {
    let mut run = muster_run();
    let run = run.args(options).arg("--").args(words);
    run.output().expect("muster can be started")
}

/// A job that has ended, whose output has not been read.
struct Unread {
    child: Child,
    errors: BufReader<ChildStderr>,
}

impl Unread {
    fn start(options: &[&str]) -> Self {
        let mut run = muster_run();
        run.args(["-v", "-n", "4", "--label"]).args(options);
        let mut child = run
            .args(["--", "seq", &LINES.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("muster can be started");
        let mut errors = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        while !line.contains("waiting until the ranks' output is read") {
            line.clear();
            let count = errors.read_line(&mut line).expect("lines");
            assert!(count > 0, "it does not wait");
        }
        Self { child, errors }
    }

    /// Returns its exit status, its last messages, and the output that was left to be read.
    fn end(mut self) -> (ExitStatus, String, String) {
        let mut last = String::new();
        self.errors.read_to_string(&mut last).expect("words");
        let status = self.child.wait().expect("an end");
        let mut printed = String::new();
        let mut pipe = self.child.stdout.take().expect("a pipe");
        pipe.read_to_string(&mut printed).expect("words");
        (status, last, printed)
    }
}

/// Returns the message about lost lines, without their number. Checks that these and the lines that were read
/// are all.
fn expect_losses(last: &str, printed: &str) -> String {
    let lost: Vec<&str> = last.lines().filter(|line| line.contains("lost")).collect();
    let [line] = lost[..] else {
        panic!("{last}");
    };
    let words = line.strip_prefix("muster run: n1: ").expect(line);
    let (count, words) = words.split_once(' ').expect(line);
    let count: usize = count.parse().expect(line);
    assert!(count > 0, "{line}");
    assert_eq!(count + printed.lines().count(), 4 * LINES, "{line}");
    words.to_owned()
}

/// With `--label` each line shows its rank; with `--output` each rank has a file (run-2).
#[test]
fn the_output_of_ranks_is_labelled() {
    let script = "echo said $PMIX_RANK; echo cried $PMIX_RANK >&2";
    let options = ["--nodes", "2", "--ppn", "2", "--label"];
    let mut run = Job::of(&options, Path::new("sh"), &["-c", script]);
    assert!(run.expect_end().success());
    for rank in 0..4 {
        for word in ["said", "cried"] {
            assert_eq!(
                run.count(&format!("{rank}: {word} {rank}")),
                1,
                "{}",
                run.text()
            );
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let pattern = format!("{}/%h.%r", folder.path().display());
    let options = ["--nodes", "2", "--ppn", "2", "--output", &pattern];
    let mut run = Job::of(&options, Path::new("sh"), &["-c", script]);
    assert!(run.expect_end().success());
    let printed = std::fs::read_to_string(folder.path().join("n2.3")).expect("a file");
    assert_eq!(printed, "said 3\ncried 3\n");
}

/// The output of a killed rank stays in its buffer; with a terminal each line is written (run-2).
#[test]
fn the_last_lines_of_a_killed_rank_arrive_with_a_terminal() {
    let script =
        "import os, sys; print('said', sys.stdout.isatty(), 'x' * 5000); os.kill(os.getpid(), 9)";
    let whole = "x".repeat(5000);
    for (more, count, line) in [
        (&[][..], 0, String::new()),
        (&["--pty"], 4, format!("said True {whole}")),
        (&["--pty", "--label"], 1, format!("3: said True {whole}")),
    ] {
        let options = [&["--nodes", "2", "--ppn", "2", "--on-loss=continue"], more].concat();
        let mut run = Job::of(&options, Path::new("python3"), &["-E", "-c", script]);
        run.expect_end();
        let is_it = |one: &&String| **one == line;
        let found = run.lines.iter().filter(is_it).count();
        assert_eq!(found, count, "{more:?}: {}", run.text());
        assert_eq!(
            run.text().contains("said"),
            count > 0,
            "{more:?}: {}",
            run.text()
        );
    }
}

/// The output of an ended rank is not lost (run-2).
#[test]
fn a_slow_reader_loses_nothing() {
    let mut job = Unread::start(&[]);
    // It is slow; the job waits for it, and neither ends nor prints a message.
    let mut one = [PollFd::new(job.errors.get_ref(), PollFlags::IN)];
    let time = Timespec {
        tv_sec: 3,
        tv_nsec: 0,
    };
    assert_eq!(poll(&mut one, Some(&time)), Ok(0));
    let mut pipe = job.child.stdout.take().expect("a pipe");
    let mut printed = String::new();
    pipe.read_to_string(&mut printed).expect("words");
    let status = job.child.wait().expect("an end");
    assert!(status.success(), "{status}");
    let mut ranks = BTreeMap::<&str, Vec<usize>>::new();
    for line in printed.lines() {
        let (rank, number) = line.split_once(": ").expect(line);
        let numbers = ranks.entry(rank).or_default();
        numbers.push(number.parse().expect(line));
    }
    let all: Vec<usize> = (1..=LINES).collect();
    assert_eq!(ranks.keys().collect::<Vec<_>>(), [&"0", &"1", &"2", &"3"]);
    assert!(ranks.values().all(|numbers| *numbers == all));
}

/// Dropped lines are counted (run-2).
#[test]
fn a_reader_that_reads_nothing_is_given_up() {
    let (status, last, printed) = Unread::start(&["--start-timeout", "20"]).end();
    let words = expect_losses(&last, &printed);
    let expected = "lines of the ranks' standard output are lost: the reader has taken nothing for 20 s \
                    (--start-timeout)";
    assert_eq!((words.as_str(), status.code()), (expected, Some(1)));
}

/// run-2.
#[test]
fn a_signal_ends_the_wait_for_the_reader() {
    let job = Unread::start(&["--grace", "60"]);
    let pid = Pid::from_raw(job.child.id() as i32).expect("a pid");
    kill_process(pid, Signal::INT).expect("it runs");
    let (status, last, printed) = job.end();
    let words = expect_losses(&last, &printed);
    let expected = "lines of the ranks' standard output are lost: signal 2 came before the reader had \
                    taken them";
    assert_eq!((words.as_str(), status.code()), (expected, Some(130)));
}

/// As under mpirun and srun: a job must not compute for a reader that has left (run-2).
#[test]
fn a_job_without_a_reader_ends() {
    let script = "while :; do echo word; echo error >&2; done";
    let mut child = muster_run()
        .args(["--nodes", "2", "-n", "4", "--label", "--", "sh", "-c"])
        .arg(script)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("muster can be started");
    let mut first = String::new();
    let mut pipe = BufReader::new(child.stdout.take().expect("a pipe"));
    pipe.read_line(&mut first).expect("a line");
    assert!(first.ends_with(": word\n"), "{first}");
    drop(pipe);
    let errors = child.wait_with_output().expect("an end");
    let text = String::from_utf8_lossy(&errors.stderr).into_owned();
    let printed = text.lines().filter(|line| !line.ends_with(": error"));
    // The shells' own messages about that do not count.
    let printed: Vec<&str> = printed
        .filter(|line| line.starts_with("muster run"))
        .collect();
    let words = "muster run: n1: the reader of standard output is gone; the job is ended";
    assert_eq!((printed, errors.status.code()), (vec![words], Some(141)));
}

/// A rank is not stopped by a full disk, but the job has failed (run-2).
#[test]
fn output_lost_on_a_full_disk_is_reported() {
    let full = OpenOptions::new().write(true).open("/dev/full");
    let run = muster_run()
        .args(["--nodes", "2", "-n", "4", "--label", "--", "seq", "100"])
        .stdout(Stdio::from(full.expect("/dev/full")))
        .output()
        .expect("muster can be started");
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(1), "{text}");
    for node in ["n1", "n2"] {
        for words in [
            "standard output (/dev/full): No space left on device",
            "200 lines of the ranks' standard output are lost: they could not be written",
        ] {
            let words = format!("muster run: {node}: {words}");
            assert_eq!(text.matches(&words).count(), 1, "{text}");
        }
    }
    assert_eq!(text.lines().count(), 4, "{text}");
}

/// Ranks write to the file themselves, and may not check the result (run-2).
#[test]
fn a_file_that_cannot_be_written_is_reported() {
    for (script, status) in [("echo word; exit 0", 1), ("echo word; exit 3", 3)] {
        let script = format!("exec 2>&-; {script}");
        let words = ["sh", "-c", &script];
        let run = run(
            &["--nodes", "2", "-n", "4", "--output", "/dev/full"],
            &words,
        );
        let text = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(status), "{text}");
        for node in ["n1", "n2"] {
            let words = format!("muster run: {node}: --output /dev/full: No space left on device");
            assert_eq!(text.matches(&words).count(), 1, "{text}");
        }
        let ended = format!("ended with status {status}\n");
        let reported = usize::from(status == 3);
        assert_eq!(text.matches(&ended).count(), reported, "{text}");
        assert_eq!(text.lines().count(), 2 + reported, "{text}");
    }
}

/// Whatever the bytes are, and whichever ranks write at the same time (run-2).
#[test]
fn output_arrives_unchanged() {
    let script = "i=0; while [ $i -lt 10 ]; do i=$((i+1)); \
                  printf 'a\\0b\\377 %s\\n' $i; head -c 3000 /dev/zero | tr '\\0' x; echo; \
                  done; printf 'no end'";
    let run = run(
        &["--nodes", "2", "-n", "64", "--label"],
        &["sh", "-c", script],
    );
    assert!(run.status.success(), "{run:?}");
    let mut ranks = BTreeMap::<Vec<u8>, Vec<u8>>::new();
    let lines = run.stdout.split_inclusive(|byte| *byte == b'\n');
    for line in lines {
        let at = line.iter().position(|byte| *byte == b':').expect("a rank");
        let words = ranks.entry(line[..at].to_vec()).or_default();
        words.extend(&line[at + 2..]);
    }
    let expected = Command::new("sh").args(["-c", script]).output();
    let mut expected = expected.expect("sh can be started").stdout;
    expected.push(b'\n');
    assert_eq!(ranks.len(), 64);
    for (rank, words) in ranks {
        let rank = String::from_utf8_lossy(&rank).into_owned();
        assert!(
            words == expected,
            "{rank}: {}",
            String::from_utf8_lossy(&words)
        );
    }
}
