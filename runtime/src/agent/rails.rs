//! The rails in force: the configuration of them as a document, and what is open by it.
//!
//! Intuition: a wall plan and the wall. Another plan is put in force as a whole: what is new is built
//! first, since only that can fail, then the rest is taken down; if it cannot be built, what had been
//! done is undone, and the old plan holds.

use super::seat::Seat;
use crate::config::RailsDocument;
use muster_fabric::{Fabric, Nid, OpenError, Transport};
use muster_protocol::ADDRESS_MAX;
use tracing::error;

/// Plan and wall.
#[derive(Debug)]
pub(super) struct Rails {
    document: RailsDocument,
    /// What became of each of the document's rails, in its order.
    open: Vec<Nid>,
    /// Where the agent is on the machine.
    seat: Seat,
    /// Where the messages' memory is: they were allocated where the loop ran when it began.
    memory_node: Option<u32>,
    /// Some rails are preferred to others that work as well.
    favours: bool,
}

/// A step that was taken, with how to take it back.
enum Step {
    Opened(Nid),
    Closed(Nid),
}

impl Rails {
    /// The rails of a fabric that was opened by this document; `open` in its order.
    pub(super) fn new(document: RailsDocument, open: Vec<Nid>, seat: Seat) -> Rails {
        Rails {
            document,
            open,
            memory_node: seat.node(),
            seat,
            favours: false,
        }
    }

    pub(super) fn document(&self) -> &RailsDocument {
        &self.document
    }

    pub(super) fn open(&self) -> &[Nid] {
        &self.open
    }

    /// Whether some rails are preferred to others that work as well, by rule or by distance. What goes
    /// over one rail only says nothing of the others.
    pub(super) fn favours(&self) -> bool {
        self.favours
    }

    /// The ranks of this node are these processes now: the agent looks for a core of its own, near the
    /// first rail.
    pub(super) fn make_room(&mut self, fabric: &Fabric, ranks: &[u32]) {
        let near = fabric.rails().first().and_then(|rail| rail.numa_node);
        self.seat.choose(near, ranks);
    }

    /// Puts what is said about rails that are open in force: rules, limits, places.
    pub(super) fn settle(&mut self, fabric: &mut Fabric) {
        fabric.set_policy(self.document.policy.clone());
        fabric.set_numa_range(self.document.numa_range);
        fabric.set_relay(self.document.relay);
        fabric.set_health(self.document.health);
        for view in fabric.rails() {
            let place = self.open.iter().position(|nid| *nid == view.nid);
            let entry = place.and_then(|place| self.document.rails.get(place));
            let partitions = entry.map_or_else(Vec::new, |entry| entry.partitions.clone());
            fabric.place_rail(view.index, None, 0, partitions);
        }
        if let Some(machine) = self.seat.machine() {
            fabric.locate(machine, self.memory_node);
        }
        self.favours = !self.document.policy.rules().is_empty() || self.is_uneven(fabric);
    }

    /// Whether rails are at different distances, beyond the range in which they count as equal.
    fn is_uneven(&self, fabric: &Fabric) -> bool {
        let Some(machine) = self.seat.machine() else {
            return false;
        };
        let rails = fabric.rails();
        let distances = rails.iter().map(|rail| {
            let device = rail.interface.as_deref().unwrap_or_default();
            let distance = machine.distance_to_device(self.memory_node, device);
            distance.max(self.document.numa_range)
        });
        let (least, most) = (distances.clone().min(), distances.max());
        least != most
    }

    /// Puts another document in force. True if rails were opened or closed.
    ///
    /// # Errors
    /// Why it cannot be, and what to do. Everything is as it was then.
    pub(super) fn apply(
        &mut self,
        fabric: &mut Fabric,
        next: RailsDocument,
        mtu_least: usize,
    ) -> Result<bool, String> {
        let stays = |nid: &Nid| {
            let place = self
                .document
                .rails
                .iter()
                .position(|entry| entry.nid == *nid);
            place.and_then(|place| self.open.get(place))
        };
        let mut open: Vec<Option<Nid>> = next
            .rails
            .iter()
            .map(|entry| stays(&entry.nid).cloned())
            .collect();
        let goes = |nid: &&Nid| !open.iter().flatten().any(|one| one == *nid);
        let mut going: Vec<Nid> = self.open.iter().filter(goes).cloned().collect();
        let mut steps = Vec::new();
        for (place, entry) in next.rails.iter().enumerate() {
            if open[place].is_some() {
                continue;
            }
            match open_one(fabric, &entry.nid, &mut going, &mut steps) {
                Ok(nid) => open[place] = Some(nid),
                Err(why) => return Err(undo(fabric, steps, why)),
            }
        }
        for nid in going {
            if let Err(why) = fabric.remove_rail(&nid) {
                return Err(undo(fabric, steps, why.to_string()));
            }
            steps.push(Step::Closed(nid));
        }
        if let Some(why) = unfit(fabric, mtu_least) {
            return Err(undo(fabric, steps, why));
        }
        self.document = next;
        self.open = open.into_iter().flatten().collect();
        self.settle(fabric);
        Ok(!steps.is_empty())
    }
}

/// Opens a rail. Where one that goes anyway is in its way, that one goes first.
fn open_one(
    fabric: &mut Fabric,
    nid: &Nid,
    going: &mut Vec<Nid>,
    steps: &mut Vec<Step>,
) -> Result<Nid, String> {
    loop {
        let why = match fabric.add_rail(nid) {
            Ok(index) => {
                let rails = fabric.rails();
                let view = rails.into_iter().find(|rail| rail.index == index);
                let opened = view.map_or_else(|| nid.clone(), |rail| rail.nid);
                steps.push(Step::Opened(opened.clone()));
                return Ok(opened);
            }
            Err(why) => why,
        };
        let in_the_way = matches!(
            why,
            OpenError::SameInterface { .. } | OpenError::ManyRails { .. }
        );
        let Some(gone) = going.pop().filter(|_| in_the_way) else {
            return Err(why.to_string());
        };
        if let Err(last) = fabric.remove_rail(&gone) {
            return Err(format!("{why} ({last})"));
        }
        steps.push(Step::Closed(gone));
    }
}

/// Why members could not live with the rails that are open now.
fn unfit(fabric: &Fabric, mtu_least: usize) -> Option<String> {
    let (mtu, nids) = (fabric.mtu(), fabric.local_nids().to_string());
    if mtu < mtu_least {
        return Some(format!(
            "the new rail carries messages of {mtu} bytes, and the agent was started for \
             {mtu_least}; start it anew with this rail"
        ));
    }
    (nids.len() > ADDRESS_MAX).then(|| {
        format!(
            "the NIDs of all rails are {} bytes long, and others learn at most {ADDRESS_MAX}; \
             leave a rail out",
            nids.len()
        )
    })
}

/// Takes back what was done; the reason goes on.
fn undo(fabric: &mut Fabric, steps: Vec<Step>, why: String) -> String {
    for step in steps.into_iter().rev() {
        let undone = match &step {
            Step::Opened(nid) => fabric.remove_rail(nid).map_err(|error| error.to_string()),
            Step::Closed(nid) => {
                let again = fabric.add_rail(nid).map(drop);
                again.map_err(|error| error.to_string())
            }
        };
        if let Err(error) = undone {
            error!(error, "a rail is not as it was before a change that failed");
        }
    }
    why
}
