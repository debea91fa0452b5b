//! Sizes of an engine's state and their bounds, for tests that memory is bounded.

use crate::link::{FLIGHTS_MAX, Link};
use crate::overlay::outbox::OUTBOX_MAX;
use crate::overlay::{EVENTS_MAX, Overlay, handshake, indirect_probe, topology, views};

/// Counts of stored items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Members in the view, the local member included.
    pub live: usize,
    /// Removed members remembered.
    pub removed: usize,
    /// Links.
    pub links: usize,
    /// Facts on the lists of all links.
    pub dirty: usize,
    /// News frames of all links that wait for their acknowledgement.
    pub flights: usize,
    /// Replay windows.
    pub replay: usize,
    /// Intents in the outbox, and receivers of views.
    pub intents: usize,
    /// Suspects under an indirect probe.
    pub indirect_probes: usize,
    /// Events waiting for the host.
    pub events: usize,
}

impl Overlay {
    /// The present sizes.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        Sizes {
            live: self.table.live(),
            removed: self.table.removed(),
            links: self.links.len(),
            dirty: self.links.values().map(Link::waiting).sum(),
            flights: self.links.values().map(|link| link.flights()).sum(),
            replay: self.news.replay.count(),
            intents: self.outbox.len() + self.news.views.len(),
            indirect_probes: self.watch.indirect_probes.len(),
            events: self.events.len(),
        }
    }

    /// The bounds, from the configuration and from constants.
    #[must_use]
    pub fn limits(&self) -> Sizes {
        // Only requests are bounded; own choices are few.
        let links = handshake::REQUESTED_MAX + topology::OBSERVED_MAX + self.config.neighbours;
        let ranks: usize = self.table.iter().map(|member| member.ranks.len()).sum();
        let records = self.config.members_max + self.config.history_max;
        Sizes {
            live: self.config.members_max,
            removed: self.config.history_max,
            links,
            dirty: links * (records + ranks),
            flights: links * FLIGHTS_MAX,
            replay: self.config.members_max + 256,
            intents: OUTBOX_MAX + views::VIEWS_MAX,
            indirect_probes: indirect_probe::INDIRECT_PROBES_MAX,
            events: EVENTS_MAX,
        }
    }
}
