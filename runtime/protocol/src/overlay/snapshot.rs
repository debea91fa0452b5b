//! Snapshot: the state of an engine in bytes, for the worker that takes over.
//!
//! The new worker continues the same incarnation, with the next minor, the same table and the same rank
//! facts. It sends beats at once to the observers of its predecessor, which notice a gap of milliseconds
//! and no failure. It does not judge by what its predecessor heard: the silences of all members begin anew.
//! Links, probes and replay windows are not in a snapshot; of the attributes only the local ones are, the
//! others are requested again.

use thiserror::Error;

use crate::attributes::VALUE_MAX;
use crate::attributes::message::read_version;
use crate::codec::{Full, Malformed, Reader, Writer};
use crate::config::{Config, ConfigError};
use crate::identity::MemberId;
use crate::overlay::Overlay;
use crate::subjects::Subject;
use crate::table::Member;
use crate::time::Instant;
use crate::wire::{Fact, NodeFact};

const SNAPSHOT_VERSION: u8 = 4;
/// Added to the attribute version of the predecessor, whose last writes may be in no snapshot.
const MAP_VERSION_STEP: u64 = 1 << 24;
/// Room for the longest fact.
const FACT_MAX: usize = 512;
/// Rank facts that the predecessor may have stated after its last snapshot; later ones must be newer.
const UNSAVED_FACTS_MAX: u32 = 1 << 14;

/// Why a snapshot was refused. Start a new engine with a higher incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ResumeError {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The bytes are not a snapshot of this version.
    #[error("the snapshot is damaged or of another version; start with a higher incarnation")]
    Malformed,
    /// It is a snapshot of another node.
    #[error("the snapshot belongs to another name; start with a higher incarnation")]
    OtherName,
}

impl From<Malformed> for ResumeError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl Overlay {
    /// Appends the state for another worker to `bytes`.
    pub fn snapshot(&self, bytes: &mut Vec<u8>) {
        bytes.push(SNAPSHOT_VERSION);
        bytes.extend_from_slice(&self.news.rank_sequence.to_le_bytes());
        bytes.extend_from_slice(&self.named_since().0.to_le_bytes());
        let observers: Vec<MemberId> = self.observers().collect();
        bytes.extend_from_slice(&(observers.len() as u32).to_le_bytes());
        for observer in observers {
            bytes.extend_from_slice(&observer.0.to_le_bytes());
        }
        self.snapshot_attributes(bytes);
        let own = self.table.get(self.own).into_iter();
        let others = self.table.iter().filter(|member| member.id != self.own);
        for member in own.chain(others) {
            append(bytes, &Fact::Node(NodeFact::of(member)));
            let incarnation = member.version.incarnation;
            for fact in member.ranks.values() {
                append(
                    bytes,
                    &Fact::Rank {
                        node: member.id,
                        incarnation,
                        fact: *fact,
                    },
                );
            }
        }
        for entry in self.ledger.iter() {
            append(bytes, &Fact::Record(*entry));
        }
    }

    /// An engine that continues the incarnation in `snapshot`. The incarnation comes from the snapshot;
    /// name, address, key, seeds and timing come from the configuration, whose `first_sequence` must be
    /// above every sequence of the predecessor.
    ///
    /// # Errors The reason; no engine was made.
    pub fn resume(mut config: Config, snapshot: &[u8], now: Instant) -> Result<Self, ResumeError> {
        let mut reader = Reader::new(snapshot);
        if reader.u8()? != SNAPSHOT_VERSION {
            return Err(ResumeError::Malformed);
        }
        let rank_sequence = reader.u32()?;
        let named_since = Instant(reader.u64()?);
        let count = reader.u32()?;
        let mut observers = Vec::new();
        for _ in 0..count {
            observers.push(MemberId(reader.u64()?));
        }
        let (map_version, entries) = read_attributes(&mut reader)?;
        let Fact::Node(own) = Fact::read(&mut reader)? else {
            return Err(ResumeError::Malformed);
        };
        if own.id != MemberId::of(&config.name) || own.name != config.name {
            return Err(ResumeError::OtherName);
        }
        // During a restart inquiry the minor is not raised.
        let asks = config.previous_incarnation == Some(own.version.incarnation);
        if !asks {
            config.previous_incarnation = None;
            config.incarnation = own.version.incarnation;
        }
        let mut engine = Self::new(config)?;
        engine.news.rank_sequence = rank_sequence.saturating_add(UNSAVED_FACTS_MAX);
        let version = match asks {
            true => own.version,
            false => own.version.raised(),
        };
        engine.table.change(engine.own, |own| own.version = version);
        engine.now = now;
        engine.join_soon();
        engine.join.name_state.since = Some(named_since);
        engine.restore_attributes(map_version, &entries);
        while !reader.is_empty() {
            engine.restore(Fact::read(&mut reader)?)?;
        }
        if engine.table.live() > 1 {
            // All members are in the view, so the predecessor was admitted.
            engine.admit_restart();
        }
        for id in observers {
            if engine.table.in_view(id).is_some() {
                let link = engine.links.open(id, now);
                link.observed = true;
                link.mark(Subject::Node(engine.own));
                link.mark(Subject::Map(engine.own));
                engine.links.beats.insert(id);
            }
        }
        engine.links.settle(now);
        Ok(engine)
    }

    /// Restores the local attributes; those of other members are requested again.
    fn snapshot_attributes(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.attributes_version(self.own).to_le_bytes());
        let entries: Vec<_> = self.attributes(self.own).collect();
        bytes.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        for (key, value, version) in entries {
            bytes.extend_from_slice(&version.to_le_bytes());
            bytes.push(key.len() as u8);
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(value);
        }
    }

    /// The predecessor may have written after a snapshot without any attributes.
    fn restore_attributes(&mut self, version: u64, entries: &[(u64, &[u8], &[u8])]) {
        let (now, own) = (self.now, self.own);
        self.attributes.open(own, self.own_version().incarnation);
        self.attributes.change(own, |replica, _| {
            for (version, key, value) in entries {
                replica.map.write(now, key, Some((*value).into()), *version);
            }
            replica.map.jump(version + MAP_VERSION_STEP);
            replica.known = replica.map.version;
        });
        let version = self.attributes_version(own);
        self.table.change(own, |own| own.attributes = version);
    }

    fn restore(&mut self, fact: Fact<'_>) -> Result<(), ResumeError> {
        match fact {
            Fact::Node(fact) if fact.id != self.own => {
                let mut member = Member::new(fact.id, fact.info(), fact.version);
                member.state = fact.state;
                member.cause = fact.cause;
                member.exit_code = fact.exit_code;
                member.silent_us = fact.silent_us;
                member.reporters = fact.reporters.into();
                if self.rules.counts_reports && fact.state == crate::state::NodeState::Suspect {
                    let reports = fact.reporters.iter();
                    let reports = reports.map(|reporter| (reporter, fact.version)).collect();
                    self.watch.suspicions.insert(fact.id, reports);
                }
                self.table.insert(member);
                Ok(())
            }
            Fact::Rank { node, fact, .. } if self.table.get(node).is_some() => {
                self.table.change(node, |member| {
                    member.ranks.insert(fact.rank, fact);
                });
                Ok(())
            }
            Fact::Record(entry) => {
                self.ledger.merge(entry);
                Ok(())
            }
            _ => Err(ResumeError::Malformed),
        }
    }
}

/// The version of a map, and its entries: version, key, value.
type Entries<'a> = (u64, Vec<(u64, &'a [u8], &'a [u8])>);

fn read_attributes<'a>(reader: &mut Reader<'a>) -> Result<Entries<'a>, Malformed> {
    let map_version = read_version(reader)?;
    let mut entries = Vec::new();
    for _ in 0..reader.u32()? {
        let version = read_version(reader)?;
        let key = reader.short()?;
        let length = reader.u32()? as usize;
        let value = reader.bytes(length)?;
        if version == 0 || version > map_version || key.is_empty() || length > VALUE_MAX {
            return Err(Malformed::Value);
        }
        entries.push((version, key, value));
    }
    Ok((map_version, entries))
}

fn append(bytes: &mut Vec<u8>, fact: &Fact<'_>) {
    let mut buffer = [0; FACT_MAX];
    let mut writer = Writer::new(&mut buffer);
    let written: Result<(), Full> = fact.write(&mut writer);
    debug_assert!(written.is_ok(), "FACT_MAX has room for the longest fact");
    let used = writer.used();
    bytes.extend_from_slice(&buffer[..used]);
}
