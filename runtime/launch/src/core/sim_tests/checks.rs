//! The checkers: what must hold of a simulated job.
//!
//! - A request is answered once.
//! - All launchers that survive give the same answer to a fence: the contributions of the same nodes, each whole, the
//!   own one among them unless its ranks have ended; and the same number to a group, which no other group has. What the
//!   protocol does not promise: a launcher that is lost later may have given another answer.
//! - A fence ends within [`BOUND`] after all survivors have entered it and all are told of the losses.
//! - A name that was confirmed is found from then on; a launcher gives an entry for one reader once. What the protocol
//!   does not promise: two launchers may give the same entry at the same time.
//! - Requested data of a rank is what that rank has put. It is missing only if its node was lost, or has no room.
//! - A fence fails only if a node has no room, and then for all.
//! - A rank is told once of a death, and of no other rank's.
//! - After MPI_Init no loss ends the job, except that of a contribution that is awaited and cannot come: no survivor
//!   has it, or it is longer than half a kilobyte.
//! - All survivors end, with the status of the exit policy.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::job::{
    Contribution, DETECTION_MS, INLINE_MAX, Job, Op, Request, contribution, data_of, node_named,
};
use crate::core::messages::Answer;
use crate::core::node_status::Abort;
use crate::core::policy::ExitPolicy;

/// How long a fence may take.
const BOUND: Duration = Duration::from_secs(3);

/// The end of a rank.
#[derive(Debug, Clone, Copy)]
struct RankEnd {
    at: Duration,
    status: u8,
    is_killed: bool,
}

#[derive(Debug)]
struct Asked {
    request: Request,
    at: Duration,
    answer: Option<(Duration, Answer)>,
    /// A name that had been confirmed before it was looked up.
    is_confirmed: bool,
}

pub(super) struct Checks {
    asked: BTreeMap<u64, Asked>,
    started: BTreeMap<usize, Duration>,
    lost: BTreeMap<usize, Duration>,
    ends: BTreeMap<u32, RankEnd>,
    /// The first failure of each node, in ms after its start.
    failed: BTreeMap<usize, (u64, u8)>,
    aborts: BTreeSet<usize>,
    told: BTreeSet<(usize, u32)>,
    /// Names whose publishers have an answer, and those of them that stay.
    published: BTreeSet<String>,
    confirmed: BTreeSet<String>,
    given: BTreeSet<(usize, String)>,
    per_node: u32,
    failure: Option<String>,
}

impl Checks {
    pub(super) fn new(job: &Job) -> Self {
        Self {
            asked: BTreeMap::new(),
            started: BTreeMap::new(),
            lost: BTreeMap::new(),
            ends: BTreeMap::new(),
            failed: BTreeMap::new(),
            aborts: BTreeSet::new(),
            told: BTreeSet::new(),
            published: BTreeSet::new(),
            confirmed: BTreeSet::new(),
            given: BTreeSet::new(),
            per_node: job.per_node,
            failure: None,
        }
    }

    /// The first failure, if there is one.
    pub(super) fn first_failure(&mut self) -> Result<(), String> {
        self.failure.take().map_or(Ok(()), Err)
    }

    pub(super) fn check(&mut self, holds: bool, why: impl FnOnce() -> String) {
        if !holds && self.failure.is_none() {
            self.failure = Some(why());
        }
    }

    pub(super) fn start(&mut self, node: usize, now: Duration) {
        self.started.insert(node, now);
    }

    pub(super) fn lose(&mut self, node: usize, now: Duration) {
        self.lost.entry(node).or_insert(now);
    }

    pub(super) fn end_rank(&mut self, rank: u32, status: u8, is_killed: bool, now: Duration) {
        let end = RankEnd {
            at: now,
            status,
            is_killed,
        };
        self.ends.insert(rank, end);
        let node = (rank / self.per_node) as usize;
        let since = now - self.started.get(&node).copied().unwrap_or_default();
        if status != 0 {
            let failed = (since.as_millis() as u64, status);
            self.failed.entry(node).or_insert(failed);
        }
    }

    pub(super) fn open(&mut self, id: u64, request: Request, now: Duration) {
        let asked = Asked {
            request,
            at: now,
            answer: None,
            is_confirmed: false,
        };
        self.asked.insert(id, asked);
    }

    /// Whether the publisher of a name has its answer.
    pub(super) fn is_published(&self, key: &str) -> bool {
        self.published.contains(key)
    }

    /// A name is looked up.
    pub(super) fn look_up(&mut self, id: u64, key: &str) {
        if let Some(asked) = self.asked.get_mut(&id) {
            asked.is_confirmed = self.confirmed.contains(key);
        }
    }

    pub(super) fn answer(
        &mut self,
        id: u64,
        node: usize,
        answer: &Answer,
        job: &Job,
        now: Duration,
    ) {
        let Some(asked) = self.asked.get_mut(&id) else {
            return self.check(false, || format!("request {id} does not exist"));
        };
        let request = asked.request;
        let is_new = asked.answer.is_none();
        let is_confirmed = asked.is_confirmed;
        asked.answer.get_or_insert((now, answer.clone()));
        self.check(is_new && request.node == node, || {
            format!("{request:?} has two answers: {answer:?}")
        });
        match &job.ops[request.op] {
            Op::Collective { .. } => {}
            Op::Publish { key, once, .. } => {
                self.check(*answer == Answer::Done, || {
                    format!("{request:?}: {answer:?}")
                });
                self.published.insert(key.clone());
                if !once {
                    self.confirmed.insert(key.clone());
                }
            }
            Op::LookUp { key, .. } => self.check_lookup(request, key, is_confirmed, answer, job),
            Op::Want { of, .. } => match answer {
                Answer::Data(data) => {
                    self.check(*data == data_of(*of), || {
                        format!("{request:?}: wrong data of rank {of}")
                    });
                }
                _ => {
                    let is_lost = self.lost.contains_key(&job.node_of(*of));
                    self.check(is_lost || job.is_short_of_room(), || {
                        format!("{request:?}: {answer:?}")
                    });
                }
            },
        }
    }

    fn check_lookup(
        &mut self,
        request: Request,
        key: &str,
        is_confirmed: bool,
        answer: &Answer,
        job: &Job,
    ) {
        let is_key = |op: &Op| matches!(op, Op::Publish { key: one, .. } if one == key);
        let Some(Op::Publish { rank, once, .. }) = job.ops.iter().find(|op| is_key(op)) else {
            return;
        };
        let found = match answer {
            Answer::Values { found, is_all } if *is_all => found.as_slice(),
            _ => &[],
        };
        // The publisher does not wait for a node that is lost.
        let must_be_found = is_confirmed && !self.lost.contains_key(&request.node);
        self.check(!must_be_found || found.len() == 1, || {
            format!("{request:?}: {key} was confirmed, and is not found: {answer:?}")
        });
        for value in found {
            let is_right = value.key == key && value.rank == *rank && value.bytes == data_of(*rank);
            self.check(is_right, || format!("{request:?}: {value:?}"));
            let is_first = !once || self.given.insert((request.node, key.to_owned()));
            self.check(is_first, || {
                format!("{request:?}: {key} is given to a second reader")
            });
        }
    }

    /// A launcher forgets a request.
    pub(super) fn forget(&mut self, id: u64) {
        let request = self.asked.get(&id).map(|asked| asked.request);
        let has_ended = request.is_some_and(|request| {
            let rank = request.rank;
            rank.is_some_and(|rank| self.ends.contains_key(&rank))
        });
        self.check(has_ended, || {
            format!("{request:?} is forgotten, and its rank waits")
        });
    }

    pub(super) fn tell_death(&mut self, node: usize, rank: u32, job: &Job) {
        let is_first = self.told.insert((node, rank));
        self.check(is_first, || {
            format!("node {node} is told twice that rank {rank} is dead")
        });
        let is_killed = self.ends.get(&rank).is_some_and(|end| end.is_killed);
        let is_dead = is_killed || self.lost.contains_key(&job.node_of(rank));
        self.check(is_dead, || {
            format!("node {node} is told that rank {rank} is dead, which is not")
        });
    }

    /// A launcher states that the job is to end early; `kept`: the contributions of lost nodes that survivors have.
    pub(super) fn abort(
        &mut self,
        node: usize,
        abort: &Abort,
        kept: &BTreeSet<Contribution>,
        job: &Job,
    ) {
        // The others repeat it.
        if !self.aborts.insert(node) || abort.by != node {
            return;
        }
        let why = &abort.why;
        let lost = why.split_once(" was lost while ranks exchanged");
        let lost = lost.and_then(|(name, _)| node_named(name));
        let is_lost_data = lost.is_some_and(|lost| self.awaits_lost_data(node, lost, kept, job));
        let may_be = is_lost_data || !job.survives_losses() && !job.losses.is_empty();
        self.check(may_be, || format!("node {node} ends the job: {why}"));
    }

    /// Whether a node waits for a contribution of a lost node that cannot come.
    fn awaits_lost_data(
        &self,
        node: usize,
        lost: usize,
        kept: &BTreeSet<Contribution>,
        job: &Job,
    ) -> bool {
        let has_entered = |op: usize| {
            let mut asked = self.asked.values();
            asked.any(|one| one.request.node == lost && one.request.op == op)
        };
        let cannot_come = |op: usize| match job.ops[op] {
            Op::Collective { size, .. } => {
                size > INLINE_MAX || !kept.contains(&Contribution { node: lost, op })
            }
            _ => false,
        };
        let mut open = self.asked.values().filter(|one| one.answer.is_none());
        self.lost.contains_key(&lost)
            && open.any(|one| {
                let Request { node: at, op, .. } = one.request;
                at == node && has_entered(op) && cannot_come(op)
            })
    }

    /// Checks the whole job; `ends`: how each launcher has ended.
    pub(super) fn finish(mut self, job: &Job, ends: &[Option<Option<u8>>]) -> Result<(), String> {
        let survivors: Vec<usize> = (0..job.nodes)
            .filter(|node| !self.lost.contains_key(node))
            .collect();
        let mut numbers = BTreeMap::new();
        for op in 0..job.ops.len() {
            self.check_fence(op, job, &survivors, &mut numbers);
        }
        for node in survivors {
            match ends[node] {
                Some(Some(status)) if self.aborts.is_empty() => {
                    let allowed = self.allowed_statuses(node, job);
                    self.check(allowed.contains(&status), || {
                        format!("node {node} ends with {status}, not one of {allowed:?}")
                    });
                }
                Some(None) => self.check(false, || format!("node {node} takes itself for lost")),
                _ => {}
            }
        }
        self.first_failure()
    }

    fn check_fence(
        &mut self,
        op: usize,
        job: &Job,
        survivors: &[usize],
        numbers: &mut BTreeMap<u64, usize>,
    ) {
        let Op::Collective { group, size, .. } = &job.ops[op] else {
            return;
        };
        let asked: Vec<&Asked> = self
            .asked
            .values()
            .filter(|one| one.request.op == op && survivors.contains(&one.request.node))
            .collect();
        let mut failure = None;
        let mut fail = |text: String| _ = failure.get_or_insert(format!("operation {op}: {text}"));
        let entered = asked.iter().map(|one| one.at);
        let losses = self.lost.values().copied();
        let killed = self.ends.values().filter(|end| end.is_killed);
        let told = losses.chain(killed.map(|end| end.at));
        let told = told.map(|at| at + Duration::from_millis(DETECTION_MS as u64));
        let ready = entered.max().max(told.max());
        // Ranks that have ended right after they have entered are not waited for.
        let nobody_reads = |node: usize, at: Duration| {
            let has_ended = |rank: u32| self.ends.get(&rank).is_some_and(|end| end.at <= at);
            let mut ranks = job.ranks_of(node);
            ranks.all(|rank| !job.ops[op].involves(rank) || has_ended(rank))
        };
        let mut first: Option<&Answer> = None;
        for one in &asked {
            let node = one.request.node;
            let Some((at, answer)) = &one.answer else {
                continue;
            };
            if self.aborts.is_empty() && ready.is_some_and(|ready| *at > ready + BOUND) {
                fail(format!(
                    "node {node} has waited until {at:?}, ready at {ready:?}"
                ));
            }
            if *first.get_or_insert(answer) != answer {
                fail(format!("node {node} has another answer than the first"));
            }
            if *answer == Answer::Refused && *size > INLINE_MAX && job.is_short_of_room() {
                continue;
            }
            let Answer::Collected { data, number } = answer else {
                fail(format!("{answer:?}"));
                continue;
            };
            match nodes_in(data, op, *size) {
                Some(nodes) if nodes.contains(&node) || nobody_reads(node, *at) => {}
                nodes => fail(format!("node {node} has the data of {nodes:?}")),
            }
            let owner = *numbers.entry(*number).or_insert(op);
            if group.is_some() && owner != op {
                fail(format!("operation {owner} has the number {number}, too"));
            }
        }
        if let Some(text) = failure {
            self.check(false, || text);
        }
    }

    /// The exit statuses that the policy allows for a node of a job that was not ended early. There are several if
    /// a node was lost, which others may have seen end before.
    fn allowed_statuses(&self, node: usize, job: &Job) -> BTreeSet<u8> {
        let own: Vec<RankEnd> = job
            .ranks_of(node)
            .filter_map(|rank| self.ends.get(&rank).copied())
            .collect();
        let worst = own.iter().map(|end| end.status).max().unwrap_or(0);
        match job.policy {
            ExitPolicy::Worst => [worst].into(),
            ExitPolicy::First => {
                let of = |is_lost: bool| {
                    let failed = self.failed.iter();
                    failed.filter(move |(node, _)| self.lost.contains_key(*node) == is_lost)
                };
                let known = of(false).map(|(_, failed)| *failed).min();
                let earlier = of(true).map(|(_, failed)| *failed);
                let earlier = earlier.filter(|one| known.is_none_or(|known| *one < known));
                let earlier: BTreeSet<u8> = earlier.map(|(_, status)| status).collect();
                let known = known.map_or(0, |(_, status)| status);
                earlier.into_iter().chain([known]).collect()
            }
            ExitPolicy::Survivors => {
                let survived = own.iter().filter(|end| !end.is_killed || end.status == 0);
                if let Some(most) = survived.map(|end| end.status).max() {
                    return [most].into();
                }
                let is_other = |rank: &u32| job.node_of(*rank) != node;
                let mut others = (0..job.statuses.len() as u32).filter(is_other);
                let survives = others.any(|rank| {
                    !self.lost.contains_key(&job.node_of(rank))
                        && self.ends.get(&rank).is_some_and(|end| !end.is_killed)
                });
                match survives {
                    true => [0].into(),
                    false if self.lost.is_empty() => [worst].into(),
                    false => [0, worst].into(),
                }
            }
        }
    }
}

/// The nodes whose contributions are in the data of a fence; `None` if it consists of anything else.
fn nodes_in(mut data: &[u8], op: usize, size: usize) -> Option<BTreeSet<usize>> {
    let mut nodes = BTreeSet::new();
    while !data.is_empty() {
        let node = *data.get(4)? as usize;
        data = data.strip_prefix(contribution(node, op, size).as_slice())?;
        if !nodes.insert(node) {
            return None;
        }
    }
    Some(nodes)
}
