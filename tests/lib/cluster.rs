//! A real Slurm on this machine: munged, slurmctld and four slurmd, each slurmd on a host of its own (network
//! and host name), all in a pid namespace. The first process of the namespace ends with the thread that made
//! the cluster, and with it all processes in it.

use crate::DEADLINE;
use crate::process;
use crate::program;
use crate::until;
use rustix::process::Signal;
use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One cluster at a time: each is 15 processes before it runs a job.
static TURN: Mutex<()> = Mutex::new(());

/// The required programs.
const PROGRAMS: [&str; 8] = [
    "munged",
    "slurmctld",
    "slurmd",
    "srun",
    "salloc",
    "nsenter",
    "unshare",
    "ip",
];

/// The daemons of the cluster itself.
pub const DAEMONS: [&str; 6] = [
    "bash",
    "sleep",
    "munged",
    "slurmctld",
    "slurmscriptd",
    "slurmd",
];

/// Hosts that run tasks: `n1` to `n4`.
pub const NODES: usize = 4;

/// A cluster. It is ended when dropped.
pub struct Cluster {
    first: Child,
    folder: tempfile::TempDir,
    /// The pid namespace of all its processes.
    pids: PathBuf,
    /// The network namespace of each node.
    nets: Vec<PathBuf>,
    _turn: MutexGuard<'static, ()>,
}

/// A process of the cluster, with its number outside of it.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its pid in this namespace.
    pub pid: u32,
    /// Its program's name.
    pub name: String,
    /// Its command line.
    pub line: String,
    /// Its node; `None` for processes on the controller's host.
    pub node: Option<usize>,
}

impl Cluster {
    /// Starts it, with these lines in `plugstack.conf`. Returns `None` if this user may not, which is printed
    /// to standard error.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(plugstack: &str) -> Option<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        if !rustix::process::getuid().is_root() {
            crate::skipped("root", "slurmd starts tasks as their users");
            return None;
        }
        if !crate::can(
            "namespaces",
            &["unshare", "--pid", "--mount", "--net", "--fork"],
        ) {
            return None;
        }
        for program in PROGRAMS {
            let found = std::env::var_os("PATH").is_some_and(|path| {
                let mut folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
                folders.any(|folder| folder.join(program).is_file())
            });
            if !found {
                crate::skipped("slurm", &format!("{program} is missing: run `make setup`"));
                return None;
            }
        }
        let folder = tempfile::tempdir().expect("a folder");
        // Jobs of other users run, too.
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        };
        mode(folder.path(), 0o711);
        fs::create_dir(folder.path().join("muster")).expect("a folder");
        mode(&folder.path().join("muster"), 0o1777);
        fs::write(folder.path().join("plugstack.conf"), plugstack).expect("a file");
        fs::write(folder.path().join("slurm.conf"), slurm_conf(folder.path())).expect("a file");
        fs::write(folder.path().join("topology.conf"), TOPOLOGY_CONF).expect("a file");
        let (first, pids) = hold();
        let mut cluster = Self {
            first,
            folder,
            pids,
            nets: Vec::new(),
            _turn: turn,
        };
        cluster.boot();
        Some(cluster)
    }

    fn boot(&mut self) {
        let output = self
            .command("bash")
            .args(["-c", BOOT])
            .output()
            .expect("nsenter can be started");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "the cluster does not start: {said}{}{}",
            String::from_utf8_lossy(&output.stderr),
            self.logs()
        );
        let net = |line: &str| line.strip_prefix("NODE ").map(PathBuf::from);
        self.nets = said.lines().filter_map(net).collect();
        assert_eq!(self.nets.len(), NODES, "{said}");
    }

    /// Sets other lines for `plugstack.conf`, for steps that start from now on.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn set_plugins(&self, plugstack: &str) {
        fs::write(self.folder.path().join("plugstack.conf"), plugstack).expect("a file");
    }

    /// The private folder of the cluster.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The base directory of agents, for all users.
    pub fn muster_dir(&self) -> PathBuf {
        self.folder.path().join("muster")
    }

    /// A command that runs on the controller's host, where users submit their jobs.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let first = first_of(&self.pids);
        let mut command = Command::new("setpriv");
        command.args([
            "--pdeathsig",
            "KILL",
            "nsenter",
            "--target",
            &first,
            "--all",
            "--",
        ]);
        command
            .arg(program)
            .current_dir(self.folder.path())
            .env("LAB", self.folder.path())
            .env("SLURM_CONF", self.folder.path().join("slurm.conf"))
            .env("MUSTER_DIR", self.muster_dir())
            .env("MUSTER_LINGER_MS", "300")
            .stdin(Stdio::null());
        command
    }

    /// `srun --mpi=pmix` with these options, to which a program of Debian's Open MPI is added.
    pub fn mpi(&self, options: &str) -> Command {
        let mut command = self.command("srun");
        command
            .args(["--label", "--mpi=pmix", "--kill-on-bad-exit=0", "--no-kill"])
            .args(options.split(' '))
            // A process that enters a mount namespace is at its root directory.
            .arg(format!("--chdir={}", self.folder().display()))
            .env("MUSTER_AGENT", program("musterd"))
            .env("MUSTER_RAILS", "eth0@udp0")
            .env("OMPI_MCA_pml", "ob1")
            .env("OMPI_MCA_btl", "self,vader,tcp")
            .env("OMPI_MCA_btl_tcp_if_include", "eth0")
            .env("OMPI_MCA_mpi_yield_when_idle", "1")
            .env("TMPDIR", self.folder());
        command
    }

    /// Stops the controller until the returned value is dropped: no step is ended meanwhile.
    pub fn hold_controller(&self) -> Held {
        let mut controller = self.processes();
        controller.retain(|process| process.name == "slurmctld");
        controller.iter().for_each(|one| signal(one, Signal::STOP));
        Held(controller)
    }

    /// Starts a job or a step that runs concurrently.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn run(&self, command: &mut Command) -> Run {
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Run {
            process: process::Process::start_apart(command),
            seen: RefCell::default(),
            requests: 0,
        }
    }

    /// Runs a command to its end. Returns what it printed on both channels.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn output_of(&self, words: &[&str]) -> (ExitStatus, String) {
        let output = self.command(words[0]).args(&words[1..]).output();
        let output = output.expect("nsenter can be started");
        let said = [output.stdout, output.stderr].concat();
        (output.status, String::from_utf8_lossy(&said).into_owned())
    }

    /// All its running processes.
    ///
    /// # Panics
    /// Without a `/proc`.
    pub fn processes(&self) -> Vec<Process> {
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let process = |entry: fs::DirEntry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let path = entry.path();
            let is_ours = fs::read_link(path.join("ns/pid")).ok()? == self.pids;
            let stat = fs::read_to_string(path.join("stat")).ok()?;
            let is_zombie = stat.rsplit(')').next()?.trim_start().starts_with('Z');
            let net = fs::read_link(path.join("ns/net")).ok()?;
            let line = fs::read(path.join("cmdline")).ok()?;
            (is_ours && !is_zombie).then(|| Process {
                pid,
                name: fs::read_to_string(path.join("comm"))
                    .unwrap_or_default()
                    .trim()
                    .to_owned(),
                line: String::from_utf8_lossy(&line).replace('\0', " "),
                node: self
                    .nets
                    .iter()
                    .position(|one| *one == net)
                    .map(|at| at + 1),
            })
        };
        entries.filter_map(process).collect()
    }

    /// The processes of this name on this node.
    pub fn on_node(&self, node: usize, name: &str) -> Vec<Process> {
        let mut all = self.processes();
        all.retain(|process| process.node == Some(node) && process.name == name);
        all
    }

    /// Everything on a node but what stands for its host.
    /// All processes on a node except the one that holds its host.
    /// # Panics
    /// If there are only its slurmd and the processes of a step.
    pub fn all_on(&self, node: usize) -> Vec<Process> {
        let mut all = self.processes();
        all.retain(|process| process.node == Some(node) && process.name != "sleep");
        assert!(all.len() > 4, "{all:?}");
        all
    }

    /// The state of a node in Slurm: `idle`, `allocated`, `down*` ...
    pub fn state(&self, node: usize) -> String {
        let said = self.output_of(&["sinfo", "-h", "-n", &format!("n{node}"), "-o", "%T"]);
        said.1.trim().to_owned()
    }

    /// Waits until a node has this state in Slurm. There is no event for that, so it is polled.
    ///
    /// # Panics
    /// If it does not before the deadline.
    pub fn await_state(&self, node: usize, wanted: &str) {
        let held = || format!("n{node}: {}{}", self.state(node), self.logs());
        until(held, || self.state(node).starts_with(wanted).then_some(()));
    }

    /// Cuts a node off the network.
    ///
    /// # Panics
    /// If that cannot be done.
    pub fn cut(&self, node: usize) {
        self.set_link(node, "down");
    }

    /// Ends the cut.
    ///
    /// # Panics
    /// If that cannot be done.
    pub fn mend(&self, node: usize) {
        self.set_link(node, "up");
    }

    fn set_link(&self, node: usize, state: &str) {
        let (status, said) = self.output_of(&["ip", "link", "set", &format!("p{node}"), state]);
        assert!(status.success(), "{said}");
    }

    /// Ends all jobs, starts slurmd where it was killed, and waits until all nodes are idle in Slurm.
    ///
    /// # Panics
    /// If it has not before the deadline.
    pub fn recover(&self) {
        assert!(self.output_of(&["scancel", "--user=root"]).0.success());
        let lost = (1..=NODES).filter(|node| self.on_node(*node, "slurmd").is_empty());
        for node in lost {
            let host = self.on_node(node, "sleep").remove(0).pid.to_string();
            let name = format!("n{node}");
            let mut slurmd = Command::new("nsenter");
            slurmd.args(["--target", &host, "--all", "--", "slurmd", "-N", &name]);
            slurmd.env("SLURM_CONF", self.folder.path().join("slurm.conf"));
            let status = slurmd.status();
            assert!(
                status.is_ok_and(|status| status.success()),
                "{name}: slurmd"
            );
        }
        (1..=NODES).for_each(|node| self.await_state(node, "idle"));
    }

    /// The last lines of the daemons' logs, for a message.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for (file, whole) in self.whole_logs() {
            let lines: Vec<&str> = whole.lines().collect();
            let last = lines[lines.len().saturating_sub(40)..].join("\n");
            text += &format!("\n--- {}\n{last}", file.display());
        }
        text
    }

    /// Whether a daemon has logged this.
    pub fn has_logged(&self, words: &str) -> bool {
        let logs = self.whole_logs();
        logs.iter().any(|(_, whole)| whole.contains(words))
    }

    fn whole_logs(&self) -> Vec<(PathBuf, String)> {
        let folder = fs::read_dir(self.folder.path().join("log"));
        let files = folder.into_iter().flatten().flatten();
        files
            .map(|file| {
                let text = fs::read_to_string(file.path()).unwrap_or_default();
                (file.path(), text)
            })
            .collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        let _ = self.first.kill();
        let _ = self.first.wait();
    }
}

/// Processes that are stopped until this value is dropped.
pub struct Held(Vec<Process>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.iter().for_each(|one| signal(one, Signal::CONT));
    }
}

/// A running command of a cluster. It is killed when dropped, and its job with the cluster.
pub struct Run {
    process: process::Process,
    seen: RefCell<Vec<String>>,
    /// How often all tasks were asked for their view.
    requests: usize,
}

impl Run {
    /// Waits for a line that contains all of these words, among earlier lines, too.
    ///
    /// # Panics
    /// If none comes before the deadline, or the command has ended.
    pub fn await_line(&self, words: &[&str]) -> String {
        self.await_lines(1, words).remove(0)
    }

    /// Waits for this many such lines.
    ///
    /// # Panics
    /// See [`Run::await_line`].
    pub fn await_lines(&self, count: usize, words: &[&str]) -> Vec<String> {
        let end = Instant::now() + DEADLINE;
        loop {
            let found: Vec<String> = self.lines_with(words);
            if found.len() >= count {
                return found;
            }
            match self.process.line_until(end) {
                Ok(line) => self.seen.borrow_mut().push(line),
                Err(cause) => panic!(
                    "{cause}: {} of {count} lines with {words:?} in {:#?}\n{:#?}",
                    found.len(),
                    self.seen.borrow(),
                    self.errors()
                ),
            }
        }
    }

    /// The lines with these words that have been read.
    pub fn lines_with(&self, words: &[&str]) -> Vec<String> {
        self.seen.borrow_mut().extend(self.process.pending());
        let has = |line: &&String| words.iter().all(|word| line.contains(word));
        self.seen.borrow().iter().filter(has).cloned().collect()
    }

    /// Sends a line to all its tasks, as `srun` does with its input.
    pub fn send(&mut self, line: &str) {
        self.requests += usize::from(line == "states");
        self.process.send(line);
    }

    /// Waits until this task has answered all requests: srun ends a step if a killed node has not read its
    /// input.
    ///
    /// # Panics
    /// If it has not before the deadline.
    pub fn await_answers(&self, task: usize) {
        self.await_lines(self.requests, &[&format!("{task}: STATES ")]);
    }

    /// Requests the views of all tasks until each of these tasks has printed this view.
    ///
    /// # Panics
    /// If not all say so before the deadline.
    pub fn await_view(&mut self, tasks: impl IntoIterator<Item = usize>, view: &str) {
        let tasks: Vec<usize> = tasks.into_iter().collect();
        let end = Instant::now() + DEADLINE;
        let answers = |run: &Self, task: usize| {
            let name = format!("{task}: STATES ");
            let mut lines = run.lines_with(&["STATES "]);
            lines.retain(|line| line.starts_with(&name));
            lines
        };
        let says = |run: &Self, task: usize| {
            let whole = format!("{task}: STATES {view}");
            answers(run, task).contains(&whole)
        };
        while !tasks.iter().all(|task| says(self, *task)) {
            let lines = self.lines_with(&[""]);
            assert!(
                Instant::now() < end,
                "{view}: {lines:#?}{:#?}",
                self.errors()
            );
            let counts = tasks.iter().map(|task| answers(self, *task).len());
            let before: Vec<usize> = counts.collect();
            self.send("states");
            // Wait for an answer of each, or for the end of all that could answer. Repeated requests without
            // waiting would only queue up, and srun ends a step if it cannot pass input to a killed node.
            let again = Instant::now() + Duration::from_secs(5);
            let all = tasks.iter().zip(&before);
            while all
                .clone()
                .any(|(task, count)| answers(self, *task).len() == *count)
            {
                match self.process.line_until(again) {
                    Ok(line) => self.seen.borrow_mut().push(line),
                    Err(_) => break,
                }
            }
        }
    }

    /// The lines on standard error that were not returned before.
    pub fn errors(&self) -> Vec<String> {
        self.process.pending_errors().collect()
    }

    /// Waits until this is printed on standard error, also as the last output before its end.
    ///
    /// # Panics
    /// If it has not before the deadline, or has ended without.
    pub fn await_error(&self, words: &str) {
        let end = Instant::now() + DEADLINE;
        let mut said = Vec::new();
        loop {
            match self.process.error_until(end) {
                Ok(line) if line.contains(words) => return,
                Ok(line) => said.push(line),
                Err(cause) => panic!("{cause}: {words:?} is missing in {said:#?}"),
            }
        }
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end before the deadline.
    pub fn end(&mut self) -> ExitStatus {
        self.process.end()
    }
}

/// Sends a signal to a process of a cluster; one that has gone is no error.
pub fn signal(process: &Process, signal: Signal) {
    process::signal(process.pid, signal);
}

/// Kills them at once, with a stop first, however slowly this process continues: a rank would start another
/// agent, and a supervisor another worker.
///
/// # Panics
/// If there are none.
pub fn kill(processes: &[Process]) {
    assert!(!processes.is_empty());
    for what in [Signal::STOP, Signal::KILL] {
        processes.iter().for_each(|process| signal(process, what));
    }
}

/// Starts the first process of a pid namespace, in namespaces of its own for everything else.
fn hold() -> (Child, PathBuf) {
    let mut child = Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "--fork",
            "--kill-child=KILL",
            "--pid",
        ])
        .args([
            "--mount",
            "--net",
            "--uts",
            "--ipc",
            "--mount-proc",
            "bash",
            "-c",
        ])
        // A shell that waits for its input, and reaps orphans.
        .arg("echo $(readlink /proc/self/ns/pid); read -r _")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("setpriv can be started");
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("stdout is piped");
    let _ = BufReader::new(output).read_line(&mut line);
    assert!(
        line.starts_with("pid:["),
        "root may not have namespaces here"
    );
    (child, PathBuf::from(line.trim()))
}

/// The lowest pid in this namespace, which is that of its first process.
fn first_of(pids: &Path) -> String {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let is_first = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let is_one = inner.is_some_and(|inner| inner.split_whitespace().last() == Some("1"));
        is_one && fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|own| own == pids)
    };
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let first = numbers.into_iter().find(is_first);
    first.expect("the cluster's first process runs").to_string()
}

fn slurm_conf(lab: &Path) -> String {
    let mut text = SLURM_CONF.replace("LAB", &lab.display().to_string());
    for node in 1..=NODES {
        text += &format!("NodeName=n{node} NodeAddr=10.66.0.{node} CPUs=8 State=UNKNOWN\n");
    }
    text + &format!("PartitionName=all Nodes=n[1-{NODES}] Default=YES State=UP\n")
}

/// Two leaf switches of two nodes each.
const TOPOLOGY_CONF: &str = "\
SwitchName=leaf1 Nodes=n[1-2]
SwitchName=leaf2 Nodes=n[3-4]
SwitchName=top Switches=leaf[1-2]
";

const SLURM_CONF: &str = "\
ClusterName=lab
SlurmctldHost=ctl(10.66.0.254)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=LAB/munge.sock
StateSaveLocation=LAB/state
SlurmdSpoolDir=LAB/spool/%n
SlurmctldPidFile=LAB/slurmctld.pid
SlurmdPidFile=LAB/slurmd.%n.pid
SlurmctldLogFile=LAB/log/slurmctld
SlurmdLogFile=LAB/log/slurmd.%n
SlurmdDebug=debug
PlugStackConfig=LAB/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TopologyPlugin=topology/tree
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
ReturnToService=2
SlurmdTimeout=10
KillWait=3
UnkillableStepTimeout=10
SlurmdParameters=config_overrides
TmpFS=LAB/tmp/%n
";

/// Runs on the controller's host: connects the nodes' hosts to it and starts the daemons.
const BOOT: &str = r#"
set -eu
cd "$LAB"
mkdir -p log state spool tmp
chmod 700 state
hostname ctl
{ cat /etc/hosts; echo 10.66.0.254 ctl; for n in 1 2 3 4; do echo "10.66.0.$n n$n"; done; } > hosts
mount --bind hosts /etc/hosts
# Its own shared memory: everything left there belongs to its jobs.
mount -t tmpfs -o mode=1777 none /dev/shm
ip link set lo up
ip link add br0 type bridge
ip addr add 10.66.0.254/24 dev br0
ip link set br0 up
umask 077
head -c 1024 /dev/urandom > munge.key
umask 022
munged --key-file="$LAB/munge.key" --socket="$LAB/munge.sock" --pid-file="$LAB/munged.pid" \
	--log-file="$LAB/log/munged" --seed-file="$LAB/munge.seed" --force
slurmctld -c
for n in 1 2 3 4; do
	unshare --net --uts sleep infinity </dev/null >/dev/null 2>&1 &
	host=$!
	# Until it has its own network.
	while [ "$(readlink /proc/$host/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do :; done
	ip link add "p$n" type veth peer name eth0 netns "$host"
	ip link set "p$n" master br0 up
	nsenter --target "$host" --net --uts sh -c "hostname n$n; ip link set lo up
		ip addr add 10.66.0.$n/24 dev eth0; ip link set eth0 up; mkdir -p tmp/n$n; exec slurmd -N n$n"
	echo "NODE $(readlink /proc/$host/ns/net)"
done
for try in $(seq 1200); do
	if [ "$(sinfo -h -t idle -o %D)" = 4 ]; then exit 0; fi
	sleep 0.1
done
sinfo
exit 1
"#;
