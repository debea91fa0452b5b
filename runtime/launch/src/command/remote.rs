//! Launches on other hosts, over ssh.
//!
//! The launch coordinator (this process) starts a launcher on each host. The standard input of a launcher is its
//! control channel: the coordinator sends the job key over it, and later the signals that it receives and the lost
//! nodes. ssh connects the channel and closes it when it ends. A launcher whose control channel is closed stops, so no
//! launcher outlives the coordinator.

use super::child::contain_panic;
use super::launchers::{RemoteLauncher, RemoteLaunchers};
use super::output_reader::{OutputReader, POLL_INTERVAL};
use super::shutdown::Shutdown;
use super::stderr_reader::report_start;
use super::{failed, step};
use crate::node::{Control, ControlChannel, Signals, watched};
use crate::{Hosts, Plan, Step};
use muster_config::{draw_key, read_key};
use muster_sys::limits;
use muster_sys::poll::Epoll;
use muster_sys::process::send_signal;
use muster_terminal::CliError;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Variable that tells a launcher that it is one of a host, and which: `INDEX:JOB:LIST`.
const VARIABLE: &str = "MUSTER_RUN_HOST";
/// Time in which the last launchers must end after one has ended in order (it has waited for all of them), or after a
/// signal that is to end them.
const EXIT_TIME: Duration = Duration::from_secs(20);
/// The exit status if no launcher has started; the same as if a node does not start.
const NONE_STARTED: u8 = 5;
/// Longest wait for events. All events wake this process.
const IDLE_WAIT: Duration = Duration::from_secs(60);

/// A random name for a job.
pub(super) fn new_job() -> String {
    let digits = draw_key();
    format!(
        "run-{:08x}",
        u32::from_le_bytes([digits[0], digits[1], digits[2], digits[3]])
    )
}

/// Starts a launcher on each host, waits for all and returns the job's exit status.
///
/// # Errors
/// Returns what could not be started; no process is left then.
pub(super) fn run(
    plan: &Plan,
    hosts: &Hosts,
    (ssh, fanout): (&str, usize),
    export: &[String],
    own_arguments: &[OsString],
) -> Result<u8, CliError> {
    let refused = |what: &str| {
        let what = format!("run: {what}");
        move |cause: std::io::Error| CliError::new(what, cause)
    };
    // Each host takes three descriptors.
    limits::raise_all();
    let signals = Signals::new().map_err(refused("signals"))?;
    let key: String = draw_key()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let epoll = Epoll::new().map_err(refused("epoll"))?;
    epoll.add(signals.as_fd(), 0).map_err(refused("signals"))?;
    let mut launchers = RemoteLaunchers::new(&epoll).map_err(refused("standard error of hosts"))?;
    launchers.set_hosts(&hosts.names);
    let start = |index: usize, host: &str| {
        let value = format!("{index}:{}:{}", plan.job, hosts.list());
        let arguments =
            command_line(&value, export, own_arguments).map_err(refused("this program"))?;
        let launcher = RemoteLauncher::start(ssh, index, host, &arguments, &key, &epoll);
        launcher.map_err(refused(&format!("{ssh} {host}")))
    };
    let exit_time = EXIT_TIME + plan.grace;
    let mut statuses = Vec::new();
    let mut end_deadline: Option<Instant> = None;
    let mut shutdown = Shutdown::default();
    let mut start_deadline = Some(Instant::now() + plan.timeout);
    let mut ready = Vec::new();
    let mut output_reader = None;
    loop {
        launchers.take_events();
        if start_deadline.is_some_and(|at| Instant::now() >= at) {
            start_deadline = None;
            launchers.end_unstarted(plan.timeout);
        }
        for signal in signals.take() {
            launchers.forward_signal(signal);
            shutdown.note(signal);
        }
        if shutdown.any() {
            launchers.clear_waiting();
            end_deadline.get_or_insert(Instant::now() + exit_time);
        }
        if launchers.reap(&mut statuses) {
            // If nothing has failed, no launcher requires the grace time.
            let all_succeeded = statuses.iter().all(|status| *status == Some(0));
            let time = if all_succeeded { EXIT_TIME } else { exit_time };
            end_deadline.get_or_insert(Instant::now() + time);
        }
        end_deadline = end_deadline.into_iter().chain(shutdown.kill_at()).min();
        if end_deadline.is_some_and(|at| Instant::now() >= at) {
            let now = Instant::now();
            let timeout = if shutdown.any() {
                plan.grace
            } else {
                plan.timeout
            };
            let output_reader = output_reader.get_or_insert_with(|| OutputReader::new(now));
            if shutdown.kill_at().is_none() && output_reader.keeps_waiting(timeout, now) {
                end_deadline = Some(now + POLL_INTERVAL);
            } else {
                launchers.give_up(&mut statuses);
            }
        }
        while let Some((index, host)) = launchers.next(fanout) {
            let added = launchers.add(start(index, &host)?);
            added.map_err(refused("standard error of hosts"))?;
        }
        if launchers.are_over() {
            launchers.finish(if shutdown.any() {
                plan.grace
            } else {
                plan.timeout
            });
            return Ok(match shutdown.first() {
                // A second signal has ended the job, also if launchers were killed and have no status.
                Some(signal) if shutdown.kill_at().is_some() => 128 + signal as u8,
                _ if launchers.any_has_started => plan.policy.of_nodes(&statuses),
                Some(signal) => 128 + signal as u8,
                None => NONE_STARTED,
            });
        }
        let deadline = end_deadline
            .into_iter()
            .chain(start_deadline)
            .chain(launchers.output_deadline())
            .min();
        let wait = deadline.map_or(IDLE_WAIT, |at| at.saturating_duration_since(Instant::now()));
        epoll
            .wait(&mut ready, Some(wait))
            .map_err(refused("wait"))?;
    }
}

/// The step of this process, from its environment, if it is a launcher of a host.
///
/// # Errors
/// Returns an error if the variable is set and invalid: as a coordinator, this process would start the job again on
/// all hosts.
pub(super) fn from_environment() -> Result<Option<Step>, CliError> {
    let Some(value) = std::env::var_os(VARIABLE) else {
        return Ok(None);
    };
    let step = value.to_str().and_then(|value| {
        let mut parts = value.splitn(3, ':');
        let index: usize = parts.next()?.parse().ok()?;
        let (job, list) = (parts.next()?, parts.next()?);
        let hosts = Hosts::parse(list).ok()?;
        (index < hosts.names.len()).then(|| hosts.step(index, job))
    });
    let unclear = || {
        let value = value.display();
        let why = format!(
            "{VARIABLE}={value} does not name a host; unset it, since only muster run sets it"
        );
        CliError::usage("run", why)
    };
    step.ok_or_else(unclear).map(Some)
}

/// The launcher of a host: runs its part of the job and returns its exit status.
pub(super) fn serve(plan: &Plan, step: &Step, arguments: &[OsString]) -> Result<u8, CliError> {
    if std::env::var_os(step::VARIABLE).is_none() {
        let files = step::keep_key(step, &take_key()?)?;
        return Err(step::execute(step, arguments, Some(&files), None));
    }
    let control = Control::new().map_err(failed)?;
    let channel = Arc::clone(&control.channel);
    std::thread::spawn(move || follow_control_channel(&channel));
    report_start();
    contain_panic(|| step::serve(plan, step, &control).map(watched))
}

/// Reads the key from the control channel, and no byte more.
fn take_key() -> Result<[u8; 32], CliError> {
    let mut text = Vec::new();
    // Opening /dev/stdin by name fails for a socket, and Rust's `Stdin` would read ahead.
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
        .map_err(|cause| CliError::new("run: key of the job", cause))?;
    Ok(key)
}

/// Follows the control channel: forwards its signals, records lost nodes, and ends the ranks here when it closes.
fn follow_control_channel(channel: &ControlChannel) {
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
            channel.lose(node);
        }
    }
    channel.cut();
}

/// The command line for a shell on the host: this program with the same arguments, in the same directory.
fn command_line(
    value: &str,
    export: &[String],
    own_arguments: &[OsString],
) -> std::io::Result<OsString> {
    let mut variables: Vec<(OsString, OsString)> = std::env::vars_os()
        .filter(|(name, _)| is_forwarded(&name.to_string_lossy()))
        .collect();
    for one in export {
        match one.split_once('=') {
            Some((name, value)) => variables.push((name.into(), value.into())),
            None => variables.extend(std::env::var_os(one).map(|value| (one.into(), value))),
        }
    }
    variables.push((VARIABLE.into(), value.into()));
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
    for argument in
        std::iter::once(program.as_os_str()).chain(own_arguments.iter().map(OsString::as_os_str))
    {
        line.push(b' ');
        line.extend(quoted(argument));
    }
    Ok(OsString::from_vec(line))
}

/// Whether a launcher on another host requires this variable of this process. Secrets are excluded, since other users
/// of the host see command lines.
fn is_forwarded(name: &str) -> bool {
    let exact = ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "OPAL_PREFIX"];
    let of_this_node = [
        "MUSTER_KEY_FILE",
        "MUSTER_JOB",
        "MUSTER_NODE",
        "MUSTER_CONTROL",
        "MUSTER_HOSTS",
        "MUSTER_NODES",
    ];
    let prefixes = ["OMPI_MCA_", "MUSTER_"];
    exact.contains(&name)
        || prefixes.iter().any(|prefix| name.starts_with(prefix))
            && !name.starts_with("MUSTER_RUN_")
            && !of_this_node.contains(&name)
}

/// Quotes an argument for a shell.
fn quoted(argument: &OsStr) -> Vec<u8> {
    let mut out = vec![b'\''];
    for byte in argument.as_bytes() {
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
    fn a_shell_restores_a_quoted_argument() {
        for argument in ["plain", "two words", "it's", "$HOME `x` \"y\" \\", ""] {
            let mut line = OsString::from("printf %s ");
            line.push(OsString::from_vec(quoted(OsStr::new(argument))));
            let output = Command::new("sh").arg("-c").arg(line).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), argument);
        }
    }

    #[test]
    fn secrets_and_node_variables_are_not_forwarded() {
        for name in ["PATH", "OMPI_MCA_coll", "MUSTER_AGENT", "MUSTER_RAILS"] {
            assert!(is_forwarded(name), "{name}");
        }
        for name in [
            "MUSTER_KEY_FILE",
            "MUSTER_RUN_HOST",
            "MUSTER_NODE",
            "HOME",
            "PMIX_RANK",
        ] {
            assert!(!is_forwarded(name), "{name}");
        }
    }
}
