//! The ipc server: attaches the processes of this node, and carries short messages between them and the agent.
//!
//! It serves one job on one node. It checks user, job and rank of each process, gives it a slot in the state table,
//! and from then on only passes short messages. States and events are not sent through it: they are in the state
//! table, and a wake-up tells a client to read it.
//!
//! It never blocks: a message that does not fit into a client's full socket is dropped and counted. A dropped wake-up
//! is no loss, because one is waiting there already. A client that closes its connection has *not* failed; only the
//! process watch determines that. A connection without an `Attach` in time is closed; the client may connect again.
//!
//! ```text
//! client                                   agent
//! Attach + eventfd     ------------------>   checks user, pid, key; gives a slot
//!                      <------------------   Attached + state table, or Refused
//! (holds its futex) Armed ---------------->   waits for the futex
//! Seed, Key            ------------------>
//! Ask + socket         ------------------>   answers through that socket
//!                      <------------------   WakeUp, Address, KeyForPublication
//! (states that it leaves, releases) Leaving -->
//!                      <------------------   Detach
//! ```

mod request;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::watch::{Finding, RankNotice, Watch};
use muster_shm::{Claim, ClaimError, Hold, Occupancy, TableWriter};
use muster_sys::descriptor::EventFd;
use muster_sys::poll::{Epoll, Ready};
use muster_sys::process;
use muster_sys::procfs;
use muster_sys::socket::{Packets, Peer, Received};
use rustix::io::Errno;

use muster_ipc::{
    ADDRESS_MAX, AgentDirectory, Attach, Attached, DecodeError, Held, Listener, MESSAGE_MAX,
    RefusalCode, ToAgent, ToClient,
};
pub use request::{IpcCounters, Request};

/// The epoll token of the listening socket; connections count from 1.
const LISTENER: u64 = 0;
/// Connections beyond the number of slots: those without an `Attach` so far.
const UNATTACHED_MAX: usize = 64;
/// Limits of one call of [`IpcServer::serve`]: connections served, connections accepted, messages read from each, and
/// connections closed because they sent nothing in time.
const READY_AT_ONCE: usize = 8;
const ACCEPTS_AT_ONCE: usize = 8;
const MESSAGES_AT_ONCE: usize = 4;
const CLOSED_AT_ONCE: usize = 8;
/// How long the listening socket is not polled after a connection was turned away. It stays readable, so a client
/// that connects again at once would otherwise keep the loop busy.
const FULL_PAUSE: Duration = Duration::from_millis(50);
/// Clients that one call of [`IpcServer::wake_up`] or [`IpcServer::wake_up_on`] wakes.
const WAKE_UPS_AT_ONCE: usize = 64;
/// With more clients than that, a round of wake-ups starts at most once in this time multiplied by the number of
/// clients. Otherwise the cost of waking all clients for every new client would grow with the square of their number.
const WAKE_UP_PAUSE: Duration = Duration::from_micros(10);
/// How long a connection may stay without an `Attach`.
pub const ATTACH_DEADLINE: Duration = Duration::from_secs(5);
/// Queries that wait for the agent. A client beyond this limit sees its query's connection close and asks again.
const ASKS_MAX: usize = 256;

/// The agent's end of all its clients' sockets.
#[derive(Debug)]
pub struct IpcServer {
    listener: Listener,
    key: String,
    epoll: Epoll,
    connections: BTreeMap<u64, Connection>,
    next_token: u64,
    /// The time of accept of each connection without an `Attach`, in order of arrival.
    unattached: BTreeMap<u64, Instant>,
    address: String,
    /// The number of ranks of the job, 0 if it is not known.
    job_size: u32,
    /// No more clients are admitted.
    is_shut: bool,
    /// A descriptor that is closed to accept a connection when no other is left.
    spare: Option<EventFd>,
    counters: IpcCounters,
    /// Each with the slot of the client.
    asks: VecDeque<(u32, Packets)>,
    /// Until then the listening socket is not polled.
    full_until: Option<Instant>,
    wake_ups: WakeUps,
}

/// The progress of the wake-ups.
#[derive(Debug, Default)]
struct WakeUps {
    /// Counts the calls of [`IpcServer::wake_up`].
    news: u64,
    /// The round in progress: the next client's token, and the count that it is for.
    round: Option<(u64, u64)>,
    /// The count for which all clients were woken.
    done: u64,
    /// No new round starts before this time.
    not_before: Option<Instant>,
}

#[derive(Debug)]
struct Connection {
    socket: Packets,
    peer: Peer,
    slot: Option<(u32, u32)>,
    rank: Option<u32>,
    event: Option<EventFd>,
    wants_wake_up: bool,
}

/// What a call of [`IpcServer::serve`] works on.
struct Served<'a> {
    table: &'a mut TableWriter,
    watch: &'a Watch,
    requests: &'a mut Vec<Request>,
}

impl IpcServer {
    /// Starts to serve a listener.
    pub fn new(listener: Listener, directory: &AgentDirectory) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(listener.listener(), LISTENER)?;
        Ok(Self {
            listener,
            key: directory.key().to_owned(),
            epoll,
            connections: BTreeMap::new(),
            next_token: 1,
            unattached: BTreeMap::new(),
            address: String::new(),
            job_size: 0,
            is_shut: false,
            spare: Some(EventFd::new()?),
            counters: IpcCounters::default(),
            asks: VecDeque::new(),
            full_until: None,
            wake_ups: WakeUps::default(),
        })
    }

    /// Readable when there is something to serve: one descriptor for the listener and all clients (an epoll within
    /// the caller's epoll; add it level-triggered).
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Number of clients that are connected and attached.
    pub fn client_count(&self) -> usize {
        self.connections
            .values()
            .filter(|connection| connection.slot.is_some())
            .count()
    }

    /// The counters.
    pub fn counters(&self) -> IpcCounters {
        self.counters
    }

    /// From now on, ranks with this number or a higher one are refused.
    pub fn set_job_size(&mut self, job_size: u32) {
        self.job_size = job_size;
    }

    /// Whether a connection has been without an `Attach` for too long: then [`Self::serve`] has to be called, though
    /// no descriptor is ready.
    pub fn is_attach_overdue(&self, now: Instant) -> bool {
        let first = self.unattached.first_key_value();
        first.is_some_and(|(_, since)| now.saturating_duration_since(*since) >= ATTACH_DEADLINE)
    }

    /// When [`Self::serve`] or [`Self::wake_up_on`] has to be called though no descriptor is ready.
    pub fn due(&self) -> Option<Instant> {
        let first = self.unattached.first_key_value();
        let overdue = first.map(|(_, since)| *since + ATTACH_DEADLINE);
        let waiting = self.wake_ups.news != self.wake_ups.done;
        let wake_up = self.wake_ups.not_before.filter(|_| waiting);
        [overdue, self.full_until, wake_up]
            .into_iter()
            .flatten()
            .min()
    }

    /// Serves some of the clients that are ready, at most a fixed number of connections and messages. Returns whether
    /// there may be more. Requests to the agent are added to `requests`; slots and watching are handled here. Never
    /// blocks.
    pub fn serve(
        &mut self,
        now: Instant,
        table: &mut TableWriter,
        watch: &Watch,
        requests: &mut Vec<Request>,
    ) -> io::Result<bool> {
        if self.full_until.is_some_and(|until| until <= now) {
            self.epoll.add(self.listener.listener(), LISTENER)?;
            self.full_until = None;
        }
        let mut ready: Vec<Ready> = Vec::new();
        self.epoll
            .wait_for(READY_AT_ONCE, &mut ready, Some(Duration::ZERO))?;
        let mut more = !ready.is_empty();
        let on = &mut Served {
            table,
            watch,
            requests,
        };
        for ready in ready {
            if ready.token == LISTENER {
                self.accept(now, on)?;
            } else {
                self.receive(ready.token, on);
            }
        }
        for _ in 0..CLOSED_AT_ONCE {
            let Some((&token, _)) = self.unattached.first_key_value() else {
                break;
            };
            if !self.is_attach_overdue(now) {
                break;
            }
            // The client may have sent it in time, and the agent be late.
            self.receive(token, on);
            if self.unattached.contains_key(&token) {
                self.counters.silent += 1;
                self.drop_connection(token);
            }
        }
        more |= self.is_attach_overdue(now);
        Ok(more)
    }

    /// The oldest query that waits, with its client's slot and the socket: the query is in it, and the answer is sent
    /// the same way. A client whose socket is dropped is answered by that, too.
    pub fn take_ask(&mut self) -> Option<(u32, Packets)> {
        self.asks.pop_front()
    }

    /// Whether a query waits.
    pub fn has_asks(&self) -> bool {
        !self.asks.is_empty()
    }

    /// Sends the agent's NID list to all clients, now and when they attach. Returns `false` and changes nothing for
    /// texts above [`ADDRESS_MAX`] bytes.
    pub fn set_address(&mut self, address: &str) -> bool {
        if address.len() > ADDRESS_MAX {
            return false;
        }
        if self.address != address {
            self.address = address.to_owned();
            let message = ToClient::Address(address.to_owned());
            let clients: Vec<u64> = self.attached_clients().collect();
            clients
                .into_iter()
                .for_each(|token| self.send(token, &message));
        }
        true
    }

    /// Sends the key that this agent created to the client that publishes it. `false` if there is no such client now.
    pub fn send_key(&mut self, slot: u32, key: [u8; 32]) -> bool {
        let Some(token) = self.token_of(slot) else {
            return false;
        };
        self.send(token, &ToClient::KeyForPublication(key));
        true
    }

    /// Tells all clients that the state table has changed: raises the application's eventfd, and sends a wake-up to
    /// the library threads that want it. With many clients it wakes only the first ones; [`Self::wake_up_on`] wakes
    /// the others.
    pub fn wake_up(&mut self) {
        self.wake_ups.news += 1;
        self.wake_up_on(Instant::now());
    }

    /// Continues with the wake-ups, a bounded number of clients. Returns whether there may be more to wake now.
    pub fn wake_up_on(&mut self, now: Instant) -> bool {
        let wake_ups = &mut self.wake_ups;
        let (from, news) = match wake_ups.round {
            Some(round) => round,
            None if wake_ups.news == wake_ups.done => return false,
            None if wake_ups.not_before.is_some_and(|at| now < at) => return false,
            None => {
                let count = self.connections.len();
                let pause = WAKE_UP_PAUSE * u32::try_from(count).unwrap_or(u32::MAX);
                wake_ups.not_before = (count > WAKE_UPS_AT_ONCE).then(|| now + pause);
                (0, wake_ups.news)
            }
        };
        let wake_up = ToClient::WakeUp.encode();
        let mut rest = self.connections.range(from..);
        for (_, connection) in rest.by_ref().take(WAKE_UPS_AT_ONCE) {
            if let Some(event) = &connection.event {
                event.raise_shared();
            }
            if connection.wants_wake_up && connection.socket.send(&wake_up, None).is_err() {
                self.counters.wake_ups_dropped += 1;
            }
        }
        wake_ups.round = rest.next().map(|(token, _)| (*token, news));
        if wake_ups.round.is_none() {
            wake_ups.done = news;
        }
        wake_ups.round.is_some()
    }

    /// Cleans up after a finding of the watch was reported: after a final one, the client's connection is closed and
    /// its slot is free for another process.
    pub fn settle(&mut self, notice: &RankNotice, table: &mut TableWriter, watch: &Watch) {
        let facts = table.view().slot(notice.slot).map(|slot| slot.facts());
        let current = facts.is_some_and(|facts| facts.generation == notice.generation);
        if !notice.finding.is_final() || !current {
            return;
        }
        if let Some(token) = self.token_of(notice.slot) {
            if matches!(notice.finding, Finding::Left { .. }) {
                self.send(token, &ToClient::Detach);
            }
            self.drop_connection(token);
        }
        watch.forget(notice.slot);
        table.release_slot(notice.slot);
    }

    /// Admits no more clients, for an agent that is about to end: the connections of new and of waiting clients are
    /// closed, and they connect to the next agent.
    pub fn shut(&mut self) {
        self.is_shut = true;
        self.listener.unlink();
    }

    /// Ends the service and removes the socket. Clients see their connections close.
    pub fn close(self) {
        self.listener.close();
    }

    /// Ends the service on request: removes the socket, so that no client connects to this agent again, and refuses
    /// every client with the reason, so that none starts another agent for it.
    pub fn close_on_purpose(mut self, reason: &str) {
        self.listener.unlink();
        let refusal = ToClient::Refused(RefusalCode::Closing, reason.to_owned());
        let clients: Vec<u64> = self.connections.keys().copied().collect();
        for token in clients {
            self.send(token, &refusal);
        }
    }

    /// Ends the service for good: refuses every client with the reason, and also the clients that connect within two
    /// seconds, so that none starts another agent that would fail in the same way.
    pub fn close_for(mut self, reason: &str) {
        let refusal = ToClient::Refused(RefusalCode::NoAgent, reason.to_owned());
        let clients: Vec<u64> = self.connections.keys().copied().collect();
        for token in clients {
            self.counters.refused += 1;
            self.send(token, &refusal);
        }
        // The connections stay open meanwhile, so that all clients receive the reason.
        self.listener.refuse_all(reason);
    }

    /// Accepts a bounded number of connections and reads what they have sent already: a client that sends its
    /// `Attach` at once is never among those that are closed because they sent nothing.
    fn accept(&mut self, now: Instant, on: &mut Served<'_>) -> io::Result<()> {
        let connections_max = on.table.view().limits().slots as usize + UNATTACHED_MAX;
        for _ in 0..ACCEPTS_AT_ONCE {
            let socket = match self.listener.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return Ok(()),
                Err(cause)
                    if matches!(
                        Errno::from_io_error(&cause),
                        Some(Errno::MFILE | Errno::NFILE)
                    ) =>
                {
                    self.pause_accepting(now);
                    if self.turn_away_one() {
                        continue;
                    }
                    // Another thread took the descriptor: waiting clients are accepted in the next round.
                    return Ok(());
                }
                Err(cause) => return Err(cause),
            };
            let Ok(peer) = socket.peer() else { continue };
            let token = self.next_token;
            self.next_token += 1;
            self.epoll.add(socket.as_fd(), token)?;
            let connection = Connection {
                socket,
                peer,
                slot: None,
                rank: None,
                event: None,
                wants_wake_up: false,
            };
            self.connections.insert(token, connection);
            self.unattached.insert(token, now);
            self.receive(token, on);
            if self.connections.len() > connections_max && self.unattached.contains_key(&token) {
                self.counters.turned_away += 1;
                self.drop_connection(token);
                self.pause_accepting(now);
            }
        }
        Ok(())
    }

    /// Accepts no connections for a while.
    fn pause_accepting(&mut self, now: Instant) {
        if self.full_until.is_none() {
            self.epoll.remove(self.listener.listener());
            self.full_until = Some(now + FULL_PAUSE);
        }
    }

    /// Accepts and closes one connection with the spare descriptor, because no other is left: the client sees its
    /// connection close and tries again later, and the agent does not spin. Returns whether a connection was
    /// accepted.
    fn turn_away_one(&mut self) -> bool {
        self.spare = None;
        let turned_away = matches!(self.listener.accept(), Ok(Some(_)));
        self.counters.turned_away += u64::from(turned_away);
        self.spare = EventFd::new().ok();
        turned_away
    }

    /// Reads what a client sent, a bounded number of messages so that no client starves the others.
    fn receive(&mut self, token: u64, on: &mut Served<'_>) {
        let mut buffer = [0; MESSAGE_MAX];
        for _ in 0..MESSAGES_AT_ONCE {
            let Some(connection) = self.connections.get(&token) else {
                return;
            };
            match connection.socket.receive(&mut buffer) {
                Ok(Received::Nothing) => return,
                Ok(Received::Message(length, descriptors)) => {
                    let Some(bytes) = buffer.get(..length) else {
                        return;
                    };
                    self.handle(token, bytes, descriptors, on);
                }
                Ok(Received::HungUp) | Err(_) => {
                    if let Some((slot, generation)) = connection.slot {
                        let withdrawn = on.watch.forget_if_withdrawn(slot, generation);
                        on.requests.push(match withdrawn {
                            true => Request::Withdrawn { slot },
                            false => Request::HungUp { slot, generation },
                        });
                        if withdrawn {
                            on.table.release_slot(slot);
                        }
                    }
                    self.drop_connection(token);
                    return;
                }
            }
        }
    }

    fn handle(&mut self, token: u64, bytes: &[u8], descriptors: Vec<OwnedFd>, on: &mut Served<'_>) {
        let Some(connection) = self.connections.get(&token) else {
            return;
        };
        match (ToAgent::decode(bytes), connection.slot) {
            (Ok(ToAgent::Attach(_)), None) if self.is_shut => self.drop_connection(token),
            (Ok(ToAgent::Attach(attach_request)), None) => {
                let event = descriptors.into_iter().next().map(EventFd::from_untrusted);
                let admitted = match event.transpose() {
                    Ok(event) => self.admit(token, &attach_request, event, on),
                    Err(cause) => Err((
                        RefusalCode::Malformed,
                        format!(
                            "the descriptor that came with the attach request: {cause}; send an eventfd, or none"
                        ),
                    )),
                };
                match admitted {
                    Ok(request) => on.requests.push(request),
                    Err((code, reason)) => self.refuse(token, code, reason),
                }
            }
            (Ok(ToAgent::Armed), Some((slot, _))) => {
                if let Some(slot) = on.table.view().slot(slot) {
                    slot.set_armed();
                }
                // A futex that cannot be waited for is covered by the pidfd; the watch counts it.
                let _ = on.watch.arm(slot);
                on.requests.push(Request::Armed { slot });
            }
            (Ok(ToAgent::Seed(address)), Some((slot, _))) => {
                on.requests.push(Request::Seed { slot, address });
            }
            (Ok(ToAgent::Key(key)), Some((slot, _))) => {
                on.requests.push(Request::Key { slot, key });
            }
            (Ok(ToAgent::Aborted(rank, how, job_size)), Some(_)) => {
                on.requests.push(Request::Aborted {
                    rank,
                    how,
                    job_size,
                });
            }
            (Ok(ToAgent::Placed(node, ranks)), Some(_)) => {
                on.requests.push(Request::Placed { node, ranks });
            }
            (Ok(ToAgent::Feeds), Some(_)) => on.requests.push(Request::Feeds),
            (Ok(ToAgent::Ask), Some((slot, _))) => {
                let socket = descriptors.into_iter().next();
                let socket = socket.and_then(|fd| Packets::try_from(fd).ok());
                match socket.filter(|_| self.asks.len() < ASKS_MAX) {
                    Some(socket) => self.asks.push_back((slot, socket)),
                    None => self.counters.asks_dropped += 1,
                }
            }
            (Ok(ToAgent::Leaving(_)), Some((slot, _))) => {
                self.send(token, &ToClient::Detach);
                // It finds the leave mark in the state table and reports the end.
                on.watch.inspect(slot);
            }
            (Err(cause @ DecodeError::Version { .. }), _) => {
                let reason = format!(
                    "the library has {cause}; use the musterd and the libmuster of one release \
                     (MUSTER_AGENT names the musterd), or end the running agent (process {})",
                    std::process::id()
                );
                self.refuse(token, RefusalCode::Version, reason);
            }
            (Ok(_) | Err(_), _) => {
                self.counters.malformed += 1;
                self.refuse(
                    token,
                    RefusalCode::Malformed,
                    "the agent does not expect this message now; use the libmuster of the agent's release".into(),
                );
            }
        }
    }

    /// Checks the process and gives it a slot.
    fn admit(
        &mut self,
        token: u64,
        attach_request: &Attach,
        event: Option<EventFd>,
        on: &mut Served<'_>,
    ) -> Result<Request, (RefusalCode, String)> {
        let Some(peer) = self
            .connections
            .get(&token)
            .map(|connection| connection.peer)
        else {
            return Err((RefusalCode::Malformed, "the connection is closed".into()));
        };
        let start_ticks = self.check(attach_request, peer)?;
        let hold = if attach_request.threadless {
            Hold::Mutex
        } else {
            Hold::Thread
        };
        let claim = Claim {
            pid: peer.pid,
            start_ticks,
            rank: attach_request.rank,
            hold,
        };
        let kept = attach_request
            .held
            .filter(|held| still_holds(held, &claim, on.table));
        let again = kept.is_some();
        let (slot, generation) = match kept {
            Some(held) => (held.slot, held.generation),
            None => {
                self.check_rank(attach_request.rank)?;
                let claimed = on
                    .table
                    .claim_slot(&claim, &procfs::is_alive)
                    .map_err(refusal)?;
                on.watch.follow(claimed.0);
                claimed
            }
        };
        // An earlier connection of the same slot is obsolete: an exec, or a client that attaches again.
        if let Some(old) = self.token_of(slot) {
            self.drop_connection(old);
        }
        let rank = on
            .table
            .view()
            .slot(slot)
            .and_then(|slot| slot.facts().rank);
        let publish = self.is_lowest(rank);
        let attached = Attached {
            slot,
            generation,
            mark: on.table.mark(slot),
            publish,
            address: self.address.clone(),
        };
        if let Some(connection) = self.connections.get_mut(&token) {
            self.unattached.remove(&token);
            connection.slot = Some((slot, generation));
            connection.rank = rank;
            connection.event = event;
            connection.wants_wake_up = attach_request.wants_wake_up;
            let bytes = ToClient::Attached(attached).encode();
            // A client that has closed its connection meanwhile is handled when that is read.
            let _ = connection.socket.send_with(&bytes, &on.table.descriptors());
        }
        self.counters.attached += 1;
        let (pid, job_size, ulfm) = (peer.pid, attach_request.job_size, attach_request.ulfm);
        Ok(Request::Attached {
            slot,
            generation,
            pid,
            rank,
            job_size,
            ulfm,
            again,
        })
    }

    /// Checks that the job has this rank, as far as its size is known.
    fn check_rank(&self, rank: Option<u32>) -> Result<(), (RefusalCode, String)> {
        let size = self.job_size;
        match rank.filter(|rank| size != 0 && *rank >= size) {
            None => Ok(()),
            Some(rank) => {
                let reason = format!(
                    "rank {rank} of a job of {size} ranks (0 to {}); a client that attached before stated this size; \
                     give every rank the same number of ranks, or none",
                    size - 1
                );
                Err((RefusalCode::RankTooLarge, reason))
            }
        }
    }

    /// Checks user, visibility and key; returns when the process started.
    fn check(&self, attach_request: &Attach, peer: Peer) -> Result<u64, (RefusalCode, String)> {
        let own = process::user_id();
        if peer.uid != own {
            let reason = format!(
                "user {} tries to attach to the agent of user {own}; run the rank and its agent as one user",
                peer.uid
            );
            return Err((RefusalCode::User, reason));
        }
        if peer.pid == 0 {
            let reason = format!(
                "process {} is in a pid namespace that is not visible to the agent, so the agent cannot watch it; \
                 start the agent outside the containers first (srun musterd, or a rank outside), or let \
                 them share one pid namespace",
                attach_request.pid
            );
            return Err((RefusalCode::Invisible, reason));
        }
        // In a namespace below the agent's, the process has another pid for itself; the kernel knows both.
        if peer.pid != attach_request.pid
            && procfs::innermost_pid(peer.pid) != Some(attach_request.pid)
        {
            let reason = format!(
                "process {} states that it is process {}, which is not its pid in its own pid namespace either; \
                 let every process connect for itself",
                peer.pid, attach_request.pid
            );
            return Err((RefusalCode::Invisible, reason));
        }
        if attach_request.key != self.key {
            let reason = format!(
                "a client of {:?} tries to attach to the agent of {:?}; set MUSTER_JOB, MUSTER_NODE and MUSTER_DIR \
                 to the same values for both",
                attach_request.key, self.key
            );
            return Err((RefusalCode::Job, reason));
        }
        procfs::start_ticks(peer.pid).map_err(|cause| {
            let remedy = match procfs::is_gone(&cause) {
                true => "mount /proc",
                false => "raise the agent's limit of open files (ulimit -n)",
            };
            let reason = format!(
                "/proc does not show process {}: {cause}; {remedy}",
                peer.pid
            );
            (RefusalCode::Invisible, reason)
        })
    }

    /// Whether no connected client has a lower rank. A client without a rank is never the lowest.
    fn is_lowest(&self, rank: Option<u32>) -> bool {
        let lower = |other: &Connection| other.rank.is_some() && other.rank < rank;
        rank.is_some() && !self.connections.values().any(lower)
    }

    fn refuse(&mut self, token: u64, code: RefusalCode, reason: String) {
        self.counters.refused += 1;
        self.send(token, &ToClient::Refused(code, reason));
        self.drop_connection(token);
    }

    fn send(&mut self, token: u64, message: &ToClient) {
        let Some(connection) = self.connections.get(&token) else {
            return;
        };
        if connection.socket.send(&message.encode(), None).is_err() {
            self.counters.notes_dropped += 1;
        }
    }

    fn drop_connection(&mut self, token: u64) {
        self.unattached.remove(&token);
        if let Some(connection) = self.connections.remove(&token) {
            self.epoll.remove(connection.socket.as_fd());
        }
    }

    fn token_of(&self, slot: u32) -> Option<u64> {
        let mut all = self.connections.iter();
        let (token, _) = all.find(|(_, other)| other.slot.is_some_and(|at| at.0 == slot))?;
        Some(*token)
    }

    fn attached_clients(&self) -> impl Iterator<Item = u64> {
        let attached = |(token, other): (&u64, &Connection)| other.slot.is_some().then_some(*token);
        self.connections.iter().filter_map(attached)
    }
}

/// Whether a returning client's slot is still its own.
fn still_holds(held: &Held, claim: &Claim, table: &TableWriter) -> bool {
    let view = table.view();
    let Some(facts) = view.slot(held.slot).map(|slot| slot.facts()) else {
        return false;
    };
    held.table == view.identity()
        && facts.occupancy == Occupancy::Taken
        && facts.generation == held.generation
        && (facts.pid, facts.start_ticks) == (claim.pid, claim.start_ticks)
}

fn refusal(cause: ClaimError) -> (RefusalCode, String) {
    let code = match cause {
        ClaimError::Full { .. } => RefusalCode::Full,
        ClaimError::AlreadyAttached { .. } => RefusalCode::AlreadyAttached,
        ClaimError::RankTaken { .. } => RefusalCode::RankTaken,
        ClaimError::RankTooLarge { .. } => RefusalCode::RankTooLarge,
    };
    (code, cause.to_string())
}
