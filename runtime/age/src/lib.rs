//! The age engine: one participant of age-vector gossip, with the same interface as the overlay.
//!
//! Once a cycle every participant increases all ages by one, and pings a random participant with all of
//! them. The receiver takes younger ages, and replies with its own ages that are sufficiently younger. A
//! Lamport clock in every message identifies obsolete ones. A member whose age passes a threshold is
//! suspect, then failed; it is still pinged.
//!
//! This file holds the engine's state and its inputs. Other files: `gossip` (the rules), `vector` (their
//! loops), `config`, `message` (on the wire), `receive` and `send`, `carried` (inside messages of the
//! application), `health` (from ages to events), `interface` (getters).
//!
//! Deviations. The first ping to a participant that was not heard in its present incarnation is a request
//! for an answer; the ping follows the answer (`Outgoing::Verify`). Ages start at 255, not 0: with 0 a
//! starting participant would tell all others that failed members live. A participant that overslept counts
//! the missed cycles, so that its ages do not look young, and judges no member until it can have heard of
//! them again. A reply is a sign of life of its sender. Ranks and attributes are not sent.
//!
//! Hosts use the engine by way of `muster-protocol`, whose `Engine` is either this one or the overlay. The crate
//! does not know the overlay, rails, PMIx, Slurm, files, or wall-clock time.
#![forbid(unsafe_code)]
// Decisions do not depend on how a machine rounds.
#![deny(clippy::float_arithmetic)]

pub mod carried;
pub mod config;
#[cfg(test)]
mod contact_tests;
pub mod gossip;
mod health;
mod interface;
mod message;
mod receive;
#[cfg(test)]
mod riding_tests;
mod send;
#[cfg(test)]
mod tests;
pub mod vector;

use std::collections::{BTreeMap, VecDeque};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use muster_wire::cause::CauseKind;
use muster_wire::counters::Counters;
use muster_wire::event::{Event, EventKind};
use muster_wire::evidence::ObservationKind;
use muster_wire::identity::{MemberId, Version};
use muster_wire::interface::{Input, Phase, Told};
use muster_wire::parameter::Difference;
use muster_wire::reject::Reject;
use muster_wire::replay::ReplayGuard;
use muster_wire::settings::ConfigError;
use muster_wire::state::{RankFact, RankState};
use muster_wire::table::{Member, RANKS_MAX, Table};
use muster_wire::time::Instant;

pub use config::{AgeConfig, Choice, Exchange, Participant};
use gossip::Gossip;
use health::Health;
use message::Assemblies;
use send::Outgoing;

/// The age engine of one member.
///
/// Four families of methods, as the overlay has: `handle` for inputs, `poll_*` for their results, getters,
/// and `new`.
#[derive(Clone, Debug)]
pub struct Age {
    config: AgeConfig,
    digest: [u8; 20],
    own: MemberId,
    /// Own place in the order of the participants.
    place: usize,
    ids: Vec<MemberId>,
    places: BTreeMap<MemberId, u32>,
    /// Places of the other members of the own group, and of the rest.
    near: Vec<u32>,
    far: Vec<u32>,
    gossip: Gossip,
    health: Vec<Health>,
    /// Incarnations heard of at first hand; 0 for none.
    incarnations: Vec<u64>,
    /// The incarnations that frames are written for; 0 where no frame has come.
    receivers: Vec<u64>,
    /// The newest message of each that was a sign of life: its incarnation, and the sequence of its first
    /// part.
    newest: Vec<(u64, u64)>,
    /// The participant that the last ping could only send a request to.
    requested: Option<u32>,
    /// Places of the members that are not alive, in no order.
    absent: Vec<u32>,
    table: Table,
    replay: ReplayGuard,
    assemblies: Assemblies,
    rng: ChaCha8Rng,
    outgoing: VecDeque<Outgoing>,
    ping_due: bool,
    /// The target of the next ping, if it was drawn ahead of time.
    ahead: Option<u32>,
    /// Whether the target has answered since a ping for it was written ahead.
    has_answered: bool,
    /// The target of the last carried ping that is not answered yet.
    unanswered: Option<u32>,
    /// Pings that are sent by the rails before another one may be carried.
    held_back: u8,
    /// A participant that the host misses on a rail: target of the next ping.
    asked_for: Option<u32>,
    /// The address of the last frame to a member that is no participant.
    verify_address: Vec<u8>,
    refused: Option<(MemberId, String, Difference)>,
    events: VecDeque<Event>,
    counters: Counters,
    sequence: u64,
    rank_sequence: u32,
    phase: Phase,
    /// Whether gossip runs; no messages are sent otherwise.
    is_running: bool,
    started: bool,
    now: Instant,
    cycle_at: Instant,
    ping_at: Instant,
    last_gossip: Instant,
    /// Cycles since the engine was made.
    gossip_cycles: u64,
    /// AG-05: cycles since the last start of gossip, in which parameters are sent. Cycles overslept sent
    /// nothing, and do not count.
    parameter_cycles: u64,
    grace_until: u64,
    judge_due: bool,
    /// The clock of the last message that counted.
    message_clock: Option<u64>,
    /// The lateness that the host announced.
    late_us: u64,
}

impl Age {
    /// An engine that has heard of no participant yet.
    ///
    /// # Errors The first configuration value out of bounds; no engine was made.
    pub fn new(mut config: AgeConfig) -> Result<Self, ConfigError> {
        config.check()?;
        config.participants.sort();
        let participants = &config.participants;
        let count = participants.len();
        let ids: Vec<MemberId> = participants
            .iter()
            .map(|one| MemberId::of(&one.name))
            .collect();
        let is_own = |one: &Participant| one.nid == config.own;
        let place = participants.iter().position(is_own).unwrap_or_default();
        let own = ids[place];
        let group = &participants[place].group;
        let (near, far) = (0..count as u32)
            .filter(|at| *at as usize != place)
            .partition(|at| !group.is_empty() && participants[*at as usize].group == *group);
        let mut table = Table::default();
        let info = participants[place].info();
        table.insert(Member::new(own, info, Version::first(config.incarnation)));
        let mut health = vec![Health::Unknown; count];
        health[place] = Health::Alive;
        let mut incarnations = vec![0; count];
        incarnations[place] = config.incarnation;
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&config.random_seed.to_le_bytes());
        seed[8..16].copy_from_slice(&own.0.to_le_bytes());
        seed[16..24].copy_from_slice(&config.incarnation.to_le_bytes());
        Ok(Self {
            digest: config::digest(participants),
            own,
            place,
            places: ids.iter().zip(0..).map(|(id, at)| (*id, at)).collect(),
            near,
            far,
            gossip: Gossip::new(count, Some(place), config.rules),
            health,
            incarnations,
            absent: (0..count as u32)
                .filter(|at| *at as usize != place)
                .collect(),
            ids,
            table,
            replay: ReplayGuard::new(count + 256, config.interval_us),
            receivers: vec![0; count],
            newest: vec![(0, 0); count],
            requested: None,
            assemblies: Assemblies::default(),
            rng: ChaCha8Rng::from_seed(seed),
            outgoing: VecDeque::new(),
            ping_due: false,
            ahead: None,
            has_answered: false,
            unanswered: None,
            held_back: 0,
            asked_for: None,
            verify_address: Vec::new(),
            refused: None,
            events: VecDeque::new(),
            counters: Counters::default(),
            sequence: config.first_sequence,
            rank_sequence: 0,
            phase: Phase::Running,
            is_running: !config.is_waiting,
            started: false,
            now: Instant::default(),
            cycle_at: Instant::default(),
            ping_at: Instant::default(),
            last_gossip: Instant::default(),
            gossip_cycles: 0,
            parameter_cycles: 0,
            grace_until: 0,
            judge_due: false,
            message_clock: None,
            late_us: 0,
            config,
        })
    }

    /// Takes one input at time `now`, which never goes back.
    ///
    /// # Errors
    /// Why the input was rejected. It changed nothing but a counter; time and cycles went on.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) -> Result<(), Reject> {
        self.advance(now);
        let result = self.take(input);
        if let Err(reject) = result {
            self.counters.rejected[reject as usize] += 1;
        }
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
            Input::Wake => {
                // All earlier datagrams have been handed in: now silences can be judged.
                if std::mem::take(&mut self.judge_due) && self.is_running {
                    self.judge_down();
                }
                Ok(())
            }
            Input::Datagram { bytes } => self.receive(bytes),
            Input::Unreachable(member) | Input::Ended(member) => {
                let at = self.place_of(member)?;
                self.observe(at, ObservationKind::Unreachable);
                self.asked_for = Some(at as u32);
                Ok(())
            }
            Input::Ask(member) => {
                self.asked_for = Some(self.place_of(member)? as u32);
                Ok(())
            }
            Input::Degraded { member, degraded } => self.degraded(member, degraded),
            Input::TrafficFrom { member, age_us } => {
                let at = self.place_of(member)?;
                let cycles = age_us / self.config.interval_us;
                self.gossip
                    .merge_one(at, u8::try_from(cycles).unwrap_or(u8::MAX));
                self.judge_up();
                Ok(())
            }
            Input::TrafficTo { member, .. } => {
                let at = self.place_of(member)?;
                self.leave_out_ping(at);
                Ok(())
            }
            Input::Carried { bytes, age_us } => self.carried(bytes, age_us),
            Input::Told(told) => self.told(told),
            // The list of participants is fixed: no address is added.
            Input::Seed { .. } | Input::Unseed { .. } | Input::Contact { .. } => Ok(()),
            Input::Address(_) | Input::Policy(_) => Ok(()),
            // It has no zones.
            Input::Record(_) | Input::Outcast(_) => Ok(()),
            Input::Key(key) => {
                self.config.key = Some(key);
                Ok(())
            }
            Input::Publish { .. } | Input::Withdraw { .. } => Err(Reject::NoAttributes),
            Input::Leave { exit_code } => {
                self.phase = Phase::Stopped;
                self.halt();
                self.emit(
                    self.place,
                    EventKind::NodeLeft { exit_code },
                    CauseKind::Announced,
                );
                Ok(())
            }
        }
    }

    /// The latest time for the next `handle` with [`Input::Wake`]. The time of the last `handle` if there
    /// is something to send or to judge.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        if !self.started {
            return Instant::default();
        }
        let may_send = self.config.key.is_some();
        if !self.is_running && self.outgoing.is_empty() {
            return Instant::NEVER;
        }
        if self.judge_due || (may_send && self.wants_to_send()) {
            return self.now;
        }
        self.cycle_at.min(self.ping_at)
    }

    /// The next event, oldest first.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Starts gossip again after [`Age::halt`], or after different parameters. Parameters are then sent
    /// again for the first cycles (AG-05). An engine that waits for its list goes on waiting. No effect
    /// while gossip runs.
    pub fn resume_gossip(&mut self) {
        self.refused = None;
        if self.phase == Phase::Running && !self.config.is_waiting && !self.is_running {
            self.is_running = true;
            self.parameter_cycles = 0;
        }
    }

    /// Stops gossip: no pings, no replies, no verdicts, until [`Age::resume_gossip`].
    pub fn halt(&mut self) {
        self.is_running = false;
        self.ping_due = false;
        self.ahead = None;
        self.outgoing.clear();
        self.assemblies.clear();
    }

    /// Removes all members, because the list is about to be replaced.
    pub fn disband(&mut self) {
        self.halt();
        self.phase = Phase::Stopped;
        for index in 0..self.ids.len() {
            let is_here = matches!(self.health[index], Health::Alive | Health::Suspect);
            if index != self.place && is_here {
                self.health[index] = Health::Failed;
                self.emit(
                    index,
                    EventKind::NodeLeft { exit_code: 0 },
                    CauseKind::Announced,
                );
            }
        }
    }

    /// Moves time on: begins the cycles that are due.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if !self.started {
            self.started = true;
            let phase = self.random(self.config.interval_us);
            self.cycle_at = self.now.after(phase);
            self.ping_at = self.cycle_at;
            return;
        }
        let interval_us = self.config.interval_us;
        // Cycles go on while gossip is stopped: ages increase.
        if self.now >= self.cycle_at {
            let cycles = self.now.since(self.cycle_at) / interval_us + 1;
            self.cycle_at = self.cycle_at.after(cycles * interval_us);
            self.begin_cycles(cycles);
        }
        if self.now >= self.ping_at {
            let missed = self.now.since(self.ping_at) / interval_us;
            self.ping_at = self.ping_at.after((missed + 1) * interval_us);
            self.ping_due = self.is_running;
        }
    }

    fn begin_cycles(&mut self, cycles: u64) {
        self.gossip.tick(cycles);
        self.judge_due = self.is_running;
        let dead = u64::from(self.config.dead_after);
        let in_grace = self.gossip_cycles < self.grace_until;
        self.gossip_cycles += cycles;
        self.parameter_cycles += u64::from(self.is_running);
        if cycles > 1 {
            self.counters.cycles_missed += cycles - 1;
            // A member that is always late is forgiven once, not for ever.
            if !in_grace || cycles > dead {
                self.grace_until = self.gossip_cycles + cycles.min(dead);
            }
        }
    }

    fn place_of(&self, id: MemberId) -> Result<usize, Reject> {
        let place = self.places.get(&id).map(|place| *place as usize);
        place
            .filter(|place| *place != self.place)
            .ok_or(Reject::Unknown)
    }

    fn degraded(&mut self, id: MemberId, degraded: bool) -> Result<(), Reject> {
        let at = self.place_of(id)?;
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
        self.observe(at, kind);
        self.emit(at, event, CauseKind::Rails);
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
                self.rank_sequence = self.rank_sequence.checked_add(1).ok_or(Reject::Full)?;
                let fact = RankFact {
                    rank,
                    state,
                    detail,
                    sequence: self.rank_sequence,
                };
                self.table.change(self.own, |own| {
                    own.ranks.insert(rank, fact);
                });
                self.emit(
                    self.place,
                    EventKind::RankChanged { fact },
                    CauseKind::Announced,
                );
                Ok(())
            }
            Told::NodeFailed { name } => {
                let at = self.place_of(MemberId::of(name))?;
                if matches!(self.health[at], Health::Unknown | Health::Failed) {
                    return Err(Reject::Unknown);
                }
                if self.health[at] == Health::Alive {
                    self.absent.push(at as u32);
                }
                self.gossip.bury(at);
                self.fail(at, CauseKind::Told);
                Ok(())
            }
        }
    }

    /// A random number below `bound`, from the engine's own generator.
    fn random(&mut self, bound: u64) -> u64 {
        ((u128::from(self.rng.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}
