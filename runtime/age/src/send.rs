//! Writes gossip frames when a send slot is free.

use super::message::{Parameters, Part, entry};
use super::{Age, Choice};
use muster_wire::codec::Writer;
use muster_wire::frame::{self, FRAME_OVERHEAD, HEADER_SIZE, Header, Kind, Receiver, TAG_SIZE};
use muster_wire::identity::MemberId;
use muster_wire::interface::{Class, Route, Target, Transmit};
use muster_wire::time::Instant;

use super::health::Health;

/// Most replies waiting to be sent.
pub(super) const REPLIES_MAX: usize = 256;
/// Random draws to find a member that is not failed.
const TRIES_MAX: usize = 64;

/// A waiting message. Ages are written when it is sent.
#[derive(Clone, Debug)]
pub(super) enum Outgoing {
    /// The rest of a ping, from this part on. To a participant of which no frame has come in its present
    /// incarnation it is a request without ages: the answer tells its incarnation.
    Ping { to: u32, part: u16 },
    /// The ages of these participants, from this part on.
    Reply {
        to: u32,
        entries: Vec<u32>,
        part: u16,
    },
    /// The local parameters without ages: the answer to a request, and to a member with other parameters.
    Verify { to: Receiver, address: Vec<u8> },
}

impl Age {
    /// Writes the next frame into `buffer`; `None` if there is nothing to send now.
    pub fn poll_transmit(&mut self, now: Instant, buffer: &mut [u8]) -> Option<Transmit> {
        self.now = self.now.max(now);
        self.config.key?;
        if std::mem::take(&mut self.ping_due)
            && let Some(to) = self.next_target()
        {
            self.last_gossip = self.now;
            self.send_by_rails();
            self.counters.pings_sent += 1;
            // Before replies: there is one ping a cycle, and it matters most.
            self.outgoing.push_front(Outgoing::Ping { to, part: 0 });
        }
        let transmit = loop {
            let outgoing = self.outgoing.pop_front()?;
            if let Some(transmit) = self.write(outgoing, buffer) {
                break transmit;
            }
        };
        self.counters.frames_sent += 1;
        self.counters.bytes_sent += transmit.size as u64;
        Some(transmit)
    }

    pub(super) fn wants_to_send(&self) -> bool {
        self.ping_due || !self.outgoing.is_empty()
    }

    /// BG-03: a message of the application goes to `to`. If gossip may be carried by it now, writes one
    /// into `buffer` and returns its size; the receiver's host hands it in as a datagram. Ages that do not
    /// fit are sent as a datagram, at their time.
    #[must_use]
    pub fn piggyback(&mut self, now: Instant, to: MemberId, buffer: &mut [u8]) -> Option<usize> {
        self.advance(now);
        let factor = u64::from(self.config.piggyback_permille?);
        let to = self.place_of(to).ok()? as u32;
        let pause_us = self.config.interval_us * factor / 1000;
        let is_due = self.now.since(self.last_gossip) >= pause_us;
        if self.receivers[to as usize] == 0
            || !is_due
            || !self.is_running
            || self.config.key.is_none()
        {
            return None;
        }
        let parameters = self.carries_parameters().then(|| self.parameters());
        let head = FRAME_OVERHEAD + Part::head_size(parameters.as_ref());
        if buffer.len().min(self.config.mtu) < head + self.ids.len() {
            return None;
        }
        let transmit = self.write(Outgoing::Ping { to, part: 0 }, buffer)?;
        self.last_gossip = self.now;
        self.ping_at = self.now.after(self.config.interval_us);
        self.ping_due = false;
        self.counters.gossips_piggybacked += 1;
        Some(transmit.size)
    }

    /// AG-05: in as many cycles as there are participants, counted from each start of gossip.
    pub(super) fn carries_parameters(&self) -> bool {
        self.parameter_cycles <= self.ids.len() as u64
    }

    pub(super) fn parameters(&self) -> Parameters<'_> {
        Parameters {
            // At most ten minutes, and at most 2^20 participants.
            interval_us: self.config.interval_us as u32,
            members: self.ids.len() as u32,
            digest: self.digest,
            address: self.config.participants[self.place].address.as_bytes(),
        }
    }

    /// The target of the ping that is due.
    fn next_target(&mut self) -> Option<u32> {
        let ahead = self.ahead.take().filter(|_| self.asked_for.is_none());
        ahead.or_else(|| self.choose())
    }

    /// AG-08, BG-01, BG-02: a random other participant.
    pub(super) fn choose(&mut self) -> Option<u32> {
        if let Some(asked) = self.asked_for.take() {
            return Some(asked);
        }
        for _ in 0..TRIES_MAX {
            let is_near = match self.config.choice {
                Choice::Uniform => {
                    let others = (self.near.len() + self.far.len()) as u64;
                    self.random(others) < self.near.len() as u64
                }
                Choice::Local { permille } => self.random(1000) < u64::from(permille),
            };
            let is_near = (is_near && !self.near.is_empty()) || self.far.is_empty();
            let count = if is_near { &self.near } else { &self.far }.len();
            let at = self.random(count as u64) as usize;
            let chosen = if is_near { self.near[at] } else { self.far[at] };
            let is_listed = matches!(
                self.health[chosen as usize],
                Health::Alive | Health::Suspect
            );
            if is_listed || self.config.pings_dead {
                return Some(chosen);
            }
        }
        None
    }

    /// A participant, and the receiver of frames to it.
    fn target(&self, to: u32) -> (Target, Receiver) {
        let id = self.ids[to as usize];
        let receiver = match self.receivers[to as usize] {
            0 => Receiver::Anyone,
            incarnation => Receiver::Member(id, incarnation),
        };
        (Target::Member(id), receiver)
    }

    /// Answers a request, or refuses: once for each receiver, until it is sent.
    pub(super) fn verify(&mut self, to: Receiver, address: &[u8]) {
        let is_it =
            |one: &Outgoing| matches!(one, Outgoing::Verify { to: other, .. } if *other == to);
        if self.outgoing.iter().any(is_it) {
            return;
        }
        if self.outgoing.len() >= REPLIES_MAX {
            self.counters.outbox_dropped += 1;
            return;
        }
        let address = address.to_vec();
        self.outgoing.push_back(Outgoing::Verify { to, address });
    }

    /// Writes one part, and puts back the rest of the message.
    fn write(&mut self, outgoing: Outgoing, buffer: &mut [u8]) -> Option<Transmit> {
        let carries = self.carries_parameters() || matches!(outgoing, Outgoing::Verify { .. });
        if let Outgoing::Verify { address, .. } = &outgoing {
            self.verify_address.clone_from(address);
        }
        if let Outgoing::Ping { to, .. } = &outgoing
            && self.receivers[*to as usize] == 0
        {
            self.requested = Some(*to);
        }
        let parameters = carries.then(|| self.parameters());
        let (kind, (target, receiver), elements, size, part) = match &outgoing {
            Outgoing::Ping { to, part } => {
                let target = self.target(*to);
                match target.1 {
                    Receiver::Anyone => (Kind::Gossip, target, 0, 1, 0),
                    Receiver::Member(..) => (Kind::Gossip, target, self.ids.len(), 1, *part),
                }
            }
            Outgoing::Reply { to, entries, part } => {
                (Kind::GossipReply, self.target(*to), entries.len(), 4, *part)
            }
            Outgoing::Verify { to, .. } => (Kind::GossipReply, (Target::Address(0), *to), 0, 4, 0),
        };
        if receiver == Receiver::Anyone && kind != Kind::Gossip {
            // It failed since it sent the message to be answered.
            return None;
        }
        let room = buffer.len().min(self.config.mtu);
        let room = room.checked_sub(FRAME_OVERHEAD + Part::head_size(parameters.as_ref()))?;
        let a_part = (room / size).max(1);
        let parts = elements.div_ceil(a_part).max(1);
        let range = usize::from(part) * a_part..elements.min((usize::from(part) + 1) * a_part);
        let head = Part {
            clock: self.gossip.clock(),
            part,
            parts: u16::try_from(parts).ok()?,
            parameters,
            payload: &[],
        };
        let end = buffer.len() - TAG_SIZE;
        let mut writer = Writer::new(&mut buffer[HEADER_SIZE..end]);
        head.write_head(&mut writer).ok()?;
        let ages = self.gossip.ages();
        match &outgoing {
            Outgoing::Ping { .. } => writer.bytes(&ages[range]).ok()?,
            Outgoing::Reply { entries, .. } => {
                for index in &entries[range] {
                    let index = *index as usize;
                    writer.u32(entry(index, ages[index])).ok()?;
                }
            }
            Outgoing::Verify { .. } => {}
        }
        let used = writer.used();
        let (is_last, is_first) = (usize::from(part) + 1 == parts, part == 0);
        if is_first && let Outgoing::Reply { entries, .. } = &outgoing {
            self.counters.replies_sent += 1;
            self.counters.reply_entries += entries.len() as u64;
        }
        if !is_last {
            self.outgoing.push_front(match outgoing {
                Outgoing::Ping { to, .. } => Outgoing::Ping { to, part: part + 1 },
                Outgoing::Reply { to, entries, .. } => Outgoing::Reply {
                    to,
                    entries,
                    part: part + 1,
                },
                other @ Outgoing::Verify { .. } => other,
            });
        }
        self.sequence += 1;
        let header = Header {
            kind,
            sender: self.own,
            incarnation: self.config.incarnation,
            sequence: self.sequence,
            zone: 0,
        };
        let key = self.config.key.as_ref()?;
        Some(Transmit {
            target,
            size: frame::seal(key, header, receiver, buffer, used),
            class: Class::News,
            route: Route::Next,
        })
    }
}
