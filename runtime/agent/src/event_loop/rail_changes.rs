//! Changes of the rails: those of operators, and rails that are opened again.
//!
//! A change is a step from one rails document to the next. A control thread has validated it. It takes effect as a
//! whole or not at all. The loop then informs all that depend on it: its own set of descriptors, the other members
//! (the node's address changes with its rails), the ranks, and the inherited state for the next worker.

use super::{EventLoop, TOKEN_RAILS};
use crate::pending_change::PendingChange;
use crate::rails::{Opened, nid_of};
use muster_config::{Change, RailsDocument, SEEDS_MAX};
use muster_control::{Made, Reply, done};
use muster_fabric::{HealthState, Nid, NidList, PeerHandle, Transport};
use muster_protocol::Input;
use muster_sys::clock::monotonic_ns;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use tracing::{error, info};

/// Appended to the answer when time-outs are changed.
const BIND_NOTHING: &str = "; only the transport time-out has an effect: this agent sends no bulk messages, and the \
                            other time-outs are theirs";

impl EventLoop {
    /// Makes a change. If rails are to be opened, only begins it: providers may block while they open a rail, and the
    /// loop must not.
    pub(super) fn begin_change(
        &mut self,
        change: Change,
        made: Result<Option<Made>, String>,
        reply: Reply,
    ) {
        let next = match (&self.admin_endpoint.pending_change, made) {
            (Some(pending), _) => Err(format!(
                "another change is being made ({}) and its rails are being opened; retry when muster rails \
                 shows them",
                pending.change
            )),
            (None, Ok(Some(Made::Document(next)))) => Ok(next),
            (None, Ok(_)) => Err(format!("{change}: it was not validated; retry")),
            (None, Err(why)) => Err(why),
        };
        let since_us = monotonic_ns() / 1000;
        let next = next.and_then(|next| {
            self.has_room_for(&next)?;
            Ok((
                self.rails.start_opening(since_us, &self.fabric, &next),
                next,
            ))
        });
        let value = match next {
            Err(why) => done(Err(why)),
            Ok((opening, next)) if opening.is_empty() => {
                done(self.change(&change, next, Vec::new()))
            }
            Ok((opening, next)) => {
                self.admin_endpoint.pending_change =
                    Some(PendingChange::new(since_us, change, next, reply, opening));
                return;
            }
        };
        reply.send(value);
    }

    /// Checks that the engine has room for the peers of a document.
    fn has_room_for(&self, next: &RailsDocument) -> Result<(), String> {
        let before = &self.rails.document().peers;
        if next.peers.len() <= before.len() {
            return Ok(());
        }
        let peers: BTreeSet<Vec<u8>> = addresses(before).collect();
        let most = room_for_peers(&peers, self.tree.base().seeds());
        match next.peers.len() <= most {
            true => Ok(()),
            false => Err(format!(
                "{} peers would be configured; besides its seeds this agent has room for {most}, and \
                 finds the other members itself",
                next.peers.len()
            )),
        }
    }

    /// Makes the pending change, once each of its rails is open or has failed to open.
    pub(super) fn continue_change(&mut self) {
        let now_us = monotonic_ns() / 1000;
        let ended = |pending: &mut PendingChange| pending.poll(now_us);
        let Some(pending) = self.admin_endpoint.pending_change.take_if(ended) else {
            return;
        };
        self.timing.worked = true;
        let result = self.change(&pending.change, pending.next, pending.opened);
        match (pending.reply, result) {
            (Some(reply), result) => reply.send(done(result)),
            (None, Ok(_)) => {}
            (None, Err(why)) => {
                error!(change = %pending.change, why, "the change of the rails could not be made");
            }
        }
    }

    /// Makes a change with the rails that were opened for it, and returns its result as text.
    fn change(
        &mut self,
        change: &Change,
        next: RailsDocument,
        ready: Vec<Opened>,
    ) -> Result<String, String> {
        let before = self.rails.document().clone();
        let opened = self.rails.open().to_vec();
        let mtu_least = self.poller.buffer.len();
        let changed = match self.rails.apply(&mut self.fabric, next, mtu_least, ready) {
            Ok(changed) => changed,
            Err(refusal) => {
                if refusal.changed {
                    self.handle_changed_rails();
                    self.publish_document();
                }
                return Err(refusal.why);
            }
        };
        self.update_seeds(&before);
        if changed {
            self.handle_changed_rails();
        } else if self.rails.document().relay && !before.relay {
            self.peers.rails_changed();
        }
        self.publish_document();
        info!(%change, "an administrator has changed the configuration of the rails");
        let new = |nid: &&Nid| !opened.contains(nid);
        let new: Vec<String> = self
            .rails
            .open()
            .iter()
            .filter(new)
            .map(ToString::to_string)
            .collect();
        let mut done = match new.is_empty() {
            true => format!("{change}: done"),
            false => format!("{change}: done, {} is open", new.join(", ")),
        };
        if self.rails.document().timeouts != before.timeouts {
            done += BIND_NOTHING;
        }
        let placed = |document: &RailsDocument| -> Vec<Vec<u32>> {
            let rails = document.rails.iter();
            rails.map(|rail| rail.partitions.clone()).collect()
        };
        if placed(self.rails.document()) != placed(&before)
            && let Some(text) = self.rails.unknown_partitions()
        {
            done += &format!("; {text}");
        }
        if let Some(idle) = self.rails.unused_rules(&self.fabric, &before) {
            done += &format!("; {idle}");
        }
        let order = self.fabric.local_nids();
        if matches!(change, Change::Replace(_)) && !self.rails.open().iter().eq(order.iter()) {
            done += &format!(
                "; the rails keep the order in which they were opened, {order}, until the agent is restarted"
            );
        }
        Ok(done)
    }

    /// Opens a rail again that stays broken for this reason. The only rail of a node cannot be closed while the agent
    /// runs: another worker takes over and opens it.
    pub(super) fn renew_rail(&mut self, rail: usize, reason: &str) {
        let Some(nid) = nid_of(&self.fabric, rail) else {
            return;
        };
        match self.rails.renew(&mut self.fabric, &nid, reason) {
            Ok(()) => {
                info!(rail = %nid, reason, "this rail stays broken: it is closed and opened again");
                // It does not work, so the node stays degraded.
                self.note_missing();
                self.handle_changed_rails();
            }
            Err(_) => {
                error!(
                    rail = %nid, reason,
                    "the only rail may stay broken: a new worker opens it; an agent in the foreground has to be \
                     restarted if members stay unreachable"
                );
                self.lifetime.wants_renewal = true;
            }
        }
    }

    /// Retries rails of the plan that could not be opened again. A missing rail is reported as failed.
    pub(super) fn reopen_rails(&mut self) {
        let now_us = monotonic_ns() / 1000;
        if self.rails.due_us().is_some_and(|due_us| due_us <= now_us) {
            self.timing.worked = true;
            if self
                .rails
                .reopen(now_us, &mut self.fabric, self.poller.buffer.len())
            {
                self.handle_changed_rails();
                self.publish_document();
            }
        }
        if self.note_missing() {
            self.check_rails(self.tree.base().id());
        }
    }

    /// Reports rails that are not open as failing. Returns whether they are others than before.
    fn note_missing(&mut self) -> bool {
        let missing = self.rails.rail_retry().iter().map(|one| &one.nid);
        self.monitor.status.set_missing(missing)
    }

    /// Publishes the configuration to the control threads' validator, and stores it for the worker after this one.
    fn publish_document(&mut self) {
        self.publish_config();
        let digest = self.rails.document().common_digest();
        self.monitor.status.set_policy(digest);
        if let Some(job) = &mut self.job {
            let address = self.fabric.local_nids().to_string();
            job.set_rails(&address, self.rails.document(), self.rails.open());
        }
    }

    /// Sends joins to peers that are new in the document, and stops sending them to peers that were removed from it.
    fn update_seeds(&mut self, before: &RailsDocument) {
        let after = self.rails.document().peers.clone();
        let set = |peers: &'_ [NidList]| -> BTreeSet<NidList> { peers.iter().cloned().collect() };
        let (known, kept) = (set(&before.peers), set(&after));
        for peer in before.peers.iter().filter(|peer| !kept.contains(peer)) {
            let address = peer.to_string().into_bytes();
            self.input(Input::Unseed { address: &address });
            let is_member = self
                .tree
                .base()
                .members()
                .any(|member| member.address() == address);
            if !is_member {
                self.peers.release(&mut self.fabric, &address);
            }
        }
        for peer in after.iter().filter(|peer| !known.contains(peer)) {
            let address = peer.to_string().into_bytes();
            self.input(Input::Seed { address: &address });
        }
    }

    /// Informs the loop, the peers and the other members that rails were opened or closed.
    fn handle_changed_rails(&mut self) {
        for fd in self.fabric.wait_fds() {
            match self.poller.epoll.add_edge(fd, TOKEN_RAILS) {
                Err(cause) if cause.kind() != ErrorKind::AlreadyExists => {
                    error!(%cause, "epoll refuses a rail's descriptor; the rail is read once a heartbeat instead");
                }
                _ => {}
            }
        }
        self.monitor.rails_are_new = true;
        self.peers.rails_changed();
        let watched: Vec<PeerHandle> = self.monitor.watched.keys().copied().collect();
        watched
            .into_iter()
            .for_each(|peer| self.fabric.unwatch(peer));
        self.forget_silences();
        let rails = self.fabric.rails();
        // A rail that was closed and opened again has no known fault.
        let may_fail = |rail, nid: &Nid| {
            let same = rails
                .iter()
                .find(|one| (one.index, &one.nid) == (rail, nid));
            same.is_some_and(|one| one.state != HealthState::Active)
        };
        self.monitor.status.retain(may_fail);
        self.check_rails(self.tree.base().id());
        let address = self.fabric.local_nids().to_string();
        self.input(Input::Address(address.as_bytes()));
    }
}

fn addresses(peers: &[NidList]) -> impl Iterator<Item = Vec<u8>> {
    peers.iter().map(|peer| peer.to_string().into_bytes())
}

/// The number of peers that may be configured. The engine also sends joins to seeds of the command line and to seeds
/// that ranks supplied.
fn room_for_peers<'a>(peers: &BTreeSet<Vec<u8>>, seeds: impl Iterator<Item = &'a [u8]>) -> usize {
    let others = seeds.filter(|seed| !peers.contains(*seed));
    SEEDS_MAX.saturating_sub(others.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_of_ranks_leave_less_room_for_peers() {
        let peers = BTreeSet::from([b"a".to_vec(), b"b".to_vec()]);
        let seeds =
            |texts: &[&'static str]| texts.iter().map(|one| one.as_bytes()).collect::<Vec<_>>();
        let room = |texts: &[&'static str]| room_for_peers(&peers, seeds(texts).into_iter());
        assert_eq!(room(&["a", "b"]), SEEDS_MAX);
        assert_eq!(room(&["a", "of a rank", "b", "of another"]), SEEDS_MAX - 2);
    }
}
