//! The paper's attribute replication, transcribed literally and without optimisation, beside the engine.
//!
//! Both get the same writes, deletions, deaths and restarts. Each carries its own messages in its own way:
//! nothing is lost, and the order between links is random. When both have settled the replicas are the same,
//! and each observer was notified of the same changes in the same order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::common::{SECOND, booted};
use muster_protocol::{EventKind, Input, MemberId, Profile};
use muster_sim::World;
use proptest::prelude::*;

const MEMBERS: usize = 32;

/// For observer and writer: key and version, in the order of notification.
type Told = BTreeMap<(usize, usize), Vec<(u8, u64)>>;
/// For observer and writer: key, value, version.
type Maps = BTreeMap<(usize, usize), Vec<(u8, Vec<u8>, u64)>>;

#[derive(Clone, Debug, Default)]
struct Table {
    entries: BTreeMap<u8, (Option<Vec<u8>>, u64)>,
    version: u64,
    sent: u64,
    pending: u64,
    pending_target: Option<usize>,
    notified: u64,
    /// The keys that were present at the last notification, to notify only of visible changes.
    seen: BTreeSet<u8>,
}

type Digest = Vec<(usize, u64)>;

#[derive(Clone, Debug)]
enum Message {
    Update(Digest),
    Request(Digest, bool),
    /// Writer, and an entry or a statement that there is none.
    Reply(Vec<(usize, Option<Entry>)>),
}

/// Key, value, version.
type Entry = (u8, Option<Vec<u8>>, u64);

struct Oracle {
    /// The tables of each node, one for each writer; `None` while the node is dead.
    nodes: Vec<Option<Vec<Table>>>,
    links: BTreeMap<(usize, usize), VecDeque<Message>>,
    told: Told,
    chance: u64,
}

impl Oracle {
    fn new(chance: u64) -> Self {
        let mut oracle = Self {
            nodes: vec![Some(vec![Table::default(); MEMBERS]); MEMBERS],
            links: BTreeMap::new(),
            told: Told::new(),
            chance,
        };
        oracle.connect();
        oracle
    }

    fn table(&mut self, node: usize, writer: usize) -> &mut Table {
        &mut self.nodes[node].as_mut().expect("a running node")[writer]
    }

    /// Links every running node with the next two running ones.
    fn connect(&mut self) {
        let living: Vec<usize> = (0..MEMBERS).filter(|n| self.nodes[*n].is_some()).collect();
        let mut wanted = BTreeSet::new();
        for (at, from) in living.iter().enumerate() {
            for step in [1, 2] {
                let to = living[(at + step) % living.len()];
                if *from != to {
                    wanted.extend([(*from, to), (to, *from)]);
                }
            }
        }
        self.links.retain(|link, _| wanted.contains(link));
        let new: Vec<_> = wanted
            .into_iter()
            .filter(|l| !self.links.contains_key(l))
            .collect();
        for link in &new {
            self.links.insert(*link, VecDeque::new());
        }
        for (from, to) in new {
            let digest = (0..MEMBERS).map(|writer| (writer, self.table(from, writer).version));
            let digest = digest.collect();
            self.send(from, to, Message::Update(digest));
        }
        for node in living {
            let lost: Digest = (0..MEMBERS)
                .filter_map(|writer| {
                    let table = self.nodes[node].as_ref()?.get(writer)?;
                    let target = table.pending_target?;
                    (!self.links.contains_key(&(node, target))).then_some((writer, table.version))
                })
                .collect();
            if !lost.is_empty() {
                self.send_all(node, &Message::Request(lost, true));
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        if let Some(link) = self.links.get_mut(&(from, to)) {
            link.push_back(message);
        }
    }

    fn send_all(&mut self, from: usize, message: &Message) {
        for ((_, _), link) in self.links.iter_mut().filter(|((by, _), _)| *by == from) {
            link.push_back(message.clone());
        }
    }

    fn write(&mut self, node: usize, key: u8, value: Option<Vec<u8>>) {
        let table = self.table(node, node);
        table.version += 1;
        table.entries.insert(key, (value, table.version));
    }

    fn kill(&mut self, node: usize) {
        self.nodes[node] = None;
        for other in self.nodes.iter_mut().flatten() {
            other[node] = Table::default();
        }
        self.told
            .retain(|(observer, writer), _| *observer != node && *writer != node);
        self.connect();
    }

    fn start(&mut self, node: usize) {
        self.nodes[node] = Some(vec![Table::default(); MEMBERS]);
        self.connect();
    }

    /// A round of updates: sends the tables that changed since the previous one.
    fn update(&mut self, node: usize) {
        let mut digest = Digest::new();
        for writer in 0..MEMBERS {
            let table = self.table(node, writer);
            if table.version > table.sent {
                table.sent = table.version;
                digest.push((writer, table.version));
            }
        }
        if !digest.is_empty() {
            self.send_all(node, &Message::Update(digest));
        }
    }

    /// Delivers messages until no node has any to send.
    fn settle(&mut self) {
        loop {
            let busy: Vec<(usize, usize)> = self
                .links
                .iter()
                .filter(|(_, link)| !link.is_empty())
                .map(|(ends, _)| *ends)
                .collect();
            if let Some((from, to)) = self.pick(&busy) {
                let message = self
                    .links
                    .get_mut(&(from, to))
                    .and_then(VecDeque::pop_front);
                if let Some(message) = message {
                    self.deliver(from, to, message);
                }
                continue;
            }
            for node in 0..MEMBERS {
                if self.nodes[node].is_some() {
                    self.update(node);
                }
            }
            if self.links.values().all(VecDeque::is_empty) {
                return;
            }
        }
    }

    fn pick(&mut self, among: &[(usize, usize)]) -> Option<(usize, usize)> {
        self.chance = self
            .chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let at = (self.chance >> 33) as usize;
        among.get(at % among.len().max(1)).copied()
    }

    fn deliver(&mut self, from: usize, to: usize, message: Message) {
        match message {
            Message::Update(digest) => {
                let mut lacking = Digest::new();
                for (writer, version) in digest {
                    let table = self.table(to, writer);
                    if version > table.version && version > table.pending {
                        lacking.push((writer, table.version));
                        (table.pending, table.pending_target) = (version, Some(from));
                    }
                }
                if !lacking.is_empty() {
                    self.send(to, from, Message::Request(lacking, false));
                }
            }
            Message::Request(digest, push) => {
                let mut data = Vec::new();
                for (writer, version) in digest {
                    let table = self.table(to, writer);
                    if version < table.version {
                        let newer = table.entries.iter().filter(|(_, (_, v))| *v > version);
                        data.extend(
                            newer.map(|(k, (value, v))| (writer, Some((*k, value.clone(), *v)))),
                        );
                    } else if !push {
                        data.push((writer, None));
                    }
                }
                self.send(to, from, Message::Reply(data));
            }
            Message::Reply(data) => self.take_reply(to, data),
        }
    }

    fn take_reply(&mut self, to: usize, data: Vec<(usize, Option<Entry>)>) {
        let mut lacking = Digest::new();
        for (writer, entry) in data {
            let table = self.table(to, writer);
            match entry {
                None => {
                    lacking.push((writer, table.version));
                    (table.pending, table.pending_target) = (table.version, None);
                }
                Some((key, value, version)) => {
                    if table
                        .entries
                        .get(&key)
                        .is_none_or(|(_, held)| *held < version)
                    {
                        table.entries.insert(key, (value, version));
                        table.version = table.version.max(version);
                    }
                }
            }
        }
        if !lacking.is_empty() {
            self.send_all(to, &Message::Request(lacking, true));
        }
        for writer in (0..MEMBERS).filter(|writer| *writer != to) {
            self.notify(to, writer);
        }
    }

    fn notify(&mut self, observer: usize, writer: usize) {
        let table = self.table(observer, writer);
        let mut changed: Vec<(u64, u8, bool)> = table
            .entries
            .iter()
            .filter(|(_, (_, version))| *version > table.notified)
            .map(|(key, (value, version))| (*version, *key, value.is_some()))
            .collect();
        changed.sort_unstable();
        table.notified = table.version;
        let mut told = Vec::new();
        for (version, key, there) in changed {
            let was = if there {
                !table.seen.insert(key)
            } else {
                table.seen.remove(&key)
            };
            if there || was {
                told.push((key, version));
            }
        }
        self.told
            .entry((observer, writer))
            .or_default()
            .extend(told);
    }

    fn maps(&self) -> Maps {
        let mut maps = Maps::new();
        for (observer, tables) in self.nodes.iter().enumerate() {
            for (writer, table) in tables.iter().flatten().enumerate() {
                let held = table
                    .entries
                    .iter()
                    .filter_map(|(key, (value, version))| Some((*key, value.clone()?, *version)));
                maps.insert((observer, writer), held.collect());
            }
        }
        maps
    }
}

/// The first observer and writer for which an engine holds something else than expected, beginning with `first`.
fn first_difference(
    world: &World,
    expected: &Maps,
    first: (usize, usize),
) -> Option<(usize, usize)> {
    let is_same = |pair: &(usize, usize)| {
        let (observer, writer) = *pair;
        let held = world.engine(observer).attributes(world.id(writer));
        let held = held.map(|(key, value, version)| (key[0], value, version));
        let expected = expected.get(pair).map_or(&[][..], Vec::as_slice);
        let expected = expected.iter();
        held.eq(expected.map(|(key, value, version)| (*key, value.as_slice(), *version)))
    };
    let running = world.running();
    if running.contains(&first.0) && !is_same(&first) {
        return Some(first);
    }
    let running = running.into_iter();
    let mut pairs = running.flat_map(|observer| (0..MEMBERS).map(move |writer| (observer, writer)));
    pairs.find(|pair| !is_same(pair))
}

/// Appends what the engines reported about other nodes since `from`.
fn told_by(world: &World, from: usize, told: &mut Told) {
    let writers: BTreeMap<MemberId, usize> = (0..MEMBERS).map(|n| (world.id(n), n)).collect();
    for record in &world.records()[from..] {
        if let EventKind::AttributeChanged { key, version } = record.event.kind {
            let writer = writers[&record.event.member];
            let name = world
                .engine(record.observer)
                .changed_key(key)
                .expect("an attribute that was just reported");
            if writer != record.observer {
                let pair = told.entry((record.observer, writer)).or_default();
                pair.push((name[0], version));
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Writer, key, and the length of the value; `None` deletes.
    Writes(Vec<(usize, u8, Option<usize>)>),
    Kill(usize),
    Start,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = proptest::option::weighted(0.8, prop_oneof![0..50_usize, 2000..6000_usize]);
    let write = (0..MEMBERS, 0..4_u8, length);
    let step = prop_oneof![
        6 => proptest::collection::vec(write, 1..8).prop_map(Step::Writes),
        1 => (0..MEMBERS).prop_map(Step::Kill),
        1 => Just(Step::Start),
    ];
    proptest::collection::vec(step, 1..8)
}

fn compare(seed: u64, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut world = booted(seed, MEMBERS, Profile::Standard);
    let mut oracle = Oracle::new(seed);
    let mut told = Told::new();
    let mut dead = Vec::new();
    for (number, step) in steps.into_iter().enumerate() {
        let from = world.records().len();
        match step {
            Step::Writes(writes) => {
                for (at, (node, key, length)) in writes.into_iter().enumerate() {
                    let id = world.id(node);
                    if dead.contains(&node) {
                        continue;
                    }
                    let value = length.map(|length| vec![(number * 8 + at) as u8; length]);
                    let held = world.engine(node).attribute(id, &[key]);
                    if held == value.as_deref() {
                        continue;
                    }
                    let input = match &value {
                        Some(value) => Input::Publish { key: &[key], value },
                        None => Input::Withdraw { key: &[key] },
                    };
                    world.input(node, input).expect("within the limits");
                    oracle.write(node, key, value);
                }
            }
            Step::Kill(node) if !dead.contains(&node) && dead.len() < MEMBERS - 3 => {
                dead.push(node);
                world.crash(node);
                oracle.kill(node);
                told.retain(|(observer, writer), _| *observer != node && *writer != node);
            }
            Step::Start => {
                if let Some(node) = dead.pop() {
                    world.restart(node);
                    oracle.start(node);
                }
            }
            Step::Kill(_) => {}
        }
        oracle.settle();
        let expected = oracle.maps();
        // What was different last is looked at first: this is asked after every event of the world.
        let mut different = Some((0, 0));
        let is_same = world.run_until(10 * SECOND, |world| {
            if !world.agrees() {
                return false;
            }
            different = first_difference(world, &expected, different.unwrap_or((0, 0)));
            different.is_none() && world.converged()
        });
        prop_assert!(
            is_same,
            "observer, writer {different:?}, oracle {expected:?}"
        );
        told_by(&world, from, &mut told);
        told.retain(|_, changes| !changes.is_empty());
        oracle.told.retain(|_, changes| !changes.is_empty());
        prop_assert_eq!(&told, &oracle.told);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// ZM-11: Algorithm 2, as the paper states it, and the engine agree.
    #[test]
    fn engine_and_transcription_agree(seed in 0..1000_u64, steps in steps()) {
        compare(seed, steps)?;
    }
}
