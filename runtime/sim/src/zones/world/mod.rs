//! The world of a job with zones: its nodes, the network between them, and virtual time. `checks` has what must hold,
//! `missed` which losses must be known.

mod checks;
mod missed;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use muster_protocol::{Config, EventKind, Input, Instant, MemberId, Phase, Policy};
use muster_zones::{NodeIndex, Tree, TreeConfig, TreeEvent, ZoneId, ZoneMap};

use super::fault::ZonedFault;
use super::setting::ZonedSetting;
use crate::chance::Chance;
use crate::network::Network;
use crate::study::Timing;
use checks::{Excuse, Verdict};

/// Start of virtual time.
const START: Instant = Instant(10_000_000);
/// Interval of the question whether a phase has ended.
const ASK_US: u64 = 20_000;
/// Nodes of each zone that all its nodes know.
const SEEDS: usize = 4;
/// The key of every simulated job.
const KEY: [u8; 32] = [42; 32];
/// Datagrams that a stopped node's socket holds; later ones are lost.
const INBOX_MAX: usize = 256;

/// A node.
#[derive(Debug, Default)]
pub(super) struct ZonedNode {
    /// `None` while it is dead.
    pub(super) tree: Option<Tree>,
    pub(super) has_left: bool,
    pub(super) started_at: Instant,
    /// When it was last told that it, or a zone of it, is outcast.
    pub(super) outcast_at: Option<Instant>,
    /// When it was last told that one of its zones is.
    pub(super) zone_outcast_at: Option<Instant>,
    /// The nodes that it was told have failed, and when last.
    pub(super) told_failed: BTreeMap<usize, Instant>,
    /// When it last died or left.
    pub(super) ended_at: Option<Instant>,
    paused_until: Option<Instant>,
    inbox: Vec<Vec<u8>>,
    alarm: Option<Instant>,
    /// One bit for each present cut whose inner side it is on.
    sides: u32,
    /// When that, or whether the node is stopped, has changed last.
    moved_at: Instant,
}

impl ZonedNode {
    pub(super) fn has_started(&self) -> bool {
        self.tree.is_some() || self.ended_at.is_some()
    }

    /// Takes the sides of the present cuts that it is on.
    fn move_to(&mut self, now: Instant, sides: u32) {
        if core::mem::replace(&mut self.sides, sides) != sides {
            self.moved_at = now;
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Alarm(usize),
    Arrival(usize, Vec<u8>),
    Continue(usize),
    /// A node starts for the first time.
    Start(usize),
    /// The fault with this number.
    Fault(usize),
    /// The cut with this number ends.
    Mend(u32),
}

/// A simulated job with zones.
#[derive(Debug)]
pub(super) struct ZonedWorld {
    map: Arc<ZoneMap>,
    contacts: Arc<Vec<Vec<u8>>>,
    timing: Timing,
    policy: Policy,
    network: Network,
    chance: Chance,
    now: Instant,
    nodes: Vec<ZonedNode>,
    queue: BinaryHeap<Reverse<(Instant, u64, Happening)>>,
    order: u64,
    faults: Vec<ZonedFault>,
    cuts: u32,
    buffer: Vec<u8>,
    excuses: Vec<Excuse>,
    /// Zones that nodes have reported failed while nodes of them ran.
    verdicts: Vec<Verdict>,
    pub(super) violations: Vec<String>,
    pub(super) story: Vec<String>,
    pub(super) frames: u64,
    pub(super) bytes: u64,
}

impl ZonedWorld {
    /// A job whose nodes have just started.
    pub(super) fn new(setting: ZonedSetting, seed: u64) -> Self {
        let map = Arc::new(setting.map().expect("zones of the setting"));
        let address = |node| format!("{node}").into_bytes();
        let contacts = (0..setting.nodes).map(address).collect();
        let network = Network {
            loss_permille: setting.loss_permille,
            duplicate_permille: setting.loss_permille / 2,
            reorder_permille: setting.loss_permille,
            reorder_us: 5_000,
            ..Network::default()
        };
        let mut world = Self {
            map,
            contacts: Arc::new(contacts),
            timing: setting.timing,
            policy: match setting.stops_outcasts {
                true => Policy::Stop,
                false => Policy::Rejoin,
            },
            network,
            chance: Chance::new(seed),
            now: START,
            nodes: (0..setting.nodes).map(|_| ZonedNode::default()).collect(),
            queue: BinaryHeap::new(),
            order: 0,
            faults: Vec::new(),
            cuts: 0,
            buffer: vec![0; 65_536],
            excuses: Vec::new(),
            verdicts: Vec::new(),
            violations: Vec::new(),
            story: Vec::new(),
            frames: 0,
            bytes: 0,
        };
        for node in 0..setting.nodes {
            match setting.start_us {
                0 => world.start(node),
                most => {
                    let after_us = world.chance.between(0, most);
                    world.push(START.after(after_us), Happening::Start(node));
                }
            }
        }
        world
    }

    /// Starts a node, or starts it again.
    fn start(&mut self, node: usize) {
        let index = NodeIndex(node as u32);
        let name = self.map.directory().name(index).unwrap_or_default();
        let mut config = Config::new(&name, &self.contacts[node], self.timing.profile);
        self.timing.configure(&mut config);
        config.key = Some(KEY);
        config.policy = self.policy;
        config.incarnation = self.now.0 * 1000;
        config.first_sequence = self.now.0;
        config.random_seed = self.chance.between(0, u64::MAX - 1);
        let zone = self.map.base_zone(index);
        let members = zone.map_or(&[][..], |zone| self.map.nodes(zone));
        let seeds = members.iter().take(SEEDS).filter(|seed| **seed != index);
        config.seeds = seeds
            .map(|seed| self.contacts[seed.0 as usize].clone())
            .collect();
        let tree = Tree::new(TreeConfig {
            map: Arc::clone(&self.map),
            engine: config,
            contacts: Arc::clone(&self.contacts),
            degraded_attribute: None,
        });
        let entry = &mut self.nodes[node];
        entry.tree = Some(tree.expect("the configuration of a simulated node"));
        entry.has_left = false;
        entry.started_at = self.now;
        entry.outcast_at = None;
        entry.zone_outcast_at = None;
        entry.told_failed.clear();
        entry.paused_until = None;
        entry.inbox.clear();
        self.touch(node, Input::Wake);
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn map(&self) -> &ZoneMap {
        &self.map
    }

    pub(super) fn node(&self, node: usize) -> &ZonedNode {
        &self.nodes[node]
    }

    fn node_mut(&mut self, node: usize) -> &mut ZonedNode {
        &mut self.nodes[node]
    }

    pub(super) fn tree(&self, node: usize) -> Option<&Tree> {
        self.nodes[node].tree.as_ref()
    }

    pub(super) fn chance(&mut self) -> &mut Chance {
        &mut self.chance
    }

    /// The present time in milliseconds, for the story.
    pub(super) fn at(&self) -> String {
        let us = self.now.since(START);
        format!("{}.{:03} ms:", us / 1000, us % 1000)
    }

    fn tell(&mut self, text: &str) {
        let at = self.at();
        self.story.push(format!("{at} {text}"));
    }

    fn push(&mut self, at: Instant, happening: Happening) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order, happening)));
    }

    /// Lets a fault happen after `after_us`.
    pub(super) fn schedule(&mut self, after_us: u64, fault: ZonedFault) {
        self.faults.push(fault);
        let number = self.faults.len() - 1;
        self.push(self.now.after(after_us), Happening::Fault(number));
    }

    /// Lets this much time pass.
    pub(super) fn run(&mut self, duration_us: u64) {
        self.run_until(duration_us, |_| false);
    }

    /// Runs until `done` returns true, which is asked every 20 milliseconds. Returns false if that took longer than the
    /// limit.
    pub(super) fn run_until(&mut self, limit_us: u64, done: impl Fn(&Self) -> bool) -> bool {
        self.run_until_asking(limit_us, ASK_US, done)
    }

    /// The same, with the interval of the question.
    pub(super) fn run_until_asking(
        &mut self,
        limit_us: u64,
        ask_us: u64,
        done: impl Fn(&Self) -> bool,
    ) -> bool {
        let end = self.now.after(limit_us);
        let mut ask_at = self.now.after(ask_us);
        while let Some(Reverse((at, _, _))) = self.queue.peek()
            && *at <= end
        {
            if *at >= ask_at {
                if done(self) {
                    return true;
                }
                ask_at = at.after(ask_us);
            }
            self.step();
        }
        self.now = end;
        done(self)
    }

    fn step(&mut self) {
        let Some(Reverse((at, _, happening))) = self.queue.pop() else {
            return;
        };
        self.now = at;
        match happening {
            Happening::Alarm(node) => {
                if self.nodes[node].alarm == Some(at) {
                    self.nodes[node].alarm = None;
                    if self.nodes[node].paused_until.is_none() {
                        self.touch(node, Input::Wake);
                    }
                }
            }
            Happening::Arrival(node, bytes) => {
                let entry = &mut self.nodes[node];
                if entry.paused_until.is_some() {
                    if entry.inbox.len() < INBOX_MAX {
                        entry.inbox.push(bytes);
                    }
                } else {
                    self.touch(node, Input::Datagram { bytes: &bytes });
                }
            }
            Happening::Continue(node) => {
                if self.nodes[node].paused_until == Some(at) {
                    self.nodes[node].paused_until = None;
                    self.nodes[node].moved_at = at;
                    for bytes in core::mem::take(&mut self.nodes[node].inbox) {
                        self.touch(node, Input::Datagram { bytes: &bytes });
                    }
                    self.touch(node, Input::Wake);
                }
            }
            Happening::Start(node) => self.start(node),
            Happening::Fault(number) => {
                let fault = self.faults[number].clone();
                self.tell(&format!("{fault:?}"));
                self.apply(&fault);
            }
            Happening::Mend(cut) => {
                self.tell("the cut ends");
                for node in &mut self.nodes {
                    node.move_to(at, node.sides & !(1 << cut));
                }
            }
        }
    }

    /// Handles one input and everything that follows from it.
    fn touch(&mut self, node: usize, input: Input<'_>) {
        let now = self.now;
        let Some(mut tree) = self.nodes[node].tree.take() else {
            return;
        };
        // A rejected frame changes nothing.
        let _ = tree.handle(now, input);
        let mut buffer = core::mem::take(&mut self.buffer);
        while let Some((level, transmit)) = tree.poll_transmit(now, &mut buffer) {
            let address = tree.address_of(level, transmit.target);
            let address = address.and_then(|address| std::str::from_utf8(address).ok());
            if let Some(to) = address.and_then(|address| address.parse().ok()) {
                self.send(node, to, &buffer[..transmit.size]);
            }
        }
        self.buffer = buffer;
        if tree.phase() == Phase::Stopped
            && self.nodes[node].ended_at < Some(self.nodes[node].started_at)
        {
            self.nodes[node].ended_at = Some(now);
        }
        let events: Vec<TreeEvent> = core::iter::from_fn(|| tree.poll_event()).collect();
        let timeout = tree.poll_timeout().max(now.after(1));
        self.nodes[node].tree = Some(tree);
        for event in events {
            match event {
                TreeEvent::Zone { .. }
                | TreeEvent::Outcast { .. }
                | TreeEvent::Promoted { .. }
                | TreeEvent::Demoted { .. } => self.tell(&format!("node {node}: {event:?}")),
                _ => {}
            }
            self.check(node, event);
            let is_outcast = match event {
                TreeEvent::Outcast { .. } => true,
                TreeEvent::Base(event) => event.kind == EventKind::Outcast,
                _ => false,
            };
            if is_outcast {
                self.nodes[node].outcast_at = Some(self.now);
            }
        }
        if self.nodes[node].alarm.is_none_or(|alarm| alarm > timeout) && timeout != Instant::NEVER {
            self.nodes[node].alarm = Some(timeout);
            self.push(timeout, Happening::Alarm(node));
        }
    }

    fn send(&mut self, from: usize, to: usize, bytes: &[u8]) {
        self.frames += 1;
        self.bytes += bytes.len() as u64;
        if to >= self.nodes.len() || self.nodes[from].sides != self.nodes[to].sides {
            return;
        }
        for (delay_us, bytes) in self.network.carry(&mut self.chance, from, to, bytes) {
            self.push(self.now.after(delay_us), Happening::Arrival(to, bytes));
        }
    }

    fn apply(&mut self, fault: &ZonedFault) {
        match fault {
            ZonedFault::Kill(node) => self.kill(&[*node]),
            ZonedFault::KillSupervisor(zone) => {
                let nodes = self.supervisors(*zone);
                self.kill(&nodes[..nodes.len().min(1)]);
            }
            ZonedFault::KillSupervisors(zone) => self.kill(&self.supervisors(*zone)),
            ZonedFault::KillZone(zone) => self.kill(&self.nodes_of(*zone)),
            ZonedFault::KillZoneAndSupervisors(zone, other) => {
                let mut nodes = self.nodes_of(*zone);
                nodes.extend(self.supervisors(*other));
                self.kill(&nodes);
            }
            ZonedFault::KillRack(zone, count) => {
                let nodes = self.nodes_of(*zone);
                self.kill(&nodes[..(*count).min(nodes.len())]);
            }
            ZonedFault::Restart => {
                let dead =
                    |node: &usize| self.nodes[*node].tree.is_none() && !self.nodes[*node].has_left;
                let dead: Vec<usize> = (0..self.nodes.len()).filter(dead).collect();
                dead.into_iter().for_each(|node| self.start(node));
            }
            ZonedFault::Leave(node) => {
                if self.may_end(1) && self.runs(*node) {
                    self.nodes[*node].has_left = true;
                    self.nodes[*node].ended_at = Some(self.now);
                    self.touch(*node, Input::Leave { exit_code: 0 });
                }
            }
            ZonedFault::Pause(node, duration_us) => self.pause(*node, *duration_us),
            ZonedFault::Cut(zones, duration_us) => self.cut(zones, *duration_us),
        }
    }

    /// Whether so many nodes may die: not all do.
    fn may_end(&self, count: usize) -> bool {
        self.running() > count + self.nodes.len() / 4
    }

    fn kill(&mut self, nodes: &[usize]) {
        if !self.may_end(nodes.len()) {
            return;
        }
        let running: Vec<usize> = nodes
            .iter()
            .copied()
            .filter(|node| self.nodes[*node].tree.is_some())
            .collect();
        for node in running {
            let runs = self.runs(node);
            let entry = &mut self.nodes[node];
            // A node that was leaving has left, if its zone has heard of it.
            entry.tree = None;
            entry.alarm = None;
            if runs || entry.ended_at.is_none() {
                entry.ended_at = Some(self.now);
            }
        }
    }

    fn pause(&mut self, node: usize, duration_us: u64) {
        let until = self.now.after(duration_us);
        if self.runs(node) {
            self.nodes[node].paused_until = Some(until);
            self.nodes[node].moved_at = self.now;
            self.push(until, Happening::Continue(node));
            let inside = (0..self.nodes.len()).map(|other| other == node).collect();
            self.excuse(inside, false, until);
        }
    }

    fn cut(&mut self, zones: &[ZoneId], duration_us: u64) {
        let (cut, until) = (self.cuts % 32, self.now.after(duration_us));
        self.cuts += 1;
        let inside: Vec<bool> = (0..self.nodes.len())
            .map(|node| {
                let zone = self.map.base_zone(NodeIndex(node as u32));
                zone.is_some_and(|zone| zones.contains(&zone))
            })
            .collect();
        for (node, is_inside) in self.nodes.iter_mut().zip(&inside) {
            node.move_to(self.now, node.sides | u32::from(*is_inside) << cut);
        }
        self.push(until, Happening::Mend(cut));
        self.excuse(inside, true, until);
    }

    fn excuse(&mut self, inside: Vec<bool>, is_cut: bool, until: Instant) {
        let since = self.now;
        self.excuses.push(Excuse {
            inside,
            is_cut,
            since,
            until,
        });
    }

    /// Ends all cuts and pauses.
    pub(super) fn heal(&mut self) {
        let now = self.now;
        for node in 0..self.nodes.len() {
            self.nodes[node].sides = 0;
            if self.nodes[node].paused_until.is_some() {
                self.nodes[node].paused_until = Some(now);
                self.push(now, Happening::Continue(node));
            }
        }
        for excuse in &mut self.excuses {
            excuse.until = excuse.until.min(now);
        }
    }

    /// How many nodes run.
    pub(super) fn running(&self) -> usize {
        (0..self.nodes.len())
            .filter(|node| self.runs(*node))
            .count()
    }

    fn runs(&self, node: usize) -> bool {
        let tree = self.tree(node);
        tree.is_some_and(|tree| tree.phase() == Phase::Running)
    }

    fn nodes_of(&self, zone: ZoneId) -> Vec<usize> {
        let nodes = self.map.nodes(zone).iter();
        nodes.map(|node| node.0 as usize).collect()
    }

    /// The nodes of a base zone that are members of a zone above.
    fn supervisors(&self, zone: ZoneId) -> Vec<usize> {
        let is_above = |node: &usize| {
            let tree = self.tree(*node);
            tree.is_some_and(|tree| tree.memberships().count() > 1)
        };
        self.nodes_of(zone).into_iter().filter(is_above).collect()
    }

    /// Whether each zone has formed and the zones above are complete.
    pub(super) fn has_formed(&self) -> bool {
        self.why_not_formed().is_empty()
    }

    /// The first zone that has not formed; empty if all have.
    pub(super) fn why_not_formed(&self) -> String {
        for node in 0..self.nodes.len() {
            let Some(tree) = self.tree(node) else {
                if !self.node(node).has_started() {
                    return format!("node {node} has not started");
                }
                continue;
            };
            for (zone, engine) in tree.memberships() {
                let (live, members) = (engine.live(), self.map.members(zone));
                if live != members {
                    let path = self.map.path(zone);
                    return format!("node {node} knows {live} of {members} members of {path}");
                }
            }
        }
        let count = |level| {
            let above = |node: &usize| {
                let tree = self.tree(*node);
                tree.is_some_and(|tree| tree.memberships().count() > level)
            };
            (0..self.nodes.len()).filter(above).count()
        };
        for level in 1..self.map.levels() {
            let members: usize = self
                .map
                .zones_at(level)
                .map(|zone| self.map.members(zone))
                .sum();
            if count(level) != members {
                return format!("{} of {members} supervisors at level {level}", count(level));
            }
        }
        let wrong = (0..self.nodes.len()).find(|node| !self.knows_its_monitors(*node));
        wrong.map_or_else(
            || self.differences(1).pop().unwrap_or_default(),
            |node| format!("node {node} reports to others than the supervisors of its zone"),
        )
    }

    /// Whether a node, if it runs, has the supervisors of its base zone as monitors.
    fn knows_its_monitors(&self, node: usize) -> bool {
        let engine = self.tree(node).and_then(|tree| tree.base().overlay());
        let zone = self.map.base_zone(NodeIndex(node as u32));
        let (Some(engine), Some(zone)) = (engine, zone) else {
            return true;
        };
        let names = self.map.directory();
        let name = |node: usize| names.name(NodeIndex(node as u32));
        let supervisors = self.supervisors(zone).into_iter().filter_map(name);
        let supervisors: BTreeSet<MemberId> = supervisors.map(|name| MemberId::of(&name)).collect();
        engine.monitors().collect::<BTreeSet<_>>() == supervisors
    }
}
