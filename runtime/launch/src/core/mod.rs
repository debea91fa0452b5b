//! The core of a launcher: a pure state machine. It is told the time and what has happened, and returns what is to be
//! done. It has no I/O, no clock, no process, no libpmix and no static.
//!
//! The driver (`node`) repeats these steps:
//!
//! 1. [`Core::handle`] takes an [`Input`]: an event of the agent, a request of a rank, the end of a process, a signal.
//! 2. [`Core::advance`] decides what follows from all inputs and from the time.
//! 3. [`Core::poll_action`] returns the [`Action`]s in order until there is none. The driver carries out each before
//!    it takes the next, and answers [`Action::Put`] and [`Action::Fetch`] by an input. The node status is built last,
//!    so it contains all that the other actions have led to; while inputs wait for step 2 it is not built.
//! 4. The driver waits for an event, at most until [`Core::deadline`].
//!
//! The parts: `collectives` (with `fence`, `fence_data`) are fences and operations like them, `modex` and
//! `name_service` are data of ranks, `init` tells when MPI_Init is over, `loss` and `exits` decide when the job ends
//! and with which status, `signalling` handles signals, `coalescing` selects the launcher that reports an error.

mod arrivals;
pub(crate) mod coalescing;
mod collectives;
mod connections;
pub(crate) mod exits;
mod fence;
mod fence_data;
mod init;
mod loss;
pub(crate) mod messages;
mod modex;
pub(crate) mod mpi;
mod name_service;
pub(crate) mod node_status;
pub(crate) mod policy;
mod ranges;
pub(crate) mod signalling;
mod start;
pub(crate) mod view;
mod waiting;

#[cfg(test)]
mod contract_tests;
#[cfg(test)]
mod sim_tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::layout::Layout;
use arrivals::Arrivals;
use connections::Running;
use fence::Fences;
use fence_data::FenceData;
use loss::Aborting;
use messages::{Action, Answer, Input, RequestId};
use modex::Modex;
use mpi::{Mpi, OnLoss};
use name_service::PendingLookup;
use node_status::{DataChunk, FenceId, NodeStatus};
use policy::ExitPolicy;
use view::View;
use waiting::Waiting;

/// How often the core is to be advanced while something is due.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// The same when nothing is due.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the other launchers of an aborted job may take to end.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The parameters of a launcher.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The number of this node.
    pub(crate) own: usize,
    /// This process.
    pub(crate) pid: u32,
    /// What must be the same for all launchers of the job.
    pub(crate) signature: String,
    pub(crate) layout: Layout,
    pub(crate) policy: ExitPolicy,
    /// The effect of the loss of a rank or node; `None`: it depends on the MPI.
    pub(crate) on_loss: Option<OnLoss>,
    /// How long launchers and then ranks may take to start, and a rank waits for another one's data.
    pub(crate) timeout: Duration,
    /// How long ranks may take to end on request.
    pub(crate) grace: Duration,
    /// Data of more than this many bytes is not stored in attributes, but served to the launchers that request it;
    /// `None` if this launcher cannot serve.
    pub(crate) serve_from: Option<usize>,
    /// Most bytes that a node's ranks may put into open fences, where they are served.
    pub(crate) serve_max: usize,
    /// A signal to this process reaches its ranks, too.
    pub(crate) signals_all: bool,
    pub(crate) verbose: bool,
}

/// What the launcher is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It looks for its programs.
    New,
    /// It waits until the launchers of all nodes have started.
    Starting { since: Duration },
    /// Its ranks run, or it waits for those of other nodes.
    Running,
    /// The end was returned.
    Over,
}

/// Data that is being stored in attributes: [`Input::Stored`] is awaited. One at a time, since each takes room.
#[derive(Debug)]
enum Storing {
    /// The contribution to a fence.
    Contribution {
        id: FenceId,
        data: Vec<u8>,
        /// There will be more room later.
        is_more_to_come: bool,
    },
    /// The data of a rank.
    Source {
        rank: u32,
        version: u32,
        size: usize,
        without_room: WithoutRoom,
    },
}

/// What becomes of the data of a rank for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WithoutRoom {
    /// It is requested, and there will be more room: it is tried again.
    Retry,
    /// It is requested, and there will not be more room.
    GiveUp,
    /// It is stored when it is requested.
    Postpone,
}

/// The state of a node's launcher.
#[derive(Debug)]
pub(crate) struct Core {
    config: Config,
    /// The time of the last input.
    now: Duration,
    phase: Phase,
    actions: VecDeque<Action>,
    /// There were inputs since the last turn.
    is_changed: bool,
    last_turn: Duration,
    view: View,
    fences: Fences,
    waiting: BTreeMap<FenceId, Waiting>,
    fence_data: FenceData,
    /// Contributions to fences that this launcher serves: fence and owner.
    serving: BTreeSet<(FenceId, usize)>,
    storing: Option<Storing>,
    running: Running,
    /// Ranks or their descendants are left.
    are_processes_left: bool,
    /// The MPI of the ranks, if one has connected to the PMIx server.
    mpi: Option<Mpi>,
    node_status: NodeStatus,
    /// The status that was published last.
    published_status: Option<NodeStatus>,
    /// Deaths that this node's ranks were told of.
    reported_deaths: BTreeSet<u32>,
    /// Reports of ranks that were killed, printed at the end unless the job was ended.
    killed: Vec<String>,
    /// The first rank here that ended with a status other than 0, and the status, if it was not reported.
    unreported: Option<(u32, u8)>,
    /// Groups for which this node has proposed a number.
    group_count: u64,
    entry_count: u64,
    /// Published entries that not every node knows of yet, with the requests that wait for that.
    unconfirmed: Vec<(u64, RequestId)>,
    /// Lookups of ranks that wait for an entry.
    pending_lookups: Vec<PendingLookup>,
    modex: Modex,
    signal_count: u64,
    /// The last signal of each node's ranks that was handled.
    signals_seen: BTreeMap<usize, u64>,
    last_fence: Duration,
    /// How long MPI_Init may be silent if the number of its fences is unknown: as long as the ranks took to
    /// enter the first.
    init_quiet: Option<Duration>,
    /// Since when the fences of MPI_Init are over on this node.
    init_over: Option<Duration>,
    /// The number of fences in MPI_Init, at most.
    fences_of_init: u64,
    /// The ranks that have arrived in MPI_Init, in a job of a single node.
    arrivals: Arrivals,
    /// When the launchers of all nodes had started.
    all_there: Option<Duration>,
    /// Nodes whose launcher was not started, as the parent reports.
    not_started: BTreeSet<usize>,
    /// When ranks that were asked to end are killed.
    kill_at: Option<Duration>,
    abort_since: Option<Duration>,
    /// An abort that a rank has requested.
    aborting: Option<Aborting>,
    /// When the end was first requested by a signal.
    end_requested_since: Option<Duration>,
    /// The ranks have got SIGTERM, from this launcher or from the process that signalled all processes.
    ranks_have_term: bool,
    /// The control channel is closed.
    is_cut: bool,
    /// The process that started this launcher is gone.
    is_orphan: bool,
    /// The agent is lost.
    has_lost_agent: bool,
}

impl Core {
    pub(crate) fn new(config: Config, now: Duration) -> Self {
        let (own, nodes) = (config.own, config.layout.nodes().len());
        Self {
            now,
            phase: Phase::New,
            actions: VecDeque::new(),
            is_changed: false,
            last_turn: now,
            view: View::new(own, nodes),
            fences: Fences::new(own, config.layout.clone()),
            waiting: BTreeMap::new(),
            fence_data: FenceData::default(),
            serving: BTreeSet::new(),
            storing: None,
            running: Running::default(),
            are_processes_left: false,
            mpi: None,
            node_status: NodeStatus {
                pid: config.pid,
                job: config.signature.clone(),
                ..NodeStatus::default()
            },
            published_status: None,
            reported_deaths: BTreeSet::new(),
            killed: Vec::new(),
            unreported: None,
            group_count: 0,
            entry_count: 0,
            unconfirmed: Vec::new(),
            pending_lookups: Vec::new(),
            modex: Modex::default(),
            signal_count: 0,
            signals_seen: BTreeMap::new(),
            last_fence: now,
            init_quiet: None,
            init_over: None,
            fences_of_init: init::FENCES_OF_INIT,
            arrivals: Arrivals::default(),
            all_there: None,
            not_started: BTreeSet::new(),
            kill_at: None,
            abort_since: None,
            aborting: None,
            end_requested_since: None,
            ranks_have_term: false,
            is_cut: false,
            is_orphan: false,
            has_lost_agent: false,
            config,
        }
    }

    /// Takes an input. What follows from it is decided by the next [`Core::advance`].
    pub(crate) fn handle(&mut self, input: Input, now: Duration) {
        self.now = now.max(self.now);
        // Data that is not there yet, or has no room, is tried again when the next turn is due.
        self.is_changed |= !matches!(input, Input::Fetched { .. } | Input::Stored(false));
        match input {
            Input::RankStarted(rank) => {
                if self.running.is_empty() {
                    self.last_fence = self.now;
                }
                self.running.start(rank);
            }
            Input::Connected { rank, mpi } => self.connect(rank, mpi),
            Input::Disconnected(rank) => {
                if let Some(connections) = self.running.of(rank) {
                    connections.disconnect();
                }
            }
            Input::RankEnded(end) => self.take_end(end),
            Input::ProcessesLeft(are_left) => self.are_processes_left = are_left,
            Input::Abort {
                request,
                rank,
                status,
                message,
            } => self.take_abort(rank, status, &message, request),
            Input::Enter(entering) => self.enter(entering),
            Input::Publish {
                request,
                rank,
                values,
                once,
            } => self.publish_names(request, rank, values, once),
            Input::LookUp(looking) => self.look_up(looking),
            Input::Unpublish {
                request,
                rank,
                keys,
            } => {
                self.unpublish(rank, &keys);
                self.answer(request, Answer::Done);
            }
            Input::Want(wanting) => self.want(wanting),
            Input::Found { rank, data } => {
                if !self.has_others() {
                    self.arrivals.note(rank, self.now);
                }
                self.take_found(rank, data);
            }
            Input::SignalRanks {
                request,
                ranks,
                signal,
            } => self.send_signal(request, &ranks, signal),
            Input::Status(node, status) => self.view.take(node, *status),
            Input::Gone(node) => self.view.lose(node),
            Input::RankFailed(rank) => self.view.note_failed(rank, self.now),
            Input::Outcast => self.view.declare_outcast(),
            Input::Fetched { chunk, node, data } => self.take_fetched(chunk, node, data),
            Input::Stored(is_stored) => self.take_stored(is_stored),
            Input::ServesAt(nids) => self.node_status.data_nids = nids,
            Input::Signal(signal) => self.take_signal(signal),
            Input::ChannelCut => self.is_cut = true,
            Input::NotStarted(node) => _ = self.not_started.insert(node),
            Input::NoReader => {
                // The end of the parent closes both, and counts as that.
                self.check_channel();
                self.abort_without_reader();
            }
            Input::AgentLost => self.has_lost_agent = true,
        }
    }

    /// Decides what follows from the inputs and the time.
    pub(crate) fn advance(&mut self, now: Duration) {
        self.now = now.max(self.now);
        self.last_turn = self.now;
        self.is_changed = false;
        match self.phase {
            Phase::New => {
                self.node_status.ready = true;
                self.phase = Phase::Starting { since: self.now };
                self.await_launchers(self.now);
            }
            Phase::Starting { since } => self.await_launchers(since),
            Phase::Running => self.take_turn(),
            Phase::Over => {}
        }
    }

    fn take_turn(&mut self) {
        self.check_channel();
        if self.view.is_outcast() {
            // If the job is being ended anyway, the reason is printed already.
            if self.node_status.abort.is_none() {
                self.print("the other nodes declare this one failed; its ranks are ended");
            }
            return self.end(None);
        }
        self.read_statuses();
        self.forward_signals();
        self.check_start();
        self.adopt_abort();
        self.abort_when_due();
        self.store_contributions();
        self.advance_fences();
        self.serve_contributions();
        self.report_deaths();
        self.serve_names();
        self.advance_modex();
        self.kill_when_due();
        self.node_status.done = !self.are_processes_left;
        if self.node_status.done && self.are_all_done() {
            self.publish();
            self.report_killed();
            self.report_failed();
            self.end(Some(self.exit_status()));
        }
    }

    /// Returns the next thing to do.
    #[must_use]
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        if self.actions.is_empty() && !self.is_changed && self.phase != Phase::Over {
            self.publish();
        }
        self.actions.pop_front()
    }

    /// When the core is to be advanced even if nothing happens.
    #[must_use]
    pub(crate) fn deadline(&self) -> Duration {
        if self.is_changed {
            return self.last_turn;
        }
        let is_due = matches!(self.phase, Phase::Starting { .. })
            || self.is_orphan
            || self.node_status.abort.is_some()
            || self.aborting.is_some()
            || self.node_status.done
            || self.may_be_in_init()
            || !self.waiting.is_empty()
            || !self.pending_lookups.is_empty()
            || self.view.is_settling(self.now)
            || self.modex.is_due_soon();
        let pause = match (is_due, self.node_status.started) {
            (true, _) => TICK,
            (false, true) => IDLE_TIMEOUT,
            (false, false) => init::INIT_QUIET,
        };
        self.last_turn + pause
    }

    /// Queues the node status if it has changed.
    fn publish(&mut self) {
        let gone = self.view.gone();
        self.node_status.gone = gone.iter().map(|node| *node as u32).collect();
        self.node_status.fences = self.fences.states(gone);
        if self.has_lost_agent || self.published_status.as_ref() == Some(&self.node_status) {
            return;
        }
        let node_status = self.node_status.clone();
        self.view.take(self.config.own, node_status.clone());
        self.published_status = Some(node_status.clone());
        self.act(Action::Publish(Box::new(node_status)));
    }

    fn take_fetched(&mut self, chunk: DataChunk, node: usize, data: Option<Vec<u8>>) {
        match chunk {
            DataChunk::Fence(id) => {
                if let Some(data) = data {
                    // A forgotten fence whose states others still publish is read again in each turn, with its data:
                    // if that led to the next turn at once, the launcher would never wait.
                    self.is_changed |= self.fences.fetched(id, node, data);
                }
            }
            DataChunk::Rank(rank, version) => {
                self.is_changed |= data.is_some();
                self.take_copy(rank, version, node, data);
            }
        }
    }

    fn take_stored(&mut self, is_stored: bool) {
        match self.storing.take() {
            Some(Storing::Contribution {
                id,
                data,
                is_more_to_come,
            }) => self.take_stored_contribution(id, data, is_stored, is_more_to_come),
            Some(Storing::Source {
                rank,
                version,
                size,
                without_room,
            }) => self.take_stored_source(rank, (version, size), is_stored, without_room),
            None => {}
        }
    }

    /// Whether data of this size is served, and not stored in attributes.
    fn is_for_serving(&self, size: usize) -> bool {
        self.config.serve_from.is_some_and(|from| size > from)
    }

    /// Requests data that launchers serve, if one of these is left.
    fn request(&mut self, chunk: DataChunk, owner: usize, size: usize, servers: Vec<usize>) {
        let gone = self.view.gone();
        let is_left = |server: &usize| *server != self.config.own && !gone.contains(server);
        let from: Vec<usize> = servers.into_iter().filter(is_left).collect();
        if !from.is_empty() {
            self.act(Action::Request {
                chunk,
                owner,
                size,
                from,
            });
        }
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn answer(&mut self, request: RequestId, answer: Answer) {
        self.act(Action::Answer(request, answer));
    }

    fn print(&mut self, text: impl Into<String>) {
        self.act(Action::Print(text.into()));
    }

    fn end(&mut self, status: Option<u8>) {
        self.phase = Phase::Over;
        self.act(Action::End(status));
    }

    /// Whether the job has other nodes.
    fn has_others(&self) -> bool {
        self.config.layout.nodes().len() > 1
    }

    /// The name of this node.
    fn name(&self) -> &str {
        self.config.layout.name(self.config.own)
    }

    fn names<'a>(&self, nodes: impl IntoIterator<Item = &'a usize>) -> String {
        let names = nodes.into_iter().map(|node| self.config.layout.name(*node));
        names.collect::<Vec<&str>>().join(", ")
    }

    /// How long ago that was.
    fn since(&self, moment: Duration) -> Duration {
        self.now.saturating_sub(moment)
    }
}

/// Adds to a list of at most `most` elements, or returns the element.
fn push_within<T>(list: &mut Vec<T>, one: T, most: usize) -> Result<(), T> {
    if list.len() >= most {
        return Err(one);
    }
    list.push(one);
    Ok(())
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
}
