//! The overlay engine: one member of one zone.
//!
//! This file holds the engine's state, its inputs and its timers. The rest, one file each:
//!
//! - frames: `receive` (checks, then dispatch), `contact` (first contact), `parameter_check` (equal
//!   parameters), `send` (writing), `outbox` (intents), `interface` (getters)
//! - links: `handshake` (made, changed, ended), `topology` (ring successors), `neighbours` (random links),
//!   `join` (finding members, healing splits), `views` (whole views for joining members)
//! - news: `merge` (into the table), `push` (dissemination), `attributes` (what members publish), `ledger` (facts
//!   about other zones)
//! - failures: `watch` (silence, probes, reports), `indirect_probe` (for other members), `correlation`
//!   (failures of one group), `minority` (the smaller side of a split), `traffic` (application messages as
//!   evidence)
//! - the local member: `refutation` (facts about it), `failure_claim` (held failed), `restart_inquiry` (its
//!   previous incarnation), `name_conflict` (another member of its name), `snapshot` (the state for another
//!   worker)
//! - `paper` (the plain algorithm, for comparison), `sizes` (bounds of memory)
//!
//! Deviations from the paper's zone membership:
//!
//! - Speed: indirect probes before a report. The first change after a quiet time is sent at once; those
//!   that follow wait for tau, or for the acknowledgement of earlier news (`ack_rtt`), which also widens
//!   deadlines.
//! - Traffic: news is sent along a tree, and as hints over all other links. In views of at most 32 members
//!   the origin of a death tells all members directly instead. A new link gets the base view as hints.
//! - Correctness: news is acknowledged and repaired by digests. A received verdict counts as the reports in
//!   it. A member that hears no other doubts itself first. A member that enough members declared failed
//!   comes back with a higher incarnation, not minor, and takes over their view; of two sides of a split
//!   only the smaller does so.

mod attributes;
mod contact;
mod correlation;
mod failure_claim;
mod handshake;
mod indirect_probe;
mod interface;
mod join;
mod ledger;
mod merge;
mod minority;
mod name_conflict;
mod neighbours;
mod outbox;
mod paper;
mod parameter_check;
mod parts;
mod push;
mod receive;
mod refutation;
mod restart_inquiry;
mod rules;
mod send;
mod sizes;
mod snapshot;
mod topology;
mod traffic;
mod views;
mod watch;
#[cfg(all(test, debug_assertions))]
mod work_tests;

use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::attributes::Store;
use crate::cause::{Cause, CauseKind};
use crate::config::{Config, ConfigError, SEEDS_MAX};
use crate::counters::Counters;
use crate::event::{Event, EventKind};
use crate::evidence::{Observation, ObservationKind};
use crate::identity::{ADDRESS_MAX, MemberId, Version};
use crate::interface::{Input, Phase, Route, Told};
use crate::ledger::Ledger;
use crate::link::{AckWait, Link};
use crate::links::Links;
use crate::reject::Reject;
use crate::reporters::Reporters;
use crate::state::{NodeState, RankFact, RankState};
use crate::subjects::Subject;
use crate::table::{Member, RANKS_MAX, Table};
use crate::time::Instant;

pub use correlation::GroupFailure;
use outbox::{Intent, Outbox};
use parts::{Dissemination, JoinState, TopologyState, WatchState};
use rules::Rules;
pub use sizes::Sizes;
pub use snapshot::ResumeError;
pub use traffic::BEAT_AHEAD_MAX;
use views::Views;

/// Most events waiting for the host.
const EVENTS_MAX: usize = 65_536;
/// Events for which there is room while there are none.
const EVENTS_KEPT: usize = 4;

fn ack_wait_us(config: &Config) -> u64 {
    config.heartbeat_us / 2
}

/// The overlay engine of one member.
///
/// Four families of methods: `handle` for inputs, `poll_*` for their results (drained in the order of the
/// crate's loop), getters, and `new`/`resume`.
#[derive(Clone, Debug)]
pub struct Overlay {
    config: Config,
    rules: Rules,
    own: MemberId,
    phase: Phase,
    table: Table,
    links: Links,
    rng: ChaCha8Rng,
    outbox: Outbox,
    events: VecDeque<Event>,
    counters: Counters,
    attributes: Store,
    ledger: Ledger,
    now: Instant,
    /// The result of `poll_timeout`, until the next input or frame.
    timeout: Option<Instant>,
    /// End of leaving.
    leave_until: Instant,
    join: JoinState,
    watch: WatchState,
    news: Dissemination,
    topology: TopologyState,
}

impl Overlay {
    /// An engine that knows no other member.
    ///
    /// # Errors The first configuration value out of bounds; no engine was made.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let own = MemberId::of(&config.name);
        let rules = Rules::of(config.mode);
        let restart_inquiry = restart_inquiry::RestartInquiry::of(&config);
        let version = Version::first(restart_inquiry.incarnation().unwrap_or(config.incarnation));
        let mut table = Table::default();
        table.insert(Member::new(own, config.info(), version));
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&config.random_seed.to_le_bytes());
        seed[8..16].copy_from_slice(&own.0.to_le_bytes());
        seed[16..24].copy_from_slice(&config.incarnation.to_le_bytes());
        Ok(Self {
            rules,
            own,
            phase: Phase::Running,
            table,
            links: Links::new(ack_wait_us(&config), rules.watches_neighbours),
            rng: ChaCha8Rng::from_seed(seed),
            outbox: Outbox::default(),
            events: VecDeque::new(),
            counters: Counters::default(),
            attributes: Store::new(config.attribute_bytes_max),
            ledger: Ledger::new(config.zone.ledger_entries_max),
            now: Instant::default(),
            timeout: None,
            leave_until: Instant::NEVER,
            join: JoinState::new(&config, restart_inquiry),
            watch: WatchState::new(&config),
            news: Dissemination::new(&config, version.incarnation),
            topology: TopologyState {
                dirty: true,
                at: Instant::default(),
            },
            config,
        })
    }

    /// Takes one input at time `now`, which never goes back.
    ///
    /// # Errors Why the input was rejected. It changed nothing but a counter; time and timers went on.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) -> Result<(), Reject> {
        self.advance(now);
        // The next datagram may come from the member that seems silent, or may hold the acknowledgement
        // that seems late. So both are judged only on a wake-up, when the host has no more datagrams.
        let judges = matches!(input, Input::Wake);
        let result = self.take(input);
        if let Err(reject) = result {
            self.counters.rejected[reject as usize] += 1;
        }
        // Traffic counts for the timers of this moment, so all of it must be taken before them.
        let is_traffic = matches!(
            input,
            Input::TrafficFrom { .. } | Input::TrafficTo { .. } | Input::Carried { .. }
        );
        self.links.settle(self.now);
        if is_traffic {
            return result;
        }
        // Most datagrams make nothing due: no timer is run until the next one is due.
        let is_quiet = !judges && self.phase == Phase::Running;
        let timer = is_quiet.then(|| self.next_timer());
        let timer = timer.filter(|timer| *timer > self.now);
        if timer.is_none() {
            self.run_timers(judges);
        }
        self.plan(timer);
        result
    }

    fn take(&mut self, input: Input<'_>) -> Result<(), Reject> {
        if let Input::Datagram { bytes } = input {
            self.counters.datagrams_received += 1;
            self.counters.bytes_received += bytes.len() as u64;
        }
        if self.phase == Phase::Stopped && !matches!(input, Input::Wake) {
            return Err(Reject::Stopped);
        }
        match input {
            Input::Wake => Ok(()),
            Input::Datagram { bytes } => self.receive(bytes),
            Input::Unreachable(member) => self.unreachable(member),
            Input::Ended(member) => self.ended(member),
            Input::Ask(member) => self.ask_for_a_sign(member),
            Input::Degraded { member, degraded } => self.degraded(member, degraded),
            Input::TrafficFrom { member, age_us } => self.traffic_from(member, age_us),
            Input::TrafficTo { member, age_us } => self.traffic_to(member, age_us),
            Input::Carried { bytes, age_us } => self.carried(bytes, age_us),
            Input::Told(told) => self.told(told),
            Input::Seed { address } => self.add_seed(address),
            Input::Unseed { address } => {
                self.config.seeds.retain(|seed| seed != address);
                self.join.seeds_out_of_view = None;
                Ok(())
            }
            Input::Contact { address } => self.contact(address),
            Input::Address(address) => self.move_to(address),
            Input::Key(key) => {
                self.config.key = Some(key);
                self.join.at = self.now;
                Ok(())
            }
            Input::Policy(policy) => {
                self.config.policy = policy;
                Ok(())
            }
            Input::Publish { key, value } => self.publish(key, Some(value)),
            Input::Withdraw { key } => self.publish(key, None),
            Input::Record(entry) => self.record(entry),
            Input::Outcast(_) if self.phase != Phase::Running => Err(Reject::Stopped),
            Input::Outcast(version) => {
                self.outcast_by_job(version);
                Ok(())
            }
            Input::Leave { exit_code } => {
                self.leave(exit_code);
                Ok(())
            }
        }
    }

    /// The latest time for the next `handle` with [`Input::Wake`]. The time of the last `handle` if there
    /// is something to send.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        match self.timeout {
            Some(timeout) => timeout,
            None if !self.join.started => Instant::default(),
            None => self.next_timeout(None),
        }
    }

    fn next_timeout(&self, timer: Option<Instant>) -> Instant {
        match self.phase {
            Phase::Stopped => Instant::NEVER,
            _ if self.wants_to_send() => self.now,
            _ => timer.unwrap_or_else(|| self.next_timer()),
        }
    }

    /// Computes the next timeout, and tells `lateness` to expect the host then. `timer` is the next timer, if known.
    fn plan(&mut self, timer: Option<Instant>) {
        self.links.settle(self.now);
        let timeout = self.next_timeout(timer);
        self.timeout = Some(timeout);
        self.watch.lateness.ask(timeout.max(self.now));
    }

    /// The next event, oldest first.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front().or_else(|| {
            // A zone that starts has an event for each of its members.
            self.events.shrink_to(EVENTS_KEPT);
            None
        })
    }

    /// Moves time on: the first input starts the timers, a late one is measured.
    fn advance(&mut self, now: Instant) {
        let now = now.max(self.now);
        self.now = now;
        if !self.join.started {
            self.join.started = true;
            self.join.name_state.since.get_or_insert(now);
            let phase = self.random(self.config.heartbeat_us);
            self.news.beat_at = now.after(phase);
            self.join.at = now;
            self.join.turn = self.random(u64::from(u32::MAX)) as usize;
            self.watch.heard_any = now;
            self.begin_side();
            self.grace();
            return;
        }
        self.wake();
    }

    /// Measures whether the host is late.
    fn wake(&mut self) {
        if let Some(late_us) = self.watch.lateness.woke(self.now) {
            self.counters.own_late += 1;
            self.forgive(late_us);
        }
    }

    fn run_timers(&mut self, judges: bool) {
        match self.phase {
            Phase::Stopped => return,
            Phase::Leaving => {
                self.resend_news();
                self.links.settle(self.now);
                let said = self.links.values().all(Link::is_idle) && !self.wants_to_send();
                if said || self.now >= self.leave_until {
                    self.stop();
                }
                return;
            }
            Phase::Running => {}
        }
        if self.config.key.is_none() {
            return;
        }
        if self.now >= self.news.beat_at {
            self.tick();
        }
        self.run_rejoin();
        self.run_restart_inquiry();
        if judges {
            self.run_watch();
        }
        self.run_minority();
        self.run_correlation();
        self.run_links(judges);
        self.run_attributes();
        if self.now >= self.join.at {
            self.run_join();
        }
    }

    /// Once a heartbeat.
    fn tick(&mut self) {
        self.make_beats_due();
        let now = self.now;
        self.news.asked.retain(|_, until| now < *until);
        self.watch.lateness.decay();
        self.news.ack_rtt.decay();
        self.advance_stale_frames();
        self.topology.dirty |= self.degree() < self.config.neighbours;
        self.judge_suspects();
        self.attributes.expire(self.now);
        let missed = self.now.since(self.news.beat_at) / self.config.heartbeat_us;
        self.news.beat_at = self
            .news
            .beat_at
            .after((missed + 1) * self.config.heartbeat_us);
    }

    fn next_timer(&self) -> Instant {
        if self.phase == Phase::Leaving {
            return self.next_news_timer().min(self.leave_until);
        }
        if self.config.key.is_none() {
            return Instant::NEVER;
        }
        self.news
            .beat_at
            .min(self.join.at)
            .min(self.next_rejoin_timer())
            .min(self.join.restart_inquiry.next_timer())
            .min(self.next_watch_timer())
            .min(self.next_link_timer())
            .min(self.news.views.rest_at())
            .min(self.next_attribute_timer())
            .min(self.next_correlation_timer())
            .min(self.next_minority_timer())
    }

    /// How long a news frame waits for its acknowledgement the first time.
    fn ack_wait_us(&self) -> u64 {
        ack_wait_us(&self.config)
    }

    /// The same for each link: longer where acknowledgements take longer.
    fn ack_wait(&self) -> AckWait {
        AckWait {
            least_us: self.ack_wait_us(),
            others: self.news.ack_rtt,
        }
    }

    fn add_seed(&mut self, address: &[u8]) -> Result<(), Reject> {
        if address.is_empty() || address.len() > ADDRESS_MAX {
            return Err(Reject::Unknown);
        }
        if self.config.seeds.iter().any(|seed| seed == address) {
            return Ok(());
        }
        if self.config.seeds.len() >= SEEDS_MAX {
            return Err(Reject::Full);
        }
        self.config.seeds.push(address.to_vec());
        self.join.seeds_out_of_view = None;
        self.join.at = self.now;
        Ok(())
    }

    fn ask_for_a_sign(&mut self, id: MemberId) -> Result<(), Reject> {
        if id == self.own || self.table.in_view(id).is_none() {
            return Err(Reject::Unknown);
        }
        self.enqueue(Intent::Probe { to: id });
        Ok(())
    }

    fn degraded(&mut self, id: MemberId, degraded: bool) -> Result<(), Reject> {
        let member = self.table.in_view(id).ok_or(Reject::Unknown)?;
        if member.degraded == degraded {
            return Ok(());
        }
        let (event, kind) = if degraded {
            (EventKind::NodeDegraded, ObservationKind::Degraded)
        } else {
            (EventKind::NodeRecovered, ObservationKind::Recovered)
        };
        self.table.note(id, |member| member.degraded = degraded);
        self.observe(id, self.own, kind);
        self.emit(id, event, CauseKind::Rails, Reporters::default(), 0);
        Ok(())
    }

    fn told(&mut self, told: Told<'_>) -> Result<(), Reject> {
        match told {
            Told::Rank {
                rank,
                state,
                detail,
            } => {
                let own = self.table.get(self.own).ok_or(Reject::Unknown)?;
                let known = own.ranks.get(&rank);
                if known.is_some_and(|fact| (fact.state, fact.detail) == (state, detail)) {
                    return Ok(());
                }
                if state == RankState::Unknown {
                    return Err(Reject::Unknown);
                }
                if known.is_none() && own.ranks.len() >= RANKS_MAX {
                    return Err(Reject::Full);
                }
                self.news.rank_sequence =
                    self.news.rank_sequence.checked_add(1).ok_or(Reject::Full)?;
                let fact = RankFact {
                    rank,
                    state,
                    detail,
                    sequence: self.news.rank_sequence,
                };
                self.set_rank(self.own, fact, CauseKind::Announced, None);
                if state != RankState::Alive {
                    self.push_directly(Subject::Rank(self.own, rank));
                }
                Ok(())
            }
            Told::NodeFailed { name } => {
                let id = MemberId::of(name);
                if id == self.own || self.table.in_view(id).is_none() {
                    return Err(Reject::Unknown);
                }
                if self.rules.counts_reports {
                    self.suspect_plainly(id);
                    return Ok(());
                }
                let reporters = Reporters::from_iter([self.own]);
                self.observe(id, self.own, ObservationKind::Reported(CauseKind::Told));
                self.fail(id, CauseKind::Told, reporters, 0, None);
                self.push_directly(Subject::Node(id));
                Ok(())
            }
        }
    }

    fn leave(&mut self, exit_code: i32) {
        self.part(exit_code);
        let kind = EventKind::NodeLeft { exit_code };
        let nobody = Reporters::default();
        self.emit(self.own, kind, CauseKind::Announced, nobody, 0);
    }

    /// Leaves the job and tells the others.
    fn part(&mut self, exit_code: i32) {
        self.table.change(self.own, |own| {
            own.version = own.version.raised();
            own.state = NodeState::Left;
            own.exit_code = exit_code;
            own.cause = CauseKind::Announced;
        });
        self.phase = Phase::Leaving;
        self.attributes.quiet();
        self.leave_until = self.now.after(2 * self.config.deadline_us);
        for link in self.links.values_mut() {
            link.open(self.now);
            link.mark(Subject::Node(self.own));
        }
        self.push_directly(Subject::Node(self.own));
        if let Some(rejoin) = self.join.rejoin.take() {
            // There are no links yet: the member that admitted this one tells the others.
            self.enqueue(Intent::Direct {
                to: rejoin.with,
                subject: Subject::Node(self.own),
                route: Route::All,
            });
        }
    }

    /// Stops for good.
    fn stop(&mut self) {
        self.phase = Phase::Stopped;
        self.links.clear();
        self.watch.indirect_probes.clear();
        self.news.acks.clear();
        self.outbox = Outbox::default();
        self.news.views = Views::default();
        self.attributes.quiet();
    }

    fn emit(
        &mut self,
        member: MemberId,
        kind: EventKind,
        cause: CauseKind,
        reporters: Reporters,
        silent_us: u32,
    ) {
        let Some(version) = self.table.get(member).map(|member| member.version) else {
            return;
        };
        let cause = Cause {
            kind: cause,
            reporters,
            silent_us,
        };
        self.push_event(Event {
            at: self.now,
            kind,
            member,
            version,
            cause,
        });
    }

    fn push_event(&mut self, event: Event) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
            self.counters.events_dropped += 1;
        }
        self.events.push_back(event);
    }

    fn observe(&mut self, member: MemberId, by: MemberId, kind: ObservationKind) {
        let at = self.now;
        self.table.note(member, |member| {
            let version = member.version;
            member.evidence.push(Observation {
                at,
                by,
                version,
                kind,
            });
        });
    }

    /// A random number below `bound`, from the engine's own generator.
    fn random(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        ((u128::from(self.rng.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}
