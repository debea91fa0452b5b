//! Launchers on other hosts, started over ssh.
//!
//! Picture a conductor who holds a cord to each player. By the cord he hands over the key, and later the signals
//! that he gets himself; a player whose cord goes slack stops. The cord is the launcher's standard input: ssh brings
//! it there and closes it when it ends, so no launcher outlives whoever started it.

use super::child::Followed;
use super::step;
use crate::cli::CliError;
use crate::config::{draw_key, read_key};
use crate::launch::node::{GIVEN_UP, watched};
use crate::launch::{Hosts, Plan, Signals, Step, cord};
use crate::sys::poll::Epoll;
use crate::sys::process::send_signal;
use signal_hook::consts::{SIGKILL, SIGUSR1, SIGUSR2};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// By this a launcher knows that it is one of a host, and which: `PLACE:JOB:LIST`.
const VARIABLE: &str = "MUSTER_RUN_HOST";
/// How long the last launchers may take to end after one has ended in order, for it has waited for all of them, or
/// after a signal that is to end them.
const FAREWELL: Duration = Duration::from_secs(20);
/// The exit status where no host has taken the key, as where some node does not come.
const NOBODY_CAME: u8 = 5;
/// All that happens wakes this process.
const REST: Duration = Duration::from_secs(60);

/// A name for a job that nobody else has.
pub(super) fn new_job() -> String {
    let digits = draw_key();
    format!(
        "run-{:08x}",
        u32::from_le_bytes([digits[0], digits[1], digits[2], digits[3]])
    )
}

/// Starts a launcher on each host, waits for them and answers the job's exit status.
///
/// # Errors
/// What could not be started; nothing is left then.
pub(super) fn run(
    plan: &Plan,
    hosts: &Hosts,
    ssh: &str,
    export: &[String],
    again: &[OsString],
) -> Result<u8, CliError> {
    let refused = |what: &str| {
        let what = format!("run: {what}");
        move |cause: std::io::Error| CliError::new(what, cause)
    };
    let signals = Signals::new().map_err(refused("signals"))?;
    let key: String = draw_key()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let epoll = Epoll::new().map_err(refused("epoll"))?;
    epoll.add(signals.as_fd(), 0).map_err(refused("signals"))?;
    let mut players = Players::default();
    for (place, host) in hosts.names.iter().enumerate() {
        let told = format!("{place}:{}:{}", plan.job, hosts.list());
        let words = command_line(&told, export, again).map_err(refused("this program"))?;
        let player = Player::start(ssh, place, host, &words, &key, &epoll);
        players
            .running
            .push(player.map_err(refused(&format!("{ssh} {host}")))?);
    }
    let mut statuses = Vec::new();
    let mut over_at: Option<Instant> = None;
    let mut ended_by = None;
    let mut taken_by = Some(Instant::now() + plan.patience);
    let mut ready = Vec::new();
    loop {
        // Before anything is written to those who have taken all.
        if taken_by.is_some_and(|at| Instant::now() >= at) {
            taken_by = None;
            players.drop_the_deaf(plan.patience);
        }
        for signal in signals.take() {
            players
                .running
                .iter_mut()
                .for_each(|player| player.tell(signal));
            if signal != SIGUSR1 && signal != SIGUSR2 {
                over_at.get_or_insert(Instant::now() + FAREWELL);
                ended_by.get_or_insert(signal);
            }
        }
        if players.reap(&mut statuses) {
            over_at.get_or_insert(Instant::now() + FAREWELL);
        }
        if over_at.is_some_and(|at| Instant::now() >= at) {
            players.give_up(&mut statuses);
        }
        if players.running.is_empty() && !players.any_taken {
            return Ok(ended_by.map_or(NOBODY_CAME, |signal| 128 + signal as u8));
        }
        if players.running.is_empty() {
            return Ok(plan.policy.of_nodes(&statuses));
        }
        let due = over_at.into_iter().chain(taken_by).min();
        let rest = due.map_or(REST, |at| at.saturating_duration_since(Instant::now()));
        epoll
            .wait(&mut ready, Some(rest))
            .map_err(refused("wait"))?;
    }
}

/// What a launcher was told by its environment, if it is one of a host.
pub(super) fn told() -> Option<Step> {
    let words = std::env::var(VARIABLE).ok()?;
    let mut parts = words.splitn(3, ':');
    let place: usize = parts.next()?.parse().ok()?;
    let (job, list) = (parts.next()?, parts.next()?);
    let hosts = Hosts::parse(list).ok()?;
    (place < hosts.names.len()).then(|| hosts.step(place, job))
}

/// The launcher of a host: runs its part of the job and answers its exit status.
pub(super) fn serve(plan: &Plan, step: &Step, words: &[OsString]) -> Result<u8, CliError> {
    if std::env::var_os(step::VARIABLE).is_none() {
        let files = step::keep_key(step, &take_key()?)?;
        return Err(step::execute(step, words, Some(&files), None));
    }
    // From here on signals end nothing by themselves.
    let signals = Signals::new().map_err(|cause| CliError::new("run: signals", cause))?;
    std::mem::forget(signals);
    std::thread::spawn(follow_cord);
    step::serve(plan, step, true).map(watched)
}

/// The key from the cord; no byte more is read.
fn take_key() -> Result<[u8; 32], CliError> {
    let mut text = Vec::new();
    // Opened by its name it could be no socket, and as Rust's own standard input it would read ahead.
    let mut input = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map(File::from)
        .map_err(|cause| CliError::new("run: standard input", cause))?;
    let mut byte = [0];
    while text.len() < 100
        && input.read(&mut byte).is_ok_and(|count| count == 1)
        && byte[0] != b'\n'
    {
        text.push(byte[0]);
    }
    let key = read_key(&text[..], Path::new("-"))
        .map_err(|cause| CliError::new("run: the job's key", cause))?;
    Ok(key)
}

/// Takes signals from the cord, hears who was not started, and ends the ranks here if it is cut.
fn follow_cord() {
    let own = std::process::id();
    let lines = BufReader::new(std::io::stdin()).lines();
    for line in lines.map_while(Result::ok) {
        if let Some(signal) = line
            .strip_prefix("signal ")
            .and_then(|text| text.parse().ok())
        {
            let _ = send_signal(own, signal);
        }
        if let Some(node) = line
            .strip_prefix("lost ")
            .and_then(|text| text.parse().ok())
        {
            cord::lose(node);
        }
    }
    cord::cut();
}

/// A launcher on a host.
struct Player {
    place: usize,
    host: String,
    ssh: Followed,
}

impl Player {
    fn start(
        ssh: &str,
        place: usize,
        host: &str,
        words: &OsStr,
        key: &str,
        epoll: &Epoll,
    ) -> std::io::Result<Self> {
        let mut parts = ssh.split_whitespace();
        let mut command = Command::new(parts.next().unwrap_or("ssh"));
        command
            .args(parts)
            .arg(host)
            .arg(words)
            .stdin(Stdio::piped());
        // A signal of the terminal is passed on in order, by the cord.
        command.process_group(0);
        let mut player = Self {
            place,
            host: host.to_owned(),
            ssh: Followed::start(&mut command, epoll)?,
        };
        player.write(&format!("{key}\n"));
        Ok(player)
    }

    fn tell(&mut self, signal: i32) {
        self.write(&format!("signal {signal}\n"));
    }

    fn write(&mut self, words: &str) {
        if let Some(cord) = &mut self.ssh.child.stdin {
            // If it is not there any more, its end tells.
            let _ = cord.write_all(words.as_bytes());
        }
    }

    /// Whether ssh has taken the key from its cord, which it does when it has reached the host.
    fn has_taken(&self) -> bool {
        let cord = self.ssh.child.stdin.as_ref();
        cord.is_some_and(|cord| rustix::io::ioctl_fionread(cord).is_ok_and(|left| left == 0))
    }

    fn say(&self, words: &str) {
        let line = format!("muster run: {}: {words}\n", self.host);
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

/// The launchers that run.
#[derive(Default)]
struct Players {
    running: Vec<Player>,
    /// Some host was reached.
    any_taken: bool,
}

impl Players {
    /// Those that have ended since; whether one of them had waited for all others.
    fn reap(&mut self, statuses: &mut Vec<Option<u8>>) -> bool {
        let mut in_order = false;
        let mut lost = Vec::new();
        self.running.retain_mut(|player| {
            let Some(status) = player.ssh.status() else {
                return true;
            };
            if status.is_none_or(|status| status == GIVEN_UP) {
                player.say("its launcher could not be started, or was lost");
                lost.push(player.place);
            }
            let status = status.filter(|status| *status != GIVEN_UP);
            in_order |= status.is_some();
            self.any_taken |= status.is_some() || player.has_taken();
            statuses.push(status);
            false
        });
        for place in lost {
            // Those that wait for it to come need not.
            let words = format!("lost {place}\n");
            self.running
                .iter_mut()
                .for_each(|player| player.write(&words));
        }
        in_order
    }

    /// Ends every ssh that has not reached its host by now.
    fn drop_the_deaf(&mut self, patience: Duration) {
        for player in self.running.iter().filter(|player| !player.has_taken()) {
            player.say(&format!(
                "it was not reached within {} s (--patience); ssh is ended",
                patience.as_secs()
            ));
            player.ssh.signal(SIGKILL);
        }
    }

    /// The others have ended and not waited for these, or all were to end.
    fn give_up(&mut self, statuses: &mut Vec<Option<u8>>) {
        for player in self.running.drain(..) {
            self.any_taken |= player.has_taken();
            player.say("its launcher should have ended; it is not waited for");
            statuses.push(None);
        }
    }
}

/// What a shell on the host is to run: this program with the same words, in the same directory.
fn command_line(told: &str, export: &[String], again: &[OsString]) -> std::io::Result<OsString> {
    let mut variables: Vec<(OsString, OsString)> = std::env::vars_os()
        .filter(|(name, _)| is_taken_along(&name.to_string_lossy()))
        .collect();
    for one in export {
        match one.split_once('=') {
            Some((name, value)) => variables.push((name.into(), value.into())),
            None => variables.extend(std::env::var_os(one).map(|value| (one.into(), value))),
        }
    }
    variables.push((VARIABLE.into(), told.into()));
    let mut line = b"cd ".to_vec();
    line.extend(quoted(std::env::current_dir()?.as_os_str()));
    line.extend(b" && exec env");
    for (name, value) in variables {
        let mut both = name;
        both.push("=");
        both.push(value);
        line.push(b' ');
        line.extend(quoted(&both));
    }
    let program = std::env::current_exe()?;
    for word in std::iter::once(program.as_os_str()).chain(again.iter().map(OsString::as_os_str)) {
        line.push(b' ');
        line.extend(quoted(word));
    }
    Ok(OsString::from_vec(line))
}

/// Variables that a launcher on another host needs as they are here; no secret, since others there see them.
fn is_taken_along(name: &str) -> bool {
    let whole = ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "OPAL_PREFIX"];
    let of_this_place = [
        "MUSTER_KEY_FILE",
        "MUSTER_JOB",
        "MUSTER_NODE",
        "MUSTER_CONTROL",
        "MUSTER_HOSTS",
    ];
    let beginnings = ["OMPI_MCA_", "MUSTER_"];
    whole.contains(&name)
        || beginnings
            .iter()
            .any(|beginning| name.starts_with(beginning))
            && !name.starts_with("MUSTER_RUN_")
            && !of_this_place.contains(&name)
}

/// As a word for a shell.
fn quoted(word: &OsStr) -> Vec<u8> {
    let mut out = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => out.extend(b"'\\''"),
            other => out.push(*other),
        }
    }
    out.push(b'\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_gives_a_word_back_as_it_was() {
        for word in ["plain", "two words", "it's", "$HOME `x` \"y\" \\", ""] {
            let mut line = OsString::from("printf %s ");
            line.push(OsString::from_vec(quoted(OsStr::new(word))));
            let output = Command::new("sh").arg("-c").arg(line).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }

    #[test]
    fn secrets_and_places_stay_here() {
        for name in ["PATH", "OMPI_MCA_coll", "MUSTER_AGENT", "MUSTER_RAILS"] {
            assert!(is_taken_along(name), "{name}");
        }
        for name in [
            "MUSTER_KEY_FILE",
            "MUSTER_RUN_HOST",
            "MUSTER_NODE",
            "HOME",
            "PMIX_RANK",
        ] {
            assert!(!is_taken_along(name), "{name}");
        }
    }
}
