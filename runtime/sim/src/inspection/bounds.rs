//! The checkers of bounds: memory, traffic and copies. They run at intervals.

use std::collections::BTreeMap;

use muster_protocol::{Overlay, Sizes};

use crate::checker::Violation;
use crate::world::{FactsHeard, NodeIndex, World};

/// The resources that a member may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes that a member may send in a quiet second, averaged over all members.
    pub quiet_bytes: u64,
    /// Bytes that a member may send in any second, averaged over all members.
    pub storm_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            quiet_bytes: 60_000,
            storm_bytes: 2_000_000,
        }
    }
}

/// `memory`: no table of a member is larger than its configuration allows.
pub(crate) fn memory(world: &World) -> Vec<Violation> {
    let mut found = Vec::new();
    for node in world.running() {
        let engine = world.engine(node);
        for (what, size, limit) in excesses(engine) {
            found.push(Violation {
                checker: "memory",
                at: world.now(),
                member: Some(engine.id()),
                what: format!("node {node} keeps {size} {what}, the bound is {limit}"),
            });
        }
    }
    found
}

fn excesses(engine: &Overlay) -> impl Iterator<Item = (&'static str, usize, usize)> {
    let (sizes, limits): (Sizes, Sizes) = (engine.sizes(), engine.limits());
    [
        ("members in the view", sizes.live, limits.live),
        ("removed members", sizes.removed, limits.removed),
        ("links", sizes.links, limits.links),
        ("messages in flight", sizes.flights, limits.flights),
        ("facts on lists", sizes.dirty, limits.dirty),
        ("replay windows", sizes.replay, limits.replay),
        ("intents", sizes.intents, limits.intents),
        (
            "indirect probes",
            sizes.indirect_probes,
            limits.indirect_probes,
        ),
        ("events", sizes.events, limits.events),
    ]
    .into_iter()
    .filter(|(_, size, limit)| size > limit)
}

/// `traffic`: the bytes sent since the previous check against a bound.
pub(crate) fn traffic(
    world: &World,
    sent_before: u64,
    duration_us: u64,
    bound: u64,
) -> Option<Violation> {
    let members = world.running().len().max(1) as u64;
    let sent = world.bytes_sent_by_all().saturating_sub(sent_before);
    let each = sent * 1_000_000 / duration_us.max(1) / members;
    (each > bound).then(|| Violation {
        checker: "traffic",
        at: world.now(),
        member: None,
        what: format!(
            "{each} bytes a second and member over {} ms, the bound is {bound}",
            duration_us / 1000
        ),
    })
}

/// `copies`: how many copies of a piece of news a member received since `before`, on average, against a bound
/// in hundredths. It counts messages and does not depend on time.
pub(crate) fn copies(
    world: &World,
    before: &BTreeMap<NodeIndex, FactsHeard>,
    bound_percent: u64,
) -> Option<Violation> {
    let heard = world.facts_heard_since(before);
    let percent = heard.all * 100 / heard.new.max(1);
    (heard.new > 0 && percent > bound_percent).then(|| Violation {
        checker: "copies",
        at: world.now(),
        member: None,
        what: format!(
            "{} facts arrived for {} that were new: {percent} %, the bound is \
             {bound_percent}",
            heard.all, heard.new
        ),
    })
}
