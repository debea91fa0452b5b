//! Launchers on other hosts, started over ssh.
//!
//! Picture a conductor who holds a cord to each player. By the cord he hands over the key, and later the signals
//! that he gets himself; a player whose cord goes slack stops. The cord is the launcher's standard input: ssh brings
//! it there and closes it when it ends, so no launcher outlives whoever started it.

use super::child::survey;
use super::launchers::{RemoteLauncher, RemoteLaunchers};
use super::output_reader::{LOOK, OutputReader};
use super::shutdown::Shutdown;
use super::stderr_reader::say_here;
use super::step;
use crate::cli::CliError;
use crate::config::{draw_key, read_key};
use crate::launch::node::watched;
use crate::launch::{Hosts, Plan, Signals, Step, stdin_control};
use crate::sys::limits;
use crate::sys::poll::Epoll;
use crate::sys::process::send_signal;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// By this a launcher knows that it is one of a host, and which: `PLACE:JOB:LIST`.
const VARIABLE: &str = "MUSTER_RUN_HOST";
/// How long the last launchers may take to end after one has ended in order, for it has waited for all of them, or
/// after a signal that is to end them.
const FAREWELL: Duration = Duration::from_secs(20);
/// The exit status where no launcher has come, as where some node does not come.
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
    (ssh, fanout): (&str, usize),
    export: &[String],
    again: &[OsString],
) -> Result<u8, CliError> {
    let refused = |what: &str| {
        let what = format!("run: {what}");
        move |cause: std::io::Error| CliError::new(what, cause)
    };
    // Three descriptors a host.
    limits::raise_all();
    let signals = Signals::new().map_err(refused("signals"))?;
    let key: String = draw_key()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let epoll = Epoll::new().map_err(refused("epoll"))?;
    epoll.add(signals.as_fd(), 0).map_err(refused("signals"))?;
    let mut launchers = RemoteLaunchers::new(&epoll).map_err(refused("what hosts say"))?;
    launchers.enlist(&hosts.names);
    let start = |place: usize, host: &str| {
        let told = format!("{place}:{}:{}", plan.job, hosts.list());
        let arguments = command_line(&told, export, again).map_err(refused("this program"))?;
        let player = RemoteLauncher::start(ssh, place, host, &arguments, &key, &epoll);
        player.map_err(refused(&format!("{ssh} {host}")))
    };
    let detach = FAREWELL + plan.grace;
    let mut statuses = Vec::new();
    let mut over_at: Option<Instant> = None;
    let mut shutdown = Shutdown::default();
    let mut come_by = Some(Instant::now() + plan.timeout);
    let mut ready = Vec::new();
    let mut output_reader = None;
    loop {
        launchers.listen();
        if come_by.is_some_and(|at| Instant::now() >= at) {
            come_by = None;
            launchers.drop_the_absent(plan.timeout);
        }
        for signal in signals.take() {
            launchers.tell(signal);
            shutdown.note(signal);
        }
        if shutdown.any() {
            launchers.dismiss();
            over_at.get_or_insert(Instant::now() + detach);
        }
        if launchers.reap(&mut statuses) {
            // Nobody needs time to end where nothing has failed.
            let is_well = statuses.iter().all(|status| *status == Some(0));
            let time = if is_well { FAREWELL } else { detach };
            over_at.get_or_insert(Instant::now() + time);
        }
        over_at = over_at.into_iter().chain(shutdown.kill_at()).min();
        if over_at.is_some_and(|at| Instant::now() >= at) {
            let now = Instant::now();
            let patience = if shutdown.any() {
                plan.grace
            } else {
                plan.timeout
            };
            let output_reader = output_reader.get_or_insert_with(|| OutputReader::new(now));
            if shutdown.kill_at().is_none() && output_reader.keeps_waiting(patience, now) {
                over_at = Some(now + LOOK);
            } else {
                launchers.give_up(&mut statuses);
            }
        }
        while let Some((place, host)) = launchers.next(fanout) {
            let joined = launchers.join(start(place, &host)?);
            joined.map_err(refused("what hosts say"))?;
        }
        if launchers.are_over() {
            launchers.finish(if shutdown.any() {
                plan.grace
            } else {
                plan.timeout
            });
            return Ok(match shutdown.first() {
                // Whoever asked twice has ended it, also where launchers were killed and have no status.
                Some(signal) if shutdown.kill_at().is_some() => 128 + signal as u8,
                _ if launchers.any_has_come => plan.policy.of_nodes(&statuses),
                Some(signal) => 128 + signal as u8,
                None => NOBODY_CAME,
            });
        }
        let due = over_at
            .into_iter()
            .chain(come_by)
            .chain(launchers.due())
            .min();
        let rest = due.map_or(REST, |at| at.saturating_duration_since(Instant::now()));
        epoll
            .wait(&mut ready, Some(rest))
            .map_err(refused("wait"))?;
    }
}

/// What a launcher was told by its environment, if it is one of a host.
///
/// # Errors
/// It is set and says nothing: taken for a starter this process would start the job once more on all hosts.
pub(super) fn told() -> Result<Option<Step>, CliError> {
    let Some(value) = std::env::var_os(VARIABLE) else {
        return Ok(None);
    };
    let step = value.to_str().and_then(|value| {
        let mut parts = value.splitn(3, ':');
        let place: usize = parts.next()?.parse().ok()?;
        let (job, list) = (parts.next()?, parts.next()?);
        let hosts = Hosts::parse(list).ok()?;
        (place < hosts.names.len()).then(|| hosts.step(place, job))
    });
    let unclear = || {
        let value = value.display();
        let why =
            format!("{VARIABLE}={value} names no host; unset it, it is set by muster run itself");
        CliError::usage("run", why)
    };
    step.ok_or_else(unclear).map(Some)
}

/// The launcher of a host: runs its part of the job and answers its exit status.
pub(super) fn serve(plan: &Plan, step: &Step, arguments: &[OsString]) -> Result<u8, CliError> {
    if std::env::var_os(step::VARIABLE).is_none() {
        let files = step::keep_key(step, &take_key()?)?;
        return Err(step::execute(step, arguments, Some(&files), None));
    }
    // From here on signals end nothing by themselves.
    let signals = Signals::new().map_err(|cause| CliError::new("run: signals", cause))?;
    std::mem::forget(signals);
    std::thread::spawn(follow_cord);
    say_here();
    survey(|| step::serve(plan, step).map(watched))
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
            stdin_control::lose(node);
        }
    }
    stdin_control::cut();
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
    use std::process::Command;

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
