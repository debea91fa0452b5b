//! `Event` is one event, as an application receives it and as the event ring stores it.
//!
//! It has seven 64-bit fields in the ring; the eighth field of a ring entry is the ring's stamp. The numbers of kinds
//! and causes are those of the C API and never change.

/// No node, or a node without an index in this state table.
pub const NO_NODE: u32 = u32::MAX;
/// No rank.
pub const NO_RANK: u32 = u32::MAX;

/// 64-bit fields of an event in the ring, without the stamp.
pub(super) const EVENT_FIELDS: usize = 7;

macro_rules! numbered {
    ($(#[$outer:meta])* $name:ident { $($(#[$inner:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$outer])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum $name { $($(#[$inner])* $variant = $number,)* }

        impl $name {
            /// The value of this number, if there is one.
            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

numbered! {
    /// What happened.
    EventKind {
        /// First sign of life of a node, or the first one after its failure.
        NodeUp = 1,
        /// A node lost a rail; another rail still receives from it.
        NodeDegraded = 2,
        /// A degraded or suspected node is healthy again.
        NodeRecovered = 3,
        /// A node is silent on every rail; not yet confirmed.
        NodeSuspect = 4,
        /// The failure of a node is confirmed.
        NodeFailed = 5,
        /// A node left in an orderly way.
        NodeLeft = 6,
        /// A rank attached.
        RankUp = 7,
        /// A rank's process is stopped or stuck.
        RankHung = 8,
        /// A hung rank continues.
        RankResumed = 9,
        /// A rank's process ended without a detach.
        RankFailed = 10,
        /// A rank detached.
        RankLeft = 11,
        /// The other nodes declared this node failed.
        Outcast = 12,
        /// The reader was lapped: `lost` events are gone; the states include what they reported. With zero lost: a
        /// new agent with a new state table, in which every state may differ.
        Overflow = 13,
        /// An attribute that a process of this node watches was written or deleted.
        Attribute = 14,
        /// `count` nodes of a group of `total` failed within one window; each was reported before.
        GroupFailed = 15,
        /// This node is on the smaller side of a split: it has `count` of `total` nodes.
        Minority = 16,
        /// The node is no longer in a minority: it has `count` of `total` nodes.
        Majority = 17,
        /// A node of this job has other parameters than this one, so the two ignore each other; `code` is the
        /// [`setting`]'s number.
        NodeRefused = 18,
    }
}

numbered! {
    /// The evidence of an event.
    Cause {
        /// No reason was given.
        Unspecified = 0,
        /// Silence on every rail, confirmed by other nodes.
        Silence = 1,
        /// The kernel released the robust futex that the process held.
        KernelFutex = 2,
        /// The kernel reported the end of the process (pidfd).
        Pidfd = 3,
        /// The process is writing a core dump.
        CoreDump = 4,
        /// The process is stopped by a signal.
        Stopped = 5,
        /// The node or rank itself announced it.
        Announced = 6,
        /// The fabric reports that the node is unreachable.
        Unreachable = 7,
        /// A launcher or an administrator reported it.
        Told = 8,
        /// The node of the rank failed.
        NodeFailed = 9,
        /// The suspected member refuted it.
        Refuted = 10,
        /// The member joined.
        Joined = 11,
        /// The process is stuck in the kernel.
        Stuck = 12,
        /// The process promised ticks and does not tick.
        NoTick = 13,
        /// The agent was restarted, with a new state table.
        NewAgent = 14,
    }
}

/// The setting that differs between two nodes, by the number in a `NodeRefused`.
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
        10 => "zones",
        _ => "parameters",
    }
}

/// A value of that setting, in words: a number, a name, or the first half of a digest.
pub fn setting_value(number: i32, value: u32) -> String {
    let word = match (number, value) {
        (5, 0) => "default",
        (5, _) => "paper",
        (6, 0) => "continue",
        (6, _) => "hold",
        (7, 0) => "overlay",
        (7, _) => "age",
        (9 | 10, _) => return format!("{value:08x}"),
        _ => return value.to_string(),
    };
    word.to_owned()
}

impl EventKind {
    /// Whether the event has two numbers; its last field then holds them instead of a key.
    const fn is_counted(self) -> bool {
        matches!(
            self,
            Self::GroupFailed | Self::Minority | Self::Majority | Self::NodeRefused
        )
    }
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The evidence.
    pub cause: Cause,
    /// Index of the node it concerns, [`NO_NODE`] if none.
    pub node: u32,
    /// The rank it concerns, [`NO_RANK`] if none.
    pub rank: u32,
    /// Signal or exit code, 0 if unknown.
    pub code: i32,
    /// How long the node or rank was silent, in microseconds; 0 if silence is not the reason.
    pub silent_us: u32,
    /// How many members reported it (the first three of them are in `reporters`).
    pub reporter_count: u32,
    /// Node indices of the first reporters, [`NO_NODE`] where there is none.
    pub reporters: [u32; 3],
    /// When the agent reached the verdict, in nanoseconds of this node's monotonic clock.
    pub at_ns: u64,
    /// Number of the event in this state table, from 0. The writer sets it.
    pub sequence: u64,
    /// For an attribute: the hash of its key. Otherwise 0.
    pub key_hash: u64,
    /// For a group, a minority or a majority: number of nodes. For a refused node, this node's value. Otherwise 0.
    pub count: u32,
    /// For the same kinds: of how many nodes; the other node's value. Otherwise 0.
    pub total: u32,
    /// For an overflow: how many events were lost. Otherwise 0.
    pub lost: u64,
}

impl Event {
    /// An event of this kind and cause without subject; the caller sets the other fields.
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

    /// The fields in the ring. `sequence` and `lost` are not among them: the first follows from the entry's position,
    /// the reader computes the second.
    pub(super) fn encode(&self) -> [u64; EVENT_FIELDS] {
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

    /// `None` if the fields are not an event.
    pub(super) fn decode(fields: &[u64; EVENT_FIELDS], sequence: u64) -> Option<Self> {
        let (low, high) = (|field: u64| field as u32, |field: u64| (field >> 32) as u32);
        let kind = EventKind::from_number(fields[1] as u16)?;
        let (key_hash, counts) = if kind.is_counted() {
            (0, fields[6])
        } else {
            (fields[6], 0)
        };
        Some(Self {
            at_ns: fields[0],
            kind,
            cause: Cause::from_number((fields[1] >> 16) as u16)?,
            node: low(fields[2]),
            rank: high(fields[2]),
            code: low(fields[3]) as i32,
            silent_us: high(fields[3]),
            reporter_count: low(fields[4]),
            reporters: [high(fields[4]), low(fields[5]), high(fields[5])],
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
    fn encoding_is_reversible() {
        let mut event = Event::new(EventKind::RankFailed, Cause::KernelFutex);
        (event.node, event.rank, event.code, event.silent_us) = (3, 77, -9, 5);
        (event.reporter_count, event.reporters, event.at_ns) = (9, [1, 2, 3], u64::MAX - 1);
        (event.sequence, event.key_hash) = (42, u64::MAX - 7);
        assert_eq!(Event::decode(&event.encode(), 42), Some(event));
        let mut event = Event::new(EventKind::Minority, Cause::Silence);
        (event.count, event.total) = (3, u32::MAX);
        assert_eq!(Event::decode(&event.encode(), 0), Some(event));
        assert_eq!(Event::decode(&[0; EVENT_FIELDS], 0), None);
    }
}
