//! One request and its answer over a stream: sends the whole request, then reads the whole answer.
//!
//! Every wait has the caller's time-out: for a place in the listener's queue, for a reader that does not
//! read, for an answer that does not come. There is no SIGPIPE, since applications may not ignore it.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::check;
use super::process::user_id;
use super::socket::{Peer, address};

/// The users whose answers are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// This user and root; root accepts any user.
    Own,
    /// This user and root, and the user in the name of the socket. Its directory is writable for all users, so another
    /// user may have bound that name first.
    User(u32),
}

impl Trust {
    /// The reason why a peer is refused; none if it is accepted.
    fn refusal(self, peer: Peer) -> Option<String> {
        let (own, uid) = (user_id(), peer.uid);
        match self {
            Self::Own if !peer.is_trusted() => Some(format!(
                "it belongs to uid {uid}, and you are uid {own}; ask as its user or as root"
            )),
            Self::User(named) if ![named, own, 0].contains(&uid) => Some(format!(
                "it belongs to uid {uid}, but its name to uid {named}: uid {uid} has taken the name, and is not \
                 trusted; have root remove it and restart the agent, or set another directory for agents with \
                 MUSTER_READABLE_IN"
            )),
            _ => None,
        }
    }
}

/// Sends `question` to the process that listens at `path`, and reads at most `answer_max` bytes of the answer.
/// `TimedOut` if it takes longer than `timeout`, `PermissionDenied` if the socket belongs to a user that is not
/// trusted, whose answer is not read.
pub fn ask(
    path: &Path,
    question: &[u8],
    answer_max: usize,
    timeout: Duration,
    trust: Trust,
) -> io::Result<Vec<u8>> {
    let end = Instant::now() + timeout;
    let mut stream = say(path, question, timeout, trust)?;
    let mut answer = Vec::new();
    let mut buffer = [0; 16 << 10];
    while answer.len() < answer_max {
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend(&buffer[..count]),
            // The peer closed before it read the whole request, but it has sent an answer.
            Err(cause) if is_hang_up(&cause) && !answer.is_empty() => break,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(late(cause)),
        }
    }
    answer.truncate(answer_max);
    Ok(answer)
}

/// Sends `question`, and returns the stream that the answer comes from.
pub fn say(
    path: &Path,
    question: &[u8],
    timeout: Duration,
    trust: Trust,
) -> io::Result<UnixStream> {
    let end = Instant::now() + timeout;
    let stream = connect(path, left(end)?, trust)?;
    let mut unsent = question;
    while !unsent.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        // SAFETY: the bytes are valid for the call.
        let sent = unsafe {
            libc::send(
                stream.as_raw_fd(),
                unsent.as_ptr().cast(),
                unsent.len(),
                libc::MSG_NOSIGNAL,
            )
        };
        match check("send", sent as i64) {
            Ok(sent) => unsent = &unsent[sent as usize..],
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            // A peer that closes may have sent the reason.
            Err(cause) if is_hang_up(&cause) => break,
            Err(cause) => return Err(late(cause)),
        }
    }
    // If the peer has closed, its answer can still be read.
    let _ = stream.shutdown(Shutdown::Write);
    Ok(stream)
}

/// Whether a process of this user or root listens at `path`, also if its queue is full.
pub fn is_anybody_there(path: &Path, timeout: Duration) -> bool {
    match connect(path, timeout, Trust::Own) {
        Ok(_) => true,
        Err(cause) => cause.kind() == io::ErrorKind::TimedOut,
    }
}

fn is_hang_up(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET))
}

fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// Makes one error kind of the two for a time-out.
fn late(cause: io::Error) -> io::Error {
    match cause.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => cause,
    }
}

fn connect(path: &Path, timeout: Duration, trust: Trust) -> io::Result<UnixStream> {
    let (address, length) = address(path)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    check("socket", i64::from(fd))?;
    // SAFETY: the kernel has just given us this descriptor.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // This time-out also applies to connect, which waits for a place in the listener's queue.
    stream.set_write_timeout(Some(timeout))?;
    // SAFETY: `address` is a valid sockaddr_un of `length` bytes.
    let answer = unsafe { libc::connect(fd, (&raw const address).cast(), length) };
    check("connect", i64::from(answer)).map_err(late)?;
    let peer = Peer::of(stream.as_fd())?;
    if let Some(why) = trust.refusal(peer) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    const SOON: Duration = Duration::from_millis(50);
    const LATE: Duration = Duration::from_secs(30);

    fn listener() -> (tempfile::TempDir, std::path::PathBuf, UnixListener) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        (directory, path, listener)
    }

    #[test]
    fn the_whole_request_is_sent_and_the_whole_answer_is_read() {
        let (_directory, path, listener) = listener();
        let question = vec![7; 1 << 20];
        let asked = question.clone();
        let asking = std::thread::spawn(move || ask(&path, &asked, 1 << 22, LATE, Trust::Own));
        let (mut client, _) = listener.accept().unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert_eq!(received, question);
        client.write_all(&[1; 100_000]).unwrap();
        drop(client);
        assert_eq!(asking.join().unwrap().unwrap(), [1; 100_000]);
    }

    /// A peer may refuse a request before it has read all of it, and its reason arrives.
    #[test]
    fn an_answer_before_a_hang_up_is_received() {
        let (_directory, path, listener) = listener();
        // The peer reads nothing of the request, which may or may not fit into the socket's buffer.
        for length in [1, 4 << 20] {
            let path = path.clone();
            let asking =
                std::thread::spawn(move || ask(&path, &vec![7; length], 1 << 10, LATE, Trust::Own));
            let (mut client, _) = listener.accept().unwrap();
            // Wait until there is something to read: then closing the socket is a reset.
            crate::poll::readable(&[client.as_fd()], Some(LATE)).unwrap();
            client.write_all(b"too long").unwrap();
            drop(client);
            assert_eq!(asking.join().unwrap().unwrap(), b"too long");
        }
    }

    #[test]
    fn every_wait_times_out() {
        let (_directory, path, _listener) = listener();
        // No process accepts, reads or answers.
        let kind = |question: &[u8]| {
            ask(&path, question, 10, SOON, Trust::Own)
                .unwrap_err()
                .kind()
        };
        assert_eq!(kind(b"hello"), io::ErrorKind::TimedOut);
        assert_eq!(kind(&[7; 1 << 22]), io::ErrorKind::TimedOut);
        // A connection in the queue is closed when it is dropped, so fill the queue with ones that are kept.
        let held: Vec<_> = (0..5000)
            .map_while(|_| connect(&path, SOON, Trust::Own).ok())
            .collect();
        assert!(!held.is_empty());
        if held.len() < 5000 {
            assert_eq!(kind(b"hello"), io::ErrorKind::TimedOut);
        }
    }

    #[test]
    fn a_missing_socket_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let error = ask(&path, b"hello", 10, LATE, Trust::Own).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
