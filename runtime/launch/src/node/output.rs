//! The ranks' output: to the launcher's own output, as it is or with the rank before each line, or into files.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use super::console::print;
use super::output_forwarding::{Forwarder, LAST_OUTPUT};
use crate::core::exits::UNREAD;
use muster_pmix::server::Stream;
use muster_sys::descriptor::EventFd;
use muster_sys::poll::readable;

/// How often the readers are checked for having ended.
const TICK: Duration = Duration::from_millis(100);
const OUT: &str = "standard output";
const ERROR: &str = "standard error";
/// The exit status of a job whose only failure is lost output.
const LOST: u8 = 1;
/// Where the ranks' output goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Write the rank before each line.
    pub label: bool,
    /// A file for each rank, or for several; `%r` is the rank, `%h` the node, `%j` the job, `%%` a percent
    /// sign.
    pub file: Option<String>,
    /// The standard output of each rank is a terminal, so that its C library writes each line when it ends. Not
    /// with a file.
    pub pty: bool,
}

impl Output {
    /// Checks the file name pattern.
    ///
    /// # Errors
    /// What is wrong, and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        let pattern = self.file.as_deref().unwrap_or("x");
        if let Some(remedy) = of_mpirun(pattern) {
            return Err(format!(
                "--output {pattern}: that is an option of mpirun; {remedy}"
            ));
        }
        fill(pattern, 0, "", "").map(|_| ())
    }

    /// Writes what a rank has passed to the PMIx server for output to where the rank's own output goes. `of`:
    /// the names of node and job.
    pub(super) fn write_for_rank(&self, rank: u32, of: (&str, &str), stream: Stream, text: &[u8]) {
        let written = match (&self.file, stream) {
            (Some(pattern), _) => fill(pattern, rank, of.0, of.1)
                .map_err(io::Error::other)
                .and_then(|path| OpenOptions::new().create(true).append(true).open(path))
                .and_then(|mut file| file.write_all(text)),
            (None, Stream::Err) => io::stderr().write_all(&self.labelled(rank, text)),
            (None, Stream::Out) => {
                let mut out = io::stdout();
                let written = out.write_all(&self.labelled(rank, text));
                written.and_then(|()| out.flush())
            }
        };
        match written {
            // A reader that has left needs no message.
            Err(cause) if cause.kind() != io::ErrorKind::BrokenPipe => print(
                of.0,
                &format!("output of rank {rank} cannot be written and is lost: {cause}"),
            ),
            _ => {}
        }
    }

    fn labelled(&self, rank: u32, text: &[u8]) -> Vec<u8> {
        if !self.label {
            return text.to_vec();
        }
        let label = |line: &[u8]| [format!("{rank}: ").as_bytes(), line].concat();
        let mut lines: Vec<u8> = text
            .split_inclusive(|byte| *byte == b'\n')
            .flat_map(label)
            .collect();
        if !lines.ends_with(b"\n") {
            lines.push(b'\n');
        }
        lines
    }
}

/// The output of this node's ranks.
pub(super) struct Outputs {
    output: Output,
    node: String,
    job: String,
    /// For standard output and standard error, where lines are labelled.
    forwarders: Vec<Forwarder>,
    /// Raised by the forwarders.
    wake: EventFd,
    /// The files of ranks, with their paths.
    files: RefCell<Vec<(String, File)>>,
    /// The launcher's end of the terminal of the rank that is being started.
    terminal: RefCell<Option<OwnedFd>>,
}

/// What has become of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputEnd {
    /// Nothing is lost.
    Written,
    /// Some of it is lost.
    Lost,
    /// Standard output has no reader any more.
    Unread,
    /// A signal ended the wait for the reader.
    Signalled(i32),
}

impl OutputEnd {
    fn or_worse(self, other: Self) -> Self {
        match self {
            Self::Written => other,
            _ => self,
        }
    }

    /// The exit status of a job whose ranks ended with this one.
    pub(super) fn status(self, of_ranks: u8) -> u8 {
        match self {
            _ if of_ranks != 0 => of_ranks,
            Self::Written => 0,
            Self::Lost => LOST,
            Self::Unread => UNREAD,
            Self::Signalled(signal) => 128 + signal as u8,
        }
    }
}

impl Outputs {
    /// # Errors
    /// The system's error.
    pub(super) fn new(output: &Output, node: &str, job: &str) -> io::Result<Self> {
        let wake = EventFd::new()?;
        let mut forwarders = Vec::new();
        if (output.label || output.pty) && output.file.is_none() {
            let notifier = || {
                let copy = wake.as_fd().try_clone_to_owned();
                copy.map(EventFd::from_received)
            };
            let out = io::stdout().as_fd().try_clone_to_owned()?;
            let error = io::stderr().as_fd().try_clone_to_owned()?;
            forwarders.push(Forwarder::start(node, OUT, out, notifier()?)?);
            forwarders.push(Forwarder::start(node, ERROR, error, notifier()?)?);
        }
        Ok(Self {
            output: output.clone(),
            node: node.to_owned(),
            job: job.to_owned(),
            forwarders,
            wake,
            files: RefCell::default(),
            terminal: RefCell::default(),
        })
    }

    /// Becomes readable when a reader has left, or all is written.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Whether standard output has no reader any more.
    pub(super) fn have_no_reader(&self) -> bool {
        self.wake.drain();
        self.forwarders.first().is_some_and(Forwarder::is_gone)
    }

    /// Connects the output of a rank that is about to be started.
    pub(super) fn prepare(&self, command: &mut Command, rank: u32) -> io::Result<()> {
        if let Some(pattern) = &self.output.file {
            let path = fill(pattern, rank, &self.node, &self.job).map_err(io::Error::other)?;
            let open = OpenOptions::new().create(true).append(true).open(&path);
            // Other, not NotFound: the caller takes NotFound for one of the program.
            let file: File = open.map_err(|cause| {
                let why = format!(
                    "--output {path}: {cause}; its directory must exist and be writable on every node"
                );
                io::Error::other(why)
            })?;
            command.stdout(file.try_clone()?).stderr(file.try_clone()?);
            self.files.borrow_mut().push((path, file));
        } else if !self.forwarders.is_empty() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        if self.output.pty {
            let (pty, tty) = terminal().map_err(|cause| {
                io::Error::other(format!(
                    "--pty: no terminal for a rank: {cause}; leave --pty out"
                ))
            })?;
            command.stdout(tty);
            *self.terminal.borrow_mut() = Some(pty);
        }
        Ok(())
    }

    /// Forwards the output of a rank that was started.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn forward(&self, child: &mut Child, rank: u32) -> io::Result<()> {
        let out = self.terminal.take();
        let pipes = [
            out.or_else(|| child.stdout.take().map(OwnedFd::from)),
            child.stderr.take().map(OwnedFd::from),
        ];
        for (forwarder, pipe) in self.forwarders.iter().zip(pipes) {
            pipe.map_or(Ok(()), |pipe| forwarder.add(rank, pipe, self.output.label))?;
        }
        Ok(())
    }

    /// Waits, when all ranks have ended, until their output is read. If the reader takes nothing at all for the
    /// time-out (that of an option), or if `take_signal` returns a signal (`wake` becomes readable then), the
    /// remaining output is counted and lost.
    pub(super) fn finish(
        self,
        (timeout, option): (Duration, &str),
        wake: BorrowedFd<'_>,
        mut take_signal: impl FnMut() -> Option<i32>,
    ) -> OutputEnd {
        self.forwarders.iter().for_each(Forwarder::close);
        let timeout = timeout.max(2 * LAST_OUTPUT);
        let mut taken = 0;
        let mut since = Instant::now();
        let mut output_end = OutputEnd::Written;
        let mut why = String::new();
        while !self.forwarders.iter().all(Forwarder::has_ended) {
            let now_taken = self.forwarders.iter().map(Forwarder::taken).sum();
            if now_taken != taken {
                (taken, since) = (now_taken, Instant::now());
            }
            let signal = take_signal();
            if let Some(signal) = signal {
                output_end = OutputEnd::Signalled(signal);
                why = format!("signal {signal} came before the reader had taken them");
            } else if since.elapsed() >= timeout {
                let waited_s = timeout.as_secs();
                why = format!("the reader has taken nothing for {waited_s} s ({option})");
            }
            if !why.is_empty() {
                self.halt();
                break;
            }
            let until = (since + timeout).saturating_duration_since(Instant::now());
            let _ = readable(&[wake, self.wake.as_fd()], Some(until.min(TICK)));
            self.wake.drain();
        }
        for forwarder in &self.forwarders {
            output_end = output_end.or_worse(self.report_losses(forwarder, &why));
        }
        if let Some((path, why)) = self.full_file() {
            print_if_ready(
                &self.node,
                &format!(
                    "--output {path}: {why}; output of ranks may be missing there; make room, or name another file"
                ),
            );
            output_end = output_end.or_worse(OutputEnd::Lost);
        }
        output_end
    }

    /// Has the threads count what is left, which takes them no time.
    fn halt(&self) {
        self.forwarders.iter().for_each(Forwarder::halt);
        // The threads have nothing to wait for, but may be slow where many processes run.
        let until = Instant::now() + 10 * LAST_OUTPUT;
        while !self.forwarders.iter().all(Forwarder::has_ended) && Instant::now() < until {
            let _ = readable(&[self.wake.as_fd()], Some(TICK));
            self.wake.drain();
        }
    }

    fn report_losses(&self, forwarder: &Forwarder, why: &str) -> OutputEnd {
        let lost = forwarder.lost();
        if lost > 0 {
            let why = if why.is_empty() {
                "they could not be written"
            } else {
                why
            };
            print_if_ready(
                &self.node,
                &format!(
                    "{lost} lines of the ranks' {} are lost: {why}",
                    forwarder.name()
                ),
            );
            return OutputEnd::Lost;
        }
        match forwarder.is_gone() && forwarder.name() == OUT {
            true => OutputEnd::Unread,
            false => OutputEnd::Written,
        }
    }

    /// The first file that accepts nothing more: its rank may not have checked.
    fn full_file(&self) -> Option<(String, String)> {
        let files = self.files.borrow();
        files.iter().find_map(|(path, file)| {
            // A device returns its error; for a file this is a no-op.
            let refused = rustix::io::write(file, &[]).err();
            let why = refused.map(|cause| io::Error::from(cause).to_string());
            let is_full = rustix::fs::fstatvfs(file)
                .is_ok_and(|place| place.f_blocks > 0 && place.f_bavail == 0);
            let why = why.or_else(|| is_full.then(|| "its file system is full".to_owned()));
            why.map(|why| (path.clone(), why))
        })
    }
}

/// Opens a terminal that passes on every byte unchanged: the launcher's end and the rank's.
fn terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let pty = openpt(flags)?;
    grantpt(&pty)?;
    unlockpt(&pty)?;
    let tty = ioctl_tiocgptpeer(&pty, flags)?;
    let mut modes = tcgetattr(&tty)?;
    modes.make_raw();
    tcsetattr(&tty, OptionalActions::Now, &modes)?;
    Ok((pty, tty))
}

/// The same as [`print`], unless that would block: the reader may take nothing.
fn print_if_ready(node: &str, text: &str) {
    let error = io::stderr();
    let mut one = [PollFd::new(&error, PollFlags::OUT)];
    let moment = Timespec::default();
    if poll(&mut one, Some(&moment)).is_ok_and(|ready| ready > 0) {
        print(node, text);
    }
}

/// Returns the remedy if the pattern is one that mpirun takes with `--output`: a file of that name is hardly meant.
fn of_mpirun(pattern: &str) -> Option<String> {
    let is_directive = |word: &str| {
        let tags = [
            "tag",
            "tag-detailed",
            "tag-fullname",
            "rank",
            "timestamp",
            "xml",
        ];
        tags.contains(&word)
    };
    if pattern.split(',').all(is_directive) {
        return Some(format!(
            "--label writes the rank before each line (a file of that name: --output ./{pattern})"
        ));
    }
    let is_path = ["file=", "dir=", "directory="]
        .iter()
        .any(|word| pattern.starts_with(word));
    is_path.then(|| "--output PATTERN names a file for each rank, as in out-%r".to_owned())
}

fn fill(pattern: &str, rank: u32, node: &str, job: &str) -> Result<String, String> {
    let mut path = String::new();
    let mut chars = pattern.chars();
    while let Some(character) = chars.next() {
        if character != '%' {
            path.push(character);
            continue;
        }
        match chars.next() {
            Some('r') => path.push_str(&rank.to_string()),
            Some('h') => path.push_str(node),
            Some('j') => path.push_str(job),
            Some('%') => path.push('%'),
            other => {
                let found = other.map_or_else(String::new, String::from);
                return Err(format!(
                    "%{found} in --output {pattern} is unknown; there are %r (rank), %h (node), %j (job) and %%"
                ));
            }
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directive_of_mpirun_makes_no_file() {
        let check = |file: &str| {
            let file = Some(file.to_owned());
            Output {
                label: false,
                pty: false,
                file,
            }
            .check()
        };
        for word in ["tag", "tag,timestamp", "tag-detailed"] {
            let refused = check(word).unwrap_err();
            assert!(
                refused.starts_with(&format!("--output {word}:")) && refused.contains("--label"),
                "{refused}"
            );
        }
        assert!(check("file=out").unwrap_err().contains("out-%r"));
        for file in ["out-%r", "./tag", "tags", "tag,%r"] {
            assert_eq!(check(file), Ok(()), "{file}");
        }
    }

    #[test]
    fn a_pattern_makes_a_path_for_each_rank() {
        let path = fill("out/%j-%h.%r%%", 7, "n2", "j1");
        assert_eq!(path.as_deref(), Ok("out/j1-n2.7%"));
        for wrong in ["%x", "a%"] {
            let output = Output {
                label: false,
                pty: false,
                file: Some(wrong.into()),
            };
            let why = output.check().unwrap_err();
            assert!(why.contains(wrong) && why.contains("%r"), "{why}");
        }
        assert_eq!(Output::default().check(), Ok(()));
    }

    #[test]
    fn output_goes_into_the_file_of_its_rank() {
        let folder = tempfile::tempdir().unwrap();
        let output = Output {
            label: true,
            pty: false,
            file: Some(format!("{}/%r", folder.path().display())),
        };
        let outputs = Outputs::new(&output, "n", "j").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2"]);
        outputs.prepare(&mut command, 3).unwrap();
        assert!(command.status().unwrap().success());
        let output_end = outputs.finish((Duration::ZERO, ""), io::stdin().as_fd(), || None);
        assert_eq!(output_end, OutputEnd::Written);
        let written = std::fs::read_to_string(folder.path().join("3")).unwrap();
        assert_eq!(written, "one\ntwo\n");
    }
}
