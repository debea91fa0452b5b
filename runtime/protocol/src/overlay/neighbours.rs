//! The random neighbours: approximately a K_r-connected random graph, kept by each for itself.
//!
//! Intuition: everybody wants at least K_r acquaintances and puts up with at most twice as many.
//! Whoever has too few asks strangers drawn at random; whoever has enough already declines, and
//! the next stranger is asked. So no member stays with few for long, none collects many, and
//! because every want is met by a random draw, the links stay those of a random graph, whose
//! diameter is logarithmic and which no few deaths can cut.
//!
//! Complication: while a zone fills, the first members know only each other and would stay among
//! themselves. So a choice made when the view was less than half of what it is now is made anew,
//! one at each change of the view: the old one is given up, a new one is drawn.

use crate::identity::MemberId;
use crate::link::Link;
use crate::overlay::Overlay;
use crate::overlay::interface::Route;
use crate::overlay::outbox::Intent;
use crate::overlay::topology::ask_again;

impl Overlay {
    /// How many random neighbours we have, asked or confirmed.
    pub(super) fn degree(&self) -> usize {
        self.links
            .values()
            .filter(|link| link.is_neighbour())
            .count()
    }

    /// Most random neighbours: who asks beyond is declined.
    pub(super) fn degree_max(&self) -> usize {
        2 * self.config.neighbours
    }

    /// Asks strangers until there are enough.
    pub(super) fn choose_neighbours(&mut self) {
        let missing = self.config.neighbours.saturating_sub(self.degree());
        if missing == 0 {
            return;
        }
        let mut strangers: Vec<MemberId> = self
            .table
            .iter_live()
            .map(|member| member.id)
            .filter(|id| *id != self.own && !self.links.contains_key(id))
            .collect();
        let (now, live) = (self.now, self.table.live());
        for _ in 0..missing.min(strangers.len()) {
            let index = self.random(strangers.len() as u64) as usize;
            let id = strangers.swap_remove(index);
            let link = self.links.entry(id).or_insert_with(|| Link::new(now));
            link.chose = true;
            link.chose_among = live;
            ask_again(link, now);
        }
    }

    /// Gives up one choice that was made among less than half of those who are here now.
    pub(super) fn renew_neighbours(&mut self) {
        let live = self.table.live();
        let confirmed = |link: &&mut Link| link.confirmed.is_some();
        let outgrown = self
            .links
            .iter_mut()
            .filter(|(_, link)| link.chose && 2 * link.chose_among < live)
            .find(|(_, link)| confirmed(link));
        let Some((id, link)) = outgrown else {
            return;
        };
        let id = *id;
        link.chose = false;
        ask_again(link, self.now);
        if link.roles() == 0 {
            self.say(Intent::Link {
                to: id,
                asked: None,
                route: Route::Next,
            });
        }
        if !link_has_role(&self.links, id) {
            self.links.remove(&id);
        }
        self.topology_dirty = true;
    }

    /// The members this engine keeps as random neighbours, chosen by either side.
    pub fn neighbours(&self) -> impl Iterator<Item = MemberId> {
        self.links
            .iter()
            .filter(|(_, link)| link.is_neighbour())
            .map(|(id, _)| *id)
    }
}

fn link_has_role(links: &std::collections::BTreeMap<MemberId, Link>, id: MemberId) -> bool {
    links.get(&id).is_some_and(Link::has_role)
}
