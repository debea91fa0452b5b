//! Files that a user names: read whole, up to a limit, and never waited for without end.
//!
//! At such a path may be anything: a pipe that nobody writes to, a device without an end.

use super::poll::readable;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a pipe may take to say what it has to.
const PATIENCE: Duration = Duration::from_secs(10);

/// A file that was opened to be read, whatever it is.
#[derive(Debug)]
pub struct PatientFile {
    /// What was opened.
    pub file: File,
    end: Instant,
}

impl PatientFile {
    /// Opens what is at this path, without waiting for who may write to it.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        let end = Instant::now() + PATIENCE;
        Ok(Self { file, end })
    }
}

impl Read for PatientFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.read(buffer) {
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            let left = self.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = format!("it has no end within {PATIENCE:?}");
                return Err(io::Error::new(ErrorKind::TimedOut, why));
            }
            readable(&[self.file.as_fd()], Some(left))?;
        }
    }
}

/// Reads the text of `limit` bytes at most that is at this path: in a file, or in a pipe that somebody fills.
///
/// # Errors
/// The system's; what is longer, what has no end within some seconds, and what is no text.
pub fn read_text(path: &Path, limit: usize) -> io::Result<String> {
    text_of(PatientFile::open(path)?, limit)
}

/// The same of something that is open already.
///
/// # Errors
/// The same.
pub fn text_of(source: impl Read, limit: usize) -> io::Result<String> {
    let mut bytes = Vec::new();
    // One byte more than there may be: too much is found to be too much.
    source.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        let why = format!("it has more than {limit} bytes");
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    String::from_utf8(bytes).map_err(|_| {
        let why = "it is no UTF-8 text";
        io::Error::new(ErrorKind::InvalidData, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_a_user_names_is_read_up_to_a_limit_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("text");
        std::fs::write(&path, "as long").unwrap();
        assert_eq!(read_text(&path, 7).unwrap(), "as long");
        let long = read_text(&path, 6).unwrap_err();
        assert!(long.to_string().contains("more than 6 bytes"), "{long}");
        let endless = read_text(Path::new("/dev/zero"), 1 << 20).unwrap_err();
        assert_eq!(endless.kind(), ErrorKind::FileTooLarge);
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(
            read_text(&path, 7).unwrap_err().kind(),
            ErrorKind::InvalidData
        );
        assert!(read_text(directory.path(), 7).is_err());
        assert!(read_text(&directory.path().join("none"), 7).is_err());
    }

    /// A pipe is empty if nobody has it open; one that somebody fills is read to its end, and not longer.
    #[test]
    fn a_pipe_is_read_as_long_as_somebody_fills_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        assert_eq!(read_text(&path, 7).unwrap(), "");
        // Both ends, so that the open does not wait.
        let mut filler = File::options().read(true).write(true).open(&path).unwrap();
        let mut hasty = PatientFile::open(&path).unwrap();
        hasty.end = Instant::now();
        let late = text_of(hasty, 7).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        filler.write_all(b"a few").unwrap();
        let reading = std::thread::spawn(move || read_text(&path, 7));
        filler.write_all(b" m").unwrap();
        // Whatever had been read by then, it is too much.
        filler.write_all(b"ore").unwrap();
        let read = reading.join().unwrap().unwrap_err();
        assert_eq!(read.kind(), ErrorKind::FileTooLarge);
    }
}
