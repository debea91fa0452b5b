//! One level of a tree: the local node's membership in one zone.

use muster_protocol::{Engine, Instant, MemberId, MemberView};
use muster_sorted::SortedMap;

use crate::directory::NodeIndex;
use crate::map::{ZoneId, ZoneMap};
use crate::tree::publication::{Outcast, Publication};
use crate::tree::states::{ZoneState, ZoneStates};

/// A zone below, as the members of the zone above see it.
#[derive(Clone, Debug, Default)]
pub(super) struct Child {
    /// Its members in the view of the zone above.
    pub(super) live: usize,
    /// It has had some during this membership of the local node.
    pub(super) was_live: bool,
    /// Since when it has none; `None` while it has.
    pub(super) absent_since: Option<Instant>,
    /// How many of its nodes were asked to join since then, and when further ones are.
    pub(super) asked: usize,
    pub(super) ask_at: Instant,
    pub(super) state: ZoneState,
    /// What its members have published about what is below it.
    pub(super) below: ZoneStates,
}

/// The local node's membership in one zone.
#[derive(Clone, Debug)]
pub(super) struct Level {
    pub(super) zone: ZoneId,
    pub(super) engine: Engine,
    pub(super) began_at: Instant,
    pub(super) view_changed_at: Instant,
    /// The view or a publication has changed since they were last reviewed.
    pub(super) is_dirty: bool,
    /// The zone has formed: the view was complete, or has not changed for a while.
    pub(super) has_formed: bool,
    /// Since when the local node is a member of the zone above without being chosen.
    pub(super) spare_since: Option<Instant>,
    /// Addresses to try if nobody answers at those that were published.
    pub(super) seeds_later: Vec<Vec<u8>>,
    /// While it has only members of the local node's zone below: when those of other zones are sought next, and how
    /// many have been.
    pub(super) seek_at: Instant,
    pub(super) sought: usize,
    /// When members of the zone below that are not in its view are sought next; `NEVER` if there are none.
    pub(super) meet_at: Instant,
    /// When the first member of another zone below came into the view.
    pub(super) met_at: Option<Instant>,
    /// The zone below that each member in the view comes from, with its id, as of the last review. None at level 0.
    pub(super) origins: Vec<(MemberId, u32)>,
    /// The zones below that have been alive, by number. None at level 0.
    pub(super) children: SortedMap<u32, Child>,
    /// What the members have published about the zones below theirs. None at level 0.
    pub(super) below_from: SortedMap<MemberId, Publication>,
    /// Since when publications of these members have been known.
    pub(super) known_since: SortedMap<MemberId, Instant>,
    /// When the local node published something in this zone last.
    pub(super) published_at: Instant,
    /// When it publishes what has changed since; `NEVER` if nothing has.
    pub(super) publish_at: Instant,
    /// What those members have published about the zones outside of this one that are members of the zone above.
    pub(super) outside_from: SortedMap<MemberId, Publication>,
    /// Members that were not in the view since, with the time until which their publications count.
    pub(super) gone: SortedMap<MemberId, Instant>,
    /// What is known about the zones outside: it outlives its publishers.
    pub(super) outside: Publication,
    /// Another member has published that, or the local node has been the only one to publish for a while.
    pub(super) has_outside: bool,
    /// The members of this zone that are to be its supervisors, by the view; `None` after the view has changed.
    pub(super) chosen: Option<Vec<MemberId>>,
    /// What became of this zone, as far as the local node knows as a member of the zone above.
    pub(super) outcast: Outcast,
    /// The local node has lost more of its members than it still has.
    pub(super) is_minority: bool,
}

impl Level {
    pub(super) fn new(zone: ZoneId, engine: Engine, now: Instant) -> Self {
        Self {
            zone,
            engine,
            began_at: now,
            view_changed_at: now,
            is_dirty: true,
            has_formed: false,
            spare_since: None,
            seeds_later: Vec::new(),
            seek_at: Instant::NEVER,
            sought: 0,
            meet_at: Instant::NEVER,
            met_at: None,
            origins: Vec::new(),
            children: SortedMap::new(),
            below_from: SortedMap::new(),
            known_since: SortedMap::new(),
            published_at: Instant::default(),
            publish_at: Instant::NEVER,
            outside_from: SortedMap::new(),
            gone: SortedMap::new(),
            outside: Publication::default(),
            has_outside: false,
            chosen: None,
            outcast: Outcast::default(),
            is_minority: false,
        }
    }

    /// The members in the view.
    pub(super) fn live(&self) -> impl Iterator<Item = MemberView<'_>> {
        self.engine
            .members()
            .filter(|member| member.state().in_view())
    }

    /// Whether all members in the view come from this zone below.
    pub(super) fn is_alone(&self, below: u32) -> bool {
        self.origins.iter().all(|(_, number)| *number == below)
    }

    /// Finds the zone below that each member in the view comes from. Names are looked up only of new members.
    pub(super) fn find_origins(&mut self, map: &ZoneMap) {
        let mut held = core::mem::take(&mut self.origins).into_iter().peekable();
        let origins = self.live().filter_map(|member| {
            // Both are in the order of the ids.
            while held.next_if(|(id, _)| *id < member.id()).is_some() {}
            let known = held.next_if(|(id, _)| *id == member.id());
            known.or_else(|| Some((member.id(), self.origin(map, member.id())?)))
        });
        self.origins = origins.collect();
    }

    /// What the supervisors of this zone have published about the zones outside. Other members may have published a
    /// reminder.
    pub(super) fn by_supervisors(&self) -> impl Iterator<Item = (MemberId, &Publication)> {
        let published = self.outside_from.iter().map(|(id, one)| (*id, one));
        published.filter(|(_, one)| !one.is_reminder)
    }

    /// Forgets what a member has published.
    pub(super) fn forget_publications(&mut self, member: MemberId) {
        self.outside_from.remove(&member);
        self.below_from.remove(&member);
        self.known_since.remove(&member);
    }

    /// The zone below that a member comes from.
    pub(super) fn origin(&self, map: &ZoneMap, member: MemberId) -> Option<u32> {
        let found = self.origins.binary_search_by_key(&member, |(id, _)| *id);
        if let Ok(place) = found {
            return Some(self.origins[place].1);
        }
        let below = usize::from(self.zone.level).checked_sub(1)?;
        let zone = map.zones_of(self.node_of(map, member)?).nth(below)?;
        Some(zone.number)
    }

    /// The node of a member.
    pub(super) fn node_of(&self, map: &ZoneMap, member: MemberId) -> Option<NodeIndex> {
        map.directory().find(self.engine.name_of(member)?)
    }

    /// Whether a member is in the view.
    pub(super) fn sees(&self, id: MemberId) -> bool {
        let member = self.engine.member(id);
        member.is_some_and(|member| member.state().in_view())
    }

    /// A zone below, by its number.
    pub(super) fn child(&self, number: u32) -> Option<ZoneId> {
        let level = self.zone.level.checked_sub(1)?;
        Some(ZoneId { level, number })
    }

    /// Counts the members of each zone below.
    ///
    /// One that has had none yet is absent if it is not found in time, from `found_by` on.
    pub(super) fn count_children(&mut self, now: Instant, found_by: Instant) {
        for child in self.children.values_mut() {
            child.live = 0;
        }
        for (_, number) in &self.origins {
            self.children.get_or_default(*number).live += 1;
        }
        for child in self.children.values_mut() {
            child.absent_since = match child.live {
                0 => child.absent_since.or(Some(now)),
                _ => None,
            };
            if child.live > 0 {
                (child.asked, child.ask_at) = (0, Instant::default());
            }
            child.was_live |= child.live > 0;
            child.state.is_absent = child.live == 0 && (child.was_live || now >= found_by);
        }
    }
}
