//! `Rails` holds the rails document in effect, and the rails that are open according to it.
//!
//! A new document takes effect as a whole. New rails are opened first, because only that can fail; then the others
//! are closed. If a rail cannot be opened, all steps are undone and the old document stays in effect. A rail that
//! cannot be reopened stays in the document and counts as missing until a retry succeeds.

use super::cpu_placement::CpuPlacement;
use super::rail_retry::{Opening, RailRetry};
use muster_config::RailsDocument;
use muster_fabric::{
    DefaultRails, Fabric, Nid, OpenError, OpenedRail, RemoveError, Rule, Transport,
};
use muster_protocol::ADDRESS_MAX;
use tracing::{error, info};

/// The document and the open rails.
#[derive(Debug)]
pub(super) struct Rails {
    document: RailsDocument,
    /// The NID of each of the document's rails, in its order.
    open: Vec<Nid>,
    /// The rails of `open` that are not open now.
    rail_retry: Vec<RailRetry>,
    /// The rail of `rail_retry` that a thread is opening.
    opening: Option<Opening>,
    /// The CPU placement of the agent.
    cpu_placement: CpuPlacement,
    /// NUMA node of the message buffers. They were allocated where the loop ran at its start.
    memory_node: Option<u32>,
    /// Some rails are preferred to others that also work.
    has_preferences: bool,
    /// Number of rails that could not be reopened.
    lost: u64,
    /// How the rails were chosen, if none were configured.
    choice: DefaultRails,
}

/// A document that cannot take effect. The previous one stays in effect.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The reason and the remedy.
    pub(super) why: String,
    /// A rail was closed and reopened in the attempt: it has new descriptors, or is missing.
    pub(super) changed: bool,
}

/// The result of opening a rail for a document.
pub(super) type Opened = (Nid, Result<OpenedRail, String>);

/// A step of a change, for undoing it.
enum Step {
    Opened(Nid),
    Closed(Nid),
}

impl Rails {
    /// The rails of a fabric that was opened for this document; `open` has the document's order.
    pub(super) fn new(
        document: RailsDocument,
        open: Vec<Nid>,
        cpu_placement: CpuPlacement,
    ) -> Rails {
        Rails {
            document,
            open,
            rail_retry: Vec::new(),
            opening: None,
            memory_node: cpu_placement.node(),
            cpu_placement,
            has_preferences: false,
            lost: 0,
            choice: DefaultRails::default(),
        }
    }

    pub(super) fn document(&self) -> &RailsDocument {
        &self.document
    }

    pub(super) fn open(&self) -> &[Nid] {
        &self.open
    }

    /// Number of rails of the document that could not be reopened.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Stores how the rails were chosen, because none were configured.
    pub(super) fn note_choice(&mut self, choice: DefaultRails) {
        self.choice = choice;
    }

    /// How the rails were chosen, if none were configured: text on each interface that is not used, with the reason.
    pub(super) fn choice(&self) -> Vec<String> {
        self.choice.reasons().collect()
    }

    /// Rails of the document that are not open.
    pub(super) fn rail_retry(&self) -> &[RailRetry] {
        &self.rail_retry
    }

    /// Whether some rails are preferred to others that also work, by rule or by distance. Frames on one rail then do
    /// not show that the others work.
    pub(super) fn has_preferences(&self) -> bool {
        self.has_preferences
    }

    /// Chooses a core for the agent near the first rail. `ranks` are the process ids of this node's ranks.
    pub(super) fn choose_core(&mut self, fabric: &Fabric, ranks: &[u32]) {
        let near = fabric.rails().first().and_then(|rail| rail.numa_node);
        self.cpu_placement.choose(near, ranks);
    }

    /// Passes the document's policy, limits and partitions to the fabric.
    pub(super) fn configure(&mut self, fabric: &mut Fabric) {
        fabric.set_policy(self.document.policy.clone());
        fabric.set_numa_range(self.document.numa_range);
        fabric.set_relay(self.document.relay);
        fabric.set_health(self.document.health);
        fabric.set_timeouts(self.document.timeouts);
        for view in fabric.rails() {
            let position = self.open.iter().position(|nid| *nid == view.nid);
            let entry = position.and_then(|position| self.document.rails.get(position));
            let partitions = entry.map_or_else(Vec::new, |entry| entry.partitions.clone());
            fabric.place_rail(view.index, None, 0, partitions);
        }
        if let Some(machine) = self.cpu_placement.machine() {
            fabric.locate(machine, self.memory_node);
        }
        self.has_preferences = !self.document.policy.rules().is_empty() || self.is_uneven(fabric);
    }

    /// Text on rails that are assigned to CPU partitions that this machine does not have.
    pub(super) fn unknown_partitions(&self) -> Option<String> {
        let present = self.cpu_placement.machine()?.partitions();
        let unknown = self.document.rails.iter().filter_map(|rail| {
            let mut missing = rail.partitions.iter().filter(|one| !present.contains(one));
            missing.next().map(|one| format!("{one} of {}", rail.nid))
        });
        let unknown: Vec<String> = unknown.collect();
        let present: Vec<String> = present.iter().map(u32::to_string).collect();
        (!unknown.is_empty()).then(|| {
            format!(
                "this machine has the CPU partitions {}, and not {}: a rail that serves none of them is \
                 not used as long as another rail works",
                present.join(", "),
                unknown.join(", ")
            )
        })
    }

    /// Text on new rules that match none of the open rails.
    pub(super) fn unused_rules(&self, fabric: &Fabric, before: &RailsDocument) -> Option<String> {
        let rails = fabric.rails();
        let binds = |rule: &Rule| {
            let mut rails = rails.iter();
            rails.any(|rail| rule.subject.concerns(&rail.nid, rail.interface.as_deref()))
        };
        let old = before.policy.rules();
        let rules = self.document.policy.rules().iter();
        let idle = rules.filter(|rule| !old.contains(rule) && !binds(rule));
        let idle: Vec<String> = idle.map(|rule| rule.subject.to_string()).collect();
        (!idle.is_empty()).then(|| {
            format!(
                "no rail of this node matches {}, so the rule has no effect yet; its rails are {}",
                idle.join(" or "),
                fabric.local_nids()
            )
        })
    }

    /// Whether rails differ in distance, beyond the range in which they count as equal, or serve CPU partitions other
    /// than the agent's.
    fn is_uneven(&self, fabric: &Fabric) -> bool {
        let Some(machine) = self.cpu_placement.machine() else {
            return false;
        };
        let rails = fabric.rails();
        let distances = rails.iter().map(|rail| {
            let device = rail.interface.as_deref().unwrap_or_default();
            let distance = machine.distance_to_device(self.memory_node, device);
            let serves = rail.serves(self.memory_node);
            (!serves, distance.max(self.document.numa_range))
        });
        let (least, most) = (distances.clone().min(), distances.max());
        least != most
    }

    /// Starts a thread for each new rail of a document. Rails that need the port of a rail that is to be closed are
    /// excluded. Returns an empty list if there are none.
    pub(super) fn start_opening(
        &self,
        now_us: u64,
        fabric: &Fabric,
        next: &RailsDocument,
    ) -> Vec<Opening> {
        let has = |document: &RailsDocument, nid: &Nid| {
            let mut rails = document.rails.iter();
            rails.any(|entry| entry.nid == *nid)
        };
        let planned = self.document.rails.iter().zip(&self.open);
        let closing = planned.filter(|(entry, _)| !has(next, &entry.nid));
        let closing: Vec<Nid> = closing.map(|(_, open)| open.clone()).collect();
        let is_free = |nid: &Nid| {
            let apart = closing.iter().all(|open| are_apart(nid.port, open.port));
            fabric.may_add(nid).is_ok() || apart && fabric.may_add_after(nid, &closing).is_ok()
        };
        let new = next.rails.iter().map(|entry| &entry.nid);
        let new = new.filter(|nid| !has(&self.document, nid) && is_free(nid));
        let begin = |nid: &Nid| Opening::start(now_us, nid.clone(), vec![fabric.opener(nid)]).ok();
        new.filter_map(begin).collect()
    }

    /// Puts a document into effect, with rails that were opened for it. Returns true if rails were opened or closed.
    ///
    /// # Errors
    /// See [`Refusal`]. The rails are then as before, except for one that could not be reopened.
    pub(super) fn apply(
        &mut self,
        fabric: &mut Fabric,
        next: RailsDocument,
        mtu_least: usize,
        opened: Vec<Opened>,
    ) -> Result<bool, Refusal> {
        let mut steps = Vec::new();
        match self.build(fabric, &next, mtu_least, opened, &mut steps) {
            Ok(open) => {
                self.document = next;
                self.open = open;
                let planned = &self.open;
                self.rail_retry.retain(|one| planned.contains(&one.nid));
                self.configure(fabric);
                Ok(!steps.is_empty())
            }
            Err(mut why) => {
                let changed = !steps.is_empty();
                let lost = undo(fabric, steps);
                for (nid, reason) in &lost {
                    why += &format!(
                        "; in this attempt {nid} was closed and could not be reopened ({reason}); the agent \
                         retries: see muster rails"
                    );
                }
                self.note_lost(lost);
                if changed {
                    self.configure(fabric);
                }
                Err(Refusal { why, changed })
            }
        }
    }

    /// Opens and closes rails until they match a document, and records the steps for undoing. Returns the NID of each
    /// of the document's rails, in its order.
    fn build(
        &self,
        fabric: &mut Fabric,
        next: &RailsDocument,
        mtu_least: usize,
        mut opened: Vec<Opened>,
        steps: &mut Vec<Step>,
    ) -> Result<Vec<Nid>, String> {
        let kept = |nid: &Nid| {
            let position = self
                .document
                .rails
                .iter()
                .position(|entry| entry.nid == *nid);
            position.and_then(|position| self.open.get(position))
        };
        let mut open: Vec<Option<Nid>> = next
            .rails
            .iter()
            .map(|entry| kept(&entry.nid).cloned())
            .collect();
        let is_open = |nid: &Nid| self.rail_retry.iter().all(|one| one.nid != *nid);
        let is_closing = |nid: &&Nid| is_open(nid) && !open.iter().flatten().any(|one| one == *nid);
        let mut closing: Vec<Nid> = self.open.iter().filter(is_closing).cloned().collect();
        for (position, entry) in next.rails.iter().enumerate() {
            if open[position].is_none() {
                let at = opened.iter().position(|(nid, _)| *nid == entry.nid);
                let opened = at.map(|at| opened.swap_remove(at).1).transpose()?;
                open[position] = Some(open_one(fabric, &entry.nid, opened, &mut closing, steps)?);
            }
        }
        for nid in closing {
            fabric
                .remove_rail(&nid)
                .map_err(|error| error.to_string())?;
            steps.push(Step::Closed(nid));
        }
        match incompatibility(fabric, mtu_least) {
            Some(why) => Err(why),
            None => Ok(open.into_iter().flatten().collect()),
        }
    }

    /// Adds rails of the document that could not be opened, with their reasons, to the missing ones.
    pub(super) fn note_lost(&mut self, lost: Vec<(Nid, impl ToString)>) {
        for (nid, reason) in lost {
            let is_known = self.rail_retry.iter().any(|one| one.nid == nid);
            if self.open.contains(&nid) && !is_known {
                let reason = reason.to_string();
                error!(rail = %nid, reason, "a rail cannot be opened; the agent retries");
                self.lost += 1;
                self.rail_retry.push(RailRetry::new(nid, reason));
            }
        }
    }

    /// Closes a rail. It is missing until a retry has opened it again.
    ///
    /// # Errors
    /// It is the only open rail; nothing has changed then.
    pub(super) fn renew(
        &mut self,
        fabric: &mut Fabric,
        nid: &Nid,
        reason: &str,
    ) -> Result<(), RemoveError> {
        fabric.remove_rail(nid)?;
        let retry = RailRetry::new(nid.clone(), format!("{reason}; it is opened again"));
        self.rail_retry.push(retry);
        Ok(())
    }

    /// Time of the next retry of a missing rail, or of the next check while one is being opened. Only one is opened
    /// at a time.
    pub(super) fn due_us(&self) -> Option<u64> {
        let next_us = self.rail_retry.iter().map(|one| one.next_us).min();
        self.opening
            .as_ref()
            .map_or(next_us, |opening| Some(opening.next_us))
    }

    /// Starts opening a missing rail that is due, or adds one that is open by now. Returns true if a rail was added.
    pub(super) fn reopen(&mut self, now_us: u64, fabric: &mut Fabric, mtu_least: usize) -> bool {
        if let Some(opening) = &mut self.opening {
            let Some(opened) = opening.poll(now_us) else {
                return false;
            };
            let at = self
                .rail_retry
                .iter()
                .position(|one| one.nid == opening.nid);
            self.opening = None;
            // A rail that was removed from the document meanwhile is closed again by the drop.
            return at.is_some_and(|at| self.reopened(now_us, at, opened, fabric, mtu_least));
        }
        let due = |one: &RailRetry| one.next_us <= now_us;
        let Some(at) = self.rail_retry.iter().position(due) else {
            return false;
        };
        let rail_retry = &mut self.rail_retry[at];
        let position = self.open.iter().position(|nid| *nid == rail_retry.nid);
        let Some(position) = position else {
            self.rail_retry.remove(at);
            return false;
        };
        // Other nodes know its last port, so that is tried first. Any other port is better than no rail.
        let configured = &self.document.rails[position].nid;
        let openers = [&rail_retry.nid, configured].map(|nid| fabric.opener(nid));
        match Opening::start(now_us, rail_retry.nid.clone(), openers.into()) {
            Ok(opening) => self.opening = Some(opening),
            Err(reason) => rail_retry.defer(now_us, reason),
        }
        false
    }

    /// Handles the result for a missing rail. Returns true if it is a rail of this node now.
    fn reopened(
        &mut self,
        now_us: u64,
        at: usize,
        opened: Result<OpenedRail, String>,
        fabric: &mut Fabric,
        mtu_least: usize,
    ) -> bool {
        let taken = opened.and_then(|opened| take_alone(fabric, opened, mtu_least));
        let rail_retry = &mut self.rail_retry[at];
        match taken {
            Ok(nid) => {
                info!(rail = %nid, "a missing rail is open again");
                if let Some(position) = self.open.iter().position(|nid| *nid == rail_retry.nid) {
                    self.open[position] = nid;
                }
                self.rail_retry.remove(at);
                self.configure(fabric);
                true
            }
            Err(reason) => {
                rail_retry.defer(now_us, reason);
                false
            }
        }
    }
}

/// Adds a rail if members can use it.
fn take_alone(fabric: &mut Fabric, opened: OpenedRail, mtu_least: usize) -> Result<Nid, String> {
    let index = fabric
        .take_rail(opened)
        .map_err(|error| error.to_string())?;
    let nid = nid_of(fabric, index).ok_or("it was removed again")?;
    match incompatibility(fabric, mtu_least) {
        None => Ok(nid),
        Some(why) => {
            undo(fabric, vec![Step::Opened(nid)]);
            Err(why)
        }
    }
}

/// The NID of an open rail.
pub(super) fn nid_of(fabric: &Fabric, index: usize) -> Option<Nid> {
    let rails = fabric.rails();
    let view = rails.into_iter().find(|rail| rail.index == index);
    view.map(|rail| rail.nid)
}

/// Opens a rail. If a rail that is to be closed is in its way, closes that one first.
fn open_one(
    fabric: &mut Fabric,
    nid: &Nid,
    mut opened: Option<OpenedRail>,
    closing: &mut Vec<Nid>,
    steps: &mut Vec<Step>,
) -> Result<Nid, String> {
    loop {
        // A rail that is open already stays so until it can be added.
        let added = match fabric.may_add(nid) {
            Err(why) => Err(why),
            Ok(()) => match opened.take() {
                Some(opened) => fabric.take_rail(opened),
                None => fabric.add_rail(nid),
            },
        };
        let why = match added {
            Ok(index) => {
                let opened = nid_of(fabric, index).unwrap_or_else(|| nid.clone());
                steps.push(Step::Opened(opened.clone()));
                return Ok(opened);
            }
            Err(why) => why,
        };
        let in_the_way = match &why {
            OpenError::SameInterface { first, .. } => {
                closing.iter().position(|one| one.to_string() == *first)
            }
            OpenError::ManyRails { .. } => closing.len().checked_sub(1),
            _ => None,
        };
        let Some(gone) = in_the_way.map(|position| closing.remove(position)) else {
            return Err(why.to_string());
        };
        if let Err(last) = fabric.remove_rail(&gone) {
            return Err(format!("{why} ({last})"));
        }
        steps.push(Step::Closed(gone));
    }
}

/// Ports that a rail uses, from its own on: news, beats, optionally bulk messages and liveness connections.
const PORTS: u16 = 4;

/// Whether two rails can be open on one address at the same time. For port 0 the system chooses a free port.
fn are_apart(port: u16, other: u16) -> bool {
    port == 0 || port.abs_diff(other) >= PORTS
}

/// The reason why members could not use the rails that are open now.
fn incompatibility(fabric: &Fabric, mtu_least: usize) -> Option<String> {
    let (mtu, nids) = (fabric.mtu(), fabric.local_nids().to_string());
    if mtu < mtu_least {
        return Some(format!(
            "the new rail carries messages of {mtu} bytes, and the agent was started for \
             {mtu_least}; restart the agent with this rail"
        ));
    }
    (nids.len() > ADDRESS_MAX).then(|| {
        format!(
            "the NIDs of all rails are {} bytes long, and other nodes accept at most {ADDRESS_MAX}; \
             remove a rail",
            nids.len()
        )
    })
}

/// Undoes steps. Returns the rails that could not be reopened, with the reasons.
fn undo(fabric: &mut Fabric, steps: Vec<Step>) -> Vec<(Nid, String)> {
    let mut lost = Vec::new();
    for step in steps.into_iter().rev() {
        let failed = match step {
            Step::Opened(nid) => fabric.remove_rail(&nid).err().map(|why| why.to_string()),
            Step::Closed(nid) => fabric.add_rail(&nid).err().map(|why| {
                lost.push((nid, why.to_string()));
                why.to_string()
            }),
        };
        if let Some(error) = failed {
            error!(
                error,
                "a rail could not be restored after a change that failed"
            );
        }
    }
    lost
}

#[cfg(test)]
mod tests;
