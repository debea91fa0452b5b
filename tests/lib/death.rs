//! A death in a job at a time that the test chooses, and the files that its survivors write.
//!
//! No clock is involved: the victim waits for a file, the test waits for the files of the survivors, and a
//! launcher that would end them is stopped meanwhile.

use crate::DEADLINE;
use crate::job::Job;
use crate::process::{name_of, processes_with, signal_all};
use rustix::event::{Timespec, poll};
use rustix::process::{Pid, Signal};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// A death in a job, and the reaction of its survivors.
pub struct Death {
    /// The death occurs when this many lines have started with this text.
    pub when: (&'static str, usize),
    /// This many survivors, from rank 0, then write a file with this name and their number.
    pub written: (&'static str, usize),
    /// Whether the launcher, which would end the survivors, is stopped from before the death until they have
    /// written.
    pub held: bool,
}

/// Runs a launcher whose job gets its death by a file "die".
///
/// # Panics
/// If it cannot be started.
pub fn run_with_death(launcher: &mut Command, folder: &Path, death: &Death) -> Job {
    let mut job = Job::launch(launcher, folder);
    let (word, count) = death.when;
    if job.read_until(|job| job.count(word) >= count) {
        let held = death.held.then(|| hold_launcher(folder));
        request_death(folder);
        let has_written = await_written(folder, death.written);
        drop(held);
        if !has_written {
            job.stop();
        }
    }
    job.read_to_end();
    job
}

/// Tells the victim of the job in this folder to die.
///
/// # Panics
/// If the folder cannot be written to.
pub fn request_death(folder: &Path) {
    std::fs::write(folder.join("die"), "").expect("a file");
}

const MILLISECOND: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// Waits until this many ranks have written their files with this name. Returns `false` at the deadline.
pub fn await_written(folder: &Path, (name, ranks): (&str, usize)) -> bool {
    await_files(|| (0..ranks).all(|rank| written(folder, name, rank).is_some()))
}

/// Waits until this holds of some files. Returns `false` at the deadline. Files have no descriptor to wait
/// for.
pub fn await_files(are_there: impl Fn() -> bool) -> bool {
    let until = Instant::now() + DEADLINE;
    while !are_there() {
        if Instant::now() > until {
            return false;
        }
        let _ = poll(&mut [], Some(&MILLISECOND));
    }
    true
}

/// The content of a rank's file with this name.
pub fn written(folder: &Path, name: &str, rank: usize) -> Option<String> {
    std::fs::read_to_string(folder.join(format!("{name}-{rank}"))).ok()
}

/// Processes that are stopped until this value is dropped.
pub struct Held(Vec<Pid>);

impl Drop for Held {
    fn drop(&mut self) {
        signal_all(&self.0, Signal::CONT);
    }
}

/// Stops the launcher of the job in this folder: all its processes that are neither ranks nor agents.
///
/// # Panics
/// If there is none.
pub fn hold_launcher(folder: &Path) -> Held {
    let is_rank = |pid: &Pid| {
        let path = format!("/proc/{}/environ", pid.as_raw_nonzero());
        let environment = std::fs::read(path).unwrap_or_default();
        let marks: [&[u8]; 2] = [b"PMIX_RANK=", b"PMI_RANK="];
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|one| marks.iter().any(|mark| one.starts_with(mark)))
    };
    let mut pids = processes_with(&[format!("MUSTER_DIR={}", folder.display())]);
    pids.retain(|pid| !is_rank(pid) && name_of(*pid) != "musterd");
    assert!(!pids.is_empty(), "there is no launcher");
    signal_all(&pids, Signal::STOP);
    Held(pids)
}
