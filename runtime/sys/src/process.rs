//! Other processes: a descriptor that reports the end of a process, signals, reaping, ids.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::check;

/// A descriptor that becomes readable when the process has ended, with any parent (Linux 5.3).
/// That is after the kernel has torn down the address space: 80 ms per resident gigabyte.
pub fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0u32) };
    check("pidfd_open", fd)?;
    // SAFETY: the kernel has just created this descriptor; it is closed at exec by design.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// How the process of a pidfd ended, as wait(2)'s status. The kernel keeps it for the holders of the process's
/// descriptors after the process was reaped (Linux 6.15). `None` while the process is not reaped, and if the kernel
/// does not keep it.
pub fn status_of_reaped(pidfd: BorrowedFd<'_>) -> Option<i32> {
    // `struct pidfd_info`, its first published size, as sixteen words: mask (2), cgroup (2), pids and
    // owners (11), wait status.
    const WORDS: usize = 16;
    const WAIT_STATUS: usize = 15;
    const PIDFD_INFO_EXIT: u32 = 1 << 3;
    // _IOWR(0xFF, 11, struct pidfd_info)
    const PIDFD_GET_INFO: u32 = 3 << 30 | (4 * WORDS as u32) << 16 | 0xFF << 8 | 11;
    let mut info = [0u32; WORDS];
    // The mask is one 64-bit word in native byte order.
    let mask = u64::from(PIDFD_INFO_EXIT).to_ne_bytes();
    for (word, bytes) in info.iter_mut().zip(mask.chunks_exact(4)) {
        *word = u32::from_ne_bytes(bytes.try_into().ok()?);
    }
    let requested = info;
    // SAFETY: the request contains the size of `info`, and the kernel writes at most that.
    let answer = unsafe {
        libc::ioctl(
            pidfd.as_raw_fd(),
            PIDFD_GET_INFO as libc::Ioctl,
            info.as_mut_ptr(),
        )
    };
    let has_status = info
        .iter()
        .zip(requested)
        .take(2)
        .all(|(now, requested)| now & requested == requested);
    (answer == 0 && has_status).then_some(info[WAIT_STATUS] as i32)
}

/// Sends a signal.
pub fn send_signal(pid: u32, signal: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    let answer = unsafe { libc::kill(pid as libc::pid_t, signal) };
    check("kill", i64::from(answer)).map(|_| ())
}

/// Sends a signal to the process of a pidfd (Linux 5.1).
pub fn send_signal_by(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let no_details = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: without details the kernel uses those of kill.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            no_details,
            0u32,
        )
    };
    check("pidfd_send_signal", answer).map(|_| ())
}

/// The children of a process and their descendants, except those that have started their own session, which are meant
/// to outlive their parent.
pub fn descendants(pid: u32) -> Vec<u32> {
    // SAFETY: no pointers.
    let session = |pid: u32| unsafe { libc::getsid(pid as libc::pid_t) };
    let own = session(pid);
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        let tasks = std::fs::read_dir(format!("/proc/{parent}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children"));
            let children = children.unwrap_or_default();
            let children = children
                .split_whitespace()
                .filter_map(|word| word.parse().ok());
            let new: Vec<u32> = children
                .filter(|child| session(*child) == own && !found.contains(child))
                .collect();
            found.extend(new);
        }
    }
    found.split_off(1)
}

/// How a child ended, if it has. `ECHILD` if it is not a child of this process, or was reaped elsewhere in this
/// process.
pub fn try_reap(pid: u32) -> io::Result<Option<ExitStatus>> {
    let mut status = 0;
    // SAFETY: `status` is writable.
    let answer = unsafe { libc::waitpid(pid as libc::pid_t, &raw mut status, libc::WNOHANG) };
    let has_ended = check("waitpid", i64::from(answer))? != 0;
    Ok(has_ended.then(|| ExitStatus::from_raw(status)))
}

/// The effective user id of this process.
pub fn user_id() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() }
}

/// The effective user id outside of this process's user namespace; usually the same id.
/// `None` if the namespace does not map it, and so the outer id is not known.
pub fn outer_user_id() -> Option<u32> {
    let own = user_id();
    match std::fs::read_to_string("/proc/self/uid_map") {
        Ok(map) => mapped(&map, own),
        // A kernel without user namespaces, or without /proc.
        Err(_) => Some(own),
    }
}

/// The outer id, from the lines of a map: first id inside, first outside, count.
fn mapped(map: &str, id: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        let (inside, outside, count) = (next()?, next()?, next()?);
        let offset = id.checked_sub(inside).filter(|offset| *offset < count)?;
        outside.checked_add(offset)
    })
}

/// The host's name; converted lossily if it is not UTF-8.
pub fn host_name() -> io::Result<String> {
    let mut buffer = [0u8; 256];
    // SAFETY: the last byte stays zero, so the text is terminated.
    let answer = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
    check("gethostname", i64::from(answer))?;
    let length = buffer.iter().position(|byte| *byte == 0).unwrap_or(0);
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// Removes the `MUSTER_*` variables that are empty: they count as not set. Call it at the
/// start of a program; once there is a second thread it does nothing.
pub fn forget_empty_settings() {
    if !std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1) {
        return;
    }
    let empty = |(name, value): &(std::ffi::OsString, std::ffi::OsString)| {
        value.is_empty() && name.as_encoded_bytes().starts_with(b"MUSTER_")
    };
    for (name, _) in std::env::vars_os().filter(empty).collect::<Vec<_>>() {
        // SAFETY: this is the only thread, so no other thread reads the environment meanwhile.
        unsafe { std::env::remove_var(name) };
    }
}

/// The path of the executable or shared object that holds this code.
pub fn own_object() -> Option<std::path::PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: all-zero is a valid Dl_info for dladdr to fill.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address is permitted; `info` is writable.
    let found = unsafe { libc::dladdr(own_object as *const libc::c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr returned a NUL-terminated name that is valid as long as the object, and so this code, is loaded.
    let name = unsafe { std::ffi::CStr::from_ptr(info.dli_fname) };
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    path.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::process::Command;

    /// The status is available after the process was reaped by any caller; before, and on older kernels, there is none.
    #[test]
    fn the_status_of_a_reaped_process_is_kept() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pidfd = open_pidfd(child.id()).unwrap();
        assert_eq!(status_of_reaped(pidfd.as_fd()), None);
        child.kill().unwrap();
        child.wait().unwrap();
        let status = status_of_reaped(pidfd.as_fd());
        assert!(matches!(status, None | Some(libc::SIGKILL)), "{status:?}");
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
        let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
        assert!(
            status.is_some() || (next(), next()) < (6, 15),
            "no status on Linux {release}"
        );
    }

    #[test]
    fn an_id_is_mapped_by_the_map_of_its_namespace() {
        assert_eq!(
            mapped("         0          0 4294967295\n", 1000),
            Some(1000)
        );
        let container = "0 1000 1\n1 100000 65536\n";
        assert_eq!(mapped(container, 0), Some(1000));
        assert_eq!(mapped(container, 33), Some(100_032));
        assert_eq!(mapped(container, 65_537), None);
        assert_eq!(mapped("", 65_534), None);
        assert_eq!(mapped("nonsense", 0), None);
    }
}
