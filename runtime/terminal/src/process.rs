//! Processes that a command started or found: inspected through `/proc`, signalled by pid.
//!
//! A pid may be reused. So each process is kept with its start time, which is checked before every signal: a command
//! never signals another process by mistake.

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// A process, identified by pid and start time.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    /// Start time in clock ticks since boot, field 22 of `/proc/PID/stat`.
    start_time: u64,
}

impl Process {
    /// Finds the process with this pid; none if there is none or it is a zombie.
    pub fn find(pid: u32) -> Option<Self> {
        let fields = stat_fields(pid)?;
        let start_time = fields.get(19)?.parse().ok()?;
        (fields.first().map(String::as_str) != Some("Z")).then_some(Self { pid, start_time })
    }

    /// Whether the process still runs. A zombie does not.
    pub fn is_running(&self) -> bool {
        Self::find(self.pid).is_some_and(|now| now.start_time == self.start_time)
    }

    /// Whether a signal has stopped the process.
    pub fn is_stopped(&self) -> bool {
        stat_fields(self.pid).is_some_and(|fields| fields.first().is_some_and(|state| state == "T"))
    }

    /// Sends a signal. No error is returned if the process has ended.
    pub fn signal(&self, signal: Signal) {
        if self.is_running()
            && let Some(pid) = Pid::from_raw(self.pid as i32)
        {
            // The process may end between the check and the signal: nothing is to be done then.
            let _ = kill_process(pid, signal);
        }
    }

    /// The pid of the parent process.
    pub fn parent(&self) -> Option<u32> {
        stat_fields(self.pid)?.get(1)?.parse().ok()
    }

    /// The value of a variable in the environment with which the process was started.
    pub fn environment(&self, name: &str) -> Option<String> {
        let bytes = fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        let prefix = format!("{name}=");
        bytes
            .split(|&byte| byte == 0)
            .filter_map(|entry| std::str::from_utf8(entry).ok())
            .find_map(|entry| entry.strip_prefix(&prefix).map(str::to_owned))
    }

    /// CPU time in nanoseconds and the number of time slices, summed over all threads.
    pub fn schedule(&self) -> Option<(u64, u64)> {
        let mut sum = (0, 0);
        for task in fs::read_dir(format!("/proc/{}/task", self.pid))
            .ok()?
            .flatten()
        {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            let mut numbers = text
                .split_whitespace()
                .filter_map(|word| word.parse::<u64>().ok());
            sum.0 += numbers.next()?;
            sum.1 += numbers.nth(1)?;
        }
        Some(sum)
    }

    /// Private dirty memory, in kB: written to, and not shared with another process.
    pub fn private_kb(&self) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid)).ok()?;
        let lines = text
            .lines()
            .filter(|line| line.starts_with("Private_Dirty:"));
        lines
            .map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
            .sum()
    }

    /// Whether the main thread has a real-time scheduling policy.
    pub fn is_real_time(&self) -> bool {
        // Fields 40 and 41 of stat: only real-time policies have a priority above zero.
        let fields = stat_fields(self.pid);
        fields.is_some_and(|fields| fields.get(37).is_some_and(|priority| priority != "0"))
    }

    /// Bytes sent over the interfaces of its network namespace whose names begin with `interfaces`.
    pub fn sent_on(&self, interfaces: &str) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/net/dev", self.pid)).ok()?;
        let sent = |line: &str| {
            let (name, figures) = line.split_once(':')?;
            let figure = figures.split_whitespace().nth(8)?;
            let wanted = name.trim().starts_with(interfaces);
            wanted.then(|| figure.parse::<u64>().ok())?
        };
        Some(text.lines().filter_map(sent).sum())
    }

    /// The number of open file descriptors.
    pub fn open_files(&self) -> usize {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid));
        entries.map_or(0, Iterator::count)
    }
}

/// All running processes whose command name is `name`.
pub fn named(name: &str) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
        })
        .filter_map(Process::find)
        .collect()
}

/// Nanoseconds of CLOCK_MONOTONIC, the clock of all time stamps of Muster.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Set by SIGINT and SIGTERM after [`notice_interruption`] was called.
static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Makes SIGINT and SIGTERM end every wait instead of the process, so that a command
/// can clean up what it started.
pub fn notice_interruption() {
    for signal in [SIGINT, SIGTERM] {
        // Without a handler, an interruption leaves processes running. That is no reason to fail.
        let _ = signal_hook::flag::register(signal, Arc::clone(&INTERRUPTED));
    }
}

/// Whether SIGINT or SIGTERM was received.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Polls every 5 ms until `done` returns true. Returns false after the deadline, or if interrupted.
pub fn wait_until(deadline: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + deadline;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= end || is_interrupted() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The fields of `/proc/PID/stat` after the command name: state first.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}
