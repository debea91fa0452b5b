//! A parameter that all members of a job must have in common (AG-05).

/// A parameter that all members must have in common. The numbers are in events of ranks, and are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Parameter {
    /// The version of the wire format, which differs between releases.
    WireVersion = 1,
    /// The heartbeat.
    Heartbeat = 2,
    /// The deadline.
    Deadline = 3,
    /// The number of reporters that remove a member.
    Theta = 4,
    /// The mode: default or paper.
    Mode = 5,
    /// The policy of the smaller side of a split.
    Minority = 6,
    /// The engine: overlay, or age gossip.
    Protocol = 7,
    /// The interval of age gossip.
    Interval = 8,
    /// The list of participants of age gossip.
    Participants = 9,
    /// The zones of the job.
    Zones = 10,
}

/// A parameter that two members do not have in common, and its values: a number, or the first half of a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The parameter.
    pub parameter: Parameter,
    /// The value of the local member.
    pub own: u32,
    /// That of the other one.
    pub other: u32,
}

impl Difference {
    /// A difference of a parameter from the value of the local member to that of the other one.
    #[must_use]
    pub const fn new(parameter: Parameter, own: u32, other: u32) -> Self {
        Self {
            parameter,
            own,
            other,
        }
    }
}
