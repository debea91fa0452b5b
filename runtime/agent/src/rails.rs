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

    /// Adds rails of the document that could not be reopened, with their reasons, to the missing ones.
    pub(super) fn note_lost(&mut self, lost: Vec<(Nid, String)>) {
        for (nid, reason) in lost {
            let is_known = self.rail_retry.iter().any(|one| one.nid == nid);
            if self.open.contains(&nid) && !is_known {
                self.lost += 1;
                self.rail_retry.push(RailRetry::new(nid, reason));
            }
        }
    }

    /// Closes a rail. It is missing until a retry has opened it again.
    ///
    /// # Errors
    /// It is the only open rail; nothing has changed then.
    pub(super) fn renew(&mut self, fabric: &mut Fabric, nid: &Nid) -> Result<(), RemoveError> {
        fabric.remove_rail(nid)?;
        let reason = "its link was down; it is opened again".to_owned();
        self.rail_retry.push(RailRetry::new(nid.clone(), reason));
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
mod tests {
    use super::super::await_free;
    use super::*;
    use muster_fabric::FabricConfig;
    use std::net::UdpSocket;

    fn document(rails: &[String]) -> RailsDocument {
        let mut text = "version: 1\nnets:\n  - net: udp0\n    rails:\n".to_owned();
        for nid in rails {
            text += &format!("      - nid: {nid}\n        partitions: [3]\n");
        }
        RailsDocument::import(&text).unwrap()
    }

    /// A fabric with two rails, and their document.
    fn begin() -> (Fabric, Rails) {
        let nids = ["127.59.1.1:0@udp0", "127.59.1.2:0@udp0"].map(str::to_owned);
        let library = muster_fabric::load().expect("libfabric is installed where tests run");
        let given = nids.iter().map(|nid| nid.parse().unwrap()).collect();
        let mut fabric = Fabric::open(&FabricConfig::new(library, given)).unwrap();
        let open = fabric.local_nids().iter().cloned().collect();
        let mut rails = Rails::new(document(&nids), open, CpuPlacement::default());
        rails.configure(&mut fabric);
        (fabric, rails)
    }

    /// Opens the rail that is due and waits for the thread that opens it.
    fn reopen(rails: &mut Rails, fabric: &mut Fabric, now_us: u64) -> bool {
        let mut is_open = rails.reopen(now_us, fabric, 0);
        while rails.opening.is_some() {
            std::thread::yield_now();
            is_open = rails.reopen(now_us, fabric, 0);
        }
        is_open
    }

    fn sorted(nids: &[Nid]) -> Vec<Nid> {
        let mut nids = nids.to_vec();
        nids.sort();
        nids
    }

    /// cfg-020: a rail that is closed for another one that cannot be opened has new descriptors after the undo.
    #[test]
    fn a_refused_change_reports_reopened_rails_and_keeps_the_old_document() {
        let (mut fabric, mut rails) = begin();
        let before = rails.open().to_vec();
        let taken = UdpSocket::bind("127.59.1.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let next = document(&[
            format!("127.59.1.1:{port}@udp0"),
            "127.59.1.2:0@udp0".into(),
        ]);
        let refusal = rails
            .apply(&mut fabric, next.clone(), 0, Vec::new())
            .unwrap_err();
        assert!(
            refusal.why.contains(&format!("port {port}")),
            "{}",
            refusal.why
        );
        assert!(refusal.changed);
        assert_eq!(rails.open(), before);
        let nids: Vec<Nid> = fabric.local_nids().iter().cloned().collect();
        assert_eq!(sorted(&nids), sorted(&before));
        for view in fabric.rails() {
            assert_eq!(view.partitions, [3], "{}", view.nid);
        }
        // A change that needs no rail closed does not reopen any.
        let far = document(&["203.0.113.9:0@udp0".into(), "127.59.1.2:0@udp0".into()]);
        assert!(
            !rails
                .apply(&mut fabric, far, 0, Vec::new())
                .unwrap_err()
                .changed
        );
        drop(taken);
        let changed = await_free(|| {
            let changed = rails.apply(&mut fabric, next.clone(), 0, Vec::new());
            changed.map_err(|one| one.why)
        });
        assert!(changed);
    }

    /// Each rail's interface is needed by the new port of that rail. Only the rail in the way is closed, so one
    /// always remains.
    #[test]
    fn all_rails_move_to_other_ports_in_one_change() {
        let (mut fabric, mut rails) = begin();
        let [one, two] = rails.open() else {
            panic!("two rails")
        };
        let (one, two) = (one.port, two.port);
        // Ports that the system assigned just before, each on the other address.
        let next = document(&[
            format!("127.59.1.1:{two}@udp0"),
            format!("127.59.1.2:{one}@udp0"),
        ]);
        let changed = rails
            .apply(&mut fabric, next, 0, Vec::new())
            .map_err(|one| one.why);
        assert_eq!(changed, Ok(true));
        let ports: Vec<u16> = rails.open().iter().map(|nid| nid.port).collect();
        assert_eq!(ports, [two, one]);
    }

    /// The loop continues while a rail is opened on another port of its address, and the old rail is used meanwhile.
    /// Only a rail that needs the same port has to wait until the old one is closed.
    #[test]
    fn a_rail_moves_to_another_port_without_blocking_the_loop() {
        let (mut fabric, mut rails) = begin();
        let (one, two) = (rails.open[0].clone(), rails.open[1].clone());
        let plan = |second: &str| {
            let text = "version: 1\nnets:\n  - net: udp0\n    rails:\n      - nid: 127.59.1.1:0@udp0\n  \
                - net: udp7\n    rails:\n      - nid: ";
            RailsDocument::import(&format!("{text}{second}\n")).unwrap()
        };
        let moved = plan("127.59.1.2:0@udp7");
        let beside = |rails: &Rails, fabric: &Fabric, next: &RailsDocument| -> Vec<Nid> {
            let opening = rails.start_opening(1, fabric, next);
            opening.into_iter().map(|one| one.nid).collect()
        };
        assert_eq!(
            beside(&rails, &fabric, &moved),
            ["127.59.1.2:0@udp7".parse().unwrap()]
        );
        let same = plan(&format!("127.59.1.2:{}@udp7", two.port));
        assert_eq!(beside(&rails, &fabric, &same), []);
        let opened = rails
            .start_opening(1, &fabric, &moved)
            .into_iter()
            .map(|mut opening| {
                loop {
                    match opening.poll(1) {
                        Some(opened) => break (opening.nid, opened),
                        None => std::thread::yield_now(),
                    }
                }
            });
        let opened: Vec<Opened> = opened.collect();
        let nids: Vec<Nid> = fabric.local_nids().iter().cloned().collect();
        assert_eq!(
            sorted(&nids),
            sorted(&[one.clone(), two]),
            "both rails are used until then"
        );
        let done = rails.apply(&mut fabric, moved, 0, opened);
        assert_eq!(done.map_err(|one| one.why), Ok(true));
        let nets: Vec<String> = rails.open().iter().map(|nid| nid.net.to_string()).collect();
        assert_eq!(
            (nets, &rails.open()[0]),
            (vec!["udp0".to_owned(), "udp7".to_owned()], &one)
        );
        assert_eq!(fabric.rails().len(), 2);
    }

    /// A rail that no operator removed stays in the document and returns when it can: on its own port, or on another
    /// one if the document allows any.
    #[test]
    fn a_rail_that_cannot_be_opened_is_retried_until_it_can() {
        let (mut fabric, mut rails) = begin();
        let (lost, left) = (rails.open[0].clone(), rails.open[1].clone());
        fabric.remove_rail(&lost).unwrap();
        rails.note_lost(vec![(lost.clone(), "no such interface".into())]);
        assert_eq!((rails.lost(), rails.rail_retry().len()), (1, 1));
        // From here on only this port is configured, which another socket has.
        rails.document.rails[0].nid = lost.clone();
        let taken = await_free(|| UdpSocket::bind(lost.socket_address().unwrap()));
        assert!(!reopen(&mut rails, &mut fabric, 5));
        let why = rails.rail_retry()[0].reason.clone();
        assert!(why.contains("in use"), "{why}");
        let due_us = rails.due_us().unwrap();
        assert!(due_us > 5);
        drop(taken);
        assert!(
            !reopen(&mut rails, &mut fabric, due_us - 1),
            "not before its time"
        );
        // A change meanwhile uses the rails that are open.
        let document = rails.document().clone();
        assert_eq!(
            rails
                .apply(&mut fabric, document, 0, Vec::new())
                .map_err(|one| one.why),
            Ok(false)
        );
        await_free(|| {
            let due_us = rails.due_us().unwrap();
            match reopen(&mut rails, &mut fabric, due_us) {
                true => Ok(()),
                false => Err(rails.rail_retry()[0].reason.clone()),
            }
        });
        assert_eq!((rails.due_us(), rails.lost()), (None, 1));
        assert_eq!(rails.open(), [lost, left]);
        let view = fabric
            .rails()
            .into_iter()
            .find(|view| view.nid == rails.open[0])
            .unwrap();
        assert_eq!(
            view.partitions,
            [3],
            "the document's settings of the rail are in effect again"
        );
    }

    /// The loop continues while a rail is being opened. A rail that was removed from the document meanwhile is
    /// closed.
    #[test]
    fn a_rail_is_opened_without_blocking_the_loop_and_only_for_the_document() {
        let (mut fabric, mut rails) = begin();
        let lost = rails.open[0].clone();
        fabric.remove_rail(&lost).unwrap();
        rails.note_lost(vec![(lost.clone(), "gone".into())]);
        assert!(!rails.reopen(7, &mut fabric, 0), "another thread opens it");
        assert!(rails.opening.is_some() && rails.due_us() > Some(7));
        assert_eq!(fabric.rails().len(), 1);
        let mut next = rails.document().clone();
        next.rails.remove(0);
        rails
            .apply(&mut fabric, next, 0, Vec::new())
            .map_err(|one| one.why)
            .unwrap();
        assert!(!reopen(&mut rails, &mut fabric, 8));
        assert_eq!((fabric.rails().len(), rails.due_us()), (1, None));
        // Its address is free again.
        await_free(|| fabric.add_rail(&lost).map(drop));
    }

    /// cfg-030: the text names partitions that the machine does not have, and those that it has.
    #[cfg(feature = "hwloc")]
    #[test]
    fn unknown_partitions_are_named() {
        let (_fabric, mut rails) = begin();
        assert_eq!(rails.unknown_partitions(), None, "the topology is unknown");
        let file = std::path::Path::new("../../tests/topologies/two-sockets.xml");
        rails.cpu_placement =
            CpuPlacement::new(Some(muster_fabric::locality::read_file(file).unwrap()));
        let text = rails.unknown_partitions().unwrap();
        assert!(
            text.starts_with("this machine has the CPU partitions 0, 1, and not 3 of 127.59.1.1"),
            "{text}"
        );
        rails
            .document
            .rails
            .iter_mut()
            .for_each(|rail| rail.partitions = vec![0]);
        assert_eq!(rails.unknown_partitions(), None);
    }

    #[test]
    fn a_missing_rail_that_is_removed_is_not_retried() {
        let (mut fabric, mut rails) = begin();
        let (lost, left) = (rails.open[0].clone(), rails.open[1].clone());
        fabric.remove_rail(&lost).unwrap();
        rails.note_lost(vec![(lost, "gone".into())]);
        let mut next = rails.document().clone();
        next.rails.remove(0);
        assert_eq!(
            rails
                .apply(&mut fabric, next, 0, Vec::new())
                .map_err(|one| one.why),
            Ok(false)
        );
        assert_eq!((rails.rail_retry().len(), rails.open()), (0, &[left][..]));
    }

    /// New rails of a document are opened by threads, except one whose port belongs to a rail that is to be closed.
    /// If a thread fails, the document is refused with its error.
    #[test]
    fn new_rails_are_opened_without_blocking_the_loop() {
        let (mut fabric, mut rails) = begin();
        let [kept, new] = ["127.59.1.1:0@udp0", "127.59.1.3:0@udp0"].map(str::to_owned);
        let moved = format!("127.59.1.2:{}@udp1", rails.open()[1].port);
        let text = "version: 1\nnets:\n  - net: udp0\n    rails:\n".to_owned()
            + &format!("      - nid: {kept}\n      - nid: {new}\n")
            + &format!("  - net: udp1\n    rails:\n      - nid: {moved}\n");
        let next = RailsDocument::import(&text).unwrap();
        let mut openings = rails.start_opening(0, &fabric, &next);
        let mut opening = openings.pop().expect("one is opened");
        assert_eq!((opening.nid.to_string(), openings.len()), (new, 0));
        let opened = loop {
            if let Some(opened) = opening.poll(1) {
                break opened;
            }
            std::thread::yield_now();
        };
        let before = fabric.local_nids();
        let nid = opening.nid;
        let lost = vec![(nid.clone(), Err("no such device".to_owned()))];
        let refused = rails.apply(&mut fabric, next.clone(), 0, lost).unwrap_err();
        assert_eq!(
            (refused.why.as_str(), refused.changed),
            ("no such device", false)
        );
        assert_eq!(fabric.local_nids(), before);
        let changed = rails.apply(&mut fabric, next, 0, vec![(nid, opened)]);
        assert_eq!(changed.map_err(|one| one.why), Ok(true));
        assert_eq!((fabric.rails().len(), rails.open().len()), (3, 3));
    }
}
