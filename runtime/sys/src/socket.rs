//! Unix sockets that keep message boundaries and can carry descriptors.
//!
//! SOCK_SEQPACKET: a message arrives whole or not at all, in order, and the end of a connection is reported. All
//! sockets here are non-blocking and closed at exec; the caller waits.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::check;

/// The longest path of a Unix socket, in bytes, without its NUL.
pub const PATH_MAX: usize = 107;
/// The most connections that wait to be accepted. A client that finds no space waits in the kernel; in a longer queue
/// it would wait behind more others. Kernels before 5.4 allow 128.
const QUEUE_MAX: i32 = 256;
/// The most descriptors a message carries here.
const DESCRIPTORS_MAX: usize = 4;

/// The process at the other end of a socket, as the kernel recorded it when the connection was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process id in this process's namespace; 0 if it has none there.
    pub pid: u32,
    /// Effective user id, mapped into this process's namespace.
    pub uid: u32,
}

impl Peer {
    /// The process at the other end of a Unix socket; for a client, the one that listened.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let mut credentials = libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: there is room for the credentials, and `length` is their size.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut length,
            )
        };
        check("getsockopt(SO_PEERCRED)", i64::from(answer))?;
        Ok(Self {
            pid: credentials.pid as u32,
            uid: credentials.uid,
        })
    }

    /// Whether its messages may be trusted: it runs as this user or as root; root trusts all users.
    pub fn is_trusted(self) -> bool {
        trusts(super::process::user_id(), self.uid)
    }
}

fn trusts(own: u32, other: u32) -> bool {
    other == own || other == 0 || own == 0
}

/// A listening socket with a path.
#[derive(Debug)]
pub struct PacketListener(OwnedFd);

impl PacketListener {
    /// Binds and listens. The path must be free and at most [`PATH_MAX`] bytes.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let fd = socket()?;
        let (address, length) = address(path)?;
        // SAFETY: `address` is a valid sockaddr_un of `length` bytes.
        unsafe {
            let pointer = (&raw const address).cast();
            check(
                "bind",
                i64::from(libc::bind(fd.as_raw_fd(), pointer, length)),
            )?;
            check("listen", i64::from(libc::listen(fd.as_raw_fd(), QUEUE_MAX)))?;
        }
        Ok(Self(fd))
    }

    /// The next connection, `None` if no client waits.
    pub fn accept(&self) -> io::Result<Option<Packets>> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the address is not requested.
        let fd = unsafe {
            libc::accept4(
                self.0.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                flags,
            )
        };
        match check("accept4", i64::from(fd)) {
            // SAFETY: the kernel has just created this descriptor.
            Ok(_) => Ok(Some(Packets(unsafe { OwnedFd::from_raw_fd(fd) }))),
            // The client closed the connection while it waited; the next call returns the next client.
            Err(cause) if cause.raw_os_error() == Some(libc::ECONNABORTED) => Ok(None),
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(cause) => Err(cause),
        }
    }
}

impl AsFd for PacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for PacketListener {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<PacketListener> for OwnedFd {
    fn from(listener: PacketListener) -> Self {
        listener.0
    }
}

/// The result of a receive.
#[derive(Debug)]
pub enum Received {
    /// A message of this length, with the descriptors that it carried.
    Message(usize, Vec<OwnedFd>),
    /// No message now.
    Nothing,
    /// The peer has closed the connection.
    HungUp,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Packets(OwnedFd);

impl Packets {
    /// Connects to a listener. ENOENT and ECONNREFUSED: there is no listener; EAGAIN: its
    /// queue is full.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let fd = socket()?;
        connect(fd.as_fd(), path)?;
        Ok(Self(fd))
    }

    /// As [`Self::connect`], but waits up to this time for space in the listener's queue. The kernel wakes the caller
    /// when the listener accepts a connection (SO_SNDTIMEO, socket(7)). A caller that tries again from time to time
    /// may find the queue full each time, while others connect as fast as they can.
    pub fn connect_within(path: &Path, time_out: Duration) -> io::Result<Self> {
        let socket = UnixStream::from(socket()?);
        // 0 would be no limit.
        socket.set_write_timeout(Some(time_out.max(Duration::from_millis(1))))?;
        socket.set_nonblocking(false)?;
        connect(socket.as_fd(), path)?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket.into()))
    }

    /// Two connected ends.
    pub fn pair() -> io::Result<(Self, Self)> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: room for two descriptors.
        let answer = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
        check("socketpair", i64::from(answer))?;
        // SAFETY: the kernel has just created both descriptors.
        unsafe {
            Ok((
                Self(OwnedFd::from_raw_fd(ends[0])),
                Self(OwnedFd::from_raw_fd(ends[1])),
            ))
        }
    }

    /// The process at the other end.
    pub fn peer(&self) -> io::Result<Peer> {
        Peer::of(self.0.as_fd())
    }

    /// Sends one message and at most one descriptor, without blocking (`WouldBlock` if the queue is full: then
    /// nothing was sent) and without SIGPIPE.
    pub fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.send_with(bytes, descriptor.as_slice())
    }

    /// As [`Self::send`], with at most [`DESCRIPTORS_MAX`] descriptors.
    pub fn send_with(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        assert!(descriptors.len() <= DESCRIPTORS_MAX);
        let mut part = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let mut control = ControlBuffer::new();
        // SAFETY: an all-zero header is a valid empty one.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if !descriptors.is_empty() {
            let size = size_of_val(descriptors) as u32;
            header.msg_control = control.0.as_mut_ptr().cast();
            // SAFETY: CMSG_SPACE only computes.
            header.msg_controllen = unsafe { libc::CMSG_SPACE(size) } as _;
            // SAFETY: the control buffer is aligned and has room for one header and the descriptors.
            unsafe {
                let first = libc::CMSG_FIRSTHDR(&raw const header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(size) as _;
                let places = libc::CMSG_DATA(first).cast::<RawFd>();
                for (index, descriptor) in descriptors.iter().enumerate() {
                    places.add(index).write_unaligned(descriptor.as_raw_fd());
                }
            }
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: header, parts and control buffer are valid for the call.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const header, flags) };
        check("sendmsg", sent as i64).map(|_| ())
    }

    /// Takes the next message into `buffer`. A message that is longer than the buffer is an error
    /// (`InvalidData`), and its descriptors are closed. Messages that the peer sent before it closed
    /// are still received.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        match self.receive_once(buffer) {
            // The kernel reports ECONNRESET first, and once, if the peer closed without reading all messages.
            // The peer's last messages follow.
            Err(cause) if cause.raw_os_error() == Some(libc::ECONNRESET) => {}
            // The kernel checks for messages first, and then for the end. If the peer sent and closed between the
            // two checks, its messages are available now.
            Ok(Received::HungUp) => {}
            answer => return answer,
        }
        match self.receive_once(buffer) {
            Err(cause) if cause.raw_os_error() == Some(libc::ECONNRESET) => Ok(Received::HungUp),
            answer => answer,
        }
    }

    fn receive_once(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let mut part = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let mut control = ControlBuffer::new();
        // SAFETY: an all-zero header is a valid empty one.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control.0) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: header, parts and control buffer are valid for the call.
        let length = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut header, flags) };
        match check("recvmsg", length as i64) {
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Received::Nothing);
            }
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {
                return Ok(Received::Nothing);
            }
            Err(cause) => return Err(cause),
            Ok(_) => {}
        }
        let descriptors = take_descriptors(&header);
        if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            let text = format!(
                "the message is longer than {} bytes or has too many descriptors",
                buffer.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        // In our protocols a message is never empty, so zero bytes are the end.
        if length == 0 {
            return Ok(Received::HungUp);
        }
        Ok(Received::Message(length as usize, descriptors))
    }
}

impl TryFrom<OwnedFd> for Packets {
    type Error = io::Error;

    /// A socket that arrived in a message. Any other type than a Unix socket of packets is refused.
    fn try_from(fd: OwnedFd) -> io::Result<Self> {
        let of = |option| socket_option(fd.as_fd(), option);
        let kind = (of(libc::SO_DOMAIN)?, of(libc::SO_TYPE)?);
        if kind == (libc::AF_UNIX, libc::SOCK_SEQPACKET) {
            return Ok(Self(fd));
        }
        let text = format!(
            "domain {} and type {} are not those of a Unix packet socket",
            kind.0, kind.1
        );
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An integer option of a socket.
fn socket_option(fd: BorrowedFd<'_>, option: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: there is room for a number, and `length` is its size.
    let answer = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    check("getsockopt", i64::from(answer)).map(|_| value)
}

/// Room for the control messages of [`DESCRIPTORS_MAX`] descriptors, aligned for their header.
struct ControlBuffer([MaybeUninit<u64>; 8]);

impl ControlBuffer {
    fn new() -> Self {
        // SAFETY: CMSG_SPACE only computes.
        let needed = unsafe { libc::CMSG_SPACE((DESCRIPTORS_MAX * size_of::<RawFd>()) as u32) };
        assert!(needed as usize <= size_of::<Self>());
        Self([MaybeUninit::zeroed(); 8])
    }
}

/// Takes ownership of every descriptor of a received message, wanted or not: otherwise
/// they would leak.
fn take_descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: the kernel wrote the control messages, and the macros stay within their length.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            if (*message).cmsg_level == libc::SOL_SOCKET && (*message).cmsg_type == libc::SCM_RIGHTS
            {
                let size = (*message).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for index in 0..size / size_of::<RawFd>() {
                    let data = libc::CMSG_DATA(message).cast::<RawFd>().add(index);
                    descriptors.push(OwnedFd::from_raw_fd(data.read_unaligned()));
                }
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    descriptors
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    check("socket", i64::from(fd))?;
    // SAFETY: the kernel has just created this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn connect(socket: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let (address, length) = address(path)?;
    // SAFETY: `address` is a valid sockaddr_un of `length` bytes.
    let answer = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
    check("connect", i64::from(answer)).map(drop)
}

pub(super) fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > PATH_MAX || bytes.contains(&0) {
        let text = format!(
            "{}: the path of a socket has at most {PATH_MAX} bytes",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    // SAFETY: an all-zero address is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::EventFd;

    #[test]
    fn another_user_is_not_trusted() {
        assert!(trusts(1000, 1000) && trusts(1000, 0) && trusts(0, 1000));
        assert!(!trusts(1000, 1001));
        let (one, _two) = Packets::pair().unwrap();
        assert!(one.peer().unwrap().is_trusted());
    }

    #[test]
    fn a_message_keeps_its_boundary_and_carries_its_descriptor() {
        let (one, two) = Packets::pair().unwrap();
        let event = EventFd::new().unwrap();
        one.send(b"hello", Some(event.as_fd())).unwrap();
        one.send(b"again", None).unwrap();
        let mut buffer = [0; 16];
        let Received::Message(5, mut carried) = two.receive(&mut buffer).unwrap() else {
            panic!("no message")
        };
        assert_eq!(&buffer[..5], b"hello");
        EventFd::from_received(carried.remove(0)).raise();
        assert!(event.drain());
        assert!(matches!(two.receive(&mut [0; 3]), Err(cause)
            if cause.kind() == io::ErrorKind::InvalidData));
        assert!(matches!(two.receive(&mut buffer), Ok(Received::Nothing)));
        drop(one);
        assert!(matches!(two.receive(&mut buffer), Ok(Received::HungUp)));
    }

    #[test]
    fn the_last_messages_of_a_peer_that_did_not_read_are_received() {
        let (one, two) = Packets::pair().unwrap();
        one.send(b"unread", None).unwrap();
        two.send(b"no", None).unwrap();
        drop(two);
        let mut buffer = [0; 16];
        let answer = one.receive(&mut buffer).unwrap();
        assert!(matches!(answer, Received::Message(2, _)), "{answer:?}");
        assert!(matches!(one.receive(&mut buffer), Ok(Received::HungUp)));
    }

    #[test]
    fn a_path_that_is_too_long_is_refused_with_the_limit() {
        let long = "/tmp/".to_owned() + &"x".repeat(120);
        let text = Packets::connect(Path::new(&long)).unwrap_err().to_string();
        assert!(text.contains("107"), "{text}");
    }
}
