//! Starts a program from a rank without a fork.
//!
//! A fork of a rank with 4 GB takes 88 ms and is a hazard with pinned memory; `posix_spawn` shares the
//! address space until exec and takes half a millisecond at any size.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

/// Starts `path` with these arguments (the first one is its name) and exactly this environment:
/// in a new session, signals at their defaults and unblocked, stdin and stdout at `/dev/null`,
/// stderr at `errors`, so that the reason of a failed start can be read. Returns the child's pid; the
/// caller reaps the child.
pub fn spawn(
    path: &Path,
    arguments: &[CString],
    environment: &[CString],
    errors: BorrowedFd<'_>,
) -> io::Result<u32> {
    use std::os::unix::ffi::OsStrExt;
    let program = CString::new(path.as_os_str().as_bytes())?;
    let arguments = pointers(arguments);
    let environment = pointers(environment);
    let mut pid = 0;
    // SAFETY: both objects are initialised before use and destroyed after it; every pointer array
    // ends with a null and points to strings that outlive the call.
    let code = unsafe {
        let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
        let mut attributes: libc::posix_spawnattr_t = std::mem::zeroed();
        libc::posix_spawn_file_actions_init(&raw mut actions);
        libc::posix_spawnattr_init(&raw mut attributes);
        // This comes first: `errors` may have the number of a standard stream, if the caller has closed its own.
        libc::posix_spawn_file_actions_adddup2(&raw mut actions, errors.as_raw_fd(), 2);
        for (fd, mode) in [(0, libc::O_RDONLY), (1, libc::O_WRONLY)] {
            let null = c"/dev/null".as_ptr();
            libc::posix_spawn_file_actions_addopen(&raw mut actions, fd, null, mode, 0);
        }
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::posix_spawnattr_setsigmask(&raw mut attributes, &raw const signals);
        libc::sigfillset(&raw mut signals);
        libc::posix_spawnattr_setsigdefault(&raw mut attributes, &raw const signals);
        let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF | SETSID;
        libc::posix_spawnattr_setflags(&raw mut attributes, flags as libc::c_short);
        let code = libc::posix_spawn(
            &raw mut pid,
            program.as_ptr(),
            &raw const actions,
            &raw const attributes,
            arguments.as_ptr(),
            environment.as_ptr(),
        );
        libc::posix_spawnattr_destroy(&raw mut attributes);
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
        code
    };
    if code == 0 {
        Ok(pid as u32)
    } else {
        Err(io::Error::from_raw_os_error(code))
    }
}

/// `POSIX_SPAWN_SETSID` of glibc (2.26), which the libc crate does not name everywhere.
const SETSID: i32 = 0x80;

fn pointers(strings: &[CString]) -> Vec<*mut libc::c_char> {
    let ends = std::iter::once(std::ptr::null_mut());
    strings
        .iter()
        .map(|string| string.as_ptr().cast_mut())
        .chain(ends)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::create_file;
    use crate::process::{open_pidfd, try_reap};
    use std::io::{Read, Seek};
    use std::os::fd::AsFd;
    use std::time::Duration;

    #[test]
    fn a_child_runs_with_its_own_environment() {
        let script = c"echo sorry >&2; exit ${CODE:-9}";
        let arguments = [c"sh".into(), c"-c".into(), script.into()];
        let mut errors = create_file(c"muster-test").unwrap();
        let environment = [c"CODE=7".into()];
        let pid = spawn(
            Path::new("/bin/sh"),
            &arguments,
            &environment,
            errors.as_fd(),
        )
        .unwrap();
        let pidfd = open_pidfd(pid).unwrap();
        let ended = super::super::poll::readable(&[pidfd.as_fd()], Some(Duration::from_secs(30)));
        assert!(ended.unwrap()[0]);
        assert_eq!(try_reap(pid).unwrap().unwrap().code(), Some(7));
        let mut printed = String::new();
        errors.rewind().unwrap();
        errors.read_to_string(&mut printed).unwrap();
        assert_eq!(printed, "sorry\n");
    }

    #[test]
    fn a_missing_program_is_an_error_of_the_caller() {
        let errors = create_file(c"muster-test").unwrap();
        let path = Path::new("/nonexistent/musterd");
        let cause = spawn(path, &[], &[], errors.as_fd()).unwrap_err();
        assert_eq!(cause.kind(), io::ErrorKind::NotFound);
    }
}
