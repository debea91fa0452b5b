//! What clients want of the agent, and what is counted at its socket.

/// What a client wants of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A process was let in and followed.
    Attached {
        /// Its slot.
        slot: u32,
        /// The slot's generation.
        generation: u32,
        /// The process.
        pid: u32,
        /// Its rank, if it has one.
        rank: Option<u32>,
        /// How many ranks it believes the job has, 0 if it does not know.
        job_size: u32,
        /// Its application asked for failures to be fed to MPI.
        ulfm: bool,
        /// It was attached before (the worker was restarted) and holds what it held.
        again: bool,
    },
    /// It holds its word, which is waited for from now on.
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
    /// Its launcher says that a rank ended badly.
    Aborted {
        /// The rank.
        rank: u32,
        /// The signal that killed it, or minus its exit code; 0 if that is not known.
        how: i32,
        /// How many ranks the job has by the same word.
        job_size: u32,
    },
    /// Its bootstrap says where ranks run.
    Placed {
        /// The node's name, or its NIDs.
        node: String,
        /// The ranks on it.
        ranks: Vec<u32>,
    },
    /// Its application asks from now on for failures to be fed to MPI.
    Feeds,
    /// It announced that it leaves; the watch will say `Left`.
    Leaving {
        /// Its slot.
        slot: u32,
        /// Its exit code.
        exit_code: i32,
    },
    /// Its connection is gone. No evidence of a death.
    HungUp {
        /// Its slot.
        slot: u32,
        /// The slot's generation.
        generation: u32,
    },
    /// Its connection is gone before it held its word, and it lives on: it has given up waiting for us, and is
    /// no client. Its slot is free.
    Withdrawn {
        /// Its slot.
        slot: u32,
    },
}

/// What the doorman counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IpcCounters {
    /// Clients let in.
    pub attached: u64,
    /// Clients refused, for any reason.
    pub refused: u64,
    /// Connections closed because there were too many that had not said Hello, or no descriptor
    /// was left for them.
    pub turned_away: u64,
    /// Connections closed because nothing was said in time.
    pub silent: u64,
    /// Messages that made no sense.
    pub malformed: u64,
    /// Nudges that found the socket full (one is waiting there).
    pub nudges_dropped: u64,
    /// Other notes that found the socket full or gone.
    pub notes_dropped: u64,
    /// Questions that found too many waiting.
    pub asks_dropped: u64,
}

impl IpcCounters {
    /// Every counter with its name.
    pub fn each(&self) -> [(&'static str, u64); 8] {
        [
            ("clients_welcomed", self.attached),
            ("clients_refused", self.refused),
            ("clients_turned_away", self.turned_away),
            ("clients_silent", self.silent),
            ("client_messages_malformed", self.malformed),
            ("nudges_dropped", self.nudges_dropped),
            ("notes_dropped", self.notes_dropped),
            ("asks_dropped", self.asks_dropped),
        ]
    }
}
