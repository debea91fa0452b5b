//! What all members of a job must have set alike, compared when two of them meet (AG-05).
//!
//! Whoever introduces itself says its parameters. If one of them differs from ours, nothing else
//! of that member is taken, it is told ours so that it refuses us as well, and both say which
//! parameter it is: a job with two deadlines would call the living dead, silently.

use crate::codec::{Full, Malformed, Reader, Writer};
use crate::config::{Config, Minority};

/// Something all members must have set alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Parameter {
    /// The version of the wire format: another release.
    WireVersion,
    /// Time between two beats.
    Heartbeat,
    /// Silence after which a member is reported.
    Deadline,
    /// Reporters that make a failure.
    Theta,
    /// The rules: prompt, or the plain ones of the paper.
    Mode,
    /// What the smaller side of a split does.
    Minority,
    /// The engine: overlay, or age gossip.
    Protocol,
    /// The interval of age gossip.
    Interval,
    /// The list of participants of age gossip.
    Participants,
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
        }
    }
}

/// One member's parameters, as they travel. The wire version is in every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    heartbeat_us: u32,
    deadline_us: u32,
    theta: u8,
    is_paper: bool,
    holds: bool,
}

impl Parameters {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            // Both are checked to be at most ten minutes.
            heartbeat_us: config.heartbeat_us as u32,
            deadline_us: config.deadline_us as u32,
            theta: config.theta as u8,
            is_paper: config.mode.is_paper(),
            holds: config.minority == Minority::Hold,
        }
    }

    /// The first parameter that differs.
    pub(crate) fn difference(&self, other: &Self) -> Option<Parameter> {
        if self.heartbeat_us != other.heartbeat_us {
            Some(Parameter::Heartbeat)
        } else if self.deadline_us != other.deadline_us {
            Some(Parameter::Deadline)
        } else if self.theta != other.theta {
            Some(Parameter::Theta)
        } else if self.is_paper != other.is_paper {
            Some(Parameter::Mode)
        } else if self.holds != other.holds {
            Some(Parameter::Minority)
        } else {
            None
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            heartbeat_us: reader.u32()?,
            deadline_us: reader.u32()?,
            theta: reader.u8()?,
            is_paper: reader.flag()?,
            holds: reader.flag()?,
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        writer.u32(self.heartbeat_us)?;
        writer.u32(self.deadline_us)?;
        writer.u8(self.theta)?;
        writer.u8(u8::from(self.is_paper))?;
        writer.u8(u8::from(self.holds))
    }
}
