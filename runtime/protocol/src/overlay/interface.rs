//! The engine's interface to its host: inputs, transmits, and views of members.

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

/// An input of an engine.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// The time of `poll_timeout` has come.
    Wake,
    /// A datagram arrived.
    Datagram {
        /// The whole datagram.
        bytes: &'a [u8],
    },
    /// The fabric cannot reach this member: a reason to probe it, not a verdict.
    Unreachable(MemberId),
    /// The fabric misses this member on one of its rails: probe it over all of them.
    Ask(MemberId),
    /// A rail of this member became silent while another works, or that has ended. Local knowledge.
    Degraded {
        /// The member.
        member: MemberId,
        /// Whether it is degraded now.
        degraded: bool,
    },
    /// A local rank has received a message from a rank of this member.
    TrafficFrom {
        /// The member of the sender.
        member: MemberId,
        /// How long ago it was received, in microseconds.
        age_us: u64,
    },
    /// A local rank has sent a message to a rank of this member.
    TrafficTo {
        /// The member of the receiver.
        member: MemberId,
        /// How long ago, in microseconds.
        age_us: u64,
    },
    /// A message of the application to a local rank carried bytes written by [`Overlay::write_ahead`] on
    /// the sender's node.
    Carried {
        /// All of these bytes.
        bytes: &'a [u8],
        /// How long ago the message was received, in microseconds.
        age_us: u64,
    },
    /// A fact from outside the protocol.
    Told(Told<'a>),
    /// Adds an address to send join requests to.
    Seed {
        /// Opaque, 1 to 255 bytes.
        address: &'a [u8],
    },
    /// Removes such an address; no effect if it is not there.
    Unseed {
        /// As it was given.
        address: &'a [u8],
    },
    /// The rails of this node have changed, and with them its address.
    Address(&'a [u8]),
    /// The job's key.
    Key([u8; 32]),
    /// The policy when declared failed, from now on.
    Policy(Policy),
    /// Writes an attribute of this node.
    Publish {
        /// 1 to 255 bytes.
        key: &'a [u8],
        /// At most 65536 bytes.
        value: &'a [u8],
    },
    /// Deletes an attribute of this node.
    Withdraw {
        /// 1 to 255 bytes; `Reject::Unknown` if there is none.
        key: &'a [u8],
    },
    /// Leaves the job.
    Leave {
        /// Sent to all members.
        exit_code: i32,
    },
}

/// A fact from outside the protocol.
#[derive(Clone, Copy, Debug)]
pub enum Told<'a> {
    /// The state of a local rank, from the kernel.
    Rank {
        /// The rank's number in the job.
        rank: u32,
        /// The rank's state now.
        state: RankState,
        /// The evidence for it.
        detail: RankDetail,
    },
    /// A launcher or an administrator says that a node has failed. Accepted at once by all members.
    NodeFailed {
        /// The node's name.
        name: &'a str,
    },
}

/// The phase of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A member, or on the way to be one.
    Running,
    /// Leaving; ends when all links have acknowledged it, or after two deadlines.
    Leaving,
    /// Stopped for good: left, outcast with policy `Stop`, or its name is held by another member.
    Stopped,
}

/// A frame in the caller's buffer that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Transmit {
    /// The receiver; `Overlay::address_of` has its address.
    pub target: Target,
    /// Size of the frame in the buffer, in bytes.
    pub size: usize,
    /// The lane.
    pub class: Class,
    /// The rails.
    pub route: Route,
}

/// The receiver of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A known member.
    Member(MemberId),
    /// The seed with this index, in the order of the configuration and `Input::Seed`.
    Seed(usize),
    /// A slot with the address of a sender that cannot be reached under its id (another member holds its
    /// name). Get the address at once: the slot is reused.
    Address(usize),
}

/// The lane of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The receiver may drain it at its own next tick.
    Beat,
    /// Wakes the receiver; never waits behind beats.
    News,
}

/// The rails of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
    /// The next healthy rail in turn.
    Next,
    /// A copy on every rail of the peer.
    All,
}

/// A member as this engine holds it now.
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

    /// The name of its group, whose members may fail together; empty if it has none.
    #[must_use]
    pub fn group(&self) -> &'a str {
        self.member.group()
    }

    /// Its address; opaque.
    #[must_use]
    pub fn address(&self) -> &'a [u8] {
        self.member.address()
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.member.version
    }

    /// Its state; `Degraded` by what the fabric said of its rails.
    #[must_use]
    pub fn state(&self) -> NodeState {
        match self.member.state {
            NodeState::Alive if self.member.degraded => NodeState::Degraded,
            state => state,
        }
    }

    /// Its exit code if it left; 0 otherwise.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        self.member.exit_code
    }

    /// The evidence that decided its state.
    #[must_use]
    pub fn cause(&self) -> CauseKind {
        self.member.cause
    }

    /// The reporters of its present version.
    #[must_use]
    pub fn reporters(&self) -> Reporters {
        self.member.reporters
    }

    /// When a frame of it was last received; zero if never.
    #[must_use]
    pub fn last_heard(&self) -> Instant {
        self.member.last_heard
    }

    /// The lateness that it advertises, in microseconds.
    #[must_use]
    pub fn lateness_us(&self) -> u64 {
        self.member.late_us()
    }

    /// Its ranks, by rank number.
    pub fn ranks(&self) -> impl Iterator<Item = &'a RankFact> + use<'a> {
        self.member.ranks.values()
    }
}

impl Overlay {
    /// All known members in ring order: removed ones and the local member too.
    pub fn members(&self) -> impl Iterator<Item = MemberView<'_>> {
        self.table.iter().map(|member| MemberView { member })
    }

    /// How many removed members are known.
    #[must_use]
    pub fn gone(&self) -> usize {
        self.table.removed()
    }

    /// The seeds of the configuration and of `Input::Seed`.
    pub fn seeds(&self) -> impl Iterator<Item = &[u8]> {
        self.config.seeds.iter().map(Vec::as_slice)
    }

    /// Whether the engine has the job's key.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.config.key.is_some()
    }

    /// One member.
    #[must_use]
    pub fn member(&self, id: MemberId) -> Option<MemberView<'_>> {
        self.table.get(id).map(|member| MemberView { member })
    }

    /// The name of a known or refused member.
    #[must_use]
    pub fn name_of(&self, id: MemberId) -> Option<&str> {
        let known = self.table.get(id).map(|member| member.name());
        known.or_else(|| self.refused_name(id))
    }

    /// The address of a target.
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

    /// The engine's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The engine's own id.
    #[must_use]
    pub fn id(&self) -> MemberId {
        self.own
    }

    /// The local version now.
    #[must_use]
    pub fn version(&self) -> Version {
        self.own_version()
    }

    /// The engine's phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Size of the view, the local member included.
    #[must_use]
    pub fn live(&self) -> usize {
        self.table.live()
    }

    /// A digest of the view: equal views have equal digests.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.table.digest()
    }

    /// What the local record adds to the digest of a view that contains it.
    #[must_use]
    pub fn own_digest(&self) -> u64 {
        self.table.get(self.own).map_or(0, |own| own.digest())
    }

    /// Sets a lateness to expect before any is measured, in microseconds, at most one second: the host
    /// cannot promise to call in time. It is advertised, and peers widen their deadlines for this member.
    pub fn expect_lateness(&mut self, least_us: u64) {
        self.watch.lateness.expect(least_us);
    }

    /// The host has had more to read for `busy_us`, without coming to an end: received frames may have
    /// waited as long. Widens deadlines as lateness does, here and at peers.
    pub fn strained(&mut self, busy_us: u64) {
        self.watch.lateness.strain(busy_us);
    }

    /// The measured lateness of the host, decaying, in microseconds; widens every deadline.
    #[must_use]
    pub fn lateness_us(&self) -> u64 {
        self.watch.lateness.figure_us()
    }

    /// The present deadline for a member, from the arrivals of its beats and widened by the lateness of
    /// both sides, in microseconds.
    #[must_use]
    pub fn deadline_us(&self, id: MemberId) -> u64 {
        let theirs_us = self.table.get(id).map_or(0, Member::late_us);
        let least_us = self.config.deadline_us;
        let most_us = least_us + self.config.deadline_slack_us;
        let fixed_us = self.widened_deadline_us(theirs_us);
        match self.links.get(&id) {
            Some(link) if link.observes && self.rules.adapts_deadlines => {
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

    /// How long a member that has just joined may be silent before it has accepted the link: its reply may
    /// wait behind those to other members. 0 once it has accepted.
    fn joining_us(&self, id: MemberId, link: &Link) -> u64 {
        let member = self.table.get(id).filter(|_| link.confirmed.is_none());
        member.map_or(0, |member| {
            let until = verdict::joining_until(member.joined_at, self.config.deadline_us);
            until.since(member.alive_at().max(link.since))
        })
    }

    /// The arrivals of an observed member's beats.
    #[must_use]
    pub fn arrivals(&self, id: MemberId) -> Option<Arrivals> {
        let link = self.links.get(&id).filter(|link| link.observes)?;
        Some(link.arrivals)
    }

    /// Whether there is a link with a member, made by either side.
    #[must_use]
    pub fn is_linked(&self, id: MemberId) -> bool {
        self.links.contains_key(&id)
    }

    /// The observed members: they send beats to this one.
    pub fn observing(&self) -> impl Iterator<Item = MemberId> {
        self.links
            .iter()
            .filter(|(_, link)| link.observes)
            .map(|(id, _)| *id)
    }

    /// The observers: this member sends beats to them.
    pub fn observers(&self) -> impl Iterator<Item = MemberId> {
        self.links
            .iter()
            .filter(|(_, link)| link.observed)
            .map(|(id, _)| *id)
    }
}
