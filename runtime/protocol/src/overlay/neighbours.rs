//! Random neighbours: an approximately K_r-connected random graph, maintained by each member for itself.
//!
//! Each member wants at least K_r neighbours and accepts at most twice as many. A member with too few asks
//! members drawn at random. A member with enough declines, and the next one is drawn. So no member has few
//! neighbours for long and none collects many. All links are random draws: the graph stays a random graph,
//! whose diameter is logarithmic and which few deaths cannot partition.
//!
//! While a zone boots, the first members know only each other and would stay connected among themselves. So
//! a choice made when the view had less than half of its present size is replaced, one at each change of
//! the view.

use crate::identity::MemberId;
use crate::interface::Route;
use crate::link::Link;
use crate::overlay::Overlay;
use crate::overlay::outbox::Intent;
use crate::overlay::topology::ask_again;

impl Overlay {
    /// Number of random neighbours, asked or confirmed.
    pub(super) fn degree(&self) -> usize {
        self.links
            .values()
            .filter(|link| link.is_neighbour())
            .count()
    }

    /// Most random neighbours; further requests are declined.
    pub(super) fn degree_max(&self) -> usize {
        2 * self.config.neighbours
    }

    /// Asks random members until there are enough neighbours.
    pub(super) fn choose_neighbours(&mut self) {
        let missing = self.config.neighbours.saturating_sub(self.degree());
        if missing == 0 {
            return;
        }
        let mut candidates: Vec<MemberId> = self
            .table
            .iter_live()
            .map(|member| member.id)
            .filter(|id| *id != self.own && !self.links.contains_key(id))
            .collect();
        let (now, live) = (self.now, self.table.live());
        for _ in 0..missing.min(candidates.len()) {
            let index = self.random(candidates.len() as u64) as usize;
            let id = candidates.swap_remove(index);
            let link = self.links.open(id, now);
            link.chose = true;
            link.chose_among = live;
            ask_again(link, now);
        }
    }

    /// Replaces one choice that was made when the view had less than half of its present size.
    pub(super) fn renew_neighbours(&mut self) {
        let live = self.table.live();
        let outgrown = self
            .links
            .iter()
            .filter(|(_, link)| link.chose && 2 * link.chose_among < live)
            .find(|(_, link)| link.confirmed.is_some())
            .map(|(id, _)| id);
        let Some(id) = outgrown else {
            return;
        };
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        link.chose = false;
        ask_again(link, self.now);
        if link.roles() == 0 {
            self.enqueue(Intent::Link {
                to: id,
                asked: None,
                route: Route::Next,
            });
        }
        if !self.links.get(&id).is_some_and(Link::has_role) {
            self.links.remove(&id);
        }
        self.topology.dirty = true;
    }

    /// The random neighbours of the local member, chosen by either side.
    pub fn neighbours(&self) -> impl Iterator<Item = MemberId> {
        self.links
            .iter()
            .filter(|(_, link)| link.is_neighbour())
            .map(|(id, _)| id)
    }
}
