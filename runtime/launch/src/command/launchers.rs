//! The launchers on other hosts, as their conductor sees them (`remote`): a few are being started at a time, and each
//! has come, has ended, or is lost.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGKILL;

use super::child::Followed;
use super::stderr_reader::{Heard, LAST_OUTPUT, StderrReader};
use crate::node::GIVEN_UP;
use muster_sys::descriptor::EventFd;
use muster_sys::poll::Epoll;

/// A launcher on a host.
pub(super) struct RemoteLauncher {
    place: usize,
    host: String,
    ssh: Followed,
    /// It has said that it runs.
    has_come: bool,
    /// Nothing more will be heard of it.
    is_silent: bool,
    /// It is given up, and was said to be.
    is_told: bool,
    /// When its ssh had ended.
    ended: Option<Instant>,
}

impl RemoteLauncher {
    /// Starts it and hands it the key.
    ///
    /// # Errors
    /// Those of the command.
    pub(super) fn start(
        ssh: &str,
        place: usize,
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
        // A signal of the terminal is passed on in order, by the cord.
        command.process_group(0);
        let mut player = Self {
            place,
            host: host.to_owned(),
            ssh: Followed::start(&mut command, epoll)?,
            has_come: false,
            is_silent: false,
            is_told: false,
            ended: None,
        };
        player.write(&format!("{key}\n"));
        Ok(player)
    }

    fn write(&mut self, text: &str) {
        if let Some(stdin_control) = &mut self.ssh.child.stdin {
            // If it is not there any more, its end tells.
            let _ = stdin_control.write_all(text.as_bytes());
        }
    }

    fn say(&self, text: &str) {
        say(&self.host, text);
    }

    /// What has become of it: none while it runs, or what it has said is still being read.
    fn outcome(&mut self) -> Option<Outcome> {
        let status = self.ssh.status()?;
        let ended = *self.ended.get_or_insert_with(Instant::now);
        let is_known = self.has_come || self.is_silent || ended.elapsed() >= LAST_OUTPUT;
        let outcome = match status {
            status if !self.has_come => Outcome::NeverCame(status),
            None | Some(GIVEN_UP) => Outcome::Lost,
            Some(status) => Outcome::Ended(status),
        };
        is_known.then_some(outcome)
    }
}

fn say(host: &str, text: &str) {
    let line = format!("muster run: {host}: {text}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}

/// What has become of a launcher.
enum Outcome {
    /// Its ssh has ended, with this status if it was not killed, and nothing was heard of it.
    NeverCame(Option<u8>),
    /// It ended before its time.
    Lost,
    /// It ended when the job did, or says itself why not.
    Ended(u8),
}

/// All of them.
pub(super) struct RemoteLaunchers {
    stderr_reader: StderrReader,
    wake: EventFd,
    /// Not started yet.
    waiting: VecDeque<(usize, String)>,
    running: Vec<RemoteLauncher>,
    lost: BTreeSet<usize>,
    pub(super) any_has_come: bool,
}

impl RemoteLaunchers {
    /// `epoll` wakes when something is heard of one.
    ///
    /// # Errors
    /// The system's.
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
            any_has_come: false,
        })
    }

    /// These are to be started, in this order.
    pub(super) fn enlist(&mut self, hosts: &[String]) {
        self.waiting = hosts.iter().cloned().enumerate().collect();
    }

    /// The next to be started, while fewer than so many are on their way.
    pub(super) fn next(&mut self, fanout: usize) -> Option<(usize, String)> {
        let on_their_way = self.running.iter().filter(|player| !player.has_come);
        if on_their_way.count() >= fanout {
            return None;
        }
        self.waiting.pop_front()
    }

    /// One was started. Who is lost already it need not wait for.
    ///
    /// # Errors
    /// What it says cannot be heard.
    pub(super) fn join(&mut self, mut player: RemoteLauncher) -> io::Result<()> {
        for place in &self.lost {
            player.write(&format!("lost {place}\n"));
        }
        if let Some(pipe) = player.ssh.child.stderr.take() {
            self.stderr_reader.add(player.place, pipe)?;
        }
        self.running.push(player);
        Ok(())
    }

    /// Takes what was heard.
    pub(super) fn listen(&mut self) {
        self.wake.drain();
        for heard in self.stderr_reader.take() {
            let (Heard::Here(place) | Heard::Closed(place)) = heard;
            let player = self.running.iter_mut().find(|one| one.place == place);
            if let Some(player) = player {
                player.has_come |= heard == Heard::Here(place);
                player.is_silent |= heard == Heard::Closed(place);
                self.any_has_come |= player.has_come;
            }
        }
    }

    /// Hands a signal on.
    pub(super) fn tell(&mut self, signal: i32) {
        self.write_all(&format!("signal {signal}\n"));
    }

    fn write_all(&mut self, text: &str) {
        self.running
            .iter_mut()
            .for_each(|player| player.write(text));
    }

    /// Starts no more of them: the job is over before it has begun.
    pub(super) fn dismiss(&mut self) {
        self.waiting.clear();
    }

    /// Those that have ended since; whether one of them had waited for all others, or knows better.
    pub(super) fn reap(&mut self, statuses: &mut Vec<Option<u8>>) -> bool {
        let mut in_order = false;
        let mut lost = Vec::new();
        self.running.retain_mut(|player| {
            let Some(outcome) = player.outcome() else {
                return true;
            };
            let (status, text) = match outcome {
                Outcome::NeverCame(Some(status)) => (
                    None,
                    format!("its launcher could not be started: ssh ended with {status}"),
                ),
                Outcome::NeverCame(None) => (
                    None,
                    "its launcher could not be started: ssh was killed".into(),
                ),
                Outcome::Lost => (None, "its launcher was lost".into()),
                Outcome::Ended(status) => (Some(status), String::new()),
            };
            if status.is_none() && !player.is_told {
                player.say(&text);
            }
            if status.is_none() {
                lost.push(player.place);
            }
            in_order |= status.is_some();
            statuses.push(status);
            false
        });
        lost.into_iter().for_each(|place| self.lose(place));
        if in_order {
            self.dismiss();
        }
        in_order
    }

    /// Those that wait for it to come need not.
    fn lose(&mut self, place: usize) {
        self.lost.insert(place);
        self.write_all(&format!("lost {place}\n"));
    }

    /// Ends the ssh of every launcher that has not come by now.
    pub(super) fn drop_the_absent(&mut self, patience: Duration) {
        let patience = patience.as_secs();
        let absent = self.running.iter_mut().filter(|player| !player.has_come);
        for player in absent {
            player.is_told = true;
            player.say(&format!(
                "no launcher has come there within {patience} s (--patience), or its standard error does not come \
                 here apart from its output (--ssh); ssh is ended"
            ));
            player.ssh.signal(SIGKILL);
        }
        let waiting: Vec<(usize, String)> = self.waiting.drain(..).collect();
        if !waiting.is_empty() {
            let names = waiting.iter().map(|(_, host)| host.as_str());
            let text = format!(
                "not started within {patience} s (--patience), for others before took so long; --fanout starts more \
                 at a time"
            );
            say(&muster_hostlist::fold(names), &text);
        }
        waiting.into_iter().for_each(|(place, _)| self.lose(place));
    }

    /// The others have ended and not waited for these, or all were to end.
    pub(super) fn give_up(&mut self, statuses: &mut Vec<Option<u8>>) {
        for player in self.running.drain(..) {
            player.say("its launcher should have ended; it is not waited for");
            statuses.push(None);
        }
    }

    pub(super) fn are_over(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// When the last words of one that has ended are waited for no longer.
    pub(super) fn due(&self) -> Option<Instant> {
        let ended = self.running.iter().filter_map(|player| player.ended);
        ended.min().map(|ended| ended + LAST_OUTPUT)
    }

    /// What the last have said is passed on, while its reader takes something within this time.
    pub(super) fn finish(&self, patience: Duration) {
        self.stderr_reader.finish(patience);
    }
}
