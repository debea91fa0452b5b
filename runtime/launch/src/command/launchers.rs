//! `RemoteLaunchers` is the set of launchers on other hosts, as the launch coordinator (`remote`) manages them. A
//! limited number is started at a time; each one has started, has ended, or is lost.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGKILL;

use super::child::WatchedChild;
use super::stderr_reader::{LAST_OUTPUT, LauncherEvent, StderrReader};
use crate::node::GIVEN_UP;
use muster_sys::descriptor::EventFd;
use muster_sys::poll::Epoll;

/// The launcher on one host.
pub(super) struct RemoteLauncher {
    index: usize,
    host: String,
    ssh: WatchedChild,
    /// The launcher has reported that it runs.
    has_started: bool,
    /// Its standard error is closed: it reports nothing more.
    is_closed: bool,
    /// It was given up, and that was printed.
    is_reported: bool,
    /// Time at which its ssh had ended.
    ended: Option<Instant>,
}

impl RemoteLauncher {
    /// Starts the launcher through ssh and sends it the key.
    ///
    /// # Errors
    /// Returns the error of the command.
    pub(super) fn start(
        ssh: &str,
        index: usize,
        host: &str,
        arguments: &OsStr,
        key: &str,
        epoll: &Epoll,
    ) -> io::Result<Self> {
        let mut parts = ssh.split_whitespace();
        let mut command = Command::new(parts.next().unwrap_or("ssh"));
        command
            .args(parts)
            .arg(host)
            .arg(arguments)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped());
        // The terminal must not signal ssh directly: signals are forwarded in order, over the control channel.
        command.process_group(0);
        let mut launcher = Self {
            index,
            host: host.to_owned(),
            ssh: WatchedChild::start(&mut command, epoll)?,
            has_started: false,
            is_closed: false,
            is_reported: false,
            ended: None,
        };
        launcher.write(&format!("{key}\n"));
        Ok(launcher)
    }

    fn write(&mut self, text: &str) {
        if let Some(stdin_control) = &mut self.ssh.child.stdin {
            // If the launcher is gone, its exit is noticed elsewhere.
            let _ = stdin_control.write_all(text.as_bytes());
        }
    }

    fn print_about(&self, text: &str) {
        print_about(&self.host, text);
    }

    /// The outcome; none while the launcher runs, or while its output is still being read.
    fn outcome(&mut self) -> Option<Outcome> {
        let status = self.ssh.status()?;
        let ended = *self.ended.get_or_insert_with(Instant::now);
        let is_known = self.has_started || self.is_closed || ended.elapsed() >= LAST_OUTPUT;
        let outcome = match status {
            status if !self.has_started => Outcome::NotStarted(status),
            None | Some(GIVEN_UP) => Outcome::Lost,
            Some(status) => Outcome::Ended(status),
        };
        is_known.then_some(outcome)
    }
}

fn print_about(host: &str, text: &str) {
    let line = format!("muster run: {host}: {text}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}

/// The outcome of a launcher.
enum Outcome {
    /// ssh has ended, with this status if it was not killed, and the launcher never reported that it runs.
    NotStarted(Option<u8>),
    /// It ended before the job did.
    Lost,
    /// It ended with the job, or has printed why not.
    Ended(u8),
}

/// All launchers on other hosts.
pub(super) struct RemoteLaunchers {
    stderr_reader: StderrReader,
    wake: EventFd,
    /// Hosts whose launcher is not started yet.
    waiting: VecDeque<(usize, String)>,
    running: Vec<RemoteLauncher>,
    lost: BTreeSet<usize>,
    pub(super) any_has_started: bool,
}

impl RemoteLaunchers {
    /// Creates the set. `epoll` wakes when a launcher has an event.
    ///
    /// # Errors
    /// Returns the error of the system.
    pub(super) fn new(epoll: &Epoll) -> io::Result<Self> {
        let wake = EventFd::new()?;
        epoll.add(wake.as_fd(), 0)?;
        let copy = EventFd::from_received(wake.as_fd().try_clone_to_owned()?);
        Ok(Self {
            stderr_reader: StderrReader::new(copy)?,
            wake,
            waiting: VecDeque::new(),
            running: Vec::new(),
            lost: BTreeSet::new(),
            any_has_started: false,
        })
    }

    /// Sets the hosts whose launchers are to be started, in this order.
    pub(super) fn set_hosts(&mut self, hosts: &[String]) {
        self.waiting = hosts.iter().cloned().enumerate().collect();
    }

    /// The next host to start, if fewer than `fanout` launchers are starting.
    pub(super) fn next(&mut self, fanout: usize) -> Option<(usize, String)> {
        let starting = self.running.iter().filter(|launcher| !launcher.has_started);
        if starting.count() >= fanout {
            return None;
        }
        self.waiting.pop_front()
    }

    /// Adds a launcher that was started, and reports the lost nodes to it: it need not wait for them.
    ///
    /// # Errors
    /// Returns the error of watching its standard error.
    pub(super) fn add(&mut self, mut launcher: RemoteLauncher) -> io::Result<()> {
        for index in &self.lost {
            launcher.write(&format!("lost {index}\n"));
        }
        if let Some(pipe) = launcher.ssh.child.stderr.take() {
            self.stderr_reader.add(launcher.index, pipe)?;
        }
        self.running.push(launcher);
        Ok(())
    }

    /// Takes the events of all launchers.
    pub(super) fn take_events(&mut self) {
        self.wake.drain();
        for event in self.stderr_reader.take() {
            let (LauncherEvent::Started(index) | LauncherEvent::Closed(index)) = event;
            let launcher = self.running.iter_mut().find(|one| one.index == index);
            if let Some(launcher) = launcher {
                launcher.has_started |= event == LauncherEvent::Started(index);
                launcher.is_closed |= event == LauncherEvent::Closed(index);
                self.any_has_started |= launcher.has_started;
            }
        }
    }

    /// Forwards a signal to all launchers.
    pub(super) fn forward_signal(&mut self, signal: i32) {
        self.write_all(&format!("signal {signal}\n"));
    }

    fn write_all(&mut self, text: &str) {
        self.running
            .iter_mut()
            .for_each(|launcher| launcher.write(text));
    }

    /// Starts no more launchers, since the job is over before all have started.
    pub(super) fn clear_waiting(&mut self) {
        self.waiting.clear();
    }

    /// Collects launchers that have ended since the last call. Returns whether one ended in order: such a launcher has
    /// waited for all others, or knows that the job is over.
    pub(super) fn reap(&mut self, statuses: &mut Vec<Option<u8>>) -> bool {
        let mut in_order = false;
        let mut lost = Vec::new();
        self.running.retain_mut(|launcher| {
            let Some(outcome) = launcher.outcome() else {
                return true;
            };
            let (status, text) = match outcome {
                Outcome::NotStarted(Some(status)) => (
                    None,
                    format!("its launcher could not be started: ssh ended with status {status}"),
                ),
                Outcome::NotStarted(None) => (
                    None,
                    "its launcher could not be started: ssh was killed".into(),
                ),
                Outcome::Lost => (None, "its launcher was lost".into()),
                Outcome::Ended(status) => (Some(status), String::new()),
            };
            if status.is_none() && !launcher.is_reported {
                launcher.print_about(&text);
            }
            if status.is_none() {
                lost.push(launcher.index);
            }
            in_order |= status.is_some();
            statuses.push(status);
            false
        });
        lost.into_iter().for_each(|index| self.lose(index));
        if in_order {
            self.clear_waiting();
        }
        in_order
    }

    /// Records a lost node and reports it to all launchers, so that none waits for it.
    fn lose(&mut self, index: usize) {
        self.lost.insert(index);
        self.write_all(&format!("lost {index}\n"));
    }

    /// Ends the ssh of every launcher that has not started within the time-out.
    pub(super) fn end_unstarted(&mut self, timeout: Duration) {
        let timeout = timeout.as_secs();
        let unstarted = self
            .running
            .iter_mut()
            .filter(|launcher| !launcher.has_started);
        for launcher in unstarted {
            launcher.is_reported = true;
            launcher.print_about(&format!(
                "its launcher did not start within {timeout} s (--start-timeout), or its standard error does not \
                 arrive here separately from its output (--ssh); ssh is ended"
            ));
            launcher.ssh.signal(SIGKILL);
        }
        let waiting: Vec<(usize, String)> = self.waiting.drain(..).collect();
        if !waiting.is_empty() {
            let names = waiting.iter().map(|(_, host)| host.as_str());
            let text = format!(
                "not started within {timeout} s (--start-timeout), since earlier hosts took too long; --fanout starts \
                 more at a time"
            );
            print_about(&muster_hostlist::fold(names), &text);
        }
        waiting.into_iter().for_each(|(index, _)| self.lose(index));
    }

    /// Gives up the remaining launchers: the others have ended without them, or all were to end.
    pub(super) fn give_up(&mut self, statuses: &mut Vec<Option<u8>>) {
        for launcher in self.running.drain(..) {
            launcher.print_about("its launcher should have ended; muster run does not wait for it");
            statuses.push(None);
        }
    }

    pub(super) fn are_over(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Time at which the last output of a launcher that has ended is not waited for any more.
    pub(super) fn output_deadline(&self) -> Option<Instant> {
        let ended = self.running.iter().filter_map(|launcher| launcher.ended);
        ended.min().map(|ended| ended + LAST_OUTPUT)
    }

    /// Prints the last output of the launchers, as long as the reader of this process accepts some within this time.
    pub(super) fn finish(&self, timeout: Duration) {
        self.stderr_reader.finish(timeout);
    }
}
