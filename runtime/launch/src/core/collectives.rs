//! Fences, and operations like fences, as the launcher handles them: takes contributions, reads the other launchers'
//! states, completes fences, reports late ones.

use std::collections::BTreeSet;

use super::Core;
use super::fence::{FenceProgress, Outcome};
use super::init::{INIT_QUIET, INIT_QUIET_MAX};
use super::messages::{Action, Answer, Entering};
use super::node_status::{DataChunk, FenceId};
use super::waiting::Waiting;

/// Most fences of this node's ranks that may be open at a time.
const WAITING_MAX: usize = 4096;

/// Numbers of groups are above this one: MPI assigns small ones itself.
const GROUPS_FROM: u64 = 1 << 20;

impl Core {
    /// Takes a contribution: this node's ranks have entered a fence.
    pub(super) fn enter(&mut self, entering: Entering) {
        // A number that is no rank's cannot be published.
        let ranks = self.config.layout.ranks();
        let is_wrong = entering.ranks.iter().any(|rank| *rank >= ranks);
        // Only fences that no process waits for can be that many.
        if is_wrong || self.waiting.len() >= WAITING_MAX {
            return self.answer(entering.request, Answer::Refused);
        }
        let mut data = entering.data;
        if entering.is_group {
            data = self.with_proposed_number(&data);
        }
        let id = self.fences.open(&entering.tag, &entering.ranks);
        let took = self.since(self.last_fence);
        let quiet = took.clamp(INIT_QUIET, INIT_QUIET_MAX);
        self.init_quiet.get_or_insert(quiet);
        self.last_fence = self.now;
        let waiting = Waiting {
            request: entering.request,
            is_group: entering.is_group,
            timeout_s: entering.timeout_s,
            since: self.now,
            is_reported: false,
            held: Some(data),
        };
        self.waiting.insert(id, waiting);
    }

    /// Adds a proposal for the group's number. No other node proposes it, and this node never proposes it
    /// again.
    fn with_proposed_number(&mut self, data: &[u8]) -> Vec<u8> {
        self.group_count += 1;
        let nodes = self.config.layout.nodes().len() as u64;
        let number = GROUPS_FROM + self.group_count * nodes + self.config.own as u64;
        let length = data.len() as u64;
        [&number.to_le_bytes(), &length.to_le_bytes(), data].concat()
    }

    /// Reads what the other launchers publish about fences, and requests data from separate attributes.
    pub(super) fn read_statuses(&mut self) {
        let gone = self.view.gone();
        for (node, node_status) in self.view.others() {
            if !gone.contains(&node) {
                self.fences.receive(node, &node_status.fences);
                self.fences.note_ended(node, &node_status.ended);
            }
        }
        for one in self.fences.awaited() {
            let (chunk, node, size) = (DataChunk::Fence(one.id), one.node, one.size);
            match one.servers {
                Some(servers) => self.request(chunk, node, size, servers),
                None => self.act(Action::Fetch { chunk, node, size }),
            }
        }
    }

    pub(super) fn advance_fences(&mut self) {
        let nodes = 0..self.config.layout.nodes().len();
        let gone_for: Vec<BTreeSet<usize>> = nodes
            .map(|node| match self.view.status(node) {
                Some(node_status) => node_status.gone.iter().map(|node| node as usize).collect(),
                None => BTreeSet::new(),
            })
            .collect();
        let mut ended: BTreeSet<u32> = self.ended().map(|ended| ended.rank).collect();
        ended.extend(self.failed());
        let progress = FenceProgress {
            gone: self.view.gone(),
            ended: &ended,
            gone_for: &gone_for,
            is_in_doubt: self.is_in_doubt(),
        };
        for outcome in self.fences.advance(&progress) {
            match outcome {
                Outcome::Complete(id, data) => self.complete(id, data),
                Outcome::Lost(_, node) => {
                    let node = self.config.layout.name(node);
                    let why = format!(
                        "{node} was lost while ranks exchanged their addresses; start the job again"
                    );
                    return self.abort(1, &why);
                }
                Outcome::TooMuch(id, node) => self.refuse_fence(id, node),
            }
        }
        let late: Vec<FenceId> = self
            .waiting
            .iter()
            .filter(|(_, one)| self.since(one.since) > one.limit(self.config.timeout))
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.handle_late(id, &gone_for, &ended);
        }
    }

    fn complete(&mut self, id: FenceId, data: Vec<u8>) {
        self.last_fence = self.now;
        if self.fences.delivered_of_all() >= self.fences_of_init {
            self.init_over.get_or_insert(self.now);
        }
        let Some(waiting) = self.waiting.remove(&id) else {
            return;
        };
        if self.config.verbose {
            let ms = self.since(waiting.since).as_secs_f64() * 1e3;
            let size = data.len();
            self.print(format!("fence {} of {size} bytes: {ms:.2} ms", id.turn));
        }
        let (number, data) = match waiting.is_group {
            true => number_of(&data),
            false => (0, data),
        };
        self.answer(waiting.request, Answer::Collected { data, number });
    }

    fn refuse_fence(&mut self, id: FenceId, node: usize) {
        let Some(waiting) = self.waiting.remove(&id) else {
            return;
        };
        if self.config.verbose {
            let node = self.config.layout.name(node);
            self.print(format!(
                "fence {} has failed: too much data on {node}",
                id.turn
            ));
        }
        self.answer(waiting.request, Answer::Refused);
    }

    /// Handles a fence that takes long. In the start it ends the job, later it is reported; a limit that the
    /// ranks have set is obeyed.
    fn handle_late(&mut self, id: FenceId, gone_for: &[BTreeSet<usize>], ended: &BTreeSet<u32>) {
        let progress = FenceProgress {
            gone: self.view.gone(),
            ended,
            gone_for,
            is_in_doubt: false,
        };
        let missing = self.names(&self.fences.missing(id, &progress));
        let is_starting = !self.has_started();
        let now = self.now;
        let Some(waiting) = self.waiting.get_mut(&id) else {
            return;
        };
        let waited_s = now.saturating_sub(waiting.since).as_secs();
        if waiting.timeout_s.is_some() {
            let request = waiting.request;
            self.waiting.remove(&id);
            self.answer(request, Answer::TimedOut);
        } else if is_starting && waited_s > self.config.timeout.as_secs() {
            self.abort(
                1,
                &format!(
                    "the ranks of {missing} have not entered MPI_Init within {waited_s} s; --start-timeout sets how \
                     long to wait"
                ),
            );
        } else if !std::mem::replace(&mut waiting.is_reported, true) {
            self.print(format!(
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
