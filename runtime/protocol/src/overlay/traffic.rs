//! What the application's own messages say: they stand for beats.
//!
//! Intuition: who has just talked to you need not wave as well. A message that a rank of ours has had from a
//! rank of a member is as good as a beat of it, and a member to which a rank of ours has just sent one
//! need not get our beat, too.
//!
//! Complication: a message may lie long before it is taken, and one that was taken after its sender's death
//! is no sign of life. So it stands for one beat and no more: it moves the end of a silence to one
//! heartbeat after the last frame at most, and of two beats in a row one is sent whatever the application
//! says. What beats carry besides (digests, lateness) comes half as often then; acknowledgements that
//! wait make their beat go. In paper mode there is none of this.
//!
//! Better still, the message carries the beat: written ahead, a part of a heartbeat before it is due, it goes
//! in the application's own bytes, and the agent over there takes it out of them. It proves itself like any
//! frame, and brings digest and lateness along. When it was sent nobody knows, and of rails it says nothing:
//! so it counts for as much as the message that carried it, and no more.

use crate::frame::{self, FRAME_OVERHEAD, HEADER_SIZE, Header, Kind, TAG_SIZE};
use crate::identity::MemberId;
use crate::overlay::Overlay;
use crate::overlay::interface::Phase;
use crate::reject::Reject;
use crate::time::Instant;
use crate::wire::{Acks, Message};

/// Bytes of the longest beat written ahead: it carries no acknowledgements.
pub const BEAT_AHEAD_MAX: usize = FRAME_OVERHEAD + 2 + 8 + 1;
/// So many beats in a row are sent, whatever the application says, after the peer has missed one.
const ALL_BEATS: u64 = 64;

impl Overlay {
    /// A rank of ours has had a message from a rank of this member, so long ago.
    pub(super) fn traffic_from(&mut self, id: MemberId, age_us: u64) -> Result<(), Reject> {
        if self.table.in_view(id).is_none() {
            return Err(Reject::Unknown);
        }
        if self.is_paper() || id == self.own {
            return Ok(());
        }
        let at = Instant(self.now.0.saturating_sub(age_us));
        if self.vouch(id, at) {
            self.counters.beats_stood_in += 1;
        }
        Ok(())
    }

    /// A message says that this member lived then. Whether that is news.
    fn vouch(&mut self, id: MemberId, at: Instant) -> bool {
        let Some(member) = self.table.in_view(id) else {
            return false;
        };
        let at = at.min(member.last_heard.after(self.config.heartbeat_us));
        let is_news = at > member.alive_at();
        if is_news {
            self.table.note(id, |member| member.vouched_at = at);
            if let Some(link) = self.links.get_mut(&id) {
                link.stood_in = true;
            }
        }
        is_news
    }

    /// A rank of ours has sent a message to a rank of this member, so long ago.
    pub(super) fn traffic_to(&mut self, id: MemberId, age_us: u64) -> Result<(), Reject> {
        let at = Instant(self.now.0.saturating_sub(age_us));
        let link = self.links.get_mut(&id).ok_or(Reject::Unknown)?;
        link.said_at = link.said_at.max(at);
        Ok(())
    }

    /// This member asks for a sign when a beat to it was left out: it does not count the application's
    /// messages, or has none. It gets all our beats for a while.
    pub(super) fn beats_are_missed(&mut self, id: MemberId) {
        let until = self.now.after(ALL_BEATS * self.config.heartbeat_us);
        if let Some(link) = self.links.get_mut(&id).filter(|link| link.left_out) {
            link.all_beats_until = until;
        }
    }

    /// Whose beats of this heartbeat the application's messages have replaced: none whose last one was,
    /// too, nor one that has an acknowledgement to carry.
    pub(super) fn leave_out_beats(&mut self) {
        if self.is_paper() {
            return;
        }
        for (id, link) in &mut self.links {
            let said = self.now.since(link.said_at) < self.config.heartbeat_us;
            let spared = link.may_spare_beat(self.now) && !self.acks.contains_key(id);
            link.left_out = link.beat_due && said && spared;
            if link.left_out {
                link.beat_due = false;
                self.counters.beats_left_out += 1;
            }
        }
    }

    /// Writes the next beat to a member ahead of its time into `buffer`, for a message of the application, and
    /// says its size. `None` if that beat has to go by the rails, as every second one does. Say
    /// `Input::TrafficTo` when a message has taken it: then it is left out. The buffer has
    /// [`BEAT_AHEAD_MAX`] bytes.
    pub fn write_ahead(&mut self, now: Instant, to: MemberId, buffer: &mut [u8]) -> Option<usize> {
        let key = self.config.key?;
        let sound = self.phase == Phase::Running && self.rejoin.is_none() && !self.is_paper();
        let link = self.links.get(&to).filter(|link| sound && link.observed)?;
        if !link.may_spare_beat(now) || now < self.next_ahead() || self.acks.contains_key(&to) {
            return None;
        }
        let receiver = self.receiver(to)?;
        let body_end = buffer.len().checked_sub(TAG_SIZE)?;
        let size = self.beat_body(buffer.get_mut(HEADER_SIZE..body_end)?, &Acks::default())?;
        self.sequence += 1;
        self.counters.beats_offered += 1;
        let header = Header {
            kind: Kind::Beat,
            sender: self.own,
            incarnation: self.own_version().incarnation,
            sequence: self.sequence,
        };
        Some(frame::seal(&key, header, receiver, buffer, size))
    }

    /// From one beat to the next, in microseconds.
    #[must_use]
    pub fn heartbeat_us(&self) -> u64 {
        self.config.heartbeat_us
    }

    /// How long before it is due a beat may be written ahead.
    fn ahead_us(&self) -> u64 {
        self.config.heartbeat_us / 4
    }

    /// When the next beats go.
    #[must_use]
    pub fn next_beat(&self) -> Instant {
        self.beat_at
    }

    /// When the next beats may be written ahead.
    #[must_use]
    pub fn next_ahead(&self) -> Instant {
        Instant(self.beat_at.0.saturating_sub(self.ahead_us()))
    }

    /// A message of the application, had so long ago, carried these bytes: a beat of somebody in the view, or
    /// nothing.
    pub(super) fn carried(&mut self, bytes: &[u8], age_us: u64) -> Result<(), Reject> {
        let key = self.config.key.ok_or(Reject::NoKey)?;
        let opened = frame::open(&key, self.own, &self.incarnations, bytes)?;
        if opened.is_unaddressed {
            return Err(Reject::Malformed);
        }
        let (header, body, from) = (opened.header, opened.body, opened.header.sender);
        let message = Message::read(header.kind, body).map_err(|_| Reject::Malformed)?;
        let Message::Beat {
            late_ms, digest, ..
        } = message
        else {
            return Err(Reject::Malformed);
        };
        let member = self.table.in_view(from).filter(|_| from != self.own);
        let is_current = member.is_some_and(|m| m.version.incarnation == header.incarnation);
        if !is_current || self.phase != Phase::Running || self.rejoin.is_some() {
            return Err(Reject::UnknownSender);
        }
        self.replay
            .accept(self.now, from, header.incarnation, header.sequence)?;
        self.counters.beats_carried += 1;
        self.table.note(from, |member| member.late_ms = late_ms);
        // It came before it was due, and the next one comes when it would have come.
        let at = Instant(self.now.0.saturating_sub(age_us)).after(self.ahead_us());
        if self.replay.advances(from, header.sequence) {
            self.vouch(from, at);
        } else if let Some(link) = self.links.get_mut(&from) {
            // Something that was written later came before it: it is no sign of life, and no gap either.
            link.stood_in = true;
        }
        self.take_beat(from, digest);
        Ok(())
    }
}
