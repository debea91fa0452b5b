//! What earlier workers of this agent left in the state table about the ranks of this node.

use crate::rank_facts::rank_report;
use muster_protocol::{Engine, Input, RankState};
use muster_shm::{Cause, Leave, Occupancy, TableView};
use std::collections::BTreeSet;
use tracing::info;

/// The slots of attached processes.
pub(super) fn attached_slots(view: &TableView) -> BTreeSet<u32> {
    let taken = |slot: &u32| {
        view.slot(*slot)
            .is_some_and(|slot| slot.facts().occupancy == Occupancy::Taken)
    };
    (0..view.limits().slots).filter(taken).collect()
}

/// Whether a client was ever admitted, by this worker or an earlier one.
pub(super) fn had_clients(view: &TableView) -> bool {
    let mut slots = (0..view.limits().slots).map_while(|slot| view.slot(slot));
    slots.any(|slot| slot.facts().generation > 0)
}

/// Reports of the ends of ranks that an earlier worker wrote to the state table, but not to its snapshot, and whose
/// slots it had released. Age gossip has no snapshot of ranks: there only the state table shows which ranks were
/// here.
pub(super) fn unreported_ends(view: &TableView, engine: &Engine) -> Vec<Input<'static>> {
    let slots: Vec<_> = (0..view.limits().slots)
        .map_while(|slot| view.slot(slot))
        .collect();
    let is_attached = |rank: u32| {
        slots
            .iter()
            .map(|slot| slot.facts())
            .any(|facts| facts.rank == Some(rank) && facts.occupancy == Occupancy::Taken)
    };
    let mut ends = Vec::new();
    for rank in ranks_here(view, engine) {
        if is_attached(rank) {
            continue;
        }
        // The slot keeps the leave mark until it is assigned to another process.
        let mut left = slots.iter().filter(|slot| slot.facts().rank == Some(rank));
        let (state, cause, code) = match left.find(|slot| slot.leave().0 != Leave::No) {
            Some(slot) => (RankState::Left, Cause::Announced, slot.leave().1),
            None if view.rank_state(rank) == muster_shm::RankState::Left => {
                (RankState::Left, Cause::Announced, 0)
            }
            None => (RankState::Failed, Cause::Pidfd, 0),
        };
        info!(rank, ?state, "the previous worker saw the end of this rank");
        ends.push(rank_report(rank, state, cause, code));
    }
    ends
}

/// The ranks that an earlier worker had on this node and whose ends are not reported, from its snapshot or from the
/// state table. Its last changes are in the state table only. So are all with age gossip.
pub(super) fn ranks_here(view: &TableView, engine: &Engine) -> BTreeSet<u32> {
    let is_live = |state| matches!(state, RankState::Alive | RankState::Hung);
    let own = engine.member(engine.id());
    let (mut ranks, mut ended) = (BTreeSet::new(), BTreeSet::new());
    for fact in own.iter().flat_map(|own| own.ranks()) {
        let set = if is_live(fact.state) {
            &mut ranks
        } else {
            &mut ended
        };
        set.insert(fact.rank);
    }
    let own = view.own_node();
    let of_this_node = |rank: &u32| own.is_some() && view.rank_node(*rank) == own;
    let written = (0..view.rank_count()).filter(|rank| {
        let is_unknown = match view.rank_state(*rank) {
            muster_shm::RankState::Alive | muster_shm::RankState::Hung => engine.age().is_some(),
            muster_shm::RankState::Left | muster_shm::RankState::Failed => {
                engine.age().is_none() && !ended.contains(rank)
            }
            muster_shm::RankState::Unknown => false,
        };
        is_unknown && of_this_node(rank)
    });
    ranks.extend(written);
    ranks
}
