//! Application traffic as evidence: messages replace beats, or carry them.
//!
//! A message that a local rank has received from a rank of a member counts like a beat of that member. A
//! beat to a member that a local rank has just sent a message to can be left out.
//!
//! A message may lie in a queue for long, and one received after its sender's death is no sign of life. So
//! it replaces one beat and no more: it extends a silence to at most one heartbeat after the last frame,
//! and of two beats in a row at least one is sent. The rest of a beat (digest, lateness) is then sent half
//! as often. A beat with acknowledgements to carry is always sent. Paper mode does not use application
//! traffic.
//!
//! A message can also carry the beat itself. The beat is written ahead, a part of a heartbeat before it is
//! due, and is taken out of the message by the receiver's agent. It is authenticated like any frame, and
//! brings digest and lateness. When the message was sent is not known, and it says nothing about the rails.
//! So it counts as much as the message that carried it.

use crate::frame::{self, FRAME_OVERHEAD, HEADER_SIZE, Header, Kind, TAG_SIZE};
use crate::identity::MemberId;
use crate::interface::Phase;
use crate::overlay::Overlay;
use crate::reject::Reject;
use crate::time::Instant;
use crate::wire::{Acks, Message};

/// Size of the longest beat written ahead: it carries no acknowledgements.
pub const BEAT_AHEAD_MAX: usize = FRAME_OVERHEAD + 2 + 8 + 1;
/// Beats in a row that are sent in any case after the peer has missed one.
const ALL_BEATS: u64 = 64;

impl Overlay {
    /// A local rank has received a message from a rank of this member, `age_us` ago.
    pub(super) fn traffic_from(&mut self, id: MemberId, age_us: u64) -> Result<(), Reject> {
        if self.table.in_view(id).is_none() {
            return Err(Reject::Unknown);
        }
        if !self.rules.uses_traffic || id == self.own {
            return Ok(());
        }
        let at = Instant(self.now.0.saturating_sub(age_us));
        if self.vouch(id, at) {
            self.counters.beats_stood_in += 1;
        }
        Ok(())
    }

    /// Takes a message as a sign of life; returns whether it is newer than the last one.
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

    /// A local rank has sent a message to a rank of this member, `age_us` ago.
    pub(super) fn traffic_to(&mut self, id: MemberId, age_us: u64) -> Result<(), Reject> {
        let at = Instant(self.now.0.saturating_sub(age_us));
        let link = self.links.get_mut(&id).ok_or(Reject::Unknown)?;
        link.said_at = link.said_at.max(at);
        Ok(())
    }

    /// This member asks for a beat although one was left out for it: it does not count application
    /// messages, or has none. All beats to it are sent for a while.
    pub(super) fn beats_are_missed(&mut self, id: MemberId) {
        let until = self.now.after(ALL_BEATS * self.config.heartbeat_us);
        if let Some(link) = self.links.get_mut(&id).filter(|link| link.left_out) {
            link.all_beats_until = until;
        }
    }

    /// Makes the beats of this heartbeat due, but for those that application messages replace. Not left out: the
    /// second in a row, and one with an acknowledgement to carry.
    pub(super) fn make_beats_due(&mut self) {
        let (now, heartbeat_us, uses) =
            (self.now, self.config.heartbeat_us, self.rules.uses_traffic);
        let acks = &self.news.acks;
        self.counters.beats_left_out += self.links.make_beats_due(|id, link| {
            let said = now.since(link.said_at) < heartbeat_us;
            uses && said && link.may_spare_beat(now) && !acks.contains_key(&id)
        });
    }

    /// Writes the next beat to a member ahead of time into `buffer`, for a message of the application.
    /// Returns its size, or `None` if that beat must go by the rails, as every second one does. The host
    /// reports `Input::TrafficTo` when a message has taken it: then the beat is left out. The buffer has
    /// [`BEAT_AHEAD_MAX`] bytes.
    pub fn write_ahead(&mut self, now: Instant, to: MemberId, buffer: &mut [u8]) -> Option<usize> {
        let key = self.config.key?;
        let sound =
            self.phase == Phase::Running && self.join.rejoin.is_none() && self.rules.uses_traffic;
        let link = self.links.get(&to).filter(|link| sound && link.observed)?;
        if !link.may_spare_beat(now) || now < self.next_ahead() || self.news.acks.contains_key(&to)
        {
            return None;
        }
        let receiver = self.receiver(to)?;
        let body_end = buffer.len().checked_sub(TAG_SIZE)?;
        let size = self.beat_body(buffer.get_mut(HEADER_SIZE..body_end)?, &Acks::default())?;
        self.news.sequence += 1;
        self.counters.beats_offered += 1;
        let header = Header {
            kind: Kind::Beat,
            sender: self.own,
            incarnation: self.own_version().incarnation,
            sequence: self.news.sequence,
            zone: self.config.zone.number,
        };
        Some(frame::seal(&key, header, receiver, buffer, size))
    }

    /// The heartbeat, in microseconds.
    #[must_use]
    pub fn heartbeat_us(&self) -> u64 {
        self.config.heartbeat_us
    }

    /// How long before its time a beat may be written ahead.
    fn ahead_us(&self) -> u64 {
        self.config.heartbeat_us / 4
    }

    /// When the next beats are due.
    #[must_use]
    pub fn next_beat(&self) -> Instant {
        self.news.beat_at
    }

    /// When the next beats may be written ahead.
    #[must_use]
    pub fn next_ahead(&self) -> Instant {
        Instant(self.news.beat_at.0.saturating_sub(self.ahead_us()))
    }

    /// Takes the bytes that a message of the application carried: a beat of a member in the view, or
    /// nothing.
    pub(super) fn carried(&mut self, bytes: &[u8], age_us: u64) -> Result<(), Reject> {
        let key = self.config.key.ok_or(Reject::NoKey)?;
        let opened = self.open_frame(&key, bytes)?;
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
        if !is_current || self.phase != Phase::Running || self.join.rejoin.is_some() {
            return Err(Reject::UnknownSender);
        }
        self.news
            .replay
            .accept(self.now, from, header.incarnation, header.sequence)?;
        self.counters.beats_carried += 1;
        self.table.note(from, |member| member.late_ms = late_ms);
        // It came before it was due; the next one comes when this one would have come.
        let at = Instant(self.now.0.saturating_sub(age_us)).after(self.ahead_us());
        if self.news.replay.advances(from, header.sequence) {
            self.vouch(from, at);
        } else if let Some(link) = self.links.get_mut(&from) {
            // A later beat came before it: no sign of life, and no gap.
            link.stood_in = true;
        }
        self.take_beat(from, digest);
        Ok(())
    }
}
