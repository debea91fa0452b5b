//! Parameters that all members of a job must have in common, compared when two members meet (AG-05).
//!
//! A message that introduces its sender has its parameters. If one differs, nothing else is taken from that
//! member. It is sent the local ones, so that it refuses the local member too, and both report the
//! parameter. Without this, a job with two deadlines would silently fail living members.

use crate::codec::{Full, Malformed, Reader, Writer};
use crate::config::{Config, Minority};
use crate::parameter::Parameter;

/// The parameters of a member, as sent. The wire version is in every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    heartbeat_us: u32,
    deadline_us: u32,
    theta: u8,
    is_paper: bool,
    holds: bool,
    zones: u64,
}

impl Parameters {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            // Both are at most ten minutes, by the checks.
            heartbeat_us: config.heartbeat_us as u32,
            deadline_us: config.deadline_us as u32,
            theta: config.theta as u8,
            is_paper: config.mode.is_paper(),
            holds: config.minority == Minority::Hold,
            zones: config.zone.map_digest,
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
        } else if self.zones != other.zones {
            Some(Parameter::Zones)
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
            zones: reader.u64()?,
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        writer.u32(self.heartbeat_us)?;
        writer.u32(self.deadline_us)?;
        writer.u8(self.theta)?;
        writer.u8(u8::from(self.is_paper))?;
        writer.u8(u8::from(self.holds))?;
        writer.u64(self.zones)
    }
}
