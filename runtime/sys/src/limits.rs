//! Resource limits of this process, and remedies for system errors that come from a limit.

use std::io;

/// With fewer open files an agent cannot serve its first client.
pub const OPEN_FILES_MIN: u64 = 64;
/// Open files of each client: its connection, its eventfd, its pidfd, and its file in /proc.
const OPEN_FILES_CLIENT: u64 = 4;
/// Enough for the clients of most nodes, and for their peers' connections on tcp rails.
const OPEN_FILES_WANTED: u64 = 1024;

/// The maximum number of clients of an agent with this limit of open files.
#[must_use]
pub fn clients_served(open_files: u64) -> u64 {
    open_files.saturating_sub(OPEN_FILES_MIN) / OPEN_FILES_CLIENT
}

/// With fewer open files a node with a rank on each processor may run out of them.
#[must_use]
pub fn open_files_wished() -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    OPEN_FILES_WANTED.max(OPEN_FILES_MIN + OPEN_FILES_CLIENT * processors)
}

/// The soft limit of open files of this process.
#[must_use]
pub fn open_files() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable for the call.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

/// Raises a soft limit to the hard one, and returns the result. A limit that cannot be raised does not
/// change.
fn raise(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is writable for the first call and readable for the second.
    unsafe {
        if libc::getrlimit(resource, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(resource, &raw const limit);
        }
        libc::getrlimit(resource, &raw mut limit);
    }
    limit.rlim_cur
}

/// A limit that `muster doctor` checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Open files.
    Files,
    /// Bytes of memory that may be locked, as memory registration requires.
    LockedMemory,
    /// The highest real-time priority.
    RealTime,
}

/// The hard limit of this process; `None` if there is none.
#[must_use]
pub fn hard(limit: Limit) -> Option<u64> {
    let resource = match limit {
        Limit::Files => libc::RLIMIT_NOFILE,
        Limit::LockedMemory => libc::RLIMIT_MEMLOCK,
        Limit::RealTime => libc::RLIMIT_RTPRIO,
    };
    let mut found = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `found` is writable for the call.
    unsafe { libc::getrlimit(resource, &raw mut found) };
    (found.rlim_max != libc::RLIM_INFINITY).then_some(found.rlim_max)
}

/// For an agent: raises the limits of descriptors and of file sizes to their maximum. The usual limit of 1024
/// descriptors is for programs that still use select, and every client needs four. A file that is still too large
/// then causes an error, not the end by SIGXFSZ. Returns how many files can be open.
pub fn raise_all() -> u64 {
    raise(libc::RLIMIT_FSIZE);
    // SAFETY: SIG_IGN is a valid disposition; no handler runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    raise(libc::RLIMIT_NOFILE)
}

/// The remedy for a system error that comes from a limit; empty for any other error.
#[must_use]
pub fn remedy(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::EMFILE) => "; raise the limit of open files (ulimit -n, at least 64)",
        Some(libc::EFBIG) => "; raise the limit of file sizes (ulimit -f): memory counts as one",
        Some(libc::ENOMEM) => "; raise the limit of memory (ulimit -v, or the cgroup's)",
        Some(libc::EAGAIN) => "; raise the limit of processes and threads (ulimit -u)",
        Some(libc::ENOSPC) => "; free some space there",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_from_limits_have_a_remedy() {
        let text = |code| remedy(&io::Error::from_raw_os_error(code));
        assert!(text(libc::EMFILE).contains("ulimit -n"));
        assert!(text(libc::EFBIG).contains("ulimit -f"));
        assert_eq!(text(libc::ENOENT), "");
    }
}
