//! A minimal agent for tests.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use muster_agent::ipc_server::{IpcServer, Request};
use muster_agent::watch::{Finding, RankNotice, WaitMode, Watch};
use muster_client::Options;
use muster_ipc::{AgentDirectory, Listener};
use muster_shm::{Cause, Event, EventKind, RankState, TableLimits, TableView, TableWriter};
use muster_sys::descriptor::EventFd;
use muster_sys::poll::Epoll;

use super::DEADLINE;

/// What the agent has received: requests of clients and findings of its watch.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    Request(Request),
    Notice(RankNotice),
}

/// The state that a worker leaves to the next one; the supervisor holds it in a real agent.
pub struct InheritedState {
    listener: Listener,
    pub table: TableWriter,
}

pub struct Agent {
    pub directory: AgentDirectory,
    pub view: TableView,
    seen: Receiver<Seen>,
    stop: Arc<(AtomicBool, EventFd)>,
    thread: Option<JoinHandle<()>>,
    inherited: Option<InheritedState>,
    orders: Sender<Order>,
    /// What was received and not consumed yet.
    pending: Vec<Seen>,
}

/// An instruction of a test to the agent.
pub enum Order {
    Event(Event),
    Address(String),
    StateTable(fn(&mut TableWriter)),
    SendKey(u32, [u8; 32]),
    Shut,
}

pub fn limits() -> TableLimits {
    TableLimits {
        nodes: 16,
        ranks: 512,
        slots: 256,
        events: 64,
    }
}

impl Agent {
    pub fn start(base: &Path) -> Self {
        Self::start_in(base, None, limits())
    }

    pub fn start_in(base: &Path, mode: Option<WaitMode>, limits: TableLimits) -> Self {
        let directory = directory(base);
        let listener = Listener::open(&directory).unwrap();
        let mut table = TableWriter::create(limits).unwrap();
        table.add_node("node0");
        table.set_own_node(0);
        let watch = match mode {
            None => Watch::start(&table.view()),
            Some(mode) => Watch::start_in(&table.view(), mode),
        };
        Self::run(directory, listener, table, watch.unwrap())
    }

    /// Starts a worker after the death of the previous one.
    pub fn resume(directory: AgentDirectory, inherited: InheritedState) -> Self {
        let table = TableWriter::adopt(&inherited.table);
        let watch = Watch::adopt(&table.view()).unwrap();
        Self::run(directory, inherited.listener, table, watch)
    }

    fn run(
        directory: AgentDirectory,
        listener: Listener,
        table: TableWriter,
        watch: Watch,
    ) -> Self {
        let kept = listener.share().unwrap();
        let inherited = InheritedState {
            listener: kept,
            table: table.share(),
        };
        let (view, ipc_server) = (table.view(), IpcServer::new(listener, &directory).unwrap());
        let stop = Arc::new((AtomicBool::new(false), EventFd::new().unwrap()));
        let (sender, seen) = channel();
        let (orders, ordered) = channel();
        let own = Arc::clone(&stop);
        let thread =
            std::thread::spawn(move || serve(table, ipc_server, &watch, &sender, &ordered, &own));
        let (thread, inherited, pending) = (Some(thread), Some(inherited), Vec::new());
        Self {
            directory,
            view,
            seen,
            stop,
            thread,
            inherited,
            orders,
            pending,
        }
    }

    /// Ends the worker as if it were killed; what the supervisor holds stays.
    pub fn kill_worker(mut self) -> (AgentDirectory, InheritedState) {
        self.end();
        (self.directory.clone(), self.inherited.take().unwrap())
    }

    pub fn order(&self, order: Order) {
        self.orders.send(order).unwrap();
        self.stop.1.raise();
    }

    /// Waits for the first received item that `wanted` accepts. Earlier items stay for other calls.
    pub fn await_seen<T>(&mut self, what: &str, wanted: impl Fn(&Seen) -> Option<T>) -> T {
        if let Some(directory) = self.pending.iter().position(|seen| wanted(seen).is_some()) {
            return wanted(&self.pending.remove(directory)).unwrap();
        }
        loop {
            let Ok(seen) = self.seen.recv_timeout(DEADLINE) else {
                panic!("waiting for {what}; seen: {:?}", self.pending);
            };
            match wanted(&seen) {
                Some(answer) => return answer,
                None => self.pending.push(seen),
            }
        }
    }

    /// Whether an item was received and not consumed that matches.
    pub fn has_seen(&self, unwanted: impl Fn(&Seen) -> bool) -> bool {
        self.pending.iter().any(unwanted)
    }

    pub fn await_armed(&mut self) -> u32 {
        self.await_seen("armed", |seen| match seen {
            Seen::Request(Request::Armed { slot }) => Some(*slot),
            _ => None,
        })
    }

    /// Returns the next finding about a slot.
    pub fn await_finding(&mut self, slot: u32) -> Finding {
        self.await_notice(slot).finding
    }

    pub fn await_notice(&mut self, slot: u32) -> RankNotice {
        self.await_seen("a finding", |seen| match seen {
            Seen::Notice(notice) if notice.slot == slot => Some(*notice),
            _ => None,
        })
    }

    fn end(&mut self) {
        self.stop.0.store(true, Ordering::Release);
        self.stop.1.raise();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

pub fn directory(base: &Path) -> AgentDirectory {
    AgentDirectory::find(Some("job"), Some("node0"), Some(base)).unwrap()
}

pub fn options(base: &Path) -> Options {
    Options {
        job: Some("job".into()),
        node: Some("node0".into()),
        directory: Some(base.to_owned()),
        start_agent: false,
        deadline: DEADLINE,
        ..Options::default()
    }
}

fn serve(
    mut table: TableWriter,
    mut ipc_server: IpcServer,
    watch: &Watch,
    sender: &Sender<Seen>,
    ordered: &Receiver<Order>,
    stop: &(AtomicBool, EventFd),
) {
    let epoll = Epoll::new().unwrap();
    epoll.add(ipc_server.descriptor(), 0).unwrap();
    epoll.add(watch.descriptor(), 1).unwrap();
    epoll.add(stop.1.as_fd(), 2).unwrap();
    let (mut ready, mut requests, mut notices) = (Vec::new(), Vec::new(), Vec::new());
    while !stop.0.load(Ordering::Acquire) {
        epoll.wait(&mut ready, None).unwrap();
        stop.1.drain();
        for order in ordered.try_iter() {
            match order {
                Order::Event(event) => {
                    table.push_event(&event);
                    ipc_server.wake_up();
                }
                Order::StateTable(change) => change(&mut table),
                Order::Address(address) => assert!(ipc_server.set_address(&address)),
                Order::Shut => ipc_server.shut(),
                Order::SendKey(slot, key) => assert!(ipc_server.send_key(slot, key)),
            }
        }
        while ipc_server
            .serve(Instant::now(), &mut table, watch, &mut requests)
            .unwrap()
        {}
        watch.take(&mut notices);
        for request in requests.drain(..) {
            if let Request::Attached {
                rank: Some(rank), ..
            } = request
            {
                table.set_rank_node(rank, 0);
                table.set_rank_state(rank, RankState::Alive);
            }
            let _ = sender.send(Seen::Request(request));
        }
        for notice in notices.drain(..) {
            publish_finding(&mut table, &notice);
            ipc_server.settle(&notice, &mut table, watch);
            ipc_server.wake_up();
            let _ = sender.send(Seen::Notice(notice));
        }
    }
}

fn publish_finding(table: &mut TableWriter, notice: &RankNotice) {
    let (Some(rank), finding) = (notice.rank, notice.finding) else {
        return;
    };
    let (state, kind, cause) = match finding {
        Finding::Left { .. } => (RankState::Left, EventKind::RankLeft, Cause::Announced),
        Finding::Failed { .. } => (RankState::Failed, EventKind::RankFailed, Cause::KernelFutex),
        Finding::Hung(_) => (RankState::Hung, EventKind::RankHung, Cause::Stopped),
        Finding::Resumed => (RankState::Alive, EventKind::RankResumed, Cause::Unspecified),
        Finding::Detached => return,
    };
    table.set_rank_state(rank, state);
    let mut event = Event::new(kind, cause);
    (event.rank, event.node, event.at_ns) = (rank, 0, notice.at_ns);
    table.push_event(&event);
}
