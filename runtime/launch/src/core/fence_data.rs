//! Fence data: large contributions of this node's ranks to fences, in attributes of their own besides the node
//! status, or, above [`Config::serve_from`](super::Config), served to the launchers that request them.
//!
//! The attributes of a node are bounded, and the direct modex (`modex`), which needs no fence, shares that bound.
//! Therefore data that no node needs any more is withdrawn. A contribution waits until there is room, which other
//! nodes make by fetching what they still need. A contribution for which there can never be room fails its fence on
//! all nodes, and no other fence.

use std::collections::BTreeMap;
use std::time::Duration;

use super::messages::Action;
use super::node_status::{Contributed, DataChunk, FenceId, PART};
use super::waiting::Waiting;
use super::{Core, Storing};

/// Most bytes of a node's attributes, without the node status and what other processes write.
const MAX: usize = (1 << 20) - 2 * PART;
/// Overhead of an attribute besides its value, as an upper bound.
const ENTRY: usize = 128;

/// Contributions that are stored in attributes: fence and size. Those that are served: the same.
#[derive(Debug, Default)]
pub(super) struct FenceData {
    stored: BTreeMap<FenceId, usize>,
    served: BTreeMap<FenceId, usize>,
}

/// Whether there is room for a contribution.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    Now,
    /// After other nodes have fetched what is stored now.
    Later,
    Never,
}

impl FenceData {
    /// Bytes of attributes that the contributions to the selected fences take.
    fn taken(&self, counts: impl Fn(FenceId) -> bool) -> usize {
        let counted = self.stored.iter().filter(|(id, _)| counts(**id));
        counted.map(|(_, size)| cost(*size)).sum()
    }

    /// Bytes of the contributions to the selected fences that are served.
    fn served(&self, counts: impl Fn(FenceId) -> bool) -> usize {
        let counted = self.served.iter().filter(|(id, _)| counts(**id));
        counted.map(|(_, size)| size).sum()
    }
}

/// Bytes that data of this length takes.
fn cost(size: usize) -> usize {
    size + size.div_ceil(PART) * ENTRY
}

/// Whether data that takes `cost` has room besides fences that are not over (`open`), all fences (`all`), and the
/// direct modex (`modex`), where all may take `most`.
fn room(cost: usize, open: usize, all: usize, modex: usize, most: usize) -> Room {
    if open + cost > most {
        Room::Never
    } else if all + modex + cost > most {
        Room::Later
    } else {
        Room::Now
    }
}

impl Core {
    /// Room for the direct modex: now, and when the fences that are over on this node are over on all nodes.
    pub(super) fn room_beside_fences(&self) -> (usize, usize) {
        let open = self.fence_data.taken(|id| self.fences.is_open(id));
        let left = |taken| MAX.saturating_sub(taken);
        (left(self.fence_data.taken(|_| true)), left(open))
    }

    /// Withdraws what no node needs any more and stores the waiting contributions in their order, as far as
    /// there is room.
    pub(super) fn store_contributions(&mut self) {
        self.withdraw_old_data();
        let held = |(id, one): (&FenceId, &Waiting)| one.held.is_some().then_some((one.since, *id));
        let mut held: Vec<(Duration, FenceId)> = self.waiting.iter().filter_map(held).collect();
        held.sort_unstable();
        // Later contributions must not take the room that an earlier one waits for.
        let mut is_free = self.storing.is_none();
        for (_, id) in held {
            let Some(waiting) = self.waiting.get_mut(&id) else {
                continue;
            };
            let data = waiting.held.take().unwrap_or_default();
            let is_separate = matches!(Contributed::new(&data), Contributed::Beside(_))
                && self.fences.is_shared(id);
            if !is_separate {
                self.fences.put(id, data);
                continue;
            }
            let unstored = match is_free {
                true => self.store_contribution(id, data),
                false => Some(data),
            };
            is_free &= unstored.is_none() && self.storing.is_none();
            if let Some(data) = unstored {
                self.hold(id, data);
            }
        }
    }

    /// Keeps a contribution until there is room for it.
    fn hold(&mut self, id: FenceId, data: Vec<u8>) {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.held = Some(data);
        }
    }

    /// Stores a contribution, or refuses it. Returns it if there will be room later.
    fn store_contribution(&mut self, id: FenceId, data: Vec<u8>) -> Option<Vec<u8>> {
        if self.is_for_serving(data.len()) {
            return self.serve_contribution(id, data);
        }
        let cost = cost(data.len());
        let open = self.fence_data.taken(|id| self.fences.is_open(id));
        let all = self.fence_data.taken(|_| true);
        let modex = self.free_modex(MAX.saturating_sub(all + cost));
        match room(cost, open, all, modex, MAX) {
            Room::Later => return Some(data),
            Room::Never => self.refuse_contribution(id, data.len(), true),
            Room::Now => {
                self.fence_data.stored.insert(id, data.len());
                let chunk = DataChunk::Fence(id);
                let copy = data.clone();
                self.storing = Some(Storing::Contribution {
                    id,
                    data,
                    is_more_to_come: all > open || modex > 0,
                });
                self.act(Action::Put { chunk, data: copy });
            }
        }
        None
    }

    /// Serves a contribution, or refuses it. Returns it if there will be room later.
    fn serve_contribution(&mut self, id: FenceId, data: Vec<u8>) -> Option<Vec<u8>> {
        let size = data.len();
        let open = self.fence_data.served(|id| self.fences.is_open(id));
        let all = self.fence_data.served(|_| true);
        match room(size, open, all, 0, self.config.serve_max) {
            Room::Later => return Some(data),
            Room::Never => self.refuse_contribution(id, size, true),
            Room::Now => {
                self.fence_data.served.insert(id, size);
                self.fences.put_served(id, data);
            }
        }
        None
    }

    /// Serves the contributions that other nodes may need, and no others.
    pub(super) fn serve_contributions(&mut self) {
        let wanted = self.fences.to_serve(self.view.gone());
        let is_over = |one: &&(FenceId, usize)| !wanted.contains_key(one);
        let over: Vec<_> = self.serving.iter().filter(is_over).copied().collect();
        for (id, owner) in over {
            self.serving.remove(&(id, owner));
            let chunk = DataChunk::Fence(id);
            self.act(Action::StopServing { chunk, owner });
        }
        for ((id, owner), data) in wanted {
            if self.serving.insert((id, owner)) {
                let chunk = DataChunk::Fence(id);
                self.act(Action::Serve { chunk, owner, data });
            }
        }
    }

    /// Takes the result of storing a contribution. If it failed, other processes have written large attributes.
    pub(super) fn take_stored_contribution(
        &mut self,
        id: FenceId,
        data: Vec<u8>,
        is_stored: bool,
        is_more_to_come: bool,
    ) {
        if is_stored {
            return self.fences.put(id, data);
        }
        self.fence_data.stored.remove(&id);
        self.free_modex(0);
        match is_more_to_come {
            true => {
                self.hold(id, data);
                // The turn has left that out for this contribution.
                self.store_data();
            }
            false => {
                self.refuse_contribution(id, data.len(), false);
                // The next contribution may have room.
                self.is_changed = true;
            }
        }
    }

    fn refuse_contribution(&mut self, id: FenceId, size: usize, is_too_much: bool) {
        let is_served = self.is_for_serving(size);
        let is_open = |id| self.fences.is_open(id);
        let (others, most) = match is_served {
            true => (self.fence_data.served(is_open), self.config.serve_max),
            false => (self.fence_data.taken(is_open), MAX),
        };
        let why = match (is_too_much, others) {
            (false, _) => {
                "attributes that other processes of the node have written leave too little room; withdraw some"
                    .into()
            }
            (_, 0) => format!("a node may put at most {most}; exchange less, or use fewer ranks on a node"),
            _ => format!(
                "a node may put at most {most} into all open fences, and {others} are in others; exchange less, or one \
                 after the other"
            ),
        };
        self.print(format!(
            "the ranks of this node have put {size} bytes into a fence, which fails: {why}"
        ));
        self.fences.refuse(id, size);
    }

    fn withdraw_old_data(&mut self) {
        let gone = self.view.gone();
        let is_old = |id: &&FenceId| !self.fences.is_needed(**id, gone);
        let stored = self.fence_data.stored.keys();
        let old: Vec<FenceId> = stored.filter(is_old).copied().collect();
        let fences = &self.fences;
        (self.fence_data.served).retain(|id, _| fences.is_needed(*id, gone));
        for id in old {
            if let Some(size) = self.fence_data.stored.remove(&id) {
                let chunk = DataChunk::Fence(id);
                self.act(Action::Clear { chunk, size });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_waits_if_there_will_be_room_and_fails_otherwise() {
        assert_eq!(room(MAX, 0, 0, 0, MAX), Room::Now);
        assert_eq!(room(MAX + 1, 0, 0, 0, MAX), Room::Never);
        assert_eq!(room(MAX, 0, 1, 0, MAX), Room::Later, "a fence that is over");
        assert_eq!(
            room(MAX, 0, 0, 1, MAX),
            Room::Later,
            "modex data that another node needs"
        );
        assert_eq!(room(MAX, 1, 1, 0, MAX), Room::Never, "a fence that is open");
        assert_eq!(room(MAX - 1, 1, 1, 0, MAX), Room::Now);
    }

    #[test]
    fn each_part_has_an_overhead() {
        assert_eq!(cost(1), 1 + ENTRY);
        assert_eq!(cost(PART + 1), PART + 1 + 2 * ENTRY);
    }
}
