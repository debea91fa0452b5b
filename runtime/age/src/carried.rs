//! Carried gossip: the content of a ping inside a message of the application, in half a byte for each
//! participant (BG-03). A message to the node that is pinged next replaces the ping.
//!
//! ```text
//!  0       8      12                                          (N + 1) / 2 bytes
//!  | clock | list | ages, half a byte each, the lower half first | ...
//! ```
//! It is a frame of its own kind. `list` is the head of the participants' digest. Ages are in the order of
//! the participants, 0 to 14; 15 means "older, or not known", and counts as not known. So what is left out
//! makes no member young, and a window of a vector is merged like a vector.
//!
//! - The target of the next ping is drawn as ever, a fraction P of an interval after the last ping was due.
//!   A message to that member, until the ping is due, carries it; then no datagram is sent. Without such a
//!   message the ping is sent to the same member. Messages to other members carry nothing: gossip would
//!   spread as the application's messages do, and two halves of a job that do not communicate would hold
//!   each other failed. The thresholds are safe only for random targets.
//! - It is answered like a ping, unless it is obsolete. A message that took it may arrive late or never: a
//!   member that sends only into queues that are not emptied would be held failed. So after one that is not
//!   answered until the next is due, some pings are sent by the rails.
//! - A message may wait for long at its receiver; its clock is behind by then, and it is obsolete like any
//!   other. The time that it waited at the receiver's agent is added to its ages.
//! - It has no parameters, so all pings of the first cycles, which have them, are datagrams. A vector that
//!   does not fit completely is always sent as a datagram: a part of it would be a slower gossip.

use super::gossip::NEVER;
use super::{Age, Exchange, vector};
use muster_wire::codec::{Full, Malformed, Reader, Writer};
use muster_wire::frame::{self, FRAME_OVERHEAD, HEADER_SIZE, Header, Kind, Receiver, TAG_SIZE};
use muster_wire::identity::{MemberId, is_plausible};
use muster_wire::interface::Phase;
use muster_wire::reject::Reject;
use muster_wire::time::Instant;

/// Size of the longest frame for a message of the application.
pub const GOSSIP_AHEAD_MAX: usize = 112;
/// Most participants whose ages fit into it.
pub const GOSSIP_AHEAD_MEMBERS_MAX: usize = (GOSSIP_AHEAD_MAX - FRAME_OVERHEAD - HEAD_SIZE) * 2;

const HEAD_SIZE: usize = 8 + 4;
/// Pings sent by the rails after a carried one that was not answered. So at most one of nine is lost, as
/// thresholds allow. An answer that comes when the next one is carried does not count for the one before,
/// which is obsolete by then.
const HELD_BACK: u8 = 8;
/// An age that is greater than can be sent.
const OLDER: u8 = 15;

/// A carried ping, parsed.
#[derive(Debug, PartialEq, Eq)]
struct Carried {
    clock: u64,
    list: u32,
    /// An age greater than can be sent becomes the greatest one.
    ages: Vec<u8>,
}

impl Carried {
    fn read(body: &[u8], participants: usize) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let (clock, list) = (reader.u64()?, reader.u32()?);
        let packed = reader.rest();
        if packed.len() != participants.div_ceil(2) {
            return Err(Malformed::Value);
        }
        let halves = packed.iter().flat_map(|byte| [byte & 0xf, byte >> 4]);
        let ages = halves.map(|age| if age == OLDER { NEVER } else { age });
        Ok(Self {
            clock,
            list,
            ages: ages.take(participants).collect(),
        })
    }

    fn write(writer: &mut Writer<'_>, clock: u64, list: u32, ages: &[u8]) -> Result<(), Full> {
        writer.u64(clock)?;
        writer.u32(list)?;
        for pair in ages.chunks(2) {
            let [low, high] =
                [0, 1].map(|half| pair.get(half).map_or(OLDER, |age| OLDER.min(*age)));
            writer.u8(low | high << 4)?;
        }
        Ok(())
    }
}

/// An age after being carried.
#[cfg(test)]
pub(super) fn told(ages: &[u8]) -> Vec<u8> {
    let mut body = vec![0; HEAD_SIZE + ages.len().div_ceil(2)];
    Carried::write(&mut Writer::new(&mut body), 0, 0, ages).expect("room for all");
    Carried::read(&body, ages.len()).expect("its length").ages
}

impl Age {
    /// The target of the next ping, if a message to it may carry the ping now.
    pub fn draw_ahead(&mut self, now: Instant) -> Option<MemberId> {
        if !self.may_ride(now) {
            return None;
        }
        if self.ahead.is_none() {
            self.ahead = self.choose();
        }
        // The first ping to a participant is sent by the rails: it must answer before.
        let ahead = self.ahead.filter(|at| self.receivers[*at as usize] != 0);
        ahead.map(|at| self.ids[at as usize])
    }

    /// Writes the next ping for a message of the application to `to`, the result of [`Age::draw_ahead`],
    /// and returns its size. The host reports `Input::TrafficTo` when the ping is due and a message has
    /// taken it: then no ping is sent. The buffer has [`GOSSIP_AHEAD_MAX`] bytes.
    pub fn write_ahead(&mut self, now: Instant, to: MemberId, buffer: &mut [u8]) -> Option<usize> {
        let key = self.config.key?;
        let receiver = match self.receivers[self.place_of(to).ok()?] {
            0 => return None,
            incarnation => Receiver::Member(to, incarnation),
        };
        let to = self.place_of(to).ok()? as u32;
        if self.ahead != Some(to) || !self.may_ride(now) {
            return None;
        }
        let body_end = buffer.len().checked_sub(TAG_SIZE)?;
        let mut writer = Writer::new(buffer.get_mut(HEADER_SIZE..body_end)?);
        let (clock, list) = (self.gossip.clock(), self.list());
        Carried::write(&mut writer, clock, list, self.gossip.ages()).ok()?;
        let size = writer.used();
        self.sequence += 1;
        self.has_answered = false;
        self.counters.gossips_offered += 1;
        let header = Header {
            kind: Kind::GossipCarried,
            sender: self.own,
            incarnation: self.config.incarnation,
            sequence: self.sequence,
            zone: 0,
        };
        Some(frame::seal(&key, header, receiver, buffer, size))
    }

    /// When the next ping is sent as a datagram, if nothing carries it.
    #[must_use]
    pub fn next_ping(&self) -> Instant {
        match self.ping_due {
            true => self.now,
            false => self.ping_at,
        }
    }

    /// From when on the ping after the next may be carried.
    #[must_use]
    pub fn following_ahead(&self, now: Instant) -> Instant {
        let next = match self.ping_at <= now {
            true => self.ping_at.after(self.config.interval_us),
            false => self.ping_at,
        };
        Instant(next.0.saturating_sub(self.ahead_us()))
    }

    /// How long before its time a ping may be carried.
    fn ahead_us(&self) -> u64 {
        let factor = self.config.piggyback_permille.unwrap_or(1000).min(1000);
        self.config.interval_us * u64::from(1000 - factor) / 1000
    }

    /// Whether a message may carry the next ping now. A ping to a member that the host misses on a rail is
    /// sent by the rails.
    fn may_ride(&self, now: Instant) -> bool {
        let is_time = !self.ping_due && now.after(self.ahead_us()) >= self.ping_at;
        let fits = self.ids.len() <= GOSSIP_AHEAD_MEMBERS_MAX;
        let is_sound = self.started && self.is_running && self.phase == Phase::Running;
        let is_asked = self.config.piggyback_permille.is_some() && self.config.key.is_some();
        is_asked
            && is_time
            && fits
            && is_sound
            && !self.carries_parameters()
            && self.asked_for.is_none()
            && self.held_back == 0
    }

    /// A message has carried the ping that is due.
    pub(super) fn leave_out_ping(&mut self, to: usize) {
        if self.ping_due && self.ahead == Some(to as u32) && self.asked_for.is_none() {
            (self.ping_due, self.ahead) = (false, None);
            self.last_gossip = self.now;
            if !std::mem::take(&mut self.has_answered) {
                (self.unanswered, self.held_back) = (Some(to as u32), HELD_BACK);
            }
            self.counters.gossips_piggybacked += 1;
        }
    }

    /// Takes an answer of the target of the present or the last carried ping.
    pub(super) fn hear_answer(&mut self, from: usize) {
        let from = Some(from as u32);
        self.has_answered |= self.ahead == from;
        if self.unanswered == from {
            (self.unanswered, self.held_back) = (None, 0);
        }
    }

    /// A ping is sent by the rails: answers may be to this one from now on.
    pub(super) fn send_by_rails(&mut self) {
        self.unanswered = None;
        self.held_back = self.held_back.saturating_sub(1);
    }

    /// Takes the bytes that a message of the application carried: gossip of a participant, or nothing.
    pub(super) fn carried(&mut self, bytes: &[u8], age_us: u64) -> Result<(), Reject> {
        let key = self.config.key.ok_or(Reject::NoKey)?;
        let opened = frame::open(&key, 0, self.own, &[self.config.incarnation], bytes)?;
        let (header, body) = (opened.header, opened.body);
        if header.kind != Kind::GossipCarried || opened.is_unaddressed {
            return Err(Reject::Malformed);
        }
        let place = self
            .place_of(header.sender)
            .map_err(|_| Reject::UnknownSender)?;
        if !is_plausible(header.incarnation, self.incarnations[place]) {
            self.counters.incarnations_refused += 1;
            return Err(Reject::Malformed);
        }
        let message = Carried::read(body, self.ids.len()).map_err(|_| Reject::Malformed)?;
        self.replay
            .accept(self.now, header.sender, header.incarnation, header.sequence)?;
        if !self.is_running {
            return Err(Reject::Stopped);
        }
        if message.list != self.list() {
            // A ping of either side tells the difference.
            return Err(Reject::Parameters);
        }
        if message.ages[place] != 0 {
            return Err(Reject::Malformed);
        }
        self.counters.gossips_carried += 1;
        let is_newest = self.is_newest(place, &header, 0);
        // An answer to an obsolete one would say that it was useful.
        if !self.admit(&header, place, is_newest, message.clock, false) {
            return Ok(());
        }
        let mut ages = message.ages;
        // An answer certainly has younger ages.
        let least: Vec<u8> = ages.iter().map(|age| OLDER.min(*age)).collect();
        let lain = u8::try_from(age_us / self.config.interval_us).unwrap_or(u8::MAX);
        vector::grow_older(&mut ages, lain);
        if !is_newest {
            ages[place] = NEVER;
        }
        self.gossip.merge(&ages);
        if self.config.exchange == Exchange::Reply {
            let younger = self.gossip.younger(&least).map(|index| index as u32);
            let younger = younger.collect();
            self.reply(place, younger);
        }
        if is_newest {
            self.gossip.merge_one(place, lain);
        }
        self.judge_up();
        Ok(())
    }

    /// The head of the digest.
    fn list(&self) -> u32 {
        let [a, b, c, d, ..] = self.digest;
        u32::from_le_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A frame is read back as written, except for ages too old to be sent; any bytes are parsed or
        /// rejected.
        #[test]
        fn any_bytes_are_read_or_refused(
            clock: u64, list: u32, garbage in proptest::collection::vec(any::<u8>(), 0..100),
            ages in proptest::collection::vec(any::<u8>(), 2..=GOSSIP_AHEAD_MEMBERS_MAX),
        ) {
            let mut body = [0; GOSSIP_AHEAD_MAX - FRAME_OVERHEAD];
            let mut writer = Writer::new(&mut body);
            Carried::write(&mut writer, clock, list, &ages).expect("it fits");
            let used = writer.used();
            let kept = ages.iter().map(|age| if *age < OLDER { *age } else { NEVER }).collect();
            let carried = Carried { clock, list, ages: kept };
            prop_assert_eq!(Carried::read(&body[..used], ages.len()), Ok(carried));
            // A vector of another length.
            prop_assert!(Carried::read(&body[..used - 1], ages.len()).is_err());
            prop_assert!(Carried::read(&body[..used], ages.len() + 2).is_err());
            let _ = Carried::read(&garbage, ages.len());
        }
    }
}
