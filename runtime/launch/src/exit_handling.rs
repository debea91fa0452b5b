//! Exit handling: the ends of ranks, of nodes and of the whole job, and which processes are told.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2};

use super::node::{Launcher, TICK};
use super::node_status::{Abort, Ended, Signal};
use super::output::{OutputEnd, Outputs, UNREAD};
use super::ranks::Reaped;
use super::signals::Signals;
use super::{Error, stdin_control};
use muster_pmix::server::{Server, Signalling};
use muster_sys::poll::readable;

/// Two signals within this time are one: a terminal sends a signal to all of its processes, and this launcher gets
/// it from its parent as well.
pub(crate) const DUPLICATE_SIGNAL_WINDOW: Duration = Duration::from_secs(1);
/// The error of a launcher whose control channel is closed.
pub(super) const ORPHANED: &str =
    "the connection to the muster run that started this launcher is gone";
/// The error of a job whose standard output has no reader left.
const NO_READER: &str = "the reader of standard output is gone; the job is ended";
/// The error of a job that a signal ends; the signal's number follows.
const BY_SIGNAL: &str = "ended by signal";
/// Most signals from ranks to others in a node status: no launcher can have missed that many.
const SIGNALS_MAX: usize = 64;
/// Most bytes of them in a node status.
const SIGNALS_SIZE: usize = 8192;
/// Fences in the MPI_Init of Open MPI 5, which has the most. A job that has passed that many has started.
pub(super) const FENCES_OF_INIT: u64 = 4;
/// The same of Open MPI 4.
pub(super) const FENCES_OF_OPEN_MPI_4: u64 = 2;
/// For other MPIs the number is unknown: MPI_Init is over after one fence and this long without another.
pub(super) const INIT_QUIET: Duration = Duration::from_secs(1);
/// After its last fence the MPI_Init of Open MPI 5 still chooses the collectives of MPI_COMM_WORLD. A rank that is
/// told of a death before that crashes, and the end of that phase is not visible. Therefore no rank is told of a
/// death for this long.
const INIT_TAIL: Duration = Duration::from_millis(500);
/// The limit of [`INIT_QUIET`] where ranks are slow.
pub(super) const INIT_QUIET_MAX: Duration = Duration::from_secs(10);

impl Launcher {
    /// Ranks of the whole job that have ended, as their launchers state.
    pub(super) fn ended(&self) -> impl Iterator<Item = &Ended> {
        let own = self.node_status.ended.iter();
        let others = self
            .peers
            .node_statuses()
            .filter(|(node, _)| *node != self.own);
        own.chain(others.flat_map(|(_, node_status)| &node_status.ended))
    }

    /// Ranks that are dead to MPI: lost ones, and all ranks of nodes that are gone.
    pub(super) fn dead(&self) -> BTreeSet<u32> {
        let lost = self.ended().filter(|ended| ended.is_lost());
        let mut dead: BTreeSet<u32> = lost.map(|ended| ended.rank).collect();
        dead.extend(self.failed());
        for node in self.peers.gone() {
            // A node that was done before it left has lost no rank.
            let done = self
                .peers
                .node_status(*node)
                .is_some_and(|node_status| node_status.done);
            dead.extend(self.plan.layout.ranks_of(*node).filter(|_| !done));
        }
        dead
    }

    /// Ranks that have failed according to the agents only.
    pub(super) fn failed(&self) -> impl Iterator<Item = u32> {
        let ended: BTreeSet<u32> = self.ended().map(|ended| ended.rank).collect();
        let failed = self.peers.failed();
        failed.filter(move |rank| !ended.contains(rank))
    }

    pub(super) fn reap(&mut self) {
        // An end before MPI_Init is over is reported with its effect on the job.
        let reports = self.has_started() && self.node_status.abort.is_none();
        let is_aborted = self.node_status.abort.is_some();
        // Taken before anything is printed, which may take a while: it decides which rank failed first.
        let moment = self.met.elapsed().as_millis() as u64;
        for Reaped { ended, how, killed } in self.ranks.reap(&self.epoll) {
            let Ended { rank, status, .. } = ended;
            let is_lost = ended.is_lost();
            match killed {
                _ if self.plan.verbose || is_lost && reports => {
                    let plain = || format!("rank {rank} ended with status {status}");
                    self.print(&killed.map_or_else(plain, |killed| killed.describe(rank)));
                }
                Some(killed) if !is_lost && killed.may_be_sent_to_all() => {
                    self.killed.push(killed.describe(rank));
                }
                Some(killed) if !is_lost && !is_aborted => self.print(&killed.describe(rank)),
                _ => {}
            }
            if ended.is_lost()
                && let Ok(link) = self.client.link()
            {
                // So that Muster knows of the rank's end even if it never attached.
                link.send_aborted(ended.rank, how, self.plan.layout.ranks());
            }
            if ended.status != 0 && self.node_status.failed.is_none() {
                self.node_status.failed = Some((moment, ended.status));
            }
            self.node_status.ended.push(ended);
        }
    }

    /// Reports ranks that were killed by a signal that may have been sent to all, if the job was not ended by
    /// one.
    pub(super) fn report_killed(&mut self) {
        for text in std::mem::take(&mut self.killed) {
            if self.node_status.abort.is_none() && !self.is_orphan {
                self.print(&text);
            }
        }
    }

    /// Whether MPI_Init is over, as far as a launcher can tell. Once it is over, it stays so whichever ranks
    /// wait.
    pub(super) fn has_started(&self) -> bool {
        let over = self.fences.delivered_of_all();
        self.node_status.started
            || over >= self.fences_of_init
            || over >= 1
                && self.waiting.is_empty()
                && !self.fences.is_awaited()
                && self.last_fence.elapsed() > self.init_quiet.unwrap_or(INIT_QUIET)
    }

    /// A rank or node that is lost before the end of MPI_Init ends the job. One launcher reports it: the rank's
    /// own, or the one of the lowest node that is left.
    pub(super) fn check_start(&mut self) {
        self.node_status.connected |= self.ranks.any_connected()
            || self.node_status.ended.iter().any(|ended| ended.connected);
        let any_connected = self.node_status.connected
            || self
                .peers
                .node_statuses()
                .any(|(_, node_status)| node_status.connected);
        let started = self.has_started();
        if !started {
            self.peers.forget_failed();
        }
        // A slow rank may be silent for a while between two fences of MPI_Init. A loss that was once taken
        // for one after the start must not become a failed launch later. The launchers that report losses
        // below decide that, and the others follow them.
        let is_quiet = self.last_fence.elapsed() > INIT_QUIET_MAX;
        self.node_status.started |= self.fences.delivered_of_all() >= self.fences_of_init
            || started && (is_quiet || self.has_losses())
            || self
                .peers
                .node_statuses()
                .any(|(_, node_status)| node_status.started);
        if started || self.node_status.started || !any_connected {
            return self.check_losses();
        }
        if self.node_status.abort.is_some() {
            return;
        }
        self.check_arrivals();
        let lost = self.node_status.ended.iter().find(|ended| !ended.finalized);
        if let Some(Ended { rank, status, .. }) = lost.copied() {
            let why = format!(
                "the launch failed: rank {rank} on {} ended with status {status} before the end of MPI_Init",
                self.name()
            );
            return self.abort(status.max(1), &why);
        }
        let gone = self.peers.gone();
        let first_left = (0..=self.own).find(|node| !gone.contains(node));
        if let Some(node) = gone.first().filter(|_| first_left == Some(self.own)) {
            let node = self.plan.layout.name(*node);
            let why = format!("the launch failed: {node} was lost before the end of MPI_Init");
            self.abort(1, &why);
        }
    }

    /// Ends the job if ranks are late in MPI_Init; with several nodes the fences show that. A rank that has
    /// connected to the PMIx server and puts nothing is not late: it runs a PMIx program without MPI.
    fn check_arrivals(&mut self) {
        let absent = self.ranks.absent();
        if let Some((late, waited_s)) = self.arrivals.late(absent, self.plan.timeout) {
            let ranges = ranges(&late);
            let one = |(from, to): &(u32, u32)| {
                if from == to {
                    from.to_string()
                } else {
                    format!("{from}-{to}")
                }
            };
            let late: Vec<String> = ranges.iter().map(one).collect();
            let late = late.join(",");
            let why = format!(
                "ranks {late} have not entered MPI_Init within {waited_s} s of others; --start-timeout sets how \
                 long to wait"
            );
            self.abort(1, &why);
        }
    }

    /// Whether ranks or nodes are lost for which MPI's start would wait for ever: losses that are to be judged.
    fn has_losses(&self) -> bool {
        self.ended().any(|ended| !ended.finalized) || !self.peers.gone().is_empty()
    }

    /// Whether a loss is still to be judged. Until then no rank is told of it, and no fence is completed
    /// without the lost one. The launcher in charge decides whether the launch has failed or the job had
    /// started.
    pub(super) fn is_in_doubt(&self) -> bool {
        !self.has_started() && self.has_losses()
    }

    /// Whether the last fence of MPI_Init was completed so recently that ranks may still be in MPI_Init.
    pub(super) fn may_be_in_init(&self) -> bool {
        self.init_over
            .is_some_and(|since| since.elapsed() < INIT_TAIL)
    }

    /// Tells this node's ranks of deaths, once each. Fences are answered first: a status that shows a death may
    /// also show the end of MPI_Init.
    pub(super) fn report_deaths(&mut self, server: &Server) -> Result<(), Error> {
        if self.node_status.abort.is_some()
            || !self.ranks.any_connected()
            || self.is_in_doubt()
            || self.may_be_in_init()
        {
            return Ok(());
        }
        for rank in self.dead() {
            if self.reported_deaths.insert(rank) {
                server.tell_death(rank)?;
                if self.plan.verbose {
                    self.print(&format!(
                        "the ranks of this node are told that rank {rank} is dead"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Ends the job on every node.
    pub(super) fn abort(&mut self, status: u8, why: &str) {
        if self.node_status.abort.is_some() {
            return;
        }
        self.abort_silently(status, why);
        // First the status: stderr may have no reader, and nothing waits for that.
        if !self.has_lost_agent {
            let _ = self.publish_status();
        }
        self.print(why);
    }

    /// Ends the job without printing the reason; another launcher prints it.
    pub(super) fn abort_silently(&mut self, status: u8, why: &str) {
        if self.node_status.abort.is_none() {
            let why = why.chars().take(1000).collect();
            let by = self.own;
            self.node_status.abort = Some(Abort { status, why, by });
            self.end_ranks();
        }
    }

    /// Ends the job because standard output has no reader left. As a rule several launchers see that, and one
    /// prints it.
    pub(super) fn abort_without_reader(&mut self) {
        match self.own {
            0 => self.abort(UNREAD, NO_READER),
            _ => self.abort_silently(UNREAD, NO_READER),
        }
    }

    /// Waits, when all ranks have ended, until their output is read or its reader takes no more. If the job is
    /// being ended, the reader has as long as the ranks had.
    pub(super) fn finish_output(&mut self, outputs: Outputs, signals: &Signals) -> OutputEnd {
        let is_ending = self.node_status.abort.is_some() || self.is_orphan;
        let timeout = if is_ending {
            (self.plan.grace, "--grace")
        } else {
            (self.plan.timeout, "--start-timeout")
        };
        if self.plan.verbose {
            self.print("waiting until the ranks' output is read");
        }
        let is_duplicate = || {
            self.abort_since
                .is_some_and(|since| since.elapsed() <= DUPLICATE_SIGNAL_WINDOW)
        };
        outputs.finish(timeout, signals.as_fd(), || {
            let received = signals.take();
            let mut ending = received
                .into_iter()
                .filter(|one| ![SIGUSR1, SIGUSR2].contains(one));
            ending.next().filter(|_| !is_duplicate())
        })
    }

    pub(super) fn end_ranks(&mut self) {
        // If the signal was SIGTERM itself, they already have it.
        if !self.ranks_have_term {
            self.ranks.end(SIGTERM);
            self.ranks_have_term = true;
        }
        self.kill_at = Some(Instant::now() + self.plan.grace);
        self.abort_since = Some(Instant::now());
    }

    pub(super) fn aborted_by_another(&self) -> Option<u8> {
        self.node_status.abort.as_ref().map(|abort| abort.status)
    }

    /// Whether another launcher has ended the job. If so, ends it here as well.
    pub(super) fn adopt_abort(&mut self) -> bool {
        if self.node_status.abort.is_none() {
            let other = self
                .peers
                .node_statuses()
                .find_map(|(_, node_status)| node_status.abort.clone());
            if let Some(abort) = &other {
                if self.own == 0 && abort.why == NO_READER {
                    self.print(NO_READER);
                }
                self.node_status.abort = other;
                self.end_ranks();
            }
        }
        self.node_status.abort.is_some()
    }

    /// Ends the ranks after the loss of the agent. If all processes of a node are asked to end, the agent may
    /// be the first that does. Then the ranks have their usual time, and the job's status is returned. Returns
    /// `None` if no end was requested.
    pub(super) fn end_without_agent(&mut self, signals: &Signals) -> Option<u8> {
        self.has_lost_agent = true;
        let _ = readable(&[signals.as_fd()], Some(DUPLICATE_SIGNAL_WINDOW));
        self.take_signals(signals);
        let status = self.node_status.abort.as_ref()?.status;
        while !self.ranks.is_empty() && self.kill_at.is_some() {
            let _ = readable(&[signals.as_fd()], Some(TICK));
            self.take_signals(signals);
            self.ranks.poll();
            self.reap();
            self.kill_when_due();
        }
        Some(status)
    }

    pub(super) fn kill_when_due(&mut self) {
        if self.kill_at.is_some_and(|at| Instant::now() >= at) {
            self.ranks.end(SIGKILL);
            self.kill_at = None;
        }
    }

    /// Handles a signal that a rank sends to others.
    pub(super) fn send(&mut self, signalling: Signalling) {
        let signal = Signal {
            serial: self.signal_count + 1,
            ranks: ranges(&signalling.ranks),
            signal: signalling.signal,
        };
        if size_of(&signal) > SIGNALS_SIZE {
            self.print(&format!(
                "a signal to {} ranks that are not adjacent is too large; send it to all, or to \
                 fewer at a time",
                signalling.ranks.len()
            ));
            return signalling.refuse();
        }
        self.ranks.signal_some(&signal.ranks, signal.signal);
        self.signal_count = signal.serial;
        self.node_status.signals.push(signal);
        drop_oldest(&mut self.node_status.signals);
        signalling.succeed();
    }

    /// Handles the signals of other nodes' ranks, once each.
    pub(super) fn forward_signals(&mut self) {
        for (node, node_status) in self
            .peers
            .node_statuses()
            .filter(|(node, _)| *node != self.own)
        {
            let seen = self.signals_seen.entry(node).or_default();
            for one in node_status.signals.iter().filter(|one| one.serial > *seen) {
                self.ranks.signal_some(&one.ranks, one.signal);
            }
            *seen = node_status.signals.last().map_or(*seen, |one| one.serial);
        }
    }

    /// Ends the ranks of this node when the control channel is closed, and no others: only the connection to
    /// this node may be lost. If the parent itself has ended, the other launchers do the same.
    pub(super) fn check_stdin_control(&mut self) {
        if !stdin_control::is_cut() || self.is_orphan {
            return;
        }
        self.is_orphan = true;
        if self.node_status.abort.is_none() {
            self.print(&format!("{ORPHANED}; the ranks of this node are ended"));
            self.ranks.end(SIGHUP);
            self.ranks.end(SIGTERM);
            self.kill_at = Some(Instant::now() + self.plan.grace);
        }
    }

    /// Handles the signals that have arrived. Where Slurm sends a signal to all processes, it is not forwarded:
    /// ranks of a step must not get it twice.
    pub(super) fn take_signals(&mut self, signals: &Signals) {
        let have_it = self.plan.slurm.is_some_and(|slurm| slurm.signals_all);
        for signal in signals.take() {
            let now = Instant::now();
            if signal == SIGHUP && stdin_control::is_cut() {
                // This SIGHUP only wakes the loop.
                continue;
            }
            if signal == SIGUSR1 || signal == SIGUSR2 {
                if !have_it {
                    self.ranks.signal(signal);
                }
                continue;
            } else if self.node_status.abort.is_none() {
                if have_it {
                    self.ranks.note_sent(signal);
                } else {
                    self.ranks.end(signal);
                }
                self.ranks_have_term |= signal == SIGTERM;
                let why = format!("{BY_SIGNAL} {signal}");
                // As a rule all launchers get the signal.
                match self.own {
                    0 => self.abort(128 + signal as u8, &why),
                    _ => self.abort_silently(128 + signal as u8, &why),
                }
            } else if self
                .end_requested_at()
                .is_some_and(|since| now > since + DUPLICATE_SIGNAL_WINDOW)
            {
                // This is a second request to end.
                if self.own == 0 && self.kill_at.is_some() {
                    self.print("second request to end; the ranks are killed");
                }
                self.kill_at = None;
                self.ranks.end(SIGKILL);
            }
            self.end_requested_since.get_or_insert(now);
        }
    }

    /// When the end was requested. Another launcher's abort by a signal may arrive before the signal itself.
    fn end_requested_at(&self) -> Option<Instant> {
        let is_signal = |abort: &Abort| abort.why.starts_with(BY_SIGNAL);
        match &self.node_status.abort {
            Some(abort) if !is_signal(abort) => self.abort_since,
            _ => self.end_requested_since,
        }
    }
}

/// Converts ranks to ranges.
fn ranges(ranks: &[u32]) -> Vec<(u32, u32)> {
    let mut ranks = ranks.to_vec();
    ranks.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match ranges.last_mut() {
            Some((_, last)) if rank <= last.saturating_add(1) => *last = rank,
            _ => ranges.push((rank, rank)),
        }
    }
    ranges
}

/// Size of a signal in the node status, as an upper bound.
fn size_of(signal: &Signal) -> usize {
    let digits = |number: u32| number.checked_ilog10().unwrap_or(0) as usize + 1;
    let range = |(from, to): &(u32, u32)| digits(*from) + digits(*to) + 4;
    64 + signal.ranks.iter().map(range).sum::<usize>()
}

/// Drops the oldest signals beyond the limits of number and size.
fn drop_oldest(signals: &mut Vec<Signal>) {
    let mut total: usize = signals.iter().map(size_of).sum();
    let mut old = 0;
    while signals.len() - old > SIGNALS_MAX || total > SIGNALS_SIZE {
        total -= size_of(&signals[old]);
        old += 1;
    }
    signals.drain(..old);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A signal to ranks that are not adjacent.
    fn signal(serial: u64, ranks: u32) -> Signal {
        let ranks: Vec<u32> = (0..ranks).map(|rank| 10_000 + 2 * rank).collect();
        Signal {
            serial,
            ranks: ranges(&ranks),
            signal: 10,
        }
    }

    #[test]
    fn signals_are_bounded_in_number_and_size() {
        for (ranks, count, kept) in [(1, 100, SIGNALS_MAX), (150, 64, 3), (500, 3, 1)] {
            let mut signals: Vec<Signal> = (0..count).map(|serial| signal(serial, ranks)).collect();
            drop_oldest(&mut signals);
            assert_eq!(signals.len(), kept, "{ranks}");
            assert_eq!(signals.last().map(|one| one.serial), Some(count - 1));
            let written = serde_json::to_vec(&signals).unwrap().len();
            assert!(written <= SIGNALS_SIZE, "{ranks}: {written}");
        }
    }

    #[test]
    fn adjacent_ranks_become_one_range() {
        let all: Vec<u32> = (0..1_000_000).rev().collect();
        assert_eq!(ranges(&all), [(0, 999_999)]);
        assert_eq!(ranges(&[7, 3, 4, 4, 9]), [(3, 4), (7, 7), (9, 9)]);
        assert_eq!(ranges(&[]), []);
        for many in [1, 100, 10_000] {
            let one = signal(u64::MAX >> 20, many);
            assert!(serde_json::to_vec(&one).unwrap().len() <= size_of(&one));
        }
        assert!(size_of(&signal(1, 10_000)) > SIGNALS_SIZE);
    }
}
