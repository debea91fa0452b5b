//! Emulated nodes: one launcher process for each on this machine, each with an agent and an address.
//!
//! They replace `srun` on a laptop or in a test. Each node runs this program again; a variable of its environment names
//! the node. It ends with this process.

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::SIGKILL;

use super::ONE_ZONE;
use super::child::WatchedChild;
use super::shutdown::Shutdown;
use crate::node::GIVEN_UP;
use crate::node::Signals;
use crate::{Error, Plan};
use muster_config::draw_key;
use muster_ipc::locked_directory::{LockedDirectory, remove_abandoned};
use muster_ipc::{AgentDirectory, DirectoryError};
use muster_sys::poll::Epoll;
use muster_terminal::process::{self, Process, wait_until};
use muster_terminal::{CliError, print_error};

/// Variable that tells a launcher that it is one of an emulated node, and which: `INDEX:NODES:DIRECTORY`.
const VARIABLE: &str = "MUSTER_RUN_EMULATED";
/// Maximum number of emulated nodes: each has an address in one loopback network.
pub(super) const NODES_MAX: u32 = 64;
/// Maximum number of rails of a node.
pub(super) const RAILS_MAX: u32 = 8;
/// Prefix of the directory of a job's files, before the pid of the process that starts the job; and the subdirectory
/// of its agents.
pub const PREFIX: &str = "muster-run-";
/// Name of the agents' directory in it.
pub const AGENTS: &str = "m";
/// Maximum number of rails of all nodes.
pub(super) const ADDRESSES_MAX: u32 = 254;
/// Number of loopback networks for emulated nodes, and how many are tried to find one that is free.
const NETWORKS: u32 = 150 * 250;
const TRIES: u32 = 64;
/// With more nodes per core than this, beats are usually late, and agents require longer deadlines.
const NODES_PER_CORE: usize = 8;
/// How long agents stay after the last client. It is short, since the job is over then.
const LINGER_MS: &str = "200";
/// Time in which agents must end.
const AGENTS_EXIT_TIME: Duration = Duration::from_secs(10);
/// Interval between two checks of the remaining launchers after some have ended: no event reports a stopped process.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for events before that. All events wake this process.
const IDLE_WAIT: Duration = Duration::from_secs(60);

/// Starts a launcher for each node, waits for all and returns the job's exit status. `own_arguments` are the arguments
/// of this process.
///
/// # Errors
/// Returns what could not be created or started; no process is left then.
pub(super) fn run(plan: &Plan, rails: u32, own_arguments: &[OsString]) -> Result<u8, Error> {
    let signals = Signals::new().map_err(Error::system("handle signals"))?;
    remove_abandoned();
    let directory = Directory::make()?;
    let epoll = Epoll::new().map_err(Error::system("make an epoll"))?;
    let added = epoll.add(signals.as_fd(), 0);
    added.map_err(Error::system("wait for signals"))?;
    let mut launchers = Launchers::default();
    let network = free_network();
    for (node, name) in plan.layout.nodes().iter().enumerate() {
        let mut command = command(
            plan,
            (rails, network),
            own_arguments,
            directory.0.path(),
            node,
            name,
        )?;
        let launcher = WatchedChild::start(&mut command, &epoll);
        let launcher = launcher.map_err(Error::system(format!("start the launcher of {name}")))?;
        launchers.0.push((node, launcher));
    }
    let mut statuses = Vec::new();
    let mut shutdown = Shutdown::default();
    // The signal for which this process killed launchers that did not end.
    let mut killed_for = None;
    let mut ready = Vec::new();
    loop {
        for signal in signals.take() {
            launchers.signal(signal);
            shutdown.note(signal);
        }
        if shutdown.kill_at().is_some_and(|at| Instant::now() >= at) {
            launchers.signal(SIGKILL);
            killed_for = shutdown.first();
        }
        launchers.reap(plan, &mut statuses);
        if launchers.0.is_empty() {
            break;
        }
        let is_quiet = statuses.is_empty() && shutdown.kill_at().is_none();
        let wait = if is_quiet { IDLE_WAIT } else { POLL_INTERVAL };
        if !statuses.is_empty() {
            launchers.end_stopped();
        }
        let woken = epoll.wait(&mut ready, Some(wait));
        woken.map_err(Error::system("wait"))?;
    }
    directory.end_agents();
    // If a node was killed, no other process removes the shared memory of its ranks.
    remove_abandoned();
    // Launchers that had no signal handler yet were killed by the signal.
    let all_died = statuses.iter().all(Option::is_none);
    Ok(match killed_for.or(shutdown.first().filter(|_| all_died)) {
        Some(signal) => 128 + signal as u8,
        None => plan.policy.of_nodes(&statuses),
    })
}

/// The running launchers.
#[derive(Default)]
struct Launchers(Vec<(usize, WatchedChild)>);

impl Launchers {
    fn signal(&self, signal: i32) {
        for (_, launcher) in &self.0 {
            launcher.signal(signal);
        }
    }

    /// Kills the remaining launchers if all of them are stopped: the launchers that ended have given up their nodes.
    fn end_stopped(&self) {
        let find = |(_, launcher): &(usize, WatchedChild)| Process::find(launcher.child.id());
        let left: Vec<Process> = self.0.iter().filter_map(find).collect();
        if left.iter().all(Process::is_stopped) {
            self.signal(SIGKILL);
        }
    }

    fn reap(&mut self, plan: &Plan, statuses: &mut Vec<Option<u8>>) {
        self.0.retain_mut(|(node, launcher)| {
            let Some(status) = launcher.status() else {
                return true;
            };
            if status.is_none() {
                let name = plan.layout.name(*node);
                print_error(format_args!(
                    "muster run: the launcher of {name} was killed"
                ));
            }
            statuses.push(status.filter(|status| *status != GIVEN_UP));
            false
        });
    }
}

fn command(
    plan: &Plan,
    (rails, network): (u32, u32),
    own_arguments: &[OsString],
    directory: &Path,
    node: usize,
    name: &str,
) -> Result<Command, Error> {
    let program = std::env::current_exe().map_err(Error::system("find this program"))?;
    let count = plan.layout.nodes().len();
    let mut value = OsString::from(format!("{node}:{count}:"));
    value.push(directory);
    let others = (0..count).filter(|other| *other != node);
    // In a job with zones a seed's zone follows from its name.
    let seeds: Vec<String> = others
        .map(|other| {
            let name = &plan.layout.nodes()[other];
            format!("{name}={}", address(network, other, 0, rails))
        })
        .collect();
    let nodes = muster_hostlist::fold(plan.layout.nodes().iter().map(String::as_str));
    let own: Vec<String> = (0..rails)
        .map(|rail| address(network, node, rail, rails))
        .collect();
    let mut command = Command::new(program);
    command
        .args(own_arguments)
        .env(VARIABLE, value)
        .env("MUSTER_JOB", &plan.job)
        .env("MUSTER_NODE", name)
        .env("MUSTER_DIR", directory.join(AGENTS))
        .env("MUSTER_KEY_FILE", directory.join("key"))
        .env("MUSTER_RAILS", own.join(","))
        .env("MUSTER_SEEDS", seeds.join(" "))
        .env("MUSTER_NODES", nodes)
        .env("MUSTER_LINGER_MS", LINGER_MS);
    if std::env::var_os("MUSTER_ZONES").is_none() {
        command.env("MUSTER_ZONES", ONE_ZONE);
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if count > NODES_PER_CORE * cores && std::env::var_os("MUSTER_PROFILE").is_none() {
        command.env("MUSTER_PROFILE", "quiet");
    }
    if node != 0 {
        command.stdin(Stdio::null());
    }
    Ok(command)
}

/// Address of a rail of an emulated node.
fn address(network: u32, node: usize, rail: u32, rails: u32) -> String {
    let number = node as u32 * rails + rail + 1;
    format!("{}@udp{rail}", Ipv4Addr::from(network + number))
}

/// The loopback network that belongs to this pid, so that two jobs use different networks; the next free one if a
/// process with the same pid, such as in another container, uses it.
fn free_network() -> u32 {
    let network = |step: u32| {
        let number = (std::process::id() + step) % NETWORKS;
        u32::from_be_bytes([127, (100 + number / 250) as u8, (1 + number % 250) as u8, 0])
    };
    let is_free = |network: &u32| {
        let first = SocketAddrV4::new(Ipv4Addr::from(network + 1), muster_fabric::PORT_DEFAULT);
        UdpSocket::bind(first).is_ok()
    };
    // If none is free, the agents report what is in the way.
    (0..TRIES).map(network).find(is_free).unwrap_or(network(0))
}

/// Directory with the sockets of the agents of a job; `parent` is the pid of the process that starts the job.
pub fn agents_directory(parent: u32) -> PathBuf {
    directory_of(parent).join(AGENTS)
}

pub(super) fn directory_of(parent: u32) -> PathBuf {
    std::env::temp_dir().join(format!("{PREFIX}{parent}"))
}

/// The node of this process, from its environment, if it is a launcher of an emulated node: its index, the number of
/// nodes, and the directory.
///
/// # Errors
/// Returns an error if the variable is set and invalid: as the parent, this process would start launchers with the same
/// variable, and so on.
pub(super) fn from_environment() -> Result<Option<(usize, usize, PathBuf)>, CliError> {
    let Some(value) = std::env::var_os(VARIABLE) else {
        return Ok(None);
    };
    let parsed = value.to_str().and_then(|value| {
        let mut parts = value.splitn(3, ':');
        let node = parts.next()?.parse().ok()?;
        let count = parts.next()?.parse().ok()?;
        Some((node, count, parts.next()?.into()))
    });
    let unclear = || {
        let value = value.display();
        let why = format!(
            "{VARIABLE}={value} does not name an emulated node; unset it, since only muster run sets it"
        );
        CliError::usage("run", why)
    };
    parsed.ok_or_else(unclear).map(Some)
}

/// An error of the launcher of an emulated node. It is silent if that of another node has reported the same: what is
/// missing on this machine is missing for all of them.
pub(super) fn reported_once(directory: &Path, error: CliError) -> CliError {
    let mut hasher = DefaultHasher::new();
    error.to_string().hash(&mut hasher);
    let path = directory.join(format!("error-{:016x}", hasher.finish()));
    let made = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path);
    match made {
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => CliError::silent(error.code),
        _ => error,
    }
}

/// The directory of the job's files: key, sockets, sessions.
struct Directory(LockedDirectory);

impl Directory {
    fn make() -> Result<Self, Error> {
        let path = directory_of(std::process::id());
        let unusable = |why: String| {
            let cause = std::io::Error::other(format!("{why}; name another directory with TMPDIR"));
            Error::system(path.display().to_string())(cause)
        };
        if path.to_str().is_none() {
            return Err(unusable("the path is not UTF-8".into()));
        }
        let agents = path.join(AGENTS);
        if let Err(DirectoryError::TooLong { most, .. }) =
            AgentDirectory::find(None, None, Some(&agents))
        {
            let why = format!("paths of sockets in it would be longer than {most} bytes");
            return Err(unusable(why));
        }
        let directory =
            LockedDirectory::take(&path).map_err(|cause| unusable(cause.to_string()))?;
        let failed = |path: &Path| Error::system(path.display().to_string());
        let made = fs::DirBuilder::new().mode(0o700).create(&agents);
        made.map_err(failed(&agents))?;
        let path = path.join("key");
        let key: String = draw_key()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| writeln!(file, "{key}"))
            .map_err(failed(&path))?;
        Ok(Self(directory))
    }

    /// Ends the agents of the job. Otherwise they would wait for more ranks, since this process, which they take for
    /// the launcher, still runs.
    fn end_agents(&self) {
        let ours = self.0.path().join(AGENTS);
        let agents: Vec<Process> = process::named("musterd")
            .into_iter()
            .filter(|agent| {
                agent
                    .environment("MUSTER_DIR")
                    .is_some_and(|directory| Path::new(&directory) == ours)
            })
            .collect();
        for agent in &agents {
            agent.signal(Signal::TERM);
        }
        let gone = |agent: &Process| !agent.is_running() || agent.is_stopped();
        wait_until(AGENTS_EXIT_TIME, || agents.iter().all(gone));
        for agent in &agents {
            agent.signal(Signal::KILL);
        }
    }
}
