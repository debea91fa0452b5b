//! Emulated nodes: one launcher process for each on this machine, with an agent and an address of its own.
//!
//! What a laptop or a test has in place of `srun`. Each node is this program once more, told by its environment
//! which node it is; it ends when we do.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::SIGKILL;

use super::child::Followed;
use super::shutdown::Shutdown;
use crate::node::GIVEN_UP;
use crate::{Error, Plan, Signals};
use muster_config::draw_key;
use muster_ipc::locked_directory::{LockedDirectory, remove_abandoned};
use muster_ipc::{AgentDirectory, DirectoryError};
use muster_sys::poll::Epoll;
use muster_terminal::process::{self, Process, wait_until};
use muster_terminal::{CliError, print_error};

/// By this a launcher knows that it is one of an emulated node, and which: `INDEX:NODES:DIRECTORY`.
const VARIABLE: &str = "MUSTER_RUN_EMULATED";
/// Most emulated nodes: each has an address in one loopback network.
pub(super) const NODES_MAX: u32 = 64;
/// Most rails of one.
pub(super) const RAILS_MAX: u32 = 8;
/// How the directory of a job's files is called, with the number of its starter; and in it that of its agents.
pub const PREFIX: &str = "muster-run-";
/// Name of the agents' directory in it.
pub const AGENTS: &str = "m";
/// Most rails of all.
pub(super) const ADDRESSES_MAX: u32 = 254;
/// Loopback networks of emulated nodes, and how many are looked at for one that nobody has.
const NETWORKS: u32 = 150 * 250;
const TRIES: u32 = 64;
/// With more nodes a core than this a beat is late as a rule, and agents have to be patient.
const NODES_A_CORE: usize = 8;
/// How long agents stay after the last client; the job is over then.
const LINGER_MS: &str = "200";
/// How long agents may take to go.
const AGENTS_GO: Duration = Duration::from_secs(10);
/// Between two looks at those that are left when some have ended: nothing tells that one is stopped.
const LOOK: Duration = Duration::from_millis(100);
/// Before that all that happens wakes this process.
const REST: Duration = Duration::from_secs(60);

/// Starts a launcher for each node, waits for them and answers the job's exit status. `again` are the words of
/// this command line.
///
/// # Errors
/// What could not be made or started; nothing is left then.
pub(super) fn run(plan: &Plan, rails: u32, again: &[OsString]) -> Result<u8, Error> {
    let signals = Signals::new().map_err(Error::system("handle signals"))?;
    remove_abandoned();
    let place = Directory::make()?;
    let epoll = Epoll::new().map_err(Error::system("make an epoll"))?;
    let added = epoll.add(signals.as_fd(), 0);
    added.map_err(Error::system("wait for signals"))?;
    let mut launchers = Launchers::default();
    for (node, name) in plan.layout.nodes().iter().enumerate() {
        let mut command = command(plan, rails, again, place.0.path(), node, name)?;
        let launcher = Followed::start(&mut command, &epoll);
        let launcher = launcher.map_err(Error::system(format!("start the launcher of {name}")))?;
        launchers.0.push((node, launcher));
    }
    let mut statuses = Vec::new();
    let mut shutdown = Shutdown::default();
    // What made this process end launchers that did not.
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
        let rest = if is_quiet { REST } else { LOOK };
        if !statuses.is_empty() {
            launchers.end_the_stopped();
        }
        let woken = epoll.wait(&mut ready, Some(rest));
        woken.map_err(Error::system("wait"))?;
    }
    place.end_agents();
    // Of a node that was killed nobody else removes what its ranks shared.
    remove_abandoned();
    // Launchers that did not listen yet have died of it.
    let all_died = statuses.iter().all(Option::is_none);
    Ok(match killed_for.or(shutdown.first().filter(|_| all_died)) {
        Some(signal) => 128 + signal as u8,
        None => plan.policy.of_nodes(&statuses),
    })
}

/// The launchers that run.
#[derive(Default)]
struct Launchers(Vec<(usize, Followed)>);

impl Launchers {
    fn signal(&self, signal: i32) {
        for (_, launcher) in &self.0 {
            launcher.signal(signal);
        }
    }

    /// Those that are stopped when all others have ended are of nodes that these have given up.
    fn end_the_stopped(&self) {
        let find = |(_, launcher): &(usize, Followed)| Process::find(launcher.child.id());
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
    rails: u32,
    again: &[OsString],
    place: &Path,
    node: usize,
    name: &str,
) -> Result<Command, Error> {
    let program = std::env::current_exe().map_err(Error::system("find this program"))?;
    let count = plan.layout.nodes().len();
    let mut told = OsString::from(format!("{node}:{count}:"));
    told.push(place);
    let others = (0..count).filter(|other| *other != node);
    let seeds: Vec<String> = others.map(|other| address(other, 0, rails)).collect();
    let own: Vec<String> = (0..rails).map(|rail| address(node, rail, rails)).collect();
    let mut command = Command::new(program);
    command
        .args(again)
        .env(VARIABLE, told)
        .env("MUSTER_JOB", &plan.job)
        .env("MUSTER_NODE", name)
        .env("MUSTER_DIR", place.join(AGENTS))
        .env("MUSTER_KEY_FILE", place.join("key"))
        .env("MUSTER_RAILS", own.join(","))
        .env("MUSTER_SEEDS", seeds.join(" "))
        .env("MUSTER_LINGER_MS", LINGER_MS);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if count > NODES_A_CORE * cores && std::env::var_os("MUSTER_PROFILE").is_none() {
        command.env("MUSTER_PROFILE", "quiet");
    }
    if node != 0 {
        command.stdin(Stdio::null());
    }
    Ok(command)
}

/// A rail of an emulated node. The network is this process's, so that two jobs do not meet.
fn address(node: usize, rail: u32, rails: u32) -> String {
    static NETWORK: OnceLock<u32> = OnceLock::new();
    let place = node as u32 * rails + rail + 1;
    let network = *NETWORK.get_or_init(free_network);
    format!("{}@udp{rail}", Ipv4Addr::from(network + place))
}

/// Of loopback networks the one that this process's number stands for; the next one where a process with the same
/// number, in another container say, has it.
fn free_network() -> u32 {
    let network = |step: u32| {
        let number = (std::process::id() + step) % NETWORKS;
        u32::from_be_bytes([127, (100 + number / 250) as u8, (1 + number % 250) as u8, 0])
    };
    let is_free = |network: &u32| {
        let first = SocketAddrV4::new(Ipv4Addr::from(network + 1), muster_fabric::PORT_DEFAULT);
        UdpSocket::bind(first).is_ok()
    };
    // Where none is, the agents say what is in the way.
    (0..TRIES).map(network).find(is_free).unwrap_or(network(0))
}

/// Where the agents of the job that the process `starter` starts have their sockets.
pub fn agents_directory(starter: u32) -> PathBuf {
    directory_of(starter).join(AGENTS)
}

pub(super) fn directory_of(starter: u32) -> PathBuf {
    std::env::temp_dir().join(format!("{PREFIX}{starter}"))
}

/// What a launcher was told by its environment, if it is one of an emulated node: which, of how many, and
/// the directory.
///
/// # Errors
/// It is set and says nothing: taken for a starter this process would start one as lost as itself, and so on.
pub(super) fn told() -> Result<Option<(usize, usize, PathBuf)>, CliError> {
    let Some(value) = std::env::var_os(VARIABLE) else {
        return Ok(None);
    };
    let place = value.to_str().and_then(|value| {
        let mut parts = value.splitn(3, ':');
        let node = parts.next()?.parse().ok()?;
        let count = parts.next()?.parse().ok()?;
        Some((node, count, parts.next()?.into()))
    });
    let unclear = || {
        let value = value.display();
        let why = format!(
            "{VARIABLE}={value} names no emulated node; unset it, it is set by muster run itself"
        );
        CliError::usage("run", why)
    };
    place.ok_or_else(unclear).map(Some)
}

/// The job's files: key, sockets, sessions.
struct Directory(LockedDirectory);

impl Directory {
    fn make() -> Result<Self, Error> {
        let path = directory_of(std::process::id());
        let unfit = |why: String| {
            let cause = std::io::Error::other(format!("{why}; name another place by TMPDIR"));
            Error::system(path.display().to_string())(cause)
        };
        if path.to_str().is_none() {
            return Err(unfit("it is not UTF-8".into()));
        }
        let agents = path.join(AGENTS);
        if let Err(DirectoryError::TooLong { most, .. }) =
            AgentDirectory::find(None, None, Some(&agents))
        {
            let why = format!("paths of sockets in it are longer than {most} bytes");
            return Err(unfit(why));
        }
        let place = LockedDirectory::take(&path).map_err(|cause| unfit(cause.to_string()))?;
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
        Ok(Self(place))
    }

    /// Has them end: by themselves they would wait for more ranks, since this process, which they take for the
    /// launcher, lives on.
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
        wait_until(AGENTS_GO, || agents.iter().all(gone));
        for agent in &agents {
            agent.signal(Signal::KILL);
        }
    }
}
