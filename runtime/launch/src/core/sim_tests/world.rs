//! The simulated world: nodes, agents that carry attributes, ranks, time.
//!
//! An attribute reaches each other node after a random time, in any order; of one attribute the newest value counts.
//! When a node is lost, some of its values arrive nowhere, at some nodes only, or late. Each node is told of a loss at
//! a time of its own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use super::checks::Checks;
use super::fault::Fault;
use super::job::{
    Contribution, DETECTION_MS, INIT, Job, Loss, Op, Request, Rng, contribution, data_of, node_name,
};
use crate::core::messages::{
    Action, Answer, Entering, Input, Killed, Looking, NamedValue, RankEnd, RequestId, Wanting,
};
use crate::core::mpi::Mpi;
use crate::core::node_status::{Contributed, DataChunk, NodeStatus};
use crate::core::{Config, Core};
use crate::layout::Layout;

/// How long a node stays after its launcher has ended, longer than any attribute takes.
const LINGER_MS: usize = 300;
/// The longest time that served data takes: it may arrive before or after nodes are told of a loss.
const TRANSFER_MS: usize = 1000;
/// Most events at one moment: with more, a launcher does not wait for what it needs.
const AT_ONCE_MAX: usize = 10_000;
/// The longest simulated time.
const TIME_MAX: Duration = Duration::from_secs(300);

/// What happens at a time.
#[derive(Debug)]
enum Event {
    Input(usize, Input),
    /// A value of a node's attribute arrives; `None` if it was withdrawn.
    Value {
        to: usize,
        from: usize,
        key: Key,
        version: u64,
        value: Option<Value>,
        is_late: bool,
    },
    /// Served data has arrived, if one of these launchers still serves it.
    Transferred {
        to: usize,
        served: Served,
        from: Vec<usize>,
    },
    Turn(usize),
    Arrive(u32),
    Finish(u32),
    Kill(u32, u8),
    Verdict(usize),
}

type Key = Option<DataChunk>;

/// Data that is served: the node whose ranks have put it, and which data of that node.
type Served = (usize, DataChunk);

#[derive(Debug, Clone)]
enum Value {
    Status(Box<NodeStatus>),
    Data(Vec<u8>),
}

/// A version of an attribute, and its value unless it was withdrawn.
type Stored = (u64, Option<Vec<u8>>);

/// A node, with its launcher and its agent.
struct Node {
    core: Core,
    is_up: bool,
    /// How the launcher has ended.
    end: Option<Option<u8>>,
    is_failed: bool,
    /// What its agent has of each node's data.
    store: BTreeMap<(usize, DataChunk), Stored>,
    /// The versions of the statuses that it has.
    seen: BTreeMap<usize, u64>,
    /// Bytes of its own data.
    stored: BTreeMap<DataChunk, usize>,
    /// What its launcher serves.
    served: BTreeMap<Served, Arc<Vec<u8>>>,
    /// What its launcher has requested and not got.
    requested: BTreeSet<Served>,
    steps: usize,
    turn_at: Option<Duration>,
    entered: BTreeSet<usize>,
}

/// A rank's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    Waiting,
    Arrived(usize),
    Over,
}

pub(super) struct World {
    pub(super) job: Job,
    rng: Rng,
    fault: Option<Fault>,
    now: Duration,
    events: BinaryHeap<Reverse<(Duration, u64)>>,
    bodies: BTreeMap<u64, Event>,
    count: u64,
    version: u64,
    nodes: Vec<Node>,
    ranks: Vec<Process>,
    positions: Vec<usize>,
    /// Ranks that have arrived at an operation and whose node has not entered it.
    arrived: BTreeMap<usize, BTreeSet<u32>>,
    requests: BTreeMap<u64, Request>,
    /// Ranks that were made late for an operation.
    delayed: BTreeSet<(u32, usize)>,
    lost: Vec<usize>,
    is_init_over: bool,
    /// Losses that are still to come.
    to_come: Vec<Loss>,
    pub(super) checks: Checks,
}

impl World {
    pub(super) fn new(job: Job, rng: Rng, fault: Option<Fault>) -> Self {
        let names = (0..job.nodes).map(node_name).collect();
        let layout = Layout::new(names, None, Some(job.per_node)).unwrap();
        let node = |own: usize| {
            let config = Config {
                own,
                pid: own as u32,
                signature: "job".into(),
                layout: layout.clone(),
                policy: job.policy,
                on_loss: None,
                timeout: Duration::from_secs(60),
                grace: Duration::from_secs(2),
                serve_from: job.serve_from,
                serve_max: 200_000,
                signals_all: false,
                verbose: false,
            };
            Node {
                core: Core::new(config, Duration::ZERO),
                is_up: true,
                end: None,
                is_failed: false,
                store: BTreeMap::new(),
                seen: BTreeMap::new(),
                stored: BTreeMap::new(),
                served: BTreeMap::new(),
                requested: BTreeSet::new(),
                steps: 0,
                turn_at: None,
                entered: BTreeSet::new(),
            }
        };
        let ranks = job.statuses.len();
        let mut world = Self {
            nodes: (0..job.nodes).map(node).collect(),
            ranks: vec![Process::Waiting; ranks],
            positions: vec![0; ranks],
            checks: Checks::new(&job),
            to_come: job.losses.clone(),
            job,
            rng,
            fault,
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            count: 0,
            version: 0,
            arrived: BTreeMap::new(),
            requests: BTreeMap::new(),
            delayed: BTreeSet::new(),
            lost: Vec::new(),
            is_init_over: false,
        };
        for node in 0..world.nodes.len() {
            let after = world.rng.ms(0, 500);
            world.schedule(after, Event::Turn(node));
        }
        world
    }

    /// Runs until all launchers have ended, and checks the whole.
    pub(super) fn run(mut self) -> Result<(), String> {
        let mut at_once = 0;
        while let Some(Reverse((at, id))) = self.events.pop() {
            at_once = if at == self.now { at_once + 1 } else { 0 };
            if at_once > AT_ONCE_MAX {
                return Err(format!(
                    "at {at:?} the launchers do not wait: {:?}",
                    self.bodies
                ));
            }
            self.now = at;
            if let Some(event) = self.bodies.remove(&id) {
                self.take(event);
            }
            self.checks.first_failure()?;
            let is_over = |node: &Node| !node.is_up || node.end.is_some() || node.is_failed;
            if self.nodes.iter().all(is_over) {
                break;
            }
            if self.now > TIME_MAX {
                let is_left = |node: &usize| !is_over(&self.nodes[*node]);
                let left: Vec<usize> = (0..self.nodes.len()).filter(is_left).collect();
                return Err(format!("the launchers of {left:?} have not ended"));
            }
        }
        let ends: Vec<Option<Option<u8>>> = self.nodes.iter().map(|node| node.end).collect();
        self.checks.finish(&self.job, &ends)
    }

    fn schedule(&mut self, after: Duration, event: Event) {
        self.count += 1;
        self.events.push(Reverse((self.now + after, self.count)));
        self.bodies.insert(self.count, event);
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Input(node, input) => self.tell(node, input),
            Event::Value {
                to,
                from,
                key,
                version,
                value,
                is_late,
            } => {
                // What a lost node was sending may be lost with it, or come by another node.
                if self.nodes[from].is_up || is_late || self.rng.one_in(3) {
                    self.receive(to, from, key, version, value);
                } else if self.rng.one_in(2) {
                    let after = self.rng.ms(0, DETECTION_MS);
                    let late = Event::Value {
                        to,
                        from,
                        key,
                        version,
                        value,
                        is_late: true,
                    };
                    self.schedule(after, late);
                }
            }
            Event::Transferred { to, served, from } => self.transfer(to, served, &from),
            Event::Turn(node) => self.turn(node),
            Event::Arrive(rank) => self.arrive(rank),
            Event::Finish(rank) => self.finish(rank),
            Event::Kill(rank, status) => self.end_rank(rank, status, true),
            Event::Verdict(node) => self.declare_failed(node),
        }
    }

    fn receive(&mut self, to: usize, from: usize, key: Key, version: u64, value: Option<Value>) {
        let node = &mut self.nodes[to];
        match (key, value) {
            (None, Some(Value::Status(status))) => {
                let seen = node.seen.entry(from).or_default();
                if version > *seen {
                    *seen = version;
                    self.tell(to, Input::Status(from, status));
                }
            }
            (Some(chunk), value) => {
                let data = match value {
                    Some(Value::Data(data)) => Some(data),
                    _ => None,
                };
                let place = node.store.entry((from, chunk)).or_insert((0, None));
                if version > place.0 {
                    *place = (version, data);
                }
            }
            _ => {}
        }
    }

    fn transfer(&mut self, to: usize, served: Served, from: &[usize]) {
        let nodes = from.iter().map(|node| &self.nodes[*node]);
        let mut servers = nodes.filter(|node| node.is_up && node.end.is_none() && !node.is_failed);
        let data = servers.find_map(|node| node.served.get(&served));
        let data = data.map(|data| data.to_vec());
        self.nodes[to].requested.remove(&served);
        let (node, chunk) = served;
        self.tell(to, Input::Fetched { chunk, node, data });
    }

    fn send(&mut self, from: usize, key: Key, value: Option<&Value>) {
        self.version += 1;
        for to in (0..self.nodes.len()).filter(|to| *to != from) {
            let after = self.rng.ms(0, self.job.latency_ms);
            let event = Event::Value {
                to,
                from,
                key,
                version: self.version,
                value: value.cloned(),
                is_late: false,
            };
            self.schedule(after, event);
        }
    }

    fn tell(&mut self, node: usize, mut input: Input) {
        let one = &mut self.nodes[node];
        if !one.is_up || one.end.is_some() || one.is_failed {
            return;
        }
        let change = |fault: Fault| fault.change_input(&mut input, &self.lost);
        let times = self.fault.map_or(1, change);
        for _ in 0..times {
            one.core.handle(input.clone(), self.now);
        }
        if let (Some(fault), Input::Gone(_)) = (self.fault, &input) {
            fault.change_view(&mut one.core, &self.lost);
        }
        let after = self.rng.ms(0, 2);
        self.plan_turn(node, after);
    }

    fn plan_turn(&mut self, node: usize, after: Duration) {
        let at = self.now + after;
        if self.nodes[node].turn_at.is_none_or(|turn| turn > at) {
            self.nodes[node].turn_at = Some(at);
            self.schedule(after, Event::Turn(node));
        }
    }

    fn turn(&mut self, node: usize) {
        let one = &mut self.nodes[node];
        if one.turn_at.is_some_and(|at| at > self.now) {
            return;
        }
        one.turn_at = None;
        if !one.is_up || one.end.is_some() || one.is_failed {
            return;
        }
        one.core.advance(self.now);
        while let Some(action) = self.nodes[node].core.poll_action() {
            if self.is_lost_now(node) {
                return self.lose(node);
            }
            self.nodes[node].steps += 1;
            self.perform(node, action);
            if !self.nodes[node].is_up {
                return;
            }
        }
        let one = &self.nodes[node];
        if one.end.is_none() && !one.is_failed {
            let after = one.core.deadline().saturating_sub(self.now);
            self.plan_turn(node, after);
        }
    }

    /// Whether the node stops before its next action.
    fn is_lost_now(&self, node: usize) -> bool {
        let steps = self.nodes[node].steps;
        self.to_come.iter().any(|loss| match loss {
            Loss::Node {
                node: one,
                step,
                after_init,
            } => *one == node && steps >= *step && (self.is_init_over || !after_init),
            _ => false,
        })
    }

    fn lose(&mut self, node: usize) {
        self.nodes[node].is_up = false;
        for rank in self.job.ranks_of(node) {
            self.ranks[rank as usize] = Process::Over;
        }
        self.tell_of_loss(node, DETECTION_MS);
    }

    fn declare_failed(&mut self, node: usize) {
        if self.nodes[node].is_up && self.nodes[node].end.is_none() {
            self.tell_of_loss(node, DETECTION_MS);
            if self.rng.one_in(2) {
                let after = self.rng.ms(0, 2000);
                self.schedule(after, Event::Input(node, Input::Outcast));
            }
        }
    }

    fn tell_of_loss(&mut self, node: usize, within_ms: usize) {
        self.lost.push(node);
        self.checks.lose(node, self.now);
        self.tell_gone(node, 50, within_ms);
    }

    fn tell_gone(&mut self, node: usize, from_ms: usize, to_ms: usize) {
        for to in (0..self.nodes.len()).filter(|to| *to != node) {
            let after = self.rng.ms(from_ms, to_ms);
            self.schedule(after, Event::Input(to, Input::Gone(node)));
        }
    }

    fn perform(&mut self, node: usize, action: Action) {
        match action {
            Action::StartRanks => self.start_ranks(node),
            Action::FailStart(error) => {
                let core = &mut self.nodes[node].core;
                core.fail(5, &error.to_string());
                while let Some(action) = self.nodes[node].core.poll_action() {
                    self.perform(node, action);
                }
                self.nodes[node].is_failed = true;
                self.tell_gone(node, LINGER_MS, 2 * LINGER_MS);
            }
            Action::Publish(mut status) => {
                if let Some(abort) = &status.abort {
                    let kept = self.kept();
                    self.checks.abort(node, abort, &kept, &self.job);
                }
                if let Some(fault) = self.fault {
                    fault.change_status(&mut status, self.job.nodes);
                }
                let loss = self.loss_after(node, &status);
                self.send(node, None, Some(&Value::Status(status)));
                if let Some(loss) = loss {
                    self.to_come.remove(loss);
                    self.lose(node);
                }
            }
            Action::Put { chunk, data } => {
                let used: usize = self.nodes[node].stored.values().sum();
                let is_stored = used + data.len() <= self.job.room;
                if is_stored {
                    self.nodes[node].stored.insert(chunk, data.len());
                    self.send(node, Some(chunk), Some(&Value::Data(data)));
                }
                self.tell(node, Input::Stored(is_stored));
            }
            Action::Clear { chunk, .. } => {
                self.nodes[node].stored.remove(&chunk);
                self.send(node, Some(chunk), None);
            }
            Action::Fetch {
                chunk,
                node: from,
                size,
            } => {
                let data = match self.nodes[node].store.get(&(from, chunk)) {
                    Some((_, Some(data))) if data.len() == size => Some(data.clone()),
                    _ if size == 0 => Some(Vec::new()),
                    _ => None,
                };
                let input = Input::Fetched {
                    chunk,
                    node: from,
                    data,
                };
                self.nodes[node].core.handle(input, self.now);
            }
            Action::Serve { chunk, owner, data } => {
                self.nodes[node].served.insert((owner, chunk), data);
            }
            Action::StopServing { chunk, owner } => {
                let stopped = self.nodes[node].served.remove(&(owner, chunk));
                self.checks
                    .check(stopped.is_some(), || format!("{chunk:?} was not served"));
            }
            Action::Request {
                chunk, owner, from, ..
            } => {
                let (to, served) = (node, (owner, chunk));
                if self.nodes[to].requested.insert(served) {
                    let after = self.rng.ms(0, TRANSFER_MS);
                    self.schedule(after, Event::Transferred { to, served, from });
                }
            }
            Action::Answer(request, answer) => self.take_answer(node, request, &answer),
            Action::Forget(request) => self.checks.forget(request.0),
            Action::AskServer(rank) => {
                let data = data_of(rank);
                let after = self.rng.ms(0, 10);
                self.schedule(after, Event::Input(node, Input::Found { rank, data }));
            }
            Action::TellDeath(rank) => self.checks.tell_death(node, rank, &self.job),
            Action::ReportLost { rank, .. } => {
                for to in 0..self.nodes.len() {
                    let after = self.rng.ms(0, self.job.latency_ms);
                    self.schedule(after, Event::Input(to, Input::RankFailed(rank)));
                }
            }
            Action::EndRanks(signal) => {
                for rank in self.job.ranks_of(node) {
                    let after = self.rng.ms(0, 100);
                    self.schedule(after, Event::Kill(rank, 128 + signal as u8));
                }
            }
            Action::End(status) => {
                self.nodes[node].end = Some(status);
                if status.is_none() {
                    // The driver kills the ranks of a node that the others have given up.
                    for rank in self.job.ranks_of(node) {
                        self.ranks[rank as usize] = Process::Over;
                    }
                }
                self.tell_gone(node, LINGER_MS, 2 * LINGER_MS);
            }
            Action::SignalRanks { .. } | Action::NoteSent(_) | Action::Print(_) => {}
        }
    }

    /// The contributions of lost nodes that survivors have.
    fn kept(&self) -> BTreeSet<Contribution> {
        let survivors = self.nodes.iter().enumerate();
        let survivors = survivors
            .filter(|(node, one)| one.is_up && !one.is_failed && !self.lost.contains(node));
        let of_lost = survivors.flat_map(|(_, one)| {
            let fences = &one.core.fences;
            self.lost
                .iter()
                .flat_map(|lost| fences.contributions_of(*lost))
        });
        of_lost
            .filter_map(|(tag, data)| Contribution::read(tag, data))
            .collect()
    }

    fn start_ranks(&mut self, node: usize) {
        self.checks.start(node, self.now);
        for rank in self.job.ranks_of(node) {
            self.tell(node, Input::RankStarted(rank));
            self.tell(
                node,
                Input::Connected {
                    rank,
                    mpi: Some(Mpi::Tolerant),
                },
            );
            let after = self.rng.ms(0, 50);
            self.schedule(after, Event::Arrive(rank));
        }
    }

    fn is_running(&self, rank: u32) -> bool {
        let node = &self.nodes[self.job.node_of(rank)];
        node.is_up && self.ranks[rank as usize] != Process::Over
    }

    /// A rank begins its next operation.
    fn arrive(&mut self, rank: u32) {
        if !self.is_running(rank) {
            return;
        }
        let from = self.positions[rank as usize];
        let next = (from..self.job.ops.len()).find(|op| self.job.ops[*op].involves(rank));
        let Some(op) = next else {
            self.ranks[rank as usize] = Process::Waiting;
            return self.schedule(Duration::ZERO, Event::Finish(rank));
        };
        if self.is_to_be_late(rank, op) && self.delayed.insert((rank, op)) {
            let after = self.rng.ms(200, 400);
            return self.schedule(after, Event::Arrive(rank));
        }
        if self.is_to_be_told(op) {
            let after = self.rng.ms(1, 10);
            return self.schedule(after, Event::Arrive(rank));
        }
        self.ranks[rank as usize] = Process::Arrived(op);
        for loss in &self.to_come.clone() {
            if let Loss::Rank {
                rank: one,
                op: at,
                after,
            } = loss
                && *one == rank
                && *at == op
            {
                self.schedule(*after, Event::Kill(rank, 137));
            }
        }
        let node = self.job.node_of(rank);
        let input = match self.job.ops[op].clone() {
            Op::Collective { .. } => {
                self.arrived.entry(op).or_default().insert(rank);
                return self.enter_when_complete(node, op);
            }
            Op::Publish { key, once, .. } => {
                let bytes = data_of(rank);
                let values = vec![NamedValue {
                    key,
                    rank,
                    kind: 3,
                    bytes,
                }];
                Input::Publish {
                    request: self.request(node, op, Some(rank)),
                    rank,
                    values,
                    once,
                }
            }
            Op::LookUp { key, wait, .. } => {
                let request = self.request(node, op, Some(rank));
                self.checks.look_up(request.0, &key);
                Input::LookUp(Looking {
                    request,
                    rank,
                    keys: vec![key],
                    wait,
                    timeout_s: Some(5),
                })
            }
            Op::Want { of, .. } => Input::Want(Wanting {
                request: self.request(node, op, Some(rank)),
                rank: of,
                key: Some(format!("key {of};")),
                timeout_s: Some(20),
            }),
        };
        self.tell(node, input);
    }

    /// Whether a rank that looks a name up is still to be told of it.
    fn is_to_be_told(&self, op: usize) -> bool {
        let Op::LookUp { key, wait, .. } = &self.job.ops[op] else {
            return false;
        };
        let publishes = |one: &&Op| matches!(one, Op::Publish { key: of, .. } if of == key);
        let publisher = match self.job.ops.iter().find(publishes) {
            Some(Op::Publish { rank, .. }) => *rank,
            _ => return false,
        };
        !wait && self.is_running(publisher) && !self.checks.is_published(key)
    }

    /// Whether a rank of the lowest node is to come last.
    fn is_to_be_late(&self, rank: u32, op: usize) -> bool {
        let node = self.job.node_of(rank);
        let is_lowest = (0..node).all(|node| !self.nodes[node].is_up);
        let is_it = |loss: &Loss| matches!(loss, Loss::Decider { op: one } if *one == op);
        is_lowest && self.to_come.iter().any(is_it)
    }

    /// The loss that stops the node when it has published this status.
    fn loss_after(&self, node: usize, status: &NodeStatus) -> Option<usize> {
        let has_decided = |op: usize| {
            let mut decided = status.fences.iter().filter(|one| one.decision.is_some());
            decided.any(|state| {
                let data = state.put.as_ref().and_then(Contributed::data);
                let read = data.and_then(|data| Contribution::read(&state.tag, &data));
                read == Some(Contribution { node, op })
            })
        };
        let is_now = |loss: &Loss| match loss {
            Loss::Contributor { node: one, op } => {
                *one == node && self.nodes[node].entered.contains(op)
            }
            Loss::Decider { op } => has_decided(*op),
            _ => false,
        };
        let found = self.to_come.iter().position(is_now);
        found.filter(|_| self.is_init_over)
    }

    fn request(&mut self, node: usize, op: usize, rank: Option<u32>) -> RequestId {
        let id = self.requests.len() as u64 + 1;
        let request = Request { node, op, rank };
        self.requests.insert(id, request);
        self.checks.open(id, request, self.now);
        RequestId(id)
    }

    /// The node enters a fence when all of its living ranks have, as libpmix does.
    fn enter_when_complete(&mut self, node: usize, op: usize) {
        let Op::Collective { ranks, group, size } = self.job.ops[op].clone() else {
            return;
        };
        let there = self.arrived.get(&op).cloned().unwrap_or_default();
        let mut own = self.job.ranks_of(node);
        let mut living = self
            .job
            .ranks_of(node)
            .filter(|rank| self.is_running(*rank));
        let is_complete =
            living.all(|rank| !self.job.ops[op].involves(rank) || there.contains(&rank));
        if !is_complete
            || !own.any(|rank| there.contains(&rank) && self.is_running(rank))
            || !self.nodes[node].entered.insert(op)
        {
            return;
        }
        let is_group = group.is_some();
        let request = self.request(node, op, None);
        let entering = Entering {
            request,
            tag: group.map_or_else(String::new, |name| format!("construct {name}")),
            is_group,
            ranks,
            data: contribution(node, op, size),
            timeout_s: None,
        };
        self.tell(node, Input::Enter(entering));
    }

    fn take_answer(&mut self, node: usize, request: RequestId, answer: &Answer) {
        let Some(about) = self.requests.get(&request.0).copied() else {
            return;
        };
        self.checks
            .answer(request.0, node, answer, &self.job, self.now);
        let ranks = match about.rank {
            Some(rank) => rank..rank + 1,
            None => self.job.ranks_of(node),
        };
        for rank in ranks {
            if self.ranks[rank as usize] == Process::Arrived(about.op) && self.is_running(rank) {
                self.positions[rank as usize] = about.op + 1;
                self.ranks[rank as usize] = Process::Waiting;
                let slow = if self.rng.one_in(20) { 1500 } else { 10 };
                let after = self.rng.ms(0, slow);
                self.schedule(after, Event::Arrive(rank));
            }
        }
        if about.op == INIT - 1 {
            self.begin_losses();
        }
    }

    /// After MPI_Init, on all nodes, and half a second for the tail of it.
    fn begin_losses(&mut self) {
        let is_past =
            |rank: &usize| !self.is_running(*rank as u32) || self.positions[*rank] >= INIT;
        if self.is_init_over || !(0..self.ranks.len()).all(|rank| is_past(&rank)) {
            return;
        }
        self.is_init_over = true;
        for node in &mut self.nodes {
            node.steps = 0;
        }
        for loss in self.to_come.clone() {
            if let Loss::Verdict { node, after } = loss {
                self.schedule(after, Event::Verdict(node));
            }
        }
    }

    /// A rank ends in order.
    fn finish(&mut self, rank: u32) {
        if self.is_running(rank) {
            let node = self.job.node_of(rank);
            self.tell(node, Input::Disconnected(rank));
            self.end_rank(rank, self.job.statuses[rank as usize], false);
        }
    }

    fn end_rank(&mut self, rank: u32, status: u8, is_killed: bool) {
        if !self.is_running(rank) {
            return;
        }
        let node = self.job.node_of(rank);
        self.ranks[rank as usize] = Process::Over;
        self.checks.end_rank(rank, status, is_killed, self.now);
        let signal = i32::from(status) - 128;
        let end = RankEnd {
            rank,
            status,
            how: if is_killed {
                signal
            } else {
                -i32::from(status)
            },
            killed: is_killed.then_some(Killed { pid: 1, signal }),
        };
        self.tell(node, Input::RankEnded(end));
        let are_left = self.job.ranks_of(node).any(|rank| self.is_running(rank));
        self.tell(node, Input::ProcessesLeft(are_left));
        for op in 0..self.job.ops.len() {
            self.enter_when_complete(node, op);
        }
    }
}
