//! The rails in force: the configuration of them as a document, and what is open by it.
//!
//! Intuition: a wall plan and the wall. Another plan is put in force as a whole: what is new is built
//! first, since only that can fail, then the rest is taken down; if it cannot be built, what had been
//! done is undone, and the old plan holds. What could not be built again stays in the plan and is missing
//! from the wall, until it can.

use super::cpu_placement::CpuPlacement;
use super::rail_retry::{Opening, RailRetry};
use muster_config::RailsDocument;
use muster_fabric::{DefaultRails, Fabric, Nid, OpenError, OpenedRail, Rule, Transport};
use muster_protocol::ADDRESS_MAX;
use tracing::{error, info};

/// Plan and wall.
#[derive(Debug)]
pub(super) struct Rails {
    document: RailsDocument,
    /// What became of each of the document's rails, in its order.
    open: Vec<Nid>,
    /// Those of them that are not open now.
    rail_retry: Vec<RailRetry>,
    /// The one of these that is being opened.
    opening: Option<Opening>,
    /// Where the agent is on the machine.
    cpu_placement: CpuPlacement,
    /// Where the messages' memory is: they were allocated where the loop ran when it began.
    memory_node: Option<u32>,
    /// Some rails are preferred to others that work as well.
    favours: bool,
    /// How often a rail could not be opened again.
    lost: u64,
    /// How the rails were chosen, where none were configured.
    choice: DefaultRails,
}

/// A document that cannot be put in force. The one before holds.
#[derive(Debug)]
pub(super) struct Refusal {
    /// Why, and what to do.
    pub(super) why: String,
    /// A rail was closed on the way and opened again: it has other descriptors now, or is lost.
    pub(super) moved: bool,
}

/// What became of a rail that was opened for a document.
pub(super) type Opened = (Nid, Result<OpenedRail, String>);

/// A step that was taken, with how to take it back.
enum Step {
    Opened(Nid),
    Closed(Nid),
}

impl Rails {
    /// The rails of a fabric that was opened by this document; `open` in its order.
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
            favours: false,
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

    /// How often a rail of the plan could not be opened again.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// No rails were configured: this is how they were chosen.
    pub(super) fn note_choice(&mut self, choice: DefaultRails) {
        self.choice = choice;
    }

    /// How the rails were chosen where none were configured, in words: what is left out and why.
    pub(super) fn choice(&self) -> Vec<String> {
        self.choice.reasons().collect()
    }

    /// Rails of the plan that are not open.
    pub(super) fn rail_retry(&self) -> &[RailRetry] {
        &self.rail_retry
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
        self.cpu_placement.choose(near, ranks);
    }

    /// Puts what is said about rails that are open in force: rules, limits, places.
    pub(super) fn settle(&mut self, fabric: &mut Fabric) {
        fabric.set_policy(self.document.policy.clone());
        fabric.set_numa_range(self.document.numa_range);
        fabric.set_relay(self.document.relay);
        fabric.set_health(self.document.health);
        fabric.set_timeouts(self.document.timeouts);
        for view in fabric.rails() {
            let place = self.open.iter().position(|nid| *nid == view.nid);
            let entry = place.and_then(|place| self.document.rails.get(place));
            let partitions = entry.map_or_else(Vec::new, |entry| entry.partitions.clone());
            fabric.place_rail(view.index, None, 0, partitions);
        }
        if let Some(machine) = self.cpu_placement.machine() {
            fabric.locate(machine, self.memory_node);
        }
        self.favours = !self.document.policy.rules().is_empty() || self.is_uneven(fabric);
    }

    /// Rails that are to serve CPU partitions which this machine does not have, in words.
    pub(super) fn strange_partitions(&self) -> Option<String> {
        let there = self.cpu_placement.machine()?.partitions();
        let strange = self.document.rails.iter().filter_map(|rail| {
            let mut rail_retry = rail.partitions.iter().filter(|one| !there.contains(one));
            rail_retry
                .next()
                .map(|one| format!("{one} of {}", rail.nid))
        });
        let strange: Vec<String> = strange.collect();
        let there: Vec<String> = there.iter().map(u32::to_string).collect();
        (!strange.is_empty()).then(|| {
            format!(
                "this machine has the CPU partitions {}, and not {}: a rail that serves none of them is \
                 passed over as long as another works",
                there.join(", "),
                strange.join(", ")
            )
        })
    }

    /// Rules that were not in force before and mean none of the rails that are open, in words.
    pub(super) fn idle_rules(&self, fabric: &Fabric, before: &RailsDocument) -> Option<String> {
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
                "no rail of this node is meant by {}, so it binds nothing so far; its rails are {}",
                idle.join(", nor by "),
                fabric.local_nids()
            )
        })
    }

    /// Whether rails are at different distances, beyond the range in which they count as equal, or serve
    /// other CPU partitions than ours.
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

    /// Has the rails opened that a document has and we have not, each by a thread of its own, but for those that
    /// need the port of one that is to be closed. None if there are none.
    pub(super) fn begin(&self, now_us: u64, fabric: &Fabric, next: &RailsDocument) -> Vec<Opening> {
        let has = |document: &RailsDocument, nid: &Nid| {
            let mut rails = document.rails.iter();
            rails.any(|entry| entry.nid == *nid)
        };
        let planned = self.document.rails.iter().zip(&self.open);
        let going = planned.filter(|(entry, _)| !has(next, &entry.nid));
        let going: Vec<Nid> = going.map(|(_, open)| open.clone()).collect();
        let is_free = |nid: &Nid| {
            let apart = going.iter().all(|open| are_apart(nid.port, open.port));
            fabric.may_add(nid).is_ok() || apart && fabric.may_add_after(nid, &going).is_ok()
        };
        let new = next.rails.iter().map(|entry| &entry.nid);
        let new = new.filter(|nid| !has(&self.document, nid) && is_free(nid));
        let begin = |nid: &Nid| Opening::start(now_us, nid.clone(), vec![fabric.opener(nid)]).ok();
        new.filter_map(begin).collect()
    }

    /// Puts another document in force, with rails that were opened for it. True if rails were opened or closed.
    ///
    /// # Errors
    /// See [`Refusal`]; the rails are as they were then, but for one that could not be opened again.
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
                self.settle(fabric);
                Ok(!steps.is_empty())
            }
            Err(mut why) => {
                let moved = !steps.is_empty();
                let lost = undo(fabric, steps);
                for (nid, reason) in &lost {
                    why += &format!(
                        "; on the way {nid} was closed and could not be opened again ({reason}), and is \
                         tried again by itself: see muster rails"
                    );
                }
                self.note_lost(lost);
                if moved {
                    self.settle(fabric);
                }
                Err(Refusal { why, moved })
            }
        }
    }

    /// Opens and closes rails until they are those of a document, and notes how to take it back. What
    /// became of each of the document's rails, in its order.
    fn build(
        &self,
        fabric: &mut Fabric,
        next: &RailsDocument,
        mtu_least: usize,
        mut opened: Vec<Opened>,
        steps: &mut Vec<Step>,
    ) -> Result<Vec<Nid>, String> {
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
        let is_open = |nid: &Nid| self.rail_retry.iter().all(|one| one.nid != *nid);
        let goes = |nid: &&Nid| is_open(nid) && !open.iter().flatten().any(|one| one == *nid);
        let mut going: Vec<Nid> = self.open.iter().filter(goes).cloned().collect();
        for (place, entry) in next.rails.iter().enumerate() {
            if open[place].is_none() {
                let at = opened.iter().position(|(nid, _)| *nid == entry.nid);
                let opened = at.map(|at| opened.swap_remove(at).1).transpose()?;
                open[place] = Some(open_one(fabric, &entry.nid, opened, &mut going, steps)?);
            }
        }
        for nid in going {
            fabric
                .remove_rail(&nid)
                .map_err(|error| error.to_string())?;
            steps.push(Step::Closed(nid));
        }
        match unfit(fabric, mtu_least) {
            Some(why) => Err(why),
            None => Ok(open.into_iter().flatten().collect()),
        }
    }

    /// These rails of the plan could not be opened again, each for a reason: they are missing from now on.
    pub(super) fn note_lost(&mut self, lost: Vec<(Nid, String)>) {
        for (nid, reason) in lost {
            let is_known = self.rail_retry.iter().any(|one| one.nid == nid);
            if self.open.contains(&nid) && !is_known {
                self.lost += 1;
                self.rail_retry.push(RailRetry::new(nid, reason));
            }
        }
    }

    /// When a missing rail is to be tried again, or looked after while it is being opened: one at a time.
    pub(super) fn due_us(&self) -> Option<u64> {
        let next_us = self.rail_retry.iter().map(|one| one.next_us).min();
        self.opening
            .as_ref()
            .map_or(next_us, |opening| Some(opening.next_us))
    }

    /// Has a missing rail opened whose time has come, and takes one in that is open. True if it is open now.
    pub(super) fn reopen(&mut self, now_us: u64, fabric: &mut Fabric, mtu_least: usize) -> bool {
        if let Some(opening) = &mut self.opening {
            let Some(opened) = opening.look(now_us) else {
                return false;
            };
            let at = self
                .rail_retry
                .iter()
                .position(|one| one.nid == opening.nid);
            self.opening = None;
            // One that has left the plan meanwhile is closed again.
            return at.is_some_and(|at| self.reopened(now_us, at, opened, fabric, mtu_least));
        }
        let due = |one: &RailRetry| one.next_us <= now_us;
        let Some(at) = self.rail_retry.iter().position(due) else {
            return false;
        };
        let rail_retry = &mut self.rail_retry[at];
        let place = self.open.iter().position(|nid| *nid == rail_retry.nid);
        let Some(place) = place else {
            self.rail_retry.remove(at);
            return false;
        };
        // The others know its port; but any other is better than no rail.
        let configured = &self.document.rails[place].nid;
        let ways = [&rail_retry.nid, configured].map(|nid| fabric.opener(nid));
        match Opening::start(now_us, rail_retry.nid.clone(), ways.into()) {
            Ok(opening) => self.opening = Some(opening),
            Err(reason) => rail_retry.put_off(now_us, reason),
        }
        false
    }

    /// A missing rail was opened, or not. True if it is a rail of this node now.
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
                info!(rail = %nid, "a rail that was missing is open");
                if let Some(place) = self.open.iter().position(|nid| *nid == rail_retry.nid) {
                    self.open[place] = nid;
                }
                self.rail_retry.remove(at);
                self.settle(fabric);
                true
            }
            Err(reason) => {
                rail_retry.put_off(now_us, reason);
                false
            }
        }
    }
}

/// Takes in a rail that members can live with.
fn take_alone(fabric: &mut Fabric, opened: OpenedRail, mtu_least: usize) -> Result<Nid, String> {
    let index = fabric
        .take_rail(opened)
        .map_err(|error| error.to_string())?;
    let nid = nid_of(fabric, index).ok_or("it is gone again")?;
    match unfit(fabric, mtu_least) {
        None => Ok(nid),
        Some(why) => {
            undo(fabric, vec![Step::Opened(nid)]);
            Err(why)
        }
    }
}

fn nid_of(fabric: &Fabric, index: usize) -> Option<Nid> {
    let rails = fabric.rails();
    let view = rails.into_iter().find(|rail| rail.index == index);
    view.map(|rail| rail.nid)
}

/// Opens a rail. Where one that goes anyway is in its way, that one goes first.
fn open_one(
    fabric: &mut Fabric,
    nid: &Nid,
    mut opened: Option<OpenedRail>,
    going: &mut Vec<Nid>,
    steps: &mut Vec<Step>,
) -> Result<Nid, String> {
    loop {
        // What is open stays so until it can be taken in.
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
                going.iter().position(|one| one.to_string() == *first)
            }
            OpenError::ManyRails { .. } => going.len().checked_sub(1),
            _ => None,
        };
        let Some(gone) = in_the_way.map(|place| going.remove(place)) else {
            return Err(why.to_string());
        };
        if let Err(last) = fabric.remove_rail(&gone) {
            return Err(format!("{why} ({last})"));
        }
        steps.push(Step::Closed(gone));
    }
}

/// Ports of a rail, from its own on: for news, for beats, maybe for bulk messages and for liveness connections.
const PORTS: u16 = 4;

/// Whether two rails can be open on one address at once. The system gives a port that is free.
fn are_apart(port: u16, other: u16) -> bool {
    port == 0 || port.abs_diff(other) >= PORTS
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

/// Takes back what was done; says which rails it could not open again, and why.
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
            error!(error, "a rail is not as it was before a change that failed");
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

    /// A fabric on two rails, and the plan of it.
    fn begin() -> (Fabric, Rails) {
        let nids = ["127.59.1.1:0@udp0", "127.59.1.2:0@udp0"].map(str::to_owned);
        let library = muster_fabric::load().expect("libfabric is installed where tests run");
        let given = nids.iter().map(|nid| nid.parse().unwrap()).collect();
        let mut fabric = Fabric::open(&FabricConfig::new(library, given)).unwrap();
        let open = fabric.local_nids().iter().cloned().collect();
        let mut rails = Rails::new(document(&nids), open, CpuPlacement::default());
        rails.settle(&mut fabric);
        (fabric, rails)
    }

    /// Has what is due opened, and waits for it: another thread does it.
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

    /// cfg-020: a rail that had to be closed for one that cannot be opened is another one now, for whoever
    /// waits for it and for what is said about it.
    #[test]
    fn a_refused_change_says_what_moved_and_the_old_plan_holds_for_all_rails() {
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
        assert!(refusal.moved);
        assert_eq!(rails.open(), before);
        let nids: Vec<Nid> = fabric.local_nids().iter().cloned().collect();
        assert_eq!(sorted(&nids), sorted(&before));
        for view in fabric.rails() {
            assert_eq!(view.partitions, [3], "{}", view.nid);
        }
        // What needs no rail closed moves none.
        let far = document(&["203.0.113.9:0@udp0".into(), "127.59.1.2:0@udp0".into()]);
        assert!(
            !rails
                .apply(&mut fabric, far, 0, Vec::new())
                .unwrap_err()
                .moved
        );
        drop(taken);
        let moved = await_free(|| {
            let moved = rails.apply(&mut fabric, next.clone(), 0, Vec::new());
            moved.map_err(|one| one.why)
        });
        assert!(moved);
    }

    /// Each rail's interface is wanted by another port of it: none is closed but the one in the way, so
    /// that one is always left.
    #[test]
    fn all_rails_move_to_other_ports_in_one_change() {
        let (mut fabric, mut rails) = begin();
        let [one, two] = rails.open() else {
            panic!("two rails")
        };
        let (one, two) = (one.port, two.port);
        // Ports that the system gave a moment ago, each on the other address.
        let next = document(&[
            format!("127.59.1.1:{two}@udp0"),
            format!("127.59.1.2:{one}@udp0"),
        ]);
        let moved = rails
            .apply(&mut fabric, next, 0, Vec::new())
            .map_err(|one| one.why);
        assert_eq!(moved, Ok(true));
        let ports: Vec<u16> = rails.open().iter().map(|nid| nid.port).collect();
        assert_eq!(ports, [two, one]);
    }

    /// The loop goes on while a rail is opened at another port of its address, and the old one carries meanwhile. Only
    /// what needs the very port of one that goes has to wait until that is closed.
    #[test]
    fn a_rail_moves_to_another_port_beside_the_loop() {
        let (mut fabric, mut rails) = begin();
        let (one, two) = (rails.open[0].clone(), rails.open[1].clone());
        let plan = |second: &str| {
            let text = "version: 1\nnets:\n  - net: udp0\n    rails:\n      - nid: 127.59.1.1:0@udp0\n  \
                - net: udp7\n    rails:\n      - nid: ";
            RailsDocument::import(&format!("{text}{second}\n")).unwrap()
        };
        let moved = plan("127.59.1.2:0@udp7");
        let beside = |rails: &Rails, fabric: &Fabric, next: &RailsDocument| -> Vec<Nid> {
            let opening = rails.begin(1, fabric, next);
            opening.into_iter().map(|one| one.nid).collect()
        };
        assert_eq!(
            beside(&rails, &fabric, &moved),
            ["127.59.1.2:0@udp7".parse().unwrap()]
        );
        let same = plan(&format!("127.59.1.2:{}@udp7", two.port));
        assert_eq!(beside(&rails, &fabric, &same), []);
        let opened = rails
            .begin(1, &fabric, &moved)
            .into_iter()
            .map(|mut opening| {
                loop {
                    match opening.look(1) {
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
            "both carry until then"
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

    /// Nobody has removed it, so it stays in the plan and comes back when it can, by its own port or by
    /// another one if any will do.
    #[test]
    fn a_rail_that_cannot_be_opened_is_tried_again_until_it_can() {
        let (mut fabric, mut rails) = begin();
        let (lost, left) = (rails.open[0].clone(), rails.open[1].clone());
        fabric.remove_rail(&lost).unwrap();
        rails.note_lost(vec![(lost.clone(), "no such interface".into())]);
        assert_eq!((rails.lost(), rails.rail_retry().len()), (1, 1));
        // Now only by this port, which somebody has.
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
        // A change in the meantime is made with those that are open.
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
            "all that the plan says of it holds again"
        );
    }

    /// The loop goes on while a rail is being opened; one that has left the plan by then is closed again.
    #[test]
    fn a_rail_is_opened_beside_the_loop_and_only_for_the_plan() {
        let (mut fabric, mut rails) = begin();
        let lost = rails.open[0].clone();
        fabric.remove_rail(&lost).unwrap();
        rails.note_lost(vec![(lost.clone(), "gone".into())]);
        assert!(!rails.reopen(7, &mut fabric, 0), "another thread does it");
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

    /// cfg-030: partitions that the machine does not have are named, with those that it has.
    #[cfg(feature = "hwloc")]
    #[test]
    fn partitions_that_are_not_there_are_named() {
        let (_fabric, mut rails) = begin();
        assert_eq!(
            rails.strange_partitions(),
            None,
            "nothing is known of the machine"
        );
        let file = std::path::Path::new("../../tests/topologies/two-sockets.xml");
        rails.cpu_placement =
            CpuPlacement::look(Some(muster_fabric::locality::read_file(file).unwrap()));
        let said = rails.strange_partitions().unwrap();
        assert!(
            said.starts_with("this machine has the CPU partitions 0, 1, and not 3 of 127.59.1.1"),
            "{said}"
        );
        rails
            .document
            .rails
            .iter_mut()
            .for_each(|rail| rail.partitions = vec![0]);
        assert_eq!(rails.strange_partitions(), None);
    }

    #[test]
    fn a_missing_rail_that_leaves_the_plan_is_not_tried_again() {
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

    /// A document's new rails are opened by threads of their own, but for one whose port another one has that goes;
    /// what they could not open is the document's refusal.
    #[test]
    fn new_rails_are_opened_beside_the_loop() {
        let (mut fabric, mut rails) = begin();
        let [stays, new] = ["127.59.1.1:0@udp0", "127.59.1.3:0@udp0"].map(str::to_owned);
        let moved = format!("127.59.1.2:{}@udp1", rails.open()[1].port);
        let text = "version: 1\nnets:\n  - net: udp0\n    rails:\n".to_owned()
            + &format!("      - nid: {stays}\n      - nid: {new}\n")
            + &format!("  - net: udp1\n    rails:\n      - nid: {moved}\n");
        let next = RailsDocument::import(&text).unwrap();
        let mut openings = rails.begin(0, &fabric, &next);
        let mut opening = openings.pop().expect("one is opened");
        assert_eq!((opening.nid.to_string(), openings.len()), (new, 0));
        let opened = loop {
            if let Some(opened) = opening.look(1) {
                break opened;
            }
            std::thread::yield_now();
        };
        let before = fabric.local_nids();
        let nid = opening.nid;
        let lost = vec![(nid.clone(), Err("no such device".to_owned()))];
        let refused = rails.apply(&mut fabric, next.clone(), 0, lost).unwrap_err();
        assert_eq!(
            (refused.why.as_str(), refused.moved),
            ("no such device", false)
        );
        assert_eq!(fabric.local_nids(), before);
        let moved = rails.apply(&mut fabric, next, 0, vec![(nid, opened)]);
        assert_eq!(moved.map_err(|one| one.why), Ok(true));
        assert_eq!((fabric.rails().len(), rails.open().len()), (3, 3));
    }
}
