//! Ends: of ranks, of nodes, and of the whole job with its exit status; and which ranks are told of a death.

use std::collections::BTreeSet;

use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM};

use super::messages::{Action, Killed, RankEnd};
use super::node_status::{Abort, Ended, NodeStatus};
use super::signalling::DUPLICATE_SIGNAL_WINDOW;
use super::start::ORPHANED;
use super::{ABORT_TIMEOUT, Core};

/// The error of a job whose standard output has no reader left.
const NO_READER: &str = "the reader of standard output is gone; the job is ended";
/// The exit status of such a job, as a shell counts a program that SIGPIPE has ended.
pub(crate) const UNREAD: u8 = 128 + signal_hook::consts::SIGPIPE as u8;
/// Most characters of the reason of an abort.
const WHY_MAX: usize = 1000;

impl Core {
    /// Ranks of the whole job that have ended, as their launchers state.
    pub(super) fn ended(&self) -> impl Iterator<Item = &Ended> {
        let others = self.view.others();
        let others = others.flat_map(|(_, node_status)| &node_status.ended);
        self.node_status.ended.iter().chain(others)
    }

    /// Ranks that are dead to MPI: lost ones, and all ranks of nodes that are gone.
    fn dead(&self) -> BTreeSet<u32> {
        let lost = self.ended().filter(|ended| ended.is_lost());
        let mut dead: BTreeSet<u32> = lost.map(|ended| ended.rank).collect();
        dead.extend(self.failed());
        for node in self.view.gone() {
            // A node that was done before it left has lost no rank.
            if !self.was_done(*node) {
                dead.extend(self.config.layout.ranks_of(*node));
            }
        }
        dead
    }

    /// Whether all ranks of a node had ended, as its launcher stated.
    pub(super) fn was_done(&self, node: usize) -> bool {
        let node_status = self.view.status(node);
        node_status.is_some_and(|node_status| node_status.done)
    }

    /// Ranks that have failed according to the agents only.
    pub(super) fn failed(&self) -> impl Iterator<Item = u32> {
        let ended: BTreeSet<u32> = self.ended().map(|ended| ended.rank).collect();
        let failed = self.view.failed(self.now);
        failed.filter(move |rank| !ended.contains(rank))
    }

    /// Takes the end of a rank of this node.
    pub(super) fn take_end(&mut self, end: RankEnd) {
        let RankEnd {
            rank,
            status,
            how,
            killed,
        } = end;
        let Some(connections) = self.running.end(rank) else {
            return;
        };
        let ended = Ended {
            rank,
            status,
            connected: connections.any(),
            finalized: connections.are_over(status),
        };
        let (is_lost, is_aborted) = (ended.is_lost(), self.node_status.abort.is_some());
        match killed {
            // An end before MPI_Init is over is reported with its effect on the job.
            _ if self.config.verbose || is_lost && self.has_started() && !is_aborted => {
                let plain = || format!("rank {rank} ended with status {status}");
                self.print(killed.map_or_else(plain, |killed| killed.describe(rank)));
            }
            Some(killed) if !is_lost && killed.may_be_sent_to_all() => {
                self.killed.push(killed.describe(rank));
            }
            Some(killed) if !is_lost && !is_aborted => self.print(killed.describe(rank)),
            _ => {}
        }
        if is_lost {
            // So that Muster knows of the rank's end even if it never attached.
            self.act(Action::ReportLost { rank, how });
        }
        if status != 0 && self.node_status.failed.is_none() {
            let since = self.since(self.all_there.unwrap_or(self.now));
            self.node_status.failed = Some((since.as_millis() as u64, status));
            let is_reported = self.config.verbose || is_lost || killed.is_some();
            self.unreported = (!is_reported).then_some((rank, status));
        }
        self.node_status.ended.push(ended);
    }

    /// Reports ranks that were killed by a signal that may have been sent to all, if the job was not ended by
    /// one.
    pub(super) fn report_killed(&mut self) {
        for text in std::mem::take(&mut self.killed) {
            if self.node_status.abort.is_none() && !self.is_orphan {
                self.print(text);
            }
        }
    }

    /// Tells this node's ranks of deaths, once each. Fences are answered first: a status that shows a death may
    /// also show the end of MPI_Init.
    pub(super) fn report_deaths(&mut self) {
        if self.node_status.abort.is_some()
            || !self.running.any_connected()
            || self.is_in_doubt()
            || self.may_be_in_init()
        {
            return;
        }
        for rank in self.dead() {
            if self.reported_deaths.insert(rank) {
                self.act(Action::TellDeath(rank));
                if self.config.verbose {
                    self.print(format!(
                        "the ranks of this node are told that rank {rank} is dead"
                    ));
                }
            }
        }
    }

    /// Ends the job on every node.
    pub(super) fn abort(&mut self, status: u8, why: &str) {
        if self.node_status.abort.is_some() {
            return;
        }
        self.abort_silently(status, why);
        // First the status: stderr may have no reader, and nothing waits for that.
        self.publish();
        self.print(why);
    }

    /// Ends the job without printing the reason; another launcher prints it.
    pub(super) fn abort_silently(&mut self, status: u8, why: &str) {
        if self.node_status.abort.is_none() {
            let why = why.chars().take(WHY_MAX).collect();
            let by = self.config.own;
            self.node_status.abort = Some(Abort { status, why, by });
            self.end_ranks();
        }
    }

    /// Ends the job because this launcher has failed, which its driver prints.
    pub(crate) fn fail(&mut self, status: u8, why: &str) {
        self.abort_silently(status, why);
        // The last status may not have been published: that may be why it has failed.
        self.published_status = None;
        self.publish();
    }

    /// Ends the job because standard output has no reader left. As a rule several launchers see that, and one
    /// prints it.
    pub(super) fn abort_without_reader(&mut self) {
        match self.config.own {
            0 => self.abort(UNREAD, NO_READER),
            _ => self.abort_silently(UNREAD, NO_READER),
        }
    }

    fn end_ranks(&mut self) {
        // If the signal was SIGTERM itself, they already have it.
        if !self.ranks_have_term {
            self.act(Action::EndRanks(SIGTERM));
            self.ranks_have_term = true;
        }
        self.kill_at = Some(self.now + self.config.grace);
        self.abort_since = Some(self.now);
    }

    /// The exit status with which the job is being ended.
    pub(crate) fn abort_status(&self) -> Option<u8> {
        self.node_status.abort.as_ref().map(|abort| abort.status)
    }

    /// Whether the ranks of this node are being ended.
    pub(crate) fn is_ending(&self) -> bool {
        self.node_status.abort.is_some() || self.is_orphan
    }

    /// Whether ranks that were asked to end are still to be killed.
    pub(crate) fn is_kill_due(&self) -> bool {
        self.kill_at.is_some()
    }

    /// Whether a signal at this time repeats the one that ends the job.
    pub(crate) fn is_duplicate_signal(&self, now: std::time::Duration) -> bool {
        let is_close = |since| now.saturating_sub(since) <= DUPLICATE_SIGNAL_WINDOW;
        self.abort_since.is_some_and(is_close)
    }

    /// Ends the job here as well if another launcher has ended it.
    pub(super) fn adopt_abort(&mut self) {
        if self.node_status.abort.is_some() {
            return;
        }
        let abort_of = |(_, node_status): (usize, &NodeStatus)| node_status.abort.clone();
        let other = self.view.statuses().find_map(abort_of);
        if let Some(abort) = other {
            if self.config.own == 0 && abort.why == NO_READER {
                self.print(NO_READER);
            }
            self.node_status.abort = Some(abort);
            self.end_ranks();
        }
    }

    pub(crate) fn kill_when_due(&mut self) {
        if self.kill_at.is_some_and(|at| self.now >= at) {
            self.act(Action::EndRanks(SIGKILL));
            self.kill_at = None;
        }
    }

    /// Ends the ranks of this node when the control channel is closed, and no others: only the connection to
    /// this node may be lost. If the parent itself has ended, the other launchers do the same.
    pub(super) fn check_channel(&mut self) {
        if !self.is_cut || self.is_orphan {
            return;
        }
        self.is_orphan = true;
        if self.node_status.abort.is_none() {
            self.print(format!("{ORPHANED}; the ranks of this node are ended"));
            self.act(Action::EndRanks(SIGHUP));
            self.act(Action::EndRanks(SIGTERM));
            self.kill_at = Some(self.now + self.config.grace);
        }
    }

    /// Reports the first rank of the job that ended with a status other than 0, on its node.
    pub(super) fn report_failed(&mut self) {
        let own = (self.node_status.failed, self.config.own);
        let is_later = |(node, other): (usize, &NodeStatus)| {
            other.failed.is_none() || (other.failed, node) > own
        };
        let is_first = self.view.others().all(is_later);
        if let Some((rank, status)) = self.unreported
            && is_first
            && self.node_status.abort.is_none()
        {
            self.print(format!("rank {rank} ended with status {status}"));
        }
    }

    pub(super) fn are_all_done(&self) -> bool {
        let is_over = |since| self.since(since) > ABORT_TIMEOUT + self.config.grace;
        self.view.without(|node_status| node_status.done).is_empty()
            || self.abort_since.is_some_and(is_over)
    }

    /// The exit status of this node's part of the job.
    pub(super) fn exit_status(&self) -> u8 {
        if let Some(abort) = &self.node_status.abort {
            return abort.status;
        }
        let layout = &self.config.layout;
        let dead = self.dead();
        let others_survive = (0..layout.ranks())
            .any(|rank| layout.node_of(rank) != Some(self.config.own) && !dead.contains(&rank));
        let others = self.view.others();
        let failed = others.filter_map(|(_, node_status)| node_status.failed);
        let first = failed.chain(self.node_status.failed).min();
        let first = first.map(|(_, status)| status);
        self.config
            .policy
            .status(&self.node_status.ended, others_survive, first)
    }
}

impl Killed {
    /// Whether this signal may be one that a terminal or a scheduler sends to all of its processes: then this
    /// launcher soon gets it, too.
    fn may_be_sent_to_all(&self) -> bool {
        [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&self.signal)
    }

    fn describe(&self, rank: u32) -> String {
        let Self { pid, signal } = self;
        let name = signal_hook::low_level::signal_name(*signal);
        let name = name.map_or_else(String::new, |name| format!(" ({name})"));
        format!("rank {rank} (pid {pid}) was killed by signal {signal}{name}")
    }
}
