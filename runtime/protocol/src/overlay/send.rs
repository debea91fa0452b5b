//! Writes frames, one for each free send slot: the most urgent first, long ones last.
//!
//! Beats come first, since a delayed beat makes a busy member look dead. Then intents, among them replies
//! to probes; the first datagram of each view; news of the links; hints; the rest of views; attributes.
//! Each frame is written from the table into the caller's buffer. Facts that do not fit stay on their list
//! for the next frame.

use crate::codec::{Full, Writer};
use crate::frame::{FRAME_OVERHEAD, HEADER_SIZE, Header, Kind, Receiver, TAG_SIZE, seal};
use crate::identity::MemberId;
use crate::interface::{Class, Phase, Route, Target, Transmit};
use crate::overlay::Overlay;
use crate::overlay::outbox::{Intent, Verify};
use crate::overlay::views::View;
use crate::subjects::Subject;
use crate::time::Instant;
use crate::wire::{ASKED_SHIFT, Acks, Fact, NodeFact, write_version};

impl Overlay {
    /// Writes the next frame into `buffer` and returns its receiver; `None` when there is nothing to send.
    /// The buffer has at least `mtu` bytes.
    pub fn poll_transmit(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        self.now = self.now.max(now);
        // Nothing is due and nothing is to be sent.
        if self.timeout.is_some_and(|timeout| timeout > self.now) {
            return None;
        }
        self.wake();
        let transmit = self.next_transmit(buffer);
        match &transmit {
            Some(transmit) => {
                self.timeout = None;
                self.links.settle(self.now);
                self.watch.lateness.ask(self.now);
                self.counters.frames_sent += 1;
                self.counters.bytes_sent += transmit.size as u64;
            }
            None => self.plan(None),
        }
        transmit
    }

    pub(super) fn wants_to_send(&self) -> bool {
        self.config.key.is_some()
            && (!self.outbox.is_empty()
                || self.news.views.has_firsts()
                || self.now >= self.news.views.rest_at()
                || self.attributes.has_asks()
                || self.attributes.has_answers()
                || self.links.want_to_send(self.now))
    }

    pub(super) fn enqueue(&mut self, intent: Intent) {
        if !self.outbox.push(intent) {
            self.counters.outbox_dropped += 1;
        }
    }

    /// Queues a frame for an address that belongs to no known member.
    pub(super) fn enqueue_to_address(
        &mut self,
        to: Receiver,
        address: &[u8],
        intent: impl Fn(usize) -> Intent,
    ) {
        if !self.outbox.push_to_address(to, address, intent) {
            self.counters.outbox_dropped += 1;
        }
    }

    fn next_transmit(&mut self, buffer: &mut [u8]) -> Option<Transmit> {
        if self.phase == Phase::Stopped {
            return None;
        }
        let key = self.config.key?;
        let limit = buffer.len().min(self.config.mtu);
        let buffer = &mut buffer[..limit];
        debug_assert!(limit > FRAME_OVERHEAD);
        let body_end = limit - TAG_SIZE;
        loop {
            self.links.settle(self.now);
            let body = &mut buffer[HEADER_SIZE..body_end];
            let Some((size, kind, target, class, route)) = self.write_next(body)? else {
                continue;
            };
            let Some(to) = self.receiver_at(target) else {
                // Dropped from the table since it was queued.
                continue;
            };
            self.news.sequence += 1;
            let header = Header {
                kind,
                sender: self.own,
                incarnation: self.own_version().incarnation,
                sequence: self.news.sequence,
                zone: self.config.zone.number,
            };
            let size = seal(&key, header, to, buffer, size);
            return Some(Transmit {
                target,
                size,
                class,
                route,
            });
        }
    }

    /// The receiver that a frame for this target is for.
    fn receiver_at(&self, target: Target) -> Option<Receiver> {
        match target {
            Target::Member(id) => self.receiver(id),
            Target::Seed(_) => Some(Receiver::Anyone),
            Target::Address(slot) => self.outbox.slot_receiver(slot),
        }
    }

    /// The last known incarnation of a member: of its record, or of a frame received. A failure claim of a
    /// new incarnation may arrive before its record.
    pub(super) fn receiver(&self, id: MemberId) -> Option<Receiver> {
        let recorded = self.table.get(id)?.version.incarnation;
        let came = self.news.replay.incarnation_of(id).unwrap_or_default();
        Some(Receiver::Member(id, recorded.max(came)))
    }

    /// Writes the next frame; `None` if there is none, and `Some(None)` if it is no longer needed.
    fn write_next(&mut self, body: &mut [u8]) -> Option<Option<Written>> {
        if let Some(beat) = self.write_beat(body) {
            return Some(Some(beat));
        }
        if let Some(intent) = self.outbox.pop() {
            return Some(self.write_intent(intent, body));
        }
        if let Some((verify, slot)) = self.outbox.pop_verify() {
            return Some(self.write_verify(&verify, slot, body));
        }
        if let Some(view) = self.news.views.pop_first() {
            return Some(self.write_view(view, body));
        }
        let news = self.write_news(body).or_else(|| self.write_hints(body));
        if news.is_some() {
            return Some(news);
        }
        let rto_us = self.news.ack_rtt.rto_us();
        if let Some(view) = self.news.views.pop_rest(self.now, rto_us) {
            return Some(self.write_view(view, body));
        }
        self.write_attributes(body).map(Some)
    }

    fn write_intent(&mut self, intent: Intent, body: &mut [u8]) -> Option<Written> {
        let mut writer = Writer::new(body);
        let (kind, target, route) = self.write_short(intent, &mut writer)?;
        Some((writer.used(), kind, target, Class::News, route))
    }

    /// Writes intents about links and silence.
    fn write_short(
        &mut self,
        intent: Intent,
        writer: &mut Writer<'_>,
    ) -> Option<(Kind, Target, Route)> {
        Some(match intent {
            Intent::Link { to, asked, route } => {
                self.write_link(writer, to, asked).ok()??;
                let kind = match asked {
                    Some(_) => Kind::LinkReply,
                    None => Kind::Link,
                };
                (kind, Target::Member(to), route)
            }
            Intent::Probe { to } => {
                self.counters.probes_sent += 1;
                (Kind::Probe, Target::Member(to), Route::All)
            }
            Intent::ProbeReply { to, route } => (Kind::ProbeReply, Target::Member(to), route),
            Intent::IndirectProbe {
                to,
                suspect,
                version,
            } => {
                self.counters.indirect_probes_sent += 1;
                writer.u64(suspect.0).ok()?;
                write_version(writer, version).ok()?;
                (Kind::IndirectProbe, Target::Member(to), Route::Next)
            }
            Intent::IndirectProbeReply {
                to,
                suspect,
                version,
                alive,
            } => {
                let heard = self.table.get(suspect)?.last_heard;
                let age_us = u32::try_from(self.now.since(heard)).unwrap_or(u32::MAX);
                writer.u64(suspect.0).ok()?;
                write_version(writer, version).ok()?;
                writer.u8(u8::from(alive)).ok()?;
                writer.u32(age_us).ok()?;
                (Kind::IndirectProbeReply, Target::Member(to), Route::Next)
            }
            Intent::Ack { to } => {
                if self.links.get(&to).is_some_and(|l| l.can_send(self.now)) {
                    // A news frame is sent to this member in a moment, and carries the acknowledgements.
                    return None;
                }
                let acks = self.news.acks.remove(&to)?;
                acks.write(writer).ok()?;
                (Kind::Ack, Target::Member(to), Route::Next)
            }
            _ => return self.write_facts(intent, writer),
        })
    }

    /// Writes intents about members.
    fn write_facts(
        &mut self,
        intent: Intent,
        writer: &mut Writer<'_>,
    ) -> Option<(Kind, Target, Route)> {
        Some(match intent {
            Intent::Direct { to, subject, route } => {
                writer.u8(0).ok()?;
                Acks::default().write(writer).ok()?;
                writer.u16(1).ok()?;
                self.write_fact(writer, subject).ok()??;
                self.counters.news_sent += 1;
                (Kind::News, Target::Member(to), route)
            }
            Intent::Join { target, boot } => {
                self.counters.join_requests_sent += 1;
                self.write_own(writer).ok()?;
                writer.u8(u8::from(boot)).ok()?;
                self.config.parameters().write(writer).ok()?;
                match target {
                    Target::Member(to) if !boot && self.rules.claims_failures => {
                        writer.u8(1).ok()?;
                        self.failure_claim_about(to)?.write(writer).ok()?;
                    }
                    _ => writer.u8(0).ok()?,
                }
                (Kind::Join, target, Route::All)
            }
            Intent::FailureClaim { to, answers } => {
                self.failure_claim_about(to)?.write(writer).ok()?;
                answers.write(writer).ok()?;
                (Kind::FailureClaim, Target::Member(to), Route::All)
            }
            Intent::Refuse { slot } => {
                self.write_own(writer).ok()?;
                self.config.parameters().write(writer).ok()?;
                (Kind::Refusal, Target::Address(slot), Route::All)
            }
            Intent::NameConflict {
                slot,
                receiver_incarnation,
            } => {
                self.write_own(writer).ok()?;
                writer.u64(self.name_age_us()).ok()?;
                writer.u64(receiver_incarnation).ok()?;
                (Kind::NameConflict, Target::Address(slot), Route::All)
            }
            Intent::Correct { slot, about } => {
                self.write_own(writer).ok()?;
                writer.u8(1).ok()?;
                writer.u8(1).ok()?;
                writer.u16(1).ok()?;
                self.write_fact(writer, Subject::Node(about)).ok()??;
                (Kind::View, Target::Address(slot), Route::All)
            }
            _ => return None,
        })
    }

    fn write_verify(&self, verify: &Verify, slot: usize, body: &mut [u8]) -> Option<Written> {
        let mut writer = Writer::new(body);
        self.write_own(&mut writer).ok()?;
        writer.u8(u8::from(verify.boot)).ok()?;
        self.config.parameters().write(&mut writer).ok()?;
        verify.request.write(&mut writer).ok()?;
        let target = Target::Address(slot);
        Some((writer.used(), Kind::Verify, target, Class::News, Route::All))
    }

    fn write_own(&self, writer: &mut Writer<'_>) -> Result<(), Full> {
        match self.table.get(self.own) {
            Some(own) => NodeFact::of(own).write(writer),
            None => Err(Full),
        }
    }

    /// Writes a link request or a reply; `Ok(None)` if there is nothing to ask any more.
    fn write_link(
        &mut self,
        writer: &mut Writer<'_>,
        to: MemberId,
        asked: Option<u8>,
    ) -> Result<Option<()>, Full> {
        let link = self.links.get_mut(&to);
        let (roles, want_view) = match (&link, asked) {
            (Some(link), None) => (link.roles(), link.want_view),
            (Some(link), Some(_)) => (link.accepted_roles(), false),
            (None, _) => (0, false),
        };
        writer.u8(roles | asked.unwrap_or(0) << ASKED_SHIFT)?;
        writer.u8(u8::from(want_view))?;
        writer.u64(self.view_digest())?;
        self.config.parameters().write(writer)?;
        self.write_own(writer)?;
        Ok(Some(()))
    }

    /// Writes one fact as the table has it now; `Ok(None)` if there is nothing to tell any more.
    fn write_fact(&self, writer: &mut Writer<'_>, subject: Subject) -> Result<Option<()>, Full> {
        let fact = match subject {
            Subject::Node(id) => self
                .table
                .get(id)
                .and_then(|member| self.record_of(member))
                .map(Fact::Node),
            Subject::Suspicion {
                suspect,
                reporter,
                version,
            } => Some(Fact::Suspicion {
                reporter,
                suspect,
                version,
            }),
            Subject::Rank(id, rank) => self.table.in_view(id).and_then(|member| {
                let incarnation = member.version.incarnation;
                let fact = *member.ranks.get(&rank)?;
                Some(Fact::Rank {
                    node: id,
                    incarnation,
                    fact,
                })
            }),
            Subject::Map(id) => self.map_fact(id),
            Subject::Record(key) => self.ledger.get(key).copied().map(Fact::Record),
        };
        match fact {
            Some(fact) => fact.write(writer).map(Some),
            None => Ok(None),
        }
    }

    /// Writes as many records as fit; the rest follows later. `None` if there are none left.
    fn write_view(&mut self, view: View, body: &mut [u8]) -> Option<Written> {
        let View { to, from, .. } = view;
        let mut writer = Writer::new(body);
        self.write_own(&mut writer).ok()?;
        writer.u8(u8::from(view.boot)).ok()?;
        writer.u8(0).ok()?;
        let count_at = writer.used();
        writer.u16(0).ok()?;
        let mut count = 0;
        let mut next = None;
        for member in self.table.iter_ring(to, from) {
            if member.id == self.own {
                continue;
            }
            let Some(record) = self
                .record_of(member)
                .filter(|_| self.tells_in_view(member))
            else {
                continue;
            };
            let before = writer.used();
            if Fact::Node(record).write(&mut writer).is_err() || count == u16::MAX {
                writer.rewind(before);
                next = Some(member.id);
                break;
            }
            count += 1;
        }
        if count == 0 && !view.is_first {
            return None;
        }
        writer.patch_u16(count_at, count);
        let size = writer.used();
        if let Some(next) = next {
            self.news.views.go_on(to, next);
        }
        let target = Target::Member(to);
        Some((size, Kind::View, target, Class::News, Route::Next))
    }

    /// Writes news for the next link that has some.
    fn write_news(&mut self, body: &mut [u8]) -> Option<Written> {
        let to = self.links.first_news()?;
        let mut writer = Writer::new(body);
        writer.u8(1).ok()?;
        self.news
            .acks
            .remove(&to)
            .unwrap_or_default()
            .write(&mut writer)
            .ok()?;
        let count_at = writer.used();
        writer.u16(0).ok()?;
        let mut count = 0;
        let mut taken = Vec::new();
        for subject in self.links.get(&to)?.dirty() {
            let before = writer.used();
            match self.write_fact(&mut writer, subject) {
                Ok(Some(())) => {
                    count += 1;
                    taken.push(subject);
                }
                Ok(None) => taken.push(subject),
                Err(Full) => {
                    writer.rewind(before);
                    break;
                }
            }
        }
        writer.patch_u16(count_at, count);
        let sequence = self.news.sequence + 1;
        let (pause_us, hold) = (self.pause_us(), self.hold());
        let link = self.links.get_mut(&to)?;
        let route = if link.is_retrying() {
            Route::All
        } else {
            Route::Next
        };
        link.sent(self.now, sequence, taken, pause_us, hold);
        self.counters.news_sent += 1;
        Some((
            writer.used(),
            Kind::News,
            Target::Member(to),
            Class::News,
            route,
        ))
    }

    fn write_beat(&mut self, body: &mut [u8]) -> Option<Written> {
        let to = self.links.beats.pop_first()?;
        let acks = self.news.acks.remove(&to).unwrap_or_default();
        let size = self.beat_body(body, &acks)?;
        self.counters.beats_sent += 1;
        // Acknowledgements wait for this beat.
        let class = if acks.as_slice().is_empty() {
            Class::Beat
        } else {
            Class::News
        };
        Some((size, Kind::Beat, Target::Member(to), class, Route::Next))
    }

    /// Writes the content of a beat; returns its size.
    pub(super) fn beat_body(&self, body: &mut [u8], acks: &Acks) -> Option<usize> {
        let mut writer = Writer::new(body);
        writer
            .u16((self.watch.lateness.figure_us() / 1000) as u16)
            .ok()?;
        writer.u64(self.view_digest()).ok()?;
        acks.write(&mut writer).ok()?;
        Some(writer.used())
    }
}

/// Size of the body, kind, target, lane and rails.
pub(super) type Written = (usize, Kind, Target, Class, Route);
