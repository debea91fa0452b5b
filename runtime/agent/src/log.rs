//! Where the agent's log goes: standard error, systemd's journal, or a file with a limit.
//!
//! Keeper and workers share the file. When it is full it begins anew, and its first line says
//! how much was dropped: what happened last is what somebody will look for. The process with the loop
//! writes through a tray.

use super::log_writer::LogWriter;
use muster_config::{check_log, strange_settings};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::prelude::*;

/// Longest log in bytes.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// How long an end waits for the last lines.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where lines are written.
static SINK: OnceLock<Mutex<Box<dyn Write + Send>>> = OnceLock::new();
/// Where lines are dropped instead, once this process has a loop.
static WRITER: OnceLock<LogWriter> = OnceLock::new();

/// The variable that says where to: `stderr`, `journald` or `file`.
const PLACE: &str = "MUSTER_LOG_TO";

/// Logs of an agent in the foreground: to the journal of systemd if that is where its standard error
/// leads, else to standard error. `MUSTER_LOG` sets the level.
pub(super) fn in_foreground() {
    match place() {
        Some("journald") => to_journald(to_stderr),
        None if leads_to_journald() => to_journald(to_stderr),
        _ => to_stderr(),
    }
    complain();
}

/// Logs of a job's agent, whose standard error leads nowhere: to a file that begins empty, unless the
/// journal of systemd is wanted. Panics are logged, too.
pub(super) fn in_job(path: &Path) {
    match place() {
        Some("journald") => to_journald(|| to_file(path)),
        _ => to_file(path),
    }
    complain();
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!(%panic, "this is a bug");
        drain();
    }));
}

/// From now on lines of this process are written by a thread of their own: its loop begins. Children
/// that it forks would have no such thread.
pub(super) fn in_own_thread() {
    match LogWriter::start(Sink) {
        Ok(writer) => _ = WRITER.set(writer),
        Err(cause) => tracing::warn!(%cause, "no thread for the log: the loop writes it"),
    }
}

/// Before an end: waits a moment for lines that are still to be written.
pub(super) fn drain() {
    if let Some(writer) = WRITER.get() {
        writer.flush(PATIENCE);
    }
}

/// Lines that could not be written fast enough.
pub(super) fn lost() -> u64 {
    WRITER.get().map_or(0, LogWriter::lost)
}

/// Queues lines for the log writer, if it runs; else it writes them itself.
struct Way;

impl Write for Way {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match WRITER.get() {
            Some(writer) => writer.write(line),
            None => Sink.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where lines are written, by one at a time.
struct Sink;

impl Sink {
    fn with<T>(write: impl FnOnce(&mut dyn Write) -> T) -> Option<T> {
        let mut sink = SINK.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(write(&mut **sink))
    }
}

impl Write for Sink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        Self::with(|sink| sink.write(line)).unwrap_or(Ok(line.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::with(|sink| sink.flush()).unwrap_or(Ok(()))
    }
}

fn place() -> Option<&'static str> {
    let value = std::env::var(PLACE).ok()?;
    ["stderr", "journald", "file"]
        .into_iter()
        .find(|place| *place == value)
}

/// As systemd says it: the device and inode of the stream that it made.
fn leads_to_journald() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let found = rustix::fs::fstat(io::stderr());
    found.is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

fn to_stderr() {
    let _ = SINK.set(Mutex::new(Box::new(io::stderr())));
    let builder = tracing_subscriber::fmt().with_env_filter(filter());
    builder.with_target(false).with_writer(|| Way).init();
}

/// Without a journal elsewhere, where that is said.
fn to_journald(elsewhere: impl FnOnce()) {
    match tracing_journald::layer() {
        Ok(layer) => {
            let layer = layer.with_syslog_identifier("musterd".into());
            tracing_subscriber::registry()
                .with(filter())
                .with(layer)
                .init();
        }
        Err(cause) => {
            elsewhere();
            tracing::warn!(%cause, "systemd's journal cannot be reached: the log goes here");
        }
    }
}

fn to_file(path: &Path) {
    let Ok(log) = BoundedLog::open(path, LOG_BYTES_MAX) else {
        return;
    };
    let _ = SINK.set(Mutex::new(Box::new(log)));
    let builder = tracing_subscriber::fmt().with_env_filter(filter());
    builder
        .with_target(false)
        .with_ansi(false)
        .with_writer(|| Way)
        .init();
}

/// A value or a name that cannot be understood must not look like one that is obeyed.
fn complain() {
    for strange in strange_settings() {
        tracing::warn!("{strange}");
    }
    complain_about_filter();
    if let Some(value) = std::env::var_os(PLACE)
        && place().is_none()
    {
        tracing::warn!(
            ?value,
            "MUSTER_LOG_TO cannot be understood; set it to stderr, journald or file"
        );
    }
}

fn filter() -> EnvFilter {
    let value = std::env::var_os("MUSTER_LOG");
    let filter = value
        .filter(|value| check_log(value).is_ok())
        .and_then(|_| EnvFilter::try_from_env("MUSTER_LOG").ok());
    filter.unwrap_or_else(|| EnvFilter::new("warn"))
}

/// What is no level has been said with the names; here is what the log's own reader does not understand.
fn complain_about_filter() {
    let Some(value) = std::env::var_os("MUSTER_LOG") else {
        return;
    };
    if check_log(&value).is_ok()
        && let Err(error) = EnvFilter::try_from_env("MUSTER_LOG")
    {
        tracing::warn!(
            ?value,
            %error,
            "MUSTER_LOG cannot be understood; set it to error, warn, info or debug; warn is used"
        );
    }
}

struct BoundedLog {
    file: File,
    limit: u64,
}

impl BoundedLog {
    fn open(path: &Path, limit: u64) -> io::Result<Self> {
        // Appending: keeper and worker write without knowing how far the other has come.
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        file.set_len(0)?;
        Ok(Self { file, limit })
    }
}

impl Write for BoundedLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let length = self.file.metadata()?.len();
        if length + line.len() as u64 > self.limit {
            self.file.set_len(0)?;
            writeln!(self.file, "the log was full: {length} bytes were dropped")?;
        }
        self.file.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_full_log_begins_anew_and_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        fs::write(&path, "of an earlier agent").unwrap();
        let mut log = BoundedLog::open(&path, 100).unwrap();
        for number in 0..10 {
            writeln!(log, "line {number} of twenty bytes").unwrap();
            assert!(fs::metadata(&path).unwrap().len() <= 100);
        }
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("the log was full: "), "{text}");
        assert!(text.ends_with("line 9 of twenty bytes\n"), "{text}");
    }
}
