//! Connections that wait at a listening socket: what the kernel says of them.
//!
//! Here because it needs a structure that only the C library describes.

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

/// How many wait to be accepted, and how many may; none if the socket does not listen.
pub(crate) fn waiting(socket: BorrowedFd<'_>) -> Option<(u32, u32)> {
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
    // Of a listening socket these are the connections that wait, and the limit that the system allows.
    let is_it = returned == 0 && info.tcpi_state == LISTEN;
    is_it.then_some((info.tcpi_unacked, info.tcpi_sacked))
}

/// `TCP_LISTEN`.
const LISTEN: u8 = 10;
