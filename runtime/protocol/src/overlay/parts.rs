//! The parts of an overlay engine's state, each with one subject.
//!
//! What all parts use stays in [`Overlay`](super::Overlay): configuration, rules, the table of members, the links, the
//! time and the queues.

use crate::ack_rtt::AckRtt;
use crate::config::Config;
use crate::identity::{MemberId, Version};
use crate::lateness::Lateness;
use crate::overlay::indirect_probe::IndirectProbe;
use crate::overlay::join::{self, Rejoin, SeedsOutOfView};
use crate::overlay::restart_inquiry::RestartInquiry;
use crate::overlay::views::Views;
use crate::overlay::{correlation, failure_claim, minority, name_conflict, parameter_check};
use crate::replay::ReplayGuard;
use crate::sorted::SortedMap;
use crate::subjects::Subject;
use crate::time::Instant;
use crate::wire::Acks;

/// Joining: requests to members that are not in the view, and what comes before full membership.
#[derive(Clone, Debug)]
pub(super) struct JoinState {
    /// The first input has arrived.
    pub(super) started: bool,
    /// When the next join request is due.
    pub(super) at: Instant,
    pub(super) wait_us: u64,
    /// The turn of join targets: each target has its turn, however many there are.
    pub(super) turn: usize,
    /// `None` after a change of the seeds.
    pub(super) seeds_out_of_view: Option<SeedsOutOfView>,
    /// No join request to an unauthenticated address before this.
    pub(super) contact_at: Instant,
    pub(super) rejoin: Option<Rejoin>,
    pub(super) restart_inquiry: RestartInquiry,
    /// A view was taken over, and some of its datagrams may be lost: the first link requests it again.
    /// Digests say nothing about failed members, by which the sides of a split differ.
    pub(super) lacks_view: bool,
    pub(super) name_state: name_conflict::NameState,
    /// Members whose parameters differ.
    pub(super) refused: parameter_check::RefusedMembers,
}

impl JoinState {
    pub(super) fn new(config: &Config, restart_inquiry: RestartInquiry) -> Self {
        Self {
            started: false,
            at: Instant::default(),
            wait_us: join::first_wait_us(config),
            turn: 0,
            seeds_out_of_view: None,
            contact_at: Instant::default(),
            rejoin: None,
            restart_inquiry,
            lacks_view: false,
            name_state: name_conflict::NameState::default(),
            refused: SortedMap::new(),
        }
    }
}

/// Watching: silences, suspicions, probes, and how far the local member can be trusted itself.
#[derive(Clone, Debug)]
pub(super) struct WatchState {
    /// Suspects probed by this member: for other members, and to check reports received.
    pub(super) indirect_probes: SortedMap<MemberId, IndirectProbe>,
    pub(super) lateness: Lateness,
    /// Where reports are counted: the reporters of each suspect, with the version.
    pub(super) suspicions: SortedMap<MemberId, SortedMap<MemberId, Version>>,
    /// Time of the last authentic frame of any member in the view.
    pub(super) heard_any: Instant,
    pub(super) doubted_since: Option<Instant>,
    /// Room for the watched members, so that no wake-up allocates.
    pub(super) room: Vec<MemberId>,
    /// When lasting suspicions are sent to the suspects.
    pub(super) confront_at: Instant,
    /// Until when the view is out of date because the local member overslept.
    pub(super) overslept_until: Instant,
    pub(super) correlation: correlation::Correlation,
    pub(super) minority: minority::Side,
}

impl WatchState {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            indirect_probes: SortedMap::new(),
            lateness: Lateness::new(config.heartbeat_us),
            suspicions: SortedMap::new(),
            heard_any: Instant::default(),
            doubted_since: None,
            room: Vec::new(),
            confront_at: Instant::NEVER,
            overslept_until: Instant::default(),
            correlation: correlation::Correlation::default(),
            minority: minority::Side::default(),
        }
    }
}

/// Dissemination: frames that are sent and accepted, acknowledgements, and views under way.
#[derive(Clone, Debug)]
pub(super) struct Dissemination {
    pub(super) replay: ReplayGuard,
    /// Incarnations of the local member since this engine began, the present one last: frames for these are
    /// accepted.
    pub(super) incarnations: Vec<u64>,
    /// Sequence of the last frame.
    pub(super) sequence: u64,
    /// Own frames that are too old to be answered.
    pub(super) stale: failure_claim::StaleFrames,
    /// Sequence of the last local rank fact.
    pub(super) rank_sequence: u32,
    pub(super) beat_at: Instant,
    /// News frames to acknowledge, by sender.
    pub(super) acks: SortedMap<MemberId, Acks>,
    /// Acknowledgement times of all links.
    pub(super) ack_rtt: AckRtt,
    /// Facts that were requested after a hint, and until when the reply is awaited.
    pub(super) asked: SortedMap<Subject, Instant>,
    pub(super) views: Views,
}

impl Dissemination {
    pub(super) fn new(config: &Config, incarnation: u64) -> Self {
        Self {
            replay: ReplayGuard::new(config.members_max + 256, config.heartbeat_us),
            incarnations: vec![incarnation],
            sequence: config.first_sequence,
            stale: failure_claim::StaleFrames::new(config.first_sequence),
            rank_sequence: 0,
            beat_at: Instant::default(),
            acks: SortedMap::new(),
            ack_rtt: AckRtt::NONE,
            asked: SortedMap::new(),
            views: Views::default(),
        }
    }
}

/// When links are chosen anew.
#[derive(Clone, Debug)]
pub(super) struct TopologyState {
    /// The view has changed since links were chosen.
    pub(super) dirty: bool,
    /// No change of links before this.
    pub(super) at: Instant,
}
