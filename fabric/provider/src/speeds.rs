//! The speeds of interfaces, read by a separate thread, since the read may block.
//!
//! Reading `/sys/class/net/NAME/speed` calls the device's driver, under a lock (RTNL) that a process which changes a
//! link holds as long as the device's firmware takes. A thread that has beats to send must not wait for that. It
//! leaves a request here and fetches the answer at a later call. No thread is woken for it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// The directory in which the kernel shows the speed of each interface.
pub const SPEEDS_DIRECTORY: &str = "/sys/class/net";

/// Enough stack to read short files.
const STACK_BYTES: usize = 64 << 10;

/// Interfaces, each with its speed in Mbit/s. An interface that is down or has no known speed is left out.
pub type InterfaceSpeeds = Vec<(String, u32)>;

/// The reader thread, which ends when this is dropped. It handles one request at a time.
#[derive(Debug)]
pub struct Speeds {
    requests: SyncSender<Vec<String>>,
    answers: Receiver<InterfaceSpeeds>,
    busy: bool,
}

impl Speeds {
    /// Starts the thread. Signals of the process may be handled on it.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(directory: PathBuf) -> io::Result<Speeds> {
        let (requests, received) = sync_channel::<Vec<String>>(1);
        let (answer, answers) = sync_channel(1);
        let builder = thread::Builder::new().name("muster-speeds".into());
        builder.stack_size(STACK_BYTES).spawn(move || {
            // No deadline: the thread waits for requests and ends when `Speeds` is dropped.
            for names in received {
                let of = |name: String| Some((speed(&directory, &name)?, name));
                let speeds = names.into_iter().filter_map(of);
                let speeds = speeds.map(|(mbits, name)| (name, mbits)).collect();
                if answer.send(speeds).is_err() {
                    return;
                }
            }
        })?;
        Ok(Speeds {
            requests,
            answers,
            busy: false,
        })
    }

    /// Requests the speeds of these interfaces. Returns false if the answer to the last request was not fetched yet.
    pub fn request(&mut self, names: Vec<String>) -> bool {
        let sent = !self.busy && self.requests.try_send(names).is_ok();
        self.busy |= sent;
        sent
    }

    /// The answer, once.
    pub fn take(&mut self) -> Option<InterfaceSpeeds> {
        if !self.busy {
            return None;
        }
        let answer = self.answers.try_recv().ok()?;
        self.busy = false;
        Some(answer)
    }
}

fn speed(directory: &Path, name: &str) -> Option<u32> {
    let text = std::fs::read_to_string(directory.join(name).join("speed")).ok()?;
    // The kernel shows -1 for an unknown speed.
    text.trim().parse().ok().filter(|mbits| *mbits > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn unknown_speeds_are_left_out_and_one_request_is_under_way_at_a_time() {
        let directory = std::env::temp_dir().join(format!("muster-speeds-{}", std::process::id()));
        for (name, text) in [("a", "10000\n"), ("b", "-1\n"), ("c", ""), ("d", "25000")] {
            std::fs::create_dir_all(directory.join(name)).unwrap();
            std::fs::write(directory.join(name).join("speed"), text).unwrap();
        }
        let mut speeds = Speeds::start(directory.clone()).unwrap();
        assert_eq!(speeds.take(), None);
        for _ in 0..3 {
            let names = ["a", "b", "c", "d", "none"].map(str::to_owned);
            assert!(speeds.request(names.to_vec()));
            assert!(!speeds.request(names.to_vec()));
            let deadline = Instant::now() + Duration::from_secs(30);
            let answer = loop {
                if let Some(answer) = speeds.take() {
                    break answer;
                }
                assert!(Instant::now() < deadline);
                thread::yield_now();
            };
            assert_eq!(answer, [("a".to_owned(), 10_000), ("d".to_owned(), 25_000)]);
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
