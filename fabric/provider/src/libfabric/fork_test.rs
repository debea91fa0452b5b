//! A library that was loaded before a fork works in the child.
//!
//! The supervisor loads libfabric once and forks workers. If each worker had to initialise the providers again,
//! or if they did not survive the fork, a worker's restart would cause a false failure report.

use super::table;
use super::{Done, Lane, Libfabric, Limits};
use crate::NetKind;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;

/// Longest time that the child waits for its own message, milliseconds.
const DEADLINE_MS: i32 = 20_000;

#[test]
fn a_forked_child_opens_lanes_and_receives_its_own_message() {
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
fn child(library: Libfabric) -> Option<&'static str> {
    let limits = Limits {
        receives: 8,
        sends: 8,
        inject: true,
        wakes: true,
        message_max: 64,
        class: None,
        dscp: 0,
    };
    let row = table::datagram(NetKind::Udp)[0];
    let source = SocketAddrV4::new(Ipv4Addr::new(127, 41, 9, 1), 0);
    let Ok(mut lane) = Lane::open(&library, row, source, limits) else {
        return Some("open");
    };
    let Ok(own) = lane.local_address().and_then(|own| lane.insert(own)) else {
        return Some("address");
    };
    if lane.send(own, (), b"to myself").is_err() {
        return Some("send");
    }
    loop {
        while let Some(done) = lane.next_done() {
            if let Done::Received { slot, length } = done {
                let is_whole = lane.message(slot, length) == b"to myself";
                return (!is_whole).then_some("another message");
            }
        }
        if lane.may_sleep() && !wait(&lane) {
            return Some("no message arrived");
        }
    }
}

fn wait(lane: &Lane<()>) -> bool {
    let Some(fd) = lane.wait_fds().next().map(|fd| fd.as_raw_fd()) else {
        return false;
    };
    let mut readable = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the array has one entry, with an open descriptor.
    unsafe { libc::poll(&raw mut readable, 1, DEADLINE_MS) == 1 }
}
