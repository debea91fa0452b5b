//! `Resume` stores the state that a worker leaves for the next one: the engine's snapshot, the rails with their
//! ports, and the job key.
//!
//! It is an anonymous file that the supervisor holds, so it exists as long as the supervisor. It has two halves that
//! are written in turn, and a header that names the valid one. If a worker is killed while it writes, the older half
//! stays valid: the file never contains a mixture.

use muster_config::RailsDocument;
use muster_fabric::Nid;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{pread, pwrite};
use std::io;
use std::os::fd::OwnedFd;
use tracing::warn;

/// Maximum size of a record in bytes. A larger one is refused and the older one stays.
pub(crate) const RECORD_BYTES_MAX: usize = 16 << 20;
const HEADER_BYTES: usize = 16;
/// Maximum length of a worker's last report in bytes, and its offset: after both halves.
const LAST_REPORT_MAX: usize = 512;
const LAST_REPORT_OFFSET: u64 = (HEADER_BYTES + 2 * RECORD_BYTES_MAX) as u64;

/// The stored state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// The open rails, including their ports.
    pub(crate) rails: String,
    /// Their configuration, as a rails document.
    pub(crate) document: String,
    /// The NID of each of the document's rails, in its order, separated by commas.
    pub(crate) opened: String,
    /// Discovered participants of age gossip, one on each line; empty if there are none.
    pub(crate) participants: String,
    /// The job key, once it is known.
    pub(crate) key: Option<[u8; 32]>,
    /// This agent drew the key. A key that rank 0 supplies replaces it.
    pub(crate) key_is_drawn: bool,
    /// The engine's snapshot; empty before the first one.
    pub(crate) engine: Vec<u8>,
}

/// The file.
pub(crate) struct Resume {
    file: OwnedFd,
    /// Number of writes; odd and even writes use different halves.
    writes: u64,
}

impl Resume {
    /// Creates an empty file.
    pub(crate) fn create() -> io::Result<Self> {
        Ok(Self {
            file: memfd_create("muster-resume", MemfdFlags::CLOEXEC)?,
            writes: 0,
        })
    }

    /// Writes a record, which replaces the last one.
    pub(crate) fn write(&mut self, record: &Record) -> io::Result<()> {
        let bytes = record.encode();
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "the record exceeds its limit of 16 MiB",
            ));
        }
        self.writes += 1;
        write_all(&self.file, &bytes, half_offset(self.writes))?;
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&self.writes.to_le_bytes());
        header[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        write_all(&self.file, &header, 0)
    }

    /// Writes a record. If that fails, the last one stays, and the failure is logged.
    pub(crate) fn save(&mut self, record: &Record) {
        if let Err(cause) = self.write(record) {
            warn!(%cause, "the resume record cannot be written; a later worker continues from an older one");
        }
    }

    /// Reads the last complete record, if there is one.
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

/// Writes the reason of a worker's end, for its supervisor.
pub(crate) struct LastReport(OwnedFd);

impl LastReport {
    pub(crate) fn write(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let bytes = &bytes[..bytes.len().min(LAST_REPORT_MAX)];
        let mut padded = [0; LAST_REPORT_MAX];
        padded[..bytes.len()].copy_from_slice(bytes);
        // If the write fails, the reason is only in the log.
        let _ = write_all(&self.0, &padded, LAST_REPORT_OFFSET);
    }
}

impl Resume {
    /// Creates the writer before the worker begins; none if no descriptor is left.
    pub(crate) fn last_report_writer(&self) -> Option<LastReport> {
        self.file.try_clone().ok().map(LastReport)
    }

    /// The reason of the last worker's end; empty if no worker has reported one.
    pub(crate) fn last_report(&self) -> String {
        let mut bytes = [0; LAST_REPORT_MAX];
        let length = read_all(&self.file, &mut bytes, LAST_REPORT_OFFSET).unwrap_or(0);
        let text = bytes[..length].split(|byte| *byte == 0).next();
        String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
    }
}

impl Record {
    /// Stores the open rails and the document that they belong to.
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
        let (rails, tail) = text(bytes)?;
        let (document, tail) = text(tail)?;
        let (opened, tail) = text(tail)?;
        let (participants, tail) = text(tail)?;
        let (has_key, tail) = tail.split_first()?;
        let (key, engine) = tail.split_first_chunk::<32>()?;
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

/// A text with its length before it, and the remaining bytes.
fn text(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (length, tail) = bytes.split_first_chunk::<4>()?;
    let (text, tail) = tail.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((String::from_utf8(text.to_vec()).ok()?, tail))
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
    fn an_incomplete_write_leaves_the_previous_record() {
        let mut resume = Resume::create().unwrap();
        resume.write(&record(b"complete")).unwrap();
        // The next half is written, but the header still names the old one.
        write_all(&resume.file, b"half a rec", half_offset(resume.writes + 1)).unwrap();
        assert_eq!(resume.read().unwrap(), Some(record(b"complete")));
    }

    #[test]
    fn the_last_report_replaces_earlier_ones_and_is_bounded() {
        let resume = Resume::create().unwrap();
        assert_eq!(resume.last_report(), "");
        let mut writer = resume.last_report_writer().unwrap();
        writer.write(&"x".repeat(1000));
        assert_eq!(resume.last_report().len(), LAST_REPORT_MAX);
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
