//! How fast interfaces are: asked for by a thread of its own, since the kernel may take its time.
//!
//! `/sys/class/net/NAME/speed` asks the device's driver, under a lock that whoever changes a link holds for
//! as long as its firmware takes. A thread that has beats to send must not wait for that. It leaves its
//! question here, and finds the answer when it comes by again. Nobody is woken for it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Where the kernel says how fast each interface is.
pub(crate) const DIRECTORY: &str = "/sys/class/net";

/// Enough for reading short files.
const STACK_BYTES: usize = 64 << 10;

/// Interfaces, each with its speed in megabits a second. One that does not say, or is down, is left out.
pub(crate) type Told = Vec<(String, u32)>;

/// The thread, which ends when this does: one question at a time.
#[derive(Debug)]
pub(crate) struct Speeds {
    questions: SyncSender<Vec<String>>,
    answers: Receiver<Told>,
    busy: bool,
}

impl Speeds {
    /// Starts it. Signals of the process may be handled on its thread.
    pub(crate) fn start(directory: PathBuf) -> io::Result<Speeds> {
        let (questions, asked) = sync_channel::<Vec<String>>(1);
        let (answer, answers) = sync_channel(1);
        let builder = thread::Builder::new().name("muster-speeds".into());
        builder.stack_size(STACK_BYTES).spawn(move || {
            // No deadline: it lives for questions, and ends with who asks.
            for names in asked {
                let of = |name: String| Some((speed(&directory, &name)?, name));
                let told = names.into_iter().filter_map(of);
                let told = told.map(|(mbits, name)| (name, mbits)).collect();
                if answer.send(told).is_err() {
                    return;
                }
            }
        })?;
        Ok(Speeds {
            questions,
            answers,
            busy: false,
        })
    }

    /// Asks how fast these are; false if the answer before is not there yet.
    pub(crate) fn ask(&mut self, names: Vec<String>) -> bool {
        let asks = !self.busy && self.questions.try_send(names).is_ok();
        self.busy |= asks;
        asks
    }

    /// The answer, once.
    pub(crate) fn take(&mut self) -> Option<Told> {
        if !self.busy {
            return None;
        }
        let told = self.answers.try_recv().ok()?;
        self.busy = false;
        Some(told)
    }
}

fn speed(directory: &Path, name: &str) -> Option<u32> {
    let text = std::fs::read_to_string(directory.join(name).join("speed")).ok()?;
    // -1: it does not know.
    text.trim().parse().ok().filter(|mbits| *mbits > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn who_does_not_say_is_left_out_and_one_question_is_under_way_at_a_time() {
        let directory = std::env::temp_dir().join(format!("muster-speeds-{}", std::process::id()));
        for (name, text) in [("a", "10000\n"), ("b", "-1\n"), ("c", ""), ("d", "25000")] {
            std::fs::create_dir_all(directory.join(name)).unwrap();
            std::fs::write(directory.join(name).join("speed"), text).unwrap();
        }
        let mut speeds = Speeds::start(directory.clone()).unwrap();
        assert_eq!(speeds.take(), None);
        for _ in 0..3 {
            let names = ["a", "b", "c", "d", "none"].map(str::to_owned);
            assert!(speeds.ask(names.to_vec()));
            assert!(!speeds.ask(names.to_vec()));
            let deadline = Instant::now() + Duration::from_secs(30);
            let told = loop {
                if let Some(told) = speeds.take() {
                    break told;
                }
                assert!(Instant::now() < deadline);
                thread::yield_now();
            };
            assert_eq!(told, [("a".to_owned(), 10_000), ("d".to_owned(), 25_000)]);
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
