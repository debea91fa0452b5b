//! A replica: one member's map as another member holds it, built from frames.
//!
//! Frames may be lost, duplicated or reordered, and come from any member. A section that continues the
//! version held is taken at once. One that is ahead is put aside. One that is behind is dropped.
//!
//! A sender that has dropped certificates which this replica has not seen cannot tell all changes. Then a
//! second map is built from the start. The first stays readable, and is replaced when the second is
//! complete.

use crate::attributes::message::{Ask, Piece, Section};
use crate::attributes::{ENTRY_COST, GROWING_BYTES_MAX, Map};
use crate::identity::MemberId;
use crate::time::Instant;

/// Most sections put aside.
const STASH_MAX: usize = 32;

/// A changed key, and the version of the change.
pub(crate) type Change = (Box<[u8]>, u64);

/// The effect of a section.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Changed keys, in the order of their versions.
    pub(crate) changes: Vec<Change>,
    /// It had something new.
    pub(crate) progress: bool,
    /// The sender has no more than is held now.
    pub(crate) exhausted: bool,
    /// The sender's window is over, and all of it was taken.
    pub(crate) stop: bool,
    /// The map must be requested from the start.
    pub(crate) restart: bool,
    /// There is no room for it.
    pub(crate) refused: bool,
}

/// A value of which some parts are held.
#[derive(Clone, Debug)]
struct Partial {
    version: u64,
    key: Box<[u8]>,
    deleted: bool,
    total: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Replica {
    /// The incarnation of the writer.
    pub(crate) incarnation: u64,
    pub(crate) map: Map,
    /// Newest known version.
    pub(crate) known: u64,
    /// There was no room for the rest.
    pub(crate) refused: bool,
    /// When the oldest certificate came, as in the store's list.
    pub(crate) expiring: Option<Instant>,
    shadow: Option<Map>,
    partial: Option<Partial>,
    stash: Vec<Section<'static>>,
}

impl Replica {
    pub(crate) fn new(incarnation: u64) -> Self {
        Self {
            incarnation,
            ..Self::default()
        }
    }

    /// Its memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.map.bytes()
            + self.shadow.as_ref().map_or(0, Map::bytes)
            + self.partial.as_ref().map_or(0, |partial| partial.total)
            + self.stash.iter().map(Section::bytes).sum::<usize>()
    }

    /// The request for what is missing.
    pub(crate) fn ask(&self, owner: MemberId, push: bool) -> Ask {
        let map = self.growing();
        let partial = self.partial.as_ref();
        Ask {
            owner,
            incarnation: self.incarnation,
            after: map.version,
            settled: map.settled,
            partial: partial.map_or(0, |partial| partial.version),
            offset: partial.map_or(0, |partial| partial.bytes.len() as u32),
            push,
        }
    }

    /// Takes a section; the replica may grow to `limit` bytes.
    pub(crate) fn take(&mut self, now: Instant, section: Section<'_>, limit: usize) -> Taken {
        let mut taken = Taken::default();
        if self.apply(now, &section, limit, &mut taken) {
            let room = self.stash.len() < STASH_MAX && self.bytes() + section.bytes() <= limit;
            if room {
                self.stash.push(section.into_owned());
            }
            return taken;
        }
        let mut more = taken.progress;
        while more && !self.stash.is_empty() {
            let before = self.mark();
            for section in core::mem::take(&mut self.stash) {
                if self.apply(now, &section, limit, &mut taken) {
                    self.stash.push(section);
                }
            }
            more = self.mark() != before;
        }
        if self.map.version >= self.known {
            self.drop_unfinished();
        }
        taken
    }

    /// Drops incomplete data.
    pub(crate) fn drop_unfinished(&mut self) {
        self.shadow = None;
        self.partial = None;
        self.stash.clear();
    }

    fn growing(&self) -> &Map {
        self.shadow.as_ref().unwrap_or(&self.map)
    }

    fn growing_mut(&mut self) -> &mut Map {
        self.shadow.as_mut().unwrap_or(&mut self.map)
    }

    fn mark(&self) -> (u64, usize) {
        let partial = self.partial.as_ref();
        (
            self.growing().version,
            partial.map_or(0, |partial| partial.bytes.len()),
        )
    }

    /// Takes entries that continue the version held; returns true if something before them is missing.
    fn apply(
        &mut self,
        now: Instant,
        section: &Section<'_>,
        limit: usize,
        taken: &mut Taken,
    ) -> bool {
        let held = self.growing().version;
        if section.goal <= held {
            taken.exhausted = true;
            taken.stop |= section.stop;
            return false;
        }
        if held > 0 && self.growing().settled < section.floor {
            self.drop_unfinished();
            self.shadow = Some(Map::default());
            taken.restart = true;
        }
        let map = self.growing_mut();
        if section.after > map.version {
            return !taken.restart;
        }
        if map.version == 0 {
            map.settled = section.goal;
        }
        if section.floor > map.version {
            map.floor = map.floor.max(section.floor);
        }
        let mut whole = true;
        for piece in &section.pieces {
            if piece.version <= self.growing().version {
                continue;
            }
            match self.take_piece(now, piece, limit, taken) {
                Step::Whole => {}
                Step::Part => {
                    whole = false;
                    break;
                }
                Step::Gap => return true,
            }
        }
        taken.stop |= section.stop;
        if section.complete && whole {
            self.growing_mut().advance(section.goal);
            taken.progress = true;
            taken.exhausted = true;
            self.finish_shadow(taken);
        }
        false
    }

    fn take_piece(
        &mut self,
        now: Instant,
        piece: &Piece<'_>,
        limit: usize,
        taken: &mut Taken,
    ) -> Step {
        let continues = self.partial.as_ref().is_some_and(|partial| {
            partial.version == piece.version
                && partial.total == piece.total
                && *partial.key == *piece.key
        });
        if !continues {
            if piece.offset > 0 {
                return Step::Gap;
            }
            self.partial = None;
            let with = self.growing().bytes_with(&piece.key, piece.total);
            let growth = piece.total + piece.key.len() + ENTRY_COST;
            if with > GROWING_BYTES_MAX || self.bytes() + growth > limit {
                taken.refused = true;
                return Step::Part;
            }
            self.partial = Some(Partial {
                version: piece.version,
                key: (*piece.key).into(),
                deleted: piece.deleted,
                total: piece.total,
                bytes: Vec::new(),
            });
        }
        let Some(partial) = &mut self.partial else {
            return Step::Gap;
        };
        let Some(seen) = partial.bytes.len().checked_sub(piece.offset) else {
            return Step::Gap;
        };
        if let Some(new) = piece.bytes.get(seen..).filter(|new| !new.is_empty()) {
            partial.bytes.extend_from_slice(new);
            taken.progress = true;
        }
        if partial.bytes.len() < partial.total {
            return Step::Part;
        }
        self.write_whole(now, taken);
        Step::Whole
    }

    /// The partial value is complete, and counts now.
    fn write_whole(&mut self, now: Instant, taken: &mut Taken) {
        let Some(partial) = self.partial.take() else {
            return;
        };
        let value = (!partial.deleted).then(|| partial.bytes.into_boxed_slice());
        let in_shadow = self.shadow.is_some();
        let map = self.growing_mut();
        let visible = map.write(now, &partial.key, value, partial.version);
        map.advance(partial.version);
        taken.progress = true;
        if visible && !in_shadow {
            taken.changes.push((partial.key, partial.version));
        }
    }

    /// Replaces the first map by the second if that is complete and not behind.
    fn finish_shadow(&mut self, taken: &mut Taken) {
        let shadow = self.shadow.take_if(|map| map.version >= self.map.version);
        let Some(shadow) = shadow else {
            return;
        };
        let old = core::mem::replace(&mut self.map, shadow);
        let newer = self.map.newer(old.version);
        let mut changes: Vec<Change> = newer
            .filter(|(key, entry)| entry.value.is_some() || old.get(key).is_some())
            .map(|(key, entry)| ((**key).into(), entry.version))
            .collect();
        let told: Vec<&[u8]> = changes.iter().map(|(key, _)| &**key).collect();
        let gone: Vec<Change> = old
            .iter()
            .filter(|(key, _, _)| self.map.get(key).is_none() && !told.contains(key))
            .map(|(key, _, _)| (key.into(), self.map.version))
            .collect();
        changes.extend(gone);
        taken.changes.extend(changes);
    }
}

enum Step {
    /// The entry is held now.
    Whole,
    /// More of it is to come.
    Part,
    /// Something before it is missing.
    Gap,
}

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;
