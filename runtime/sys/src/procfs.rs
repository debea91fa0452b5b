//! Reads facts about a process and its tasks from `/proc`.
//!
//! Parsing is separate from reading, so that it can be tested with text. Two results are distinguished: "no such
//! process" (see [`is_gone`]), which is a fact about the process, and any other error (no descriptor left, no
//! memory), which is one about the agent.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// The task is exiting.
const PF_EXITING: u32 = 0x4;
/// The task is exiting with a core dump, or waits for one (PF_POSTCOREDUMP, PF_DUMPCORE; `is_dumping_core` confirms
/// the meaning of both bits).
const PF_CORE_HINT: u32 = 0x8 | 0x200;
/// The task is frozen (kernels before 6.1).
const PF_FROZEN: u32 = 0x10000;
/// Bit of SIGKILL in a signal mask.
const SIGKILL_BIT: u64 = 1 << 8;

/// The fields of a `stat` file that the watch needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The character of the state.
    pub state: u8,
    /// The kernel's task flags.
    pub flags: u32,
    /// User and system time used, in ticks.
    pub cpu_ticks: u64,
    /// Start time, in ticks since boot.
    pub start_ticks: u64,
    /// The status of wait(2), once the group is exiting and if the reader has the permission; else 0.
    pub exit_status: i32,
}

impl Stat {
    /// Parses the text of a `stat` file. The name in parentheses may contain any characters, so fields are counted
    /// from the last parenthesis.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let close = text.iter().rposition(|byte| *byte == b')')?;
        let text = std::str::from_utf8(text.get(close + 1..)?).ok()?;
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        // Field 3 of proc(5) is index 0 here.
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            flags: number(6)? as u32,
            cpu_ticks: number(11)?.saturating_add(number(12)?),
            start_ticks: number(19)?,
            exit_status: number(49).unwrap_or(0) as i32,
        })
    }

    /// Whether it is exiting, dead or a zombie.
    pub fn is_exiting(&self) -> bool {
        self.flags & PF_EXITING != 0 || matches!(self.state, b'Z' | b'X')
    }

    /// Whether it may be writing a core dump; `is_dumping_core` confirms it.
    pub fn hints_at_core_dump(&self) -> bool {
        self.flags & (PF_CORE_HINT | PF_EXITING) != 0
    }

    /// The signal of the exit status, 0 if none or unknown.
    pub fn signal(&self) -> i32 {
        signal_and_code(self.exit_status).0
    }

    /// The exit code of the exit status, 0 if none or unknown.
    pub fn exit_code(&self) -> i32 {
        signal_and_code(self.exit_status).1
    }
}

/// The signal and the exit code in a status of wait(2); one of them is 0.
pub fn signal_and_code(status: i32) -> (i32, i32) {
    match status & 0x7f {
        0 => (0, (status >> 8) & 0xff),
        signal => (signal, 0),
    }
}

/// A process's `stat` file, kept open. A read costs 2 us. If the pid is reused, it returns "no such process" instead
/// of another process's data.
#[derive(Debug)]
pub struct StatFile(File);

impl StatFile {
    /// Opens it.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/stat")).map(Self)
    }

    /// Reads it. Returns an error if the process has been reaped.
    pub fn read(&self) -> io::Result<Stat> {
        let mut buffer = [0; 1024];
        let length = self.0.read_at(&mut buffer, 0)?;
        Stat::parse(&buffer[..length]).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Whether an error means that there is no such process. Any other error is no evidence about the process.
pub fn is_gone(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Start time of a process, in ticks since boot.
pub fn start_ticks(pid: u32) -> io::Result<u64> {
    Ok(StatFile::open(pid)?.read()?.start_ticks)
}

/// The pid of a process in the innermost of its namespaces.
pub fn innermost_pid(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

/// Whether `/proc` belongs to the pid namespace of this process. In that of another namespace the same number is a
/// different process.
pub fn is_ours() -> bool {
    let own = std::process::id().to_string();
    fs::read_link("/proc/self").is_ok_and(|target| target.as_os_str() == own.as_str())
}

/// The parent of a process, unless it is gone or an orphan.
pub fn parent(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    fields
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
        .filter(|parent| *parent > 1)
}

/// Whether the process with this pid and start time exists (a zombie does not count). Returns true if that is not
/// known.
pub fn is_alive(pid: u32, start_ticks: u64) -> bool {
    match StatFile::open(pid).and_then(|file| file.read()) {
        Ok(stat) if stat.start_ticks != start_ticks => false,
        // A leader that ended is a zombie while other threads run.
        Ok(stat) if stat.state == b'Z' => {
            tasks(pid).map_or_else(|cause| !is_gone(&cause), |tasks| tasks.len() > 1)
        }
        Ok(_) => true,
        Err(cause) => !is_gone(&cause),
    }
}

/// The ids of a process's tasks.
pub fn tasks(pid: u32) -> io::Result<Vec<u32>> {
    let mut ids = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        ids.extend(
            entry?
                .file_name()
                .to_str()
                .and_then(|id| id.parse::<u32>().ok()),
        );
    }
    Ok(ids)
}

/// The content of a file. The buffer holds most files, so that one read returns it and one finds the end.
fn read_at_once(path: &str) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(4096);
    File::open(path)?.read_to_end(&mut text)?;
    Ok(text)
}

/// The `stat` data of a task.
pub fn task_stat(pid: u32, task: u32) -> io::Result<Stat> {
    let text = read_at_once(&format!("/proc/{pid}/task/{task}/stat"))?;
    Stat::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether SIGKILL is pending for a task or for its whole process.
pub fn is_kill_pending(pid: u32, task: u32) -> bool {
    let status = read_at_once(&format!("/proc/{pid}/task/{task}/status"));
    status.is_ok_and(|status| {
        let status = String::from_utf8_lossy(&status);
        ["SigPnd:", "ShdPnd:"].iter().any(|name| {
            let mask = field(&status, name).and_then(|text| u64::from_str_radix(text, 16).ok());
            mask.is_some_and(|mask| mask & SIGKILL_BIT != 0)
        })
    })
}

/// Whether the process writes a core dump. `None` if that is not known any more.
pub fn is_dumping_core(pid: u32) -> Option<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(field(&status, "CoreDumping:") == Some("1"))
}

/// Whether the process is frozen by its control group (`scontrol suspend`, a checkpoint). It looks stuck (D) or
/// asleep, but is neither dead nor hung.
pub fn is_frozen(pid: u32, flags: u32) -> bool {
    if flags & PF_FROZEN != 0 {
        return true;
    }
    let wait = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    if wait.contains("refrigerator") || wait.contains("freeze") {
        return true;
    }
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups.lines().any(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            return false;
        };
        if controllers.split(',').any(|name| name == "freezer") {
            let file = format!("/sys/fs/cgroup/freezer{path}/freezer.state");
            return fs::read_to_string(file).is_ok_and(|state| state.trim() != "THAWED");
        }
        // Version 2 alone, or mounted next to version 1.
        let mut places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].iter();
        controllers.is_empty()
            && places.any(|place| {
                let events = fs::read_to_string(format!("{place}{path}/cgroup.events"));
                events.is_ok_and(|text| field(&text, "frozen") == Some("1"))
            })
    })
}

/// The first word after a line's name.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parentheses_in_a_name_do_not_shift_fields() {
        let tail = "S 1 2 2 0 -1 4194308 0 0 0 0 11 22 0 0 20 0 1 0 4711 1 1 0";
        let stat = Stat::parse(format!("7 (a) R (b)) {tail}").as_bytes()).unwrap();
        assert_eq!(
            (stat.state, stat.start_ticks, stat.cpu_ticks),
            (b'S', 4711, 33)
        );
        assert!(stat.is_exiting());
        assert_eq!(Stat::parse(b"7 (x"), None);
        assert_eq!(Stat::parse(b"7 (x) S 1"), None);
    }

    #[test]
    fn this_process_is_alive_and_one_with_another_start_time_is_not() {
        let pid = std::process::id();
        let start = start_ticks(pid).unwrap();
        assert!(is_alive(pid, start));
        assert!(!is_alive(pid, start + 1));
        assert!(!task_stat(pid, pid).unwrap().is_exiting());
        assert!(!is_kill_pending(pid, pid));
        assert_eq!(is_dumping_core(pid), Some(false));
        assert_eq!((innermost_pid(pid), is_ours()), (Some(pid), true));
    }
}
