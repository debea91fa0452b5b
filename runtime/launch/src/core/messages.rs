//! The messages between the core and its driver: [`Input`] is what has happened, [`Action`] is what the driver
//! is to do.
//!
//! A request of a rank that is answered later has a [`RequestId`]. The driver keeps libpmix's callback under it and
//! calls that when the core returns [`Action::Answer`].

use std::sync::Arc;

use super::mpi::Mpi;
use super::node_status::{DataChunk, NodeStatus};

/// A request of a rank that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestId(pub(crate) u64);

/// This node's ranks have entered a fence, or an operation like one.
#[derive(Debug, Clone)]
pub(crate) struct Entering {
    pub(crate) request: RequestId,
    /// Distinguishes operations of the same ranks; empty for a fence.
    pub(crate) tag: String,
    /// The operation constructs a group, which needs a number.
    pub(crate) is_group: bool,
    /// The ranks that take part; empty for all ranks of the job.
    pub(crate) ranks: Vec<u32>,
    pub(crate) data: Vec<u8>,
    /// How long the ranks wait; `None` for no limit.
    pub(crate) timeout_s: Option<u32>,
}

/// A rank looks up names.
#[derive(Debug, Clone)]
pub(crate) struct Looking {
    pub(crate) request: RequestId,
    pub(crate) rank: u32,
    pub(crate) keys: Vec<String>,
    /// Wait until all are published.
    pub(crate) wait: bool,
    /// The longest wait; `None` for no limit.
    pub(crate) timeout_s: Option<u32>,
}

/// A rank requests the data that a rank of another node has put.
#[derive(Debug, Clone)]
pub(crate) struct Wanting {
    pub(crate) request: RequestId,
    pub(crate) rank: u32,
    /// A key that the data must contain, if one was given.
    pub(crate) key: Option<String>,
    /// How long the requester waits; `None` leaves it to the launcher.
    pub(crate) timeout_s: Option<u32>,
}

/// A value that a rank publishes or has looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedValue {
    pub(crate) key: String,
    /// The publisher.
    pub(crate) rank: u32,
    /// PMIx's number of the type.
    pub(crate) kind: u16,
    pub(crate) bytes: Vec<u8>,
}

/// A signal that has killed a rank and was not sent by this launcher to end it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Killed {
    pub(crate) pid: u32,
    pub(crate) signal: i32,
}

/// The end of a rank's process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RankEnd {
    pub(crate) rank: u32,
    /// Its exit status, as a shell counts.
    pub(crate) status: u8,
    /// The signal that killed it, or minus its exit code.
    pub(crate) how: i32,
    pub(crate) killed: Option<Killed>,
}

/// What has happened.
#[derive(Debug, Clone)]
pub(crate) enum Input {
    /// A rank of this node was started.
    RankStarted(u32),
    /// It has connected to the PMIx server. The MPI of the ranks, if that is new.
    Connected { rank: u32, mpi: Option<Mpi> },
    /// It has disconnected.
    Disconnected(u32),
    /// It has ended.
    RankEnded(RankEnd),
    /// Whether processes are left: ranks, or their descendants that are to end with them.
    ProcessesLeft(bool),
    /// A rank has called PMIx_Abort.
    Abort {
        request: RequestId,
        rank: u32,
        status: i32,
        message: String,
    },
    /// Ranks have entered a fence.
    Enter(Entering),
    /// A rank publishes names.
    Publish {
        request: RequestId,
        rank: u32,
        values: Vec<NamedValue>,
        /// They are for the first reader only.
        once: bool,
    },
    /// A rank looks up names.
    LookUp(Looking),
    /// A rank deletes its names; all if there is no key.
    Unpublish {
        request: RequestId,
        rank: u32,
        keys: Vec<String>,
    },
    /// A rank requests the data of another one.
    Want(Wanting),
    /// The PMIx server returns the data of a rank of this node.
    Found { rank: u32, data: Vec<u8> },
    /// A rank sends a signal to ranks; to all if the list is empty.
    SignalRanks {
        request: RequestId,
        ranks: Vec<u32>,
        signal: i32,
    },
    /// The launcher of another node has published this status.
    Status(usize, Box<NodeStatus>),
    /// A node has failed or left, in the view of this node's agent.
    Gone(usize),
    /// The agents report that a rank has failed.
    RankFailed(u32),
    /// The other nodes have declared this one failed.
    Outcast,
    /// The answer to [`Action::Fetch`] or [`Action::Request`]; `None` if not all of the data is there.
    Fetched {
        chunk: DataChunk,
        node: usize,
        data: Option<Vec<u8>>,
    },
    /// The answer to [`Action::Put`]; `false` if the node's attributes have no room.
    Stored(bool),
    /// This launcher serves data at these NIDs.
    ServesAt(String),
    /// This process got a signal.
    Signal(i32),
    /// The control channel is closed.
    ChannelCut,
    /// The launcher of this node was not started.
    NotStarted(usize),
    /// Standard output has no reader left.
    NoReader,
    /// The agent is lost: nothing can be published any more.
    AgentLost,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// There is no room.
    Refused,
    TimedOut,
    /// There is no such data, and never will be.
    NotFound,
    /// A value is published under this name already.
    Duplicate,
    /// The data of a fence, and the number of the group that it has constructed.
    Collected {
        data: Vec<u8>,
        number: u64,
    },
    /// The data of a rank.
    Data(Vec<u8>),
    /// Values, and whether these are all that were looked up.
    Values {
        found: Vec<NamedValue>,
        is_all: bool,
    },
}

/// What the driver is to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// All launchers are there: start this node's ranks.
    StartRanks,
    /// The job cannot start.
    FailStart(StartError),
    /// Publish this status of the node.
    Publish(Box<NodeStatus>),
    /// Store data in attributes of this node. Answered by [`Input::Stored`].
    Put { chunk: DataChunk, data: Vec<u8> },
    /// Withdraw data of this size.
    Clear { chunk: DataChunk, size: usize },
    /// Read data from attributes of a node. Answered by [`Input::Fetched`].
    Fetch {
        chunk: DataChunk,
        node: usize,
        size: usize,
    },
    /// Serve data to other launchers. `owner` is the node whose ranks have put it.
    Serve {
        chunk: DataChunk,
        owner: usize,
        data: Arc<Vec<u8>>,
    },
    /// Serve it no more.
    StopServing { chunk: DataChunk, owner: usize },
    /// Request data that one of these launchers serves. Answered by [`Input::Fetched`] later; until then another
    /// request for it has no effect.
    Request {
        chunk: DataChunk,
        owner: usize,
        size: usize,
        from: Vec<usize>,
    },
    /// Answer a request of a rank.
    Answer(RequestId, Answer),
    /// Forget a request of a rank that has ended: it is not answered.
    Forget(RequestId),
    /// Ask the PMIx server for the data of a rank of this node. Answered by [`Input::Found`].
    AskServer(u32),
    /// Tell this node's ranks that a rank is dead.
    TellDeath(u32),
    /// Tell the agent that a rank of this node was lost, and how.
    ReportLost { rank: u32, how: i32 },
    /// Send a signal to the ranks of these ranges; to all of this node if there is no range.
    SignalRanks { ranks: Vec<(u32, u32)>, signal: i32 },
    /// Send all ranks of this node a signal that is to end them.
    EndRanks(i32),
    /// Ranks have got such a signal from another process.
    NoteSent(i32),
    /// Print a line.
    Print(String),
    /// This node's part of the job has ended with this status; `None` if the other nodes have given this one up.
    End(Option<u8>),
}

/// Why a job cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The launchers of some nodes did not start in time.
    #[error(
        "no launcher has come on {missing} within {waited_s} s; look there, or give more time with --start-timeout"
    )]
    Missing {
        /// Their nodes.
        missing: String,
        /// How long the others have waited.
        waited_s: u64,
    },
    /// Some launchers were lost before all had started.
    #[error(
        "{lost} was lost before the launchers of all nodes had started; look there, or, if the node is overloaded, \
         set MUSTER_PROFILE=quiet, which waits longer before it declares a node failed"
    )]
    LostEarly {
        /// Their nodes.
        lost: String,
    },
    /// The launchers of some nodes were not started, as the parent has reported.
    #[error(
        "no launcher has come on {missing}, where none could be started; see the messages above"
    )]
    NotStarted {
        /// Their nodes.
        missing: String,
    },
    /// Another launcher has a different command line.
    #[error("{0}")]
    Conflict(String),
}
