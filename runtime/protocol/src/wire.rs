//! Messages: the bodies of frames, read and written with checks.
//!
//! A body is read completely before anything of it is used; bytes left over at its end are an error. Facts
//! are state, not commands: each is a record as the sender holds it, so a duplicate or a late one is
//! harmless.

use crate::attributes::message::{self, Ask, Section};
use crate::cause::CauseKind;
use crate::codec::{Full, Malformed, Reader, Writer};
use crate::frame::{FrameName, Kind};
use crate::identity::{ADDRESS_MAX, GROUP_MAX, INCARNATION_MAX, MemberId, NAME_MAX, Version};
use crate::ledger::{LedgerEntry, LedgerKey};
use crate::member_info::MemberInfo;
use crate::parameters::Parameters;
use crate::reporters::{REPORTERS_MAX, Reporters};
use crate::state::{NodeState, RankDetail, RankFact, RankState};
use crate::subjects::Subject;
use crate::table::Member;

/// Most acknowledgements in one frame.
pub(crate) const ACKS_MAX: usize = 24;

/// The sender observes the receiver, which sends it beats.
pub(crate) const ROLE_OBSERVE: u8 = 1;
/// The sender has the receiver as a neighbour: news in both directions.
pub(crate) const ROLE_NEIGHBOUR: u8 = 2;

const ROLES: u8 = ROLE_OBSERVE | ROLE_NEIGHBOUR;
/// A reply repeats the requested roles in the same byte, shifted by this.
pub(crate) const ASKED_SHIFT: u32 = 2;

/// A member's record, as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeFact<'a> {
    pub(crate) id: MemberId,
    pub(crate) version: Version,
    pub(crate) state: NodeState,
    pub(crate) exit_code: i32,
    pub(crate) cause: CauseKind,
    pub(crate) silent_us: u32,
    pub(crate) name: &'a str,
    pub(crate) group: &'a str,
    pub(crate) address: &'a [u8],
    pub(crate) reporters: Reporters,
}

impl<'a> NodeFact<'a> {
    /// The record of a member. `degraded` is what the local fabric sees, and is not sent.
    pub(crate) fn of(member: &'a Member) -> Self {
        Self {
            id: member.id,
            version: member.version,
            state: member.state,
            exit_code: member.exit_code,
            cause: member.cause,
            silent_us: member.silent_us,
            name: member.name(),
            group: member.group(),
            address: member.address(),
            reporters: *member.reporters,
        }
    }
}

/// A fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fact<'a> {
    Node(NodeFact<'a>),
    Rank {
        node: MemberId,
        incarnation: u64,
        fact: RankFact,
    },
    /// One report, in paper mode.
    Suspicion {
        reporter: MemberId,
        suspect: MemberId,
        version: Version,
    },
    /// The sender holds the node's attributes up to this version.
    Map {
        node: MemberId,
        incarnation: u64,
        version: u64,
    },
    /// An entry of the ledger.
    Record(LedgerEntry),
}

/// The strength of a view: decides which side of a split yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strength {
    pub(crate) live: u32,
    pub(crate) root: MemberId,
}

/// The receiver is held failed, by a view of this strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailureClaim<'a> {
    pub(crate) strength: Strength,
    pub(crate) about: NodeFact<'a>,
}

impl<'a> FailureClaim<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let strength = Strength {
            live: reader.u32()?,
            root: MemberId(reader.u64()?),
        };
        Ok(Self {
            strength,
            about: NodeFact::read(reader)?,
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        writer.u32(self.strength.live)?;
        writer.u64(self.strength.root.0)?;
        self.about.write(writer)
    }
}

/// A body after parsing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    Beat {
        late_ms: u16,
        digest: u64,
        acks: Acks,
    },
    Link {
        /// In a reply: the roles that were requested.
        asked: Option<u8>,
        roles: u8,
        want_view: bool,
        digest: u64,
        parameters: Parameters,
        own: NodeFact<'a>,
    },
    Probe,
    ProbeReply,
    IndirectProbe {
        suspect: MemberId,
        version: Version,
    },
    IndirectProbeReply {
        suspect: MemberId,
        version: Version,
        alive: bool,
        age_us: u32,
    },
    News {
        want_ack: bool,
        acks: Acks,
        facts: Vec<Fact<'a>>,
    },
    Ack {
        acks: Acks,
    },
    /// `boot` if the target is a seed, not a member of the history. Has a failure claim if the receiver is
    /// held failed.
    Join {
        own: NodeFact<'a>,
        boot: bool,
        parameters: Parameters,
        failure_claim: Option<FailureClaim<'a>>,
    },
    /// The answer to a `Join`, with its `boot`. Or sent to correct the receiver's record of itself
    /// (`corrects`).
    View {
        own: NodeFact<'a>,
        boot: bool,
        corrects: bool,
        facts: Vec<Fact<'a>>,
    },
    /// Names the receiver's frame that it answers.
    FailureClaim {
        failure_claim: FailureClaim<'a>,
        answers: FrameName,
    },
    /// The answer to a `Join` for anyone: asks to repeat it for the present incarnation. Names that frame.
    Verify {
        own: NodeFact<'a>,
        boot: bool,
        parameters: Parameters,
        answers: FrameName,
    },
    /// The receiver's parameters differ.
    Refusal {
        own: NodeFact<'a>,
        parameters: Parameters,
    },
    /// Another member uses the local name, which the sender has held for `age_us`. Sent to that incarnation
    /// of it.
    NameConflict {
        own: NodeFact<'a>,
        age_us: u64,
        receiver_incarnation: u64,
    },
    Request {
        asks: Vec<Ask>,
    },
    /// `stop`: the sender waits for the next request.
    Reply {
        stop: bool,
        sections: Vec<Section<'a>>,
    },
    Hint {
        hints: Vec<Hint>,
    },
}

/// What the sender holds about a subject, as a hash (0: nothing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hint {
    pub(crate) subject: Subject,
    /// The sender requests what the receiver hinted at.
    pub(crate) wanted: bool,
    pub(crate) stamp: u64,
}

/// Size of a hint, in bytes.
pub(crate) const HINT_SIZE: usize = 22;

impl Hint {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let wanted = reader.flag()?;
        let (tag, id, rank) = (reader.u8()?, MemberId(reader.u64()?), reader.u32()?);
        let subject = match tag {
            TAG_NODE if rank == 0 => Subject::Node(id),
            TAG_RANK => Subject::Rank(id, rank),
            TAG_MAP if rank == 0 => Subject::Map(id),
            TAG_RECORD if id.0 <= 2 => match LedgerKey::from_parts(id.0 as u8, rank) {
                Some(key) => Subject::Record(key),
                None => return Err(Malformed::Value),
            },
            _ => return Err(Malformed::Value),
        };
        Ok(Self {
            subject,
            wanted,
            stamp: reader.u64()?,
        })
    }

    /// Suspicions (paper mode) have no hints.
    pub(crate) fn write(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        let (tag, id, number) = match self.subject {
            Subject::Node(id) | Subject::Suspicion { suspect: id, .. } => (TAG_NODE, id.0, 0),
            Subject::Rank(id, rank) => (TAG_RANK, id.0, rank),
            Subject::Map(id) => (TAG_MAP, id.0, 0),
            Subject::Record(key) => {
                let (kind, number) = key.parts();
                (TAG_RECORD, u64::from(kind), number)
            }
        };
        writer.u8(u8::from(self.wanted))?;
        writer.u8(tag)?;
        writer.u64(id)?;
        writer.u32(number)?;
        writer.u64(self.stamp)
    }
}

/// Flag of an acknowledgement, above all sequences: the receiver holds this link lazy.
pub(crate) const ACK_LAZY: u64 = 1 << 63;

/// Sequences of received news frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acks {
    count: u8,
    sequences: [u64; ACKS_MAX],
}

impl Acks {
    /// Adds one; returns false if there is no room.
    pub(crate) fn push(&mut self, sequence: u64) -> bool {
        let at = usize::from(self.count);
        if at == ACKS_MAX {
            return false;
        }
        self.sequences[at] = sequence;
        self.count += 1;
        true
    }

    pub(crate) fn as_slice(&self) -> &[u64] {
        &self.sequences[..usize::from(self.count)]
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        writer.u8(self.count)?;
        self.as_slice()
            .iter()
            .try_for_each(|sequence| writer.u64(*sequence))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = reader.u8()?;
        let mut acks = Self::default();
        for _ in 0..count {
            if !acks.push(reader.u64()?) {
                return Err(Malformed::Value);
            }
        }
        Ok(acks)
    }
}

impl<'a> Message<'a> {
    /// Reads a body of this kind.
    pub(crate) fn read(kind: Kind, body: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let message = Self::read_kind(kind, &mut reader)?;
        if reader.is_empty() {
            Ok(message)
        } else {
            Err(Malformed::Value)
        }
    }

    fn read_kind(kind: Kind, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(match kind {
            Kind::Beat => Self::Beat {
                late_ms: reader.u16()?,
                digest: reader.u64()?,
                acks: Acks::read(reader)?,
            },
            Kind::Link | Kind::LinkReply => {
                let both = reader.u8()?;
                let (asked, roles) = (both >> ASKED_SHIFT, both & ROLES);
                let is_reply = kind == Kind::LinkReply;
                if asked & !ROLES != 0 || (!is_reply && asked != 0) {
                    return Err(Malformed::Value);
                }
                Self::Link {
                    asked: is_reply.then_some(asked),
                    roles,
                    want_view: reader.flag()?,
                    digest: reader.u64()?,
                    parameters: Parameters::read(reader)?,
                    own: NodeFact::read(reader)?,
                }
            }
            Kind::Probe => Self::Probe,
            Kind::ProbeReply => Self::ProbeReply,
            Kind::IndirectProbe => Self::IndirectProbe {
                suspect: MemberId(reader.u64()?),
                version: read_version(reader)?,
            },
            Kind::IndirectProbeReply => Self::IndirectProbeReply {
                suspect: MemberId(reader.u64()?),
                version: read_version(reader)?,
                alive: reader.flag()?,
                age_us: reader.u32()?,
            },
            Kind::News => Self::News {
                want_ack: reader.flag()?,
                acks: Acks::read(reader)?,
                facts: read_facts(reader)?,
            },
            Kind::Ack => Self::Ack {
                acks: Acks::read(reader)?,
            },
            Kind::Join => Self::Join {
                own: NodeFact::read(reader)?,
                boot: reader.flag()?,
                parameters: Parameters::read(reader)?,
                failure_claim: if reader.flag()? {
                    Some(FailureClaim::read(reader)?)
                } else {
                    None
                },
            },
            Kind::View => Self::View {
                own: NodeFact::read(reader)?,
                boot: reader.flag()?,
                corrects: reader.flag()?,
                facts: read_facts(reader)?,
            },
            Kind::FailureClaim => Self::FailureClaim {
                failure_claim: FailureClaim::read(reader)?,
                answers: FrameName::read(reader)?,
            },
            Kind::Verify => Self::Verify {
                own: NodeFact::read(reader)?,
                boot: reader.flag()?,
                parameters: Parameters::read(reader)?,
                answers: FrameName::read(reader)?,
            },
            Kind::Refusal => Self::Refusal {
                own: NodeFact::read(reader)?,
                parameters: Parameters::read(reader)?,
            },
            Kind::NameConflict => Self::NameConflict {
                own: NodeFact::read(reader)?,
                age_us: reader.u64()?,
                receiver_incarnation: reader.u64()?,
            },
            Kind::Request => Self::Request {
                asks: message::read_asks(reader)?,
            },
            Kind::Reply => Self::Reply {
                stop: reader.flag()?,
                sections: message::read_sections(reader)?,
            },
            Kind::Hint => {
                let count = reader.u16()?;
                let mut hints = Vec::new();
                for _ in 0..count {
                    hints.push(Hint::read(reader)?);
                }
                Self::Hint { hints }
            }
            Kind::Gossip | Kind::GossipReply | Kind::GossipCarried => {
                return Err(Malformed::Value);
            }
        })
    }
}

/// Reads the facts at the end of a body, after their count. The vector grows with the facts present, not by
/// the count.
fn read_facts<'a>(reader: &mut Reader<'a>) -> Result<Vec<Fact<'a>>, Malformed> {
    let count = reader.u16()?;
    let mut facts = Vec::new();
    for _ in 0..count {
        facts.push(Fact::read(reader)?);
    }
    Ok(facts)
}

const TAG_NODE: u8 = 1;
const TAG_RANK: u8 = 2;
const TAG_SUSPICION: u8 = 3;
const TAG_MAP: u8 = 4;
const TAG_RECORD: u8 = 5;

impl<'a> Fact<'a> {
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        match reader.u8()? {
            TAG_NODE => Ok(Self::Node(NodeFact::read(reader)?)),
            TAG_RANK => Ok(Self::Rank {
                node: MemberId(reader.u64()?),
                incarnation: reader.u64()?,
                fact: read_rank(reader)?,
            }),
            TAG_SUSPICION => Ok(Self::Suspicion {
                reporter: MemberId(reader.u64()?),
                suspect: MemberId(reader.u64()?),
                version: read_version(reader)?,
            }),
            TAG_MAP => Ok(Self::Map {
                node: MemberId(reader.u64()?),
                incarnation: reader.u64()?,
                version: message::read_version(reader)?,
            }),
            TAG_RECORD => Ok(Self::Record(LedgerEntry::read(reader)?)),
            _ => Err(Malformed::Value),
        }
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        match self {
            Self::Node(fact) => {
                writer.u8(TAG_NODE)?;
                fact.write(writer)
            }
            Self::Rank {
                node,
                incarnation,
                fact,
            } => {
                writer.u8(TAG_RANK)?;
                writer.u64(node.0)?;
                writer.u64(*incarnation)?;
                writer.u32(fact.rank)?;
                writer.u8(fact.state as u8)?;
                writer.u8(fact.detail.code)?;
                writer.u8(fact.detail.argument)?;
                writer.u32(fact.sequence)
            }
            Self::Suspicion {
                reporter,
                suspect,
                version,
            } => {
                writer.u8(TAG_SUSPICION)?;
                writer.u64(reporter.0)?;
                writer.u64(suspect.0)?;
                write_version(writer, *version)
            }
            Self::Map {
                node,
                incarnation,
                version,
            } => {
                writer.u8(TAG_MAP)?;
                writer.u64(node.0)?;
                writer.u64(*incarnation)?;
                writer.u64(*version)
            }
            Self::Record(entry) => {
                writer.u8(TAG_RECORD)?;
                entry.write(writer)
            }
        }
    }
}

fn read_rank(reader: &mut Reader<'_>) -> Result<RankFact, Malformed> {
    let fact = RankFact {
        rank: reader.u32()?,
        state: RankState::from_number(reader.u8()?).ok_or(Malformed::Value)?,
        detail: RankDetail {
            code: reader.u8()?,
            argument: reader.u8()?,
        },
        sequence: reader.u32()?,
    };
    // Only ends of ranks are kept from a previous incarnation.
    if fact.sequence == 0 && !fact.state.is_end() {
        return Err(Malformed::Value);
    }
    Ok(fact)
}

impl<'a> NodeFact<'a> {
    /// The name, group and address in it.
    pub(crate) fn info(&self) -> MemberInfo {
        MemberInfo::new(self.name, self.group, self.address)
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let id = MemberId(reader.u64()?);
        let version = read_version(reader)?;
        let state = NodeState::from_number(reader.u8()?).ok_or(Malformed::Value)?;
        if matches!(state, NodeState::Unknown | NodeState::Degraded) {
            return Err(Malformed::Value);
        }
        let exit_code = reader.i32()?;
        let cause = CauseKind::from_number(reader.u8()?).ok_or(Malformed::Value)?;
        let silent_us = reader.u32()?;
        let name = core::str::from_utf8(reader.short()?).map_err(|_| Malformed::Value)?;
        let group = core::str::from_utf8(reader.short()?).map_err(|_| Malformed::Value)?;
        // Both are printed: no control characters.
        let printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if group.len() > GROUP_MAX || !printable(group) || !printable(name) {
            return Err(Malformed::Value);
        }
        let address = reader.short()?;
        if name.is_empty() || name.len() > NAME_MAX || address.is_empty() {
            return Err(Malformed::Value);
        }
        let count = usize::from(reader.u8()?);
        if count > REPORTERS_MAX {
            return Err(Malformed::Value);
        }
        let mut reporters = Reporters::default();
        for _ in 0..count {
            let reporter = MemberId(reader.u64()?);
            reporters.add(reporter, reader.u16()?);
        }
        Ok(Self {
            id,
            version,
            state,
            exit_code,
            cause,
            silent_us,
            name,
            group,
            address,
            reporters,
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        debug_assert!(self.address.len() <= ADDRESS_MAX);
        writer.u64(self.id.0)?;
        write_version(writer, self.version)?;
        writer.u8(self.state as u8)?;
        writer.i32(self.exit_code)?;
        writer.u8(self.cause as u8)?;
        writer.u32(self.silent_us)?;
        writer.short(self.name.as_bytes())?;
        writer.short(self.group.as_bytes())?;
        writer.short(self.address)?;
        writer.u8(self.reporters.len() as u8)?;
        self.reporters
            .iter_marked()
            .try_for_each(|(reporter, mark)| {
                writer.u64(reporter.0)?;
                writer.u16(mark)
            })
    }
}

fn read_version(reader: &mut Reader<'_>) -> Result<Version, Malformed> {
    let version = Version {
        incarnation: reader.u64()?,
        minor: reader.u32()?,
    };
    if version.incarnation == 0 || version.incarnation > INCARNATION_MAX || version.minor == 0 {
        return Err(Malformed::Value);
    }
    Ok(version)
}

pub(crate) fn write_version(writer: &mut Writer<'_>, version: Version) -> Result<(), Full> {
    writer.u64(version.incarnation)?;
    writer.u32(version.minor)
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
