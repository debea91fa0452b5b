//! The store: all replicas of one engine, its requests, and its replies.
//!
//! A map that is behind has one pending request: the member asked, the wanted version, and the time to ask
//! again. Frames are written when a slot is free. A reply is a window of bytes, after which the requester
//! says how far it has come. So a sender keeps no state of a transfer beyond its window, and what is lost
//! is requested again.

use std::collections::{BTreeSet, VecDeque};

use crate::attributes::message::{Ask, PIECE_SIZE, Piece, SECTION_SIZE, Section};
use crate::attributes::pending::{Pending, PendingRequests};
use crate::attributes::replica::Replica;
use crate::attributes::{MONITOR_KEY, Map};
use crate::codec::{Full, Writer};
use crate::event::KeyHandle;
use crate::identity::MemberId;
use crate::sorted::{SortedMap, SortedSet};
use crate::time::Instant;

/// Bytes of replies for one frame of requests.
const WINDOW_BYTES: usize = 32_768;
/// Most members served at a time; others ask again.
const ASKERS_MAX: usize = 64;
/// Most keys of events kept.
const KEYS_MAX: usize = 8192;
/// Most times that the timeout for a reply doubles.
const BACKOFF_MAX: u32 = 6;
/// Unanswered requests to one member before all neighbours are asked.
const TRIES_MAX: u32 = 2;
/// Smallest part of a value, in bytes.
const PART_MIN: usize = 64;

/// What one requester still lacks of one map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    after: u64,
    settled: u64,
    partial: u64,
    offset: usize,
}

#[derive(Clone, Debug, Default)]
struct Answers {
    budget: usize,
    maps: SortedMap<MemberId, Answer>,
}

#[derive(Clone, Debug)]
pub(crate) struct Store {
    replicas: SortedMap<MemberId, Box<Replica>>,
    pub(crate) pending: PendingRequests,
    /// Maps to request, by the member to ask; with whether all neighbours are asked.
    asks: SortedMap<MemberId, SortedMap<MemberId, bool>>,
    answers: SortedMap<MemberId, Answers>,
    served: MemberId,
    pub(crate) monitors: BTreeSet<MemberId>,
    /// Those that the host appointed.
    pub(crate) appointed: BTreeSet<MemberId>,
    keys: VecDeque<Box<[u8]>>,
    keys_end: u64,
    /// Maps that were refused for lack of room.
    refused: SortedSet<MemberId>,
    /// Maps with certificates, each once, by the time of the oldest.
    expiring: SortedSet<(Instant, MemberId)>,
    bytes: usize,
    limit: usize,
}

impl Store {
    /// A store without replicas; all replicas together may use `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            replicas: SortedMap::new(),
            pending: PendingRequests::default(),
            asks: SortedMap::new(),
            answers: SortedMap::new(),
            served: MemberId(0),
            monitors: BTreeSet::new(),
            appointed: BTreeSet::new(),
            keys: VecDeque::new(),
            keys_end: 0,
            refused: SortedSet::new(),
            expiring: SortedSet::new(),
            bytes: 0,
            limit,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&self, owner: MemberId) -> Option<&Replica> {
        self.replicas.get(&owner).map(|replica| &**replica)
    }

    pub(crate) fn map(&self, owner: MemberId) -> Option<&Map> {
        self.get(owner).map(|replica| &replica.map)
    }

    pub(crate) fn version(&self, owner: MemberId) -> u64 {
        self.map(owner).map_or(0, |map| map.version)
    }

    /// The replica of this incarnation; that of an older one is replaced by an empty one.
    pub(crate) fn open(&mut self, owner: MemberId, incarnation: u64) {
        let held = self.replicas.get(&owner);
        if held.is_none_or(|held| held.incarnation != incarnation) {
            self.forget(owner);
            self.replicas
                .insert(owner, Box::new(Replica::new(incarnation)));
        }
    }

    /// Changes a replica, and updates the count of bytes, the monitors, the refused maps and the certificates.
    /// `change` gets the replica and the bytes that it may use.
    pub(crate) fn change<T>(
        &mut self,
        owner: MemberId,
        change: impl FnOnce(&mut Replica, usize) -> T,
    ) -> Option<T> {
        let replica = self.replicas.get_mut(&owner)?;
        let before = replica.bytes();
        let limit = (self.limit + before).saturating_sub(self.bytes);
        let result = change(replica, limit);
        self.bytes = self.bytes + replica.bytes() - before;
        let since = replica.map.certified_since();
        if since != replica.expiring {
            let before = core::mem::replace(&mut replica.expiring, since);
            before.map(|since| self.expiring.remove(&(since, owner)));
            since.map(|since| self.expiring.insert((since, owner)));
        }
        if replica.map.get(MONITOR_KEY).is_some() {
            self.monitors.insert(owner);
        } else {
            self.monitors.remove(&owner);
        }
        if replica.refused {
            self.refused.insert(owner);
        } else {
            self.refused.remove(&owner);
        }
        Some(result)
    }

    /// The incarnation of the writer is over.
    pub(crate) fn forget(&mut self, owner: MemberId) {
        if let Some(replica) = self.replicas.remove(&owner) {
            self.bytes -= replica.bytes();
            let since = replica.expiring;
            since.map(|since| self.expiring.remove(&(since, owner)));
        }
        self.monitors.remove(&owner);
        self.refused.remove(&owner);
        self.pending.remove(owner);
        self.answers.remove(&owner);
        self.asks.remove(&owner);
    }

    /// Maps that were refused for lack of room, if there may be some now.
    pub(crate) fn take_refused(&mut self) -> Vec<(MemberId, u64)> {
        let refused = core::mem::take(&mut self.refused).into_iter();
        refused
            .filter_map(|owner| {
                let replica = self.replicas.get_mut(&owner)?;
                replica.refused = false;
                Some((owner, replica.known))
            })
            .collect()
    }

    /// Drops all requests and replies.
    pub(crate) fn quiet(&mut self) {
        self.pending.clear();
        self.asks.clear();
        self.answers.clear();
    }

    /// Maps that have certificates.
    #[cfg(test)]
    pub(crate) fn expiring(&self) -> usize {
        self.expiring.len()
    }

    /// Drops expired certificates.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some((since, owner)) = self.expiring.first().copied()
            && now >= since.after(crate::attributes::CERTIFICATE_LIFE_US)
        {
            self.expiring.pop_first();
            self.change(owner, |replica, _| replica.map.expire(now));
        }
    }

    /// Keeps the key of an event.
    pub(crate) fn remember(&mut self, key: Box<[u8]>) -> KeyHandle {
        if self.keys.len() == KEYS_MAX {
            self.keys.pop_front();
        }
        self.keys.push_back(key);
        self.keys_end += 1;
        KeyHandle(self.keys_end - 1)
    }

    pub(crate) fn changed_key(&self, handle: KeyHandle) -> Option<&[u8]> {
        let back = self.keys_end.checked_sub(handle.0)? as usize;
        let at = self.keys.len().checked_sub(back)?;
        self.keys.get(at).map(|key| &**key)
    }

    // Requests.

    /// Requests the newer entries of a map, up to `version`, from one member.
    pub(crate) fn request(
        &mut self,
        owner: MemberId,
        version: u64,
        target: MemberId,
        due: Instant,
    ) {
        self.asks.get_or_default(target).insert(owner, false);
        self.pending.set(
            owner,
            Pending {
                version,
                target: Some(target),
                due,
                tries: 0,
            },
        );
    }

    /// Requests them from all of these members.
    pub(crate) fn request_all(
        &mut self,
        owner: MemberId,
        targets: impl Iterator<Item = MemberId>,
        now: Instant,
        wait_us: u64,
    ) {
        let Some(mut pending) = self.pending.get(owner) else {
            return;
        };
        pending.target = None;
        pending.due = now.after(wait_us << pending.tries.min(BACKOFF_MAX));
        pending.tries += 1;
        self.pending.set(owner, pending);
        for target in targets {
            self.asks.get_or_default(target).insert(owner, true);
        }
    }

    /// The member asked did not reply in time: ask again. Returns false if it was asked often enough.
    pub(crate) fn request_again(&mut self, owner: MemberId, now: Instant, wait_us: u64) -> bool {
        let Some(mut pending) = self.pending.get(owner) else {
            return true;
        };
        let Some(target) = pending.target.filter(|_| pending.tries < TRIES_MAX) else {
            return false;
        };
        pending.tries += 1;
        pending.due = now.after(wait_us << pending.tries);
        self.pending.set(owner, pending);
        self.asks.get_or_default(target).insert(owner, false);
        true
    }

    /// This member has sent something: it is working on all requests.
    pub(crate) fn heard(&mut self, from: MemberId, due: Instant) {
        self.pending.heard(from, due);
    }

    /// The member's window is over, and some of it is late or lost: ask again soon.
    pub(crate) fn hurry(&mut self, from: MemberId, due: Instant) {
        self.pending.hurry(from, due);
    }

    /// The member's window is over: repeat all requests to it.
    pub(crate) fn ask_on(&mut self, from: MemberId) {
        let mut owners = self.pending.asked_of(from).peekable();
        if owners.peek().is_some() {
            let asks = self.asks.get_or_default(from);
            asks.extend(owners.map(|owner| (owner, false)));
        }
    }

    pub(crate) fn has_asks(&self) -> bool {
        !self.asks.is_empty()
    }

    /// Writes requests to one member, as many as fit.
    pub(crate) fn write_asks(&mut self, writer: &mut Writer<'_>) -> Result<Option<MemberId>, Full> {
        while let Some((to, mut maps)) = self.asks.pop_first() {
            let count_at = writer.used();
            writer.u16(0)?;
            let mut count = 0;
            while let Some((owner, push)) = maps.pop_first() {
                let Some(replica) = self.replicas.get(&owner) else {
                    continue;
                };
                let before = writer.used();
                if replica.ask(owner, push).write(writer).is_err() {
                    writer.rewind(before);
                    maps.insert(owner, push);
                    self.asks.insert(to, maps);
                    break;
                }
                count += 1;
            }
            if count > 0 {
                writer.patch_u16(count_at, count);
                return Ok(Some(to));
            }
            writer.rewind(count_at);
        }
        Ok(None)
    }

    // Replies.

    /// Takes a request; returns false if there is no room.
    pub(crate) fn asked(&mut self, from: MemberId, asks: &[Ask]) -> bool {
        if !self.answers.contains_key(&from) && self.answers.len() >= ASKERS_MAX {
            return false;
        }
        let answers = self.answers.get_or_default(from);
        answers.budget = WINDOW_BYTES;
        for ask in asks {
            let Some(replica) = self.replicas.get(&ask.owner) else {
                continue;
            };
            let newer = replica.map.version > ask.after;
            if replica.incarnation != ask.incarnation || (ask.push && !newer) {
                continue;
            }
            let answer = Answer {
                after: ask.after,
                settled: ask.settled,
                partial: ask.partial,
                offset: ask.offset as usize,
            };
            answers.maps.insert(ask.owner, answer);
        }
        if answers.maps.is_empty() {
            self.answers.remove(&from);
        }
        true
    }

    pub(crate) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Writes a frame of replies for the next requester in turn.
    pub(crate) fn write_answers(
        &mut self,
        writer: &mut Writer<'_>,
    ) -> Result<Option<MemberId>, Full> {
        let after = (
            core::ops::Bound::Excluded(self.served),
            core::ops::Bound::Unbounded,
        );
        let next = self.answers.range(after).next();
        let Some(to) = next.or(self.answers.first_key_value()).map(|(to, _)| *to) else {
            return Ok(None);
        };
        self.served = to;
        let Some(mut answers) = self.answers.remove(&to) else {
            return Ok(None);
        };
        let stop_at = writer.used();
        writer.u8(0)?;
        let count_at = writer.used();
        writer.u16(0)?;
        let mut count = 0;
        while let Some((owner, answer)) = answers.maps.pop_first() {
            let Some(replica) = self.replicas.get(&owner) else {
                continue;
            };
            match write_section(writer, owner, replica, answer) {
                Ok(Progress::Complete) => count += 1,
                Ok(Progress::Part(rest)) => {
                    count += 1;
                    answers.maps.insert(owner, rest);
                    break;
                }
                Err(Full) => {
                    answers.maps.insert(owner, answer);
                    break;
                }
            }
        }
        writer.patch_u16(count_at, count);
        answers.budget = answers.budget.saturating_sub(writer.used());
        if !answers.maps.is_empty() {
            if answers.budget > 0 {
                self.answers.insert(to, answers);
            } else {
                writer.patch_u8(stop_at, 1);
            }
        }
        Ok(Some(to))
    }
}

enum Progress {
    Complete,
    Part(Answer),
}

/// Writes as much of one map as fits. Nothing was written if it returns `Full`.
fn write_section(
    writer: &mut Writer<'_>,
    owner: MemberId,
    replica: &Replica,
    mut answer: Answer,
) -> Result<Progress, Full> {
    let map = &replica.map;
    let before = writer.used();
    // A requester behind the dropped certificates learns of it from the floor, and asks from the start.
    let hopeless = answer.after > 0 && answer.settled < map.floor && map.version > answer.after;
    let head = Section {
        owner,
        incarnation: replica.incarnation,
        after: answer.after,
        goal: map.version,
        floor: map.floor,
        complete: false,
        stop: false,
        pieces: Vec::new(),
    };
    if writer.room() < SECTION_SIZE + PIECE_SIZE + PART_MIN {
        return Err(Full);
    }
    let (complete_at, count_at) = head.write_head(writer)?;
    if hopeless {
        return Ok(Progress::Complete);
    }
    let mut count = 0;
    for (key, entry) in map.newer(answer.after) {
        let value = entry.value.as_deref().unwrap_or_default();
        let continues = answer.partial == entry.version && answer.offset < value.len();
        let offset = if continues { answer.offset } else { 0 };
        let room = writer.room().saturating_sub(PIECE_SIZE + key.len());
        let rest = value.len() - offset;
        let fits = writer.room() >= PIECE_SIZE + key.len() && (rest <= room || room >= PART_MIN);
        if !fits {
            if count == 0 {
                writer.rewind(before);
                return Err(Full);
            }
            writer.patch_u16(count_at, count);
            return Ok(Progress::Part(answer));
        }
        let end = offset + rest.min(room);
        let piece = Piece {
            version: entry.version,
            key: (&**key).into(),
            deleted: entry.value.is_none(),
            total: value.len(),
            offset,
            bytes: (&value[offset..end]).into(),
        };
        piece.write(writer)?;
        count += 1;
        if end < value.len() {
            (answer.partial, answer.offset) = (entry.version, end);
            writer.patch_u16(count_at, count);
            return Ok(Progress::Part(answer));
        }
        answer.after = entry.version;
    }
    writer.patch_u16(count_at, count);
    writer.patch_u8(complete_at, 1);
    Ok(Progress::Complete)
}
