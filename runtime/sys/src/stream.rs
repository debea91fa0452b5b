//! A stream that is asked once: everything is said, then everything that is answered is read.
//!
//! Every wait ends with the patience of who asks: a full queue of the listener, a reader that does not
//! read, an answer that does not come. Without SIGPIPE, since applications may not ignore it.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::check;
use super::process::user_id;
use super::socket::{Peer, address};

/// Whose word is listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// This user's and root's; root's is anybody's.
    Own,
    /// This user's and root's, and that of the user whom the name of the socket tells: it lies where
    /// anybody may have bound that name first.
    User(u32),
}

impl Trust {
    /// What is wrong with a peer of this user.
    fn refusal(self, peer: Peer) -> Option<String> {
        let (own, uid) = (user_id(), peer.uid);
        match self {
            Self::Own if !peer.is_trusted() => Some(format!(
                "it belongs to uid {uid}, and you are uid {own}; ask as its user or as root"
            )),
            Self::User(named) if ![named, own, 0].contains(&uid) => Some(format!(
                "it belongs to uid {uid}, and by its name to uid {named}: uid {uid} has taken the name, and is not \
                 asked; have root remove it and start the agent anew, or give agents another directory with \
                 MUSTER_READABLE_IN"
            )),
            _ => None,
        }
    }
}

/// Says `question` to who listens at `path`, and takes at most `answer_max` bytes of the answer.
/// `TimedOut` if it takes longer than `patience`, `PermissionDenied` if it is somebody else's socket: what
/// a stranger says is not listened to.
pub fn ask(
    path: &Path,
    question: &[u8],
    answer_max: usize,
    patience: Duration,
    trust: Trust,
) -> io::Result<Vec<u8>> {
    let end = Instant::now() + patience;
    let mut stream = say(path, question, patience, trust)?;
    let mut answer = Vec::new();
    let mut buffer = [0; 16 << 10];
    while answer.len() < answer_max {
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend(&buffer[..count]),
            // It has not heard everything, and has said what it had to say.
            Err(cause) if is_hang_up(&cause) && !answer.is_empty() => break,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(late(cause)),
        }
    }
    answer.truncate(answer_max);
    Ok(answer)
}

/// Says `question`, and returns the stream on which the answer comes.
pub fn say(
    path: &Path,
    question: &[u8],
    patience: Duration,
    trust: Trust,
) -> io::Result<UnixStream> {
    let end = Instant::now() + patience;
    let stream = connect(path, left(end)?, trust)?;
    let mut unsaid = question;
    while !unsaid.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        // SAFETY: the bytes are valid for the call.
        let sent = unsafe {
            libc::send(
                stream.as_raw_fd(),
                unsaid.as_ptr().cast(),
                unsaid.len(),
                libc::MSG_NOSIGNAL,
            )
        };
        match check("send", sent as i64) {
            Ok(sent) => unsaid = &unsaid[sent as usize..],
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            // Whoever hung up may have said why.
            Err(cause) if is_hang_up(&cause) => break,
            Err(cause) => return Err(late(cause)),
        }
    }
    // If it has hung up, what it said is there all the same.
    let _ = stream.shutdown(Shutdown::Write);
    Ok(stream)
}

/// Whether somebody of this user, or root, listens at `path`; one whose queue is full does, too.
pub fn is_anybody_there(path: &Path, patience: Duration) -> bool {
    match connect(path, patience, Trust::Own) {
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

/// A time-out has two names.
fn late(cause: io::Error) -> io::Error {
    match cause.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => cause,
    }
}

fn connect(path: &Path, patience: Duration, trust: Trust) -> io::Result<UnixStream> {
    let (address, length) = address(path)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    check("socket", i64::from(fd))?;
    // SAFETY: the kernel has just given us this descriptor.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // It bounds the wait for a place in the listener's queue, too.
    stream.set_write_timeout(Some(patience))?;
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
        let path = directory.path().join("door");
        let listener = UnixListener::bind(&path).unwrap();
        (directory, path, listener)
    }

    #[test]
    fn everything_is_said_and_everything_is_read() {
        let (_directory, path, listener) = listener();
        let question = vec![7; 1 << 20];
        let asked = question.clone();
        let asking = std::thread::spawn(move || ask(&path, &asked, 1 << 22, LATE, Trust::Own));
        let (mut client, _) = listener.accept().unwrap();
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, question);
        client.write_all(&[1; 100_000]).unwrap();
        drop(client);
        assert_eq!(asking.join().unwrap().unwrap(), [1; 100_000]);
    }

    /// Who refuses may do so before it has heard everything, and its reason arrives.
    #[test]
    fn what_is_said_before_a_hang_up_is_heard() {
        let (_directory, path, listener) = listener();
        // It takes nothing of the question, which fits the socket's buffer or does not.
        for length in [1, 4 << 20] {
            let path = path.clone();
            let asking =
                std::thread::spawn(move || ask(&path, &vec![7; length], 1 << 10, LATE, Trust::Own));
            let (mut client, _) = listener.accept().unwrap();
            // Until something waits to be read: then the hang-up counts as a reset.
            crate::poll::readable(&[client.as_fd()], Some(LATE)).unwrap();
            client.write_all(b"too long").unwrap();
            drop(client);
            assert_eq!(asking.join().unwrap().unwrap(), b"too long");
        }
    }

    #[test]
    fn no_wait_is_for_ever() {
        let (_directory, path, _listener) = listener();
        // Nobody accepts, reads or answers.
        let kind = |question: &[u8]| {
            ask(&path, question, 10, SOON, Trust::Own)
                .unwrap_err()
                .kind()
        };
        assert_eq!(kind(b"hello"), io::ErrorKind::TimedOut);
        assert_eq!(kind(&[7; 1 << 22]), io::ErrorKind::TimedOut);
        // What waits in the queue is closed, so it is filled by those that stay.
        let held: Vec<_> = (0..5000)
            .map_while(|_| connect(&path, SOON, Trust::Own).ok())
            .collect();
        assert!(!held.is_empty());
        if held.len() < 5000 {
            assert_eq!(kind(b"hello"), io::ErrorKind::TimedOut);
        }
    }

    #[test]
    fn nobody_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("door");
        let error = ask(&path, b"hello", 10, LATE, Trust::Own).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
