//! Topology: the ring successors that the local member observes (random links are in `neighbours`).
//!
//! On a ring every member is observed by another. When a successor falls silent, its own successor is
//! observed too, before the verdict. So of several ring neighbours that die at once, the next one is
//! watched while the first is being judged.

use std::collections::BTreeSet;

use crate::arrivals::Arrivals;
use crate::identity::MemberId;
use crate::interface::Route;
use crate::link::Link;
use crate::overlay::Overlay;
use crate::overlay::outbox::Intent;
use crate::planted::{self, Fault};
use crate::time::Instant;

/// Most members observed while some of them are silent.
pub(super) const OBSERVED_MAX: usize = 16;
/// Least time between two changes of links, in microseconds; longer if acknowledgements take longer. Most
/// links do not last while a large zone boots, so fewer are made.
const TOPOLOGY_US_MIN: u64 = 1_000;
/// Unanswered requests after which a neighbour is replaced.
const REQUESTS_MAX: u32 = 8;

impl Overlay {
    /// Runs the links: due requests, retransmissions, and a new topology if the view has changed.
    pub(super) fn run_links(&mut self, judges: bool) {
        let is_time = self.join.rejoin.is_none() && self.now >= self.topology.at;
        if is_time && core::mem::take(&mut self.topology.dirty) {
            if self.table.live() > 1 && self.rules.paces_topology {
                let pause_us = TOPOLOGY_US_MIN.max(self.news.ack_rtt.rto_us());
                self.topology.at = self.now.after(pause_us.min(self.config.heartbeat_us));
            }
            self.choose_successors();
            self.renew_neighbours();
            self.choose_neighbours();
        }
        let now = self.now;
        self.links.settle(now);
        let due = self.links.due_requests();
        if judges {
            self.resend_news();
        }
        let mut requests = Vec::new();
        let mut silent_neighbours = Vec::new();
        for id in due {
            let Some(link) = self.links.get_mut(&id) else {
                continue;
            };
            link.request_at = now.after(self.config.heartbeat_us);
            link.requests += 1;
            if link.requests > REQUESTS_MAX && !link.observes && !link.observed {
                silent_neighbours.push(id);
            } else {
                requests.push((id, link.requests));
            }
        }
        for (to, tries) in requests {
            let route = if tries > 1 { Route::All } else { Route::Next };
            self.enqueue(Intent::Link {
                to,
                asked: None,
                route,
            });
        }
        for id in silent_neighbours {
            self.links.remove(&id);
            self.topology.dirty = true;
        }
    }

    /// Puts the subjects of lost news frames back on the lists of their links.
    pub(super) fn resend_news(&mut self) {
        let wait = self.ack_wait();
        for id in self.links.due_resends(self.now, wait) {
            if let Some(link) = self.links.get_mut(&id) {
                self.counters.news_resent += link.resend(self.now, wait);
            }
        }
    }

    /// When a link has news to send or to retransmit.
    pub(super) fn next_news_timer(&self) -> Instant {
        self.links.next_news(self.ack_wait())
    }

    pub(super) fn next_link_timer(&self) -> Instant {
        // Links wait for the end of a rejoin, which has its own timer.
        let waits = self.join.rejoin.is_some() && !planted::on(Fault::NoRest);
        let topology_at = if self.topology.dirty && !waits {
            self.topology.at
        } else {
            Instant::NEVER
        };
        let links_at = self.links.next_request().min(topology_at);
        links_at.min(self.next_news_timer())
    }

    fn choose_successors(&mut self) {
        let mut wanted = BTreeSet::new();
        let mut steady = 0;
        for member in self.table.successors(self.own).take(OBSERVED_MAX) {
            if steady == self.config.successors {
                break;
            }
            wanted.insert(member.id);
            let silent = self
                .links
                .get(&member.id)
                .is_some_and(|link| link.rounds > 1);
            steady += usize::from(!silent);
        }
        let now = self.now;
        for id in &wanted {
            let link = self.links.open(*id, now);
            if !link.observes {
                link.observes = true;
                link.since = now;
                link.arrivals = Arrivals::default();
                link.heard();
                ask_again(link, now);
                link.want_view |= self.join.lacks_view;
            }
        }
        let dropped: Vec<MemberId> = self
            .links
            .iter()
            .filter(|(id, link)| link.observes && !wanted.contains(id))
            .map(|(id, _)| id)
            .collect();
        for id in dropped {
            if let Some(link) = self.links.get_mut(&id) {
                link.observes = false;
                link.heard();
                ask_again(link, now);
                if link.roles() == 0 {
                    self.enqueue(Intent::Link {
                        to: id,
                        asked: None,
                        route: Route::Next,
                    });
                }
            }
        }
        let without_role: Vec<MemberId> = self
            .links
            .iter()
            .filter(|(_, link)| !link.has_role())
            .map(|(id, _)| id)
            .collect();
        for id in without_role {
            self.links.remove(&id);
        }
    }
}

pub(super) fn ask_again(link: &mut Link, now: Instant) {
    link.confirmed = None;
    link.request_at = now;
    link.requests = 0;
}
