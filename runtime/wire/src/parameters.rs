//! Parameters that all members of a job must have in common, compared when two members meet (AG-05).
//!
//! A message that introduces its sender has its parameters. If one differs, nothing else is taken from that
//! member. It is sent the local ones, so that it refuses the local member too, and both report the
//! parameter. Without this, a job with two deadlines would silently fail living members.

use crate::codec::{Full, Malformed, Reader, Writer};
use crate::parameter::{Difference, Parameter};

/// The parameters of a member, as sent. The wire version is in every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The heartbeat, in microseconds.
    pub heartbeat_us: u32,
    /// The deadline, in microseconds.
    pub deadline_us: u32,
    /// The number of reporters that remove a member.
    pub theta: u8,
    /// Whether the mode is that of the paper.
    pub is_paper: bool,
    /// Whether a minority holds.
    pub holds: bool,
    /// The digest of the job's zones, 0 without zones.
    pub zones: u64,
}

impl Parameters {
    /// The first parameter that differs.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<Difference> {
        let fields = self.fields().into_iter().zip(other.fields());
        let mut differences = fields.filter(|(own, other)| own != other);
        let (own, other) = differences.next()?;
        let value = |field: (Parameter, u64)| match field.0 {
            Parameter::Zones => (field.1 >> 32) as u32,
            _ => field.1 as u32,
        };
        Some(Difference::new(own.0, value(own), value(other)))
    }

    fn fields(&self) -> [(Parameter, u64); 6] {
        [
            (Parameter::Heartbeat, self.heartbeat_us.into()),
            (Parameter::Deadline, self.deadline_us.into()),
            (Parameter::Theta, self.theta.into()),
            (Parameter::Mode, self.is_paper.into()),
            (Parameter::Minority, self.holds.into()),
            (Parameter::Zones, self.zones),
        ]
    }

    /// Reads the parameters.
    ///
    /// # Errors
    /// The bytes end before them, or a flag is neither 0 nor 1.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            heartbeat_us: reader.u32()?,
            deadline_us: reader.u32()?,
            theta: reader.u8()?,
            is_paper: reader.flag()?,
            holds: reader.flag()?,
            zones: reader.u64()?,
        })
    }

    /// Writes the parameters.
    ///
    /// # Errors
    /// The buffer is full.
    pub fn write(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        writer.u32(self.heartbeat_us)?;
        writer.u32(self.deadline_us)?;
        writer.u8(self.theta)?;
        writer.u8(u8::from(self.is_paper))?;
        writer.u8(u8::from(self.holds))?;
        writer.u64(self.zones)
    }
}
