//! The ranks' side of a job's agent: who is attached, what the kernel says about them, what
//! they are told, and when nobody needs the agent any more.

use super::event_loop::Ending;
use super::incarnation::IncarnationFile;
use super::job_key::{Brought, brought};
use super::job_size::{JobSize, Said};
use super::parent_pipe::{End, ExitMerge, ParentPipe, ParentState};
use super::publisher::Publisher;
use super::rank_facts::{about_rank, describe, tell_rank};
use super::rank_map::{self, RankMap};
use super::resume::{Record, Resume};
use super::slice::Slice;
use super::worker;
use crate::ipc_server::{IpcServer, Request};
use crate::watch::{RankNotice, Watch};
use muster_config::{AgentConfig, KeySource, RailsDocument, Stay, draw_key};
use muster_fabric::Nid;
use muster_ipc::{AgentDirectory, Listener};
use muster_protocol::{Engine, Event, EventKind, Input, MemberId, Policy, RankState, Told};
use muster_shm::{Cause, Leave, Occupancy, PIGGYBACK_MAX, TableView, TableWriter, TrafficStamp};
use muster_sys::clock::monotonic_ns;
use muster_sys::poll::{Epoll, readable};
use muster_sys::process::open_pidfd;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long the first client may take to come: it started us and is on its way.
const FIRST_CLIENT_DEADLINE: Duration = Duration::from_secs(30);
/// An agent without clients whose launcher lives on waits this many linger times for new ones.
const LAUNCHER_LINGERS: u32 = 10;
/// An agent whose starter wants it to end stays this long for what the last client's end is worth.
const LEAVE_AFTER: Duration = Duration::from_millis(200);
/// The processors of the ranks are looked at again after this time for each of them: a look takes some
/// microseconds a rank.
const MOVED_PAUSE_NS: u64 = 1_000_000;
/// Launchers that are remembered.
const LAUNCHERS_MAX: usize = 8;

/// The ranks' side.
pub(super) struct RankService {
    table: TableWriter,
    pub(super) ipc: IpcServer,
    /// Hashes of the keys that processes of this node watch, and the slots of these.
    pub(super) watched: BTreeMap<u64, BTreeSet<u32>>,
    watch: Watch,
    publisher: Publisher,
    rank_map: RankMap,
    resume: Resume,
    record: Record,
    incarnation: IncarnationFile,
    key_source: KeySource,
    /// Keys of clients that are not the one that was given.
    keys_refused: u64,
    linger: Duration,
    stay: Stay,
    /// What whoever started us says, where we stay for it.
    parent_pipe: ParentPipe,
    exit_merge: ExitMerge,
    attached: BTreeSet<u32>,
    launchers: BTreeMap<u32, OwnedFd>,
    size: JobSize,
    /// How many members were known who are gone.
    gone: usize,
    /// Launchers beyond [`LAUNCHERS_MAX`], or gone when we looked: their end is not waited for.
    launchers_not_followed: u64,
    /// Ranks of which the kernel's word counts, or another node's, and not the launcher's.
    launcher_overruled: u64,
    without_launcher: bool,
    had_clients: bool,
    idle_since_ns: u64,
    /// Processes have come or gone since the loop last asked which there are.
    has_moved: bool,
    /// It is not told before this time.
    moved_due_ns: Option<u64>,
    /// Taken from whoever started us, and from the watch, and not looked at yet.
    ends: VecDeque<End>,
    notices: VecDeque<RankNotice>,
}

impl RankService {
    /// Takes up the service, from the beginning or where a worker before us stopped.
    pub(super) fn start(
        table: &TableWriter,
        listener: Listener,
        mut resume: Resume,
        record: Record,
        place: &AgentDirectory,
        config: &AgentConfig,
        engine: &Engine,
    ) -> io::Result<Self> {
        worker::keep(&mut resume, &record);
        let table = TableWriter::adopt(table);
        let watch = Watch::adopt(&table.view())?;
        let mut ipc = IpcServer::new(listener, place)?;
        ipc.set_address(&record.rails);
        let publisher = Publisher::adopt(&table);
        let attached = attached_slots(&table);
        let mut job = Self {
            publisher,
            rank_map: RankMap::default(),
            had_clients: had_clients(&table),
            attached,
            table,
            ipc,
            watched: BTreeMap::new(),
            watch,
            resume,
            record,
            incarnation: IncarnationFile::new(place.incarnation()),
            key_source: config.key.clone(),
            keys_refused: 0,
            linger: config.linger,
            stay: config.stay,
            parent_pipe: ParentPipe::default(),
            exit_merge: ExitMerge::default(),
            launchers: BTreeMap::new(),
            size: JobSize::default(),
            gone: 0,
            launchers_not_followed: 0,
            launcher_overruled: 0,
            // Without a launcher's job there is nobody whose end could be waited for.
            without_launcher: place.is_solo(),
            idle_since_ns: monotonic_ns(),
            has_moved: true,
            moved_due_ns: None,
            ends: VecDeque::new(),
            notices: VecDeque::new(),
        };
        job.introduce_self(config, engine);
        Ok(job)
    }

    /// This node stands on its own board from the beginning.
    /// A participant of age gossip is called as the list has it.
    fn introduce_self(&mut self, config: &AgentConfig, engine: &Engine) {
        let id = engine.id();
        let name = engine.name_of(id).unwrap_or(config.name.as_str());
        let own = self.publisher.index(&mut self.table, id, name);
        self.table.set_own_node(own);
        self.table.set_node_group(own, config.group.as_str());
        // That it is degraded no more is an event, see `correct`.
        if self.table.view().node_state(own) != muster_shm::NodeState::Degraded {
            self.table.set_node_state(own, muster_shm::NodeState::Alive);
        }
    }

    /// What the loop has to wait for.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.ipc.descriptor(), self.watch.descriptor()]
    }

    /// The same of whoever started us, where we stay for it.
    pub(super) fn parent_pipe_due(&mut self, epoll: &Epoll, token: u64) {
        if self.stay == Stay::WithInput {
            self.parent_pipe.hear_by(epoll, token);
        }
    }

    /// Whether it has to be served though nothing is ready.
    pub(super) fn is_due(&self) -> bool {
        self.parent_pipe.has_more()
            || self.is_left()
            || self.ipc.due().is_some_and(|due| due <= Instant::now())
    }

    /// When that will be the case at the latest, and when the ranks' processors are to be looked at again.
    pub(super) fn due_us(&self) -> Option<u64> {
        let ipc = self.ipc.due().map(|due| {
            let left = due.saturating_duration_since(Instant::now());
            monotonic_ns() / 1000 + left.as_micros() as u64 + 1
        });
        let moved = self.moved_due_ns.filter(|_| self.has_moved);
        let moved = moved.map(|due_ns| due_ns / 1000 + 1);
        [ipc, moved].into_iter().flatten().min()
    }

    /// Whether something was taken in that has not been looked at.
    fn is_left(&self) -> bool {
        !self.ends.is_empty() || !self.notices.is_empty()
    }

    /// Turns requests and findings into inputs of the protocol, as far as there is time; says whether there
    /// may be more. While the loop rests from what was too much, nobody but the kernel is heard.
    pub(super) fn serve(
        &mut self,
        slice: &Slice,
        is_resting: bool,
        input: &mut dyn FnMut(Input<'_>),
    ) -> io::Result<bool> {
        let (mut requests, half) = (Vec::new(), slice.half());
        let mut more = !is_resting;
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
        // Before the kernel's notices: a place on the board is given up with these.
        if self.stay == Stay::WithInput && self.ends.is_empty() {
            self.ends.extend(self.parent_pipe.hear());
        }
        while let Some(end) = self.ends.pop_front() {
            self.hear_starter(end, input);
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
        Ok(more || self.is_left())
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
                self.has_moved = true;
                self.had_clients = true;
                if ulfm {
                    self.feed(input);
                }
                self.hear_job_size(job_size, rank.map_or(0, |rank| rank + 1));
                self.remember_launcher(pid);
                self.provide_key(slot, rank, input);
            }
            Request::Armed { slot } => {
                let facts = self.table.view().slot(slot).map(|slot| slot.facts());
                if let Some(rank) = facts.and_then(|facts| facts.rank) {
                    tell_rank(input, rank, RankState::Alive, Cause::Joined, 0);
                }
            }
            Request::Seed { address, .. } => input(Input::Seed {
                address: address.as_bytes(),
            }),
            Request::Key { key, .. } => match brought(&self.key_source, self.known_key(), &key) {
                Brought::First => self.set_key(key, false, input),
                Brought::Known => {}
                Brought::Other => {
                    self.keys_refused += 1;
                    warn!(
                        "a client brought another key than the key file's; the file's stays in force"
                    );
                }
            },
            Request::Aborted {
                rank,
                how,
                job_size,
            } => {
                self.hear_job_size(job_size, 0);
                self.hear_launcher(rank, how, input);
            }
            Request::Placed { node, ranks } => self.rank_map.note(node, &ranks),
            Request::Feeds => self.feed(input),
            // The watch sees the mark on the board and speaks the verdict.
            Request::Leaving { slot, .. } => self.watch.inspect(slot),
            Request::HungUp { slot, .. } => info!(slot, "a connection ended"),
            Request::Withdrawn { slot } => {
                info!(slot, "a process gave up before it was attached");
                self.forget_client(slot);
            }
        }
    }

    /// MPI of this node's ranks is told of failures. It cannot take a death back, so this node must not come back
    /// from one.
    fn feed(&mut self, input: &mut dyn FnMut(Input<'_>)) {
        self.incarnation.matters();
        input(Input::Policy(Policy::Stop));
    }

    /// A client says how many ranks the job has; it knows of one less than `seen` itself.
    fn hear_job_size(&mut self, said: u32, seen: u32) {
        let view = self.table.view();
        let (seen, room) = (seen.max(view.rank_count()), view.limits().ranks);
        match self.size.hear(said, seen, room) {
            Said::Known => {}
            Said::First => {
                self.table.raise_rank_count(said);
                self.ipc.set_job_size(said);
            }
            Said::Refused { is_told: false } => {}
            Said::Refused { is_told: true } => warn!(
                said,
                known = self.size.known(),
                seen,
                room,
                "a client says that the job has another number of ranks than is known, or can be; it is not \
                 believed: give every rank the same number, or none"
            ),
        }
    }

    /// The launcher says that a rank of this node ended badly. Of one that was attached here, or is known on
    /// another node, that node's kernel says more, and sooner; the word counts for those that it cannot
    /// speak of: ranks that never attached.
    fn hear_launcher(&mut self, rank: u32, how: i32, input: &mut dyn FnMut(Input<'_>)) {
        if !self.size.has(rank) {
            if self.size.ranks_refused.is_power_of_two() {
                let size = self.size.known();
                warn!(
                    rank,
                    size, "a client says that a rank ended that the job does not have"
                );
            }
            return;
        }
        if self.table.view().rank_node(rank).is_some() {
            self.launcher_overruled += 1;
            return;
        }
        info!(rank, how, "the launcher says that it ended badly");
        self.table.raise_rank_count(rank + 1);
        tell_rank(input, rank, RankState::Failed, Cause::Told, how);
    }

    /// Whoever started us says how a task of this node has ended.
    fn hear_starter(&mut self, end: End, input: &mut dyn FnMut(Input<'_>)) {
        let view = self.table.view();
        let slots = (0..view.limits().slots).map_while(|slot| Some(view.slot(slot)?.facts()));
        let (attached, gone): (Vec<_>, Vec<_>) =
            slots.partition(|facts| facts.occupancy == Occupancy::Taken);
        // A process may be another rank than its number as a task, also where the kernel has told of its end and its
        // place is free.
        let mut all = attached.iter().chain(&gone);
        let own = all.find(|facts| facts.pid == end.pid);
        let rank = own.and_then(|facts| facts.rank).unwrap_or(end.rank);
        let standing = if attached.iter().any(|facts| facts.rank == Some(rank)) {
            ParentState::Attached
        } else if rank >= view.limits().ranks || view.rank_node(rank).is_some() {
            ParentState::Stated(view.rank_state(rank))
        } else {
            ParentState::Unknown
        };
        let Some((state, cause)) = self.exit_merge.of_parent(rank, standing, end.how) else {
            // That a process has ended as its node has said already contradicts nobody.
            let others = [muster_shm::RankState::Alive, muster_shm::RankState::Left];
            if end.how != 0
                && matches!(standing, ParentState::Stated(state) if others.contains(&state))
            {
                self.launcher_overruled += 1;
            }
            return;
        };
        info!(rank, how = end.how, "whoever started us says how it ended");
        self.table.raise_rank_count(rank + 1);
        tell_rank(input, rank, state, cause, end.how);
        // Those who hear of it from us do so before we leave.
        self.idle_since_ns = monotonic_ns();
    }

    /// The first rank of a job, or a process without one, makes the agent draw the key.
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
            warn!("the key cannot be handed to rank 0; the other nodes wait for it");
        }
    }

    /// The key, and whether it was drawn here.
    fn known_key(&self) -> Option<([u8; 32], bool)> {
        self.record.key.map(|key| (key, self.record.key_is_drawn))
    }

    fn set_key(&mut self, key: [u8; 32], is_drawn: bool, input: &mut dyn FnMut(Input<'_>)) {
        self.record.key = Some(key);
        self.record.key_is_drawn = is_drawn;
        worker::keep(&mut self.resume, &self.record);
        input(Input::Key(key));
    }

    fn serve_notice(&mut self, notice: &RankNotice, input: &mut dyn FnMut(Input<'_>)) {
        info!(slot = notice.slot, rank = ?notice.rank, finding = ?notice.finding, "kernel says");
        let (is_latest, is_rank_elsewhere) = standing(&self.table.view(), notice);
        if let Some(rank) = notice.rank.filter(|_| !is_rank_elsewhere)
            && let Some((state, cause, argument)) = describe(notice.finding)
        {
            let argument = match state {
                RankState::Failed => self.exit_merge.of_kernel(rank, cause, argument),
                _ => argument,
            };
            tell_rank(input, rank, state, cause, argument);
        }
        self.ipc.settle(notice, &mut self.table, &self.watch);
        if notice.finding.is_final() && is_latest {
            self.forget_client(notice.slot);
        }
    }

    fn forget_client(&mut self, slot: u32) {
        self.forget_watcher(slot);
        self.attached.remove(&slot);
        self.has_moved = true;
        if self.attached.is_empty() {
            self.idle_since_ns = monotonic_ns();
        }
    }

    /// Writes an event on the board. True if there is news for the ranks.
    pub(super) fn tell(&mut self, engine: &Engine, event: &Event) -> bool {
        if event.kind == EventKind::NodeUp {
            self.rank_map.look_again();
        }
        match event.kind {
            EventKind::AttributeChanged { key, .. } => self.tell_attribute(engine, event, key),
            _ => self.publisher.tell(&mut self.table, engine, event),
        }
    }

    /// Whether ranks know of this end; then it says no more than how.
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

    /// Before the events that have come with it: who was gone before we came is on the board, too.
    pub(super) fn note_gone(&mut self, engine: &Engine) {
        let gone = engine.gone();
        if std::mem::replace(&mut self.gone, gone) != gone {
            self.publisher.note_gone(&mut self.table, engine);
        }
    }

    /// Writes on the board where ranks run of which the engine does not tell it.
    pub(super) fn place_ranks(&mut self, engine: &Engine) {
        let table = self.table.view();
        let has_place = |rank| table.rank_node(rank).is_some();
        let known = |id| self.publisher.known(id);
        let placed = self.rank_map.take(engine, known, has_place);
        if rank_map::write(&mut self.table, &placed) {
            self.ipc.wake_up();
        }
    }

    /// Writes on the board that an attribute changed.
    pub(super) fn publish_attribute(
        &mut self,
        engine: &Engine,
        event: &Event,
        key_hash: u64,
    ) -> bool {
        self.publisher
            .tell_attribute(&mut self.table, engine, event, key_hash);
        true
    }

    /// When ranks of this node noted their last message from, or to, a member; 0 for never.
    pub(super) fn traffic_ns(&self, id: MemberId, way: TrafficStamp) -> Option<u64> {
        let node = self.publisher.known(id)?;
        Some(self.table.view().traffic_ns(node, way))
    }

    /// When a rank last looked for a beat to carry to a member; 0 for never.
    pub(super) fn piggyback_wanted_ns(&self, id: MemberId) -> u64 {
        let node = self.publisher.known(id);
        node.map_or(0, |node| self.table.view().piggyback_wanted_ns(node))
    }

    /// Lays out a beat for a member, for ranks to carry there.
    pub(super) fn offer_piggyback(&mut self, id: MemberId, bytes: &[u8]) -> bool {
        let node = self.publisher.known(id);
        node.is_some_and(|node| self.table.offer_piggyback(node, bytes))
    }

    /// Takes it away again. Whether a rank had taken it.
    pub(super) fn withdraw_piggyback(&mut self, id: MemberId) -> bool {
        let node = self.publisher.known(id);
        node.is_some_and(|node| self.table.withdraw_piggyback(node))
    }

    /// What a message from a member's node has brought, and when.
    pub(super) fn collect_piggyback(
        &mut self,
        id: MemberId,
        bytes: &mut [u8; PIGGYBACK_MAX],
    ) -> Option<(usize, u64)> {
        self.table
            .collect_piggyback(self.publisher.known(id)?, bytes)
    }

    /// Those of whom the board says that they are there.
    pub(super) fn present(&self) -> impl Iterator<Item = MemberId> {
        self.publisher.present(self.table.view())
    }

    /// The board, for reading.
    pub(super) fn table(&self) -> TableView {
        self.table.view()
    }

    /// The name of the node with this index on the board.
    pub(super) fn node_name(&self, node: u32) -> Option<String> {
        self.table.view().node_name(node)
    }

    /// What was lost or refused on the ranks' side, by name.
    pub(super) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let own = [
            ("nodes_without_room", self.publisher.without_room),
            ("launchers_not_followed", self.launchers_not_followed),
            ("keys_refused", self.keys_refused),
            ("launcher_overruled", self.launcher_overruled),
            ("job_sizes_refused", self.size.sizes_refused),
            ("ranks_refused", self.size.ranks_refused),
            ("input_not_understood", self.parent_pipe.not_understood),
            ("piggyback_lost", self.table.view().piggybacks_lost()),
            ("places_dropped", self.rank_map.dropped),
        ];
        let others = self.ipc.counters().each().into_iter();
        own.into_iter().chain(others).chain(self.watch.counters())
    }

    /// Wakes the ranks: there is something on the board.
    pub(super) fn wake_up(&mut self) {
        self.ipc.wake_up();
    }

    /// Goes on with that where there are many, as far as there is time; says whether there are more.
    pub(super) fn wake_up_on(&mut self, slice: &Slice) -> bool {
        while self.ipc.wake_up_on(Instant::now()) {
            if slice.is_over() {
                return true;
            }
        }
        false
    }

    /// Keeps what a later worker needs.
    pub(super) fn keep(&mut self, engine: &Engine) {
        self.record.engine.clear();
        engine.snapshot(&mut self.record.engine);
        worker::keep(&mut self.resume, &self.record);
    }

    /// Keeps the participants that others have told, so that a later worker asks nobody.
    pub(super) fn keep_participants(&mut self, participants: String) {
        self.record.participants = participants;
        worker::keep(&mut self.resume, &self.record);
    }

    /// The processes that are attached, if some have come or gone since this was last asked. Of many that come
    /// one after the other it is said seldom: each is looked at every time.
    pub(super) fn moved(&mut self) -> Option<Vec<u32>> {
        let now_ns = monotonic_ns();
        if !self.has_moved || self.moved_due_ns.is_some_and(|due_ns| now_ns < due_ns) {
            return None;
        }
        self.has_moved = false;
        let pause_ns = self.attached.len() as u64 * MOVED_PAUSE_NS;
        self.moved_due_ns = Some(now_ns + pause_ns);
        let view = self.table.view();
        let pid = |slot: &u32| Some(view.slot(*slot)?.facts().pid);
        Some(self.attached.iter().filter_map(pid).collect())
    }

    /// The node's rails are others: who comes is told, and a later worker opens them.
    pub(super) fn set_rails(&mut self, address: &str, document: &RailsDocument, open: &[Nid]) {
        self.ipc.set_address(address);
        self.record.set_rails(address, document, open);
        worker::keep(&mut self.resume, &self.record);
    }

    /// Leaves the number of this node's life for an agent that comes in our place, if that has to know it.
    pub(super) fn keep_incarnation(&mut self, engine: &Engine) {
        if engine.age().is_none() {
            self.incarnation.keep(engine.version().incarnation);
        }
    }

    /// Whether a client has ever come.
    pub(super) fn had_clients(&self) -> bool {
        self.had_clients
    }

    /// Whether the last client has gone, its launcher too, and the linger time is over.
    pub(super) fn is_over(&self) -> bool {
        if !self.attached.is_empty() || self.stay == Stay::UntilAsked {
            return false;
        }
        let idle = Duration::from_nanos(monotonic_ns().saturating_sub(self.idle_since_ns));
        if self.stay == Stay::WithInput {
            // What the last client's end was is told before we leave.
            return idle > self.linger.min(LEAVE_AFTER) && self.parent_pipe.has_ended();
        }
        if !self.had_clients {
            return idle > FIRST_CLIENT_DEADLINE;
        }
        let launchers_gone = self.without_launcher || self.launchers.values().all(has_ended);
        idle > if launchers_gone {
            self.linger
        } else {
            self.linger * LAUNCHER_LINGERS
        }
    }

    /// The agent is about to end: who came now would be hung up on with its questions unanswered.
    pub(super) fn shut(&mut self) {
        self.ipc.shut();
    }

    /// A rank's parent is its launcher; while it lives more ranks may come.
    fn remember_launcher(&mut self, pid: u32) {
        // An orphan's parent is init, which launches nothing and never ends.
        let Some(launcher) = crate::watch::procfs::parent(pid).filter(|parent| *parent > 1) else {
            return;
        };
        if self.launchers.contains_key(&launcher) {
            return;
        }
        match open_pidfd(launcher) {
            Ok(pidfd) if self.launchers.len() < LAUNCHERS_MAX => {
                self.launchers.insert(launcher, pidfd);
            }
            _ => self.launchers_not_followed += 1,
        }
    }

    /// Ends the service: the socket goes, so that whoever comes next starts a new agent. Those who
    /// are attached start none if we were asked to end, and nobody does if a new one could not
    /// serve either.
    pub(super) fn close(self, ending: &Ending, name: &str) {
        match ending {
            // The next worker has the socket.
            Ending::Renewed => {}
            Ending::InOrder => self.ipc.close(),
            Ending::Asked => self.ipc.close_on_purpose(
                "it was asked to end (SIGTERM or SIGINT); whoever ended it may start it again",
            ),
            Ending::NameTaken => self.ipc.close_for(&format!(
                "another living member of this job is named {name}; give every node a name of \
                 its own (MUSTER_NODE)"
            )),
        }
    }

    /// Corrects what a worker before us had written of members.
    pub(super) fn correct(&mut self, engine: &Engine) {
        if self
            .publisher
            .correct(&mut self.table, engine, monotonic_ns())
        {
            self.ipc.wake_up();
        }
    }

    /// States what a worker before us had noted on the board and not in what it left us: the ends
    /// of ranks whose slots it had taken back already. Age gossip leaves nothing: there the board alone says
    /// who was here.
    pub(super) fn catch_up(&self, engine: &Engine) -> Vec<Told<'static>> {
        let view = self.table.view();
        let slots: Vec<_> = (0..view.limits().slots)
            .map_while(|slot| view.slot(slot))
            .collect();
        let is_attached = |rank: u32| {
            slots
                .iter()
                .map(|slot| slot.facts())
                .any(|facts| facts.rank == Some(rank) && facts.occupancy == Occupancy::Taken)
        };
        let mut ends = Vec::new();
        for rank in ranks_here(&view, engine) {
            if is_attached(rank) {
                continue;
            }
            // The slot keeps the leave mark until somebody else gets it.
            let mut left = slots.iter().filter(|slot| slot.facts().rank == Some(rank));
            let (state, cause, code) = match left.find(|slot| slot.leave().0 != Leave::No) {
                Some(slot) => (RankState::Left, Cause::Announced, slot.leave().1),
                None if view.rank_state(rank) == muster_shm::RankState::Left => {
                    (RankState::Left, Cause::Announced, 0)
                }
                None => (RankState::Failed, Cause::Pidfd, 0),
            };
            info!(rank, ?state, "the worker before us had seen its end");
            ends.push(about_rank(rank, state, cause, code));
        }
        ends
    }
}

/// The ranks that were on this node for the worker before us and of whose ends we do not know: as it stated, or as the
/// board has it. What it told in its last moments is on the board alone; of age gossip nothing is left besides.
fn ranks_here(view: &TableView, engine: &Engine) -> BTreeSet<u32> {
    let is_here = |state| matches!(state, RankState::Alive | RankState::Hung);
    let own = engine.member(engine.id());
    let (mut ranks, mut ended) = (BTreeSet::new(), BTreeSet::new());
    for fact in own.iter().flat_map(|own| own.ranks()) {
        let set = if is_here(fact.state) {
            &mut ranks
        } else {
            &mut ended
        };
        set.insert(fact.rank);
    }
    let own = view.own_node();
    let of_this_node = |rank: &u32| own.is_some() && view.rank_node(*rank) == own;
    let written = (0..view.rank_count()).filter(|rank| {
        let is_unknown = match view.rank_state(*rank) {
            muster_shm::RankState::Alive | muster_shm::RankState::Hung => engine.age().is_some(),
            muster_shm::RankState::Left | muster_shm::RankState::Failed => {
                engine.age().is_none() && !ended.contains(rank)
            }
            muster_shm::RankState::Unknown => false,
        };
        is_unknown && of_this_node(rank)
    });
    ranks.extend(written);
    ranks
}

/// Where the process of a notice stands by now, as the notice may be late: whether its slot was not given
/// to another since, and whether its rank is another process's.
fn standing(view: &TableView, notice: &RankNotice) -> (bool, bool) {
    let slots = (0..view.limits().slots).map_while(|slot| Some((slot, view.slot(slot)?.facts())));
    let (mut is_latest, mut is_rank_elsewhere) = (true, false);
    for (slot, facts) in slots.filter(|(_, facts)| facts.occupancy == Occupancy::Taken) {
        let is_it = (slot, facts.generation) == (notice.slot, notice.generation);
        is_latest &= is_it || slot != notice.slot;
        is_rank_elsewhere |= !is_it && facts.rank.is_some() && facts.rank == notice.rank;
    }
    (is_latest, is_rank_elsewhere)
}

fn attached_slots(table: &TableWriter) -> BTreeSet<u32> {
    let view = table.view();
    let taken = |slot: &u32| {
        view.slot(*slot)
            .is_some_and(|slot| slot.facts().occupancy == Occupancy::Taken)
    };
    (0..view.limits().slots).filter(taken).collect()
}

/// Whether anybody has ever been let in, by us or by a worker before us.
fn had_clients(table: &TableWriter) -> bool {
    let view = table.view();
    let mut slots = (0..view.limits().slots).map_while(|slot| view.slot(slot));
    slots.any(|slot| slot.facts().generation > 0)
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    readable(&[pidfd.as_fd()], Some(Duration::ZERO)).is_ok_and(|ready| ready[0])
}

#[cfg(test)]
#[path = "rank_service_tests.rs"]
mod tests;
