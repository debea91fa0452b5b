//! Link handshake: requests, replies, base views, and the digests in beats.
//!
//! A request states all roles that its sender wants from now on, a reply all roles that it gets. Either may
//! be reordered: the last request counts, and a reply counts only if it answers the present request.

use crate::identity::MemberId;
use crate::interface::Route;
use crate::link::Link;
use crate::overlay::Overlay;
use crate::overlay::outbox::Intent;
use crate::planted::{self, Fault};
use crate::state::NodeState;
use crate::subjects::Subject;
use crate::wire::{ROLE_NEIGHBOUR, ROLE_OBSERVE};

/// Most links of one member; further requests to be a neighbour are declined.
const LINKS_MAX: usize = 64;
/// Most links made by requests of any kind. In the boot of a zone its first member is observed by most of
/// the others; a member that is declined asks again, and probes.
pub(super) const REQUESTED_MAX: usize = 1024;
/// Beats in a row with another digest before a base view is exchanged again.
const MISMATCHES_MAX: u32 = 3;
/// How long the hints of a base view wait at least, in microseconds, on the side with the lower id; longer
/// if acknowledgements take longer. The other side waits twice as long and has little left to name. Most
/// links do not last while a zone boots.
const VIEW_PAUSE_US: u64 = 2_000;
/// Heartbeats between two repairs of one link.
const REPAIR_BEATS: u64 = 16;

impl Overlay {
    pub(super) fn take_beat(&mut self, from: MemberId, digest: u64) {
        let (now, same) = (self.now, digest == self.view_digest());
        let repairs = self.rules.repairs;
        if same && repairs {
            // The digest covers the view: facts about its members need not be sent.
            let table = &self.table;
            let has_facts = self.links.get(&from).is_some_and(|link| !link.is_idle());
            if has_facts && let Some(link) = self.links.get_mut(&from) {
                link.unmark_all(|subject| match subject {
                    Subject::Node(id) | Subject::Rank(id, _) => table
                        .in_view(id)
                        .is_some_and(|member| member.state != NodeState::Suspect),
                    Subject::Record(_) => true,
                    Subject::Suspicion { .. } | Subject::Map(_) => false,
                });
            }
        }
        let repair_us = REPAIR_BEATS * self.config.heartbeat_us;
        let mutual = self.rules.watches_neighbours;
        let link = self.links.get_unfiled(&from);
        let Some(link) = link.filter(|link| link.watches(mutual)) else {
            // The sender believes that it is watched: send it the wanted roles.
            self.enqueue(Intent::Link {
                to: from,
                asked: None,
                route: Route::Next,
            });
            return;
        };
        if same || !repairs || !link.is_idle() || planted::on(Fault::NoRepair) {
            link.mismatches = 0;
            return;
        }
        link.mismatches += 1;
        if link.mismatches > MISMATCHES_MAX && now >= link.repair_at {
            link.mismatches = 0;
            link.repair_at = now.after(repair_us);
            self.counters.repairs += 1;
            if let Some(link) = self.links.get_mut(&from) {
                (link.want_view, link.request_at) = (true, now);
            }
            self.give_base_view(from, false);
        }
    }

    /// Whether this is the newest request of `from`; requests may be reordered.
    pub(super) fn is_latest_request(&mut self, from: MemberId, sequence: u64) -> bool {
        let mut latest = false;
        self.table.note(from, |member| {
            latest = sequence > member.asked_sequence;
            member.asked_sequence = member.asked_sequence.max(sequence);
        });
        latest
    }

    pub(super) fn take_request(&mut self, from: MemberId, roles: u8, want_view: bool, digest: u64) {
        let was_chosen = self.links.get(&from).is_some_and(Link::is_neighbour);
        let crowded = self.links.len() >= LINKS_MAX || self.degree() >= self.degree_max();
        let is_new = !self.links.contains_key(&from);
        if is_new && roles == 0 {
            return;
        }
        if is_new && self.links.len() >= REQUESTED_MAX {
            self.counters.links_refused += 1;
            return self.enqueue(Intent::Link {
                to: from,
                asked: Some(roles),
                route: Route::Next,
            });
        }
        let now = self.now;
        let link = self.links.open(from, now);
        link.observed = roles & ROLE_OBSERVE != 0;
        link.chosen = roles & ROLE_NEIGHBOUR != 0 && (was_chosen || !crowded);
        self.topology.dirty |= was_chosen && !link.is_neighbour();
        let fresh = core::mem::take(&mut link.fresh);
        if !link.has_role() {
            self.links.remove(&from);
            self.topology.dirty = true;
        } else if want_view || (fresh && self.differs(digest)) {
            self.give_base_view(from, !want_view);
        }
        // The rail of the request may be the only one that works: reply on all.
        let route = if is_new { Route::Next } else { Route::All };
        self.enqueue(Intent::Link {
            to: from,
            asked: Some(roles),
            route,
        });
    }

    pub(super) fn take_reply(&mut self, from: MemberId, asked: u8, roles: u8, digest: u64) {
        // A reply to an earlier request says nothing about the present one.
        let Some(link) = self
            .links
            .get_mut(&from)
            .filter(|link| link.roles() == asked)
        else {
            return;
        };
        self.join.lacks_view &= !core::mem::take(&mut link.want_view);
        link.requests = 0;
        link.confirmed = Some(roles);
        let declined = link.chose && roles & ROLE_NEIGHBOUR == 0;
        if declined {
            // It may have answered an earlier request: send it the present roles. Another member is asked
            // at the next beat, since in a small view no other may be willing.
            link.chose = false;
            self.enqueue(Intent::Link {
                to: from,
                asked: None,
                route: Route::Next,
            });
        }
        let Some(link) = self.links.get_mut(&from) else {
            return;
        };
        if core::mem::take(&mut link.fresh) && self.differs(digest) {
            self.give_base_view(from, true);
        }
        if self.links.get(&from).is_some_and(|link| !link.has_role()) {
            self.links.remove(&from);
        }
    }

    /// Whether a new neighbour needs a base view: its digest differs.
    fn differs(&self, digest: u64) -> bool {
        !self.rules.repairs || digest != self.view_digest()
    }

    /// Marks all facts for a link; as hints for a new one, which knows most of them.
    fn give_base_view(&mut self, to: MemberId, as_hints: bool) {
        let (now, as_hints) = (self.now, as_hints && self.rules.repairs);
        let pause_us = VIEW_PAUSE_US.max(self.news.ack_rtt.rto_us());
        let hint_at = now.after(pause_us << u32::from(self.own > to));
        let Some(link) = self.links.get_mut(&to) else {
            return;
        };
        self.counters.base_views += 1;
        link.open(now);
        for (suspect, reports) in self.watch.suspicions.iter() {
            for (reporter, version) in reports.iter() {
                link.mark(Subject::Suspicion {
                    suspect: *suspect,
                    reporter: *reporter,
                    version: *version,
                });
            }
        }
        // Without verdicts it is the view alone.
        let is_told =
            |id: &MemberId| self.rules.sends_verdicts || self.table.in_view(*id).is_some();
        let nodes = self.table.ids().filter(is_told);
        if as_hints {
            link.mark_nodes_lazily(nodes, hint_at);
        } else {
            link.mark_nodes(nodes);
        }
        let mut mark = |subject| {
            if as_hints {
                link.mark_lazily(subject, hint_at);
            } else {
                link.mark(subject);
            }
        };
        for member in self.table.iter_with_more() {
            let ranks = member.ranks.keys();
            ranks.for_each(|rank| mark(Subject::Rank(member.id, *rank)));
            if member.attributes > 0 {
                mark(Subject::Map(member.id));
            }
        }
        self.ledger
            .keys()
            .for_each(|key| mark(Subject::Record(key)));
    }
}
