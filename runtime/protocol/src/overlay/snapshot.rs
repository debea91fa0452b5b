//! Handing over to another worker: what an engine knows, in bytes, and an engine from them.
//!
//! The new worker continues the same life: same incarnation, next minor, the same table and rank
//! facts, and it beats at once to those who observed its predecessor, so that they notice a gap
//! of milliseconds and no death. It accuses nobody by what its predecessor heard: everybody
//! starts as if just heard. Links, probes and windows are made anew.

use thiserror::Error;

use crate::codec::{Full, Malformed, Reader, Writer};
use crate::config::{Config, ConfigError};
use crate::identity::MemberId;
use crate::link::Link;
use crate::overlay::Overlay;
use crate::table::Member;
use crate::time::Instant;
use crate::wire::{Fact, NodeFact};

const SNAPSHOT_VERSION: u8 = 1;
/// Room for the longest fact.
const FACT_MAX: usize = 512;
/// Rank facts that the predecessor may have stated after its last snapshot; ours must be newer.
const UNSAVED_FACTS_MAX: u32 = 1 << 14;

/// Why no engine could be made from a snapshot. Start a new one with a higher incarnation.
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
    /// Writes what another worker needs after `bytes`' present content.
    pub fn snapshot(&self, bytes: &mut Vec<u8>) {
        bytes.push(SNAPSHOT_VERSION);
        bytes.extend_from_slice(&self.rank_sequence.to_le_bytes());
        let observers: Vec<MemberId> = self.observers().collect();
        bytes.extend_from_slice(&(observers.len() as u32).to_le_bytes());
        for observer in observers {
            bytes.extend_from_slice(&observer.0.to_le_bytes());
        }
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
    }

    /// An engine that continues the life in `snapshot`. Its incarnation wins over the
    /// configuration's; name, address, key, seeds and timing come from the configuration, whose
    /// `first_sequence` must be above every sequence the predecessor used.
    ///
    /// # Errors
    /// Why not; no engine was made.
    pub fn resume(mut config: Config, snapshot: &[u8], now: Instant) -> Result<Self, ResumeError> {
        let mut reader = Reader::new(snapshot);
        if reader.u8()? != SNAPSHOT_VERSION {
            return Err(ResumeError::Malformed);
        }
        let rank_sequence = reader.u32()?;
        let count = reader.u32()?;
        let mut observers = Vec::new();
        for _ in 0..count {
            observers.push(MemberId(reader.u64()?));
        }
        let Fact::Node(own) = Fact::read(&mut reader)? else {
            return Err(ResumeError::Malformed);
        };
        if own.id != MemberId::of(&config.name) || own.name != config.name {
            return Err(ResumeError::OtherName);
        }
        config.incarnation = own.version.incarnation;
        let mut engine = Self::new(config)?;
        engine.rank_sequence = rank_sequence.saturating_add(UNSAVED_FACTS_MAX);
        let version = own.version.raised();
        engine.table.change(engine.own, |own| own.version = version);
        while !reader.is_empty() {
            engine.restore(Fact::read(&mut reader)?)?;
        }
        engine.now = now;
        for id in observers {
            if engine.table.in_view(id).is_some() {
                let mut link = Link::new(now);
                link.observed = true;
                link.beat_due = true;
                link.mark(crate::link::Subject::Node(engine.own));
                engine.links.insert(id, link);
            }
        }
        Ok(engine)
    }

    fn restore(&mut self, fact: Fact<'_>) -> Result<(), ResumeError> {
        match fact {
            Fact::Node(fact) if fact.id != self.own => {
                let mut member = Member::new(fact.id, fact.name, fact.address, fact.version);
                member.state = fact.state;
                member.cause = fact.cause;
                member.exit_code = fact.exit_code;
                member.silent_us = fact.silent_us;
                member.reporters = fact.reporters;
                if self.is_paper() && fact.state == crate::state::NodeState::Suspect {
                    let reports = fact.reporters.iter();
                    let reports = reports.map(|reporter| (reporter, fact.version)).collect();
                    self.suspicions.insert(fact.id, reports);
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
            _ => Err(ResumeError::Malformed),
        }
    }
}

fn append(bytes: &mut Vec<u8>, fact: &Fact<'_>) {
    let mut buffer = [0; FACT_MAX];
    let mut writer = Writer::new(&mut buffer);
    let written: Result<(), Full> = fact.write(&mut writer);
    debug_assert!(written.is_ok(), "FACT_MAX has room for the longest fact");
    let used = writer.used();
    bytes.extend_from_slice(&buffer[..used]);
}
