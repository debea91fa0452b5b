//! Receives a datagram: checks its proof, its freshness and its sender, then takes its message.
//!
//! The order matters:
//!
//! - Nothing is taken before the tag is checked.
//! - Only a frame that passes the replay window, and is newer than all before it, counts as a sign of life.
//! - From an unknown sender only its own record is taken, and only from a frame for the local member
//!   (`contact`).
//! - A failed member gets a failure claim as its answer. Nothing else is taken from it: its view has
//!   diverged.

use crate::config::MTU_MAX;
use crate::frame::{self, Header, Kind, Opened, Receiver};
use crate::identity::{MemberId, Version, is_plausible};
use crate::interface::{Phase, Route, Target};
use crate::ledger::Merged;
use crate::overlay::Overlay;
use crate::overlay::outbox::Intent;
use crate::reject::Reject;
use crate::state::NodeState;
use crate::table::Member;
use crate::time::Instant;
use crate::verdict::{self, Order};
use crate::wire::{ACK_LAZY, Fact, Message, NodeFact};

impl Overlay {
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(), Reject> {
        let key = self.config.key.ok_or(Reject::NoKey)?;
        if bytes.len() > MTU_MAX {
            return Err(Reject::Oversized);
        }
        let opened = self.open_frame(&key, bytes);
        if opened == Err(Reject::WireVersion)
            && let Some((sender, difference)) = frame::other_release(&key, bytes)
        {
            self.note_refused(sender, Box::from(""), 0, difference);
        }
        if opened == Err(Reject::OtherZone)
            && let Some(refused) = self.check_zones(&key, bytes)
        {
            return Err(refused);
        }
        if opened == Err(Reject::Misdirected) {
            self.contact_unknown(bytes);
        }
        let opened = opened?;
        let (header, body) = (opened.header, opened.body);
        if matches!(
            header.kind,
            Kind::Gossip | Kind::GossipReply | Kind::GossipCarried
        ) {
            self.refuse_engine(header.sender);
            return Err(Reject::Parameters);
        }
        let message = Message::read(header.kind, body).map_err(|_| Reject::Malformed)?;
        if introduction(&message).is_some_and(|own| own.id != header.sender) {
            return Err(Reject::Malformed);
        }
        if header.sender == self.own {
            return Err(self.receive_own(header, &message));
        }
        let held = self.table.get(header.sender);
        let held = held.map_or(0, |member| member.version.incarnation);
        if !is_plausible(header.incarnation, held) {
            // Accepting one such frame would make all later frames of this sender look old.
            self.counters.incarnations_refused += 1;
            return Err(Reject::Malformed);
        }
        if opened.is_unaddressed {
            return Err(self.receive_unaddressed(header, &message));
        }
        self.reject_held_name(header, introduction(&message))?;
        let (sender, incarnation) = (header.sender, header.incarnation);
        match self
            .news
            .replay
            .accept(self.now, sender, incarnation, header.sequence)
        {
            Err(Reject::OldIncarnation) => return Err(self.receive_old(&message)),
            other => other?,
        }
        if let (
            Phase::Leaving,
            Message::Ack { acks } | Message::News { acks, .. } | Message::Beat { acks, .. },
        ) = (self.phase, &message)
        {
            self.take_acks(header.sender, acks.as_slice());
            return Ok(());
        }
        if self.phase != Phase::Running {
            return Ok(());
        }
        let tells_view = matches!(message, Message::View { .. } | Message::Refusal { .. });
        if self.join.rejoin.is_some() && !(tells_view && self.rejoins_with(header.sender)) {
            return self.receive_rejoining(header.sender, &message);
        }
        self.check_parameters(header, &message)?;
        self.admit(header, &message)?;
        if self.news.replay.advances(header.sender, header.sequence) {
            self.heard(header.sender);
        }
        self.dispatch(header, message)
    }

    /// Authenticates a frame of this zone for the local member.
    pub(super) fn open_frame<'a>(
        &self,
        key: &[u8; 32],
        bytes: &'a [u8],
    ) -> Result<Opened<'a>, Reject> {
        let (zone, incarnations) = (self.config.zone.number, &self.news.incarnations);
        frame::open(key, zone, self.own, incarnations, bytes)
    }

    /// While the local member takes over a view, frames of other members are rejected. Probes are answered:
    /// members of its old view do not know why it is silent.
    fn receive_rejoining(&mut self, from: MemberId, message: &Message<'_>) -> Result<(), Reject> {
        let asks = matches!(message, Message::Probe | Message::Link { asked: None, .. });
        if !asks || self.table.in_view(from).is_none() {
            return Err(Reject::UnknownSender);
        }
        self.enqueue(Intent::ProbeReply {
            to: from,
            route: Route::All,
        });
        Ok(())
    }

    /// Takes a frame of an earlier incarnation. If it introduces its sender, that may be another member of
    /// this name, or a node whose clock went back: it is sent the record of its id.
    fn receive_old(&mut self, message: &Message<'_>) -> Reject {
        if let Message::Join { own, .. }
        | Message::Link {
            own, asked: None, ..
        } = message
        {
            self.correct(own);
        }
        Reject::OldIncarnation
    }

    /// Sends the record that is held under the id of `own` to the address in `own`.
    pub(super) fn correct(&mut self, own: &NodeFact<'_>) {
        if self.answer_due(own.id) {
            let about = own.id;
            let to = Receiver::Member(about, own.version.incarnation);
            self.enqueue_to_address(to, own.address, |slot| Intent::Correct { slot, about });
        }
    }

    /// Whether an answer to a sender with this id is due: at most twice a heartbeat, so that the loss of
    /// one does not hide it for a whole deadline.
    pub(super) fn answer_due(&mut self, id: MemberId) -> bool {
        let (now, pause_us) = (self.now, self.config.heartbeat_us / 2);
        let mut due = false;
        self.table.note(id, |member| {
            let last = member.answered_at;
            due = last == Instant::default() || now.since(last) >= pause_us;
            if due {
                member.answered_at = now;
            }
        });
        due
    }

    /// Takes the sender's own record, then decides whether to accept its message.
    fn admit(&mut self, header: Header, message: &Message<'_>) -> Result<(), Reject> {
        self.follow(header, message);
        if self.take_mutual_failure_claim(header, message) {
            return Err(Reject::Outcast);
        }
        if let Some(own) = introduction(message)
            && own.version.incarnation == header.incarnation
            && own.state.in_view()
        {
            self.merge_node(header.sender, own);
        }
        let Some(member) = self.table.get(header.sender) else {
            self.take_predecessor_claim(message);
            return Err(if self.is_full() {
                Reject::Full
            } else {
                Reject::UnknownSender
            });
        };
        if header.incarnation > member.version.incarnation {
            return Err(Reject::UnknownSender);
        }
        if header.incarnation < member.version.incarnation {
            return Err(self.receive_old(message));
        }
        match member.state {
            // In paper mode they are unknown senders: only join messages are taken.
            NodeState::Left | NodeState::Failed if !self.rules.claims_failures => match message {
                Message::Join { .. } | Message::View { .. } | Message::Verify { .. } => Ok(()),
                _ => Err(Reject::Outcast),
            },
            NodeState::Left => {
                if matches!(message, Message::News { want_ack: true, .. }) {
                    self.acknowledge(header.sender, header.sequence);
                }
                Err(Reject::Departed)
            }
            NodeState::Failed => {
                self.heard(header.sender);
                self.send_failure_claim(header);
                Err(Reject::Outcast)
            }
            _ => Ok(()),
        }
    }

    /// Takes the sender's address from its newest frame, whatever the version: a member with a restart
    /// inquiry may have another address, and failure claims and views must reach it.
    fn follow(&mut self, header: Header, message: &Message<'_>) {
        let Some(own) = introduction(message) else {
            return;
        };
        let is_same = |member: &Member| member.version.incarnation == header.incarnation;
        let held = self
            .table
            .get(header.sender)
            .filter(|member| is_same(member));
        if held.is_some_and(|held| held.address() != own.address)
            && own.version.incarnation == header.incarnation
            && self.news.replay.is_latest(header.sender, header.sequence)
        {
            self.table
                .change(header.sender, |member| member.info = own.info());
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
                self.table.note(from, |member| member.late_ms = late_ms);
                // A frame that is no sign of life says nothing about the regularity of beats.
                let advances = self.news.replay.advances(from, header.sequence);
                let link = self.links.get_unfiled(&from);
                if let Some(link) = link.filter(|link| link.observes && advances) {
                    // Application messages replaced these beats: they are no gap.
                    let heartbeat_us = self.config.heartbeat_us;
                    let stood_in = core::mem::take(&mut link.stood_in);
                    let excused_us = late_us + u64::from(stood_in) * heartbeat_us;
                    link.arrivals.beat(self.now, excused_us, heartbeat_us);
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
                self.beats_are_missed(from);
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
            Message::Probe => self.enqueue(Intent::ProbeReply {
                to: from,
                route: Route::All,
            }),
            Message::ProbeReply => {}
            Message::IndirectProbe { suspect, version } => {
                self.take_indirect_probe(from, suspect, version);
            }
            Message::IndirectProbeReply {
                suspect,
                version,
                alive,
                age_us,
            } => {
                self.take_indirect_probe_reply(from, suspect, version, alive, age_us);
            }
            Message::News {
                want_ack,
                acks,
                facts,
            } => {
                self.take_acks(from, acks.as_slice());
                let known = facts.iter().filter(|fact| !self.is_new(fact)).count();
                self.counters.news_facts += facts.len() as u64;
                self.counters.news_duplicates += known as u64;
                let taken = self.take_facts(from, &facts);
                if want_ack && taken {
                    let eager = self.update_eager(from, 2 * known <= facts.len());
                    self.acknowledge(from, header.sequence | if eager { 0 } else { ACK_LAZY });
                }
                if want_ack && !self.links.contains_key(&from) {
                    // The sender has a link that was given up here.
                    self.enqueue(Intent::Link {
                        to: from,
                        asked: None,
                        route: Route::Next,
                    });
                }
            }
            Message::Ack { acks } => self.take_acks(from, acks.as_slice()),
            Message::Join {
                failure_claim,
                boot,
                ..
            } => {
                if let Some(failure_claim) = failure_claim.filter(|_| self.rules.claims_failures) {
                    self.take_failure_claim(from, &failure_claim);
                }
                self.met(boot);
                if !self.news.views.add(from, boot) {
                    self.counters.outbox_dropped += 1;
                }
            }
            Message::View {
                facts,
                boot,
                corrects,
                ..
            } => {
                self.met(boot);
                self.take_facts(from, &facts);
                self.admit_restart();
                if !corrects {
                    self.rejoined_with(from);
                }
            }
            Message::FailureClaim { failure_claim, .. } if self.rules.claims_failures => {
                self.take_failure_claim(from, &failure_claim);
            }
            Message::Verify { boot, answers, .. } => self.take_verify(from, boot, answers),
            Message::FailureClaim { .. }
            | Message::Refusal { .. }
            | Message::NameConflict { .. } => {}
            Message::Hint { hints } if self.rules.repairs => self.take_hints(from, &hints),
            Message::Hint { .. } => {}
            Message::Request { asks } => self.asked_attributes(from, &asks),
            Message::Reply { stop, sections } => self.take_attributes(from, stop, sections),
        }
        Ok(())
    }

    fn take_acks(&mut self, from: MemberId, acks: &[u64]) {
        let now = self.now;
        if let Some(link) = self.links.get_mut(&from) {
            for ack in acks {
                let took_us = link.acked(now, ack & !ACK_LAZY, ack & ACK_LAZY == 0);
                took_us
                    .into_iter()
                    .for_each(|us| self.news.ack_rtt.sample(us));
            }
        }
    }

    fn acknowledge(&mut self, to: MemberId, sequence: u64) {
        let acks = self.news.acks.get_or_default(to);
        if !acks.push(sequence) {
            // Full: the sender retransmits what is not acknowledged.
            self.counters.acks_dropped += 1;
            return;
        }
        self.enqueue(Intent::Ack { to });
    }

    /// Takes facts in the order leave, alive, suspicion, ranks, which makes false suspicions least likely.
    /// Returns false if a fact is about an incarnation not known yet: the frame is then not acknowledged,
    /// and is retransmitted.
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
                    Fact::Record(entry) if stage == 3 => self.merge_record(from, *entry),
                    Fact::Suspicion {
                        reporter,
                        suspect,
                        version,
                    } if stage == 2 => {
                        if self.rules.counts_reports {
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

    /// Whether a fact is newer than what the table holds.
    fn is_new(&self, fact: &Fact<'_>) -> bool {
        match fact {
            Fact::Node(node) => self.table.get(node.id).is_none_or(|held| {
                match verdict::order((node.version, node.state), (held.version, held.state)) {
                    Order::Newer => true,
                    Order::Same => {
                        let mut reporters = node.reporters.iter();
                        held.state == NodeState::Suspect
                            && reporters.any(|reporter| !held.reporters.contains(reporter))
                    }
                    Order::Older => false,
                }
            }),
            Fact::Rank {
                node,
                incarnation,
                fact,
            } => self.table.get(*node).is_none_or(|held| {
                let known = held.ranks.get(&fact.rank).map(|rank| rank.sequence);
                held.version.incarnation < *incarnation
                    || (held.version.incarnation == *incarnation
                        && held.in_view()
                        && known.is_none_or(|known| known < fact.sequence))
            }),
            Fact::Map { node, version, .. } => self.attributes.version(*node) < *version,
            Fact::Suspicion { .. } => true,
            Fact::Record(entry) => self.ledger.compare(entry) == Merged::New,
        }
    }

    pub(super) fn introduce_to(&mut self, to: MemberId) {
        self.enqueue(Intent::Join {
            target: Target::Member(to),
            boot: true,
        });
    }

    pub(super) fn own_version(&self) -> Version {
        self.table
            .get(self.own)
            .map_or(Version::first(self.config.incarnation), |own| own.version)
    }
}

/// The sender's own record, if this kind of message carries it.
fn introduction<'a, 'b>(message: &'b Message<'a>) -> Option<&'b NodeFact<'a>> {
    match message {
        Message::Link { own, .. }
        | Message::Join { own, .. }
        | Message::View { own, .. }
        | Message::Verify { own, .. }
        | Message::Refusal { own, .. } => Some(own),
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
