//! A client's dealings with its agent: the greeting, the hold, messages, restarts, the farewell.
//!
//! One thread at a time deals: the library thread, or, where there is none, whoever calls
//! `dispatch`. In the first case it is also the thread that holds the word, so its end would tell
//! the agent that something is wrong while the process lives (`Detached`).

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

/// How long a leaving client waits for the farewell. The mark on the board counts anyway.
const FAREWELL: Duration = Duration::from_secs(2);
/// How often another agent is looked for before it is called lost, and the first pause between.
pub(super) const ATTEMPTS: u32 = 5;
const BACK_OFF: Duration = Duration::from_millis(50);
/// How long one attempt may take; leaving waits for it.
const ATTEMPT: Duration = Duration::from_secs(3);
/// The most events handed to the porch at once.
const BATCH: usize = 64;

/// What a client holds, and how far its porch has read.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) slot: u32,
    pub(super) generation: u32,
    /// The reader of the porch.
    reader: Reader,
    /// The agent told us to go: none is started again for us.
    pub(super) dismissed: Option<(RefusalCode, String)>,
    pub(super) attempts: u64,
}

/// A connection on which the greeting has succeeded.
pub(super) struct Greeted {
    pub(super) socket: Packets,
    pub(super) attached: Attached,
    pub(super) table: TableView,
}

/// Connects and greets until `until`. An agent that hangs up during the greeting is on its way
/// out: the next one is looked for.
pub(super) fn greet(
    setting: &super::Setting,
    held: Option<Held>,
    may_start: bool,
    until: Instant,
) -> Result<Greeted, Error> {
    let what = match held {
        Some(_) => Start::Again,
        None => Start::First,
    };
    let may_start = may_start.then_some(what);
    let mut pause = start::Pause::busy();
    loop {
        let socket = start::connect(setting, may_start, until)?;
        match greet_on(setting, &socket, held, until)? {
            Some((attached, table)) => {
                return Ok(Greeted {
                    socket,
                    attached,
                    table,
                });
            }
            None if Instant::now() < until => pause.take(until),
            None => {
                let waited_ms = setting.options.deadline.as_millis() as u64;
                let last = "the agent hung up during the greeting".into();
                return Err(Error::Deadline {
                    socket: setting.place.socket(),
                    waited_ms,
                    last,
                });
            }
        }
    }
}

/// `None` if the agent hung up.
fn greet_on(
    setting: &super::Setting,
    socket: &Packets,
    held: Option<Held>,
    until: Instant,
) -> Result<Option<(Attached, TableView)>, Error> {
    let attach_request = Attach {
        pid: std::process::id(),
        key: setting.place.key().to_owned(),
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
                                found: "a welcome without a board".into(),
                                expected: "a welcome with one",
                            });
                        };
                        let table = TableView::attach([own.as_fd(), clients.as_fd()])?;
                        Ok(Some((attached, table)))
                    }
                    Ok(ToClient::Refused(code, reason)) => Err(Error::Refused { code, reason }),
                    other => Err(Error::Protocol {
                        found: format!("{other:?}"),
                        expected: "a welcome or a refusal",
                    }),
                };
            }
            Ok(Received::HungUp) => return Ok(None),
            // It hung up before our first word, and had nothing to say.
            Ok(Received::Nothing) if sent.is_err() => return Ok(None),
            Ok(Received::Nothing) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    // One that has just been started may be busy loading libfabric.
                    let waited_ms = begun.elapsed().as_millis() as u64;
                    let log = setting.place.log();
                    let last = format!(
                        "it accepts connections and does not answer; see {}",
                        log.display()
                    );
                    return Err(Error::Deadline {
                        socket: setting.place.socket(),
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
                    what: "hear the agent",
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

    /// Takes the word on the current board for the calling thread and says so.
    pub(super) fn hold(&self, inner: &Inner) -> Result<(), Error> {
        let slot = inner
            .tables
            .current()
            .slot(self.slot)
            .ok_or_else(|| Error::Protocol {
                found: format!("slot {}", self.slot),
                expected: "a slot on the board",
            })?;
        slot.hold(inner.hold())
            .map_err(Error::system("hold the word on the board"))?;
        // If this gets lost the agent is gone, and its successor is told again.
        let _ = inner.link.0.send(&ToAgent::Armed);
        Ok(())
    }

    /// Takes what the agent sent. Never blocks.
    pub(super) fn hear(&mut self, inner: &Inner) {
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
                        // Nothing of it can be believed, nor what follows.
                        Err(_) => inner.link.0.disconnect(),
                    }
                }
                Ok(Received::HungUp) | Err(_) => inner.link.0.disconnect(),
            }
        }
    }

    /// Shows the porch in: the agent is there, and what happened before is in the states.
    pub(super) fn introduce(&self, inner: &Inner) {
        if let Some(pmix_integration) = &inner.setting.options.pmix_integration {
            pmix_integration.on_attached(&inner.link);
            let earlier = Event::new(EventKind::Overflow, muster_shm::Cause::NewAgent);
            pmix_integration.on_events(&[earlier], inner.tables.current());
        }
    }

    /// Hands new events to the porch, then gives it a moment.
    pub(super) fn feed(&mut self, inner: &Inner) {
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
    }

    /// Finds or starts another agent after a hang-up, in so many attempts. Waits between them, but
    /// not when the client is about to leave, and until `end` at the latest: the library thread may
    /// take its time, a thread of the application says how much. Done when connected, dismissed or lost.
    ///
    /// Who was put out starts none: the agent was ended on purpose, or another would fare no
    /// better. But it looks, once and without waiting, whether somebody else has started one.
    pub(super) fn mend(&mut self, inner: &Inner, attempts: u32, end: Option<Instant>) {
        let options = &inner.setting.options;
        let mut pause = BACK_OFF;
        let mut last = String::from("the client leaves");
        for attempt in 0..attempts {
            let left = end.map_or(ATTEMPT, |end| end.saturating_duration_since(Instant::now()));
            if let Some((_, reason)) = &self.dismissed {
                let reason = reason.clone();
                let until = Instant::now() + ATTEMPT.min(left);
                if start::is_anybody_there(&inner.setting.place)
                    && self.greet_again(inner, false, until).is_ok()
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
            let until = Instant::now() + options.deadline.min(ATTEMPT).min(left);
            match self.greet_again(inner, options.start_agent, until) {
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

    fn greet_again(&mut self, inner: &Inner, may_start: bool, until: Instant) -> Result<(), Error> {
        let before = inner.tables.current().identity();
        let held = Held {
            table: before,
            slot: self.slot,
            generation: self.generation,
        };
        let greeted = greet(&inner.setting, Some(held), may_start, until)?;
        self.dismissed = None;
        let attached = greeted.attached;
        let same_board = greeted.table.identity() == before;
        let same =
            same_board && (attached.slot, attached.generation) == (held.slot, held.generation);
        if !same && inner.hold() == Hold::Mutex {
            let table = inner.tables.current();
            let slot = table.slot(self.slot);
            if slot.is_some_and(|slot| slot.release(Hold::Mutex).is_err()) {
                // Another thread is the holder, and stays linked into this board for its life.
                std::mem::forget(table.clone());
            }
        }
        let promised = lock(&inner.tick_period_ms);
        let old = inner.tables.current();
        // Before the board: who is told by that of a state is not told that the agent is lost, and counts it.
        inner.note_found();
        if !same_board && !inner.tables.replace(greeted.table) {
            let reason = "this process has outlived too many agents".to_owned();
            return Err(Error::Refused {
                code: RefusalCode::Closing,
                reason,
            });
        }
        (self.slot, self.generation) = (attached.slot, attached.generation);
        inner.note_slot(self.slot, self.generation, attached.mark);
        inner.write_promise(&promised);
        drop(promised);
        if !same_board {
            // Nobody else will wake those who wait for a state there.
            old.wake_sleepers();
        }
        {
            let _feeding = lock(&inner.feeding);
            let link = &inner.link.0;
            link.connect(greeted.socket, attached.publish, attached.address);
            if inner.setting.feeds_mpi.load(Ordering::Acquire) {
                // It may have been asked for after the greeting was written.
                let _ = link.send(&ToAgent::Feeds);
            }
        }
        if same {
            let _ = inner.link.0.send(&ToAgent::Armed);
        } else {
            self.hold(inner)?;
        }
        if inner.watch_again() && same_board {
            inner.missed.store(true, Ordering::Release);
        }
        // A socket that is full so soon is that of an agent in trouble; others find it all the same.
        let _ = inner.tell_learned();
        // Whoever waits for events has to look: at the states of a new board, or at what was written on
        // the old one while no agent could nudge us.
        inner.setting.event.raise();
        if let Some(pmix_integration) = &inner.setting.options.pmix_integration {
            pmix_integration.on_attached(&inner.link);
        }
        Ok(())
    }

    /// Leaves in order: mark, let go, say so, wait for the farewell. Says whether the slot stayed
    /// linked into another thread, in which case the board must stay mapped.
    pub(super) fn leave(&mut self, inner: &Inner, exit_code: i32) -> bool {
        // First of all: the porch may take its time, and an end meanwhile is in order.
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
        // From here on the slot may be another's: nothing on it is touched again.
        if inner.link.0.send(&ToAgent::Leaving(exit_code)).is_ok() {
            self.await_farewell(inner);
        }
        inner.link.0.disconnect();
        linked
    }

    /// None if the agent was replaced by one that did not know us.
    fn own_slot<'a>(&self, inner: &'a Inner) -> Option<Slot<'a>> {
        let slot = inner.tables.current().slot(self.slot)?;
        (slot.facts().generation == self.generation).then_some(slot)
    }

    fn await_farewell(&self, inner: &Inner) {
        let until = Instant::now() + FAREWELL;
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
