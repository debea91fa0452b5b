//! A library that was loaded before a fork works in the child.
//!
//! The supervisor loads libfabric once and forks workers. If each worker had to initialise the providers again,
//! or if they did not survive the fork, a worker's restart would cause a false failure report. The test is in
//! this folder because a fork is `unsafe`.

use crate::{Arrival, Class, Fabric, FabricConfig, Route, Transport};
use std::os::fd::AsRawFd;

/// Longest time that the child waits for its own message, milliseconds.
const DEADLINE_MS: i32 = 20_000;

#[test]
fn a_forked_child_opens_rails_and_receives_its_own_message() {
    let library = crate::load().expect("libfabric is installed where tests run");
    // SAFETY: the child runs only `child`, which uses its own memory and objects that it opens itself. It ends
    // without running the parent's destructors.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let failed = std::panic::catch_unwind(|| child(library)).unwrap_or(Some("panic"));
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(failed.is_some())) };
    }
    let mut status = -1;
    // SAFETY: the process is our own child, and there is room for its status.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "the child's wait status");
}

/// Returns the step that failed, or `None`.
fn child(library: crate::Libfabric) -> Option<&'static str> {
    let Ok(rail) = "127.41.9.1:0@udp".parse() else {
        return Some("NID");
    };
    let Ok(mut fabric) = Fabric::open(&FabricConfig::new(library, vec![rail])) else {
        return Some("open");
    };
    let Ok(own) = fabric.peer(&fabric.local_nids()) else {
        return Some("peer");
    };
    fabric.send(0, own, Class::News, Route::Next, b"to myself");
    let mut received = false;
    while !received {
        fabric.poll(0, &mut |arrival: Arrival<'_>| {
            received |= arrival.bytes == b"to myself";
        });
        if !received && fabric.may_sleep() && !wait(&fabric) {
            return Some("no message arrived");
        }
    }
    None
}

fn wait(fabric: &Fabric) -> bool {
    let fd = fabric.wait_fds()[0].as_raw_fd();
    let mut readable = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the array has one entry, with an open descriptor.
    unsafe { libc::poll(&raw mut readable, 1, DEADLINE_MS) == 1 }
}
