//! Parameter check: a member whose parameters differ is refused, told so, and named to the application.

use crate::cause::{Cause, CauseKind};
use crate::event::{Event, EventKind};
use crate::frame::{self, Header, Receiver};
use crate::identity::{MemberId, Version};
use crate::overlay::Overlay;
use crate::overlay::outbox::Intent;
use crate::parameter::{Difference, Parameter};
use crate::reject::Reject;
use crate::reporters::Reporters;
use crate::sorted::SortedMap;
use crate::time::Instant;
use crate::wire::{Message, NodeFact};

/// Most refused members remembered. Beyond them members are still refused, and named to the application
/// again.
const REFUSED_MAX: usize = 64;

/// A member whose frames are refused.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    name: Box<str>,
    incarnation: u64,
    difference: Difference,
    answered_at: Instant,
}

pub(super) type RefusedMembers = SortedMap<MemberId, Refused>;

impl Overlay {
    /// Compares the parameters in a message that introduces its sender with the local ones.
    pub(super) fn check_parameters(
        &mut self,
        header: Header,
        message: &Message<'_>,
    ) -> Result<(), Reject> {
        let (own, theirs, is_refusal) = match message {
            Message::Link {
                own, parameters, ..
            }
            | Message::Join {
                own, parameters, ..
            }
            | Message::Verify {
                own, parameters, ..
            } => (own, parameters, false),
            Message::Refusal { own, parameters } => (own, parameters, true),
            _ => return Ok(()),
        };
        let Some(difference) = self.config.parameters().difference(theirs) else {
            self.join.refused.remove(&header.sender);
            return Ok(());
        };
        self.note_refused(own.id, own.name.into(), own.version.incarnation, difference);
        if !is_refusal {
            self.answer_refused(own);
        }
        Err(Reject::Parameters)
    }

    /// Why a frame of a zone that the local node is no member of is refused, if its sender has divided the job
    /// otherwise: then the numbers of the zones mean nothing, and both report it.
    pub(super) fn check_zones(&mut self, key: &[u8; 32], bytes: &[u8]) -> Option<Reject> {
        let (zone, incarnations) = (frame::zone(bytes)?, &self.news.incarnations);
        let opened = frame::open(key, zone, self.own, incarnations, bytes).ok()?;
        let message = Message::read(opened.header.kind, opened.body).ok()?;
        let (Message::Join {
            own, parameters, ..
        }
        | Message::Refusal { own, parameters }) = &message
        else {
            return None;
        };
        if own.id != opened.header.sender || parameters.zones == self.config.zone.map_digest {
            return None;
        }
        self.check_parameters(opened.header, &message).err()
    }

    /// An authentic frame of age gossip: a member of the job that runs the other engine.
    pub(super) fn refuse_engine(&mut self, id: MemberId) {
        let difference = Difference::new(Parameter::Protocol, 0, 1);
        self.note_refused(id, Box::from(""), 0, difference);
    }

    /// The name of a member that is refused.
    pub(super) fn refused_name(&self, id: MemberId) -> Option<&str> {
        let name = self.join.refused.get(&id).map(|refused| &*refused.name);
        name.filter(|name| !name.is_empty())
    }

    /// Remembers a refused member. Tells the application once for each incarnation and parameter.
    pub(super) fn note_refused(
        &mut self,
        id: MemberId,
        name: Box<str>,
        incarnation: u64,
        difference: Difference,
    ) {
        let known = self.join.refused.get(&id);
        if known
            .is_some_and(|known| (known.incarnation, known.difference) == (incarnation, difference))
        {
            return;
        }
        if known.is_none() && self.join.refused.len() >= REFUSED_MAX {
            self.join.refused.pop_first();
            self.counters.refused_forgotten += 1;
        }
        let refused = Refused {
            name,
            incarnation,
            difference,
            answered_at: Instant::default(),
        };
        self.join.refused.insert(id, refused);
        let cause = Cause {
            kind: CauseKind::Announced,
            reporters: Reporters::default(),
            silent_us: 0,
        };
        self.push_event(Event {
            at: self.now,
            kind: EventKind::Refused(difference),
            member: id,
            version: Version::first(incarnation),
            cause,
        });
    }

    /// Sends the local parameters to a refused member, at most once a heartbeat.
    fn answer_refused(&mut self, own: &NodeFact<'_>) {
        let (now, heartbeat_us) = (self.now, self.config.heartbeat_us);
        let Some(refused) = self.join.refused.get_mut(&own.id) else {
            return;
        };
        if refused.answered_at != Instant::default()
            && now.since(refused.answered_at) < heartbeat_us
        {
            return;
        }
        refused.answered_at = now;
        let to = Receiver::Member(own.id, own.version.incarnation);
        self.enqueue_to_address(to, own.address, |slot| Intent::Refuse { slot });
    }
}
