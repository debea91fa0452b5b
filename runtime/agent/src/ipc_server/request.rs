//! Requests of clients to the agent, and the counters of its socket.

/// A request or a report of a client to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A process was attached and is watched.
    Attached {
        /// Its slot.
        slot: u32,
        /// The slot's generation.
        generation: u32,
        /// The process.
        pid: u32,
        /// Its rank, if it has one.
        rank: Option<u32>,
        /// The number of ranks of the job as the client knows it, 0 if it does not.
        job_size: u32,
        /// Its application requested that failures are reported to MPI.
        ulfm: bool,
        /// It was attached before (the worker was restarted) and keeps its slot.
        again: bool,
    },
    /// It holds its futex, which is waited for from now on.
    Armed {
        /// Its slot.
        slot: u32,
    },
    /// It found the address of another agent.
    Seed {
        /// Its slot.
        slot: u32,
        /// The address.
        address: String,
    },
    /// It found the job's key.
    Key {
        /// Its slot.
        slot: u32,
        /// The key.
        key: [u8; 32],
    },
    /// Its launcher reports that a rank ended abnormally.
    Aborted {
        /// The rank.
        rank: u32,
        /// The signal that killed it, or its negative exit code; 0 if that is not known.
        how: i32,
        /// The number of ranks of the job in the same report.
        job_size: u32,
    },
    /// Its bootstrap reports where ranks run.
    Placed {
        /// The node's name, or its NIDs.
        node: String,
        /// The ranks on it.
        ranks: Vec<u32>,
    },
    /// Its application requests from now on that failures are reported to MPI.
    Feeds,
    /// Its connection is closed, which is no evidence of a failure.
    HungUp {
        /// Its slot.
        slot: u32,
        /// The slot's generation.
        generation: u32,
    },
    /// Its connection was closed before it held its futex, and the process continues: it stopped waiting for the
    /// agent and is not a client. Its slot is free.
    Withdrawn {
        /// Its slot.
        slot: u32,
    },
}

/// The counters of the ipc server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IpcCounters {
    /// Clients attached.
    pub attached: u64,
    /// Clients refused, for any reason.
    pub refused: u64,
    /// Connections closed because there were too many without an `Attach`, or no descriptor was left for them.
    pub turned_away: u64,
    /// Connections closed because they sent nothing in time.
    pub silent: u64,
    /// Messages that could not be decoded or were not expected.
    pub malformed: u64,
    /// Wake-ups dropped because the socket was full (one is waiting there).
    pub wake_ups_dropped: u64,
    /// Other messages dropped because the socket was full or closed.
    pub notes_dropped: u64,
    /// Queries dropped because too many were waiting.
    pub asks_dropped: u64,
}

impl IpcCounters {
    /// All counters with their names.
    pub fn each(&self) -> [(&'static str, u64); 8] {
        [
            ("clients_attached", self.attached),
            ("clients_refused", self.refused),
            ("clients_turned_away", self.turned_away),
            ("clients_silent", self.silent),
            ("client_messages_malformed", self.malformed),
            ("wake_ups_dropped", self.wake_ups_dropped),
            ("notes_dropped", self.notes_dropped),
            ("asks_dropped", self.asks_dropped),
        ]
    }
}
