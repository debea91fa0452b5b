//! What the loss of a rank or node does to the job (run-4): the job goes on if its MPI is fault tolerant, and ends
//! if its MPI would wait for the lost rank for ever.

use std::time::Duration;

use super::init::FENCES_OF_OPEN_MPI_4;
use super::messages::{Answer, RequestId};
use super::mpi::{Mpi, OnLoss};
use super::{Core, push_within};
use crate::layout::RANKS_OF_NODE_MAX;

/// The status of a job that ends because a node was lost.
const NODE_LOST: u8 = 137;
/// How long an abort waits for the report of a lost rank or node: the loss may have closed the connection for which
/// MPI aborts. The aborting rank waits as long, so that nothing follows from the abort meanwhile.
const CAUSE_WAIT: Duration = Duration::from_millis(300);

/// An abort of the job that ranks of this node have requested.
#[derive(Debug)]
pub(super) struct Aborting {
    /// When it takes effect.
    until: Duration,
    status: u8,
    why: String,
    /// The ranks that have called for it.
    waiting: Vec<RequestId>,
}

impl Core {
    /// Returns why a loss ends the job, if it does. If no rank has connected to PMIx, no rank waits for another
    /// there.
    fn why_losses_end(&self) -> Option<&'static str> {
        match (self.config.on_loss, self.mpi) {
            (Some(OnLoss::Continue), _) | (None, None | Some(Mpi::Tolerant)) => None,
            (Some(OnLoss::Abort), _) => Some("--on-loss=abort"),
            (None, Some(mpi)) => Some(mpi.description()),
        }
    }

    /// A rank has connected to PMIx, and this MPI was found in it if that is new. Prints the effect of a loss if
    /// --verbose.
    pub(super) fn connect(&mut self, rank: u32, mpi: Option<Mpi>) {
        if let Some(connections) = self.running.of(rank) {
            connections.connect();
        }
        let Some(mpi) = mpi else {
            return;
        };
        self.mpi = Some(mpi);
        if mpi == Mpi::OpenMpi4 {
            self.fences_of_init = FENCES_OF_OPEN_MPI_4;
        }
        if self.config.verbose {
            let why = self.why_losses_end();
            let effect = why.map_or("does not end", |_| "ends");
            let why = match self.config.on_loss {
                Some(OnLoss::Continue) => "--on-loss=continue",
                _ => why.unwrap_or_else(|| mpi.description()),
            };
            self.print(format!(
                "the loss of a rank or node {effect} the job, since {why}"
            ));
        }
    }

    /// A rank has called PMIx_Abort. If losses end the job, its MPI may have called it because of a loss.
    pub(super) fn take_abort(&mut self, rank: u32, status: i32, message: &str, request: RequestId) {
        let status = ((status & 0xff) as u8).max(1);
        let why = format!("rank {rank} on {} aborted the job: {message}", self.name());
        let why = why.trim_end_matches([':', ' ', '\n']);
        if self.node_status.abort.is_some() || self.why_losses_end().is_none() {
            self.answer(request, Answer::Done);
            return self.abort(status, why);
        }
        let aborting = self.aborting.get_or_insert_with(|| Aborting {
            until: self.now + CAUSE_WAIT,
            status,
            why: why.into(),
            waiting: Vec::new(),
        });
        let most = RANKS_OF_NODE_MAX as usize;
        if let Err(request) = push_within(&mut aborting.waiting, request, most) {
            self.answer(request, Answer::Done);
        }
    }

    /// Carries out a requested abort when it is due, unless something else has ended the job.
    pub(super) fn abort_when_due(&mut self) {
        let is_over = self.node_status.abort.is_some();
        let due = |one: &mut Aborting| is_over || one.until <= self.now;
        if let Some(one) = self.aborting.take_if(due) {
            for request in one.waiting {
                self.answer(request, Answer::Done);
            }
            self.abort(one.status, &one.why);
        }
    }

    /// Ends a job that cannot survive its losses. The loss of a rank is reported by its launcher, that of a
    /// node by the lowest node that is left.
    pub(super) fn check_losses(&mut self) {
        let Some(why) = self.why_losses_end() else {
            return;
        };
        if self.node_status.abort.is_some() || self.is_orphan {
            return;
        }
        // No rank waits for one that never entered MPI. With --on-loss it counts as a loss if its status is
        // not 0.
        let all = self.config.on_loss.is_some();
        let mut ended = self.node_status.ended.iter();
        let lost = ended.find(|one| one.is_lost() || all && !one.connected && one.status != 0);
        if let Some(lost) = lost {
            let (rank, status) = (lost.rank, lost.status);
            let why = format!(
                "the job is ended, since rank {rank} on {} ended with status {status} without MPI_Finalize and {why}; \
                 --on-loss=continue lets the others go on",
                self.name()
            );
            return self.abort(status.max(1), &why);
        }
        if let Some(node) = self.loss_to_report(|node| !self.was_done(node)) {
            let node = self.config.layout.name(node);
            let why = format!(
                "the job is ended, since {node} was lost and {why}; --on-loss=continue lets the others go on"
            );
            self.abort(NODE_LOST, &why);
        }
    }
}
