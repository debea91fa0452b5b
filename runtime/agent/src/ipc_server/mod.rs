//! The doorman: lets the processes of this node in, and carries notes between them and the agent.
//!
//! Intuition: he sits at the door of one house (a job on a node), asks everybody for user, job and
//! rank, hands out a place on the board, and from then on only passes short notes. What happens in
//! the world is not told through him but stands on the board; a nudge says "look there".
//!
//! He never waits: a note that a client's full socket does not take is dropped and counted. A
//! nudge that is dropped is no loss, as there is one waiting already. A client that hangs up is
//! *not* dead; that is for the watch to say. Who stands there and never says Hello is put out, and may come again.
//!
//! ```text
//! client                                   agent
//! Hello + eventfd      ------------------>   checks user, pid, key; gives a slot
//!                      <------------------   Welcome + board, or Refused
//! (holds its word) Armed  --------------->   watches the word
//! Seed, Key            ------------------>
//! Ask + socket         ------------------>   answers through that socket
//!                      <------------------   Nudge, Address, KeyForPublication
//! (leave mark, lets go) Leaving  -------->
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

use muster_ipc::{
    ADDRESS_MAX, AgentDirectory, Attach, Attached, DecodeError, Held, Listener, MESSAGE_MAX,
    RefusalCode, ToAgent, ToClient,
};
pub use request::{IpcCounters, Request};

/// The token of the listening socket; connections count from 1.
const DOOR: u64 = 0;
/// Connections beyond the slots: those who have not said Hello yet.
const UNKNOWN_MAX: usize = 64;
/// What one call of [`IpcServer::serve`] does at most: so many connections are looked at, so many are accepted, so
/// many messages of each are read, and so many that said nothing in time are closed.
const READY_AT_ONCE: usize = 8;
const ACCEPTS_AT_ONCE: usize = 8;
const MESSAGES_AT_ONCE: usize = 4;
const CLOSED_AT_ONCE: usize = 8;
/// How long the listening socket is left alone after a connection was turned away. It stays readable, so
/// otherwise whoever tries again at once keeps the loop busy.
const FULL_PAUSE: Duration = Duration::from_millis(50);
/// Clients that one call of [`IpcServer::wake_up`] or [`IpcServer::wake_up_on`] wakes.
const NUDGES_AT_ONCE: usize = 64;
/// More clients than that are woken for news at most once in this time for each of them: all of them, for every
/// one that comes, would be their square.
const NUDGE_PAUSE: Duration = Duration::from_micros(10);
/// How long a connection may stay without a Hello.
pub const GREETING_DEADLINE: Duration = Duration::from_secs(5);
/// Questions that wait for the agent; beyond, a client sees a hang-up and asks again.
const ASKS_MAX: usize = 256;

/// The agent's end of all its clients' sockets.
#[derive(Debug)]
pub struct IpcServer {
    listener: Listener,
    key: String,
    epoll: Epoll,
    connections: BTreeMap<u64, Connection>,
    next_token: u64,
    /// Since when who has not said Hello yet stands there, in the order in which they came.
    unidentified: BTreeMap<u64, Instant>,
    address: String,
    /// How many ranks the job has, 0 if nobody has said.
    job_size: u32,
    /// Nobody is let in any more.
    is_shut: bool,
    /// A descriptor that is given up when there is no other.
    spare: Option<EventFd>,
    counters: IpcCounters,
    /// With the slot of the client.
    asks: VecDeque<(u32, Packets)>,
    /// Until when the listening socket is not looked at.
    full_until: Option<Instant>,
    nudging: Nudging,
}

/// Who has been woken for what.
#[derive(Debug, Default)]
struct Nudging {
    /// Counts what there was to be woken for.
    news: u64,
    /// The round that is under way: the next client's token, and the news that it is for.
    round: Option<(u64, u64)>,
    /// For which news all were woken.
    done: u64,
    /// Before that no new round is begun.
    not_before: Option<Instant>,
}

#[derive(Debug)]
struct Connection {
    socket: Packets,
    peer: Peer,
    directory: Option<(u32, u32)>,
    rank: Option<u32>,
    event: Option<EventFd>,
    wants_wake_up: bool,
}

impl IpcServer {
    /// Sits down at a door.
    pub fn new(listener: Listener, directory: &AgentDirectory) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(listener.listener(), DOOR)?;
        Ok(Self {
            listener,
            key: directory.key().to_owned(),
            epoll,
            connections: BTreeMap::new(),
            next_token: 1,
            unidentified: BTreeMap::new(),
            address: String::new(),
            job_size: 0,
            is_shut: false,
            spare: Some(EventFd::new()?),
            counters: IpcCounters::default(),
            asks: VecDeque::new(),
            full_until: None,
            nudging: Nudging::default(),
        })
    }

    /// Readable when there is something to serve: one descriptor for the door and all clients
    /// (an epoll within the caller's epoll; add it level-triggered).
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// How many clients are connected and let in.
    pub fn client_count(&self) -> usize {
        self.connections
            .values()
            .filter(|connection| connection.directory.is_some())
            .count()
    }

    /// What was counted.
    pub fn counters(&self) -> IpcCounters {
        self.counters
    }

    /// From now on no rank is let in whose number is at or above this.
    pub fn set_job_size(&mut self, job_size: u32) {
        self.job_size = job_size;
    }

    /// Whether somebody has said nothing for too long: then [`Self::serve`] has to be called, though nothing is
    /// ready.
    pub fn is_somebody_late(&self, now: Instant) -> bool {
        let first = self.unidentified.first_key_value();
        first.is_some_and(|(_, since)| now.saturating_duration_since(*since) >= GREETING_DEADLINE)
    }

    /// When [`Self::serve`] or [`Self::wake_up_on`] has to be called though nothing is ready.
    pub fn due(&self) -> Option<Instant> {
        let first = self.unidentified.first_key_value();
        let late = first.map(|(_, since)| *since + GREETING_DEADLINE);
        let waiting = self.nudging.news != self.nudging.done;
        let wake_up = self.nudging.not_before.filter(|_| waiting);
        [late, self.full_until, wake_up].into_iter().flatten().min()
    }

    /// Serves some of those who are there now, a bounded number of connections and messages; says whether
    /// there may be more. What they want of the agent is added to `requests`; slots and watching are seen to
    /// here. Never blocks.
    pub fn serve(
        &mut self,
        now: Instant,
        table: &mut TableWriter,
        watch: &Watch,
        requests: &mut Vec<Request>,
    ) -> io::Result<bool> {
        if self.full_until.is_some_and(|until| until <= now) {
            self.epoll.add(self.listener.listener(), DOOR)?;
            self.full_until = None;
        }
        let mut ready: Vec<Ready> = Vec::new();
        self.epoll
            .wait_for(READY_AT_ONCE, &mut ready, Some(Duration::ZERO))?;
        let mut more = !ready.is_empty();
        for ready in ready {
            if ready.token == DOOR {
                self.accept(now, table, watch, requests)?;
            } else {
                self.listen(ready.token, table, watch, requests);
            }
        }
        for _ in 0..CLOSED_AT_ONCE {
            let Some((&token, _)) = self.unidentified.first_key_value() else {
                break;
            };
            if !self.is_somebody_late(now) {
                break;
            }
            // We may be the ones who are late.
            self.listen(token, table, watch, requests);
            if self.unidentified.contains_key(&token) {
                self.counters.silent += 1;
                self.drop_connection(token);
            }
        }
        more |= self.is_somebody_late(now);
        Ok(more)
    }

    /// Who asked first of those who wait, by slot, and the socket: the question is in it, the answer goes the
    /// same way. One that is dropped is an answer too.
    pub fn take_ask(&mut self) -> Option<(u32, Packets)> {
        self.asks.pop_front()
    }

    /// Whether somebody has asked.
    pub fn has_asks(&self) -> bool {
        !self.asks.is_empty()
    }

    /// Tells everybody the agent's NID list, now and later. Texts above [`ADDRESS_MAX`] bytes are
    /// refused with `false`.
    pub fn set_address(&mut self, address: &str) -> bool {
        if address.len() > ADDRESS_MAX {
            return false;
        }
        if self.address != address {
            self.address = address.to_owned();
            let message = ToClient::Address(address.to_owned());
            let everybody: Vec<u64> = self.let_in().collect();
            everybody
                .into_iter()
                .for_each(|token| self.send(token, &message));
        }
        true
    }

    /// Hands the key that this agent made to the client that publishes it. `false` if there is no
    /// such client now.
    pub fn send_key(&mut self, slot: u32, key: [u8; 32]) -> bool {
        let Some(token) = self.token_of(slot) else {
            return false;
        };
        self.send(token, &ToClient::KeyForPublication(key));
        true
    }

    /// Says to everybody that there is something new on the board: raises the application's
    /// eventfd, and nudges the library threads that asked for it. Where there are many clients, only to the
    /// first of them: the others are for [`Self::wake_up_on`].
    pub fn wake_up(&mut self) {
        self.nudging.news += 1;
        self.wake_up_on(Instant::now());
    }

    /// Goes on with it, a bounded number of clients; says whether there may be more to wake now.
    pub fn wake_up_on(&mut self, now: Instant) -> bool {
        let nudging = &mut self.nudging;
        let (from, news) = match nudging.round {
            Some(round) => round,
            None if nudging.news == nudging.done => return false,
            None if nudging.not_before.is_some_and(|at| now < at) => return false,
            None => {
                let count = self.connections.len();
                let pause = NUDGE_PAUSE * u32::try_from(count).unwrap_or(u32::MAX);
                nudging.not_before = (count > NUDGES_AT_ONCE).then(|| now + pause);
                (0, nudging.news)
            }
        };
        let wake_up = ToClient::WakeUp.encode();
        let mut rest = self.connections.range(from..);
        for (_, connection) in rest.by_ref().take(NUDGES_AT_ONCE) {
            if let Some(event) = &connection.event {
                event.raise_shared();
            }
            if connection.wants_wake_up && connection.socket.send(&wake_up, None).is_err() {
                self.counters.nudges_dropped += 1;
            }
        }
        nudging.round = rest.next().map(|(token, _)| (*token, news));
        if nudging.round.is_none() {
            nudging.done = news;
        }
        nudging.round.is_some()
    }

    /// Clears up after a finding was taken from the watch and spoken: after a final one the
    /// client's connection is closed and its slot is free for another process.
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

    /// Lets nobody in any more, for an agent that is about to end: whoever comes, and whoever waits at the
    /// door, sees a hang-up and looks for the next one.
    pub fn shut(&mut self) {
        self.is_shut = true;
        self.listener.take_away();
    }

    /// Ends the service: takes the socket away. Clients see a hang-up.
    pub fn close(self) {
        self.listener.close();
    }

    /// Ends the service on purpose: takes the socket away, so that nobody comes back to us, and
    /// puts every client out with the reason, so that none starts another agent for it.
    pub fn close_on_purpose(mut self, reason: &str) {
        self.listener.take_away();
        let refusal = ToClient::Refused(RefusalCode::Closing, reason.to_owned());
        let everybody: Vec<u64> = self.connections.keys().copied().collect();
        for token in everybody {
            self.send(token, &refusal);
        }
    }

    /// Ends the service for good: puts every client out with the reason, and refuses whoever
    /// comes within two seconds, so that nobody starts another agent into the same misery.
    pub fn close_for(mut self, reason: &str) {
        let refusal = ToClient::Refused(RefusalCode::NoAgent, reason.to_owned());
        let everybody: Vec<u64> = self.connections.keys().copied().collect();
        for token in everybody {
            self.counters.refused += 1;
            self.send(token, &refusal);
        }
        // The connections stay open meanwhile, so that everybody hears it.
        self.listener.refuse_all(reason);
    }

    /// Takes a bounded number of connections, and hears what they have said already: who says Hello at once is
    /// never one of those who say nothing.
    fn accept(
        &mut self,
        now: Instant,
        table: &mut TableWriter,
        watch: &Watch,
        requests: &mut Vec<Request>,
    ) -> io::Result<()> {
        let most = table.view().limits().slots as usize + UNKNOWN_MAX;
        for _ in 0..ACCEPTS_AT_ONCE {
            let socket = match self.listener.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return Ok(()),
                Err(cause) if matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    self.pause_accepting(now);
                    if self.turn_one_away() {
                        continue;
                    }
                    // Another thread was faster: whoever waits does so until our next round.
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
                directory: None,
                rank: None,
                event: None,
                wants_wake_up: false,
            };
            self.connections.insert(token, connection);
            self.unidentified.insert(token, now);
            self.listen(token, table, watch, requests);
            if self.connections.len() > most && self.unidentified.contains_key(&token) {
                self.counters.turned_away += 1;
                self.drop_connection(token);
                self.pause_accepting(now);
            }
        }
        Ok(())
    }

    /// Leaves those who wait to be accepted where they are for a while.
    fn pause_accepting(&mut self, now: Instant) {
        if self.full_until.is_none() {
            self.epoll.remove(self.listener.listener());
            self.full_until = Some(now + FULL_PAUSE);
        }
    }

    /// No descriptor is left for whoever is next at the door: takes the spare one, so that they
    /// see a hang-up and try again later instead of waiting, and we do not spin. Says whether it got
    /// hold of somebody.
    fn turn_one_away(&mut self) -> bool {
        self.spare = None;
        let turned_away = matches!(self.listener.accept(), Ok(Some(_)));
        self.counters.turned_away += u64::from(turned_away);
        self.spare = EventFd::new().ok();
        turned_away
    }

    /// Takes what a client sent, a bounded number of messages so that nobody starves the others.
    fn listen(
        &mut self,
        token: u64,
        table: &mut TableWriter,
        watch: &Watch,
        requests: &mut Vec<Request>,
    ) {
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
                    self.heard(token, bytes, descriptors, table, watch, requests);
                }
                Ok(Received::HungUp) | Err(_) => {
                    if let Some((slot, generation)) = connection.directory {
                        let withdrawn = watch.forget_if_withdrawn(slot, generation);
                        requests.push(match withdrawn {
                            true => Request::Withdrawn { slot },
                            false => Request::HungUp { slot, generation },
                        });
                        if withdrawn {
                            table.release_slot(slot);
                        }
                    }
                    self.drop_connection(token);
                    return;
                }
            }
        }
    }

    fn heard(
        &mut self,
        token: u64,
        bytes: &[u8],
        descriptors: Vec<OwnedFd>,
        table: &mut TableWriter,
        watch: &Watch,
        requests: &mut Vec<Request>,
    ) {
        let Some(connection) = self.connections.get(&token) else {
            return;
        };
        match (ToAgent::decode(bytes), connection.directory) {
            (Ok(ToAgent::Attach(_)), None) if self.is_shut => self.drop_connection(token),
            (Ok(ToAgent::Attach(attach_request)), None) => {
                let event = descriptors.into_iter().next().map(EventFd::from_untrusted);
                let admitted = match event.transpose() {
                    Ok(event) => self.admit(token, &attach_request, event, table, watch),
                    Err(cause) => Err((
                        RefusalCode::Malformed,
                        format!(
                            "the descriptor that came with the greeting: {cause}; send an eventfd, or none"
                        ),
                    )),
                };
                match admitted {
                    Ok(request) => requests.push(request),
                    Err((code, reason)) => self.refuse(token, code, reason),
                }
            }
            (Ok(ToAgent::Armed), Some((slot, _))) => {
                if let Some(slot) = table.view().slot(slot) {
                    slot.set_armed();
                }
                // A word that cannot be waited for is covered by pidfd; the watch counts it.
                let _ = watch.arm(slot);
                requests.push(Request::Armed { slot });
            }
            (Ok(ToAgent::Seed(address)), Some((slot, _))) => {
                requests.push(Request::Seed { slot, address });
            }
            (Ok(ToAgent::Key(key)), Some((slot, _))) => requests.push(Request::Key { slot, key }),
            (Ok(ToAgent::Aborted(rank, how, job_size)), Some(_)) => {
                requests.push(Request::Aborted {
                    rank,
                    how,
                    job_size,
                });
            }
            (Ok(ToAgent::Placed(node, ranks)), Some(_)) => {
                requests.push(Request::Placed { node, ranks });
            }
            (Ok(ToAgent::Feeds), Some(_)) => requests.push(Request::Feeds),
            (Ok(ToAgent::Ask), Some((slot, _))) => {
                let socket = descriptors.into_iter().next();
                let socket = socket.and_then(|fd| Packets::try_from(fd).ok());
                match socket.filter(|_| self.asks.len() < ASKS_MAX) {
                    Some(socket) => self.asks.push_back((slot, socket)),
                    None => self.counters.asks_dropped += 1,
                }
            }
            (Ok(ToAgent::Leaving(exit_code)), Some((slot, _))) => {
                requests.push(Request::Leaving { slot, exit_code });
                self.send(token, &ToClient::Detach);
                watch.inspect(slot);
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
                self.refuse(token, RefusalCode::Malformed, "unexpected message".into());
            }
        }
    }

    /// Checks who it is and gives out a slot.
    fn admit(
        &mut self,
        token: u64,
        attach_request: &Attach,
        event: Option<EventFd>,
        table: &mut TableWriter,
        watch: &Watch,
    ) -> Result<Request, (RefusalCode, String)> {
        let Some(peer) = self
            .connections
            .get(&token)
            .map(|connection| connection.peer)
        else {
            return Err((RefusalCode::Malformed, "no connection".into()));
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
            .filter(|held| still_holds(held, &claim, table));
        let again = kept.is_some();
        let (slot, generation) = match kept {
            Some(held) => (held.slot, held.generation),
            None => {
                self.check_rank(attach_request.rank)?;
                let claimed = table
                    .claim_slot(&claim, &procfs::is_alive)
                    .map_err(refusal)?;
                watch.follow(claimed.0);
                claimed
            }
        };
        // An earlier connection of the same slot is over: an exec, or a client that came back.
        if let Some(old) = self.token_of(slot) {
            self.drop_connection(old);
        }
        let rank = table.view().slot(slot).and_then(|slot| slot.facts().rank);
        let publish = self.is_lowest(rank);
        let attached = Attached {
            slot,
            generation,
            mark: table.mark(slot),
            publish,
            address: self.address.clone(),
        };
        if let Some(connection) = self.connections.get_mut(&token) {
            self.unidentified.remove(&token);
            connection.directory = Some((slot, generation));
            connection.rank = rank;
            connection.event = event;
            connection.wants_wake_up = attach_request.wants_wake_up;
            let bytes = ToClient::Attached(attached).encode();
            // A client that went away meanwhile is found by its hang-up.
            let _ = connection.socket.send_with(&bytes, &table.descriptors());
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

    /// The job has this rank, as far as its size is known.
    fn check_rank(&self, rank: Option<u32>) -> Result<(), (RefusalCode, String)> {
        let size = self.job_size;
        match rank.filter(|rank| size != 0 && *rank >= size) {
            None => Ok(()),
            Some(rank) => {
                let reason = format!(
                    "rank {rank} of a job of {size} ranks (0 to {}), as a client has said that attached before; \
                     give every rank the same number of ranks, or none",
                    size - 1
                );
                Err((RefusalCode::RankTooLarge, reason))
            }
        }
    }

    /// User, visibility and key; returns when the process started.
    fn check(&self, attach_request: &Attach, peer: Peer) -> Result<u64, (RefusalCode, String)> {
        let own = process::user_id();
        if peer.uid != own {
            let reason = format!("user {} knocks at the agent of user {own}", peer.uid);
            return Err((RefusalCode::User, reason));
        }
        if peer.pid == 0 {
            let reason = format!(
                "process {} is in a pid namespace that the agent does not see into, so it cannot watch it; \
                 start the agent outside the containers first (srun musterd, or a rank outside), or let \
                 them share one pid namespace",
                attach_request.pid
            );
            return Err((RefusalCode::Invisible, reason));
        }
        // In a namespace below ours it has another number for itself, and the kernel knows both.
        if peer.pid != attach_request.pid
            && procfs::innermost_pid(peer.pid) != Some(attach_request.pid)
        {
            let reason = format!(
                "process {} calls itself process {}, and is not that in its own pid namespace either; let \
                 every process connect for itself",
                peer.pid, attach_request.pid
            );
            return Err((RefusalCode::Invisible, reason));
        }
        if attach_request.key != self.key {
            let reason = format!(
                "client of {:?} at the agent of {:?}",
                attach_request.key, self.key
            );
            return Err((RefusalCode::Job, reason));
        }
        procfs::start_ticks(peer.pid).map_err(|cause| {
            let remedy = match procfs::is_gone(&cause) {
                true => "is /proc mounted?",
                false => "raise the agent's limit of open files (ulimit -n)",
            };
            let reason = format!(
                "/proc does not show process {}: {cause}; {remedy}",
                peer.pid
            );
            (RefusalCode::Invisible, reason)
        })
    }

    /// Whether no connected client has a lower rank. One without a rank is never the lowest.
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
        self.unidentified.remove(&token);
        if let Some(connection) = self.connections.remove(&token) {
            self.epoll.remove(connection.socket.as_fd());
        }
    }

    fn token_of(&self, slot: u32) -> Option<u64> {
        let mut everybody = self.connections.iter();
        let (token, _) =
            everybody.find(|(_, other)| other.directory.is_some_and(|at| at.0 == slot))?;
        Some(*token)
    }

    fn let_in(&self) -> impl Iterator<Item = u64> {
        let inside =
            |(token, other): (&u64, &Connection)| other.directory.is_some().then_some(*token);
        self.connections.iter().filter_map(inside)
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
