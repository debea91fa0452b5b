//! Requests at the control socket. The event loop answers them between two rounds.

use super::{EventLoop, gossip, instant};
use crate::rank_service::RankService;
use crate::slice::Slice;
use muster_control::{Control, Made, Pending, Question, Request, Sources, Validated, answer, done};
use muster_fabric::Transport;
use muster_protocol::MemberId;
use muster_sys::clock::monotonic_ns;
use serde_json::Value;

impl EventLoop {
    /// Serves one request, and further ones while there is time.
    pub(super) fn answer_requests(&mut self, slice: &Slice) {
        for served in 0.. {
            if served > 0 && slice.is_over() {
                self.admin_endpoint
                    .control
                    .iter()
                    .for_each(Control::look_again);
                return;
            }
            let Some(pending) = self.admin_endpoint.control.as_ref().and_then(Control::take) else {
                return;
            };
            let Pending {
                request,
                validated,
                reply,
                ..
            } = pending;
            let made = self.current_result(validated);
            let value = match request {
                Request::Ask(question) => self.answer_question(&question),
                Request::Change(change) => {
                    self.begin_change(change, made, reply);
                    continue;
                }
                Request::Gossip(command) => done(made.and_then(|made| self.gossip(&command, made))),
                Request::Zero => {
                    self.fabric.zero_stats();
                    done(Ok("the counters of rails and peers are zero again".into()))
                }
                // The server thread has forwarded it to the journal.
                Request::Events { .. } => continue,
            };
            reply.send(value);
        }
    }

    /// The result of a validation, if the validation used the configuration that is in effect.
    fn current_result(&self, validated: Option<Validated>) -> Result<Option<Made>, String> {
        let Some(validated) = validated else {
            return Ok(None);
        };
        let control = self.admin_endpoint.control.as_ref();
        match control.is_some_and(|control| control.is_current(&validated)) {
            true => Ok(Some(validated.made)),
            false => Err(
                "the configuration was changed by another request at the same time; retry".into(),
            ),
        }
    }

    /// Publishes the configuration in effect to the control threads.
    pub(super) fn publish_config(&self) {
        if let Some(control) = &self.admin_endpoint.control {
            let gossips_at = self.tree.base().age().map(|_| self.fabric.local_nids());
            control.publish_config(self.rails.document(), self.rails.open(), gossips_at);
        }
    }

    fn answer_question(&mut self, question: &Question) -> Value {
        if let Question::Explain { to, .. } = question {
            // Nothing may have been sent to this member so far: it has no paths until it is resolved.
            let _ = self.peer_of(MemberId::of(to));
        }
        match question {
            Question::About => {
                return self
                    .admin_endpoint
                    .about(self.job.as_ref().map(RankService::table).as_ref());
            }
            Question::Config => return self.admin_endpoint.settings(),
            Question::Gossip => return gossip::status(self.tree.base()),
            _ => {}
        }
        let counters: Vec<_> = self.counters().collect();
        let rail_retry = self.rails.rail_retry().iter();
        let rail_retry: Vec<_> = rail_retry
            .map(|one| (one.nid.clone(), one.reason.clone()))
            .collect();
        let now = instant(monotonic_ns());
        let known = Sources {
            tree: &self.tree,
            fabric: &self.fabric,
            document: self.rails.document(),
            rail_retry: &rail_retry,
            choice: &self.rails.choice(),
            agent: &counters,
            unauthenticated: &self.unauthenticated.current(now.0, self.tree.base()),
            node: self.admin_endpoint.node(),
            job: self.admin_endpoint.job(),
            now,
        };
        answer(question, &known)
    }
}
