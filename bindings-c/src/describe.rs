//! Names and sentences for people.
//!
//! An event says who, what, how that is known, and how long it took: "rank 3 on nodeb FAILED:
//! killed by signal 9 (kernel futex), 0.2 ms". The words follow from the numbers alone, so a
//! program may keep events and describe them later.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write as _;

use muster::board::{self, Cause, EventKind, NO_NODE, NO_RANK};

use crate::event::muster_event_t;

const KINDS: [&CStr; 19] = [
    c"?",
    c"NODE_UP",
    c"NODE_DEGRADED",
    c"NODE_RECOVERED",
    c"NODE_SUSPECT",
    c"NODE_FAILED",
    c"NODE_LEFT",
    c"RANK_UP",
    c"RANK_HUNG",
    c"RANK_RESUMED",
    c"RANK_FAILED",
    c"RANK_LEFT",
    c"OUTCAST",
    c"OVERFLOW",
    c"ATTRIBUTE",
    c"GROUP_FAILED",
    c"MINORITY",
    c"MAJORITY",
    c"NODE_REFUSED",
];

const CAUSES: [&CStr; 15] = [
    c"no reason given",
    c"silence",
    c"kernel futex",
    c"pidfd",
    c"core dump",
    c"stopped",
    c"announced",
    c"unreachable",
    c"told",
    c"node failed",
    c"refuted",
    c"joined",
    c"stuck",
    c"no tick",
    c"new agent",
];

const NODE_STATES: [&CStr; 6] = [
    c"Unknown",
    c"Alive",
    c"Degraded",
    c"Suspect",
    c"Failed",
    c"Left",
];
const RANK_STATES: [&CStr; 5] = [c"Unknown", c"Alive", c"Hung", c"Failed", c"Left"];

/// The name at a number; "?" for a number that has none.
fn name(names: &'static [&'static CStr], number: c_int) -> &'static CStr {
    usize::try_from(number)
        .ok()
        .and_then(|index| names.get(index).copied())
        .unwrap_or(c"?")
}

/// The name of an event.
#[unsafe(no_mangle)]
pub extern "C" fn muster_event_name(kind: c_int) -> *const c_char {
    name(&KINDS, kind).as_ptr()
}

/// The name of a cause.
#[unsafe(no_mangle)]
pub extern "C" fn muster_cause_name(cause: c_int) -> *const c_char {
    name(&CAUSES, cause).as_ptr()
}

/// The name of a node's state.
#[unsafe(no_mangle)]
pub extern "C" fn muster_node_state_name(state: c_int) -> *const c_char {
    name(&NODE_STATES, state).as_ptr()
}

/// The name of a rank's state.
#[unsafe(no_mangle)]
pub extern "C" fn muster_rank_state_name(state: c_int) -> *const c_char {
    name(&RANK_STATES, state).as_ptr()
}

/// The nodes an event is about, and the group of the first one.
#[derive(Default)]
pub(crate) struct Together {
    pub(crate) group: Option<String>,
    pub(crate) nodes: Vec<u32>,
}

/// Most nodes of a group that are named.
const NAMED_MAX: usize = 8;

/// One line about an event; `node_name` answers the name of a node's index.
pub(crate) fn line(
    event: &muster_event_t,
    together: &Together,
    node_name: impl Fn(u32) -> Option<String>,
) -> String {
    let node = |index: u32| node_name(index).unwrap_or_else(|| format!("#{index}"));
    let kind = u16::try_from(event.kind)
        .ok()
        .and_then(EventKind::from_number);
    let cause = u16::try_from(event.cause).ok().and_then(Cause::from_number);
    let mut text = match kind {
        None => return format!("an event of the unknown kind {}", event.kind),
        Some(EventKind::Overflow) if cause == Some(Cause::NewAgent) => {
            return "the agent was started anew; read states and node indices again".to_owned();
        }
        Some(EventKind::Overflow) if event.lost == 0 => {
            return "events were lost; read the states again".to_owned();
        }
        Some(EventKind::Overflow) => {
            return format!("{} events were lost; read the states again", event.lost);
        }
        Some(EventKind::GroupFailed) => {
            let names: Vec<String> = together.nodes.iter().map(|index| node(*index)).collect();
            let (count, total) = (event.count, event.total);
            let group = together.group.as_deref().unwrap_or("?");
            let named = names[..names.len().min(NAMED_MAX)].join(", ");
            let more = names.len().saturating_sub(NAMED_MAX);
            let mut text = format!("group {group} FAILED: {count} of {total} nodes, {named}");
            if more > 0 {
                let _ = write!(text, " and {more} more");
            }
            return text;
        }
        Some(EventKind::Minority) => {
            let then = if event.code == 1 { "holds" } else { "goes on" };
            let (count, total) = (event.count, event.total);
            return format!("this node is with the FEW, {count} of {total} nodes, and {then}");
        }
        Some(EventKind::Majority) => {
            let (count, total) = (event.count, event.total);
            return format!("this node is with the many again, {count} of {total} nodes");
        }
        Some(EventKind::NodeRefused) => {
            let who = if event.node == NO_NODE {
                "a node of another release".to_owned()
            } else {
                format!("node {}", node(event.node))
            };
            let setting = board::setting(event.code);
            return format!("{who} is REFUSED: its {setting} differs; give all nodes the same");
        }
        Some(EventKind::Outcast) => "this node was declared FAILED by the others".to_owned(),
        Some(kind) => format!("{} {}", subject(event, node), verb(kind)),
    };
    if let Some(how) = cause.and_then(|cause| reason(event, cause)) {
        let _ = write!(text, ": {how}");
    }
    if let Some(microseconds) = latency_us(event, cause) {
        let _ = write!(text, ", {}", milliseconds(microseconds));
    }
    let named: Vec<String> = event
        .reporters
        .iter()
        .filter(|index| **index != NO_NODE)
        .map(|index| node(*index))
        .collect();
    if event.reporter_count > 0 && !named.is_empty() {
        let _ = write!(text, ", reported by {}", named.join(", "));
        let more = (event.reporter_count as usize).saturating_sub(named.len());
        if more > 0 {
            let _ = write!(text, " and {more} more");
        }
    }
    text
}

fn subject(event: &muster_event_t, node: impl Fn(u32) -> String) -> String {
    match (event.rank, event.node) {
        (NO_RANK, index) => format!("node {}", node(index)),
        (rank, NO_NODE) => format!("rank {rank}"),
        (rank, index) => format!("rank {rank} on {}", node(index)),
    }
}

fn verb(kind: EventKind) -> &'static str {
    match kind {
        EventKind::NodeUp | EventKind::RankUp => "is up",
        EventKind::NodeDegraded => "is DEGRADED",
        EventKind::NodeRecovered => "recovered",
        EventKind::NodeSuspect => "is SUSPECT",
        EventKind::NodeFailed | EventKind::RankFailed => "FAILED",
        EventKind::NodeLeft | EventKind::RankLeft => "left",
        EventKind::RankHung => "is HUNG",
        EventKind::RankResumed => "resumed",
        EventKind::Attribute => "changed an attribute",
        EventKind::Outcast
        | EventKind::Overflow
        | EventKind::GroupFailed
        | EventKind::Minority
        | EventKind::Majority
        | EventKind::NodeRefused => "",
    }
}

/// How it is known; nothing where the verb says it all.
fn reason(event: &muster_event_t, cause: Cause) -> Option<String> {
    let cause_name = name(&CAUSES, c_int::from(cause as u16)).to_string_lossy();
    match cause {
        Cause::Unspecified | Cause::Joined => None,
        Cause::KernelFutex | Cause::Pidfd | Cause::CoreDump => Some(match event.code {
            0 => format!("its process died ({cause_name})"),
            signal if signal > 0 => format!("killed by signal {signal} ({cause_name})"),
            exit => format!("ended with exit code {} ({cause_name})", -exit),
        }),
        Cause::Announced if event.code != 0 => Some(format!("announced, exit code {}", event.code)),
        Cause::Silence => Some("silent on every rail".to_owned()),
        _ => Some(cause_name.into_owned()),
    }
}

/// How long it took: the silence, or from the agent's verdict to here.
fn latency_us(event: &muster_event_t, cause: Option<Cause>) -> Option<u64> {
    match cause {
        Some(Cause::Silence) => (event.silent_us > 0).then_some(u64::from(event.silent_us)),
        Some(Cause::KernelFutex | Cause::Pidfd | Cause::CoreDump) => event
            .delivered_ns
            .checked_sub(event.verdict_ns)
            .map(|nanoseconds| nanoseconds / 1000),
        _ => None,
    }
}

fn milliseconds(microseconds: u64) -> String {
    let tenths = (microseconds + 50) / 100;
    format!("{}.{} ms", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, cause: Cause) -> muster_event_t {
        muster_event_t {
            struct_size: size_of::<muster_event_t>(),
            sequence: 0,
            verdict_ns: 1_000_000,
            delivered_ns: 1_210_000,
            kind: kind as i32,
            cause: cause as i32,
            node: 1,
            rank: NO_RANK,
            code: 0,
            silent_us: 0,
            reporter_count: 0,
            reporters: [NO_NODE; 3],
            lost: 0,
            key_hash: 0,
            count: 0,
            total: 0,
        }
    }

    fn line(event: &muster_event_t, names: impl Fn(u32) -> Option<String>) -> String {
        super::line(event, &Together::default(), names)
    }

    #[test]
    fn a_group_and_a_side() {
        let mut group = event(EventKind::GroupFailed, Cause::Silence);
        (group.count, group.total) = (2, 3);
        let together = Together {
            group: Some("rack3".to_owned()),
            nodes: vec![0, 2],
        };
        assert_eq!(
            super::line(&group, &together, named),
            "group rack3 FAILED: 2 of 3 nodes, nodea, nodec"
        );
        let mut few = event(EventKind::Minority, Cause::Silence);
        (few.count, few.total, few.code) = (3, 12, 1);
        assert_eq!(
            line(&few, named),
            "this node is with the FEW, 3 of 12 nodes, and holds"
        );
        few.kind = EventKind::Majority as i32;
        assert_eq!(
            line(&few, named),
            "this node is with the many again, 3 of 12 nodes"
        );
    }

    fn named(index: u32) -> Option<String> {
        ["nodea", "nodeb", "nodec"]
            .get(index as usize)
            .map(|name| (*name).to_owned())
    }

    #[test]
    fn a_killed_rank() {
        let mut killed = event(EventKind::RankFailed, Cause::KernelFutex);
        (killed.rank, killed.code) = (3, 9);
        assert_eq!(
            line(&killed, named),
            "rank 3 on nodeb FAILED: killed by signal 9 (kernel futex), 0.2 ms"
        );
    }

    #[test]
    fn a_rank_that_ended_by_itself() {
        let mut ended = event(EventKind::RankFailed, Cause::Pidfd);
        (ended.rank, ended.code) = (3, -9);
        assert_eq!(
            line(&ended, named),
            "rank 3 on nodeb FAILED: ended with exit code 9 (pidfd), 0.2 ms"
        );
    }

    #[test]
    fn a_silent_node() {
        let mut silent = event(EventKind::NodeFailed, Cause::Silence);
        (silent.silent_us, silent.reporter_count, silent.reporters) = (61_260, 4, [0, 2, NO_NODE]);
        assert_eq!(
            line(&silent, named),
            "node nodeb FAILED: silent on every rail, 61.3 ms, reported by nodea, nodec and 2 more"
        );
    }

    #[test]
    fn what_needs_no_reason() {
        assert_eq!(
            line(&event(EventKind::NodeUp, Cause::Joined), named),
            "node nodeb is up"
        );
        let mut lost = event(EventKind::Overflow, Cause::Unspecified);
        lost.lost = 7;
        assert_eq!(
            line(&lost, named),
            "7 events were lost; read the states again"
        );
        lost.kind = 99;
        assert_eq!(line(&lost, named), "an event of the unknown kind 99");
    }

    /// The tables are as long as the enumerations that they name.
    #[test]
    fn every_number_has_a_name() {
        let kinds = (0..=u16::MAX).filter(|n| EventKind::from_number(*n).is_some());
        assert_eq!(kinds.max().map(usize::from), Some(KINDS.len() - 1));
        let causes = (0..=u16::MAX).filter(|n| Cause::from_number(*n).is_some());
        assert_eq!(causes.max().map(usize::from), Some(CAUSES.len() - 1));
        assert_eq!(name(&KINDS, -1), c"?");
        assert_eq!(name(&NODE_STATES, 6), c"?");
    }
}
