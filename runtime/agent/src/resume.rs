//! What a worker leaves behind for the next one: the engine's snapshot and the rails' ports.
//!
//! Kept in an anonymous file that the keeper holds, so it lives as long as the keeper does
//! and no longer. Two halves are written in turn and the header names the valid one: a
//! worker that dies while it writes leaves the older half, never a mixture.

use muster_config::RailsDocument;
use muster_fabric::Nid;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{pread, pwrite};
use std::io;
use std::os::fd::OwnedFd;

/// Largest record that is kept, in bytes. A larger one is refused and the older one stays.
pub(crate) const RECORD_BYTES_MAX: usize = 16 << 20;
const HEADER_BYTES: usize = 16;
/// Longest last words of a worker, in bytes, and where they are: behind both halves.
const LAST_WORDS_MAX: usize = 512;
const LAST_WORDS_AT: u64 = (HEADER_BYTES + 2 * RECORD_BYTES_MAX) as u64;

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// The rails as they were opened, ports included.
    pub(crate) rails: String,
    /// Their configuration, as a document.
    pub(crate) document: String,
    /// What became of each of its rails, in its order: a list of NIDs.
    pub(crate) opened: String,
    /// Participants of age gossip that others have told, a line each; empty if there are none.
    pub(crate) participants: String,
    /// The job key, once it is known.
    pub(crate) key: Option<[u8; 32]>,
    /// It was drawn here, and gives way to one that rank 0 brings.
    pub(crate) key_is_drawn: bool,
    /// The engine's own snapshot; empty before the first one.
    pub(crate) engine: Vec<u8>,
}

/// The file.
pub(crate) struct Resume {
    file: OwnedFd,
    /// How often it has been written; odd and even writes go to different halves.
    writes: u64,
}

impl Resume {
    /// Makes an empty one.
    pub(crate) fn create() -> io::Result<Self> {
        Ok(Self {
            file: memfd_create("muster-resume", MemfdFlags::CLOEXEC)?,
            writes: 0,
        })
    }

    /// Keeps a record in place of the last one.
    pub(crate) fn write(&mut self, record: &Record) -> io::Result<()> {
        let bytes = record.encode();
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "snapshot exceeds its limit",
            ));
        }
        self.writes += 1;
        write_all(&self.file, &bytes, half_offset(self.writes))?;
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&self.writes.to_le_bytes());
        header[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        write_all(&self.file, &header, 0)
    }

    /// The last complete record, if there is one.
    pub(crate) fn read(&mut self) -> io::Result<Option<Record>> {
        let mut header = [0; HEADER_BYTES];
        if read_all(&self.file, &mut header, 0)? < HEADER_BYTES {
            return Ok(None);
        }
        let number = |at: usize| {
            header[at..at + 8]
                .iter()
                .rev()
                .fold(0, |n, b| n << 8 | u64::from(*b))
        };
        let (writes, length) = (number(0), number(8) as usize);
        if length > RECORD_BYTES_MAX {
            return Ok(None);
        }
        self.writes = writes;
        let mut bytes = vec![0; length];
        let got = read_all(&self.file, &mut bytes, half_offset(writes))?;
        Ok(if got == length {
            Record::decode(&bytes)
        } else {
            None
        })
    }
}

/// Writes why a worker ends, for its keeper.
pub(crate) struct LastReport(OwnedFd);

impl LastReport {
    pub(crate) fn write(&mut self, words: &str) {
        let bytes = words.as_bytes();
        let bytes = &bytes[..bytes.len().min(LAST_WORDS_MAX)];
        let mut padded = [0; LAST_WORDS_MAX];
        padded[..bytes.len()].copy_from_slice(bytes);
        // Without them the log has to do.
        let _ = write_all(&self.0, &padded, LAST_WORDS_AT);
    }
}

impl Resume {
    /// For a worker, before it begins; none if there is no descriptor for it.
    pub(crate) fn last_report_writer(&self) -> Option<LastReport> {
        self.file.try_clone().ok().map(LastReport)
    }

    /// Why the last worker that said so has ended; empty if none has.
    pub(crate) fn last_report(&self) -> String {
        let mut bytes = [0; LAST_WORDS_MAX];
        let length = read_all(&self.file, &mut bytes, LAST_WORDS_AT).unwrap_or(0);
        let words = bytes[..length].split(|byte| *byte == 0).next();
        String::from_utf8_lossy(words.unwrap_or_default()).into_owned()
    }
}

impl Record {
    /// Notes the rails that are open, and by which document.
    pub(crate) fn set_rails(&mut self, address: &str, document: &RailsDocument, open: &[Nid]) {
        let opened: Vec<String> = open.iter().map(Nid::to_string).collect();
        self.rails = address.to_owned();
        self.document = document.export();
        self.opened = opened.join(",");
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.engine.len() + self.document.len() + 1024);
        for text in [
            &self.rails,
            &self.document,
            &self.opened,
            &self.participants,
        ] {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes.push(match self.key {
            None => 0,
            Some(_) if self.key_is_drawn => 2,
            Some(_) => 1,
        });
        bytes.extend(self.key.unwrap_or_default());
        bytes.extend(&self.engine);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (rails, spin_detector) = text(bytes)?;
        let (document, spin_detector) = text(spin_detector)?;
        let (opened, spin_detector) = text(spin_detector)?;
        let (participants, spin_detector) = text(spin_detector)?;
        let (has_key, spin_detector) = spin_detector.split_first()?;
        let (key, engine) = spin_detector.split_first_chunk::<32>()?;
        Some(Self {
            rails,
            document,
            opened,
            participants,
            key: (*has_key != 0).then_some(*key),
            key_is_drawn: *has_key == 2,
            engine: engine.to_vec(),
        })
    }
}

/// A text behind its length, and what follows.
fn text(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (length, spin_detector) = bytes.split_first_chunk::<4>()?;
    let (text, spin_detector) =
        spin_detector.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((String::from_utf8(text.to_vec()).ok()?, spin_detector))
}

fn half_offset(writes: u64) -> u64 {
    HEADER_BYTES as u64 + (writes % 2) * RECORD_BYTES_MAX as u64
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = pwrite(file, bytes, offset)?;
        bytes = &bytes[count..];
        offset += count as u64;
    }
    Ok(())
}

fn read_all(file: &OwnedFd, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match pread(file, &mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(engine: &[u8]) -> Record {
        Record {
            rails: "127.0.0.1:1@udp0".into(),
            document: "version: 1\n".into(),
            opened: "127.0.0.1:1@udp0".into(),
            participants: "127.0.0.1:1@udp0 - n1\n".into(),
            key: Some([3; 32]),
            key_is_drawn: true,
            engine: engine.into(),
        }
    }

    #[test]
    fn the_last_record_is_read_back_and_before_it_there_is_none() {
        let mut resume = Resume::create().unwrap();
        assert_eq!(resume.read().unwrap(), None);
        for engine in [&b"one"[..], b"two, longer", b""] {
            resume.write(&record(engine)).unwrap();
            assert_eq!(resume.read().unwrap(), Some(record(engine)));
        }
    }

    #[test]
    fn a_write_that_was_cut_short_leaves_the_record_before() {
        let mut resume = Resume::create().unwrap();
        resume.write(&record(b"complete")).unwrap();
        // The next half is written, but the header still names the old one.
        write_all(&resume.file, b"half a rec", half_offset(resume.writes + 1)).unwrap();
        assert_eq!(resume.read().unwrap(), Some(record(b"complete")));
    }

    #[test]
    fn last_words_are_the_last_and_bounded() {
        let resume = Resume::create().unwrap();
        assert_eq!(resume.last_report(), "");
        let mut writer = resume.last_report_writer().unwrap();
        writer.write(&"x".repeat(1000));
        assert_eq!(resume.last_report().len(), LAST_WORDS_MAX);
        writer.write("no descriptor");
        assert_eq!(resume.last_report(), "no descriptor");
    }

    #[test]
    fn a_record_over_the_limit_is_refused_and_the_old_one_stays() {
        let mut resume = Resume::create().unwrap();
        resume.write(&record(b"small")).unwrap();
        let large = record(&vec![0; RECORD_BYTES_MAX]);
        assert!(resume.write(&large).is_err());
        assert_eq!(resume.read().unwrap(), Some(record(b"small")));
    }
}
