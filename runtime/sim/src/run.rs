//! One run: boot, the phase of faults, convergence, calm; and the result.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use muster_protocol::{EventKind, Input, Instant, MemberId, RankState};

use crate::checker::Violation;
use crate::inspection::{bounds, end};
use crate::scenario::{Fault, FaultKind, Scenario, Span};
use crate::world::{Record, World};

const MS: u64 = 1000;
/// Interval of the checkers of bounds.
const BOUNDS_INTERVAL_US: u64 = 100 * MS;
/// Interval of the checks whether all views are right.
const STEP_US: u64 = MS;
/// How long the consequences of a fault may last after its end.
const SETTLE_DEADLINES: u64 = 4;
/// Number of members whose addresses all members know.
const SEEDS: usize = 8;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All guarantees held.
    Sound,
    /// A guarantee was broken.
    Incorrect(Vec<Violation>),
    /// A phase did not end in time.
    NotLive {
        /// The phase.
        phase: &'static str,
        /// What the checkers of the end found in the views.
        found: Vec<Violation>,
    },
    /// The code panicked.
    Crashed(String),
}

impl Outcome {
    /// The kind of outcome.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::Incorrect(_) => "correctness",
            Self::NotLive { .. } => "liveness",
            Self::Crashed(_) => "crash",
        }
    }

    /// The violations found.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        match self {
            Self::Incorrect(found) | Self::NotLive { found, .. } => found,
            Self::Sound | Self::Crashed(_) => &[],
        }
    }

    /// Two failures with the same signature count as the same for shrinking: the kind and the first checker.
    pub(crate) fn signature(&self) -> (&'static str, Option<&'static str>) {
        let first = self.violations().first();
        (self.kind(), first.map(|violation| violation.checker))
    }
}

/// Measurements of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// From the start of the last member until all views were right, in microseconds.
    pub boot_us: u64,
    /// From the end of the faults until all views were right, in microseconds.
    pub rest_us: u64,
    /// Virtual time in total, in microseconds.
    pub virtual_us: u64,
    /// Datagrams that all members sent.
    pub frames: u64,
    /// Bytes that all members sent.
    pub bytes: u64,
    /// Events that all members reported.
    pub events: u64,
}

/// One run of one seed.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The drawn scenario: every number is fixed.
    pub drawn: Scenario,
    /// How it ended.
    pub outcome: Outcome,
    /// Its measurements.
    pub figures: Figures,
}

/// Runs a scenario with a seed.
#[must_use]
pub fn run(scenario: &Scenario, seed: u64) -> Report {
    let drawn = scenario.draw(seed);
    let (outcome, figures, _) = run_drawn(&drawn, false);
    Report {
        seed,
        drawn,
        outcome,
        figures,
    }
}

/// Runs a drawn scenario, with a trace if a story is requested.
pub(crate) fn run_drawn(drawn: &Scenario, traced: bool) -> (Outcome, Figures, Option<World>) {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut run = Run::new(drawn, traced);
        let outcome = run.all();
        (outcome, run.figures, run.world)
    }));
    match result {
        Ok((outcome, figures, world)) => (outcome, figures, Some(world)),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let text = text.unwrap_or_else(|| "a panic without a message".to_owned());
            (Outcome::Crashed(text), Figures::default(), None)
        }
    }
}

struct Run<'a> {
    drawn: &'a Scenario,
    world: World,
    members: usize,
    figures: Figures,
    /// Incarnations that ended by a crash, with the time.
    crashes: BTreeMap<(MemberId, u64), Instant>,
    /// When the first fault could happen.
    faults_at: Instant,
    looked_at: u64,
    joined: usize,
    /// Whether a node writes attributes.
    publishes: bool,
    /// Makes every written value unique.
    written: u64,
}

impl<'a> Run<'a> {
    fn new(drawn: &'a Scenario, traced: bool) -> Self {
        let mut world = World::new(drawn.seed.unwrap_or(0));
        world.network = drawn.network.network();
        world.set_rails(drawn.zone.rails.value() as usize);
        if traced {
            world.start_trace();
        }
        let faults = &drawn.safety.fault;
        if faults.iter().any(|fault| fault.kind == FaultKind::Replay) {
            world.record(drawn.seed.unwrap_or(0));
        }
        Self {
            drawn,
            world,
            members: drawn.zone.members.value() as usize,
            figures: Figures::default(),
            crashes: BTreeMap::new(),
            faults_at: Instant::default(),
            looked_at: 0,
            joined: 0,
            publishes: drawn
                .safety
                .fault
                .iter()
                .any(|f| f.kind == FaultKind::Publish),
            written: 0,
        }
    }

    fn all(&mut self) -> Outcome {
        let phases = [Self::boot, Self::faults, Self::settle, Self::calm];
        let mut outcome = Outcome::Sound;
        for phase in phases {
            if let Err(ended) = phase(self) {
                outcome = ended;
                break;
            }
            if !self.world.checker.violations().is_empty() {
                break;
            }
        }
        self.figures.virtual_us = self.world.now().since(crate::world::START);
        self.figures.frames = self.world.frames_sent_by_all();
        self.figures.bytes = self.world.bytes_sent_by_all();
        self.figures.events = self.world.records().len() as u64;
        match self.world.checker.violations() {
            [] => outcome,
            found => Outcome::Incorrect(found.to_vec()),
        }
    }

    fn add(&mut self, name: &str, foreign: bool) {
        let mut config = self.world.config(name, self.drawn.profile());
        self.drawn.configure(&mut config, false);
        config.group = self.drawn.group_of(self.world.len());
        // One seed would be a single point of failure, and some seed must outlive the faults.
        let seeds = self.members.min(SEEDS) as u32;
        config.seeds = (0..seeds)
            .map(|index| format!("address-{index}").into_bytes())
            .collect();
        // A late member gets addresses of several present members: the first ones may be gone by then.
        if self.world.len() >= self.members {
            for node in self.world.running().into_iter().take(SEEDS) {
                config.seeds.push(self.world.address(node).to_vec());
            }
        }
        if foreign {
            config.key = Some([7; 32]);
        }
        self.world.add(config);
    }

    fn boot(&mut self) -> Result<(), Outcome> {
        let spread_us = self.drawn.zone.start_spread_ms.value() * MS;
        let mut starts: Vec<u64> = (0..self.members)
            .map(|_| self.world.chance().between(0, spread_us))
            .collect();
        starts.sort_unstable();
        let mut gone_us = 0;
        for (index, at_us) in starts.into_iter().enumerate() {
            if at_us > gone_us {
                self.world.run(at_us - gone_us);
                gone_us = at_us;
            }
            self.add(&format!("node{index}"), false);
        }
        let since = self.world.now();
        let limit_us = self.drawn.zone.boot_within_ms.value() * MS;
        if !self.converge(limit_us) {
            return Err(self.not_live("boot"));
        }
        self.figures.boot_us = self.world.now().since(since);
        Ok(())
    }

    fn faults(&mut self) -> Result<(), Outcome> {
        let start = self.world.now();
        self.faults_at = start;
        let sent = self.world.bytes_sent_by_all();
        let facts = self.world.facts_heard();
        let faults = &self.drawn.safety.fault;
        let mut steps: Vec<(u64, bool, &Fault)> = Vec::new();
        for fault in faults {
            if fault.for_ms.is_some() && fault.end_ms() <= fault.at() {
                // A fault of zero length would end before it begins.
                continue;
            }
            steps.push((fault.at() * MS, true, fault));
            if fault.for_ms.is_some() {
                steps.push((fault.end_ms() * MS, false, fault));
            }
        }
        steps.sort_by_key(|(at, begins, _)| (*at, *begins));
        let duration_us = self.drawn.safety.duration_ms.value() * MS;
        for (at_us, begins, fault) in steps {
            self.run_for(start.after(at_us).since(self.world.now()));
            let text = format!(
                "*** {} of {:?} {:?}",
                if begins { "begin" } else { "end" },
                fault.kind,
                fault.targets(self.members)
            );
            self.world.trace_line(text, Vec::new());
            if begins {
                self.begin(fault);
            } else {
                self.end(fault);
            }
        }
        self.run_for(start.after(duration_us).since(self.world.now()));
        let spent_us = self.world.now().since(start);
        if spent_us >= BOUNDS_INTERVAL_US {
            let bound = self.drawn.expect.storm_bytes.value();
            if let Some(violation) = bounds::traffic(&self.world, sent, spent_us, bound) {
                self.world.checker.add(violation);
            }
        }
        let bound = u64::from(self.drawn.expect.copies_percent);
        if let Some(violation) = bounds::copies(&self.world, &facts, bound) {
            self.world.checker.add(violation);
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Outcome> {
        self.world
            .trace_line("*** faults are over".to_owned(), Vec::new());
        self.world.network.heal();
        self.world.mend_rails();
        self.world
            .end_storm(self.drawn.network.loss_permille.value() as u32);
        self.world.end_slowness();
        if self.drawn.liveness.revive {
            for node in (0..self.world.len()).filter(|node| *node < self.members) {
                if self.world.is_crashed(node) {
                    self.world.restart(node);
                }
            }
        }
        let since = self.world.now();
        let limit_us = self.drawn.liveness.within_ms.value() * MS;
        if !self.converge(limit_us) {
            return Err(self.not_live("liveness"));
        }
        self.figures.rest_us = self.world.now().since(since);
        // Views can be right because the last fault is not detected yet. Its consequences end within some
        // deadlines, and are excused that long.
        self.run_for(SETTLE_DEADLINES * self.deadline_us());
        if self.converge(limit_us) {
            Ok(())
        } else {
            Err(self.not_live("liveness"))
        }
    }

    /// No failure is excused any more, and no event may occur.
    fn calm(&mut self) -> Result<(), Outcome> {
        self.expect();
        let calm_us = self.drawn.liveness.calm_ms.value() * MS;
        if calm_us == 0 {
            return Ok(());
        }
        self.world.end_excuses();
        // Datagrams under way may still arrive; news of the last change may still spread.
        self.run_for(BOUNDS_INTERVAL_US);
        let sent = self.world.bytes_sent_by_all();
        let (asked, since) = (self.world.attribute_frames(), self.world.now());
        self.run_for(calm_us);
        let more = self.world.attribute_frames() - asked;
        // A datagram that the network sends again much later may be a request that was never answered.
        let replays = self.drawn.network.replay_permille.value() > 0;
        let late = if replays { self.world.len() as u64 } else { 0 };
        let lately = self.world.records().iter().rev();
        let outcast = lately
            .take_while(|record| record.at >= since)
            .find(|record| record.event.kind == EventKind::Outcast)
            .map(|record| (record.at, record.event.member));
        if let Some((at, member)) = outcast {
            self.world.checker.add(Violation {
                checker: "calm",
                at,
                member: Some(member),
                what: "declared failed in the calm phase".to_owned(),
            });
        }
        if more > late {
            self.world.checker.add(Violation {
                checker: "attribute-traffic",
                at: self.world.now(),
                member: None,
                what: format!("{more} frames with attributes although none was written"),
            });
        }
        let bound = self.drawn.expect.quiet_bytes.value();
        if let Some(violation) = bounds::traffic(&self.world, sent, calm_us, bound) {
            self.world.checker.add(violation);
        }
        // A suspicion that is just being refuted does not break the calm.
        if self.converge(2000 * MS) {
            Ok(())
        } else {
            Err(self.not_live("calm"))
        }
    }

    /// Checks what the scenario expects in addition to the general guarantees.
    fn expect(&mut self) {
        let mut found = end::rank_ends(&self.world);
        if let Some(within_ms) = self.drawn.expect.news_within_ms {
            found.extend(end::news(&self.world, within_ms.value() * MS));
        }
        let mut outcasts = BTreeSet::new();
        for record in self.world.records() {
            let event = &record.event;
            let broken = match event.kind {
                EventKind::Outcast => {
                    outcasts.insert(record.observer);
                    let many = outcasts.len() as u64 > self.drawn.expect.outcasts_max.value();
                    many.then_some(("outcasts", "more outcasts than the scenario allows"))
                }
                EventKind::NodeFailed => self.check_failure(record),
                _ => None,
            };
            found.extend(broken.map(|(checker, what)| Violation {
                checker,
                at: record.at,
                member: Some(event.member),
                what: format!("{what}: observer {}, {event:?}", record.observer),
            }));
        }
        found
            .into_iter()
            .for_each(|violation| self.world.checker.add(violation));
    }

    fn check_failure(&self, record: &Record) -> Option<(&'static str, &'static str)> {
        let event = &record.event;
        let incarnation = event.version.incarnation;
        let runs = (0..self.world.len()).any(|node| {
            self.world.id(node) == event.member
                && !self.world.is_crashed(node)
                && self.world.engine(node).version().incarnation == incarnation
        });
        if self.drawn.expect.no_false_failure && runs {
            return Some(("no-false-failure", "declared failed although it runs"));
        }
        let crash = self.crashes.get(&(event.member, incarnation))?;
        let limit_us = self.drawn.expect.detect_within_ms.value() * MS;
        let late = record.at.since(self.detectable_at(*crash, record.at)) > limit_us;
        late.then_some(("detection", "a crash was reported too late"))
    }

    /// The time from which a crash that was reported at `reported_at` could have been detected: the end of the
    /// stops and cuts that began before the report.
    fn detectable_at(&self, crash: Instant, reported_at: Instant) -> Instant {
        let hinders = |fault: &&Fault| {
            matches!(
                fault.kind,
                FaultKind::Pause
                    | FaultKind::Suspend
                    | FaultKind::Slow
                    | FaultKind::OneWay
                    | FaultKind::Isolate
                    | FaultKind::Split
                    | FaultKind::Blackout
                    | FaultKind::Storm
            )
        };
        let faults = self.drawn.safety.fault.iter().filter(hinders);
        let ends = faults
            .filter(|fault| self.faults_at.after(fault.at() * MS) <= reported_at)
            .map(|fault| self.faults_at.after(fault.end_ms() * MS));
        ends.fold(crash, Instant::max)
    }

    /// Lets time pass, and checks the bounds at intervals.
    fn run_for(&mut self, mut duration_us: u64) {
        while duration_us > 0 {
            let part_us = duration_us.min(BOUNDS_INTERVAL_US);
            self.world.run(part_us);
            duration_us -= part_us;
            self.check_bounds();
        }
    }

    fn deadline_us(&self) -> u64 {
        let mut config = muster_protocol::Config::new("n", b"a", self.drawn.profile());
        self.drawn.configure(&mut config, false);
        config.deadline_us
    }

    fn check_bounds(&mut self) {
        let now = self.world.now().0;
        if now < self.looked_at + BOUNDS_INTERVAL_US {
            return;
        }
        self.looked_at = now;
        for violation in bounds::memory(&self.world) {
            self.world.checker.add(violation);
        }
    }

    fn converge(&mut self, limit_us: u64) -> bool {
        let mut spent_us = 0;
        loop {
            // A stopped member is not part of the comparison, so the result would be too good.
            let right = !self.world.any_paused() && self.world.converged();
            if right && (!self.publishes || self.world.attributes_agree()) {
                return true;
            }
            if spent_us >= limit_us || !self.world.checker.violations().is_empty() {
                return false;
            }
            self.world.run(STEP_US);
            spent_us += STEP_US;
            self.check_bounds();
        }
    }

    fn not_live(&self, phase: &'static str) -> Outcome {
        let mut found = end::completeness(&self.world);
        found.extend(end::equality(&self.world));
        found.extend(end::ranks(&self.world));
        found.extend(end::attributes(&self.world));
        Outcome::NotLive { phase, found }
    }

    fn begin(&mut self, fault: &Fault) {
        let targets = fault.targets(self.members);
        match fault.kind {
            FaultKind::Join => {
                self.joined += 1;
                return self.add(&format!("joined{}", self.joined), false);
            }
            FaultKind::Foreign => {
                self.joined += 1;
                return self.add(&format!("foreign{}", self.joined), true);
            }
            FaultKind::Split => {
                let others: Vec<usize> = (0..self.world.len())
                    .filter(|node| !targets.contains(node))
                    .collect();
                return self.world.split(&targets, &others);
            }
            FaultKind::Blackout => {
                for node in 0..self.world.len() {
                    self.world.isolate(node);
                }
                return;
            }
            FaultKind::Storm => {
                let loss_permille = fault.loss_permille.map_or(0, Span::value) as u32;
                return self.world.storm(loss_permille);
            }
            _ => {}
        }
        for node in targets {
            self.begin_at(fault, node);
        }
    }

    fn begin_at(&mut self, fault: &Fault, node: usize) {
        let runs = self.world.running().contains(&node);
        let last = self.world.running().len() < 2;
        match fault.kind {
            FaultKind::Crash | FaultKind::Restart if runs && last => {}
            FaultKind::Crash | FaultKind::Restart => {
                if runs && fault.kind == FaultKind::Crash {
                    let incarnation = self.world.engine(node).version().incarnation;
                    let life = (self.world.id(node), incarnation);
                    self.crashes.insert(life, self.world.now());
                }
                self.world.crash(node);
            }
            FaultKind::Suspend if runs => {
                self.world
                    .suspend(node, fault.for_ms.map_or(0, Span::value) * MS);
            }
            FaultKind::Pause if runs => {
                self.world
                    .pause(node, fault.for_ms.map_or(0, Span::value) * MS);
            }
            FaultKind::Slow if runs => {
                self.world.slow(node, fault.slow_us.map_or(0, Span::value));
            }
            FaultKind::Clock => {
                let rate_ppm = fault.rate_ppm.map_or(0, |rate| rate.low);
                self.world.set_clock_rate(node, rate_ppm);
            }
            FaultKind::Worker if runs => {
                self.world
                    .resume_worker(node, fault.gap_us.map_or(0, Span::value));
            }
            FaultKind::Leave if runs && !last => {
                self.world.input(node, Input::Leave { exit_code: 3 }).ok();
            }
            FaultKind::Rank if runs => {
                let rank = fault.rank.map_or(0, Span::value) as u32;
                let states = [
                    RankState::Alive,
                    RankState::Hung,
                    RankState::Failed,
                    RankState::Left,
                ];
                let pick = self.world.chance().between(0, 3) as usize;
                self.world.rank(node, rank, states[pick]);
            }
            FaultKind::Publish if runs => {
                self.written += 1;
                let key = [b'k', fault.key.map_or(0, Span::value) as u8];
                let mut value = self.written.to_le_bytes().to_vec();
                value.resize(8 + fault.bytes.map_or(0, Span::value) as usize, 0x5a);
                let (key, value) = (&key, &value);
                self.world.input(node, Input::Publish { key, value }).ok();
            }
            FaultKind::Withdraw if runs => {
                let key = [b'k', fault.key.map_or(0, Span::value) as u8];
                self.world.input(node, Input::Withdraw { key: &key }).ok();
            }
            // The last rail is not lost here; fault `isolate` does that.
            FaultKind::Rail if self.drawn.zone.rails.value() > 1 => {
                let rail = fault.rail.map_or(0, Span::value) % self.drawn.zone.rails.value();
                self.world.lose_rail(node, rail as usize);
            }
            FaultKind::OneWay => {
                let to = fault.to.map_or(0, Span::value) as usize;
                if to != node {
                    self.world.cut_one_way(node, to);
                }
            }
            FaultKind::Isolate => self.world.isolate(node),
            FaultKind::Replay => {
                self.world
                    .play(node, fault.for_ms.map_or(0, Span::value) * MS);
            }
            _ => {}
        }
    }

    fn end(&mut self, fault: &Fault) {
        let targets = fault.targets(self.members);
        let all = 0..self.world.len();
        match fault.kind {
            FaultKind::Restart => {
                for node in targets {
                    if self.world.is_crashed(node) {
                        self.world.restart(node);
                    }
                }
            }
            FaultKind::Rail => {
                let rails = self.drawn.zone.rails.value();
                let rail = fault.rail.map_or(0, Span::value) % rails;
                for node in targets {
                    self.world.mend_rail(node, rail as usize);
                }
            }
            FaultKind::Slow => targets
                .into_iter()
                .for_each(|node| self.world.slow(node, 0)),
            FaultKind::OneWay => {
                let to = fault.to.map_or(0, Span::value) as usize;
                for node in targets {
                    self.world.network.mend(node, to);
                }
            }
            FaultKind::Isolate | FaultKind::Split => {
                for node in targets {
                    for other in all.clone() {
                        self.world.network.mend(node, other);
                        self.world.network.mend(other, node);
                    }
                }
            }
            FaultKind::Blackout => self.world.network.heal(),
            FaultKind::Storm => {
                let usual = self.drawn.network.loss_permille.value() as u32;
                self.world.end_storm(usual);
            }
            _ => {}
        }
    }
}
