//! `Tree` is the membership of one node in a job with zones: an engine for its base zone, and one for each zone
//! above that it takes part in.
//!
//! - *Supervisors.* Two members of each zone, chosen by their weights among those in its view, are members of the
//!   zone above (`supervision`). If one fails, the rest chooses another without a message.
//! - *Ledger.* What happens to a node or a rank is news in its own zone. A supervisor writes it into the ledger of
//!   the zone above, and the supervisors of the other zones copy it into theirs (`ledger`). So every node of the job
//!   knows every failure.
//! - *Death of a zone.* A zone whose last supervisor has failed and that sends no other in time is declared failed as a
//!   whole by its guards: members of the zone above that are not nodes of it (`guard`). They ask its nodes before
//!   (`invitation`).
//! - *Census.* Every node knows which zones are alive, and which of their nodes never were: its supervisors publish
//!   that (`census`, `publication`, `states`). What they know outlives them: the other nodes remind those that start in
//!   their place (`reminder`).
//! - *Split.* A zone that was cut off holds the rest of the job failed, and the rest holds it failed. When they meet,
//!   the views of the zones above merge. The nodes of zones that were on the weaker side are told that they are outcast
//!   (`settle`); the other side notices nothing. Where MPI was told of failures they stop (`stop`). A verdict names the
//!   life of the zone that it is about: whose nodes have all started anew since, is not outcast (`life`).
//! - *Attributes* of nodes of other zones are copies that supervisors make (`relay`).
//!
//! The tree has the interface of an engine: inputs with the time, frames to send, events. Frames name their zone, by
//! which the tree finds the engine that is to handle them. A job without zones is a tree of one engine, which may be
//! of either kind.

mod census;
mod contradiction;
mod degraded;
mod event;
mod guard;
mod invitation;
mod ledger;
mod level;
mod life;
mod lost;
mod meet;
mod publication;
mod ranks;
mod reach;
mod relay;
mod reminder;
mod settle;
mod side;
mod states;
mod stop;
mod supervision;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use muster_protocol::{
    Config, ConfigError, Engine, Event, EventKind, Input, Instant, LedgerKey, MemberId, NodeState,
    Overlay, Phase, Profile, Reject, ResumeError, Target, Transmit, ZoneConfig, frame,
};
use muster_sorted::SortedMap;
use thiserror::Error;

use crate::directory::NodeIndex;
use crate::map::{ZoneId, ZoneMap};
use crate::runs::Runs;

pub use degraded::DegradedAttribute;
pub use event::TreeEvent;
use invitation::Invitation;
use level::Level;
pub use publication::ZONES_KEYS;
use reach::Reach;
use settle::ZoneVerdict;
use states::{ZoneState, ZoneStates};

/// Most entries of a ledger.
const LEDGER_ENTRIES_MAX: usize = 1 << 20;
/// Most events waiting for the host.
const EVENTS_MAX: usize = 65_536;
/// Room for events that is kept while there are none.
const EVENTS_KEPT: usize = 4;
/// Most rounds of carrying news between levels after one input.
const ROUNDS_MAX: usize = 8;

/// Configuration of a tree.
#[derive(Clone, Debug)]
pub struct TreeConfig {
    /// The zones of the job.
    pub map: Arc<ZoneMap>,
    /// The base zone's engine. The name is that of a node of the map; `zone` is set by the tree. The seeds are
    /// nodes of the base zone.
    pub engine: Config,
    /// The addresses of the nodes, by their place in the directory; empty for those that are not known.
    pub contacts: Arc<Vec<Vec<u8>>>,
    /// The attribute in which nodes say that they are degraded, if there is one.
    pub degraded_attribute: Option<DegradedAttribute>,
}

/// Why there is no tree.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TreeError {
    /// The node is not in the map.
    #[error(
        "node {name} is not one of the job's {nodes} nodes, so its zone is not known; add it to the list of nodes, \
         or correct its name (MUSTER_NODE)"
    )]
    NotInMap {
        /// The node's name.
        name: String,
        /// How many nodes the map has.
        nodes: usize,
    },
    /// The configuration of the engine is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The snapshot of the engine is refused.
    #[error(transparent)]
    Resume(#[from] ResumeError),
}

/// The membership of one node in a job with zones.
#[derive(Clone, Debug)]
pub struct Tree {
    map: Arc<ZoneMap>,
    contacts: Arc<Vec<Vec<u8>>>,
    config: Config,
    node: NodeIndex,
    /// The ids of the nodes of the base zone, by node.
    ids: BTreeMap<NodeIndex, MemberId>,
    /// The base zone, and the zones above that the node is a member of.
    levels: Vec<Level>,
    /// The highest incarnation that the node has had in a zone above.
    incarnation: u64,
    events: VecDeque<TreeEvent>,
    /// Events that were dropped because the host did not take those before them.
    events_lost: u64,
    copies_refused: u64,
    reports_refused: u64,
    /// When the ranks of the base zone are published.
    ranks_due: Instant,
    /// The lateness that the host expects of itself.
    lateness_us: u64,
    /// The local node knows half of the job's nodes or fewer to be alive.
    is_minority: bool,
    /// It has known more than half of them to be alive.
    has_started: bool,
    /// How many nodes it has seen alive.
    reach: Reach,
    /// What the ranks were told about other zones, by number; only while the local node is a supervisor.
    verdicts: BTreeMap<u32, ZoneVerdict>,
    /// When its zone was counted as outcast last; how often it was by then, and its newest node at that time, as far as
    /// the local node knows.
    outcast_at: Instant,
    outcast_seen: Option<(u32, u64)>,
    /// When the local node found last that its zone was on the weaker side of a split.
    weak_at: Instant,
    /// How often the base zone had been declared failed when this supervisor, which has run since then, last judged
    /// whether its side was the weaker one.
    declared_seen: Option<u32>,
    /// When it judged that its side was the stronger one, although the base zone had been declared failed.
    overruled_since: Option<Instant>,
    /// The number of nodes that are alive may have changed.
    is_reach_dirty: bool,
    invitation: Option<Invitation>,
    /// The states outside of the base zone that the host was told.
    told: ZoneStates,
    degraded_attribute: Option<DegradedAttribute>,
    /// The nodes of other zones of which the host was told that they are degraded.
    degraded: BTreeSet<u32>,
    /// Since when nodes that were alive before are missing.
    missing_since: BTreeMap<u32, Instant>,
    /// Base zones of which it is known that they have formed, by number.
    formed: Runs<()>,
    /// Since when other zones hold nodes of the base zone failed that run.
    contradicted: BTreeMap<u32, Instant>,
    /// How often the zones of this node were outcast, and the incarnation of the newest node that was, by level, as far
    /// as the host was told.
    outcasts_told: Option<SortedMap<u8, (u32, u64)>>,
    /// Zones that stay failed for the host, by number, and in which life they were declared so: with policy "stop".
    stays_failed: BTreeMap<u32, u64>,
    /// When the local node stops, as its zone is outcast.
    stops_at: Instant,
    now: Instant,
    review_at: Instant,
}

/// The number of a zone on the wire and in the ledger.
#[must_use]
pub const fn zone_number(zone: ZoneId) -> u32 {
    (zone.level as u32) << 24 | zone.number
}

/// The zone with this number; `None` if the map has none.
fn zone_of_number(map: &ZoneMap, number: u32) -> Option<ZoneId> {
    map.find((number >> 24) as u8, number & 0xff_ffff)
}

impl Tree {
    /// The tree of a node that knows no other.
    ///
    /// # Errors
    /// The node is not in the map, or a value of the configuration is out of bounds; no tree was made.
    pub fn new(config: TreeConfig) -> Result<Self, TreeError> {
        Self::start(config, |config| Ok(Overlay::new(config)?))
    }

    /// The tree of a node whose last process left this snapshot of the base zone's engine. The node has a new
    /// incarnation in the zones above.
    ///
    /// # Errors
    /// The node is not in the map, or the snapshot is refused; no tree was made.
    pub fn resume(config: TreeConfig, snapshot: &[u8], now: Instant) -> Result<Self, TreeError> {
        Self::start(config, |config| Ok(Overlay::resume(config, snapshot, now)?))
    }

    /// A job without zones: its one engine.
    #[must_use]
    pub fn flat(engine: Engine) -> Self {
        let name = engine.name_of(engine.id()).unwrap_or_default().to_owned();
        let zone = ZoneId {
            level: 0,
            number: 0,
        };
        let config = Config::new(&name, &[], Profile::Standard);
        Self::with(
            (Arc::new(ZoneMap::unknown()), zone, NodeIndex(0)),
            Arc::default(),
            config,
            engine,
        )
    }

    fn start(
        config: TreeConfig,
        engine: impl FnOnce(Config) -> Result<Overlay, TreeError>,
    ) -> Result<Self, TreeError> {
        let TreeConfig {
            map,
            engine: mut config,
            contacts,
            degraded_attribute,
        } = config;
        let found = map.directory().find(&config.name);
        let found = found.and_then(|node| Some((node, map.base_zone(node)?)));
        let Some((node, zone)) = found else {
            return Err(TreeError::NotInMap {
                name: config.name,
                nodes: map.directory().len(),
            });
        };
        config.zone = zone_config(&map, zone);
        let engine = engine(config.clone())?.into();
        let tree = Self::with((map, zone, node), contacts, config, engine);
        Ok(Self {
            degraded_attribute,
            ..tree
        })
    }

    fn with(
        (map, zone, node): (Arc<ZoneMap>, ZoneId, NodeIndex),
        contacts: Arc<Vec<Vec<u8>>>,
        config: Config,
        engine: Engine,
    ) -> Self {
        let id = |node: &NodeIndex| Some((*node, MemberId::of(&map.directory().name(*node)?)));
        let ids = match map.directory().len() {
            0 => BTreeMap::new(),
            _ => map.nodes(zone).iter().filter_map(id).collect(),
        };
        Self {
            node,
            ids,
            levels: vec![Level::new(zone, engine, Instant::default())],
            incarnation: config.incarnation,
            config,
            map,
            contacts,
            events: VecDeque::new(),
            events_lost: 0,
            copies_refused: 0,
            reports_refused: 0,
            ranks_due: Instant::NEVER,
            lateness_us: 0,
            is_minority: false,
            has_started: false,
            reach: Reach::default(),
            verdicts: BTreeMap::new(),
            outcast_at: Instant::default(),
            weak_at: Instant::default(),
            outcast_seen: None,
            declared_seen: None,
            overruled_since: None,
            is_reach_dirty: true,
            invitation: None,
            told: ZoneStates::default(),
            degraded_attribute: None,
            degraded: BTreeSet::new(),
            missing_since: BTreeMap::new(),
            formed: Runs::default(),
            contradicted: BTreeMap::new(),
            outcasts_told: None,
            stays_failed: BTreeMap::new(),
            stops_at: Instant::NEVER,
            now: Instant::default(),
            review_at: Instant::NEVER,
        }
    }

    /// Whether the job has several zones. Otherwise the tree is its one engine.
    #[must_use]
    pub fn has_zones(&self) -> bool {
        self.map.levels() > 1
    }

    /// Takes one input at time `now`, which never goes back. Frames go to the engine of their zone; what concerns a
    /// member, to each engine that has it; wake-ups, the key, the address and leaving, to all; all else to the base
    /// zone.
    ///
    /// # Errors
    /// Why the input was rejected. It changed nothing but a counter; time and timers went on.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) -> Result<(), Reject> {
        if !self.has_zones() {
            return self.levels[0].engine.handle(now, input);
        }
        self.advance(now);
        let result = self.take(input);
        self.publish_ranks();
        for _ in 0..ROUNDS_MAX {
            let mut is_busy = self.take_events();
            is_busy |= self.carry_ledgers();
            is_busy |= self.review();
            if !is_busy {
                break;
            }
        }
        self.count_reached();
        result
    }

    fn take(&mut self, input: Input<'_>) -> Result<(), Reject> {
        let now = self.now;
        match input {
            Input::Datagram { bytes } => {
                let zone = frame::zone(bytes);
                let is_its = |level: &&mut Level| Some(zone_number(level.zone)) == zone;
                if let Some(level) = self.levels.iter_mut().find(is_its) {
                    return level.engine.handle(now, input);
                }
                match self.take_invitation(bytes) {
                    true => Ok(()),
                    // It counts the frame as one of another zone.
                    false => self.levels[0].engine.handle(now, input),
                }
            }
            Input::Wake => {
                for level in &mut self.levels {
                    if level.engine.poll_timeout() <= now {
                        level.engine.handle(now, input)?;
                    }
                }
                Ok(())
            }
            Input::Key(key) => {
                self.config.key = Some(key);
                self.for_all(input)
            }
            Input::Address(address) => {
                self.config.address = address.to_vec();
                self.for_all(input)
            }
            Input::Leave { exit_code } => {
                self.report_leave(exit_code);
                self.for_all(input)
            }
            Input::Unreachable(member) | Input::Ended(member) | Input::Ask(member) => {
                self.for_engines_of(member, input)
            }
            Input::Policy(policy) => {
                self.set_policy(policy);
                self.levels[0].engine.handle(now, input)
            }
            _ => self.levels[0].engine.handle(now, input),
        }
    }

    fn for_engines_of(&mut self, member: MemberId, input: Input<'_>) -> Result<(), Reject> {
        let now = self.now;
        let has = |level: &&mut Level| level.engine.member(member).is_some();
        let mut levels = self.levels.iter_mut().filter(has);
        levels.try_for_each(|level| level.engine.handle(now, input))
    }

    fn for_all(&mut self, input: Input<'_>) -> Result<(), Reject> {
        let now = self.now;
        let mut levels = self.levels.iter_mut();
        levels.try_for_each(|level| level.engine.handle(now, input))
    }

    /// Moves time on. The absence of a zone counts only while the local node itself was running.
    fn advance(&mut self, now: Instant) {
        let before = self.now;
        self.now = now.max(before);
        let gap_us = self.now.since(before);
        if before == Instant::default() {
            self.levels[0].began_at = self.now;
            self.levels[0].view_changed_at = self.now;
            self.review_at = self.now;
        } else if gap_us > 2 * self.config.heartbeat_us {
            self.declared_seen = None;
            if self.base().live() == 1 {
                // Nobody of its zone was there meanwhile: to the others the zone was cut off.
                let own = self.levels[0].zone.number;
                self.reach.set(before, Runs::from_iter([(own, 1)]), false);
                self.is_reach_dirty = true;
            } else {
                self.reach.overslept(gap_us);
            }
            for level in &mut self.levels {
                for child in level.children.values_mut() {
                    child.absent_since = child.absent_since.map(|since| since.after(gap_us));
                }
            }
        }
    }

    /// Writes the next frame into `buffer`, with the level of the zone it is for.
    pub fn poll_transmit(&mut self, now: Instant, buffer: &mut [u8]) -> Option<(usize, Transmit)> {
        let mut levels = self.levels.iter_mut().enumerate();
        levels.find_map(|(at, level)| Some((at, level.engine.poll_transmit(now, buffer)?)))
    }

    /// The address of a target of the zone at this level.
    #[must_use]
    pub fn address_of(&self, level: usize, target: Target) -> Option<&[u8]> {
        self.levels.get(level)?.engine.address_of(target)
    }

    /// The next event, oldest first.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<TreeEvent> {
        match self.has_zones() {
            true => {
                let event = self.events.pop_front();
                if event.is_none() {
                    // A job that starts has an event for each of its zones.
                    self.events.shrink_to(EVENTS_KEPT);
                }
                event
            }
            false => self.levels[0].engine.poll_event().map(TreeEvent::Base),
        }
    }

    /// Events that were dropped because the host did not take those before them in time.
    #[must_use]
    pub fn events_lost(&self) -> u64 {
        self.events_lost
    }

    /// How often the census could not be published: the engine of a zone refused it, as it is too large or the memory
    /// for attributes is full.
    #[must_use]
    pub fn reports_refused(&self) -> u64 {
        self.reports_refused
    }

    /// The latest time for the next `handle` with [`Input::Wake`].
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let engines = self.levels.iter().map(|level| level.engine.poll_timeout());
        engines.fold(self.review_at.min(self.ranks_due), Instant::min)
    }

    /// The zones of the job.
    #[must_use]
    pub fn map(&self) -> &ZoneMap {
        &self.map
    }

    /// The local node.
    #[must_use]
    pub fn node(&self) -> NodeIndex {
        self.node
    }

    /// The engine of the base zone.
    #[must_use]
    pub fn base(&self) -> &Engine {
        &self.levels[0].engine
    }

    /// The engine of the base zone, for what is not an input. What it causes is carried to the other zones with the
    /// next input.
    pub fn base_mut(&mut self) -> &mut Engine {
        &mut self.levels[0].engine
    }

    /// Sets the lateness that the host expects of itself, in all zones of the node, see [`Engine::expect_lateness`].
    pub fn expect_lateness(&mut self, least_us: u64) {
        self.lateness_us = least_us;
        for level in &mut self.levels {
            level.engine.expect_lateness(least_us);
        }
    }

    /// Tells all engines for how long frames have been waiting, see [`Engine::strained`].
    pub fn strained(&mut self, busy_us: u64) {
        for level in &mut self.levels {
            level.engine.strained(busy_us);
        }
    }

    /// The members that send beats to the local node, in any of its zones.
    pub fn observing(&self) -> impl Iterator<Item = MemberId> {
        let levels = self.levels.iter().enumerate();
        levels.flat_map(|(at, level)| {
            let below = &self.levels[..at];
            let is_new = move |id: &MemberId| {
                let mut others = below.iter().flat_map(|level| level.engine.observing());
                !others.any(|other| other == *id)
            };
            level.engine.observing().filter(is_new)
        })
    }

    /// The name of a member of any of the local node's zones.
    #[must_use]
    pub fn name_of(&self, member: MemberId) -> Option<&str> {
        let mut levels = self.levels.iter();
        levels.find_map(|level| level.engine.name_of(member))
    }

    /// The address of a member of any of the local node's zones.
    #[must_use]
    pub fn address_of_member(&self, member: MemberId) -> Option<&[u8]> {
        let mut levels = self.levels.iter();
        levels.find_map(|level| level.engine.address_of(Target::Member(member)))
    }

    /// The zones that the node is a member of, from the base zone on, each with its engine.
    pub fn memberships(&self) -> impl Iterator<Item = (ZoneId, &Engine)> {
        self.levels.iter().map(|level| (level.zone, &level.engine))
    }

    /// Whether it runs, leaves or has stopped: it has stopped when the engines of all levels have.
    #[must_use]
    pub fn phase(&self) -> Phase {
        let base = self.base().phase();
        let is_stopped = |level: &Level| level.engine.phase() == Phase::Stopped;
        match base {
            Phase::Stopped if !self.levels.iter().all(is_stopped) => Phase::Leaving,
            phase => phase,
        }
    }

    /// The state of a node of the job, as far as it is known here: `Unknown` until it has been alive. `None` if there
    /// is no such node.
    #[must_use]
    pub fn node_state(&self, node: NodeIndex) -> Option<NodeState> {
        let zone = self.map.base_zone(node)?;
        let base = &self.levels[0];
        let entry = || base.engine.ledger_entry(LedgerKey::Node(node.0));
        let remembered = || entry().and_then(|entry| entry.node_state());
        if zone == base.zone {
            let member = base.engine.member(*self.ids.get(&node)?);
            let state = member.map(|member| member.state()).or_else(remembered);
            return Some(state.unwrap_or(NodeState::Unknown));
        }
        let is_failed = |zone| self.has_failed(zone) == Some(true);
        let state = remembered().unwrap_or_else(|| match self.told.get(zone) {
            Some(_) if !self.told.missing.contains(&node.0) => NodeState::Alive,
            _ => NodeState::Unknown,
        });
        let others = self.map.zones_of(node);
        let mut others = others.take_while(|zone| !self.is_own(*zone));
        match state {
            NodeState::Alive | NodeState::Unknown if others.any(is_failed) => {
                Some(NodeState::Failed)
            }
            NodeState::Alive if self.says_degraded(node) => Some(NodeState::Degraded),
            state => Some(state),
        }
    }

    /// How many nodes of the job are alive as far as it is known here.
    #[must_use]
    pub fn nodes_alive(&self) -> u32 {
        self.count_nodes(|state| !state.is_failed && !state.is_absent)
            .total()
    }

    /// Whether the local node is in this zone, or in one below it.
    fn is_own(&self, zone: ZoneId) -> bool {
        self.map.zones_of(self.node).any(|own| own == zone)
    }

    fn tell(&mut self, event: TreeEvent) {
        match self.events.len() < EVENTS_MAX {
            true => self.events.push_back(event),
            false => self.events_lost += 1,
        }
    }

    /// Takes the events of all engines. Returns whether there were any.
    fn take_events(&mut self) -> bool {
        let mut is_busy = false;
        for level in 0..self.levels.len() {
            while let Some(event) = self.levels[level].engine.poll_event() {
                is_busy = true;
                self.take_event(level, &event);
                match event.kind {
                    // The smaller part of a zone may be in the larger part of the job.
                    EventKind::Minority { .. } | EventKind::Majority { .. } => {
                        let is_minority = matches!(event.kind, EventKind::Minority { .. });
                        self.levels[level].is_minority = is_minority;
                        self.is_reach_dirty = true;
                    }
                    // The host was told when its zone became outcast.
                    EventKind::Outcast if self.is_stopping() => {}
                    _ if level == 0 => self.tell(TreeEvent::Base(event)),
                    _ => {}
                }
            }
        }
        is_busy
    }

    /// Counts the nodes of the job that are alive as far as the local node knows. Tells if they have become the smaller
    /// part of the job, or the larger part again.
    fn count_reached(&mut self) {
        if !core::mem::take(&mut self.is_reach_dirty) {
            return;
        }
        let reached = self.count_nodes(|state| !state.is_failed && !state.is_absent);
        let total = self.map.directory().len() as u32;
        // In many levels losses high above are found late, and the cut may end soon. Supervisors of some zones may be
        // replaced, but hardly those of most at once.
        let mut above = self.levels.iter().skip(1);
        let is_most = 2 * reached.total() < total || above.any(|level| level.is_minority);
        let is_sure = self.map.levels() > 2 && is_most;
        self.reach.set(self.now, reached, is_sure);
        let alive: u32 = self.count_nodes(|state| !state.is_failed).total();
        let is_minority = 2 * alive <= total;
        // A node that starts knows few others: that is no minority.
        self.has_started |= !is_minority;
        if self.has_started && core::mem::replace(&mut self.is_minority, is_minority) != is_minority
        {
            let (reached, of) = (alive, total);
            self.tell(match is_minority {
                true => TreeEvent::Minority { reached, of },
                false => TreeEvent::Majority { reached, of },
            });
        }
    }

    /// How many nodes of each base zone are alive as far as the local node knows, in zones of these states, by the
    /// zone's number. Zones without any are left out.
    fn count_nodes(&self, counts: impl Fn(ZoneState) -> bool) -> Runs<u32> {
        let base = &self.levels[0];
        let known = self.told.base_zones();
        let mut nodes = known.merge(self.map.sizes(), |state, size| {
            size.filter(|_| state.is_some_and(&counts))
        });
        // The zones above them count, too. A zone that stays failed is about to stop, or has.
        let lost = self.told.those(|state| !counts(state));
        let lost = lost.map(|(number, _)| number);
        let lost = lost.filter(|number| number >> 24 > 0);
        for number in lost.chain(self.stays_failed.keys().copied()) {
            let zone = zone_of_number(&self.map, number);
            let zones = zone.and_then(|zone| states::zone_numbers(&self.map, zone).pop());
            nodes.remove(zones.unwrap_or_default());
        }
        let ended = base.engine.ledger().filter_map(|entry| match entry.key() {
            LedgerKey::Node(node) => (!entry.node_state()?.in_view()).then_some(node),
            LedgerKey::Rank(_) => None,
        });
        let is_unstated = |node: &u32| {
            let key = LedgerKey::Node(*node);
            base.engine.ledger_entry(key).is_none()
        };
        let missing = self.told.missing.iter().copied().filter(is_unstated);
        let mut gone: BTreeMap<u32, u32> = BTreeMap::new();
        for zone in ended
            .chain(missing)
            .filter_map(|node| self.map.base_zone(NodeIndex(node)))
        {
            *gone.entry(zone.number).or_default() += 1;
        }
        let gone: Runs<u32> = gone.into_iter().collect();
        let mut left = nodes.merge(&gone, |nodes, gone| {
            let left = nodes?.saturating_sub(gone.unwrap_or_default());
            (left > 0).then_some(left)
        });
        left.insert(base.zone.number, base.engine.live() as u32);
        left
    }

    fn take_event(&mut self, level: usize, event: &Event) {
        match event.kind {
            EventKind::NodeUp | EventKind::NodeFailed | EventKind::NodeLeft { .. } => {
                self.levels[level].is_dirty = true;
                self.levels[level].chosen = None;
                self.levels[level].view_changed_at = self.now;
                if event.kind != EventKind::NodeUp {
                    let has_failed = event.kind == EventKind::NodeFailed;
                    self.member_is_gone(level, event.member, has_failed);
                }
                if level == 0 {
                    self.is_reach_dirty = true;
                    self.report_node(event.member);
                }
            }
            EventKind::RankChanged { fact } if level == 0 => {
                self.note_rank();
                self.report_rank(event.member, event.version.incarnation, fact);
            }
            EventKind::AttributeChanged { key, .. }
                if !self.take_publication(level, event.member, key) =>
            {
                self.relay(level, event.member, key);
                if level == 0 {
                    self.note_status(key);
                }
            }
            EventKind::Outcast => {
                self.levels[0].is_dirty = true;
                if level == 0 {
                    // It has a new version, and has forgotten who had failed.
                    self.report_node(event.member);
                    self.recall_nodes();
                }
            }
            _ => {}
        }
    }
}

fn zone_config(map: &ZoneMap, zone: ZoneId) -> ZoneConfig {
    ZoneConfig {
        number: zone_number(zone),
        map_digest: map.digest(),
        ledger_entries_max: LEDGER_ENTRIES_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;
    use crate::plan::{Aim, plan};

    #[test]
    fn a_node_that_is_not_in_the_map_is_refused_with_a_remedy() {
        let directory = Directory::new(["n1", "n2"]).unwrap();
        let config = TreeConfig {
            map: Arc::new(plan(directory, &[], Aim::default()).unwrap()),
            engine: Config::new("n3", b"a", Profile::Standard),
            contacts: Arc::default(),
            degraded_attribute: None,
        };
        let error = Tree::new(config).unwrap_err().to_string();
        assert!(
            error.starts_with("node n3 is not one of the job's 2 nodes"),
            "{error}"
        );
        assert!(error.contains("MUSTER_NODE"), "{error}");
    }
}
