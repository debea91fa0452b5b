//! The words host and engine use: inputs, transmits, and views of members.

use crate::arrivals::Arrivals;
use crate::config::Policy;
use crate::counters::Counters;
use crate::event::CauseKind;
use crate::evidence::Observation;
use crate::identity::{MemberId, Version};
use crate::link::Link;
use crate::overlay::Overlay;
use crate::state::{NodeState, RankDetail, RankFact, RankState};
use crate::table::{Member, Reporters};
use crate::time::Instant;
use crate::verdict;

/// What can happen to an engine.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// The time asked for has come.
    Wake,
    /// A datagram arrived.
    Datagram {
        /// All of it.
        bytes: &'a [u8],
    },
    /// The fabric cannot reach this member: evidence, to be probed, not a verdict.
    Unreachable(MemberId),
    /// The fabric misses a member on one of its rails: it is asked for a sign by all of them.
    Ask(MemberId),
    /// Some rail of this member is silent while another answers, or that is over. Local.
    Degraded {
        /// Whose rail.
        member: MemberId,
        /// Whether it is degraded now.
        degraded: bool,
    },
    /// A rank of this node has had a message from a rank of this member, so long ago.
    TrafficFrom {
        /// Whose rank sent it.
        member: MemberId,
        /// How long ago it was had, in microseconds.
        age_us: u64,
    },
    /// A rank of this node has sent a message to a rank of this member, so long ago.
    TrafficTo {
        /// Whose rank it was sent to.
        member: MemberId,
        /// How long ago, in microseconds.
        age_us: u64,
    },
    /// A message of the application to a rank of this node carried these bytes, made over there by
    /// [`Overlay::write_ahead`].
    Carried {
        /// All of them.
        bytes: &'a [u8],
        /// How long ago the message was had, in microseconds.
        age_us: u64,
    },
    /// News from who knows.
    Told(Told<'a>),
    /// An address to knock at.
    Seed {
        /// As the fabric reads it, 1 to 255 bytes.
        address: &'a [u8],
    },
    /// An address that is to be knocked at no more; harmless if it never was.
    Unseed {
        /// As it was given.
        address: &'a [u8],
    },
    /// The rails of this node have changed, and with them where it is reached.
    Address(&'a [u8]),
    /// The job's key.
    Key([u8; 32]),
    /// What to do when declared failed, from now on.
    Policy(Policy),
    /// Write an attribute of this node.
    Publish {
        /// 1 to 255 bytes.
        key: &'a [u8],
        /// At most 65536 bytes.
        value: &'a [u8],
    },
    /// Delete an attribute of this node.
    Withdraw {
        /// 1 to 255 bytes; `Reject::Unknown` if there is none.
        key: &'a [u8],
    },
    /// Say goodbye and fall silent.
    Leave {
        /// Told to everybody.
        exit_code: i32,
    },
}

/// News from outside the protocol.
#[derive(Clone, Copy, Debug)]
pub enum Told<'a> {
    /// The kernel of this very node, about one of its ranks.
    Rank {
        /// Its number in the job.
        rank: u32,
        /// Its state now.
        state: RankState,
        /// How that is known.
        detail: RankDetail,
    },
    /// A launcher or an administrator: that node is gone. Believed at once and everywhere.
    NodeFailed {
        /// Its name.
        name: &'a str,
    },
}

/// How far an engine is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A member, or on the way to be one.
    Running,
    /// Saying goodbye; ends when everybody linked has heard it, or after two deadlines.
    Leaving,
    /// Silent for good: left, outcast with policy `Stop`, or its name is taken.
    Stopped,
}

/// A frame that was written into the lent buffer and is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Transmit {
    /// To whom; `Overlay::address_of` knows where that is.
    pub target: Target,
    /// Bytes of the buffer that are the frame.
    pub size: usize,
    /// In which lane.
    pub class: Class,
    /// Over which rails.
    pub route: Route,
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A member that is known.
    Member(MemberId),
    /// The seed with this index, in the order of configuration and `Input::Seed`.
    Seed(usize),
    /// Somebody who cannot be reached under its id (it uses the name of another). Ask for the
    /// address at once: the slot is used again.
    Address(usize),
}

/// Which lane a frame takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// May be drained on the receiver's own tick.
    Beat,
    /// Wakes the receiver; never waits behind beats.
    News,
}

/// Which rails a frame takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
    /// The next healthy rail in turn.
    Next,
    /// A copy on every rail of the peer.
    All,
}

/// One member as this engine sees it now.
#[derive(Clone, Copy, Debug)]
pub struct MemberView<'a> {
    member: &'a Member,
}

impl<'a> MemberView<'a> {
    pub(crate) fn new(member: &'a Member) -> Self {
        Self { member }
    }

    /// Its place on the ring.
    #[must_use]
    pub fn id(&self) -> MemberId {
        self.member.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.member.name()
    }

    /// What it shares with those that may fail together with it; empty for none.
    #[must_use]
    pub fn group(&self) -> &'a str {
        self.member.group()
    }

    /// Where it is reached; opaque.
    #[must_use]
    pub fn address(&self) -> &'a [u8] {
        self.member.address()
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.member.version
    }

    /// Its state, with what the fabric said of its rails.
    #[must_use]
    pub fn state(&self) -> NodeState {
        match self.member.state {
            NodeState::Alive if self.member.degraded => NodeState::Degraded,
            state => state,
        }
    }

    /// The exit code it left with; 0 unless it left.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        self.member.exit_code
    }

    /// The evidence that decided its state.
    #[must_use]
    pub fn cause(&self) -> CauseKind {
        self.member.cause
    }

    /// Who reported its present version.
    #[must_use]
    pub fn reporters(&self) -> Reporters {
        self.member.reporters
    }

    /// When a frame of it last came to us; zero if none ever did.
    #[must_use]
    pub fn last_heard(&self) -> Instant {
        self.member.last_heard
    }

    /// How late it says it runs, in microseconds.
    #[must_use]
    pub fn lateness_us(&self) -> u64 {
        self.member.late_us()
    }

    /// What it states about its ranks, by rank number.
    pub fn ranks(&self) -> impl Iterator<Item = &'a RankFact> + use<'a> {
        self.member.ranks.values()
    }
}

impl Overlay {
    /// Everybody known, those who are gone included, in ring order. The engine's own member too.
    pub fn members(&self) -> impl Iterator<Item = MemberView<'_>> {
        self.table.iter().map(|member| MemberView { member })
    }

    /// How many are known who are gone.
    #[must_use]
    pub fn gone(&self) -> usize {
        self.table.removed()
    }

    /// The seeds, from wherever they came.
    pub fn seeds(&self) -> impl Iterator<Item = &[u8]> {
        self.config.seeds.iter().map(Vec::as_slice)
    }

    /// Whether it has the job's key.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.config.key.is_some()
    }

    /// One member.
    #[must_use]
    pub fn member(&self, id: MemberId) -> Option<MemberView<'_>> {
        self.table.get(id).map(|member| MemberView { member })
    }

    /// The name of a member that is known, or refused.
    #[must_use]
    pub fn name_of(&self, id: MemberId) -> Option<&str> {
        let known = self.table.get(id).map(|member| member.name());
        known.or_else(|| self.refused_name(id))
    }

    /// Where a frame for this target goes.
    #[must_use]
    pub fn address_of(&self, target: Target) -> Option<&[u8]> {
        match target {
            Target::Member(id) => self.table.get(id).map(|member| member.address()),
            Target::Seed(index) => self.config.seeds.get(index).map(Vec::as_slice),
            Target::Address(slot) => self.outbox.slot_address(slot),
        }
    }

    /// The last observations about a member, oldest first: `muster why`.
    pub fn why(&self, id: MemberId) -> impl Iterator<Item = &Observation> {
        self.table
            .get(id)
            .into_iter()
            .flat_map(|member| member.evidence.iter())
    }

    /// What this engine has done.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The engine's own id.
    #[must_use]
    pub fn id(&self) -> MemberId {
        self.own
    }

    /// The engine's own version now.
    #[must_use]
    pub fn version(&self) -> Version {
        self.own_version()
    }

    /// How far the engine is in its life.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// How many are in the view, the engine's own member included.
    #[must_use]
    pub fn live(&self) -> usize {
        self.table.live()
    }

    /// A digest of the view: equal views have equal digests.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.table.digest()
    }

    /// What the engine's own record adds to the digest of a view that it is in, as it is now.
    #[must_use]
    pub fn own_digest(&self) -> u64 {
        self.table.get(self.own).map_or(0, |own| own.digest())
    }

    /// The host cannot promise to be called in time: so much lateness is to be expected, in
    /// microseconds, at most one second. Peers are told, and widen their deadlines for this member
    /// before it is late for the first time.
    pub fn expect_lateness(&mut self, least_us: u64) {
        self.lateness.expect(least_us);
    }

    /// The host has had more to read for so long, in microseconds, without coming to its end: what
    /// others say may have waited as long. Widens deadlines as lateness does, here and at peers.
    pub fn strained(&mut self, busy_us: u64) {
        self.lateness.strain(busy_us);
    }

    /// How late the host calls, decaying, in microseconds; widens every deadline.
    #[must_use]
    pub fn lateness_us(&self) -> u64 {
        self.lateness.figure_us()
    }

    /// The deadline this engine gives a member now, by how its beats arrive and widened by both
    /// sides' lateness, in microseconds.
    #[must_use]
    pub fn deadline_us(&self, id: MemberId) -> u64 {
        let theirs_us = self.table.get(id).map_or(0, Member::late_us);
        let least_us = self.config.deadline_us;
        let most_us = least_us + self.config.deadline_slack_us;
        let fixed_us = self.widened_deadline_us(theirs_us);
        match self.links.get(&id) {
            Some(link) if link.observes && !self.is_paper() => {
                let joining_us = self.joining_us(id, link);
                let known = link.arrivals.is_known();
                let judged = self
                    .links
                    .iter()
                    .filter(|(other, _)| !known || **other == id)
                    .filter(|(_, link)| link.observes && link.arrivals.is_known())
                    .map(|(_, link)| link.arrivals.deadline_us(least_us, most_us));
                let judged_us = judged.max().unwrap_or(least_us) + (fixed_us - least_us);
                judged_us.max(joining_us)
            }
            _ => fixed_us,
        }
    }

    /// How long a member that has just joined may be silent before it has agreed to beat to us: its
    /// answer may wait behind those to all others who greet it. 0 once it has agreed.
    fn joining_us(&self, id: MemberId, link: &Link) -> u64 {
        let member = self.table.get(id).filter(|_| link.confirmed.is_none());
        member.map_or(0, |member| {
            let until = verdict::joining_until(member.joined_at, self.config.deadline_us);
            until.since(member.alive_at().max(link.since))
        })
    }

    /// How the beats of a member arrive that this engine observes.
    #[must_use]
    pub fn arrivals(&self, id: MemberId) -> Option<Arrivals> {
        let link = self.links.get(&id).filter(|link| link.observes)?;
        Some(link.arrivals)
    }

    /// Whether this engine has a link with a member, whoever began it.
    #[must_use]
    pub fn is_linked(&self, id: MemberId) -> bool {
        self.links.contains_key(&id)
    }

    /// Those this engine observes: they beat to it.
    pub fn observing(&self) -> impl Iterator<Item = MemberId> {
        self.links
            .iter()
            .filter(|(_, link)| link.observes)
            .map(|(id, _)| *id)
    }

    /// Those this engine beats to.
    pub fn observers(&self) -> impl Iterator<Item = MemberId> {
        self.links
            .iter()
            .filter(|(_, link)| link.observed)
            .map(|(id, _)| *id)
    }
}
