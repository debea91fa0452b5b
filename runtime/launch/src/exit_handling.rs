//! Ends: of ranks, of nodes, of the whole job; and who is told.

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

/// A signal that comes so soon after another is the same: a terminal sends it to all of its processes, and this
/// launcher gets it from its starter as well.
pub(crate) const ECHO: Duration = Duration::from_secs(1);
/// What is said of a cut cord.
pub(super) const ORPHANED: &str =
    "the connection to the muster run that started this launcher is gone";
/// What is said when nobody reads standard output any more.
const NO_READER: &str = "whoever read standard output is gone; the job is ended";
/// What is said of a job that a signal ends.
const BY_SIGNAL: &str = "ended by signal";
/// Signals of ranks to others that stand on a bell: nobody may have missed as many.
const SIGNALS_TOLD: usize = 64;
/// Most bytes of them on the bell.
const SIGNALS_SIZE: usize = 8192;
/// Fences in the MPI_Init of Open MPI 5, which has most; a job that has passed so many has started.
pub(super) const FENCES_OF_INIT: u64 = 4;
/// The same of Open MPI 4.
pub(super) const FENCES_OF_OPEN_MPI_4: u64 = 2;
/// Of other MPIs it is not known; after one fence and this long without another it has ended.
pub(super) const INIT_QUIET: Duration = Duration::from_secs(1);
/// After its last fence MPI_Init of Open MPI 5 still chooses the collectives of MPI_COMM_WORLD. A rank that hears of a
/// death before that crashes, and nothing tells when it has: so nobody is told for so long.
const INIT_TAIL: Duration = Duration::from_millis(500);
/// The same where ranks are slow.
pub(super) const INIT_QUIET_MAX: Duration = Duration::from_secs(10);

impl Launcher {
    /// Ranks of the whole job that have ended, as their launchers say.
    pub(super) fn ended(&self) -> impl Iterator<Item = &Ended> {
        let own = self.node_status.ended.iter();
        let others = self
            .peers
            .node_statuses()
            .filter(|(node, _)| *node != self.own);
        own.chain(others.flat_map(|(_, node_status)| &node_status.ended))
    }

    /// Ranks that are dead to MPI: lost ones, and all of nodes that are gone.
    pub(super) fn dead(&self) -> BTreeSet<u32> {
        let lost = self.ended().filter(|ended| ended.is_lost());
        let mut dead: BTreeSet<u32> = lost.map(|ended| ended.rank).collect();
        dead.extend(self.failed());
        for node in self.peers.gone() {
            // One that was done and left has taken nobody with it.
            let done = self
                .peers
                .node_status(*node)
                .is_some_and(|node_status| node_status.done);
            dead.extend(self.plan.layout.ranks_of(*node).filter(|_| !done));
        }
        dead
    }

    /// Ranks that have failed by the agents' word alone.
    pub(super) fn failed(&self) -> impl Iterator<Item = u32> {
        let ended: BTreeSet<u32> = self.ended().map(|ended| ended.rank).collect();
        let failed = self.peers.failed();
        failed.filter(move |rank| !ended.contains(rank))
    }

    pub(super) fn reap(&mut self) {
        // Of the start's it is said with what becomes of the job.
        let says = self.has_started() && self.node_status.abort.is_none();
        let is_aborted = self.node_status.abort.is_some();
        // Before anything is said, which may take a while: whose rank failed first is judged by it.
        let moment = self.met.elapsed().as_millis() as u64;
        for Reaped { ended, how, killed } in self.ranks.reap(&self.epoll) {
            let Ended { rank, status, .. } = ended;
            let is_lost = ended.is_lost();
            match killed {
                _ if self.plan.verbose || is_lost && says => {
                    let plain = || format!("rank {rank} ended with status {status}");
                    self.say(&killed.map_or_else(plain, |killed| killed.describe(rank)));
                }
                Some(killed) if !is_lost && killed.may_be_everybodys() => {
                    self.killed.push(killed.describe(rank));
                }
                Some(killed) if !is_lost && !is_aborted => self.say(&killed.describe(rank)),
                _ => {}
            }
            if ended.is_lost()
                && let Ok(link) = self.client.link()
            {
                // For Muster's own view, if the rank never attached.
                link.send_aborted(ended.rank, how, self.plan.layout.ranks());
            }
            if ended.status != 0 && self.node_status.failed.is_none() {
                self.node_status.failed = Some((moment, ended.status));
            }
            self.node_status.ended.push(ended);
        }
    }

    /// Says it of those that were killed by what may be sent to all, where the job was not.
    pub(super) fn tell_killed(&mut self) {
        for text in std::mem::take(&mut self.killed) {
            if self.node_status.abort.is_none() && !self.is_orphan {
                self.say(&text);
            }
        }
    }

    /// Whether MPI_Init is over, as far as a launcher can tell; once it is it stays so, whoever waits for whom.
    pub(super) fn has_started(&self) -> bool {
        let over = self.fences.delivered_of_all();
        self.node_status.started
            || over >= self.fences_of_init
            || over >= 1
                && self.waiting.is_empty()
                && !self.fences.is_awaited()
                && self.last_fence.elapsed() > self.init_quiet.unwrap_or(INIT_QUIET)
    }

    /// A rank or node that is lost before the end of MPI_Init takes the job with it. One launcher says so: the
    /// rank's, or the first that is left.
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
        // A slow rank may be silent for a while between two fences of MPI_Init. What was once taken for a loss to live
        // with is no failed launch later; who decides that are those who speak below, and the others follow them.
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
        self.judge_arrivals();
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

    /// Of several nodes the fences say who is late. Who has been at the PMIx server and puts nothing need not: a
    /// program of PMIx without MPI.
    fn judge_arrivals(&mut self) {
        let absent = self.ranks.absent();
        if let Some((late, waited_s)) = self.arrivals.late(absent, self.plan.patience) {
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
                "ranks {late} have not come to MPI_Init within {waited_s} s of others; --patience says how long to wait"
            );
            self.abort(1, &why);
        }
    }

    /// Whether ranks have ended, or nodes, for which MPI would wait in vain in its start: those that are judged.
    fn has_losses(&self) -> bool {
        self.ended().any(|ended| !ended.finalized) || !self.peers.gone().is_empty()
    }

    /// Whether a loss is still to be judged: until then nobody is to hear of it, and no fence goes on without the lost.
    /// Their launcher says that the launch has failed, or that the job had started.
    pub(super) fn is_in_doubt(&self) -> bool {
        !self.has_started() && self.has_losses()
    }

    /// Whether the last fence of MPI_Init was answered so lately that ranks may still be in it.
    pub(super) fn may_be_in_init(&self) -> bool {
        self.init_over
            .is_some_and(|since| since.elapsed() < INIT_TAIL)
    }

    /// Tells the own ranks of deaths, once each. Before that, fences are answered: what tells of a death may tell of
    /// the end of MPI_Init, too.
    pub(super) fn tell_deaths(&mut self, server: &Server) -> Result<(), Error> {
        if self.node_status.abort.is_some()
            || !self.ranks.any_connected()
            || self.is_in_doubt()
            || self.may_be_in_init()
        {
            return Ok(());
        }
        for rank in self.dead() {
            if self.told.insert(rank) {
                server.tell_death(rank)?;
                if self.plan.verbose {
                    self.say(&format!(
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
        // Nobody may be reading, and nobody has to wait for that.
        if !self.is_alone {
            let _ = self.ring();
        }
        self.say(why);
    }

    /// The same, where others say it.
    pub(super) fn abort_silently(&mut self, status: u8, why: &str) {
        if self.node_status.abort.is_none() {
            let why = why.chars().take(1000).collect();
            let by = self.own;
            self.node_status.abort = Some(Abort { status, why, by });
            self.end_ranks();
        }
    }

    /// Whoever read what the ranks say has left. As a rule several launchers see it.
    pub(super) fn abort_without_reader(&mut self) {
        match self.own {
            0 => self.abort(UNREAD, NO_READER),
            _ => self.abort_silently(UNREAD, NO_READER),
        }
    }

    /// All ranks have ended. Until whoever reads has taken what they have said, or takes no more; of a job that is to
    /// end he has as long as the ranks had.
    pub(super) fn await_readers(&mut self, outputs: Outputs, signals: &Signals) -> OutputEnd {
        let is_hurried = self.node_status.abort.is_some() || self.is_orphan;
        let patience = if is_hurried {
            (self.plan.grace, "--grace")
        } else {
            (self.plan.patience, "--patience")
        };
        if self.plan.verbose {
            self.say("what the ranks have said is waited for until it is read");
        }
        let is_echo = || {
            self.abort_since
                .is_some_and(|since| since.elapsed() <= ECHO)
        };
        outputs.finish(patience, signals.as_fd(), || {
            let come = signals.take();
            let mut ending = come
                .into_iter()
                .filter(|one| ![SIGUSR1, SIGUSR2].contains(one));
            ending.next().filter(|_| !is_echo())
        })
    }

    pub(super) fn end_ranks(&mut self) {
        // What was SIGTERM itself they have got.
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

    /// Whether another launcher has ended the job; then it ends here as well.
    pub(super) fn hear_abort(&mut self) -> bool {
        if self.node_status.abort.is_none() {
            let other = self
                .peers
                .node_statuses()
                .find_map(|(_, node_status)| node_status.abort.clone());
            if let Some(abort) = &other {
                if self.own == 0 && abort.why == NO_READER {
                    self.say(NO_READER);
                }
                self.node_status.abort = other;
                self.end_ranks();
            }
        }
        self.node_status.abort.is_some()
    }

    /// Without the agent. Where all processes of a node are asked to end, the agent may be the first that does: then
    /// the ranks have their time as ever, and the answer is the status of the job. None if nobody has asked.
    pub(super) fn end_alone(&mut self, signals: &Signals) -> Option<u8> {
        self.is_alone = true;
        let _ = readable(&[signals.as_fd()], Some(ECHO));
        self.take_signals(signals);
        let status = self.node_status.abort.as_ref()?.status;
        while !self.ranks.is_empty() && self.kill_at.is_some() {
            let _ = readable(&[signals.as_fd()], Some(TICK));
            self.take_signals(signals);
            self.ranks.look();
            self.reap();
            self.see_to_abort();
        }
        Some(status)
    }

    pub(super) fn see_to_abort(&mut self) {
        if self.kill_at.is_some_and(|at| Instant::now() >= at) {
            self.ranks.end(SIGKILL);
            self.kill_at = None;
        }
    }

    /// A rank sends a signal to others.
    pub(super) fn send(&mut self, signalling: Signalling) {
        let signal = Signal {
            serial: self.signal_count + 1,
            ranks: ranges(&signalling.ranks),
            signal: signalling.signal,
        };
        if size_of(&signal) > SIGNALS_SIZE {
            self.say(&format!(
                "a signal to {} ranks that are not beside each other takes too much; send it to all, or to \
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

    /// Those of other nodes, once each.
    pub(super) fn hear_signals(&mut self) {
        for (node, node_status) in self
            .peers
            .node_statuses()
            .filter(|(node, _)| *node != self.own)
        {
            let heard = self.signals_heard.entry(node).or_default();
            for one in node_status.signals.iter().filter(|one| one.serial > *heard) {
                self.ranks.signal_some(&one.ranks, one.signal);
            }
            *heard = node_status.signals.last().map_or(*heard, |one| one.serial);
        }
    }

    /// Without whoever started it a launcher ends its ranks, and no others: it may be the connection to this one node
    /// that is gone. If it is the starter itself, the others do the same.
    pub(super) fn check_stdin_control(&mut self) {
        if !stdin_control::is_cut() || self.is_orphan {
            return;
        }
        self.is_orphan = true;
        if self.node_status.abort.is_none() {
            self.say(&format!("{ORPHANED}; the ranks of this node are ended"));
            self.ranks.end(SIGHUP);
            self.ranks.end(SIGTERM);
            self.kill_at = Some(Instant::now() + self.plan.grace);
        }
    }

    /// Ranks of a step are not to get it twice: where Slurm sends it to all processes, it is not handed on.
    pub(super) fn take_signals(&mut self, signals: &Signals) {
        let have_it = self.plan.slurm.is_some_and(|slurm| slurm.signals_all);
        for signal in signals.take() {
            let now = Instant::now();
            if signal == SIGHUP && stdin_control::is_cut() {
                // It is how the loop was waked.
                continue;
            }
            if signal == SIGUSR1 || signal == SIGUSR2 {
                if !have_it {
                    self.ranks.signal(signal);
                }
                continue;
            } else if self.node_status.abort.is_none() {
                if have_it {
                    self.ranks.follow(signal);
                } else {
                    self.ranks.end(signal);
                }
                self.ranks_have_term |= signal == SIGTERM;
                let why = format!("{BY_SIGNAL} {signal}");
                // As a rule all launchers get it.
                match self.own {
                    0 => self.abort(128 + signal as u8, &why),
                    _ => self.abort_silently(128 + signal as u8, &why),
                }
            } else if self.first_asked().is_some_and(|since| now > since + ECHO) {
                // Somebody asks for the second time.
                if self.own == 0 && self.kill_at.is_some() {
                    self.say("asked to end once more; the ranks are killed");
                }
                self.kill_at = None;
                self.ranks.end(SIGKILL);
            }
            self.asked_since.get_or_insert(now);
        }
    }

    /// When the end was asked for. Another launcher's word of a signal may be here before the signal.
    fn first_asked(&self) -> Option<Instant> {
        let is_signal = |abort: &Abort| abort.why.starts_with(BY_SIGNAL);
        match &self.node_status.abort {
            Some(abort) if !is_signal(abort) => self.abort_since,
            _ => self.asked_since,
        }
    }
}

/// Numbers as ranges.
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

/// What a signal takes on the bell.
fn size_of(signal: &Signal) -> usize {
    let digits = |number: u32| number.checked_ilog10().unwrap_or(0) as usize + 1;
    let range = |(from, to): &(u32, u32)| digits(*from) + digits(*to) + 4;
    64 + signal.ranks.iter().map(range).sum::<usize>()
}

/// The bell has room for so many, and for so many ranks in them.
fn drop_oldest(signals: &mut Vec<Signal>) {
    let mut total: usize = signals.iter().map(size_of).sum();
    let mut old = 0;
    while signals.len() - old > SIGNALS_TOLD || total > SIGNALS_SIZE {
        total -= size_of(&signals[old]);
        old += 1;
    }
    signals.drain(..old);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// To ranks that are not beside each other.
    fn signal(serial: u64, ranks: u32) -> Signal {
        let ranks: Vec<u32> = (0..ranks).map(|rank| 10_000 + 2 * rank).collect();
        Signal {
            serial,
            ranks: ranges(&ranks),
            signal: 10,
        }
    }

    #[test]
    fn signals_to_few_are_bounded_by_their_number_and_to_many_by_their_size() {
        for (ranks, count, kept) in [(1, 100, SIGNALS_TOLD), (150, 64, 3), (500, 3, 1)] {
            let mut signals: Vec<Signal> = (0..count).map(|serial| signal(serial, ranks)).collect();
            drop_oldest(&mut signals);
            assert_eq!(signals.len(), kept, "{ranks}");
            assert_eq!(signals.last().map(|one| one.serial), Some(count - 1));
            let written = serde_json::to_vec(&signals).unwrap().len();
            assert!(written <= SIGNALS_SIZE, "{ranks}: {written}");
        }
    }

    #[test]
    fn ranks_beside_each_other_take_little_however_many_they_are() {
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
