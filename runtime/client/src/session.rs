//! The session of a client with its agent: attach, hold of the robust futex, messages, restarts, detach.
//!
//! One thread at a time runs the session: the library thread, or, without one, the thread that calls `dispatch`. The
//! library thread also holds the robust futex, so its end would tell the agent that something is wrong while the
//! process is alive (`Detached`).

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::error::Error;
use super::reader::Reader;
use super::start::{self, Start};
use super::{Inner, Loss, lock};
use muster_ipc::{Attach, Attached, Held, MESSAGE_MAX, RefusalCode, ToAgent, ToClient};
use muster_shm::{Event, EventKind, Hold, Slot, TableView};
use muster_sys::poll;
use muster_sys::socket::{Packets, Received};

/// How long a detaching client waits for the agent's `Detach`. The statement in the slot counts without it.
const DETACH_WAIT: Duration = Duration::from_secs(2);
/// Attempts to find another agent before it is reported as lost, and the first pause between two of them.
pub(super) const ATTEMPTS: u32 = 5;
const PAUSE_FIRST: Duration = Duration::from_millis(50);
/// How long one attempt may take; a detach waits for it.
const ATTEMPT_TIME: Duration = Duration::from_secs(3);
/// Most events passed to the hooks at once.
const BATCH: usize = 64;

/// The slot of a client, and the position of its hooks among the events.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) slot: u32,
    pub(super) generation: u32,
    /// The reader of the hooks.
    reader: Reader,
    /// The agent has dismissed this client: no other agent is started for it.
    pub(super) dismissed: Option<(RefusalCode, String)>,
    pub(super) attempts: u64,
}

/// A connection on which the attach has succeeded.
pub(super) struct Attachment {
    pub(super) socket: Packets,
    pub(super) attached: Attached,
    pub(super) table: TableView,
}

/// Connects and attaches until `until`. An agent that closes the connection during the attach is about to end: the
/// next one is searched for.
pub(super) fn attach(
    setting: &super::Setting,
    held: Option<Held>,
    may_start: bool,
    until: Instant,
) -> Result<Attachment, Error> {
    let start = match held {
        Some(_) => Start::Again,
        None => Start::First,
    };
    let may_start = may_start.then_some(start);
    let mut pause = start::Pause::busy();
    loop {
        let socket = start::connect(setting, may_start, until)?;
        match attach_on(setting, &socket, held, until)? {
            Some((attached, table)) => {
                return Ok(Attachment {
                    socket,
                    attached,
                    table,
                });
            }
            None if Instant::now() < until => pause.take(until),
            None => {
                let waited_ms = setting.options.deadline.as_millis() as u64;
                let last = "the agent closed the connection during the attach".into();
                return Err(Error::Deadline {
                    socket: setting.agent_directory.socket(),
                    waited_ms,
                    last,
                });
            }
        }
    }
}

/// `None` if the agent closed the connection.
fn attach_on(
    setting: &super::Setting,
    socket: &Packets,
    held: Option<Held>,
    until: Instant,
) -> Result<Option<(Attached, TableView)>, Error> {
    let attach_request = Attach {
        pid: std::process::id(),
        key: setting.agent_directory.key().to_owned(),
        rank: setting.rank,
        job_size: setting.options.job_size,
        threadless: !setting.options.thread,
        ulfm: setting.feeds_mpi.load(Ordering::Acquire),
        wants_wake_up: setting.options.thread && setting.options.pmix_integration.is_some(),
        held,
    };
    let sent = socket.send(
        &ToAgent::Attach(attach_request).encode(),
        Some(setting.event.as_fd()),
    );
    let begun = Instant::now();
    let mut buffer = [0; MESSAGE_MAX];
    loop {
        match socket.receive(&mut buffer) {
            Ok(Received::Message(length, descriptors)) => {
                let bytes = buffer.get(..length).unwrap_or_default();
                return match ToClient::decode(bytes) {
                    Ok(ToClient::Attached(attached)) => {
                        let [own, clients] = &descriptors[..] else {
                            return Err(Error::Protocol {
                                found: "an answer without a state table".into(),
                                expected: "one with a state table",
                            });
                        };
                        let table = TableView::attach([own.as_fd(), clients.as_fd()])?;
                        Ok(Some((attached, table)))
                    }
                    Ok(ToClient::Refused(code, reason)) => Err(Error::Refused { code, reason }),
                    other => Err(Error::Protocol {
                        found: format!("{other:?}"),
                        expected: "an answer to the attach request",
                    }),
                };
            }
            Ok(Received::HungUp) => return Ok(None),
            // The agent closed the connection before the first message and sent no reason.
            Ok(Received::Nothing) if sent.is_err() => return Ok(None),
            Ok(Received::Nothing) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    // An agent that has just been started may be busy loading libfabric.
                    let waited_ms = begun.elapsed().as_millis() as u64;
                    let log = setting.agent_directory.log();
                    let last = format!(
                        "it accepts connections and does not answer; see {}",
                        log.display()
                    );
                    return Err(Error::Deadline {
                        socket: setting.agent_directory.socket(),
                        waited_ms,
                        last,
                    });
                }
                poll::readable(&[socket.as_fd(), setting.command.as_fd()], Some(left))
                    .map_err(Error::system("wait for the agent"))?;
                setting.command.drain();
                if setting.is_stopping() {
                    return Err(Error::Finalized);
                }
            }
            Err(cause) => {
                return Err(Error::System {
                    what: "receive from the agent",
                    cause,
                });
            }
        }
    }
}

impl Session {
    pub(super) fn new(attached: &Attached, table: &TableView) -> Self {
        Self {
            slot: attached.slot,
            generation: attached.generation,
            reader: Reader::new(table),
            dismissed: None,
            attempts: 0,
        }
    }

    /// Takes the futex in the current state table for the calling thread and tells the agent.
    pub(super) fn hold(&self, inner: &Inner) -> Result<(), Error> {
        let slot = inner
            .tables
            .current()
            .slot(self.slot)
            .ok_or_else(|| Error::Protocol {
                found: format!("slot {}", self.slot),
                expected: "a slot of the state table",
            })?;
        slot.hold(inner.hold())
            .map_err(Error::system("hold the robust futex in the state table"))?;
        // If this gets lost, the agent has ended, and its successor receives it again.
        let _ = inner.link.0.send(&ToAgent::Armed);
        Ok(())
    }

    /// Handles the messages of the agent. Never blocks.
    pub(super) fn receive(&mut self, inner: &Inner) {
        let mut buffer = [0; MESSAGE_MAX];
        while let Some(socket) = inner.link.0.socket() {
            match socket.receive(&mut buffer) {
                Ok(Received::Nothing) => return,
                Ok(Received::Message(length, _)) => {
                    let bytes = buffer.get(..length).unwrap_or_default();
                    match ToClient::decode(bytes) {
                        Ok(ToClient::Address(address)) => inner.link.0.set_address(address),
                        Ok(ToClient::KeyForPublication(key)) => inner.link.0.set_key(key),
                        Ok(ToClient::Refused(code, reason)) => {
                            self.dismissed = Some((code, reason));
                            inner.link.0.disconnect();
                        }
                        Ok(ToClient::WakeUp | ToClient::Detach | ToClient::Attached(_)) => {}
                        // Neither this message nor the following ones can be relied on.
                        Err(_) => inner.link.0.disconnect(),
                    }
                }
                Ok(Received::HungUp) | Err(_) => inner.link.0.disconnect(),
            }
        }
    }

    /// Reports to the hooks that the agent is there; the states include what happened before.
    pub(super) fn report_attached(&self, inner: &Inner) {
        if let Some(pmix_integration) = &inner.setting.options.pmix_integration {
            pmix_integration.on_attached(&inner.link);
            let earlier = Event::new(EventKind::Overflow, muster_shm::Cause::NewAgent);
            pmix_integration.on_events(&[earlier], inner.tables.current());
        }
    }

    /// Passes new events to the hooks, then calls `on_call`.
    pub(super) fn report_events(&mut self, inner: &Inner) {
        let Some(pmix_integration) = &inner.setting.options.pmix_integration else {
            return;
        };
        loop {
            let mut batch: Vec<Event> = Vec::new();
            while batch.len() < BATCH
                && let Some(event) = self.reader.next(&inner.tables)
            {
                batch.push(event);
            }
            if batch.is_empty() {
                break;
            }
            pmix_integration.on_events(&batch, inner.tables.current());
        }
        pmix_integration.on_call();
        if let Some(Error::OneZone { nodes, most }) = pmix_integration.refusal() {
            inner.note_lost(Loss::OneZone(nodes, most));
        }
    }

    /// Finds or starts another agent after its connection was closed, in at most `attempts` attempts. Waits between
    /// them, but not when the client is about to detach, and at most until `end`: a thread of the application limits
    /// the time, the library thread does not. Afterwards the client is connected, dismissed or lost.
    ///
    /// A dismissed client starts no agent: the agent was ended on request, or another one would fail, too. It only
    /// checks, once and without waiting, whether another process has started one.
    pub(super) fn reattach(&mut self, inner: &Inner, attempts: u32, end: Option<Instant>) {
        let options = &inner.setting.options;
        let mut pause = PAUSE_FIRST;
        let mut last = String::from("the client detaches");
        for attempt in 0..attempts {
            let left = end.map_or(ATTEMPT_TIME, |end| {
                end.saturating_duration_since(Instant::now())
            });
            if let Some((_, reason)) = &self.dismissed {
                let reason = reason.clone();
                let until = Instant::now() + ATTEMPT_TIME.min(left);
                if start::is_agent_present(&inner.setting.agent_directory)
                    && self.attach_again(inner, false, until).is_ok()
                {
                    return;
                }
                return inner.note_lost(Loss::Dismissed(reason));
            }
            if inner.setting.is_stopping() || (left.is_zero() && attempt > 0) {
                break;
            }
            if attempt > 0 {
                let command = [inner.setting.command.as_fd()];
                let _ = poll::readable(&command, Some(pause.min(left)));
                inner.setting.command.drain();
                pause *= 2;
            }
            self.attempts += 1;
            let until = Instant::now() + options.deadline.min(ATTEMPT_TIME).min(left);
            match self.attach_again(inner, options.start_agent, until) {
                Ok(()) => return,
                Err(Error::Refused { code, reason }) => {
                    self.dismissed = Some((code, reason.clone()));
                    return inner.note_lost(Loss::Dismissed(reason));
                }
                Err(cause) => last = cause.to_string(),
            }
        }
        inner.note_lost(Loss::Gone(self.attempts, last));
    }

    fn attach_again(
        &mut self,
        inner: &Inner,
        may_start: bool,
        until: Instant,
    ) -> Result<(), Error> {
        let before = inner.tables.current().identity();
        let held = Held {
            table: before,
            slot: self.slot,
            generation: self.generation,
        };
        let attachment = attach(&inner.setting, Some(held), may_start, until)?;
        self.dismissed = None;
        let attached = attachment.attached;
        let same_table = attachment.table.identity() == before;
        let same =
            same_table && (attached.slot, attached.generation) == (held.slot, held.generation);
        if !same && inner.hold() == Hold::Mutex {
            let table = inner.tables.current();
            let slot = table.slot(self.slot);
            if slot.is_some_and(|slot| slot.release(Hold::Mutex).is_err()) {
                // Another thread is the holder, and stays linked to this state table until its end.
                std::mem::forget(table.clone());
            }
        }
        let promised = lock(&inner.tick_period_ms);
        let old = inner.tables.current();
        // Before the state table changes: a thread that learns a state from the new one must not get an error that the
        // agent is lost, and must see the counter incremented.
        inner.note_found();
        if !same_table && !inner.tables.replace(attachment.table) {
            let reason = "this process has lost too many agents; restart it".to_owned();
            return Err(Error::Refused {
                code: RefusalCode::Closing,
                reason,
            });
        }
        (self.slot, self.generation) = (attached.slot, attached.generation);
        inner.note_slot(self.slot, self.generation, attached.mark);
        inner.write_promise(&promised);
        drop(promised);
        if !same_table {
            // No other process wakes the threads that wait for a state in the old state table.
            old.wake_sleepers();
        }
        {
            let _feeding = lock(&inner.feeding);
            let link = &inner.link.0;
            link.connect(attachment.socket, attached.publish, attached.address);
            if inner.setting.feeds_mpi.load(Ordering::Acquire) {
                // It may have been requested after the attach request was written.
                let _ = link.send(&ToAgent::Feeds);
            }
        }
        if same {
            let _ = inner.link.0.send(&ToAgent::Armed);
        } else {
            self.hold(inner)?;
        }
        if inner.watch_again() && same_table {
            inner.missed.store(true, Ordering::Release);
        }
        // An agent whose socket is full so soon is in trouble; other agents find it without these messages, too.
        let _ = inner.send_learned();
        // Threads that wait for events have to check: the states of a new state table, or what was written to the old
        // one while no agent could send wake-ups.
        inner.setting.event.raise();
        if let Some(pmix_integration) = &inner.setting.options.pmix_integration {
            pmix_integration.on_attached(&inner.link);
        }
        Ok(())
    }

    /// Detaches: states it in the slot, releases the futex, tells the agent, waits for its `Detach`. Returns whether
    /// the slot is still linked to another thread, in which case the state table must stay mapped.
    pub(super) fn leave(&mut self, inner: &Inner, exit_code: i32) -> bool {
        // First of all: the hooks may take some time, and an end of the process meanwhile is orderly.
        let linked = self.own_slot(inner).is_some_and(|slot| {
            let linked = !slot.is_held_here() && !slot.is_released();
            slot.announce_leave(inner.mark(), linked, exit_code);
            linked
        });
        if let Some(pmix_integration) = &inner.setting.options.pmix_integration {
            pmix_integration.before_detach();
        }
        if let Some(slot) = self.own_slot(inner).filter(Slot::is_held_here) {
            let _ = slot.release(inner.hold());
        }
        // From here on the slot may belong to another process: it is not touched again.
        if inner.link.0.send(&ToAgent::Leaving(exit_code)).is_ok() {
            self.await_detach(inner);
        }
        inner.link.0.disconnect();
        linked
    }

    /// `None` if the agent was replaced by one that does not know this client.
    fn own_slot<'a>(&self, inner: &'a Inner) -> Option<Slot<'a>> {
        let slot = inner.tables.current().slot(self.slot)?;
        (slot.facts().generation == self.generation).then_some(slot)
    }

    fn await_detach(&self, inner: &Inner) {
        let until = Instant::now() + DETACH_WAIT;
        let mut buffer = [0; MESSAGE_MAX];
        let Some(socket) = inner.link.0.socket() else {
            return;
        };
        loop {
            match socket.receive(&mut buffer) {
                Ok(Received::Message(length, _)) => {
                    let bytes = buffer.get(..length).unwrap_or_default();
                    if ToClient::decode(bytes) == Ok(ToClient::Detach) {
                        return;
                    }
                }
                Ok(Received::Nothing) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() || poll::readable(&[socket.as_fd()], Some(left)).is_err() {
                        return;
                    }
                }
                Ok(Received::HungUp) | Err(_) => return,
            }
        }
    }
}
