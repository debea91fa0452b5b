//! The fence driver: fences as the launcher's loop handles them. Takes contributions, reads the other launchers'
//! states, completes fences, reports late ones.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Error;
use super::exit_handling::{INIT_QUIET, INIT_QUIET_MAX};
use super::fence::{FenceProgress, Outcome};
use super::node::{Launcher, print};
use super::node_status::{DataChunk, FenceId};
use muster_pmix::server::{Collective, Contribution};

/// After this long the launcher reports a fence that is still open.
const REPORT_AFTER: Duration = Duration::from_secs(60);

/// Most fences of this node's ranks that may be open at a time.
const WAITING_MAX: usize = 4096;

/// Numbers of groups are above this one: MPI assigns small ones itself.
const GROUPS_FROM: u64 = 1 << 20;

/// A fence of this node's ranks that is not over.
pub(super) struct Waiting {
    contribution: Contribution,
    pub(super) since: Instant,
    is_reported: bool,
    /// The contribution, until there is room for it.
    pub(super) held: Option<Vec<u8>>,
}

impl Launcher {
    /// Takes a contribution: this node's ranks have entered a fence.
    pub(super) fn enter(&mut self, mut contribution: Contribution) {
        // A number that is no rank's cannot be published.
        let ranks = self.plan.layout.ranks();
        if contribution.ranks.iter().any(|rank| *rank >= ranks) {
            return contribution.refuse();
        }
        // Only fences that no process waits for can be that many.
        if self.waiting.len() >= WAITING_MAX {
            return contribution.refuse();
        }
        let mut data = std::mem::take(&mut contribution.data);
        if let Collective::Construct(_) = contribution.collective {
            data = self.with_proposed_number(&data);
        }
        let tag = contribution.collective.tag();
        let id = self.fences.open(&tag, &contribution.ranks);
        let since = Instant::now();
        let took = self.last_fence.elapsed();
        let quiet = took.clamp(INIT_QUIET, INIT_QUIET_MAX);
        self.init_quiet.get_or_insert(quiet);
        self.last_fence = since;
        let waiting = Waiting {
            contribution,
            since,
            is_reported: false,
            held: Some(data),
        };
        self.waiting.insert(id, waiting);
    }

    /// Adds a proposal for the group's number. No other node proposes it, and this node never proposes it
    /// again.
    fn with_proposed_number(&mut self, data: &[u8]) -> Vec<u8> {
        self.group_count += 1;
        let nodes = self.plan.layout.nodes().len() as u64;
        let number = GROUPS_FROM + self.group_count * nodes + self.own as u64;
        let length = data.len() as u64;
        [&number.to_le_bytes(), &length.to_le_bytes(), data].concat()
    }

    /// Reads what the other launchers publish about fences, and fetches data from separate attributes.
    pub(super) fn read_statuses(&mut self) -> Result<(), Error> {
        for (node, node_status) in self.peers.node_statuses() {
            if node != self.own && !self.peers.gone().contains(&node) {
                self.fences.receive(node, &node_status.fences);
            }
        }
        for (id, node, size) in self.fences.awaited() {
            if let Some(data) = self.peers.fetch(DataChunk::Fence(id), node, size)? {
                self.fences.fetched(id, node, data);
            }
        }
        Ok(())
    }

    pub(super) fn advance_fences(&mut self) {
        let gone_for: Vec<BTreeSet<usize>> = (0..self.plan.layout.nodes().len())
            .map(|node| match self.peers.node_status(node) {
                Some(node_status) => node_status.gone.iter().map(|node| node as usize).collect(),
                None => BTreeSet::new(),
            })
            .collect();
        let mut ended: BTreeSet<u32> = self.ended().map(|ended| ended.rank).collect();
        ended.extend(self.failed());
        let progress = FenceProgress {
            gone: self.peers.gone(),
            ended: &ended,
            gone_for: &gone_for,
            is_in_doubt: self.is_in_doubt(),
        };
        for outcome in self.fences.advance(&progress) {
            match outcome {
                Outcome::Complete(id, data) => {
                    self.last_fence = Instant::now();
                    if self.fences.delivered_of_all() >= self.fences_of_init {
                        self.init_over.get_or_insert(self.last_fence);
                    }
                    if let Some(waiting) = self.waiting.remove(&id) {
                        if self.plan.verbose {
                            let (ms, size) =
                                (waiting.since.elapsed().as_secs_f64() * 1e3, data.len());
                            let line = format!("fence {} of {size} bytes: {ms:.2} ms", id.turn);
                            print(self.plan.layout.name(self.own), &line);
                        }
                        match waiting.contribution.collective {
                            Collective::Construct(_) => {
                                let (number, data) = number_of(&data);
                                waiting.contribution.complete(&data, number as usize);
                            }
                            _ => waiting.contribution.complete(&data, 0),
                        }
                    }
                }
                Outcome::Lost(_, node) => {
                    let node = self.plan.layout.name(node).to_owned();
                    self.abort(
                        1,
                        &format!("{node} was lost while ranks exchanged their addresses; start the job again"),
                    );
                    return;
                }
                Outcome::TooMuch(id, node) => {
                    if let Some(waiting) = self.waiting.remove(&id) {
                        if self.plan.verbose {
                            let node = self.plan.layout.name(node);
                            self.print(&format!(
                                "fence {} has failed: too much data on {node}",
                                id.turn
                            ));
                        }
                        waiting.contribution.refuse();
                    }
                }
            }
        }
        let late: Vec<FenceId> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.since.elapsed() > waiting.limit(self.plan.timeout))
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.handle_late(id, &gone_for, &ended);
        }
    }

    /// Handles a fence that takes long. In the start it ends the job, later it is reported; a limit that the
    /// ranks have set is obeyed.
    pub(super) fn handle_late(
        &mut self,
        id: FenceId,
        gone_for: &[BTreeSet<usize>],
        ended: &BTreeSet<u32>,
    ) {
        let progress = FenceProgress {
            gone: self.peers.gone(),
            ended,
            gone_for,
            is_in_doubt: false,
        };
        let missing = self.names(&self.fences.missing(id, &progress));
        let starting = !self.has_started();
        let Some(waiting) = self.waiting.get_mut(&id) else {
            return;
        };
        let waited_s = waiting.since.elapsed().as_secs();
        if waiting.contribution.timeout_s.is_some() {
            if let Some(waiting) = self.waiting.remove(&id) {
                waiting.contribution.time_out();
            }
        } else if starting && waited_s > self.plan.timeout.as_secs() {
            self.abort(
                1,
                &format!(
                    "the ranks of {missing} have not entered MPI_Init within {waited_s} s; --start-timeout sets how \
                     long to wait"
                ),
            );
        } else if !std::mem::replace(&mut waiting.is_reported, true) {
            self.print(&format!(
                "ranks have been waiting for {waited_s} s in a fence for those of {missing}"
            ));
        }
    }
}

/// Returns the number of a group, which is the first that was proposed, and the data of its nodes.
fn number_of(mut all: &[u8]) -> (u64, Vec<u8>) {
    let mut numbers = Vec::new();
    let mut data = Vec::new();
    while let Some((number, rest)) = all.split_first_chunk() {
        let Some((length, rest)) = rest.split_first_chunk() else {
            break;
        };
        let length = (u64::from_le_bytes(*length) as usize).min(rest.len());
        numbers.push(u64::from_le_bytes(*number));
        data.extend(&rest[..length]);
        all = &rest[length..];
    }
    (numbers.first().copied().unwrap_or(0), data)
}

impl Waiting {
    /// After how long the fence is to be handled as late.
    fn limit(&self, timeout: Duration) -> Duration {
        match self.contribution.timeout_s {
            Some(seconds) => Duration::from_secs(u64::from(seconds)),
            None if self.is_reported => timeout,
            None => REPORT_AFTER.min(timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_the_first_number_and_the_data_of_all() {
        let part = |number: u64, data: &[u8]| {
            [
                &number.to_le_bytes(),
                &(data.len() as u64).to_le_bytes(),
                data,
            ]
            .concat()
        };
        let all = [part(7, b"ab"), part(9, b""), part(3, b"c")].concat();
        assert_eq!(number_of(&all), (7, b"abc".to_vec()));
        assert_eq!(number_of(&[]), (0, vec![]));
        assert_eq!(number_of(&all[..17]), (7, b"a".to_vec()));
        assert_eq!(number_of(&[1; 12]), (0, vec![]));
    }
}
