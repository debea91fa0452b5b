//! Messages about attributes: requests and replies.
//!
//! A reply has one section for each map. A section has pieces: entries, or parts of a long value. It states
//! where it begins, so that frames may be reordered.

use std::borrow::Cow;

use crate::attributes::{KEY_MAX, MAP_VERSION_MAX, VALUE_MAX};
use crate::codec::{Full, Malformed, Reader, Writer};
use crate::identity::MemberId;

/// Size of a section without its pieces, in bytes.
pub(crate) const SECTION_SIZE: usize = 8 + 8 + 8 + 8 + 8 + 1 + 2;
/// Size of a piece without key and value, in bytes.
pub(crate) const PIECE_SIZE: usize = 8 + 1 + 1 + 4 + 4 + 2;

/// The request for one map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) owner: MemberId,
    pub(crate) incarnation: u64,
    /// The version held.
    pub(crate) after: u64,
    /// Deletions are accounted for up to here.
    pub(crate) settled: u64,
    /// Bytes held of the entry with version `partial`; 0 if none.
    pub(crate) partial: u64,
    pub(crate) offset: u32,
    /// Sent to all neighbours: a receiver without anything newer does not reply.
    pub(crate) push: bool,
}

impl Ask {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            owner: MemberId(reader.u64()?),
            incarnation: reader.u64()?,
            after: read_version(reader)?,
            settled: read_version(reader)?,
            partial: read_version(reader)?,
            offset: reader.u32()?,
            push: reader.flag()?,
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        writer.u64(self.owner.0)?;
        writer.u64(self.incarnation)?;
        writer.u64(self.after)?;
        writer.u64(self.settled)?;
        writer.u64(self.partial)?;
        writer.u32(self.offset)?;
        writer.u8(u8::from(self.push))
    }
}

/// A part of one entry, often all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub(crate) version: u64,
    pub(crate) key: Cow<'a, [u8]>,
    pub(crate) deleted: bool,
    /// Size of the whole value.
    pub(crate) total: usize,
    /// Position of these bytes in it.
    pub(crate) offset: usize,
    pub(crate) bytes: Cow<'a, [u8]>,
}

impl<'a> Piece<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let version = read_version(reader)?;
        let key = reader.short()?;
        debug_assert!(key.len() <= KEY_MAX);
        let deleted = reader.flag()?;
        let total = reader.u32()? as usize;
        let offset = reader.u32()? as usize;
        let length = usize::from(reader.u16()?);
        let bytes = reader.bytes(length)?;
        let misplaced = total > VALUE_MAX || offset > total || length > total - offset;
        let empty_part = length == 0 && total > 0;
        if key.is_empty() || version == 0 || misplaced || empty_part || (deleted && total > 0) {
            return Err(Malformed::Value);
        }
        Ok(Self {
            version,
            key: key.into(),
            deleted,
            total,
            offset,
            bytes: bytes.into(),
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        writer.u64(self.version)?;
        writer.short(&self.key)?;
        writer.u8(u8::from(self.deleted))?;
        writer.u32(self.total as u32)?;
        writer.u32(self.offset as u32)?;
        writer.u16(u16::try_from(self.bytes.len()).map_err(|_| Full)?)?;
        writer.bytes(&self.bytes)
    }

    fn into_owned(self) -> Piece<'static> {
        Piece {
            version: self.version,
            key: Cow::Owned(self.key.into_owned()),
            deleted: self.deleted,
            total: self.total,
            offset: self.offset,
            bytes: Cow::Owned(self.bytes.into_owned()),
        }
    }
}

/// Consecutive entries of one map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section<'a> {
    pub(crate) owner: MemberId,
    pub(crate) incarnation: u64,
    /// There are no entries between this version and the first piece.
    pub(crate) after: u64,
    /// The version that the sender holds.
    pub(crate) goal: u64,
    /// The sender may have dropped certificates up to here.
    pub(crate) floor: u64,
    /// There are no entries between the last piece and `goal`.
    pub(crate) complete: bool,
    /// Not sent: the last section of its frame, after which the sender waits for the next request.
    pub(crate) stop: bool,
    pub(crate) pieces: Vec<Piece<'a>>,
}

impl<'a> Section<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let mut section = Self {
            owner: MemberId(reader.u64()?),
            incarnation: reader.u64()?,
            after: read_version(reader)?,
            goal: read_version(reader)?,
            floor: read_version(reader)?,
            complete: reader.flag()?,
            stop: false,
            pieces: Vec::new(),
        };
        let mut last = section.after;
        for _ in 0..reader.u16()? {
            let piece = Piece::read(reader)?;
            if piece.version <= last || piece.version > section.goal {
                return Err(Malformed::Value);
            }
            last = piece.version;
            section.pieces.push(piece);
        }
        Ok(section)
    }

    /// Writes all but the pieces; returns the position of their number, to be set later.
    pub(crate) fn write_head(&self, writer: &mut Writer<'_>) -> Result<(usize, usize), Full> {
        writer.u64(self.owner.0)?;
        writer.u64(self.incarnation)?;
        writer.u64(self.after)?;
        writer.u64(self.goal)?;
        writer.u64(self.floor)?;
        let complete_at = writer.used();
        writer.u8(u8::from(self.complete))?;
        let count_at = writer.used();
        writer.u16(0)?;
        Ok((complete_at, count_at))
    }

    pub(crate) fn into_owned(self) -> Section<'static> {
        Section {
            owner: self.owner,
            incarnation: self.incarnation,
            after: self.after,
            goal: self.goal,
            floor: self.floor,
            complete: self.complete,
            stop: self.stop,
            pieces: self.pieces.into_iter().map(Piece::into_owned).collect(),
        }
    }

    /// Its approximate size, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let pieces = self.pieces.iter();
        SECTION_SIZE
            + pieces
                .map(|piece| PIECE_SIZE + piece.key.len() + piece.bytes.len())
                .sum::<usize>()
    }
}

/// Reads the requests of a frame, after their count.
pub(crate) fn read_asks(reader: &mut Reader<'_>) -> Result<Vec<Ask>, Malformed> {
    let mut asks = Vec::new();
    for _ in 0..reader.u16()? {
        asks.push(Ask::read(reader)?);
    }
    Ok(asks)
}

/// Reads the sections of a frame, after their count.
pub(crate) fn read_sections<'a>(reader: &mut Reader<'a>) -> Result<Vec<Section<'a>>, Malformed> {
    let mut sections = Vec::new();
    for _ in 0..reader.u16()? {
        sections.push(Section::read(reader)?);
    }
    Ok(sections)
}

pub(crate) fn read_version(reader: &mut Reader<'_>) -> Result<u64, Malformed> {
    let version = reader.u64()?;
    if version < MAP_VERSION_MAX {
        Ok(version)
    } else {
        Err(Malformed::Value)
    }
}
