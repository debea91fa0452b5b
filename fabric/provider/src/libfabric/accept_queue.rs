//! The number of connections that wait to be accepted at a listening socket, as the kernel reports it.
//!
//! It is in this folder because only the C library declares `tcp_info`, which requires `unsafe`.

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

/// How many connections wait to be accepted, and the limit; `None` if the socket does not listen.
#[must_use]
pub fn waiting(socket: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: all zeros is a valid tcp_info, and the kernel writes at most `length` bytes to it.
    let (returned, info) = unsafe {
        let mut info: libc::tcp_info = mem::zeroed();
        let returned = libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        );
        (returned, info)
    };
    // For a listening socket, these fields are the length of its accept queue and the limit of the queue.
    let listens = returned == 0 && info.tcpi_state == LISTEN;
    listens.then_some((info.tcpi_unacked, info.tcpi_sacked))
}

/// `TCP_LISTEN`.
const LISTEN: u8 = 10;
