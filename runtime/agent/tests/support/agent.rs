//! The miniature agent.

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

/// What the agent saw.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    Request(Request),
    Notice(RankNotice),
}

/// What a worker leaves to the next: what its keeper holds.
pub struct Estate {
    listener: Listener,
    pub table: TableWriter,
}

pub struct Agent {
    pub place: AgentDirectory,
    pub view: TableView,
    seen: Receiver<Seen>,
    stop: Arc<(AtomicBool, EventFd)>,
    thread: Option<JoinHandle<()>>,
    estate: Option<Estate>,
    orders: Sender<Order>,
    /// What was seen and not yet asked for.
    pending: Vec<Seen>,
}

/// What a test wants the agent to do.
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
        let place = place(base);
        let listener = Listener::open(&place).unwrap();
        let mut table = TableWriter::create(limits).unwrap();
        table.add_node("node0");
        table.set_own_node(0);
        let watch = match mode {
            None => Watch::start(&table.view()),
            Some(mode) => Watch::start_in(&table.view(), mode),
        };
        Self::run(place, listener, table, watch.unwrap())
    }

    /// A worker after the death of the one before it.
    pub fn resume(place: AgentDirectory, estate: Estate) -> Self {
        let table = TableWriter::adopt(&estate.table);
        let watch = Watch::adopt(&table.view()).unwrap();
        Self::run(place, estate.listener, table, watch)
    }

    fn run(place: AgentDirectory, listener: Listener, table: TableWriter, watch: Watch) -> Self {
        let kept = listener.share().unwrap();
        let estate = Estate {
            listener: kept,
            table: table.share(),
        };
        let (view, ipc_server) = (table.view(), IpcServer::new(listener, &place).unwrap());
        let stop = Arc::new((AtomicBool::new(false), EventFd::new().unwrap()));
        let (sender, seen) = channel();
        let (orders, ordered) = channel();
        let own = Arc::clone(&stop);
        let thread =
            std::thread::spawn(move || serve(table, ipc_server, &watch, &sender, &ordered, &own));
        let (thread, estate, pending) = (Some(thread), Some(estate), Vec::new());
        Self {
            place,
            view,
            seen,
            stop,
            thread,
            estate,
            orders,
            pending,
        }
    }

    /// The worker ends as if killed; what its keeper holds stays.
    pub fn kill_worker(mut self) -> (AgentDirectory, Estate) {
        self.end();
        (self.place.clone(), self.estate.take().unwrap())
    }

    pub fn order(&self, order: Order) {
        self.orders.send(order).unwrap();
        self.stop.1.raise();
    }

    /// Waits for the first thing seen that `wanted` likes; what was seen before stays for others.
    pub fn await_seen<T>(&mut self, what: &str, wanted: impl Fn(&Seen) -> Option<T>) -> T {
        if let Some(place) = self.pending.iter().position(|seen| wanted(seen).is_some()) {
            return wanted(&self.pending.remove(place)).unwrap();
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

    /// Whether something was seen and not asked for.
    pub fn has_seen(&self, unwanted: impl Fn(&Seen) -> bool) -> bool {
        self.pending.iter().any(unwanted)
    }

    pub fn await_armed(&mut self) -> u32 {
        self.await_seen("armed", |seen| match seen {
            Seen::Request(Request::Armed { slot }) => Some(*slot),
            _ => None,
        })
    }

    /// The next finding about a slot.
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

pub fn place(base: &Path) -> AgentDirectory {
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
            speak(&mut table, &notice);
            ipc_server.settle(&notice, &mut table, watch);
            ipc_server.wake_up();
            let _ = sender.send(Seen::Notice(notice));
        }
    }
}

fn speak(table: &mut TableWriter, notice: &RankNotice) {
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
