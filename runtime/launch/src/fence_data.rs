//! The shelf beside the bell: what this node's ranks have put into fences, where it is much.
//!
//! The attributes of a node have a bound, which what no fence exchanges (`modex`) has to keep as well. So nothing lies
//! here that nobody needs any more; what the ranks have brought to a fence waits until there is room, which others
//! make by taking what they still need; and what can never have room fails its fence, for all alike, and nothing else.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Error;
use super::fence_driver::Waiting;
use super::node::Launcher;
use super::node_status::{Contributed, DataChunk, FenceId, PART};

/// What the attributes of a node may take, but for the bell and what others write.
pub(super) const MAX: usize = (1 << 20) - 2 * PART;
/// What an attribute takes beside its value, and a little more.
const ENTRY: usize = 128;

/// What lies there: of each fence so many bytes.
#[derive(Debug, Default)]
pub(super) struct FenceData(BTreeMap<FenceId, usize>);

/// Whether something has room.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    Now,
    /// When others have taken what lies there.
    Later,
    Never,
    /// Not for what others have written.
    Taken,
}

impl FenceData {
    /// What those of these fences take.
    fn taken(&self, counts: impl Fn(FenceId) -> bool) -> usize {
        let counted = self.0.iter().filter(|(id, _)| counts(**id));
        counted.map(|(_, size)| cost(*size)).sum()
    }
}

/// What data of this length takes.
fn cost(size: usize) -> usize {
    size + size.div_ceil(PART) * ENTRY
}

/// Whether data that takes `cost` has room beside fences that are not over (`open`), all fences (`all`), and what no
/// fence exchanges (`spread`).
fn room(cost: usize, open: usize, all: usize, spread: usize) -> Room {
    if open + cost > MAX {
        Room::Never
    } else if all + spread + cost > MAX {
        Room::Later
    } else {
        Room::Now
    }
}

impl Launcher {
    /// What is left for what no fence exchanges: now, and when fences that are over here are so everywhere.
    pub(super) fn room_beside_fences(&self) -> (usize, usize) {
        let open = self.fence_data.taken(|id| self.fences.is_open(id));
        let left = |taken| MAX.saturating_sub(taken);
        (left(self.fence_data.taken(|_| true)), left(open))
    }

    /// Takes away what nobody needs any more, and puts what the own ranks have brought, as far as there is room, in
    /// the order in which they came.
    pub(super) fn lay_contributions(&mut self) -> Result<(), Error> {
        self.clear_shelf()?;
        let held = |(id, one): (&FenceId, &Waiting)| one.held.is_some().then_some((one.since, *id));
        let mut held: Vec<(Instant, FenceId)> = self.waiting.iter().filter_map(held).collect();
        held.sort_unstable();
        let mut is_free = true;
        for (_, id) in held {
            let Some(waiting) = self.waiting.get_mut(&id) else {
                continue;
            };
            let data = waiting.held.take().unwrap_or_default();
            let is_beside = matches!(Contributed::new(&data), Contributed::Beside(_))
                && self.fences.is_shared(id);
            if !is_beside {
                self.fences.put(id, data);
                continue;
            }
            let room = if is_free {
                self.lay_contribution(id, &data)?
            } else {
                Room::Later
            };
            match room {
                Room::Now => self.fences.put(id, data),
                Room::Never => self.refuse_contribution(id, data.len(), true),
                Room::Taken => self.refuse_contribution(id, data.len(), false),
                Room::Later => {
                    // Those who came later must not take what this one waits for.
                    is_free = false;
                    if let Some(waiting) = self.waiting.get_mut(&id) {
                        waiting.held = Some(data);
                    }
                }
            }
        }
        Ok(())
    }

    fn lay_contribution(&mut self, id: FenceId, data: &[u8]) -> Result<Room, Error> {
        let cost = cost(data.len());
        let open = self.fence_data.taken(|id| self.fences.is_open(id));
        let all = self.fence_data.taken(|_| true);
        let spread = self.free_modex(MAX.saturating_sub(all + cost))?;
        let room = room(cost, open, all, spread);
        if room != Room::Now {
            return Ok(room);
        }
        if self.peers.put_if_room(DataChunk::Fence(id), data)? {
            self.fence_data.0.insert(id, data.len());
            return Ok(Room::Now);
        }
        // Somebody else has written much.
        self.free_modex(0)?;
        let is_more_to_come = all > open || spread > 0;
        Ok(if is_more_to_come {
            Room::Later
        } else {
            Room::Taken
        })
    }

    fn refuse_contribution(&mut self, id: FenceId, size: usize, is_too_much: bool) {
        let others = self.fence_data.taken(|id| self.fences.is_open(id));
        let why = match (is_too_much, others) {
            (false, _) => {
                "the attributes that its processes have written leave less room; withdraw some"
                    .into()
            }
            (_, 0) => format!("a node may put {MAX}; exchange less, or use fewer ranks a node"),
            _ => format!(
                "a node may put {MAX} into all that it waits for, and {others} are in others; exchange less, or one \
                 after the other"
            ),
        };
        self.say(&format!(
            "the ranks of this node have put {size} bytes into a fence, which fails: {why}"
        ));
        self.fences.refuse(id, size);
    }

    fn clear_shelf(&mut self) -> Result<(), Error> {
        let gone = self.peers.gone();
        let is_old = |id: &&FenceId| !self.fences.is_needed(**id, gone);
        let old: Vec<FenceId> = self.fence_data.0.keys().filter(is_old).copied().collect();
        for id in old {
            if let Some(size) = self.fence_data.0.remove(&id) {
                self.peers.clear(DataChunk::Fence(id), size)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_room_when_others_have_taken_theirs_waits_and_more_never_has() {
        assert_eq!(room(MAX, 0, 0, 0), Room::Now);
        assert_eq!(room(MAX + 1, 0, 0, 0), Room::Never);
        assert_eq!(room(MAX, 0, 1, 0), Room::Later, "a fence that is over");
        assert_eq!(room(MAX, 0, 0, 1), Room::Later, "what somebody lacks");
        assert_eq!(room(MAX, 1, 1, 0), Room::Never, "a fence that waits");
        assert_eq!(room(MAX - 1, 1, 1, 0), Room::Now);
    }

    #[test]
    fn each_part_costs_something() {
        assert_eq!(cost(1), 1 + ENTRY);
        assert_eq!(cost(PART + 1), PART + 1 + 2 * ENTRY);
    }
}
