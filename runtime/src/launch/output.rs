//! Where the ranks' words go: as they come to the launcher's own output, with the rank before each line, or into
//! files.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How long the last words of ranks that have ended are waited for: a process that they left may hold the pipe.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// A line that is longer is passed on in parts, in bytes.
const LINE_MOST: u64 = 65_536;

/// What the user wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// The rank before each line.
    pub label: bool,
    /// A file for each rank, or for several; `%r` is the rank, `%h` the node, `%j` the job, `%%` a percent sign.
    pub file: Option<String>,
}

impl Output {
    /// Refuses what is no pattern.
    ///
    /// # Errors
    /// It says what is wrong and what there is.
    pub fn check(&self) -> Result<(), String> {
        let pattern = self.file.as_deref().unwrap_or("x");
        fill(pattern, 0, "", "").map(|_| ())
    }
}

/// The words of this node's ranks.
pub(super) struct Mouths {
    output: Output,
    node: String,
    job: String,
    /// Kept by each reader, so that its end is seen.
    open: Sender<()>,
    ended: Receiver<()>,
}

impl Mouths {
    pub(super) fn new(output: &Output, node: &str, job: &str) -> Self {
        let (open, ended) = channel();
        Self {
            output: output.clone(),
            node: node.to_owned(),
            job: job.to_owned(),
            open,
            ended,
        }
    }

    /// Says where the words of a rank that is about to be started go.
    pub(super) fn prepare(&self, command: &mut Command, rank: u32) -> io::Result<()> {
        if let Some(pattern) = &self.output.file {
            let path = fill(pattern, rank, &self.node, &self.job).map_err(io::Error::other)?;
            let open = OpenOptions::new().create(true).append(true).open(&path);
            let file: File =
                open.map_err(|cause| io::Error::new(cause.kind(), format!("{path}: {cause}")))?;
            command.stdout(file.try_clone()?).stderr(file);
        } else if self.output.label {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        Ok(())
    }

    /// Listens to a rank that was started.
    ///
    /// # Errors
    /// No thread can be had.
    pub(super) fn listen(&self, child: &mut Child, rank: u32) -> io::Result<()> {
        if let Some(pipe) = child.stdout.take() {
            self.pass_on(pipe, rank, |line| io::stdout().write_all(line))?;
        }
        if let Some(pipe) = child.stderr.take() {
            self.pass_on(pipe, rank, |line| io::stderr().write_all(line))?;
        }
        Ok(())
    }

    fn pass_on(
        &self,
        pipe: impl Read + Send + 'static,
        rank: u32,
        write: impl Fn(&[u8]) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let open = self.open.clone();
        let read = move || {
            let _open = open;
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            loop {
                line.clear();
                line.extend(format!("{rank}: ").as_bytes());
                let read = pipe.by_ref().take(LINE_MOST).read_until(b'\n', &mut line);
                if !read.is_ok_and(|count| count > 0) {
                    return;
                }
                if !line.ends_with(b"\n") {
                    line.push(b'\n');
                }
                // Nobody may be reading; the rank is not to be stopped by that.
                let _ = write(&line);
            }
        };
        let reader = std::thread::Builder::new().spawn(read);
        reader.map(|_| ()).map_err(|cause| {
            let why = format!(
                "no thread for what rank {rank} says: {cause}; raise ulimit -u, or use --output"
            );
            io::Error::new(cause.kind(), why)
        })
    }

    /// Waits for the last words.
    pub(super) fn finish(self) {
        drop(self.open);
        // Nothing is ever sent: the wait ends when the last reader has.
        let _ = self.ended.recv_timeout(LAST_WORDS);
        let _ = io::stdout().flush();
    }
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
    fn a_pattern_makes_a_path_a_rank() {
        let path = fill("out/%j-%h.%r%%", 7, "n2", "j1");
        assert_eq!(path.as_deref(), Ok("out/j1-n2.7%"));
        for wrong in ["%x", "a%"] {
            let output = Output {
                label: false,
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
            file: Some(format!("{}/%r", folder.path().display())),
        };
        let mouths = Mouths::new(&output, "n", "j");
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2"]);
        mouths.prepare(&mut command, 3).unwrap();
        assert!(command.status().unwrap().success());
        mouths.finish();
        let said = std::fs::read_to_string(folder.path().join("3")).unwrap();
        assert_eq!(said, "one\ntwo\n");
    }
}
