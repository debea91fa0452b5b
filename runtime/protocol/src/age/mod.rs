//! The age engine: one participant of age-vector gossip, behind the same doors as the overlay.
//!
//! Once a cycle every participant grows all ages by one and pings another one at random with all of
//! them; who is pinged takes what is younger and answers with what is younger on its side by
//! enough. A Lamport clock in every message tells which ones are too old to be believed. A member
//! whose age passes a threshold is suspect, then failed; it is pinged all the same.
//!
//! The doors are here, and what the engine holds. One noun a file: `gossip` (the rules themselves),
//! `vector` (their loops), `config` (what is told at the start), `message` (on the wire),
//! `receive` and `send`, `carried` (inside the application's messages), `health` (from ages to
//! events), `interface` (getters).
//!
//! Named deviations. The first ping to a participant that has not been heard in its present life is
//! a request for an answer; the ping follows the answer (`Outgoing::Verify`). Ages start at 255,
//! not 0: a participant that starts would tell everybody that the dead live. Who slept counts the
//! cycles that it missed, so that what it holds does not rejuvenate, and judges nobody until it can
//! have heard of them again. A reply is a sign of life of its sender. Ranks and attributes do not
//! travel.

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

use crate::config::ConfigError;
use crate::counters::Counters;
use crate::event::{CauseKind, Event, EventKind};
use crate::evidence::ObservationKind;
use crate::identity::{MemberId, Version};
use crate::member_info::MemberInfo;
use crate::overlay::{Input, Phase, Told};
use crate::parameters::Parameter;
use crate::reject::Reject;
use crate::replay::ReplayGuard;
use crate::state::{RankFact, RankState};
use crate::table::{Member, RANKS_MAX, Table};
use crate::time::Instant;

pub use config::{AgeConfig, Choice, Exchange, Participant};
use gossip::Gossip;
use health::Health;
use message::Assemblies;
use send::Outgoing;

/// The age engine of one member.
///
/// Methods come in four families, as the overlay's: `handle` for what happens, `poll_*` for what
/// follows from it, getters, and `new`.
#[derive(Clone, Debug)]
pub struct Age {
    config: AgeConfig,
    digest: [u8; 20],
    own: MemberId,
    /// Our own place in the order of the participants.
    place: usize,
    ids: Vec<MemberId>,
    places: BTreeMap<MemberId, u32>,
    /// Places of those in our group, and of the others.
    near: Vec<u32>,
    far: Vec<u32>,
    gossip: Gossip,
    health: Vec<Health>,
    /// Incarnations that were heard of first hand; 0 for none.
    incarnations: Vec<u64>,
    /// The incarnations that frames are written for; 0 where no frame has come.
    receivers: Vec<u64>,
    /// The newest message of each that counted as life: its incarnation, and the sequence of its first part.
    newest: Vec<(u64, u64)>,
    /// Whom the last ping could only ask for an answer.
    requested: Option<u32>,
    /// Places of those who are not alive, in no order.
    absent: Vec<u32>,
    table: Table,
    replay: ReplayGuard,
    assemblies: Assemblies,
    rng: ChaCha8Rng,
    outgoing: VecDeque<Outgoing>,
    ping_due: bool,
    /// Whom the next ping goes to, where it was drawn ahead of its time.
    ahead: Option<u32>,
    /// Whether that one has answered since a ping was written for a message to it.
    has_answered: bool,
    /// Whom a message has carried the last ping to, without an answer yet.
    unanswered: Option<u32>,
    /// So many pings go by the rails before another one may be carried.
    held_back: u8,
    /// Whom the host misses on a rail: the next ping goes there.
    asked_for: Option<u32>,
    /// The address of the last frame to a member that is no participant.
    verify_address: Vec<u8>,
    refused: Option<(MemberId, String, Parameter)>,
    events: VecDeque<Event>,
    counters: Counters,
    sequence: u64,
    rank_sequence: u32,
    phase: Phase,
    /// Whether gossip goes on; cycles stop when it does not.
    is_running: bool,
    started: bool,
    now: Instant,
    cycle_at: Instant,
    ping_at: Instant,
    last_gossip: Instant,
    /// Cycles since the engine was made.
    gossip_cycles: u64,
    /// AG-05: cycles begun since gossip was last started, in which parameters travel. Cycles that were slept through
    /// sent nothing and do not count.
    parameter_cycles: u64,
    grace_until: u64,
    judge_due: bool,
    /// The clock of the last message that counted.
    message_clock: Option<u64>,
    /// What the host said of its own lateness.
    late_us: u64,
}

impl Age {
    /// An engine that has heard of nobody yet.
    ///
    /// # Errors
    /// The first configuration value that cannot be; no engine was made.
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
        let info = MemberInfo::of_participant(&participants[place]);
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
    /// Why the input was not taken. It changed nothing but a counter; time and cycles went on.
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
                // Whatever came before this moment has been handed in: now silences can be judged.
                if std::mem::take(&mut self.judge_due) && self.is_running {
                    self.judge_down();
                }
                Ok(())
            }
            Input::Datagram { bytes } => self.receive(bytes),
            Input::Unreachable(member) => {
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
            // The list of participants is the same everywhere: nobody is added on the way.
            Input::Seed { .. } | Input::Unseed { .. } => Ok(()),
            Input::Address(_) | Input::Policy(_) => Ok(()),
            Input::Key(key) => {
                self.config.key = Some(key);
                Ok(())
            }
            Input::Publish { .. } | Input::Withdraw { .. } => Err(Reject::NoAttributes),
            Input::Leave { exit_code } => {
                self.phase = Phase::Stopped;
                self.halt();
                self.tell(
                    self.place,
                    EventKind::NodeLeft { exit_code },
                    CauseKind::Announced,
                );
                Ok(())
            }
        }
    }

    /// When to call `handle` with [`Input::Wake`] at the latest. The time of the last `handle` if
    /// there is something to send or to judge already.
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

    /// Begins gossip again after [`Age::halt`], or after parameters that differed; parameters then travel again for
    /// the first cycles (AG-05). An engine that waits for its participants waits on. Does nothing to one that gossips.
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

    /// Everybody is let go: the list is about to be replaced.
    pub fn disband(&mut self) {
        self.halt();
        self.phase = Phase::Stopped;
        for index in 0..self.ids.len() {
            let is_here = matches!(self.health[index], Health::Alive | Health::Suspect);
            if index != self.place && is_here {
                self.health[index] = Health::Failed;
                self.tell(
                    index,
                    EventKind::NodeLeft { exit_code: 0 },
                    CauseKind::Announced,
                );
            }
        }
    }

    /// Time goes on: the cycles that it brings begin.
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
        // Cycles go on while gossip is stopped: what is held gets older.
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
            // Who is late all the time is forgiven once, not for ever.
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
        self.tell(at, event, CauseKind::Rails);
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
                self.tell(
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

    /// A number below `bound`, from the engine's own fixed generator.
    fn random(&mut self, bound: u64) -> u64 {
        ((u128::from(self.rng.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}
