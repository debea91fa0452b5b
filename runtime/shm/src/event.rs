//! One event, as an application sees it and as it lies in the ring.
//!
//! Seven 64-bit words; the eighth of a ring entry is the ring's own stamp. The numbers of kinds
//! and causes are those of the C API and never change.

/// No node, or one without an index on this board.
pub const NO_NODE: u32 = u32::MAX;
/// No rank.
pub const NO_RANK: u32 = u32::MAX;

/// Words of an event in the ring, without the stamp.
pub(super) const EVENT_WORDS: usize = 7;

macro_rules! numbered {
    ($(#[$outer:meta])* $name:ident { $($(#[$inner:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$outer])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum $name { $($(#[$inner])* $variant = $number,)* }

        impl $name {
            /// The one of this number, if there is one.
            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

numbered! {
    /// What happened.
    EventKind {
        /// A node was heard for the first time, or again after its failure.
        NodeUp = 1,
        /// A node lost a rail and is heard on another.
        NodeDegraded = 2,
        /// A degraded or suspected node is as it should be again.
        NodeRecovered = 3,
        /// A node is silent on every rail; not yet confirmed.
        NodeSuspect = 4,
        /// A node is confirmed dead.
        NodeFailed = 5,
        /// A node went in order.
        NodeLeft = 6,
        /// A rank attached.
        RankUp = 7,
        /// A rank's process is stopped or stuck.
        RankHung = 8,
        /// A hung rank runs again.
        RankResumed = 9,
        /// A rank's process died.
        RankFailed = 10,
        /// A rank went in order.
        RankLeft = 11,
        /// This very node was declared failed by the others.
        Outcast = 12,
        /// The reader was lapped: `lost` events are gone; the states hold what they said. With
        /// zero lost: a new agent with a new board, on which everything may differ.
        Overflow = 13,
        /// An attribute that somebody here watches was written or deleted.
        Attribute = 14,
        /// `count` nodes of a group of `total` failed within one window; each was told before.
        GroupFailed = 15,
        /// This node is on the smaller side of a split: it has `count` of `total` nodes.
        Minority = 16,
        /// That is over: it has `count` of `total` nodes.
        Majority = 17,
        /// A node of this job has other parameters than this one, so neither listens to the other; `code`
        /// is the [`setting`]'s number.
        NodeRefused = 18,
    }
}

numbered! {
    /// How it is known.
    Cause {
        /// No reason was given.
        Unspecified = 0,
        /// Silence on every rail, confirmed by others.
        Silence = 1,
        /// The kernel released the word that the process held.
        KernelFutex = 2,
        /// The kernel told of the end of the process.
        Pidfd = 3,
        /// The process writes a core dump.
        CoreDump = 4,
        /// The process is stopped by a signal.
        Stopped = 5,
        /// It was announced by whom it concerns.
        Announced = 6,
        /// The fabric says that nobody can be reached there.
        Unreachable = 7,
        /// A launcher or an administrator said so.
        Told = 8,
        /// The node of the rank failed.
        NodeFailed = 9,
        /// The accused refuted it.
        Refuted = 10,
        /// It joined.
        Joined = 11,
        /// The process is stuck in the kernel.
        Stuck = 12,
        /// The process promised ticks and does not tick.
        NoTick = 13,
        /// The agent was started anew, with a board of its own.
        NewAgent = 14,
    }
}

/// The setting that two nodes do not have alike, by the number in a `NodeRefused`.
pub fn setting(number: i32) -> &'static str {
    match number {
        1 => "wire version",
        2 => "heartbeat_us",
        3 => "deadline_us",
        4 => "theta",
        5 => "mode",
        6 => "minority",
        7 => "protocol",
        8 => "interval_us",
        9 => "participants",
        _ => "parameters",
    }
}

impl EventKind {
    /// Whether it is about a number of nodes; its last word holds that instead of a key.
    const fn is_counted(self) -> bool {
        matches!(self, Self::GroupFailed | Self::Minority | Self::Majority)
    }
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// How it is known.
    pub cause: Cause,
    /// Index of the node it concerns, [`NO_NODE`] if none.
    pub node: u32,
    /// The rank it concerns, [`NO_RANK`] if none.
    pub rank: u32,
    /// Signal or exit code, 0 if unknown.
    pub code: i32,
    /// How long the concerned was silent, in microseconds; 0 if that is not the reason.
    pub silent_us: u32,
    /// How many reported it (the first three of them are in `reporters`).
    pub reporter_count: u32,
    /// Node indices of the first reporters, [`NO_NODE`] where there is none.
    pub reporters: [u32; 3],
    /// When the agent's verdict fell, in nanoseconds of this node's monotonic clock.
    pub at_ns: u64,
    /// Number of the event on this board, from 0. The writer sets it.
    pub sequence: u64,
    /// For an attribute: the hash of its key. Else 0.
    pub key_hash: u64,
    /// For a group, a minority or a majority: how many nodes. Else 0.
    pub count: u32,
    /// For these: of how many. Else 0.
    pub total: u32,
    /// For an overflow: how many events were lost. Else 0.
    pub lost: u64,
}

impl Event {
    /// An event of this kind and cause about nobody yet; the rest is filled by field.
    pub fn new(kind: EventKind, cause: Cause) -> Self {
        Self {
            kind,
            cause,
            node: NO_NODE,
            rank: NO_RANK,
            code: 0,
            silent_us: 0,
            reporter_count: 0,
            reporters: [NO_NODE; 3],
            at_ns: 0,
            sequence: 0,
            key_hash: 0,
            count: 0,
            total: 0,
            lost: 0,
        }
    }

    /// The words of the ring. `sequence` and `lost` are not among them: the first is the entry's
    /// place, the second is the reader's own finding.
    pub(super) fn encode(&self) -> [u64; EVENT_WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let last = if self.kind.is_counted() {
            pair(self.count, self.total)
        } else {
            self.key_hash
        };
        [
            self.at_ns,
            u64::from(self.kind as u16) | u64::from(self.cause as u16) << 16,
            pair(self.node, self.rank),
            pair(self.code as u32, self.silent_us),
            pair(self.reporter_count, self.reporters[0]),
            pair(self.reporters[1], self.reporters[2]),
            last,
        ]
    }

    /// `None` if the words are no event.
    pub(super) fn decode(names: &[u64; EVENT_WORDS], sequence: u64) -> Option<Self> {
        let (low, high) = (|word: u64| word as u32, |word: u64| (word >> 32) as u32);
        let kind = EventKind::from_number(names[1] as u16)?;
        let (key_hash, counts) = if kind.is_counted() {
            (0, names[6])
        } else {
            (names[6], 0)
        };
        Some(Self {
            at_ns: names[0],
            kind,
            cause: Cause::from_number((names[1] >> 16) as u16)?,
            node: low(names[2]),
            rank: high(names[2]),
            code: low(names[3]) as i32,
            silent_us: high(names[3]),
            reporter_count: low(names[4]),
            reporters: [high(names[4]), low(names[5]), high(names[5])],
            sequence,
            key_hash,
            count: low(counts),
            total: high(counts),
            lost: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_back() {
        let mut event = Event::new(EventKind::RankFailed, Cause::KernelFutex);
        (event.node, event.rank, event.code, event.silent_us) = (3, 77, -9, 5);
        (event.reporter_count, event.reporters, event.at_ns) = (9, [1, 2, 3], u64::MAX - 1);
        (event.sequence, event.key_hash) = (42, u64::MAX - 7);
        assert_eq!(Event::decode(&event.encode(), 42), Some(event));
        let mut event = Event::new(EventKind::Minority, Cause::Silence);
        (event.count, event.total) = (3, u32::MAX);
        assert_eq!(Event::decode(&event.encode(), 0), Some(event));
        assert_eq!(Event::decode(&[0; EVENT_WORDS], 0), None);
    }
}
