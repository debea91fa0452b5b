//! The data server: it serves the large data of this node's ranks to other launchers, and requests theirs.
//!
//! Data that is too large for attributes crosses the network once for each node that needs it, over the bulk lanes of
//! a fabric of the launcher's own, on the same interfaces as the agent's rails. The fabric is opened when the first
//! data is served or requested, in a thread of its own: most jobs need none.
//!
//! Launchers learn each other's NIDs from their statuses, and prove that they have the job's key.

mod server;
mod transfer;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use crate::Error;
use crate::core::messages::Input;
use crate::core::node_status::DataChunk;
use muster_fabric::{NetKind, Nid, NidList};
use muster_sys::descriptor::EventFd;
use server::Server;

/// Data of more bytes is served. Smaller data is in attributes, for which no fabric has to be opened.
pub(super) const SERVE_FROM: usize = 256 << 10;

/// Most bytes of a node's ranks that are served for open fences, and for the direct modex.
pub(super) const SERVE_MAX: usize = 64 << 20;

/// Data of a node's ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct DataName {
    owner: usize,
    chunk: DataChunk,
}

/// What the launcher tells the thread.
#[derive(Debug)]
enum Command {
    Serve(DataName, Arc<Vec<u8>>),
    StopServing(DataName),
    Request {
        name: DataName,
        size: usize,
        from: Vec<usize>,
    },
    /// The launcher of a node has these NIDs.
    Peer(usize, NidList),
    /// A node is gone.
    Gone(usize),
}

/// What the thread tells the launcher.
#[derive(Debug)]
enum Report {
    /// The NIDs at which other launchers reach the server.
    Open(NidList),
    /// A rail could not be opened. Others carry its data.
    LeftOut(String),
    /// It could not be opened, or has failed.
    Failed(String),
    /// Requested data has arrived, or nobody serves it now.
    Fetched(DataName, Option<Vec<u8>>),
}

/// The launcher's end of the thread.
#[derive(Debug)]
pub(super) struct DataServer {
    commands: Sender<Command>,
    /// Wakes the thread.
    wake: EventFd,
    reports: Receiver<Report>,
    /// Readable while there are reports.
    raised: EventFd,
    /// Requested data that has not been reported.
    requested: BTreeSet<DataName>,
    /// Why rails were left out, for the user.
    left_out: Vec<String>,
}

/// The number of ports after that of an agent's udp rail which the agent uses. It has four: a site's firewall lets
/// them pass.
const AGENT_PORTS: u16 = 2;

/// The rails on which a launcher of a node with this agent can serve data. Port 0 is any port.
pub(super) fn rails(agent: &str) -> Vec<Nid> {
    let nids = agent.parse::<NidList>();
    let nids = nids.iter().flat_map(NidList::iter);
    let serves = |nid: &&Nid| !nid.net.kind.has_names() && nid.net.kind != NetKind::Shm;
    let beside = |nid: &Nid| {
        let mut rail = nid.clone();
        rail.port = match nid.net.kind {
            NetKind::Udp => nid.port.checked_add(AGENT_PORTS).unwrap_or(0),
            _ => 0,
        };
        rail
    };
    nids.filter(serves).map(beside).collect()
}

impl DataServer {
    /// Starts the thread, which opens these rails.
    pub(super) fn start(rails: Vec<Nid>, key: [u8; 32]) -> Result<Self, Error> {
        let failed = |cause| Error::system("start the data server")(cause);
        let (commands, received) = channel();
        let (reporter, reports) = channel();
        let (wake, raised) = (
            EventFd::new().map_err(failed)?,
            EventFd::new().map_err(failed)?,
        );
        let copy = |event: &EventFd| {
            let copy = event.as_fd().try_clone_to_owned();
            copy.map(EventFd::from_received).map_err(failed)
        };
        let (woken, raise) = (copy(&wake)?, copy(&raised)?);
        let run = move || {
            let report = |report| {
                // Fails when the launcher has ended.
                let _ = reporter.send(report);
                raise.raise();
            };
            if let Err(why) = Server::run(&rails, key, &received, &woken, &report) {
                report(Report::Failed(why));
            }
        };
        let thread = std::thread::Builder::new().name("data-server".into());
        thread.spawn(run).map_err(failed)?;
        Ok(Self {
            commands,
            wake,
            reports,
            raised,
            requested: BTreeSet::new(),
            left_out: Vec::new(),
        })
    }

    /// Readable while [`DataServer::take`] returns something.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.raised.as_fd()
    }

    /// What has happened, for the core.
    ///
    /// # Errors
    /// The server cannot be used.
    pub(super) fn take(&mut self) -> Result<Vec<Input>, Error> {
        self.raised.drain();
        let mut inputs = Vec::new();
        loop {
            match self.reports.try_recv() {
                Ok(Report::Open(nids)) => inputs.push(Input::ServesAt(nids.to_string())),
                Ok(Report::LeftOut(why)) => self.left_out.push(why),
                Ok(Report::Failed(why)) => return Err(Error::DataServer(why)),
                Ok(Report::Fetched(name, data)) => {
                    self.requested.remove(&name);
                    let (chunk, node) = (name.chunk, name.owner);
                    inputs.push(Input::Fetched { chunk, node, data });
                }
                Err(TryRecvError::Empty) => return Ok(inputs),
                Err(TryRecvError::Disconnected) => {
                    return Err(Error::DataServer(
                        "the thread that serves it has ended; start the job again, and report the messages before \
                         this one"
                            .to_owned(),
                    ));
                }
            }
        }
    }

    /// Why rails were left out, each reason once.
    pub(super) fn take_left_out(&mut self) -> Vec<String> {
        std::mem::take(&mut self.left_out)
    }

    pub(super) fn serve(&self, chunk: DataChunk, owner: usize, data: Arc<Vec<u8>>) {
        self.command(Command::Serve(DataName { owner, chunk }, data));
    }

    pub(super) fn stop_serving(&self, chunk: DataChunk, owner: usize) {
        self.command(Command::StopServing(DataName { owner, chunk }));
    }

    /// Requests data from the first of these launchers that has it. Returns false, and does nothing, if it is on its
    /// way already.
    pub(super) fn request(
        &mut self,
        chunk: DataChunk,
        owner: usize,
        size: usize,
        from: Vec<usize>,
    ) -> bool {
        let name = DataName { owner, chunk };
        let is_new = self.requested.insert(name);
        if is_new {
            self.command(Command::Request { name, size, from });
        }
        is_new
    }

    /// Notes the NIDs of a node's launcher, as its status states them.
    pub(super) fn note_peer(&self, node: usize, nids: &str) {
        if let Ok(nids) = nids.parse() {
            self.command(Command::Peer(node, nids));
        }
    }

    pub(super) fn note_gone(&self, node: usize) {
        self.command(Command::Gone(node));
    }

    fn command(&self, command: Command) {
        // Fails if the thread has ended, which its last report says.
        let _ = self.commands.send(command);
        self.wake.raise();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    const DEADLINE: Duration = Duration::from_secs(120);

    /// A server on a loopback address, and its NIDs.
    fn start(rails: &str) -> (DataServer, String) {
        let mut server = DataServer::start(super::rails(rails), [7; 32]).unwrap();
        match await_input(&mut server) {
            Input::ServesAt(nids) => (server, nids),
            other => panic!("{other:?}"),
        }
    }

    fn await_report(server: &DataServer) {
        let ready = muster_sys::poll::readable(&[server.descriptor()], Some(DEADLINE));
        assert!(
            ready.is_ok_and(|ready| ready[0]),
            "nothing within {DEADLINE:?}"
        );
    }

    fn await_input(server: &mut DataServer) -> Input {
        let mut inputs = Vec::new();
        while inputs.is_empty() {
            await_report(server);
            inputs = server.take().unwrap();
        }
        assert_eq!(inputs.len(), 1);
        inputs.remove(0)
    }

    /// The data, once the servers of others are known here and this one there; until then there is none.
    fn await_data(server: &mut DataServer, name: DataName, size: usize, from: &[usize]) -> Vec<u8> {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < DEADLINE, "{name:?} has not come");
            server.request(name.chunk, name.owner, size, from.to_vec());
            match await_input(server) {
                Input::Fetched {
                    chunk,
                    node,
                    data: Some(data),
                } if (chunk, node) == (name.chunk, name.owner) => return data,
                Input::Fetched { data: None, .. } => std::thread::yield_now(),
                other => panic!("{other:?}"),
            }
        }
    }

    fn of_rank(rank: u32, owner: usize) -> DataName {
        let chunk = DataChunk::Rank(rank, 1);
        DataName { owner, chunk }
    }

    fn data(size: usize, mark: usize) -> Arc<Vec<u8>> {
        Arc::new((0..size).map(|at| ((at + mark) % 251) as u8).collect())
    }

    /// Data crosses two rails in pieces, whole and unchanged, in both directions at a time.
    #[test]
    fn data_is_served_in_pieces() {
        let (mut one, at_one) = start("127.47.1.1@udp0,127.47.1.2@udp1");
        let (mut two, at_two) = start("127.47.2.1@udp0,127.47.2.2@udp1");
        one.note_peer(2, &at_two);
        two.note_peer(1, &at_one);
        let sizes: BTreeMap<u32, usize> = [(1, 1), (2, 3 << 20), (3, (5 << 20) + 1)].into();
        for (rank, size) in &sizes {
            one.serve(DataChunk::Rank(*rank, 1), 1, data(*size, 1));
            two.serve(DataChunk::Rank(*rank, 1), 2, data(*size, 2));
        }
        std::thread::scope(|scope| {
            let sizes = &sizes;
            // The thread returns its server, which serves until then.
            let thread = scope.spawn(move || {
                for (rank, size) in sizes {
                    let got = await_data(&mut one, of_rank(*rank, 2), *size, &[2]);
                    assert!(got == *data(*size, 2), "{size} bytes have changed");
                }
                one
            });
            for (rank, size) in sizes {
                let got = await_data(&mut two, of_rank(*rank, 1), *size, &[1]);
                assert!(got == *data(*size, 1), "{size} bytes have changed");
            }
            drop(thread.join().unwrap());
        });
    }

    /// A launcher that does not have the data, or is gone, is left for the next one. Without one there is no data.
    #[test]
    fn data_comes_from_the_next_launcher() {
        let (mut one, at_one) = start("127.48.1.1@udp0");
        let (two, at_two) = start("127.48.2.1@udp0");
        let (three, at_three) = start("127.48.3.1@udp0");
        for (server, others) in [
            (&one, [(2, &at_two), (3, &at_three)]),
            (&two, [(1, &at_one), (3, &at_three)]),
            (&three, [(1, &at_one), (2, &at_two)]),
        ] {
            for (node, nids) in others {
                server.note_peer(node, nids);
            }
        }
        let name = of_rank(5, 4);
        three.serve(name.chunk, name.owner, data(3 << 20, 4));
        let got = await_data(&mut one, name, 3 << 20, &[4, 2, 3]);
        assert!(got == *data(3 << 20, 4));
        three.stop_serving(name.chunk, name.owner);
        one.request(name.chunk, name.owner, 3 << 20, vec![2, 3]);
        let none = await_input(&mut one);
        assert!(
            matches!(none, Input::Fetched { data: None, .. }),
            "{none:?}"
        );
        one.note_gone(3);
        one.request(name.chunk, name.owner, 3 << 20, vec![3]);
        let none = await_input(&mut one);
        assert!(
            matches!(none, Input::Fetched { data: None, .. }),
            "{none:?}"
        );
    }

    /// A rail that this node does not have is left out with its reason, wherever it stands in the list.
    #[test]
    fn a_rail_that_cannot_be_opened_is_left_out() {
        for rails in [
            "192.0.2.1@udp0,127.49.1.1@udp1",
            "127.49.2.1@udp1,192.0.2.1@udp0",
        ] {
            let (mut server, nids) = start(rails);
            assert!(nids.contains("@udp1") && !nids.contains("udp0"), "{nids}");
            let why = server.take_left_out();
            assert!(why.len() == 1 && why[0].contains("192.0.2.1"), "{why:?}");
            assert_eq!(server.take_left_out().len(), 0);
        }
        let mut server = DataServer::start(rails("192.0.2.1@udp0"), [7; 32]).unwrap();
        await_report(&server);
        let why = server.take().unwrap_err().to_string();
        assert!(why.contains("192.0.2.1"), "{why}");
    }

    #[test]
    fn a_server_requires_a_rail_with_an_address() {
        assert_eq!(rails("10.0.0.1@psm0,10.0.0.2@shm"), []);
        assert_eq!(rails("no address"), []);
        let rails = rails("10.0.0.1:7741@udp0,10.0.0.2:7745@o2ib3,10.0.0.1@psm0");
        let rails: Vec<String> = rails.iter().map(Nid::to_string).collect();
        assert_eq!(rails, ["10.0.0.1:7743@udp0", "10.0.0.2:0@o2ib3"]);
        let mut server = DataServer::start(Vec::new(), [7; 32]).unwrap();
        await_report(&server);
        let why = server.take().unwrap_err().to_string();
        assert!(why.contains("MUSTER_RAILS"), "{why}");
    }
}
