//! Receives gossip: checks its proof, its freshness, its parameters and its clock, in this order, then
//! merges it.
//!
//! A request for anyone may be a recording: it is answered, and nothing is taken from it. A message written
//! before one that has come is no sign of life. Parameters are compared while they are sent, in the first
//! cycles of either side, one for each participant. A member that finds a difference, in a ping or in a
//! reply, tells the other side and the application, and stops. While it is stopped for that reason it
//! answers each ping with other parameters by a refusal: the first one may have been lost.

use super::message::{Joined, Part, entries};
use super::send::{Outgoing, REPLIES_MAX};
use super::{Age, Exchange};
use muster_wire::cause::{Cause, CauseKind};
use muster_wire::event::{Event, EventKind};
use muster_wire::frame::{self, Header, Kind, Receiver};
use muster_wire::identity::{MemberId, Version, is_plausible};
use muster_wire::parameter::{Difference, Parameter};
use muster_wire::reject::Reject;
use muster_wire::reporters::Reporters;
use muster_wire::settings::MTU_MAX;

use super::gossip::{Freshness, NEVER};

impl Age {
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(), Reject> {
        let key = self.config.key.ok_or(Reject::NoKey)?;
        if bytes.len() > MTU_MAX {
            return Err(Reject::Oversized);
        }
        let opened = frame::open(&key, 0, self.own, &[self.config.incarnation], bytes);
        if opened == Err(Reject::WireVersion)
            && let Some((sender, difference)) = frame::other_release(&key, bytes)
        {
            self.refuse(sender, "", difference);
        }
        if opened == Err(Reject::Misdirected) {
            self.contact_unknown(bytes);
        }
        let opened = opened?;
        let (header, body) = (opened.header, opened.body);
        if header.sender == self.own {
            return Err(Reject::Own);
        }
        if header.kind == Kind::GossipCarried {
            // It is only valid inside a message of the application.
            return Err(Reject::Malformed);
        }
        if !matches!(header.kind, Kind::Gossip | Kind::GossipReply) {
            let difference = Difference::new(Parameter::Protocol, 1, 0);
            self.refuse(header.sender, "", difference);
            return Err(Reject::Parameters);
        }
        let part = Part::read(body).map_err(|_| Reject::Malformed)?;
        let place = self.place_of(header.sender);
        let held = place.map_or(0, |place| self.incarnations[place]);
        if !is_plausible(header.incarnation, held) {
            self.counters.incarnations_refused += 1;
            return Err(Reject::Malformed);
        }
        if opened.is_unaddressed {
            return Err(self.receive_unaddressed(&header, place.ok(), &part));
        }
        let (incarnation, sequence) = (header.incarnation, header.sequence);
        self.replay
            .accept(self.now, header.sender, incarnation, sequence)?;
        if let Ok(place) = place {
            self.receivers[place] = incarnation;
        }
        if !self.is_running {
            if self.refused.is_some() && header.kind == Kind::Gossip {
                self.check_parameters(&header, &part)?;
            }
            return Err(Reject::Stopped);
        }
        self.check_parameters(&header, &part)?;
        let place = place.map_err(|_| Reject::UnknownSender)?;
        let is_newest = self.is_newest(place, &header, part.part);
        if part.parts == 1 {
            return self.take_message(&header, place, is_newest, part.clock, part.payload);
        }
        // A reply may have an entry of four bytes for each participant.
        let most = self.ids.len() * if header.kind == Kind::Gossip { 1 } else { 4 };
        let joined = self.assemblies.take(&header, &part, most);
        match joined.map_err(|_| Reject::Malformed)? {
            Joined::Waits { dropped } => {
                self.counters.gossips_torn += dropped;
                Ok(())
            }
            Joined::Whole(payload) => {
                self.take_message(&header, place, is_newest, part.clock, &payload)
            }
        }
    }

    /// Takes a frame for anyone: a request of a participant, or of a member with another list. Returns why
    /// nothing of it is taken.
    fn receive_unaddressed(
        &mut self,
        header: &Header,
        place: Option<usize>,
        part: &Part<'_>,
    ) -> Reject {
        if header.kind != Kind::Gossip {
            return Reject::Malformed;
        }
        let differs = |theirs| self.parameters().difference(theirs).is_some();
        let is_refused = self.refused.is_some() && part.parameters.as_ref().is_some_and(differs);
        if !self.is_running && !is_refused {
            return Reject::Stopped;
        }
        let to = Receiver::Member(header.sender, header.incarnation);
        match (place, &part.parameters) {
            (Some(place), _) => {
                let address = self.config.participants[place].address.clone();
                self.verify(to, address.as_bytes());
            }
            (None, Some(theirs)) => self.verify(to, theirs.address),
            (None, None) => return Reject::UnknownSender,
        }
        Reject::Unproven
    }

    /// Takes a frame for another member or an earlier incarnation. If no frame of its sender has come in
    /// the present incarnation, the sender is pinged next.
    fn contact_unknown(&mut self, bytes: &[u8]) {
        let sender = frame::sender(bytes).map(|sender| self.place_of(sender));
        if let Some(Ok(place)) = sender
            && self.receivers[place] == 0
            && self.asked_for.is_none()
        {
            self.asked_for = Some(place as u32);
        }
    }

    /// Whether no later message has come. The parts of a message have consecutive sequences.
    pub(super) fn is_newest(&mut self, place: usize, header: &Header, part: u16) -> bool {
        let first = header.sequence.saturating_sub(part.into());
        let is_newest = (header.incarnation, first) >= self.newest[place];
        if is_newest {
            self.newest[place] = (header.incarnation, first);
        }
        is_newest
    }

    /// AG-05: compares the parameters in a message with the local ones.
    fn check_parameters(&mut self, header: &Header, part: &Part<'_>) -> Result<(), Reject> {
        let Some(theirs) = part.parameters else {
            return Ok(());
        };
        let Some(difference) = self.parameters().difference(&theirs) else {
            return Ok(());
        };
        let name = core::str::from_utf8(theirs.address).unwrap_or_default();
        let name = name.split(',').next().unwrap_or_default().to_owned();
        self.refuse(header.sender, &name, difference);
        // Tells the other side. Nothing else is sent any more, and a side that has stopped answers only
        // pings, so two refusals cannot answer each other for ever.
        let to = Receiver::Member(header.sender, header.incarnation);
        self.verify(to, theirs.address);
        Err(Reject::Parameters)
    }

    /// Stops gossip, with the reason.
    fn refuse(&mut self, id: MemberId, name: &str, difference: Difference) {
        if !self.is_running {
            return;
        }
        self.halt();
        self.refused = Some((id, name.to_owned(), difference));
        self.push_event(Event {
            at: self.now,
            kind: EventKind::Refused(difference),
            member: id,
            version: Version::first(1),
            cause: Cause {
                kind: CauseKind::Announced,
                reporters: Reporters::default(),
                silent_us: 0,
            },
        });
    }

    /// Takes a complete message of a participant.
    fn take_message(
        &mut self,
        header: &Header,
        place: usize,
        is_newest: bool,
        clock: u64,
        payload: &[u8],
    ) -> Result<(), Reject> {
        let is_ping = header.kind == Kind::Gossip;
        self.check_payload(is_ping, place, payload)?;
        if !is_ping && self.requested == Some(place as u32) {
            // Now the ping itself can be sent.
            self.requested = None;
            let to = place as u32;
            self.outgoing.push_back(Outgoing::Ping { to, part: 0 });
        }
        if !self.admit(header, place, is_newest, clock, is_ping) {
            return Ok(());
        }
        if is_ping {
            if is_newest {
                self.gossip.merge(payload);
            } else {
                let mut others = payload.to_vec();
                others[place] = NEVER;
                self.gossip.merge(&others);
            }
            if self.config.exchange == Exchange::Reply {
                let younger = self.gossip.younger(payload).map(|index| index as u32);
                let younger = younger.collect();
                self.reply(place, younger);
            }
        } else {
            self.hear_answer(place);
            for (index, age) in entries(payload) {
                self.gossip.merge_one(index, age);
            }
        }
        if is_newest {
            self.gossip.merge_one(place, 0);
        }
        self.judge_up();
        Ok(())
    }

    /// AG-09: whether a message with this clock counts.
    pub(super) fn admit(
        &mut self,
        header: &Header,
        place: usize,
        is_newest: bool,
        clock: u64,
        is_ping: bool,
    ) -> bool {
        if self.gossip.hear_clock(clock) == Freshness::Obsolete {
            self.counters.gossips_obsolete += 1;
            if is_ping {
                // Its clock sets that of a participant that has just begun.
                self.reply(place, Vec::new());
            }
            return false;
        }
        self.message_clock = Some(clock);
        if is_newest {
            self.heard(place, header.incarnation);
        }
        true
    }

    /// A ping has an age for each participant, and 0 for its sender; a reply has complete entries of
    /// participants.
    fn check_payload(&self, is_ping: bool, place: usize, payload: &[u8]) -> Result<(), Reject> {
        let count = self.ids.len();
        let is_right = match is_ping {
            true => payload.len() == count && payload[place] == 0,
            false => {
                payload.len().is_multiple_of(4) && entries(payload).all(|(index, _)| index < count)
            }
        };
        is_right.then_some(()).ok_or(Reject::Malformed)
    }

    pub(super) fn reply(&mut self, to: usize, entries: Vec<u32>) {
        if self.outgoing.len() >= REPLIES_MAX {
            self.counters.outbox_dropped += 1;
            return;
        }
        let to = to as u32;
        self.outgoing.push_back(Outgoing::Reply {
            to,
            entries,
            part: 0,
        });
    }
}
