//! A parameter that all members of a job must have in common (AG-05).

/// A parameter that all members must have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Parameter {
    /// The version of the wire format, which differs between releases.
    WireVersion,
    /// The heartbeat.
    Heartbeat,
    /// The deadline.
    Deadline,
    /// The number of reporters that remove a member.
    Theta,
    /// The mode: default or paper.
    Mode,
    /// The policy of the smaller side of a split.
    Minority,
    /// The engine: overlay, or age gossip.
    Protocol,
    /// The interval of age gossip.
    Interval,
    /// The list of participants of age gossip.
    Participants,
    /// The zones of the job.
    Zones,
}

impl Parameter {
    /// Its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WireVersion => "wire version",
            Self::Heartbeat => "heartbeat_us",
            Self::Deadline => "deadline_us",
            Self::Theta => "theta",
            Self::Mode => "mode",
            Self::Minority => "minority",
            Self::Protocol => "protocol",
            Self::Interval => "interval_us",
            Self::Participants => "participants",
            Self::Zones => "zones",
        }
    }
}
