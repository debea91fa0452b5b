//! A datagram arrives: is it proven, is it new, is its sender somebody, and what does it say.
//!
//! The order matters. Nothing is believed before the tag; nothing is counted as life before the
//! replay window; nothing but an introduction is taken from a stranger; and a member that is held
//! failed is told so instead of being listened to, because what it says about others comes from
//! a view that went another way.

use crate::frame::{self, Header};
use crate::identity::{MemberId, Version};
use crate::link::{Link, Subject};
use crate::overlay::Overlay;
use crate::overlay::interface::{Phase, Route};
use crate::overlay::outbox::{Intent, STRAYS_MAX};
use crate::reject::Reject;
use crate::state::NodeState;
use crate::wire::{Claim, Fact, Message, NodeFact, ROLE_NEIGHBOUR, ROLE_OBSERVE};

/// Most links of one member; requests to be a neighbour beyond are refused.
const LINKS_MAX: usize = 64;
/// Beats in a row with another digest before a base view is exchanged again.
const MISMATCHES_MAX: u32 = 3;
/// Heartbeats between two repairs of one link.
const REPAIR_BEATS: u64 = 16;

impl Overlay {
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(), Reject> {
        let key = self.config.key.ok_or(Reject::NoKey)?;
        let (header, body) = frame::open(&key, bytes)?;
        let message = Message::read(header.kind, body).map_err(|_| Reject::Malformed)?;
        if introduction(&message).is_some_and(|own| own.id != header.sender) {
            return Err(Reject::Malformed);
        }
        if header.sender == self.own {
            return self.receive_own(header);
        }
        match self
            .replay
            .accept(header.sender, header.incarnation, header.sequence)
        {
            Err(Reject::OldIncarnation) => return Err(self.receive_old(&message)),
            other => other?,
        }
        if let (Phase::Leaving, Message::Ack { acks } | Message::News { acks, .. }) =
            (self.phase, &message)
        {
            self.take_acks(header.sender, acks.as_slice());
            return Ok(());
        }
        if self.phase != Phase::Running {
            return Ok(());
        }
        if self
            .rejoin
            .is_some_and(|rejoin| rejoin.with != header.sender)
        {
            return Err(Reject::Stranger);
        }
        self.admit(header, &message)?;
        self.heard(header.sender);
        self.dispatch(header, message)
    }

    /// A frame with our own id: an echo, or somebody else of our name.
    fn receive_own(&mut self, header: Header) -> Result<(), Reject> {
        if header.incarnation > self.own_version().incarnation {
            self.name_taken();
        }
        Err(Reject::Own)
    }

    /// A frame from an earlier life than one we know. If somebody introduces itself with it, it
    /// may be a twin, or a node whose clock went back: it is shown the record of its id.
    fn receive_old(&mut self, message: &Message<'_>) -> Reject {
        if let Message::Discover { own, .. }
        | Message::Link {
            own, asked: None, ..
        } = message
            && self.table.get(own.id).is_some()
        {
            let slot = self.stray_next % STRAYS_MAX;
            self.stray_next += 1;
            self.strays[slot] = own.address.to_vec();
            self.say(Intent::Correct {
                slot,
                about: own.id,
            });
        }
        Reject::OldIncarnation
    }

    /// Decides whether the sender is somebody to listen to; takes its introduction first.
    fn admit(&mut self, header: Header, message: &Message<'_>) -> Result<(), Reject> {
        if let Some(own) = introduction(message)
            && own.version.incarnation == header.incarnation
            && own.state.in_view()
        {
            self.merge_node(header.sender, own);
        }
        let Some(member) = self.table.get(header.sender) else {
            return Err(if self.is_full() {
                Reject::Full
            } else {
                Reject::Stranger
            });
        };
        if header.incarnation > member.version.incarnation {
            return Err(Reject::Stranger);
        }
        if header.incarnation < member.version.incarnation {
            return Err(self.receive_old(message));
        }
        match member.state {
            // Strangers in paper mode: they may knock, and that is all.
            NodeState::Left | NodeState::Failed if self.is_paper() => match message {
                Message::Discover { .. } | Message::View { .. } => Ok(()),
                _ => Err(Reject::Outcast),
            },
            NodeState::Left => {
                if matches!(message, Message::News { want_ack: true, .. }) {
                    self.acknowledge(header.sender, header.sequence);
                }
                Err(Reject::Departed)
            }
            NodeState::Failed => {
                if let Message::Claim(claim)
                | Message::Discover {
                    claim: Some(claim), ..
                } = message
                {
                    self.claimed(header.sender, claim);
                }
                self.claim(header.sender);
                Err(Reject::Outcast)
            }
            _ => Ok(()),
        }
    }

    fn dispatch(&mut self, header: Header, message: Message<'_>) -> Result<(), Reject> {
        let from = header.sender;
        match message {
            Message::Beat {
                late_ms,
                digest,
                acks,
            } => {
                self.take_acks(from, acks.as_slice());
                let late_us = u64::from(late_ms) * 1000;
                self.table.note(from, |member| member.late_us = late_us);
                if let Some(link) = self.links.get_mut(&from).filter(|link| link.observes) {
                    link.arrivals
                        .beat(self.now, late_us, self.config.heartbeat_us);
                }
                self.take_beat(from, digest);
            }
            Message::Link {
                asked: None,
                roles,
                want_view,
                digest,
                ..
            } => {
                if self.is_latest_request(from, header.sequence) {
                    self.take_request(from, roles, want_view, digest);
                }
            }
            Message::Link {
                asked: Some(asked),
                roles,
                digest,
                ..
            } => {
                self.take_reply(from, asked, roles, digest);
            }
            Message::Probe => self.say(Intent::ProbeReply {
                to: from,
                route: Route::All,
            }),
            Message::ProbeReply => {}
            Message::Ask { suspect, version } => self.asked(from, suspect, version),
            Message::Answer {
                suspect,
                version,
                alive,
                age_us,
            } => {
                self.answered(from, suspect, version, alive, age_us);
            }
            Message::News {
                want_ack,
                acks,
                facts,
            } => {
                self.take_acks(from, acks.as_slice());
                let taken = self.take_facts(from, &facts);
                if want_ack && taken {
                    self.acknowledge(from, header.sequence);
                }
                if want_ack && !self.links.contains_key(&from) {
                    // It believes in a link that we have given up.
                    self.say(Intent::Link {
                        to: from,
                        asked: None,
                        route: Route::Next,
                    });
                }
            }
            Message::Ack { acks } => self.take_acks(from, acks.as_slice()),
            Message::Discover { claim, boot, .. } => {
                if let Some(claim) = claim.filter(|_| !self.is_paper()) {
                    self.claimed(from, &claim);
                }
                self.met(boot);
                self.say(Intent::View {
                    to: from,
                    from: MemberId(0),
                    boot,
                });
            }
            Message::View { facts, boot, .. } => {
                self.met(boot);
                self.take_facts(from, &facts);
                self.rejoined_with(from);
            }
            Message::Claim(claim) if !self.is_paper() => self.claimed(from, &claim),
            Message::Claim(_) => {}
            Message::Request { asks } => self.asked_attributes(from, &asks),
            Message::Reply { stop, sections } => self.take_attributes(from, stop, sections),
        }
        Ok(())
    }

    fn take_acks(&mut self, from: MemberId, acks: &[u64]) {
        if let Some(link) = self.links.get_mut(&from) {
            acks.iter().for_each(|sequence| link.acked(*sequence));
        }
    }

    fn acknowledge(&mut self, to: MemberId, sequence: u64) {
        let acks = self.acks.entry(to).or_default();
        if !acks.push(sequence) {
            // Full: the sender repeats what is not acknowledged.
            return;
        }
        self.say(Intent::Ack { to });
    }

    /// In the order leave, alive, suspicion, ranks: least chance of a false suspicion. False if
    /// some fact is about a life we have not heard of yet: the frame is not acknowledged then,
    /// and comes again.
    fn take_facts(&mut self, from: MemberId, facts: &[Fact<'_>]) -> bool {
        let mut taken = true;
        for stage in 0..4 {
            for fact in facts {
                match fact {
                    Fact::Node(node) if stage_of(node.state) == stage => {
                        self.merge_node(from, node);
                    }
                    Fact::Rank {
                        node,
                        incarnation,
                        fact,
                    } if stage == 3 => {
                        taken &= self.merge_rank(from, *node, *incarnation, *fact);
                    }
                    Fact::Map {
                        node,
                        incarnation,
                        version,
                    } if stage == 3 => {
                        taken &= self.merge_map(from, *node, *incarnation, *version);
                    }
                    Fact::Suspicion {
                        reporter,
                        suspect,
                        version,
                    } if stage == 2 => {
                        if self.is_paper() {
                            self.process_suspicion(*reporter, *suspect, *version);
                        } else {
                            self.counters.facts_refused += 1;
                        }
                    }
                    _ => {}
                }
            }
        }
        taken
    }

    fn take_beat(&mut self, from: MemberId, digest: u64) {
        let (now, same) = (self.now, digest == self.table.digest());
        let is_paper = self.is_paper();
        let repair_us = REPAIR_BEATS * self.config.heartbeat_us;
        let Some(link) = self.links.get_mut(&from).filter(|link| link.observes) else {
            // It believes that we observe it. Tell it what we want.
            self.say(Intent::Link {
                to: from,
                asked: None,
                route: Route::Next,
            });
            return;
        };
        if same || is_paper || !link.is_idle() {
            link.mismatches = 0;
            return;
        }
        link.mismatches += 1;
        if link.mismatches > MISMATCHES_MAX && now >= link.repair_at {
            link.mismatches = 0;
            link.repair_at = now.after(repair_us);
            link.want_view = true;
            link.request_at = now;
            self.counters.repairs += 1;
            self.give_base_view(from);
        }
    }

    /// Requests may overtake each other; only the last word counts.
    fn is_latest_request(&mut self, from: MemberId, sequence: u64) -> bool {
        let mut latest = false;
        self.table.note(from, |member| {
            latest = sequence > member.asked_sequence;
            member.asked_sequence = member.asked_sequence.max(sequence);
        });
        latest
    }

    fn take_request(&mut self, from: MemberId, roles: u8, want_view: bool, digest: u64) {
        let was_chosen = self.links.get(&from).is_some_and(Link::is_neighbour);
        let crowded = self.links.len() >= LINKS_MAX || self.degree() >= self.degree_max();
        let is_new = !self.links.contains_key(&from);
        if is_new && roles == 0 {
            return;
        }
        let now = self.now;
        let link = self.links.entry(from).or_insert_with(|| Link::new(now));
        link.observed = roles & ROLE_OBSERVE != 0;
        link.chosen = roles & ROLE_NEIGHBOUR != 0 && (was_chosen || !crowded);
        self.topology_dirty |= was_chosen && !link.is_neighbour();
        let fresh = core::mem::take(&mut link.fresh);
        if !link.has_role() {
            self.links.remove(&from);
            self.topology_dirty = true;
        } else if want_view || (fresh && self.differs(digest)) {
            self.give_base_view(from);
        }
        // The way the request came may be the only one that works: answer on all.
        let route = if is_new { Route::Next } else { Route::All };
        self.say(Intent::Link {
            to: from,
            asked: Some(roles),
            route,
        });
    }

    fn take_reply(&mut self, from: MemberId, asked: u8, roles: u8, digest: u64) {
        // A reply to what we no longer ask for says nothing about what we do ask for.
        let Some(link) = self
            .links
            .get_mut(&from)
            .filter(|link| link.roles() == asked)
        else {
            return;
        };
        link.want_view = false;
        link.requests = 0;
        link.confirmed = Some(roles);
        let declined = link.chose && roles & ROLE_NEIGHBOUR == 0;
        if declined {
            // It may have answered an earlier request than our last: make it the last word.
            link.chose = false;
            self.topology_dirty = true;
            self.say(Intent::Link {
                to: from,
                asked: None,
                route: Route::Next,
            });
        }
        let Some(link) = self.links.get_mut(&from) else {
            return;
        };
        if core::mem::take(&mut link.fresh) && self.differs(digest) {
            self.give_base_view(from);
        }
        if self.links.get(&from).is_some_and(|link| !link.has_role()) {
            self.links.remove(&from);
        }
    }

    /// Whether a new neighbour is to get a base view: unless it has the same view already.
    fn differs(&self, digest: u64) -> bool {
        self.is_paper() || digest != self.table.digest()
    }

    /// Everything we know goes on the list of this link.
    fn give_base_view(&mut self, to: MemberId) {
        let Some(link) = self.links.get_mut(&to) else {
            return;
        };
        self.counters.base_views += 1;
        link.open(self.now);
        for (suspect, reports) in &self.suspicions {
            for (reporter, version) in reports {
                link.mark(Subject::Suspicion {
                    suspect: *suspect,
                    reporter: *reporter,
                    version: *version,
                });
            }
        }
        for member in self.table.iter() {
            link.mark(Subject::Node(member.id));
            if member.in_view() {
                member
                    .ranks
                    .keys()
                    .for_each(|rank| link.mark(Subject::Rank(member.id, *rank)));
                if member.attributes > 0 {
                    link.mark(Subject::Map(member.id));
                }
            }
        }
    }

    /// Somebody says that we are held failed.
    fn claimed(&mut self, from: MemberId, claim: &Claim<'_>) {
        let about = &claim.about;
        let own = self.own_version();
        let late = about.version.incarnation < own.incarnation;
        if about.id != self.own || late || about.state != NodeState::Failed {
            return;
        }
        let mutual = self
            .table
            .get(from)
            .is_some_and(|m| m.state == NodeState::Failed);
        if !mutual {
            self.merge_own(Some(from), about);
        } else if about.version.minor < own.minor {
            // Our refutation is on its way to them already; hand it over directly.
            self.introduce_to(from);
        } else if crate::verdict::yields(self.strength(), claim.strength) {
            self.outcast(Some(from), about);
        }
    }

    /// Tells a member that is held failed that it is; at most once a heartbeat.
    fn claim(&mut self, to: MemberId) {
        let (now, heartbeat_us) = (self.now, self.config.heartbeat_us);
        let mut due = false;
        self.table.note(to, |member| {
            due = member.state == NodeState::Failed
                && member
                    .claimed_at
                    .is_none_or(|at| now.since(at) >= heartbeat_us);
            if due {
                member.claimed_at = Some(now);
            }
        });
        if due {
            self.say(Intent::Claim { to });
        }
    }

    pub(super) fn introduce_to(&mut self, to: MemberId) {
        self.say(Intent::Discover {
            target: super::Target::Member(to),
            boot: true,
        });
    }

    pub(super) fn own_version(&self) -> Version {
        self.table
            .get(self.own)
            .map_or(Version::first(self.config.incarnation), |own| own.version)
    }
}

/// The sender's own record, in the kinds of frame that carry it.
fn introduction<'a, 'b>(message: &'b Message<'a>) -> Option<&'b NodeFact<'a>> {
    match message {
        Message::Link { own, .. } | Message::Discover { own, .. } | Message::View { own, .. } => {
            Some(own)
        }
        _ => None,
    }
}

fn stage_of(state: NodeState) -> usize {
    match state {
        NodeState::Left => 0,
        NodeState::Suspect | NodeState::Failed => 2,
        _ => 1,
    }
}
