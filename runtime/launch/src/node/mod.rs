//! The launcher of one node: the driver of its core.
//!
//! 1. The agent is found or started. The launcher waits for those of all nodes: no launcher starts a rank before all
//!    of them can.
//! 2. The PMIx server is opened and the ranks are started.
//! 3. The loop turns requests of ranks to the server, events of the agent, ends of ranks, and signals into inputs of
//!    the core (`crate::core`), and carries out the core's actions.
//! 4. When its own ranks have ended, the launcher stays until those of all other nodes have, so that its status stays
//!    readable.

mod actions;
pub(crate) mod binding;
mod coalescing;
mod console;
mod control_channel;
mod data_server;
mod environment;
mod library;
mod mpi_detection;
mod mpich;
pub(crate) mod output;
mod output_forwarding;
mod peers;
mod ranks;
mod refusals;
mod requests;
mod session;
mod signals;
mod start;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGKILL, SIGUSR1, SIGUSR2};

use crate::core::messages::Input;
use crate::core::node_status::NodeStatus;
use crate::core::signalling::DUPLICATE_SIGNAL_WINDOW;
use crate::core::{Config, Core, TICK};
use crate::{Error, Plan};
pub(crate) use control_channel::ControlChannel;
use data_server::{DataServer, SERVE_FROM, SERVE_MAX};
use library::Linker;
use muster_client::{Client, Options};
use muster_pmix::server::{LogMessage, Server, Upcall};
use muster_sys::descriptor::EventFd;
use muster_sys::poll::{Epoll, readable};
use output::{OutputEnd, Outputs};
use peers::Peers;
use ranks::Ranks;
use refusals::Refusals;
use requests::Requests;
use session::Session;
pub use signals::Signals;

/// The exit status of a launcher whose node the other launchers have given up.
pub const OUTCAST: u8 = 71;
/// The same for a launcher whose parent examines the status. ssh returns this number for a lost connection.
pub const GIVEN_UP: u8 = 255;
/// For such a launcher, the exit status of a job that ends with that number.
const INSTEAD: u8 = 254;

const UPCALL: u64 = 1;
const EVENT: u64 = 2;
const SIGNAL: u64 = 3;
const OUTPUT: u64 = 4;
const DATA: u64 = 5;

/// How the process of a launcher is told to end.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) signals: Signals,
    pub(crate) channel: Arc<ControlChannel>,
}

impl Control {
    /// From now on signals do not end the process by themselves.
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self {
            signals: Signals::new().map_err(Error::system("handle signals"))?,
            channel: Arc::default(),
        })
    }
}

/// The launcher of a node.
struct Launcher<'a> {
    plan: Plan,
    own: usize,
    /// The origin of the core's time.
    begun: Instant,
    core: Core,
    control: &'a Control,
    client: Client,
    peers: Peers,
    ranks: Ranks,
    requests: Requests,
    refusals: Refusals,
    linker: Linker,
    epoll: Epoll,
    /// The job's key, if this process has it.
    key: Option<[u8; 32]>,
    /// Once large data was served or requested.
    data_server: Option<DataServer>,
    /// The NIDs of the other launchers' data servers.
    data_nids: BTreeMap<usize, String>,
}

/// What the core's actions have led to.
enum Progress {
    /// The loop goes on.
    Continue,
    /// All launchers are there.
    Start,
    /// This node's part of the job is over.
    End(Option<u8>),
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
pub(crate) fn run(
    plan: &Plan,
    own: usize,
    base: &Path,
    control: &Control,
    met: &mut dyn FnMut(),
) -> Result<Option<u8>, Error> {
    let node = plan.layout.name(own).to_owned();
    let key = job_key();
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
    let mut peers = Peers::new(client.clone(), plan.layout.clone(), own)?;
    let mut statuses = Vec::new();
    peers.read_all(&mut statuses)?;
    // The other launcher's status and files are left alone.
    if let Some(other) = peers.predecessor()?.filter(is_running) {
        let _ = client.finalize(0);
        return Err(Error::Taken {
            pid: other.pid,
            job: plan.job.clone(),
            node,
        });
    }
    let config = Config {
        own,
        pid: std::process::id(),
        signature: signature(plan),
        layout: plan.layout.clone(),
        policy: plan.policy,
        on_loss: plan.on_loss,
        timeout: plan.timeout,
        grace: plan.grace,
        serve_from: can_serve(key, &client).then_some(SERVE_FROM),
        serve_max: SERVE_MAX,
        signals_all: plan.slurm.is_some_and(|slurm| slurm.signals_all),
        verbose: plan.verbose,
    };
    let mut launcher = Launcher {
        core: Core::new(config, Duration::ZERO),
        begun: Instant::now(),
        plan: plan.clone(),
        own,
        control,
        client,
        peers,
        ranks: Ranks::default(),
        requests: Requests::default(),
        refusals: Refusals::default(),
        linker: Linker::default(),
        epoll: Epoll::new().map_err(Error::system("create an epoll"))?,
        key,
        data_server: None,
        data_nids: BTreeMap::new(),
    };
    launcher.tell_all(statuses);
    let session = Session::open(plan, base, &node)?;
    let mut outcome = launcher.serve(&session, met);
    if let Err(error) = outcome {
        launcher.ranks.end(SIGKILL);
        // If the agent is lost, the other launchers learn from their agents that this node is lost.
        outcome = match launcher.fail(&error) {
            Ok(()) => launcher.coalesce_error(error),
            Err(_) => Err(error),
        };
    }
    if launcher.peers.are_all_known() {
        met();
    }
    let _ = launcher.client.finalize(0);
    outcome
}

/// The job's key, where a file has it. The agent reports what is wrong with the file.
fn job_key() -> Option<[u8; 32]> {
    let path = std::env::var_os("MUSTER_KEY_FILE").filter(|path| !path.is_empty())?;
    muster_config::read_key_file(Path::new(&path)).ok()
}

/// Whether this launcher can serve large data: it proves to the others that it has the key, and requires a rail with
/// an IP address. An agent that has not opened its rails yet is taken to have one.
fn can_serve(key: Option<[u8; 32]>, client: &Client) -> bool {
    let address = client.link().ok().and_then(|link| link.address());
    key.is_some() && address.is_none_or(|agent| !data_server::rails(&agent).is_empty())
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

impl Launcher<'_> {
    fn name(&self) -> String {
        self.plan.layout.name(self.own).to_owned()
    }

    /// The PMIx namespace of the job.
    fn namespace(&self) -> String {
        format!("muster-{}", self.plan.job)
    }

    fn print(&self, text: &str) {
        console::print(self.plan.layout.name(self.own), text);
    }

    /// The core's time.
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn tell(&mut self, input: Input) {
        match &input {
            Input::Status(node, status) => self.note_data_nids(*node, &status.data_nids),
            Input::Gone(node) => {
                self.data_nids.remove(node);
                if let Some(server) = &self.data_server {
                    server.note_gone(*node);
                }
            }
            _ => {}
        }
        let now = self.now();
        self.core.handle(input, now);
    }

    fn tell_all(&mut self, inputs: Vec<Input>) {
        for input in inputs {
            self.tell(input);
        }
    }

    /// Notes where the launcher of a node serves data.
    fn note_data_nids(&mut self, node: usize, nids: &str) {
        if nids.is_empty() || self.data_nids.get(&node).is_some_and(|known| known == nids) {
            return;
        }
        self.data_nids.insert(node, nids.to_owned());
        if let Some(server) = &self.data_server {
            server.note_peer(node, nids);
        }
    }

    /// The data server, which is started when it is needed first.
    fn data_server(&mut self) -> Result<&mut DataServer, Error> {
        let server = match self.data_server.take() {
            Some(server) => server,
            None => self.start_data_server()?,
        };
        Ok(self.data_server.insert(server))
    }

    fn start_data_server(&self) -> Result<DataServer, Error> {
        let Some(key) = self.key else {
            let why = "another node has the job's key, and this one has not; set MUSTER_KEY_FILE on all nodes, or on \
                       none";
            return Err(Error::DataServer(why.to_owned()));
        };
        let agent = self.client.link()?.address().unwrap_or_default();
        let server = DataServer::start(data_server::rails(&agent), key)?;
        self.add(server.descriptor(), DATA)?;
        for (node, nids) in &self.data_nids {
            server.note_peer(*node, nids);
        }
        Ok(server)
    }

    /// Takes what the data server has to tell.
    fn take_data(&mut self) -> Result<(), Error> {
        let Some(server) = &mut self.data_server else {
            return Ok(());
        };
        let inputs = server.take()?;
        for why in server.take_left_out() {
            self.print(&format!(
                "large data of the ranks does not use a rail: {why}"
            ));
        }
        self.tell_all(inputs);
        Ok(())
    }

    /// Tells the other launchers that this one has failed.
    fn fail(&mut self, error: &Error) -> Result<(), Error> {
        self.core.fail(error.status(), &error.to_string());
        self.perform(None).map(|_| ())
    }

    fn serve(&mut self, session: &Session, met: &mut dyn FnMut()) -> Result<Option<u8>, Error> {
        self.add(self.control.signals.as_fd(), SIGNAL)?;
        self.add(self.client.descriptor()?, EVENT)?;
        let files = self.find_programs()?;
        let bindings = binding::of_ranks(&self.plan, self.own)?;
        if let Some(status) = self.await_launchers()? {
            return Ok(status);
        }
        met();
        let wake = EventFd::new().map_err(Error::system("create an eventfd"))?;
        let raised = EventFd::from_received(
            wake.as_fd()
                .try_clone_to_owned()
                .map_err(Error::system("copy an eventfd"))?,
        );
        self.add(wake.as_fd(), UPCALL)?;
        let facts = self.job_facts(session, bindings.clone().unwrap_or_default());
        let path = self.find_library(&files);
        let (server, upcalls) = Server::start(&path, &facts, raised)?;
        if self.plan.verbose {
            self.print(&format!(
                "PMIx server of {} ({})",
                path.display(),
                server.version
            ));
        }
        let common = self.common_environment(session, &path);
        let outputs = Outputs::new(&self.plan.output, &self.name(), &self.plan.job)
            .map_err(Error::system("forward the output of ranks"))?;
        self.add(outputs.descriptor(), OUTPUT)?;
        if self.plan.layout.nodes().len() == 1 {
            // The server answers when the rank has put data, which MPI_Init does before its first fence.
            for rank in self.plan.layout.ranks_of(self.own) {
                server.ask_for(rank)?;
            }
        }
        let started = self.start_ranks(&server, &files, &common, bindings.as_deref(), &outputs);
        let mut outcome = started.and_then(|()| self.run_loop(&server, &upcalls, &wake, &outputs));
        if let Err(cause) = &outcome
            && cause.is_loss_of_agent()
        {
            let is_shared = self.plan.layout.nodes().len() > 1;
            // To the others this looks like a lost node, and they cannot be told anything.
            let status = self.end_without_agent();
            if status.is_none() && is_shared {
                self.print(&format!(
                    "this node is lost to the other nodes, since its agent is lost; its ranks are ended ({cause})"
                ));
            }
            if status.is_some() || is_shared {
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
        // The callbacks of a server that was stopped are not called.
        self.requests = Requests::default();
        if let Err(cause) = &outcome {
            // The other launchers need not wait until the output is read.
            let _ = self.fail(cause);
        }
        self.epoll.remove(outputs.descriptor());
        let output_end = self.finish_output(outputs);
        outcome.map(|status| status.map(|status| output_end.status(status)))
    }

    fn add(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), Error> {
        self.epoll.add(fd, token).map_err(Error::system("epoll"))
    }

    /// Waits until the launchers of all nodes have started. Returns the exit status if the job has ended before.
    fn await_launchers(&mut self) -> Result<Option<Option<u8>>, Error> {
        loop {
            let events = self.peers.take_events()?;
            self.tell_all(events);
            let now = self.now();
            self.core.advance(now);
            match self.perform(None)? {
                Progress::Start => return Ok(None),
                Progress::End(status) => return Ok(Some(status)),
                Progress::Continue => {}
            }
            self.wait()?;
            self.take_control();
        }
    }

    /// Takes signals and what has come over the control channel.
    fn take_control(&mut self) {
        let control = self.control;
        // The channel raises SIGHUP when it is cut: with the signal taken first, the core knows that before.
        let signals = control.signals.take();
        if control.channel.is_cut() {
            self.tell(Input::ChannelCut);
        }
        for node in control.channel.take_lost() {
            self.tell(Input::NotStarted(node));
        }
        for signal in signals {
            self.tell(Input::Signal(signal));
        }
    }

    fn run_loop(
        &mut self,
        server: &Server,
        upcalls: &Receiver<Upcall>,
        wake: &EventFd,
        outputs: &Outputs,
    ) -> Result<Option<u8>, Error> {
        loop {
            wake.drain();
            // A rank's requests are taken after its end is seen and before it is told to the core.
            self.ranks.poll();
            while let Ok(upcall) = upcalls.try_recv() {
                self.take_upcall(upcall);
            }
            let events = self.peers.take_events()?;
            self.tell_all(events);
            self.take_data()?;
            self.peers.check_agent()?;
            // Signals come before ends: ranks that a signal to all has ended are not reported as killed.
            self.take_control();
            self.reap();
            if outputs.have_no_reader() {
                self.tell(Input::NoReader);
            }
            let now = self.now();
            self.core.advance(now);
            match self.perform(Some(server))? {
                Progress::End(status) => return Ok(status),
                Progress::Start | Progress::Continue => {}
            }
            self.wait()?;
        }
    }

    /// Waits for an event, at most until the core is to be advanced.
    fn wait(&self) -> Result<(), Error> {
        let most = self.core.deadline().saturating_sub(self.now());
        let mut ready = Vec::new();
        self.epoll
            .wait(&mut ready, Some(most))
            .map_err(Error::system("wait"))?;
        // The turn checks every source, whichever is ready.
        Ok(())
    }

    /// Tells the core which ranks have ended.
    fn reap(&mut self) {
        for end in self.ranks.reap(&self.epoll) {
            self.tell(Input::RankEnded(end));
        }
        let are_left = !self.ranks.is_empty();
        self.tell(Input::ProcessesLeft(are_left));
    }

    fn take_upcall(&mut self, upcall: Upcall) {
        let input = match upcall {
            Upcall::Connected(rank) => Input::Connected {
                rank,
                mpi: self.ranks.detect_mpi(rank),
            },
            Upcall::Finalized(rank) => Input::Disconnected(rank),
            Upcall::Aborted {
                rank,
                status,
                message,
                answer,
            } => self.requests.abort(rank, status, message, answer),
            Upcall::Collective(contribution) => self.requests.collective(contribution),
            Upcall::Publish(publishing) => self.requests.publishing(publishing),
            Upcall::Lookup(lookup) => self.requests.lookup(lookup),
            Upcall::Unpublish { rank, keys, answer } => {
                self.requests.unpublishing(rank, keys, answer)
            }
            Upcall::Signal(signalling) => self.requests.signalling(signalling),
            Upcall::Want(want) if want.namespace != self.namespace() => return want.refuse(),
            Upcall::Want(want) => self.requests.want(want),
            Upcall::Found(found) => Input::Found {
                rank: found.rank,
                data: found.data,
            },
            Upcall::Query(query) => {
                return query.give(&self.namespace(), self.plan.layout.ranks());
            }
            Upcall::LogMessage(text) => return self.print_for_rank(text),
            Upcall::Tool => {
                if let Some(text) = self.refusals.note_tool() {
                    self.print(text);
                }
                return;
            }
            Upcall::Refused { rank, what } => {
                if let Some(text) = self.refusals.note(rank, what) {
                    self.print(&text);
                }
                return;
            }
        };
        self.tell(input);
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

    /// Ends the ranks after the loss of the agent. If all processes of a node are asked to end, the agent may
    /// be the first that does. Then the ranks have their usual time, and the job's status is returned. Returns
    /// `None` if no end was requested.
    fn end_without_agent(&mut self) -> Option<u8> {
        self.tell(Input::AgentLost);
        let signals = self.control.signals.as_fd();
        let _ = readable(&[signals], Some(DUPLICATE_SIGNAL_WINDOW));
        self.take_control();
        self.perform_as_possible();
        let status = self.core.abort_status()?;
        while !self.ranks.is_empty() && self.core.is_kill_due() {
            let _ = readable(&[signals], Some(TICK));
            self.take_control();
            self.ranks.poll();
            self.reap();
            self.core.kill_when_due();
            self.perform_as_possible();
        }
        Some(status)
    }

    /// Waits, when all ranks have ended, until their output is read or its reader takes no more. If the job is
    /// being ended, the reader has as long as the ranks had.
    fn finish_output(&mut self, outputs: Outputs) -> OutputEnd {
        let timeout = if self.core.is_ending() {
            (self.plan.grace, "--grace")
        } else {
            (self.plan.timeout, "--start-timeout")
        };
        if self.plan.verbose {
            self.print("waiting until the ranks' output is read");
        }
        let signals = &self.control.signals;
        outputs.finish(timeout, signals.as_fd(), || {
            let received = signals.take();
            let mut ending = received
                .into_iter()
                .filter(|one| ![SIGUSR1, SIGUSR2].contains(one));
            let now = self.now();
            ending
                .next()
                .filter(|_| !self.core.is_duplicate_signal(now))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_job_is_not_taken_for_a_lost_node() {
        assert_eq!(watched(None), GIVEN_UP);
        for status in 0..GIVEN_UP {
            assert_eq!(watched(Some(status)), status);
        }
        assert_eq!(watched(Some(GIVEN_UP)), INSTEAD);
    }
}
