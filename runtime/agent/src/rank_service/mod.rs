//! The agent's service for ranks: attached processes, findings of the kernel about them, events for them, and the end
//! of the service when it is no longer needed.

mod attributes;
mod idle_time;
mod inherited;

use crate::ending::Ending;
use crate::incarnation::IncarnationFile;
use crate::ipc_server::{IpcServer, Request};
use crate::job_key::{ClientKey, check_key};
use crate::job_size::{JobSize, Statement};
use crate::parent_pipe::{End, ExitMerge, ParentPipe, ParentState};
use crate::publisher::Publisher;
use crate::rank_facts::{describe, rank_report};
use crate::rank_map::{self, RankMap};
use crate::resume::{Record, Resume};
use crate::slice::Slice;
use crate::watch::{RankNotice, Watch};
use idle_time::IdleTime;
use muster_config::{AgentConfig, KeySource, RailsDocument, Stay, draw_key};
use muster_fabric::Nid;
use muster_ipc::{AgentDirectory, Listener, key_hash};
use muster_protocol::{
    Engine, Event, EventKind, Input, KeyHandle, MemberId, NodeState, Policy, RankState,
};
use muster_shm::{Cause, NO_NODE, Occupancy, TableView, TableWriter, ZONE_NAME_MAX};
use muster_sys::clock::monotonic_ns;
use muster_sys::poll::Epoll;
use muster_zones::{NodeIndex, PATH_MAX, Tree};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;
use tracing::{info, warn};

/// The cores of the ranks are read again after this pause for each rank: reading takes some microseconds a rank.
const PLACEMENT_PAUSE_NS: u64 = 1_000_000;

// The state table has room for the path of every zone.
const _: () = assert!(PATH_MAX <= ZONE_NAME_MAX);

/// The service for ranks.
pub(super) struct RankService {
    table: TableWriter,
    ipc: IpcServer,
    /// Hashes of the keys that processes of this node watch, with the slots of these processes.
    watched: BTreeMap<u64, BTreeSet<u32>>,
    watch: Watch,
    publisher: Publisher,
    rank_map: RankMap,
    resume: Resume,
    record: Record,
    incarnation: IncarnationFile,
    key_source: KeySource,
    /// Keys of clients that differ from the key file's.
    keys_refused: u64,
    /// Reports of the parent, if the agent stays until the parent closes the pipe.
    parent_pipe: Option<ParentPipe>,
    exit_merge: ExitMerge,
    attached: BTreeSet<u32>,
    size: JobSize,
    /// In a job with zones: the name of this node, which goes with its address.
    named_for: Option<String>,
    /// Number of known members that have failed or left.
    gone: usize,
    /// Reports of a launcher that were ignored because the kernel's or another node's report takes precedence.
    launcher_overruled: u64,
    idle_time: IdleTime,
    /// Processes have attached or ended since the loop last read them.
    has_changed: bool,
    /// The loop does not read them again before this time.
    changed_due_ns: Option<u64>,
    /// Ends from the parent, and notices of the process watch, that are not handled yet.
    ends: VecDeque<End>,
    notices: VecDeque<RankNotice>,
}

impl RankService {
    /// Starts the service, or continues that of an earlier worker.
    pub(super) fn start(
        table: &TableWriter,
        listener: Listener,
        mut resume: Resume,
        record: Record,
        agent_directory: &AgentDirectory,
        config: &AgentConfig,
        tree: &Tree,
    ) -> io::Result<Self> {
        resume.save(&record);
        let table = TableWriter::adopt(table);
        let watch = Watch::adopt(&table.view())?;
        let mut ipc = IpcServer::new(listener, agent_directory)?;
        let named_for = tree.has_zones().then(|| config.name.as_str().to_owned());
        ipc.set_address(&stated_address(named_for.as_deref(), &record.rails));
        let publisher = Publisher::adopt(&table);
        let attached = inherited::attached_slots(&table.view());
        let mut job = Self {
            publisher,
            rank_map: RankMap::default(),
            idle_time: IdleTime::new(
                config,
                // Without a launcher's job there is no launcher to wait for.
                agent_directory.is_solo(),
                inherited::had_clients(&table.view()),
            ),
            attached,
            table,
            ipc,
            watched: BTreeMap::new(),
            watch,
            resume,
            record,
            incarnation: IncarnationFile::new(agent_directory.incarnation()),
            key_source: config.key.clone(),
            keys_refused: 0,
            parent_pipe: (config.stay == Stay::WithInput).then(ParentPipe::default),
            exit_merge: ExitMerge::default(),
            size: JobSize::default(),
            gone: 0,
            named_for,
            launcher_overruled: 0,
            has_changed: true,
            changed_due_ns: None,
            ends: VecDeque::new(),
            notices: VecDeque::new(),
        };
        job.introduce_nodes(tree);
        job.introduce_self(config, tree.base());
        Ok(job)
    }

    /// Writes the zones of a job to the state table, and its nodes, each at its place in the directory. A zone beyond
    /// the table's limit is left out: its nodes are beyond the limit of nodes, or have no zone there.
    fn introduce_nodes(&mut self, tree: &Tree) {
        if !tree.has_zones() {
            return;
        }
        let map = tree.map();
        for zone in map.zones_at(0) {
            self.table.set_zone(zone.number, map.path(zone));
        }
        for (place, name) in map.directory().names().enumerate() {
            let id = MemberId::of(&name);
            let index = self.publisher.index(&mut self.table, id, &name);
            if index == NO_NODE {
                return;
            }
            let node = NodeIndex(place as u32);
            if let Some(zone) = map.base_zone(node) {
                self.table.set_node_zone(index, zone.number);
            }
            if tree.base().member(id).is_none() && tree.node_state(node) == Some(NodeState::Alive) {
                self.table
                    .set_node_state(index, muster_shm::NodeState::Alive);
            }
        }
    }

    /// Writes this node to the state table. A participant of age gossip has the name of the participant list.
    fn introduce_self(&mut self, config: &AgentConfig, engine: &Engine) {
        let id = engine.id();
        let name = engine.name_of(id).unwrap_or(config.name.as_str());
        let own = self.publisher.index(&mut self.table, id, name);
        self.table.set_own_node(own);
        self.table.set_node_group(own, config.group.as_str());
        // A node that is not degraded any more causes an event, see `correct`.
        if self.table.view().node_state(own) != muster_shm::NodeState::Degraded {
            self.table.set_node_state(own, muster_shm::NodeState::Alive);
        }
    }

    /// The descriptors that the loop waits for.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.ipc.descriptor(), self.watch.descriptor()]
    }

    /// The descriptor of the clients alone. While local work pauses, the loop does not wait for it.
    pub(super) fn clients(&self) -> BorrowedFd<'_> {
        self.ipc.descriptor()
    }

    /// Registers the parent's pipe with the loop, if the agent stays until it is closed.
    pub(super) fn watch_parent_pipe(&mut self, epoll: &Epoll, token: u64) {
        if let Some(pipe) = &mut self.parent_pipe {
            pipe.register(epoll, token);
        }
    }

    /// Whether it has to be served though no descriptor is ready.
    pub(super) fn is_due(&self) -> bool {
        self.parent_pipe.as_ref().is_some_and(ParentPipe::has_more)
            || self.has_pending()
            || self.ipc.due().is_some_and(|due| due <= Instant::now())
    }

    /// Time when that will be the case at the latest, or when the ranks' cores are to be read again.
    pub(super) fn due_us(&self) -> Option<u64> {
        let ipc = self.ipc.due().map(|due| {
            let left = due.saturating_duration_since(Instant::now());
            monotonic_ns() / 1000 + left.as_micros() as u64 + 1
        });
        let changed = self.changed_due_ns.filter(|_| self.has_changed);
        let changed = changed.map(|due_ns| due_ns / 1000 + 1);
        [ipc, changed].into_iter().flatten().min()
    }

    /// Whether there are unhandled ends or notices.
    fn has_pending(&self) -> bool {
        !self.ends.is_empty() || !self.notices.is_empty()
    }

    /// Converts requests and findings to inputs of the engine, as far as there is time. Returns whether there may be
    /// more. While the loop pauses local work, only findings of the kernel are handled.
    pub(super) fn serve(
        &mut self,
        slice: &Slice,
        is_paused: bool,
        input: &mut dyn FnMut(Input<'_>),
    ) -> io::Result<bool> {
        let (mut requests, half) = (Vec::new(), slice.half());
        let mut more = !is_paused;
        while more {
            let now = Instant::now();
            more = self
                .ipc
                .serve(now, &mut self.table, &self.watch, &mut requests)?;
            for request in requests.drain(..) {
                self.serve_request(request, input);
            }
            if half.is_over() {
                break;
            }
        }
        // Before the kernel's notices, because a final notice releases the client's slot.
        if let Some(pipe) = self.parent_pipe.as_mut().filter(|_| self.ends.is_empty()) {
            self.ends.extend(pipe.read());
        }
        while let Some(end) = self.ends.pop_front() {
            self.handle_parent_report(end, input);
            if slice.is_over() {
                break;
            }
        }
        if self.ends.is_empty() {
            if self.notices.is_empty() {
                let mut notices = Vec::new();
                self.watch.take(&mut notices);
                self.notices.extend(notices);
            }
            while let Some(notice) = self.notices.pop_front() {
                self.serve_notice(&notice, input);
                if slice.is_over() {
                    break;
                }
            }
        }
        Ok(more || self.has_pending())
    }

    fn serve_request(&mut self, request: Request, input: &mut dyn FnMut(Input<'_>)) {
        match request {
            Request::Attached {
                slot,
                pid,
                rank,
                job_size,
                ulfm,
                again,
                ..
            } => {
                info!(slot, pid, ?rank, again, "a process attached");
                self.attached.insert(slot);
                if let Some(rank) = rank {
                    self.exit_merge.begin(rank);
                }
                self.has_changed = true;
                if ulfm {
                    self.require_stop_policy(input);
                }
                self.learn_job_size(job_size, rank.map_or(0, |rank| rank + 1));
                self.idle_time.note_client(pid);
                self.provide_key(slot, rank, input);
            }
            Request::Armed { slot } => {
                let facts = self.table.view().slot(slot).map(|slot| slot.facts());
                if let Some(rank) = facts.and_then(|facts| facts.rank) {
                    input(rank_report(rank, RankState::Alive, Cause::Joined, 0));
                }
            }
            Request::Seed { address, .. } => input(Input::Seed {
                address: address.as_bytes(),
            }),
            Request::Key { key, .. } => match check_key(&self.key_source, self.known_key(), &key) {
                ClientKey::First => self.set_key(key, false, input),
                ClientKey::Known => {}
                ClientKey::Other => {
                    self.keys_refused += 1;
                    warn!(
                        "a client supplied a key that differs from the key file's; the file's key stays in effect"
                    );
                }
            },
            Request::Aborted {
                rank,
                how,
                job_size,
            } => {
                self.learn_job_size(job_size, 0);
                self.handle_launcher_report(rank, how, input);
            }
            Request::Placed { node, ranks } => self.rank_map.note(node, &ranks),
            Request::Feeds => self.require_stop_policy(input),
            Request::HungUp { slot, .. } => info!(slot, "a connection ended"),
            Request::Withdrawn { slot } => {
                info!(slot, "a process withdrew before it was attached");
                self.forget_client(slot);
            }
        }
    }

    /// MPI of this node's ranks is notified of failures. MPI cannot revoke a failure, so this node must stop when it
    /// is declared failed.
    fn require_stop_policy(&mut self, input: &mut dyn FnMut(Input<'_>)) {
        self.incarnation.enable();
        input(Input::Policy(Policy::Stop));
    }

    /// A client states the number of ranks of the job; from its own rank it follows that there are at least `seen`.
    fn learn_job_size(&mut self, stated: u32, seen: u32) {
        let view = self.table.view();
        let (seen, room) = (seen.max(view.rank_count()), view.limits().ranks);
        match self.size.learn(stated, seen, room) {
            Statement::Known => {}
            Statement::First => {
                self.table.raise_rank_count(stated);
                self.ipc.set_job_size(stated);
            }
            Statement::Refused { is_logged: false } => {}
            Statement::Refused { is_logged: true } => warn!(
                stated,
                known = self.size.known(),
                seen,
                room,
                "a client states a number of ranks that differs from the known one, or is impossible; it is \
                 ignored: state the same number in every rank, or none"
            ),
        }
    }

    /// The launcher reports that a rank of this node failed. For a rank that was attached here, or is known on
    /// another node, that node's kernel reports more, and earlier. The report counts only for ranks that never
    /// attached.
    fn handle_launcher_report(&mut self, rank: u32, how: i32, input: &mut dyn FnMut(Input<'_>)) {
        if !self.size.has(rank) {
            if self.size.ranks_refused.is_power_of_two() {
                let size = self.size.known();
                warn!(
                    rank,
                    size, "a client reports the end of a rank that the job does not have"
                );
            }
            return;
        }
        if self.table.view().rank_node(rank).is_some() {
            self.launcher_overruled += 1;
            return;
        }
        info!(rank, how, "the launcher reports that this rank failed");
        self.table.raise_rank_count(rank + 1);
        input(rank_report(rank, RankState::Failed, Cause::Told, how));
    }

    /// The parent reports how a task of this node has ended.
    fn handle_parent_report(&mut self, end: End, input: &mut dyn FnMut(Input<'_>)) {
        let view = self.table.view();
        let slots = (0..view.limits().slots).map_while(|slot| Some(view.slot(slot)?.facts()));
        let (attached, gone): (Vec<_>, Vec<_>) =
            slots.partition(|facts| facts.occupancy == Occupancy::Taken);
        // The rank of a process may differ from its task number. That also holds after the kernel has reported its
        // end and its slot is free.
        let mut all = attached.iter().chain(&gone);
        let own = all.find(|facts| facts.pid == end.pid);
        let rank = own.and_then(|facts| facts.rank).unwrap_or(end.rank);
        let known = if attached.iter().any(|facts| facts.rank == Some(rank)) {
            ParentState::Attached
        } else if rank >= view.limits().ranks || view.rank_node(rank).is_some() {
            ParentState::Stated(view.rank_state(rank))
        } else {
            ParentState::Unknown
        };
        let Some((state, cause)) = self.exit_merge.of_parent(rank, known, end.how) else {
            // A report that matches what the node has reported already is not a contradiction.
            let others = [muster_shm::RankState::Alive, muster_shm::RankState::Left];
            if end.how != 0
                && matches!(known, ParentState::Stated(state) if others.contains(&state))
            {
                self.launcher_overruled += 1;
            }
            return;
        };
        info!(rank, how = end.how, "the parent reports its end");
        self.table.raise_rank_count(rank + 1);
        input(rank_report(rank, state, cause, end.how));
        // Other nodes must learn of it before this agent leaves.
        self.idle_time.restart();
    }

    /// Draws the key on behalf of rank 0 of a job, or of a process without a rank.
    fn provide_key(&mut self, slot: u32, rank: Option<u32>, input: &mut dyn FnMut(Input<'_>)) {
        if matches!(self.key_source, KeySource::Given(_)) || !matches!(rank, None | Some(0)) {
            return;
        }
        let key = match self.record.key {
            Some(key) => key,
            None => {
                let key = draw_key();
                self.set_key(key, true, input);
                key
            }
        };
        if rank == Some(0) && self.record.key_is_drawn && !self.ipc.send_key(slot, key) {
            warn!("the job key cannot be sent to rank 0; the other nodes wait for it");
        }
    }

    /// The key, and whether this agent drew it.
    fn known_key(&self) -> Option<([u8; 32], bool)> {
        self.record.key.map(|key| (key, self.record.key_is_drawn))
    }

    fn set_key(&mut self, key: [u8; 32], is_drawn: bool, input: &mut dyn FnMut(Input<'_>)) {
        self.record.key = Some(key);
        self.record.key_is_drawn = is_drawn;
        self.resume.save(&self.record);
        input(Input::Key(key));
    }

    fn serve_notice(&mut self, notice: &RankNotice, input: &mut dyn FnMut(Input<'_>)) {
        info!(slot = notice.slot, rank = ?notice.rank, finding = ?notice.finding, "the kernel reports on a process");
        let (is_latest, is_rank_elsewhere) = notice_state(&self.table.view(), notice);
        if let Some(rank) = notice.rank.filter(|_| !is_rank_elsewhere)
            && let Some((state, cause, argument)) = describe(notice.finding)
        {
            let argument = match state {
                RankState::Failed => self.exit_merge.of_kernel(rank, cause, argument),
                _ => argument,
            };
            input(rank_report(rank, state, cause, argument));
        }
        self.ipc.settle(notice, &mut self.table, &self.watch);
        if notice.finding.is_final() && is_latest {
            self.forget_client(notice.slot);
        }
    }

    fn forget_client(&mut self, slot: u32) {
        self.forget_watcher(slot);
        self.attached.remove(&slot);
        self.has_changed = true;
        if self.attached.is_empty() {
            self.idle_time.restart();
        }
    }

    /// Writes an event to the state table. Returns true if there is news for the ranks.
    pub(super) fn publish(&mut self, tree: &Tree, event: &Event) -> bool {
        if event.kind == EventKind::NodeUp {
            self.rank_map.retry();
        }
        match event.kind {
            EventKind::AttributeChanged { key, .. } => self.publish_attribute(tree, event, key),
            _ => self.publisher.publish(&mut self.table, tree.base(), event),
        }
    }

    /// Writes that an attribute changed, if a rank of this node watches its key.
    fn publish_attribute(&mut self, tree: &Tree, event: &Event, key: KeyHandle) -> bool {
        let base = tree.base();
        if let Some((node, key)) = tree.changed_copy(key)
            && Tree::is_rank_list(key)
        {
            let ranks: Vec<(u32, NodeIndex)> = tree.ranks_of_zone(node).ranks().collect();
            return self.publish_ranks_elsewhere(tree, &ranks, false);
        }
        let (name, hash) = match tree.changed_copy(key) {
            Some((node, key)) => (tree.map().directory().name(node), key_hash(key)),
            None => {
                let name = base.name_of(event.member).map(str::to_owned);
                let Some(key) = base.changed_key(key) else {
                    return false;
                };
                (name, key_hash(key))
            }
        };
        if !self.watched.contains_key(&hash) {
            return false;
        }
        let name = name.unwrap_or_else(|| "?".to_owned());
        let event = Event {
            member: MemberId::of(&name),
            ..*event
        };
        self.publisher
            .publish_attribute(&mut self.table, &name, &event, hash);
        true
    }

    /// Writes which ranks run on nodes of another zone, see [`Publisher::publish_ranks_elsewhere`].
    pub(super) fn publish_ranks_elsewhere(
        &mut self,
        tree: &Tree,
        ranks: &[(u32, NodeIndex)],
        is_back: bool,
    ) -> bool {
        let (table, at_ns) = (&mut self.table, monotonic_ns());
        self.publisher
            .publish_ranks_elsewhere(table, tree.base(), ranks, is_back, at_ns)
    }

    /// Writes what happened in other zones. Returns true if there is news for the ranks.
    pub(super) fn publish_elsewhere(&mut self, engine: &Engine, event: &Event, name: &str) -> bool {
        self.publisher
            .publish_elsewhere(&mut self.table, engine, event, name)
    }

    /// Whether the state table shows this end already; then the event only adds how it ended.
    pub(super) fn is_known(&self, event: &Event) -> bool {
        let EventKind::RankChanged { fact } = event.kind else {
            return false;
        };
        let view = self.table.view();
        let state = match fact.state {
            RankState::Failed => muster_shm::RankState::Failed,
            RankState::Left => muster_shm::RankState::Left,
            _ => return false,
        };
        let node = self.publisher.known(event.member);
        node.is_some() && view.rank_node(fact.rank) == node && view.rank_state(fact.rank) == state
    }

    /// Publishes members that failed or left before this agent started, before the events that arrived with them.
    pub(super) fn publish_gone(&mut self, engine: &Engine) {
        let gone = engine.gone();
        if std::mem::replace(&mut self.gone, gone) != gone {
            self.publisher.publish_gone(&mut self.table, engine);
        }
    }

    /// Writes to the state table on which nodes ranks run, where the engine does not supply it.
    pub(super) fn place_ranks(&mut self, engine: &Engine) {
        let table = self.table.view();
        let is_placed = |rank| table.rank_node(rank).is_some();
        let known = |id| self.publisher.known(id);
        let placed = self.rank_map.take(engine, known, is_placed);
        if rank_map::write(&mut self.table, &placed) {
            self.ipc.wake_up();
        }
    }

    /// The state table, and a member's index in it.
    pub(super) fn entry(&mut self, id: MemberId) -> Option<(&mut TableWriter, u32)> {
        Some((&mut self.table, self.publisher.known(id)?))
    }

    /// The live members, according to the state table.
    pub(super) fn present(&self) -> impl Iterator<Item = MemberId> {
        self.publisher.present(self.table.view())
    }

    /// The state table, for reading.
    pub(super) fn table(&self) -> TableView {
        self.table.view()
    }

    /// The name of the node with this index in the state table.
    pub(super) fn node_name(&self, node: u32) -> Option<String> {
        self.table.view().node_name(node)
    }

    /// Counters of the service, by name.
    pub(super) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let own = [
            ("nodes_without_room", self.publisher.without_room),
            (
                "launchers_not_followed",
                self.idle_time.launchers_not_followed,
            ),
            ("keys_refused", self.keys_refused),
            ("launcher_overruled", self.launcher_overruled),
            ("job_sizes_refused", self.size.sizes_refused),
            ("ranks_refused", self.size.ranks_refused),
            (
                "input_not_understood",
                self.parent_pipe
                    .as_ref()
                    .map_or(0, |pipe| pipe.not_understood),
            ),
            ("piggyback_lost", self.table.view().piggybacks_lost()),
            ("places_dropped", self.rank_map.dropped),
        ];
        let others = self.ipc.counters().each().into_iter();
        own.into_iter().chain(others).chain(self.watch.counters())
    }

    /// Wakes the ranks, because the state table has news.
    pub(super) fn wake_up(&mut self) {
        self.ipc.wake_up();
    }

    /// Continues a wake-up of many ranks, as far as there is time. Returns whether ranks are left.
    pub(super) fn wake_up_on(&mut self, slice: &Slice) -> bool {
        while self.ipc.wake_up_on(Instant::now()) {
            if slice.is_over() {
                return true;
            }
        }
        false
    }

    /// Saves the state that a later worker needs.
    pub(super) fn save(&mut self, engine: &Engine) {
        self.record.engine.clear();
        engine.snapshot(&mut self.record.engine);
        self.resume.save(&self.record);
    }

    /// Saves the discovered participants, so that a later worker need not discover them.
    pub(super) fn save_participants(&mut self, participants: String) {
        self.record.participants = participants;
        self.resume.save(&self.record);
    }

    /// The attached processes, if some have attached or ended since the last call. With many processes it returns
    /// them less often, because the caller reads the cores of each.
    pub(super) fn changed_processes(&mut self) -> Option<Vec<u32>> {
        let now_ns = monotonic_ns();
        if !self.has_changed || self.changed_due_ns.is_some_and(|due_ns| now_ns < due_ns) {
            return None;
        }
        self.has_changed = false;
        let pause_ns = self.attached.len() as u64 * PLACEMENT_PAUSE_NS;
        self.changed_due_ns = Some(now_ns + pause_ns);
        let view = self.table.view();
        let pid = |slot: &u32| Some(view.slot(*slot)?.facts().pid);
        Some(self.attached.iter().filter_map(pid).collect())
    }

    /// The node's rails have changed: new clients get their address, and a later worker opens them.
    pub(super) fn set_rails(&mut self, address: &str, document: &RailsDocument, open: &[Nid]) {
        self.ipc
            .set_address(&stated_address(self.named_for.as_deref(), address));
        self.record.set_rails(address, document, open);
        self.resume.save(&self.record);
    }

    /// Saves this node's incarnation for an agent that replaces this one, if that needs it.
    pub(super) fn save_incarnation(&mut self, engine: &Engine) {
        if engine.age().is_none() {
            self.incarnation.write(engine.version().incarnation);
        }
    }

    /// Whether a client has ever attached.
    pub(super) fn had_clients(&self) -> bool {
        self.idle_time.had_clients
    }

    /// Whether the last client and its launcher have ended, and the linger time has passed.
    pub(super) fn is_over(&self) -> bool {
        let input = self.parent_pipe.as_ref();
        let input_has_ended = input.is_some_and(ParentPipe::has_ended);
        self.attached.is_empty() && self.idle_time.is_over(input_has_ended)
    }

    /// Refuses new clients, because the agent is about to end and would not answer their requests.
    pub(super) fn stop_accepting(&mut self) {
        self.ipc.shut();
    }

    /// Ends the service. The socket is removed, so that the next client starts a new agent. After a requested end,
    /// attached clients start none. If a new agent could not serve either, no client starts one.
    pub(super) fn close(self, ending: &Ending, name: &str) {
        match ending {
            // The next worker has the socket.
            Ending::Renewed => {}
            Ending::InOrder => self.ipc.close(),
            Ending::Requested => self.ipc.close_on_purpose(
                "it was requested to end (SIGTERM or SIGINT); the user who ended it may restart it",
            ),
            Ending::NameTaken => self.ipc.close_for(&format!(
                "another live member of this job is named {name}; give each node a name of \
                 its own (MUSTER_NODE)"
            )),
        }
    }

    /// Corrects states of members that an earlier worker wrote.
    pub(super) fn correct(&mut self, engine: &Engine) {
        if self
            .publisher
            .correct(&mut self.table, engine, monotonic_ns())
        {
            self.ipc.wake_up();
        }
    }

    /// Reports for the engine of ends of ranks that it does not know from the last worker.
    pub(super) fn catch_up(&self, engine: &Engine) -> Vec<Input<'static>> {
        inherited::unreported_ends(&self.table.view(), engine)
    }
}

/// The address of this node's agent as its clients publish it.
fn stated_address(name: Option<&str>, rails: &str) -> String {
    match name {
        Some(name) => format!("{name}={rails}"),
        None => rails.to_owned(),
    }
}

/// The current state of the process of a notice, which may be late. Returns whether its slot still belongs to it or
/// is free, and whether another process has its rank.
fn notice_state(view: &TableView, notice: &RankNotice) -> (bool, bool) {
    let slots = (0..view.limits().slots).map_while(|slot| Some((slot, view.slot(slot)?.facts())));
    let (mut is_latest, mut is_rank_elsewhere) = (true, false);
    for (slot, facts) in slots.filter(|(_, facts)| facts.occupancy == Occupancy::Taken) {
        let is_it = (slot, facts.generation) == (notice.slot, notice.generation);
        is_latest &= is_it || slot != notice.slot;
        is_rank_elsewhere |= !is_it && facts.rank.is_some() && facts.rank == notice.rank;
    }
    (is_latest, is_rank_elsewhere)
}

#[cfg(test)]
mod tests;
