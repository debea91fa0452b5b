//! The side door, from the loop's side: questions answered and changes made, between two turns.
//!
//! A change is a step from one document to the next, put in force as a whole or not at all; then
//! everybody who must know is told: the loop's own descriptors, the other members (the node's address
//! has changed with its rails), the ranks, and the worker after this one.

use super::host::{Host, TOKEN_RAILS, instant};
use crate::config::{Change, RailsDocument, SEEDS_MAX};
use crate::control::{Control, Question, Request, Sources, answer, done};
use crate::sys::clock::monotonic_ns;
use muster_fabric::{Nid, NidList, PeerHandle, Transport};
use muster_protocol::{Input, MemberId, Target};
use serde_json::Value;
use std::io::ErrorKind;
use tracing::{error, info};

impl Host {
    pub(super) fn answer_requests(&mut self) {
        while let Some(pending) = self.control.as_ref().and_then(Control::take) {
            let value = match &pending.request {
                Request::Ask(question) => self.answer_question(question),
                Request::Change(change) => done(self.change(change)),
                Request::Zero => {
                    self.fabric.zero_stats();
                    done(Ok("the figures of rails and peers begin at zero".into()))
                }
            };
            // Who asked may have lost patience.
            let _ = pending.reply.send(value);
        }
    }

    fn answer_question(&mut self, question: &Question) -> Value {
        if let Question::Explain { to, .. } = question {
            // A member that nothing was sent to so far has no paths yet.
            let _ = self.peer_of(Target::Member(MemberId::of(to)));
        }
        let counters: Vec<_> = self.counters().collect();
        let known = Sources {
            engine: &self.engine,
            fabric: &self.fabric,
            document: self.rails.document(),
            agent: &counters,
            now: instant(monotonic_ns()),
        };
        answer(question, &known)
    }

    /// Makes a change, and says what has become of it.
    fn change(&mut self, change: &Change) -> Result<String, String> {
        let before = self.rails.document().clone();
        let next = change.onto(&before, self.rails.open());
        let next = next.map_err(|error| error.to_string())?;
        let most = SEEDS_MAX.saturating_sub(self.seeds);
        if next.peers.len() > most {
            return Err(format!(
                "{} peers would be configured; beside its seeds this agent has room for {most}, and \
                 finds the others by itself",
                next.peers.len()
            ));
        }
        let opened = self.rails.open().to_vec();
        let mtu_least = self.buffer.len();
        let moved = match self.rails.apply(&mut self.fabric, next, mtu_least) {
            Ok(moved) => moved,
            Err(refusal) => {
                if refusal.moved {
                    self.tell_of_rails();
                    self.leave_to_next();
                }
                return Err(refusal.why);
            }
        };
        self.knock_at_peers(&before);
        if moved {
            self.tell_of_rails();
        } else if self.rails.document().relay && !before.relay {
            self.outbox.rails_changed();
        }
        self.leave_to_next();
        info!(%change, "an administrator has changed the configuration of the rails");
        let new = |nid: &&Nid| !opened.contains(nid);
        let new: Vec<String> = self
            .rails
            .open()
            .iter()
            .filter(new)
            .map(ToString::to_string)
            .collect();
        Ok(match new.is_empty() {
            true => format!("{change}: done"),
            false => format!("{change}: done, {} is open", new.join(", ")),
        })
    }

    /// What a worker after this one opens.
    fn leave_to_next(&mut self) {
        if let Some(job) = &mut self.job {
            let address = self.fabric.local_nids().to_string();
            job.set_rails(&address, self.rails.document(), self.rails.open());
        }
    }

    /// Knocks at peers that are new in the document, and no more at those that are gone from it.
    fn knock_at_peers(&mut self, before: &RailsDocument) {
        let after = self.rails.document().peers.clone();
        let lacks = |list: &[NidList], peer: &NidList| !list.contains(peer);
        for peer in before.peers.iter().filter(|peer| lacks(&after, peer)) {
            let address = peer.to_string().into_bytes();
            self.input(Input::Unseed { address: &address });
            let is_member = self
                .engine
                .members()
                .any(|member| member.address() == address);
            if !is_member {
                self.outbox.release(&mut self.fabric, &address);
            }
        }
        for peer in after.iter().filter(|peer| lacks(&before.peers, peer)) {
            let address = peer.to_string().into_bytes();
            self.input(Input::Seed { address: &address });
        }
    }

    /// Rails were opened or closed.
    fn tell_of_rails(&mut self) {
        for fd in self.fabric.wait_fds() {
            match self.epoll.add_edge(fd, TOKEN_RAILS) {
                Err(cause) if cause.kind() != ErrorKind::AlreadyExists => {
                    error!(%cause, "a rail cannot be waited for; it is read with the heartbeats");
                }
                _ => {}
            }
        }
        self.rails_are_new = true;
        self.outbox.rails_changed();
        let watched: Vec<PeerHandle> = self.watched.keys().copied().collect();
        watched
            .into_iter()
            .for_each(|peer| self.fabric.unwatch(peer));
        self.forget_silences();
        let rails = self.fabric.rails();
        let is_open =
            |rail, nid: &Nid| rails.iter().any(|one| (one.index, &one.nid) == (rail, nid));
        self.status.keep(is_open);
        self.judge_rails(self.engine.id());
        let address = self.fabric.local_nids().to_string();
        self.input(Input::Address(address.as_bytes()));
    }
}
