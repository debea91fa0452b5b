//! The thread of the data server: its fabric, the data that it serves, and the transfers that it waits for.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use super::transfer::{Transfer, piece_at, question, read_question};
use super::{Command, DataName, Report};
use muster_fabric::{
    Fabric, FabricConfig, FabricEvent, Nid, NidList, PeerHandle, Question, Transport,
};
use muster_sys::clock::monotonic_ns;
use muster_sys::descriptor::EventFd;
use muster_sys::poll::Epoll;

/// How often the rails are opened, with other ports each time, if a port is taken.
const TRIES: usize = 8;
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

/// Opens rails with bulk lanes.
fn open(rails: &[Nid], key: [u8; 32]) -> Result<Fabric, String> {
    if rails.is_empty() {
        return Err(
            "no rail of this node can carry large data: it requires a net of udp, tcp or o2ib; exchange less by \
             fences, or give the agents such a rail with MUSTER_RAILS"
                .to_owned(),
        );
    }
    let library = muster_fabric::load().map_err(|why| why.to_string())?;
    let mut config = FabricConfig::new(library, rails.to_vec());
    config.key = Some(key);
    let mut last = String::new();
    for _ in 0..TRIES {
        let opened = Fabric::open(&config).and_then(|mut fabric| {
            fabric.open_bulk()?;
            Ok(fabric)
        });
        match opened {
            Ok(fabric) => return Ok(fabric),
            Err(why) => last = why.to_string(),
        }
        config.rails.iter_mut().for_each(|rail| rail.port = 0);
    }
    Err(last)
}

impl Server<'_> {
    /// Opens the rails and serves until the launcher has ended.
    ///
    /// # Errors
    /// Why the rails could not be opened, or the thread cannot wait.
    pub(super) fn run(
        rails: &[Nid],
        key: [u8; 32],
        commands: &Receiver<Command>,
        wake: &EventFd,
        report: &dyn Fn(Report),
    ) -> Result<(), String> {
        let mut server = Server {
            fabric: open(rails, key)?,
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
