//! The thread of the data server: its fabric, the data that it serves, and the transfers that it waits for.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use super::transfer::{Transfer, piece_at, question, read_question};
use super::{Command, DataName, Report};
use muster_fabric::{
    Fabric, FabricConfig, FabricEvent, Nid, NidList, OpenError, PeerHandle, Question, Transport,
};
use muster_sys::clock::monotonic_ns;
use muster_sys::descriptor::EventFd;
use muster_sys::poll::Epoll;
use muster_sys::signal::keeping_handlers;

/// How often a rail that could not be opened is tried again, with other ports each time.
const FAILURES_MAX: usize = 7;
/// Answers to one launcher that may wait for room. It may have fewer open questions.
const ANSWERS_MAX: usize = 64;
/// The longest wait.
const WAIT: Duration = Duration::from_secs(1);

/// CLOCK_MONOTONIC in microseconds.
fn now_us() -> u64 {
    monotonic_ns() / 1000
}

/// The state of the thread.
pub(super) struct Server<'a> {
    fabric: Fabric,
    report: &'a dyn Fn(Report),
    peers: BTreeMap<usize, PeerHandle>,
    served: BTreeMap<DataName, Arc<Vec<u8>>>,
    transfers: BTreeMap<DataName, Transfer>,
    /// Questions that are not answered yet, since the queue to their launcher was full.
    answers: BTreeMap<PeerHandle, VecDeque<(Question, Vec<u8>)>>,
}

/// Opens rails with bulk lanes. Rails that cannot be opened are left out, and reported with the reason.
fn open(rails: &[Nid], key: [u8; 32], report: &dyn Fn(Report)) -> Result<Fabric, String> {
    if rails.is_empty() {
        return Err(
            "no rail of this node can carry large data: it requires a net of udp, tcp or o2ib; exchange less by \
             fences, or give the agents such a rail with MUSTER_RAILS"
                .to_owned(),
        );
    }
    // libfabric's psm would end the launcher at its next signal.
    let library = keeping_handlers(muster_fabric::load).map_err(|why| why.to_string())?;
    let mut config = FabricConfig::new(library, Vec::new());
    config.key = Some(key);
    let mut fabric = None;
    let mut left_out = Vec::new();
    for rail in rails {
        if let Err(why) = open_rail(&config, &mut fabric, rail) {
            left_out.push(why.to_string());
        }
    }
    let fabric = fabric.ok_or_else(|| left_out.join("; "))?;
    left_out
        .into_iter()
        .for_each(|why| report(Report::LeftOut(why)));
    Ok(fabric)
}

/// Opens one more rail, at any port if the given one is taken.
fn open_rail(
    config: &FabricConfig,
    fabric: &mut Option<Fabric>,
    rail: &Nid,
) -> Result<(), OpenError> {
    let mut rail = rail.clone();
    let mut failures = 0;
    loop {
        let opened = match fabric {
            Some(fabric) => fabric.add_rail(&rail).map(drop),
            None => open_first(config, &rail).map(|first| *fabric = Some(first)),
        };
        match opened {
            Err(_) if failures < FAILURES_MAX => failures += 1,
            opened => return opened,
        }
        rail.port = 0;
    }
}

fn open_first(config: &FabricConfig, rail: &Nid) -> Result<Fabric, OpenError> {
    let config = FabricConfig {
        rails: vec![rail.clone()],
        ..config.clone()
    };
    let mut fabric = Fabric::open(&config)?;
    fabric.open_bulk()?;
    Ok(fabric)
}

impl Server<'_> {
    /// Opens the rails and serves until the launcher has ended.
    ///
    /// # Errors
    /// Why no rail could be opened, or the thread cannot wait.
    pub(super) fn run(
        rails: &[Nid],
        key: [u8; 32],
        commands: &Receiver<Command>,
        wake: &EventFd,
        report: &dyn Fn(Report),
    ) -> Result<(), String> {
        let mut server = Server {
            fabric: open(rails, key, report)?,
            report,
            peers: BTreeMap::new(),
            served: BTreeMap::new(),
            transfers: BTreeMap::new(),
            answers: BTreeMap::new(),
        };
        let failed = |cause: std::io::Error| format!("epoll: {cause}");
        let epoll = Epoll::new().map_err(failed)?;
        epoll.add(wake.as_fd(), 0).map_err(failed)?;
        for fd in server.fabric.wait_fds() {
            epoll.add_edge(fd, 0).map_err(failed)?;
        }
        report(Report::Open(server.fabric.local_nids()));
        let mut ready = Vec::new();
        while server.take_commands(commands) {
            let is_more = server.turn();
            if is_more || !server.fabric.may_sleep() {
                continue;
            }
            let due = server.fabric.next_timeout();
            let wait = due.map_or(WAIT, |due| {
                Duration::from_micros(due.saturating_sub(now_us())).min(WAIT)
            });
            epoll.wait(&mut ready, Some(wait)).map_err(failed)?;
            wake.drain();
        }
        Ok(())
    }

    /// Takes all commands. Returns false when the launcher has ended.
    fn take_commands(&mut self, commands: &Receiver<Command>) -> bool {
        loop {
            match commands.try_recv() {
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Serve(name, data) => _ = self.served.insert(name, data),
            Command::StopServing(name) => _ = self.served.remove(&name),
            Command::Request { name, size, from } => {
                let transfer = || Transfer::new(size, from);
                self.transfers.entry(name).or_insert_with(transfer);
            }
            Command::Peer(node, nids) => self.know(node, &nids),
            Command::Gone(node) => {
                if let Some(peer) = self.peers.remove(&node) {
                    self.fabric.forget(peer);
                    self.answers.remove(&peer);
                }
                for transfer in self.transfers.values_mut() {
                    transfer.lose(node);
                }
            }
        }
    }

    fn know(&mut self, node: usize, nids: &NidList) {
        // NIDs that cannot be reached from here, or belong to another peer, lead to no peer: requests fail.
        match self.peers.get(&node) {
            Some(peer) if self.fabric.nids(*peer).as_ref() == Some(nids) => {}
            Some(peer) => _ = self.fabric.renew(*peer, nids),
            None => {
                if let Ok(peer) = self.fabric.peer(nids) {
                    self.peers.insert(node, peer);
                }
            }
        }
    }

    /// Receives and sends. Returns whether there may be more to receive.
    fn turn(&mut self) -> bool {
        let is_more = self.fabric.poll(now_us(), &mut |_| {});
        if !is_more {
            while let Some(event) = self.fabric.poll_event() {
                self.take_event(event);
            }
        }
        self.answer();
        self.ask();
        is_more
    }

    fn take_event(&mut self, event: FabricEvent) {
        match event {
            FabricEvent::Asked {
                peer,
                question,
                bytes,
            } => {
                let waiting = self.answers.entry(peer).or_default();
                if waiting.len() < ANSWERS_MAX {
                    waiting.push_back((question, bytes));
                }
            }
            FabricEvent::Answered {
                question, answer, ..
            } => self.take_answer(question, answer.unwrap_or_default()),
            FabricEvent::BulkFailed { message, .. } => self.take_answer(message, Vec::new()),
            _ => {}
        }
    }

    /// Takes the answer to a question; an empty one if there was none. A launcher that does not answer, or has other
    /// data, is left for the next one.
    fn take_answer(&mut self, question: u64, piece: Vec<u8>) {
        let mut transfers = self.transfers.values_mut();
        let Some(transfer) = transfers.find(|one| one.has_asked(question)) else {
            return;
        };
        if !transfer.answered(question, piece) {
            transfer.leave_server();
        }
    }

    /// Answers questions, as far as the queues have room. An empty answer states that the data is not served here.
    fn answer(&mut self) {
        for (peer, waiting) in &mut self.answers {
            while let Some((asked, bytes)) = waiting.front() {
                let known = read_question(bytes);
                let piece = known.and_then(|(name, offset)| {
                    let data = self.served.get(&name)?;
                    Some(piece_at(data, offset))
                });
                let piece = piece.unwrap_or_default();
                if self.fabric.answer(now_us(), *peer, *asked, piece).is_err() {
                    break;
                }
                waiting.pop_front();
            }
        }
        self.answers.retain(|_, waiting| !waiting.is_empty());
    }

    /// Asks for the next pieces, and reports transfers that have ended.
    fn ask(&mut self) {
        let mut ended = Vec::new();
        for (name, transfer) in &mut self.transfers {
            let peer = loop {
                match transfer.server() {
                    Some(node) if self.peers.contains_key(&node) => break self.peers.get(&node),
                    Some(_) => transfer.leave_server(),
                    None => break None,
                }
            };
            let Some(peer) = peer else {
                // The launcher tries again, and may know more servers by then.
                ended.push((*name, None));
                continue;
            };
            while let Some(offset) = transfer.next() {
                match self
                    .fabric
                    .get(now_us(), *peer, false, &question(*name, offset))
                {
                    Ok(number) => transfer.asked(number, offset),
                    Err(_) => break,
                }
            }
            if let Some(data) = transfer.take_whole() {
                ended.push((*name, Some(data)));
            }
        }
        for (name, data) in ended {
            self.transfers.remove(&name);
            (self.report)(Report::Fetched(name, data));
        }
    }
}
