//! The destination of the agent's log: standard error, systemd's journal, or a file of limited size.
//!
//! Supervisor and workers share the file. When it is full it is truncated, and its first line states how much was
//! dropped: the newest lines matter most. The worker, which runs the loop, writes through a `LogWriter`.

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

/// Maximum size of the file in bytes.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// Maximum time that an ending process waits for its last lines.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The destination of lines.
static SINK: OnceLock<Mutex<Box<dyn Write + Send>>> = OnceLock::new();
/// The queue of lines, once this process runs a loop. Lines that do not fit are dropped.
static WRITER: OnceLock<LogWriter> = OnceLock::new();

/// The variable for the destination: `stderr`, `journald` or `file`.
const DESTINATION: &str = "MUSTER_LOG_TO";

/// Configures the log of an agent in the foreground: the journal of systemd if standard error is connected to it,
/// else standard error. `MUSTER_LOG` sets the level.
pub(super) fn in_foreground() {
    match destination() {
        Some("journald") => to_journald(to_stderr),
        None if is_journald() => to_journald(to_stderr),
        _ => to_stderr(),
    }
    warn_of_settings();
}

/// Configures the log of a job's agent, whose standard error is not visible: a file that begins empty, unless the
/// journal of systemd is requested. Panics are logged, too.
pub(super) fn in_job(path: &Path) {
    match destination() {
        Some("journald") => to_journald(|| to_file(path)),
        _ => to_file(path),
    }
    warn_of_settings();
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!(%panic, "panic: this is a bug, please report it");
        drain();
    }));
}

/// From now on a separate thread writes the lines of this process. Call it when the loop begins, and not before a
/// fork: a child would not have the thread.
pub(super) fn in_own_thread() {
    match LogWriter::start(Sink) {
        Ok(writer) => _ = WRITER.set(writer),
        Err(cause) => {
            tracing::warn!(%cause, "no thread can be started for the log; the loop writes it and may block");
        }
    }
}

/// Waits for lines that are still queued, for a limited time, before the process ends.
pub(super) fn drain() {
    if let Some(writer) = WRITER.get() {
        writer.flush(DRAIN_TIMEOUT);
    }
}

/// Number of lines dropped because they could not be written fast enough.
pub(super) fn lost() -> u64 {
    WRITER.get().map_or(0, LogWriter::lost)
}

/// Queues lines for the log writer, if it runs; else writes them.
struct LineWriter;

impl Write for LineWriter {
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

/// Writes lines to the destination, one at a time.
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

fn destination() -> Option<&'static str> {
    let value = std::env::var(DESTINATION).ok()?;
    ["stderr", "journald", "file"]
        .into_iter()
        .find(|destination| *destination == value)
}

/// Whether standard error is systemd's stream: JOURNAL_STREAM holds its device and inode.
fn is_journald() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let found = rustix::fs::fstat(io::stderr());
    found.is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

fn to_stderr() {
    let _ = SINK.set(Mutex::new(Box::new(io::stderr())));
    let builder = tracing_subscriber::fmt().with_env_filter(filter());
    builder.with_target(false).with_writer(|| LineWriter).init();
}

/// Logs to the journal, or to the fallback with a warning.
fn to_journald(fallback: impl FnOnce()) {
    match tracing_journald::layer() {
        Ok(layer) => {
            let layer = layer.with_syslog_identifier("musterd".into());
            tracing_subscriber::registry()
                .with(filter())
                .with(layer)
                .init();
        }
        Err(cause) => {
            fallback();
            tracing::warn!(%cause, "systemd's journal cannot be reached; the log is written here instead");
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
        .with_writer(|| LineWriter)
        .init();
}

/// Warns about invalid values and unknown names, so that the user does not take them for effective.
fn warn_of_settings() {
    for warning in strange_settings() {
        tracing::warn!("{warning}");
    }
    warn_of_filter();
    if let Some(value) = std::env::var_os(DESTINATION)
        && destination().is_none()
    {
        tracing::warn!(
            ?value,
            "MUSTER_LOG_TO has an invalid value; set it to stderr, journald or file"
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

/// `strange_settings` covers invalid levels; this covers directives that the filter's parser rejects.
fn warn_of_filter() {
    let Some(value) = std::env::var_os("MUSTER_LOG") else {
        return;
    };
    if check_log(&value).is_ok()
        && let Err(error) = EnvFilter::try_from_env("MUSTER_LOG")
    {
        tracing::warn!(
            ?value,
            %error,
            "MUSTER_LOG has an invalid value; set it to error, warn, info or debug; warn is used"
        );
    }
}

struct BoundedLog {
    file: File,
    limit: u64,
}

impl BoundedLog {
    fn open(path: &Path, limit: u64) -> io::Result<Self> {
        // In append mode: supervisor and worker write without knowing each other's position.
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
    fn a_full_log_is_truncated_and_states_it() {
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
