//! Fault injection: a wrapper that drops, delays, duplicates, reorders and corrupts messages, cuts rails and
//! limits their bandwidth.
//!
//! [`Faulty`] wraps any transport. Received messages pass through the plan before the host gets them. Sent
//! messages are only subject to cuts and limits, so random faults apply once to a message between two wrapped
//! hosts, at its receiver. The same seed, plan and arrivals give the same deliveries. A sender gets no error
//! from a fault, as on a real network; only a rail over its limit is busy.

mod faults;
mod plan;

pub use plan::{Cut, Direction, FaultCounters, FaultPlan};

use crate::error::PeerError;
use crate::message::{Arrival, Class, Relayed, Route};
use crate::peer_handle::PeerHandle;
use crate::select::{Choice, Selection, Tried};
use crate::stats::DropReason;
use crate::transport::{FabricEvent, Transport};
use crate::view::{PathView, RailView, Why};
use faults::Faults;
use muster_provider::NidList;
use muster_rail_health::Pace;
use std::os::fd::BorrowedFd;

/// A transport with injected faults.
#[derive(Debug)]
pub struct Faulty<T> {
    inner: T,
    faults: Faults,
}

impl<T: Transport> Faulty<T> {
    /// Wraps a transport.
    pub fn new(mut inner: T, plan: FaultPlan) -> Faulty<T> {
        inner.limit_bulk(plan.rail_bytes_per_s);
        Faulty {
            inner,
            faults: Faults::new(plan),
        }
    }

    /// The plan, which may be changed between two calls. A new seed has no effect.
    pub fn plan_mut(&mut self) -> &mut FaultPlan {
        &mut self.faults.plan
    }

    /// The number of faults injected so far.
    #[must_use]
    pub fn fault_counters(&self) -> FaultCounters {
        self.faults.counters
    }

    /// The wrapped transport.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// The wrapped transport, which may be changed between two calls.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    fn release(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) {
        while let Some(held) = self.faults.release(now_us) {
            deliver(Arrival {
                rail: held.rail,
                bytes: &held.bytes,
                relayed: held.relayed,
            });
        }
    }
}

impl<T: Transport> Transport for Faulty<T> {
    fn local_nids(&self) -> NidList {
        self.inner.local_nids()
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn rails(&self) -> Vec<RailView> {
        self.inner.rails()
    }

    fn rail_count(&self) -> usize {
        self.inner.rail_count()
    }

    fn paths(&self, peer: PeerHandle) -> Vec<PathView> {
        self.inner.paths(peer)
    }

    fn peer(&mut self, nids: &NidList) -> Result<PeerHandle, PeerError> {
        self.inner.peer(nids)
    }

    fn forget(&mut self, peer: PeerHandle) {
        self.inner.forget(peer);
    }

    fn renew(&mut self, peer: PeerHandle, nids: &NidList) -> Result<(), PeerError> {
        self.inner.renew(peer, nids)
    }

    fn nids(&self, peer: PeerHandle) -> Option<NidList> {
        self.inner.nids(peer)
    }

    fn select(&mut self, now_us: u64, peer: PeerHandle, route: Route, tried: &Tried) -> Selection {
        self.inner.select(now_us, peer, route, tried)
    }

    fn rail_of(&self, peer: PeerHandle, path: usize) -> Option<usize> {
        self.inner.rail_of(peer, path)
    }

    fn why(&self, peer: PeerHandle) -> Why {
        self.inner.why(peer)
    }

    fn post(
        &mut self,
        now_us: u64,
        peer: PeerHandle,
        path: usize,
        class: Class,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        if !self.faults.plan.cuts.is_empty() {
            let rail = self.inner.rail_of(peer, path);
            let cut = |rail| self.faults.plan.is_cut(now_us, rail, Direction::Out);
            if rail.is_some_and(cut) {
                self.faults.counters.cut += 1;
                return Ok(());
            }
        }
        let rail = self.inner.rail_of(peer, path).unwrap_or(0);
        if !self.faults.takes(now_us, rail, bytes.len()) {
            return Err(DropReason::RailBusy);
        }
        self.inner.post(now_us, peer, path, class, bytes)
    }

    /// Sends through carriers, whose own rails and cuts apply. The wrapped transport chooses the local rail, so
    /// a message is cut only if all local rails are cut.
    fn relay(&mut self, now_us: u64, peer: PeerHandle, class: Class, bytes: &[u8]) -> u8 {
        let plan = &self.faults.plan;
        let cut = |rail: &RailView| plan.is_cut(now_us, rail.index, Direction::Out);
        if !plan.cuts.is_empty() && self.inner.rails().iter().all(cut) {
            self.faults.counters.cut += 1;
            return 0;
        }
        self.inner.relay(now_us, peer, class, bytes)
    }

    fn poll(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool {
        let faults = &mut self.faults;
        self.inner.limit_bulk(faults.plan.rail_bytes_per_s);
        let more = self
            .inner
            .poll(now_us, &mut |arrival| faults.admit(now_us, arrival));
        self.release(now_us, deliver);
        more
    }

    fn poll_beats(&mut self, now_us: u64, deliver: &mut dyn FnMut(Arrival<'_>)) -> bool {
        let faults = &mut self.faults;
        let more = self
            .inner
            .poll_beats(now_us, &mut |arrival| faults.admit(now_us, arrival));
        self.release(now_us, deliver);
        more
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.wait_fds()
    }

    fn limit_bulk(&mut self, bytes_per_s: u64) {
        self.inner.limit_bulk(bytes_per_s);
    }

    fn may_sleep(&mut self) -> bool {
        self.inner.may_sleep()
    }

    fn next_timeout(&self) -> Option<u64> {
        let held = self.faults.next_timeout();
        held.into_iter().chain(self.inner.next_timeout()).min()
    }

    fn moved(&mut self, peer: PeerHandle, from: Choice, to: Choice) {
        self.inner.moved(peer, from, to);
    }

    fn heard(&mut self, now_us: u64, peer: PeerHandle, rail: usize) {
        self.inner.heard(now_us, peer, rail);
    }

    fn heard_through(&mut self, now_us: u64, peer: PeerHandle, relayed: Relayed) {
        self.inner.heard_through(now_us, peer, relayed);
    }

    fn watch(&mut self, now_us: u64, peer: PeerHandle, pace: Pace) {
        self.inner.watch(now_us, peer, pace);
    }

    fn unwatch(&mut self, peer: PeerHandle) {
        self.inner.unwatch(peer);
    }

    fn poll_event(&mut self) -> Option<FabricEvent> {
        self.inner.poll_event()
    }
}
