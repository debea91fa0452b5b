//! MPI_Init, as far as a launcher can follow it: whether it is over, and losses before its end, which end the job.

use std::time::Duration;

use super::Core;
use super::node_status::Ended;
use super::signalling::ranges;

/// Fences in the MPI_Init of Open MPI 5, which has the most. A job that has passed that many has started.
pub(super) const FENCES_OF_INIT: u64 = 4;
/// The same of Open MPI 4.
pub(super) const FENCES_OF_OPEN_MPI_4: u64 = 2;
/// For other MPIs the number is unknown: MPI_Init is over after one fence and this long without another.
pub(super) const INIT_QUIET: Duration = Duration::from_secs(1);
/// The limit of [`INIT_QUIET`] where ranks are slow.
pub(super) const INIT_QUIET_MAX: Duration = Duration::from_secs(10);
/// After its last fence the MPI_Init of Open MPI 5 still chooses the collectives of MPI_COMM_WORLD. A rank that is
/// told of a death before that crashes, and the end of that phase is not visible. Therefore no rank is told of a
/// death for this long.
const INIT_TAIL: Duration = Duration::from_millis(500);

impl Core {
    /// Whether MPI_Init is over, as far as a launcher can tell. Once it is over, it stays so whichever ranks
    /// wait.
    pub(super) fn has_started(&self) -> bool {
        let over = self.fences.delivered_of_all();
        self.node_status.started
            || over >= self.fences_of_init
            || over >= 1
                && self.waiting.is_empty()
                && !self.fences.is_awaited()
                && self.since(self.last_fence) > self.init_quiet.unwrap_or(INIT_QUIET)
    }

    /// A rank or node that is lost before the end of MPI_Init ends the job. One launcher reports it: the rank's
    /// own, or the one of the lowest node that is left.
    pub(super) fn check_start(&mut self) {
        self.node_status.connected |= self.running.any_connected()
            || self.node_status.ended.iter().any(|ended| ended.connected);
        let any_connected =
            self.node_status.connected || self.view.any(|node_status| node_status.connected);
        let started = self.has_started();
        if !started {
            self.view.forget_failed();
        }
        // A slow rank may be silent for a while between two fences of MPI_Init. A loss that was once taken
        // for one after the start must not become a failed launch later. The launchers that report losses
        // below decide that, and the others follow them.
        let is_quiet = self.since(self.last_fence) > INIT_QUIET_MAX;
        self.node_status.started |= self.fences.delivered_of_all() >= self.fences_of_init
            || started && (is_quiet || self.has_losses())
            || self.view.any(|node_status| node_status.started);
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
        if let Some(node) = self.loss_to_report(|_| true) {
            let node = self.config.layout.name(node);
            let why = format!("the launch failed: {node} was lost before the end of MPI_Init");
            self.abort(1, &why);
        }
    }

    /// The first lost node of those that count, if it is this launcher that reports it: that of the lowest node
    /// that is left.
    pub(super) fn loss_to_report(&self, counts: impl Fn(usize) -> bool) -> Option<usize> {
        let (own, gone) = (self.config.own, self.view.gone());
        let is_first = (0..own).all(|node| gone.contains(&node));
        let lost = gone.iter().copied().find(|node| counts(*node));
        lost.filter(|_| is_first)
    }

    /// Ends the job if ranks are late in MPI_Init; with several nodes the fences show that. A rank that has
    /// connected to the PMIx server and puts nothing is not late: it runs a PMIx program without MPI.
    fn check_arrivals(&mut self) {
        let absent = self.running.absent();
        let late = self.arrivals.late(absent, self.config.timeout, self.now);
        if let Some((late, waited_s)) = late {
            let one = |(from, to): &(u32, u32)| match from == to {
                true => from.to_string(),
                false => format!("{from}-{to}"),
            };
            let late: Vec<String> = ranges(&late).iter().map(one).collect();
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
        self.ended().any(|ended| !ended.finalized) || !self.view.gone().is_empty()
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
            .is_some_and(|over| self.since(over) < INIT_TAIL)
    }
}
