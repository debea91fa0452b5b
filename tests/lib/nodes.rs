//! A job whose ranks the test itself starts, on several emulated nodes of this machine: real agents in job mode.
//!
//! Nodes differ in `MUSTER_NODE` and in their addresses in 127/8. Agents are started by their first client,
//! as in a real job, and are found through `/proc` by the directory on their command line. All processes of a
//! test are ended, by pid, when the job is dropped, also when the test has failed.

use crate::process::{signal, wait_for_end};
use crate::program;
use crate::rank::{Rank, alive, rank_program};
use muster_ipc::AgentDirectory;
use muster_sys::procfs;
use rustix::process::Signal;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Rails of every node.
const RAILS: usize = 2;
/// Jobs that a test process can have without using an address twice.
const JOBS_MAX: u32 = 128;

/// The port of a job's rails, unless it shares its nodes with another job.
const PORT: u16 = 7741;

/// A job: its directory, key and addresses. Ends all its agents when dropped.
pub struct Nodes {
    directory: Arc<tempfile::TempDir>,
    key: PathBuf,
    name: String,
    /// The user of its ranks and agents.
    user: u32,
    port: u16,
    /// Second and third byte of the addresses: no two jobs of this machine share them.
    net: (u32, u32),
    nodes: usize,
    /// Rails of each node.
    rails: usize,
    /// The kind of their nets.
    kind: &'static str,
    linger_ms: u64,
    profile: &'static str,
    /// Nodes of each zone, if the job has zones.
    zone: Option<usize>,
    /// Further variables of its ranks and agents.
    variables: Vec<(&'static str, String)>,
}

impl Nodes {
    /// A new job for nodes `n1` to `n<nodes>`.
    ///
    /// # Panics
    /// If its files cannot be made.
    pub fn new(nodes: usize) -> Self {
        static JOBS: AtomicU32 = AtomicU32::new(0);
        let job = JOBS.fetch_add(1, Ordering::Relaxed);
        assert!(job < JOBS_MAX, "more jobs than addresses");
        let number = std::process::id() * JOBS_MAX + job;
        let directory = tempfile::tempdir().expect("a directory can be made");
        let key = write_key(directory.path(), "key");
        Self {
            directory: Arc::new(directory),
            key,
            name: format!("test-{}-{job}", std::process::id()),
            user: muster_sys::process::user_id(),
            port: PORT,
            net: (70 + number / 250 % 180, 1 + number % 250),
            nodes,
            rails: RAILS,
            kind: "udp",
            linger_ms: 100,
            profile: "standard",
            zone: None,
            variables: Vec::new(),
        }
    }

    /// Sets another timing profile.
    pub fn with_profile(mut self, profile: &'static str) -> Self {
        self.profile = profile;
        self
    }

    /// Divides the job into zones of this many nodes.
    pub fn with_zones(mut self, nodes: usize) -> Self {
        self.zone = Some(nodes);
        self
    }

    /// Sets one rail on each node.
    pub fn with_one_rail(mut self) -> Self {
        self.rails = 1;
        self
    }

    /// Sets the kind of net of all rails.
    pub fn with_kind(mut self, kind: &'static str) -> Self {
        self.kind = kind;
        self
    }

    /// Sets another linger time.
    pub fn with_linger_ms(mut self, linger_ms: u64) -> Self {
        self.linger_ms = linger_ms;
        self
    }

    /// Sets a variable for its ranks and the agents that they start.
    pub fn with_variable(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    /// Another job on the same nodes, with the same base directory and addresses, and other ports.
    ///
    /// # Panics
    /// If its files cannot be made.
    pub fn beside(&self) -> Self {
        let port = self.port + 10;
        Self {
            directory: Arc::clone(&self.directory),
            key: write_key(self.directory(), &format!("key-{port}")),
            name: format!("{}-{port}", self.name),
            port,
            variables: self.variables.clone(),
            ..*self
        }
    }

    /// A job with the same name on the same nodes, of another user.
    ///
    /// # Panics
    /// If its files cannot be made.
    pub fn of_user(&self, user: u32) -> Self {
        let mut job = self.beside();
        job.name.clone_from(&self.name);
        job.user = user;
        std::os::unix::fs::chown(&job.key, Some(user), None).expect("a key can be given away");
        job
    }

    /// `UID:JOB:NODE`.
    fn key_of(&self, node: usize) -> String {
        format!("{}:{}:n{node}", self.user, self.name)
    }

    /// The base directory of its sockets.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The directory of a node's agent, with its socket and lock.
    ///
    /// # Panics
    /// Never: the names are short.
    pub fn agent_directory(&self, node: usize) -> AgentDirectory {
        let node = format!("n{node}");
        AgentDirectory::find(Some(&self.name), Some(&node), Some(self.directory()))
            .expect("names fit")
    }

    /// Starts this many ranks on each node, the first ones on n1. All of them see all nodes and ranks alive.
    ///
    /// # Panics
    /// If one cannot be started, or they do not see each other before the deadline.
    pub fn start_all(&self, per_node: u32) -> Vec<Rank> {
        let count = self.nodes as u32 * per_node;
        let start = |rank| self.start(1 + (rank / per_node) as usize, rank);
        let mut ranks: Vec<Rank> = (0..count).map(start).collect();
        let view = alive(self.nodes, count);
        ranks.iter_mut().for_each(|rank| rank.await_states(&view));
        ranks
    }

    /// Starts a rank on a node and waits until its agent has accepted it.
    ///
    /// # Panics
    /// If it cannot be started or is refused.
    pub fn start(&self, node: usize, rank: u32) -> Rank {
        self.begin(node, rank).attached()
    }

    /// Starts a rank on a node.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn begin(&self, node: usize, rank: u32) -> Rank {
        let name = format!("rank {rank} on n{node}");
        Rank::start(&mut self.rank(node, rank), &name)
    }

    /// The command of a rank on a node, not started yet: its environment may be changed.
    pub fn rank(&self, node: usize, rank: u32) -> Command {
        self.command(&rank_program(), node, rank)
    }

    /// The same for another program, which may start the rank.
    pub fn command(&self, program: &str, node: usize, rank: u32) -> Command {
        let mut command = as_user(self.user, program);
        self.place(&mut command, node, rank);
        command
    }

    /// Makes a command that of a rank on a node.
    pub fn place(&self, command: &mut Command, node: usize, rank: u32) {
        let seed = |n| match self.zone {
            Some(_) => format!("n{n}={}", self.rails(n)),
            None => self.rails(n),
        };
        let all: Vec<_> = (1..=self.nodes).map(seed).collect();
        if let Some(zone) = self.zone {
            command
                .env("MUSTER_ZONES", zone.to_string())
                .env("MUSTER_NODES", format!("n[1-{}]", self.nodes));
        }
        command
            .env("MUSTER_JOB", &self.name)
            .env("MUSTER_NODE", format!("n{node}"))
            .env("MUSTER_RANK", rank.to_string())
            .env("MUSTER_DIR", self.directory())
            .env("MUSTER_RAILS", self.rails(node))
            .env("MUSTER_SEEDS", all.join(" "))
            .env("MUSTER_PROFILE", self.profile)
            .env("MUSTER_KEY_FILE", &self.key)
            .env("MUSTER_AGENT", program("musterd"))
            .env("MUSTER_LINGER_MS", self.linger_ms.to_string())
            .env("MUSTER_LOG", "info")
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
    }

    /// The rails of a node, with fixed ports, as `MUSTER_RAILS` has them.
    pub fn rails(&self, node: usize) -> String {
        let (second, third) = self.net;
        let port = match self.port {
            PORT => String::new(),
            other => format!(":{other}"),
        };
        let rail = |rail| {
            format!(
                "127.{second}.{third}.{}{port}@{}{rail}",
                node * RAILS + rail,
                self.kind
            )
        };
        (0..self.rails).map(rail).collect::<Vec<_>>().join(",")
    }

    /// Supervisor and worker of a node; each is `None` if it does not run.
    pub fn agent(&self, node: usize) -> Agent {
        let pids = self.agent_pids(node);
        let parents: Vec<_> = pids.iter().filter_map(|pid| procfs::parent(*pid)).collect();
        let is_worker = |pid: &u32| {
            let parent = procfs::parent(*pid);
            parent.is_some_and(|parent| pids.contains(&parent))
        };
        Agent {
            supervisor: pids.iter().copied().find(|pid| parents.contains(pid)),
            worker: pids.iter().copied().find(is_worker),
            all: pids,
        }
    }

    /// Kills the worker of a node's agent and waits for its end; the supervisor starts another one.
    ///
    /// # Panics
    /// If the agent does not run.
    pub fn kill_worker(&self, node: usize) {
        let (_, worker) = self.agent(node).pair();
        signal(worker, Signal::KILL);
        wait_for_end(worker);
    }

    /// Kills all processes of a node. A rank that outlives its agent would start another one.
    ///
    /// # Panics
    /// If they do not end.
    pub fn lose(&self, node: usize, rank: Option<Rank>) {
        if let Some(rank) = &rank {
            signal(rank.pid(), Signal::STOP);
        }
        let agent = self.agent(node).all;
        for number in [Signal::STOP, Signal::KILL] {
            agent.iter().for_each(|pid| signal(*pid, number));
        }
        agent.into_iter().for_each(wait_for_end);
        rank.into_iter().for_each(Rank::kill);
    }

    fn agent_pids(&self, node: usize) -> Vec<u32> {
        agents_with(&self.key_of(node))
    }

    /// The log of a node's agent.
    pub fn log(&self, node: usize) -> String {
        fs::read_to_string(self.agent_directory(node).directory().join("log")).unwrap_or_default()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in 1..=self.nodes {
            if std::thread::panicking() {
                eprintln!("--- log of n{node}:\n{}", self.log(node));
            }
            // A supervisor may fork another worker meanwhile: repeat until no process is left.
            for _ in 0..100 {
                let pids = self.agent_pids(node);
                if pids.is_empty() {
                    break;
                }
                for pid in pids {
                    signal(pid, Signal::KILL);
                    wait_for_end(pid);
                }
            }
        }
    }
}

/// The processes of the agent whose socket is in this directory.
///
/// # Panics
/// If `/proc` is not mounted.
pub fn agents_in(directory: &Path) -> Vec<u32> {
    agents_with(&directory.display().to_string())
}

/// The agents with this argument on their command line.
fn agents_with(word: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("/proc is mounted");
    let pids = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("musterd") && line.split('\0').any(|part| part == word)
    })
    .collect()
}

/// A program that runs as this user. Its environment is the caller's.
pub fn as_user(user: u32, program: &str) -> Command {
    if user == muster_sys::process::user_id() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={user}"), &format!("--regid={user}")]);
    command.args(["--clear-groups", program]);
    command
}

fn write_key(directory: &Path, name: &str) -> PathBuf {
    let key = directory.join(name);
    fs::write(&key, "5c".repeat(32)).expect("the key can be written");
    fs::set_permissions(&key, Permissions::from_mode(0o600)).expect("and kept private");
    key
}

/// The processes of one agent.
#[derive(Debug)]
pub struct Agent {
    /// The supervisor, while it has a worker.
    pub supervisor: Option<u32>,
    /// The worker, while it has a supervisor.
    pub worker: Option<u32>,
    /// All its processes.
    pub all: Vec<u32>,
}

impl Agent {
    /// Supervisor and worker.
    ///
    /// # Panics
    /// If one of them is missing.
    pub fn pair(&self) -> (u32, u32) {
        match (self.supervisor, self.worker) {
            (Some(supervisor), Some(worker)) => (supervisor, worker),
            _ => panic!("supervisor or worker is missing: {self:?}"),
        }
    }
}
