//! The launcher of one node: its loop.
//!
//! 1. The agent is found or started. The launcher waits for those of all nodes: no launcher starts a rank before all
//!    of them can (`await_launchers`).
//! 2. The PMIx server is opened and the ranks are started.
//! 3. The loop handles requests of ranks to the server, statuses of the other launchers, Muster's events, ends of
//!    ranks, and signals. At the end of each turn it publishes what has changed and completes fences.
//! 4. When its own ranks have ended, the launcher stays until those of all other nodes have, so that its status stays
//!    readable.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGKILL};

use super::arrivals::Arrivals;
use super::exit_handling::{FENCES_OF_INIT, INIT_QUIET, ORPHANED};
use super::fence::Fences;
use super::fence_data::FenceData;
use super::fence_driver::Waiting;
use super::loss::Aborting;
use super::modex::Modex;
use super::name_service::PendingLookup;
use super::node_status::{FenceId, NodeStatus};
use super::output::Outputs;
use super::peers::Peers;
use super::ranks::{Ranks, Start};
use super::refusals::Refusals;
use super::signals::Signals;
use super::{
    Error, Plan, binding, environment, library, memory_directory, mpich, session_directory,
    stdin_control,
};
use muster_client::{Client, Options};
use muster_ipc::locked_directory::LockedDirectory;
use muster_pmix::server::{Binding, Done, JobFacts, LogMessage, Server, Upcall};
use muster_sys::descriptor::EventFd;
use muster_sys::poll::Epoll;

/// The exit status of a launcher whose node the other launchers have given up.
pub const OUTCAST: u8 = 71;
/// The same for a launcher whose parent examines the status. ssh returns this number for a lost connection.
pub const GIVEN_UP: u8 = 255;
/// For such a launcher, the exit status of a job that ends with that number.
const INSTEAD: u8 = 254;

/// Most arguments of a program that are checked for being the program that it starts.
const ARGUMENTS_MAX: usize = 8;
/// How long the other launchers of an aborted job may take to end.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the loop sleeps when nothing is due.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the loop checks what is due.
pub(super) const TICK: Duration = Duration::from_millis(100);

const UPCALL: u64 = 1;
const EVENT: u64 = 2;
const SIGNAL: u64 = 3;
const OUTPUT: u64 = 4;

/// The launcher of a node.
pub(super) struct Launcher {
    pub(super) plan: Plan,
    pub(super) own: usize,
    pub(super) client: Client,
    pub(super) peers: Peers,
    pub(super) fences: Fences,
    pub(super) waiting: BTreeMap<FenceId, Waiting>,
    pub(super) fence_data: FenceData,
    pub(super) ranks: Ranks,
    pub(super) node_status: NodeStatus,
    /// The status that was published last.
    pub(super) published_status: Option<NodeStatus>,
    /// Deaths that this node's ranks were told of.
    pub(super) reported_deaths: BTreeSet<u32>,
    /// Reports of ranks that were killed, printed at the end unless the job was ended.
    pub(super) killed: Vec<String>,
    /// Groups for which this node has proposed a number.
    pub(super) group_count: u64,
    pub(super) entry_count: u64,
    /// Published entries that not every node knows of yet, with the requests that wait for that.
    pub(super) unconfirmed: Vec<(u64, Done)>,
    /// Lookups of ranks that wait for an entry.
    pub(super) pending_lookups: Vec<PendingLookup>,
    pub(super) modex: Modex,
    pub(super) signal_count: u64,
    /// The last signal of each node's ranks that was handled.
    pub(super) signals_seen: BTreeMap<usize, u64>,
    pub(super) last_fence: Instant,
    /// How long MPI_Init may be silent if the number of its fences is unknown: as long as the ranks took to
    /// enter the first.
    pub(super) init_quiet: Option<Duration>,
    /// Since when the fences of MPI_Init are over on this node.
    pub(super) init_over: Option<Instant>,
    /// The ranks that have arrived in MPI_Init, in a job of a single node.
    pub(super) arrivals: Arrivals,
    /// When the launchers of all nodes had started.
    pub(super) met: Instant,
    /// When ranks that were asked to end are killed.
    pub(super) kill_at: Option<Instant>,
    pub(super) abort_since: Option<Instant>,
    /// An abort that a rank has requested.
    pub(super) aborting: Option<Aborting>,
    /// When the end was first requested by a signal.
    pub(super) end_requested_since: Option<Instant>,
    /// The ranks have got SIGTERM, from this launcher or from the process that signalled all processes.
    pub(super) ranks_have_term: bool,
    pub(super) refusals: Refusals,
    /// The launchers of all nodes have started.
    pub(super) has_met: bool,
    /// The number of fences in MPI_Init, at most.
    pub(super) fences_of_init: u64,
    /// The process that started this launcher is gone.
    pub(super) is_orphan: bool,
    /// The agent is lost.
    pub(super) has_lost_agent: bool,
    pub(super) epoll: Epoll,
}

/// Converts the result of [`run`] to the exit status of a launcher whose parent examines it.
#[must_use]
pub fn watched(outcome: Option<u8>) -> u8 {
    match outcome {
        None => GIVEN_UP,
        Some(GIVEN_UP) => INSTEAD,
        Some(status) => status,
    }
}

/// Runs this node's part of a job and returns its exit status; `None` if the other launchers have given the node
/// up. `base` is a directory for sessions. `met` is called when the launchers of all nodes have started: after that
/// no launcher needs the means by which they found each other.
///
/// # Errors
/// The ranks were not started, or have been ended, and the other launchers know.
pub fn run(
    plan: &Plan,
    own: usize,
    base: &Path,
    met: &mut dyn FnMut(),
) -> Result<Option<u8>, Error> {
    let node = plan.layout.name(own).to_owned();
    let signals = Signals::new().map_err(Error::system("handle signals"))?;
    let options = Options {
        job: Some(plan.job.clone()),
        node: Some(node.clone()),
        // Slurm numbers the launchers: a launcher taken for a rank would take that rank's place.
        rankless: true,
        job_size: plan.layout.ranks(),
        ulfm: true,
        deadline: plan.timeout,
        ..Options::default()
    };
    let client = Client::attach(options)?;
    let peers = Peers::new(client.clone(), plan.layout.clone(), own)?;
    // The other launcher's status and files are left alone.
    if let Some(other) = peers.predecessor()?.filter(is_running) {
        let _ = client.finalize(0);
        return Err(Error::Taken {
            pid: other.pid,
            job: plan.job.clone(),
            node,
        });
    }
    let epoll = Epoll::new().map_err(Error::system("create an epoll"))?;
    let mut launcher = Launcher {
        fences: Fences::new(own, plan.layout.clone()),
        waiting: BTreeMap::new(),
        fence_data: FenceData::default(),
        ranks: Ranks::default(),
        node_status: NodeStatus {
            pid: std::process::id(),
            job: signature(plan),
            ..NodeStatus::default()
        },
        published_status: None,
        reported_deaths: BTreeSet::new(),
        killed: Vec::new(),
        group_count: 0,
        entry_count: 0,
        unconfirmed: Vec::new(),
        pending_lookups: Vec::new(),
        modex: Modex::default(),
        signal_count: 0,
        signals_seen: BTreeMap::new(),
        last_fence: Instant::now(),
        init_quiet: None,
        init_over: None,
        arrivals: Arrivals::default(),
        met: Instant::now(),
        kill_at: None,
        abort_since: None,
        aborting: None,
        end_requested_since: None,
        ranks_have_term: false,
        refusals: Refusals::default(),
        has_met: false,
        fences_of_init: FENCES_OF_INIT,
        is_orphan: false,
        has_lost_agent: false,
        plan: plan.clone(),
        own,
        client,
        peers,
        epoll,
    };
    let session = Session::open(plan, base, &node)?;
    let mut outcome = launcher.serve(&session, &signals, met);
    if let Err(error) = outcome {
        launcher.abort_silently(error.status(), &error.to_string());
        launcher.ranks.end(SIGKILL);
        // If the agent is lost, the other launchers learn from their agents that this node is lost.
        outcome = match launcher.publish_status() {
            Ok(()) => launcher.coalesce_error(error),
            Err(_) => Err(error),
        };
    }
    if launcher.peers.without(|_| true).is_empty() {
        met();
    }
    let _ = launcher.client.finalize(0);
    outcome
}

/// Whether the launcher of this status is running, and is not this process.
fn is_running(node_status: &NodeStatus) -> bool {
    node_status.pid != std::process::id()
        && Path::new(&format!("/proc/{}", node_status.pid)).exists()
}

/// What must be the same for all launchers of a job.
fn signature(plan: &Plan) -> String {
    let one = |program: &super::Program| {
        let name = program.name.to_string_lossy();
        format!("{} ranks of {name}", program.ranks)
    };
    let all: Vec<String> = plan.programs.iter().map(one).collect();
    all.join(", ")
}

/// A program's name as text; an empty one is quoted to be visible.
fn shown(name: &OsStr) -> String {
    match name.to_string_lossy() {
        empty if empty.is_empty() => "''".to_owned(),
        name => name.into_owned(),
    }
}

/// Adds to a list of at most `most` elements, or returns the element.
pub(super) fn push_within<T>(list: &mut Vec<T>, one: T, most: usize) -> Result<(), T> {
    if list.len() >= most {
        return Err(one);
    }
    list.push(one);
    Ok(())
}

/// Prints a line, in one write, so that lines of several launchers do not mix.
pub(super) fn print(node: &str, text: &str) {
    let line = format!("muster run: {node}: {text}\n");
    // A closed stderr is no reason to end.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The files of this node's ranks, removed at the end.
struct Session {
    directory: PathBuf,
    memory: Option<LockedDirectory>,
}

impl Session {
    fn open(plan: &Plan, base: &Path, node: &str) -> Result<Self, Error> {
        use std::os::unix::fs::DirBuilderExt;
        let refused = |path: &Path| Error::system(path.display().to_string());
        let directory = session_directory(base, node);
        let memory = memory_directory(&plan.job, node);
        let memory = memory.map(|path| LockedDirectory::take_near(&path).map_err(refused(&path)));
        let memory = memory.transpose()?;
        let made = std::fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&directory);
        made.map_err(refused(&directory))?;
        Ok(Self { directory, memory })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Launcher {
    pub(super) fn name(&self) -> String {
        self.plan.layout.name(self.own).to_owned()
    }

    /// The PMIx namespace of the job.
    pub(super) fn namespace(&self) -> String {
        format!("muster-{}", self.plan.job)
    }

    pub(super) fn print(&self, text: &str) {
        print(self.plan.layout.name(self.own), text);
    }

    fn serve(
        &mut self,
        session: &Session,
        signals: &Signals,
        met: &mut dyn FnMut(),
    ) -> Result<Option<u8>, Error> {
        let node = self.name();
        self.epoll_add_all(signals)?;
        let files = self.find_programs()?;
        let bindings = binding::of_ranks(&self.plan, self.own)?;
        self.await_launchers(signals)?;
        if let Some(status) = self.aborted_by_another() {
            return Ok(Some(status));
        }
        met();
        self.has_met = true;
        self.met = Instant::now();
        let wake = EventFd::new().map_err(Error::system("create an eventfd"))?;
        let raised = EventFd::from_received(
            wake.as_fd()
                .try_clone_to_owned()
                .map_err(Error::system("copy an eventfd"))?,
        );
        self.add(wake.as_fd(), UPCALL)?;
        let layout = &self.plan.layout;
        let facts = JobFacts {
            namespace: self.namespace(),
            nodes: layout.nodes().to_vec(),
            ranks: (0..layout.nodes().len())
                .map(|node| layout.ranks_of(node).collect())
                .collect(),
            programs: self
                .plan
                .programs
                .iter()
                .map(|program| program.ranks)
                .collect(),
            own: self.own,
            bindings: bindings.clone().unwrap_or_default(),
            directory: session.directory.clone(),
        };
        let all = self.all_programs(&files);
        let all: Vec<&Path> = all.iter().map(PathBuf::as_path).collect();
        let arguments = self.plan.programs.iter();
        let arguments = arguments.flat_map(|program| program.arguments.iter().take(ARGUMENTS_MAX));
        let arguments: Vec<&OsStr> = arguments.map(OsString::as_os_str).collect();
        mpich::warn(self, &arguments);
        let path = library::find(&all, &arguments);
        let (server, upcalls) = Server::start(&path, &facts, raised)?;
        if self.plan.verbose {
            self.print(&format!(
                "PMIx server of {} ({})",
                path.display(),
                server.version
            ));
        }
        let common = self.common_environment(session, &path);
        let outputs = Outputs::new(&self.plan.output, &node, &self.plan.job)
            .map_err(Error::system("forward the output of ranks"))?;
        self.add(outputs.descriptor(), OUTPUT)?;
        if !self.has_others() {
            // The server answers when the rank has put data, which MPI_Init does before its first fence.
            for rank in self.plan.layout.ranks_of(self.own) {
                server.ask_for(rank)?;
            }
        }
        self.last_fence = Instant::now();
        let started = self.start_ranks(&server, &files, &common, bindings.as_deref(), &outputs);
        let mut outcome =
            started.and_then(|()| self.run_loop(&server, &upcalls, &wake, signals, &outputs));
        if let Err(cause) = &outcome
            && cause.is_loss_of_agent()
        {
            // To the others this looks like a lost node, and they cannot be told anything.
            let status = self.end_without_agent(signals);
            if status.is_none() && self.has_others() {
                self.print(&format!(
                    "this node is lost to the other nodes, since its agent is lost; its ranks are ended ({cause})"
                ));
            }
            if status.is_some() || self.has_others() {
                outcome = Ok(status);
            }
        }
        if !matches!(outcome, Ok(Some(_))) {
            self.ranks.end(SIGKILL);
        }
        // Log messages may state why the rank that sent them ended.
        for upcall in upcalls.try_iter() {
            if let Upcall::LogMessage(text) = upcall {
                self.print_for_rank(text);
            }
        }
        if server.lost() > 0 {
            self.print(&format!(
                "{} requests of ranks to PMIx were refused, since too many were waiting (PMIX_ERR_OUT_OF_RESOURCE)",
                server.lost()
            ));
        }
        server.stop();
        if let Err(cause) = &outcome {
            // The other launchers need not wait until the output is read.
            self.abort_silently(cause.status(), &cause.to_string());
            let _ = self.publish_status();
        }
        self.epoll.remove(outputs.descriptor());
        let output_end = self.finish_output(outputs, signals);
        outcome.map(|status| status.map(|status| output_end.status(status)))
    }

    /// Whether the job has other nodes.
    fn has_others(&self) -> bool {
        self.plan.layout.nodes().len() > 1
    }

    fn add(&self, fd: std::os::fd::BorrowedFd<'_>, token: u64) -> Result<(), Error> {
        self.epoll.add(fd, token).map_err(Error::system("epoll"))
    }

    fn epoll_add_all(&self, signals: &Signals) -> Result<(), Error> {
        self.add(signals.as_fd(), SIGNAL)?;
        self.add(self.client.descriptor()?, EVENT)
    }

    /// Waits until the launchers of all nodes have started.
    fn await_launchers(&mut self, signals: &Signals) -> Result<(), Error> {
        self.node_status.ready = true;
        self.publish_status()?;
        let begun = Instant::now();
        loop {
            self.peers.take_events()?;
            let differs = self
                .peers
                .node_statuses()
                .find(|(_, node_status)| node_status.job != self.node_status.job);
            if let Some((node, node_status)) = differs {
                return Err(Error::Conflict(format!(
                    "{} launches {}, this node {}; give all launchers the same command line",
                    self.plan.layout.name(node),
                    node_status.job,
                    self.node_status.job
                )));
            }
            if self.adopt_abort() {
                return self.publish_status();
            }
            let missing = self.peers.without(|node_status| node_status.ready);
            let gone: Vec<usize> = self.peers.gone().iter().copied().collect();
            if missing.is_empty() && gone.is_empty() {
                return Ok(());
            }
            let lost = stdin_control::lost();
            if !lost.is_empty() {
                let missing = self.names(&lost);
                return Err(Error::NotStarted { missing });
            }
            if !gone.is_empty() {
                let lost = self.names(&gone);
                return Err(Error::LostEarly { lost });
            }
            if begun.elapsed() > self.plan.timeout {
                return Err(Error::Missing {
                    missing: self.names(&missing),
                    waited_s: begun.elapsed().as_secs(),
                });
            }
            self.wait(TICK)?;
            self.take_signals(signals);
            if stdin_control::is_cut() {
                self.abort(128 + SIGHUP as u8, ORPHANED);
            }
        }
    }

    pub(super) fn names(&self, nodes: &[usize]) -> String {
        let names: Vec<&str> = nodes
            .iter()
            .map(|node| self.plan.layout.name(*node))
            .collect();
        names.join(", ")
    }

    /// The files of the programs that this node's ranks run.
    fn find_programs(&self) -> Result<BTreeMap<usize, PathBuf>, Error> {
        let mut files = BTreeMap::new();
        for rank in self.plan.layout.ranks_of(self.own) {
            let which = self.plan.program_of(rank);
            let name = &self.plan.programs[which].name;
            if let Entry::Vacant(place) = files.entry(which) {
                place.insert(mpich::startable(name).map_err(|why| Error::Program {
                    program: shown(name),
                    node: self.name(),
                    why,
                })?);
            }
        }
        Ok(files)
    }

    /// The files of all programs of the job, as far as they exist on this node, so that all launchers choose
    /// the same libpmix.
    fn all_programs(&self, own: &BTreeMap<usize, PathBuf>) -> Vec<PathBuf> {
        let programs = self.plan.programs.iter().enumerate();
        let file = |which: usize, name: &OsStr| {
            let own = own.get(&which).cloned();
            own.or_else(|| library::program(name).ok())
        };
        programs
            .filter_map(|(which, program)| file(which, &program.name))
            .collect()
    }

    fn start_ranks(
        &mut self,
        server: &Server,
        files: &BTreeMap<usize, PathBuf>,
        common: &[(OsString, OsString)],
        bindings: Option<&[Binding]>,
        outputs: &Outputs,
    ) -> Result<(), Error> {
        for (place, rank) in self.plan.layout.ranks_of(self.own).enumerate() {
            let binding = bindings.and_then(|all| all.get(place));
            let cores = binding.map_or(&[][..], |binding| &binding.processors);
            if let Some(binding) = binding.filter(|_| self.plan.verbose) {
                self.print(&format!(
                    "rank {rank} is bound to the processors {cores:?}: {}",
                    binding.locality
                ));
            }
            let mut variables = common.to_vec();
            variables.extend(server.environment(rank)?);
            variables.extend(environment::of_mpirun(&self.plan.layout, self.own, rank));
            let which = self.plan.program_of(rank);
            let (program, file) = (&self.plan.programs[which], &files[&which]);
            let start = Start {
                rank,
                program: file,
                arguments: &program.arguments,
                environment: &variables,
                processors: cores,
                stdin: rank == 0 && self.plan.stdin,
            };
            let started = self.ranks.start(&start, outputs, &self.epoll);
            let node = self.name();
            started.map_err(|cause| match cause.kind() {
                std::io::ErrorKind::Other => Error::system(format!("rank {rank} on {node}"))(cause),
                kind => Error::Program {
                    program: shown(&self.plan.programs[which].name),
                    node,
                    why: match kind {
                        // The file itself was found before.
                        std::io::ErrorKind::NotFound => {
                            "what its first line names after #!, or its loader, is not there".into()
                        }
                        _ => cause.to_string(),
                    },
                },
            })?;
        }
        Ok(())
    }

    /// The variables that every rank of this node gets.
    fn common_environment(&self, session: &Session, libpmix: &Path) -> Vec<(OsString, OsString)> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let cores = cores / self.plan.neighbours.max(1);
        let mut texts: Vec<(&str, String)> =
            environment::defaults(&self.plan.layout, self.own, cores)
                .into_iter()
                .map(|(name, value)| (name, value.to_owned()))
                .collect();
        if let Some(memory) = &session.memory {
            let memory = memory.path().display().to_string();
            texts.push(("OMPI_MCA_btl_sm_backing_directory", memory.clone()));
            // The parameter's name in Open MPI 4.
            texts.push(("OMPI_MCA_btl_vader_backing_directory", memory));
        }
        let (name, value) = environment::OPEN_MPI_4;
        texts.push((name, value.to_owned()));
        if let Some(prefix) = library::prefix(libpmix) {
            let prefix = prefix.display().to_string();
            texts.push(("PMIX_PREFIX", prefix.clone()));
            texts.push(("OPAL_PREFIX", prefix));
        }
        let file = environment::users_file();
        let mut variables = environment::unset(texts, |name| {
            std::env::var_os(name).is_some() || environment::is_in_file(name, &file)
        });
        if self.plan.verbose {
            for (name, value) in &variables {
                self.print(&format!("{}={}", name.display(), value.display()));
            }
        }
        // A rank that uses Muster attaches to the agent of its launcher.
        variables.extend(self.plan.export.iter().cloned());
        variables.push(("MUSTER_JOB".into(), self.plan.job.clone().into()));
        variables.push(("MUSTER_NODE".into(), self.name().into()));
        variables
    }

    fn run_loop(
        &mut self,
        server: &Server,
        upcalls: &Receiver<Upcall>,
        wake: &EventFd,
        signals: &Signals,
        outputs: &Outputs,
    ) -> Result<Option<u8>, Error> {
        loop {
            wake.drain();
            self.ranks.poll();
            while let Ok(upcall) = upcalls.try_recv() {
                self.take_upcall(upcall)?;
            }
            self.peers.take_events()?;
            self.peers.check_agent()?;
            // Signals come before ends: ranks that a signal to all has ended are not reported as killed.
            self.take_signals(signals);
            self.reap();
            self.check_stdin_control();
            if outputs.have_no_reader() {
                self.abort_without_reader();
            }
            if self.peers.is_outcast() {
                // If the job is being ended anyway, the reason is printed already.
                if self.node_status.abort.is_none() {
                    self.print("the other nodes declare this one failed; its ranks are ended");
                }
                return Ok(None);
            }
            self.read_statuses()?;
            self.forward_signals();
            self.check_start();
            self.adopt_abort();
            self.abort_when_due();
            self.store_contributions()?;
            self.advance_fences();
            self.report_deaths(server)?;
            self.serve_names();
            self.advance_modex(server)?;
            self.kill_when_due();
            self.node_status.done = self.ranks.is_empty();
            self.publish_status()?;
            if self.node_status.done && self.are_all_done() {
                self.report_killed();
                return Ok(Some(self.status()));
            }
            let due = self.is_orphan
                || self.node_status.abort.is_some()
                || self.aborting.is_some()
                || self.node_status.done
                || self.may_be_in_init()
                || !self.waiting.is_empty()
                || !self.pending_lookups.is_empty()
                || self.peers.is_settling()
                || self.modex.is_due_soon();
            let idle = if self.node_status.started {
                IDLE_TIMEOUT
            } else {
                INIT_QUIET
            };
            self.wait(if due { TICK } else { idle })?;
        }
    }

    pub(super) fn wait(&self, most: Duration) -> Result<(), Error> {
        let mut ready = Vec::new();
        self.epoll
            .wait(&mut ready, Some(most))
            .map_err(Error::system("wait"))?;
        // The turn checks every source, whichever is ready.
        Ok(())
    }

    fn take_upcall(&mut self, upcall: Upcall) -> Result<(), Error> {
        match upcall {
            Upcall::Connected(rank) => {
                if let Some(mpi) = self.ranks.note_connected(rank) {
                    self.note_mpi(mpi);
                }
            }
            Upcall::Finalized(rank) => self.ranks.note_finalized(rank),
            Upcall::Aborted {
                rank,
                status,
                message,
                answer,
            } => self.take_abort(rank, status, &message, answer),
            Upcall::Collective(contribution) => self.enter(contribution),
            Upcall::Publish(publishing) => self.publish(publishing),
            Upcall::Lookup(lookup) => self.look_up(lookup),
            Upcall::Unpublish { rank, keys, answer } => {
                self.unpublish(rank, &keys);
                answer.succeed();
            }
            Upcall::Signal(signalling) => self.send(signalling),
            Upcall::Want(want) => self.want(want),
            Upcall::Found(found) => {
                if !self.has_others() {
                    self.arrivals.note(found.rank);
                }
                self.take_found(found);
            }
            Upcall::Query(query) => query.give(&self.namespace(), self.plan.layout.ranks()),
            Upcall::LogMessage(text) => self.print_for_rank(text),
            Upcall::Tool => self.note_tool(),
            Upcall::Refused { rank, what } => self.note_refused(rank, what),
        }
        Ok(())
    }

    /// Prints what a rank has passed to its PMIx server for logging.
    fn print_for_rank(&self, text: LogMessage) {
        let plan = &self.plan;
        let node = plan.layout.name(self.own);
        for (stream, bytes) in &text.texts {
            (plan.output).write_for_rank(text.rank, (node, &plan.job), *stream, bytes);
        }
        text.succeed();
    }

    pub(super) fn publish_status(&mut self) -> Result<(), Error> {
        let gone = self.peers.gone();
        self.node_status.gone = gone.iter().map(|node| *node as u32).collect();
        self.node_status.fences = self.fences.states(gone);
        if self.published_status.as_ref() != Some(&self.node_status) {
            self.peers.publish_status(&self.node_status)?;
            self.published_status = Some(self.node_status.clone());
        }
        Ok(())
    }

    fn are_all_done(&self) -> bool {
        self.peers
            .without(|node_status| node_status.done)
            .is_empty()
            || self
                .abort_since
                .is_some_and(|since| since.elapsed() > ABORT_TIMEOUT + self.plan.grace)
    }

    /// The exit status of this node's part of the job.
    fn status(&self) -> u8 {
        if let Some(abort) = &self.node_status.abort {
            return abort.status;
        }
        let layout = &self.plan.layout;
        let dead = self.dead();
        let others_survive = (0..layout.ranks())
            .any(|rank| layout.node_of(rank) != Some(self.own) && !dead.contains(&rank));
        let others = self
            .peers
            .node_statuses()
            .filter(|(node, _)| *node != self.own);
        let failed = others.filter_map(|(_, node_status)| node_status.failed);
        let first = failed
            .chain(self.node_status.failed)
            .min()
            .map(|(_, status)| status);
        self.plan
            .policy
            .status(&self.node_status.ended, others_survive, first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_bound() {
        let mut list = vec![1, 2];
        assert_eq!(push_within(&mut list, 3, 3), Ok(()));
        assert_eq!(push_within(&mut list, 4, 3), Err(4));
        assert_eq!(list, [1, 2, 3]);
    }

    #[test]
    fn the_status_of_a_job_is_not_taken_for_a_lost_node() {
        assert_eq!(watched(None), GIVEN_UP);
        for status in 0..GIVEN_UP {
            assert_eq!(watched(Some(status)), status);
        }
        assert_eq!(watched(Some(GIVEN_UP)), INSTEAD);
    }
}
