//! The fences as the launcher's loop sees them: who waits, what has come, what is over or late.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Error;
use super::bell::{FenceId, Put};
use super::fence::{Outcome, Standing};
use super::node::{Launcher, say};
use crate::pmix::server::Contribution;

/// When a fence that is still waited for is remarked on.
const REMARK: Duration = Duration::from_secs(60);

/// A fence of the own ranks that is not over.
pub(super) struct Waiting {
    contribution: Contribution,
    since: Instant,
    remarked: bool,
}

impl Launcher {
    /// The own ranks have come to a fence.
    pub(super) fn enter(&mut self, mut contribution: Contribution) -> Result<(), Error> {
        let data = std::mem::take(&mut contribution.data);
        let id = self.fences.contribute(&contribution.ranks, data.clone());
        if let Put::Beside(size) = Put::new(&data) {
            self.peers.put(id, &data)?;
            self.beside.insert(id, size);
        }
        let since = Instant::now();
        self.last_fence = since;
        let waiting = Waiting {
            contribution,
            since,
            remarked: false,
        };
        self.waiting.insert(id, waiting);
        Ok(())
    }

    /// What the other launchers say of fences; data that lies beside is fetched.
    pub(super) fn hear_bells(&mut self) -> Result<(), Error> {
        for (node, bell) in self.peers.bells() {
            if node != self.own && !self.peers.gone().contains(&node) {
                self.fences.hear(node, &bell.fences);
            }
        }
        for (id, node, size) in self.fences.awaited() {
            if let Some(data) = self.peers.fetch(id, node, size)? {
                self.fences.fetched(id, node, data);
            }
        }
        Ok(())
    }

    pub(super) fn advance_fences(&mut self) -> Result<(), Error> {
        let gone_for: Vec<BTreeSet<usize>> = (0..self.plan.layout.nodes().len())
            .map(|node| match self.peers.bell(node) {
                Some(bell) => bell.gone.iter().copied().collect(),
                None => BTreeSet::new(),
            })
            .collect();
        let mut ended: BTreeSet<u32> = self.ended().map(|ended| ended.rank).collect();
        ended.extend(self.peers.failed());
        let standing = Standing {
            gone: self.peers.gone(),
            ended: &ended,
            gone_for: &gone_for,
        };
        for outcome in self.fences.advance(&standing) {
            match outcome {
                Outcome::Complete(id, data) => {
                    self.last_fence = Instant::now();
                    if let Some(waiting) = self.waiting.remove(&id) {
                        if self.plan.verbose {
                            let (ms, size) =
                                (waiting.since.elapsed().as_secs_f64() * 1e3, data.len());
                            let line = format!("fence {} of {size} bytes: {ms:.2} ms", id.turn);
                            say(self.plan.layout.name(self.own), &line);
                        }
                        waiting.contribution.complete(&data);
                    }
                }
                Outcome::Lost(_, node) => {
                    let node = self.plan.layout.name(node).to_owned();
                    self.abort(
                        1,
                        &format!("{node} was lost while ranks exchanged their addresses"),
                    );
                    return Ok(());
                }
            }
        }
        let late: Vec<FenceId> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.since.elapsed() > waiting.limit(self.plan.patience))
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.be_late(id, &gone_for, &ended);
        }
        self.forget_old_data()
    }

    /// A fence has taken long: in the start that is the end, later a remark; or what the ranks have asked for.
    pub(super) fn be_late(
        &mut self,
        id: FenceId,
        gone_for: &[BTreeSet<usize>],
        ended: &BTreeSet<u32>,
    ) {
        let standing = Standing {
            gone: self.peers.gone(),
            ended,
            gone_for,
        };
        let missing = self.names(&self.fences.missing(id, &standing));
        let starting = !self.has_started();
        let Some(waiting) = self.waiting.get_mut(&id) else {
            return;
        };
        let waited_s = waiting.since.elapsed().as_secs();
        if waiting.contribution.timeout_s.is_some() {
            if let Some(waiting) = self.waiting.remove(&id) {
                waiting.contribution.time_out();
            }
        } else if starting && waited_s > self.plan.patience.as_secs() {
            self.abort(
                1,
                &format!("the ranks of {missing} have not come to MPI_Init within {waited_s} s"),
            );
        } else if !std::mem::replace(&mut waiting.remarked, true) {
            self.say(&format!(
                "ranks have been waiting for {waited_s} s for those of {missing}"
            ));
        }
    }

    pub(super) fn forget_old_data(&mut self) -> Result<(), Error> {
        let old: Vec<(FenceId, usize)> = self
            .beside
            .iter()
            .filter(|(id, _)| !self.fences.is_spoken_of(**id))
            .map(|(id, size)| (*id, *size))
            .collect();
        for (id, size) in old {
            self.peers.clear(id, size)?;
            self.beside.remove(&id);
        }
        Ok(())
    }
}

impl Waiting {
    /// After how long something is to be said or done.
    fn limit(&self, patience: Duration) -> Duration {
        match self.contribution.timeout_s {
            Some(seconds) => Duration::from_secs(u64::from(seconds)),
            None if self.remarked => patience,
            None => REMARK.min(patience),
        }
    }
}
