//! Files that a user names: read whole, up to a limit, and with a time-out.
//!
//! Such a path may name anything: a pipe without a writer, a device without an end.

use super::poll::readable;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a pipe may take to reach its end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A file of any type that was opened for reading with a time-out.
#[derive(Debug)]
pub struct TimedFile {
    /// The open file.
    pub file: File,
    end: Instant,
}

impl TimedFile {
    /// Opens the file at this path, without waiting for a writer.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        let end = Instant::now() + TIMEOUT;
        Ok(Self { file, end })
    }
}

impl Read for TimedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.file.read(buffer) {
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            let left = self.end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = format!("no end of file within {TIMEOUT:?}");
                return Err(io::Error::new(ErrorKind::TimedOut, why));
            }
            readable(&[self.file.as_fd()], Some(left))?;
        }
    }
}

/// Reads a text of at most `limit` bytes from this path: a file, or a pipe that another process fills.
///
/// # Errors
/// The system's error; a text that is longer, that is not UTF-8, or that has no end within some seconds.
pub fn read_text(path: &Path, limit: usize) -> io::Result<String> {
    text_of(TimedFile::open(path)?, limit)
}

/// As [`read_text`], from an open source.
///
/// # Errors
/// As [`read_text`].
pub fn text_of(source: impl Read, limit: usize) -> io::Result<String> {
    let mut bytes = Vec::new();
    // One byte more than allowed, so that a longer text is detected.
    source.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        let why = format!("it has more than {limit} bytes");
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    String::from_utf8(bytes).map_err(|_| {
        let why = "it is not UTF-8 text";
        io::Error::new(ErrorKind::InvalidData, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_is_read_up_to_a_limit_without_blocking() {
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

    /// A pipe without a writer is empty; a pipe with one is read to its end, up to the limit.
    #[test]
    fn a_pipe_is_read_until_its_writer_closes_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        assert_eq!(read_text(&path, 7).unwrap(), "");
        // Opened for both directions, so that the open does not block.
        let mut filler = File::options().read(true).write(true).open(&path).unwrap();
        let mut timed = TimedFile::open(&path).unwrap();
        timed.end = Instant::now();
        let late = text_of(timed, 7).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        filler.write_all(b"a few").unwrap();
        let reading = std::thread::spawn(move || read_text(&path, 7));
        filler.write_all(b" m").unwrap();
        // However much was read before, the whole is too long.
        filler.write_all(b"ore").unwrap();
        let read = reading.join().unwrap().unwrap_err();
        assert_eq!(read.kind(), ErrorKind::FileTooLarge);
    }
}
