//! A stream that is asked once: everything is said, then everything that is answered is read.
//!
//! Every wait ends with the patience of who asks: a full queue of the listener, a reader that does not
//! read, an answer that does not come. Without SIGPIPE, since applications may not ignore it.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::check;
use super::socket::address;

/// Says `question` to who listens at `path`, and takes at most `answer_max` bytes of the answer.
/// `TimedOut` if it takes longer than `patience`.
pub fn ask(
    path: &Path,
    question: &[u8],
    answer_max: usize,
    patience: Duration,
) -> io::Result<Vec<u8>> {
    let end = Instant::now() + patience;
    let mut stream = connect(path, left(end)?)?;
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
            Err(cause) if cause.raw_os_error() == Some(libc::EPIPE) => break,
            Err(cause) => return Err(late(cause)),
        }
    }
    // If it has hung up, what it said is there all the same.
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let mut buffer = [0; 16 << 10];
    while answer.len() < answer_max {
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend(&buffer[..count]),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(late(cause)),
        }
    }
    answer.truncate(answer_max);
    Ok(answer)
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

fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
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
    match check("connect", i64::from(answer)) {
        Ok(_) => Ok(stream),
        Err(cause) => Err(late(cause)),
    }
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
        let asking = std::thread::spawn(move || ask(&path, &asked, 1 << 22, LATE));
        let (mut client, _) = listener.accept().unwrap();
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, question);
        client.write_all(&[1; 100_000]).unwrap();
        drop(client);
        assert_eq!(asking.join().unwrap().unwrap(), [1; 100_000]);
    }

    #[test]
    fn no_wait_is_for_ever() {
        let (_directory, path, _listener) = listener();
        // Nobody accepts, reads or answers.
        let kind = |question: &[u8]| ask(&path, question, 10, SOON).unwrap_err().kind();
        assert_eq!(kind(b"hello"), io::ErrorKind::TimedOut);
        assert_eq!(kind(&[7; 1 << 22]), io::ErrorKind::TimedOut);
        // What waits in the queue is closed, so it is filled by those that stay.
        let held: Vec<_> = (0..5000).map_while(|_| connect(&path, SOON).ok()).collect();
        assert!(!held.is_empty());
        if held.len() < 5000 {
            assert_eq!(kind(b"hello"), io::ErrorKind::TimedOut);
        }
    }

    #[test]
    fn nobody_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("door");
        let error = ask(&path, b"hello", 10, LATE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
