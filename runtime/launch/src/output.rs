//! Where the ranks' words go: as they come to the launcher's own output, with the rank before each line, or into
//! files.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use super::node::{TICK, say};
use super::output_forwarding::{Forwarder, LAST_OUTPUT};
use muster_pmix::server::Stream;
use muster_sys::descriptor::EventFd;
use muster_sys::poll::readable;

const OUT: &str = "standard output";
const ERROR: &str = "standard error";
/// The exit status of a job that has lost words and nothing else.
const LOST: u8 = 1;
/// That of a job whose reader has left, as a shell counts a program that SIGPIPE has ended.
pub(super) const UNREAD: u8 = 128 + signal_hook::consts::SIGPIPE as u8;

/// What the user wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// The rank before each line.
    pub label: bool,
    /// A file for each rank, or for several; `%r` is the rank, `%h` the node, `%j` the job, `%%` a percent sign.
    pub file: Option<String>,
    /// The standard output of each rank is a terminal, so that its C library writes each line when it ends. Not with a
    /// file.
    pub pty: bool,
}

impl Output {
    /// Refuses what is no pattern.
    ///
    /// # Errors
    /// It says what is wrong and what there is.
    pub fn check(&self) -> Result<(), String> {
        let pattern = self.file.as_deref().unwrap_or("x");
        if let Some(remedy) = of_mpirun(pattern) {
            return Err(format!(
                "--output {pattern}: that is an option of mpirun; {remedy}"
            ));
        }
        fill(pattern, 0, "", "").map(|_| ())
    }

    /// Says what a rank has given to the PMIx server to say, where its own words go. Of node and job the names.
    pub(super) fn say_for(&self, rank: u32, of: (&str, &str), stream: Stream, text: &[u8]) {
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
            // A reader who has gone knows it himself.
            Err(cause) if cause.kind() != io::ErrorKind::BrokenPipe => say(
                of.0,
                &format!("words of rank {rank} cannot be written, and are lost: {cause}"),
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

/// The words of this node's ranks.
pub(super) struct Outputs {
    output: Output,
    node: String,
    job: String,
    /// Standard output and error, where lines are labelled.
    forwarders: Vec<Forwarder>,
    /// Raised by these.
    told: EventFd,
    /// The files of ranks, and where they are.
    files: RefCell<Vec<(String, File)>>,
    /// Our end of the terminal of the rank that is being started.
    terminal: RefCell<Option<OwnedFd>>,
}

/// What has become of the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputEnd {
    /// Nothing is lost.
    Written,
    /// Some are.
    Lost,
    /// Nobody reads standard output any more.
    Unread,
    /// The user did not want to wait until they were read.
    Asked(i32),
}

impl OutputEnd {
    fn or_worse(self, other: Self) -> Self {
        match self {
            Self::Written => other,
            _ => self,
        }
    }

    /// The exit status of a job that ended with this one.
    pub(super) fn status(self, of_ranks: u8) -> u8 {
        match self {
            _ if of_ranks != 0 => of_ranks,
            Self::Written => 0,
            Self::Lost => LOST,
            Self::Unread => UNREAD,
            Self::Asked(signal) => 128 + signal as u8,
        }
    }
}

impl Outputs {
    /// # Errors
    /// The system's.
    pub(super) fn new(output: &Output, node: &str, job: &str) -> io::Result<Self> {
        let told = EventFd::new()?;
        let mut forwarders = Vec::new();
        if (output.label || output.pty) && output.file.is_none() {
            let tell = || {
                let copy = told.as_fd().try_clone_to_owned();
                copy.map(EventFd::from_received)
            };
            let out = io::stdout().as_fd().try_clone_to_owned()?;
            let error = io::stderr().as_fd().try_clone_to_owned()?;
            forwarders.push(Forwarder::start(node, OUT, out, tell()?)?);
            forwarders.push(Forwarder::start(node, ERROR, error, tell()?)?);
        }
        Ok(Self {
            output: output.clone(),
            node: node.to_owned(),
            job: job.to_owned(),
            forwarders,
            told,
            files: RefCell::default(),
            terminal: RefCell::default(),
        })
    }

    /// Becomes readable when somebody has left who read, or has read all.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }

    /// Whether nobody reads standard output any more.
    pub(super) fn have_no_reader(&self) -> bool {
        self.told.drain();
        self.forwarders.first().is_some_and(Forwarder::is_gone)
    }

    /// Says where the words of a rank that is about to be started go.
    pub(super) fn prepare(&self, command: &mut Command, rank: u32) -> io::Result<()> {
        if let Some(pattern) = &self.output.file {
            let path = fill(pattern, rank, &self.node, &self.job).map_err(io::Error::other)?;
            let open = OpenOptions::new().create(true).append(true).open(&path);
            // Of a kind of its own: that something is not there is also said of a program.
            let file: File = open.map_err(|cause| {
                let why = format!(
                    "--output {path}: {cause}; its folder has to be there, and yours, on every node"
                );
                io::Error::other(why)
            })?;
            command.stdout(file.try_clone()?).stderr(file.try_clone()?);
            self.files.borrow_mut().push((path, file));
        } else if !self.forwarders.is_empty() {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        if self.output.pty {
            let (ours, theirs) = terminal().map_err(|cause| {
                io::Error::other(format!(
                    "--pty: no terminal for a rank: {cause}; leave --pty out"
                ))
            })?;
            command.stdout(theirs);
            *self.terminal.borrow_mut() = Some(ours);
        }
        Ok(())
    }

    /// Listens to a rank that was started.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn listen(&self, child: &mut Child, rank: u32) -> io::Result<()> {
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

    /// All ranks have ended: waits until what they have said is read. If nothing at all is taken for so long (as an
    /// option says), or if `asked` answers a signal (`wake` becomes readable then), the rest is counted and lost.
    pub(super) fn finish(
        self,
        (patience, option): (Duration, &str),
        wake: BorrowedFd<'_>,
        mut asked: impl FnMut() -> Option<i32>,
    ) -> OutputEnd {
        self.forwarders.iter().for_each(Forwarder::close);
        let patience = patience.max(2 * LAST_OUTPUT);
        let mut taken = 0;
        let mut since = Instant::now();
        let mut fate = OutputEnd::Written;
        let mut why = String::new();
        while !self.forwarders.iter().all(Forwarder::has_ended) {
            let now_taken = self.forwarders.iter().map(Forwarder::taken).sum();
            if now_taken != taken {
                (taken, since) = (now_taken, Instant::now());
            }
            let signal = asked();
            if let Some(signal) = signal {
                fate = OutputEnd::Asked(signal);
                why = format!("signal {signal} came before whoever reads had taken it");
            } else if since.elapsed() >= patience {
                let waited_s = patience.as_secs();
                why = format!("whoever reads has taken nothing for {waited_s} s ({option})");
            }
            if !why.is_empty() {
                self.halt();
                break;
            }
            let until = (since + patience).saturating_duration_since(Instant::now());
            let _ = readable(&[wake, self.told.as_fd()], Some(until.min(TICK)));
            self.told.drain();
        }
        for forwarder in &self.forwarders {
            fate = fate.or_worse(self.tell_losses(forwarder, &why));
        }
        if let Some((path, why)) = self.full_file() {
            say_if_room(
                &self.node,
                &format!(
                    "--output {path}: {why}; what ranks wrote may be missing there; make room, or name another place"
                ),
            );
            fate = fate.or_worse(OutputEnd::Lost);
        }
        fate
    }

    /// The threads count what is left, which takes them no time.
    fn halt(&self) {
        self.forwarders.iter().for_each(Forwarder::halt);
        // They have nothing to wait for; where many processes run it may take its time all the same.
        let until = Instant::now() + 10 * LAST_OUTPUT;
        while !self.forwarders.iter().all(Forwarder::has_ended) && Instant::now() < until {
            let _ = readable(&[self.told.as_fd()], Some(TICK));
            self.told.drain();
        }
    }

    fn tell_losses(&self, forwarder: &Forwarder, why: &str) -> OutputEnd {
        let lost = forwarder.lost();
        if lost > 0 {
            let why = if why.is_empty() {
                "it could not be written"
            } else {
                why
            };
            say_if_room(
                &self.node,
                &format!(
                    "{lost} lines of what ranks said on {} are lost: {why}",
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

    /// The first file that takes nothing more: its rank may not have looked.
    fn full_file(&self) -> Option<(String, String)> {
        let files = self.files.borrow();
        files.iter().find_map(|(path, file)| {
            // A device answers; a file takes nothing and is as it was.
            let refused = rustix::io::write(file, &[]).err();
            let why = refused.map(|cause| io::Error::from(cause).to_string());
            let is_full = rustix::fs::fstatvfs(file)
                .is_ok_and(|place| place.f_blocks > 0 && place.f_bavail == 0);
            let why = why.or_else(|| is_full.then(|| "its file system is full".to_owned()));
            why.map(|why| (path.clone(), why))
        })
    }
}

/// A terminal that passes on every byte as it is: our end and a rank's.
fn terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    let mut modes = tcgetattr(&theirs)?;
    modes.make_raw();
    tcsetattr(&theirs, OptionalActions::Now, &modes)?;
    Ok((ours, theirs))
}

/// The same as [`say`], where it need not be waited for: whoever reads may take nothing.
fn say_if_room(node: &str, text: &str) {
    let error = io::stderr();
    let mut one = [PollFd::new(&error, PollFlags::OUT)];
    let moment = Timespec::default();
    if poll(&mut one, Some(&moment)).is_ok_and(|ready| ready > 0) {
        say(node, text);
    }
}

/// What is to be said of a word that mpirun takes with `--output`: a file of that name is hardly meant.
fn of_mpirun(pattern: &str) -> Option<String> {
    let is_word = |word: &str| {
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
    if pattern.split(',').all(is_word) {
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
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            path.push(letter);
            continue;
        }
        match letters.next() {
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
    fn a_word_of_mpirun_makes_no_file() {
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
            let said = check(word).unwrap_err();
            assert!(
                said.starts_with(&format!("--output {word}:")) && said.contains("--label"),
                "{said}"
            );
        }
        assert!(check("file=out").unwrap_err().contains("out-%r"));
        for file in ["out-%r", "./tag", "tags", "tag,%r"] {
            assert_eq!(check(file), Ok(()), "{file}");
        }
    }

    #[test]
    fn a_pattern_makes_a_path_a_rank() {
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
    fn words_go_into_the_file_of_their_rank() {
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
        let fate = outputs.finish((Duration::ZERO, ""), io::stdin().as_fd(), || None);
        assert_eq!(fate, OutputEnd::Written);
        let said = std::fs::read_to_string(folder.path().join("3")).unwrap();
        assert_eq!(said, "one\ntwo\n");
    }
}
