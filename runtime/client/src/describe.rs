//! Descriptions of events for people, one line each.
//!
//! A description names the subject, the event, the evidence, and how long it took: "rank 3 on nodeb FAILED: killed by
//! signal 9 (kernel futex), 0.2 ms". It follows from the numbers of the event alone, so a program may keep events and
//! describe them later.

use std::fmt::Write as _;

use super::{Client, Error};
use muster_shm::{Cause, Event, EventKind, NO_NODE, NO_RANK, TableView, setting, setting_value};
use muster_sys::clock;

impl Client {
    /// One line about an event: "rank 3 on nodeb FAILED: killed by signal 9 (kernel futex), 0.2 ms". The time is the
    /// length of the silence, or the time since the agent's verdict.
    pub fn event_describe(&self, event: &Event) -> Result<String, Error> {
        self.table()
            .map(|table| on_table(event, clock::monotonic_ns(), table))
    }
}

/// One line about an event that was delivered at this time, with the names of a state table.
pub fn on_table(event: &Event, delivered_ns: u64, table: &TableView) -> String {
    let nodes = table.event_nodes(event);
    let group = nodes.first().and_then(|node| table.node_group(*node));
    let together = Together { group, nodes };
    line(event, delivered_ns, &together, |node| table.node_name(node))
}

/// The nodes of an event, and the group of the first one.
#[derive(Debug, Default)]
pub struct Together {
    /// Its group.
    pub group: Option<String>,
    /// The nodes.
    pub nodes: Vec<u32>,
}

/// Most nodes of a group that are listed by name.
const NAMED_MAX: usize = 8;

/// One line about an event that was delivered at this time; `node_name` returns the name of a node's index.
pub fn line(
    event: &Event,
    delivered_ns: u64,
    together: &Together,
    node_name: impl Fn(u32) -> Option<String>,
) -> String {
    let node = |index: u32| node_name(index).unwrap_or_else(|| format!("#{index}"));
    let mut text = match event.kind {
        EventKind::Overflow if event.cause == Cause::NewAgent => {
            return "the agent was restarted; read states and node indices again".to_owned();
        }
        EventKind::Overflow if event.lost == 0 => {
            return "events were lost; read the states again".to_owned();
        }
        EventKind::Overflow => {
            return format!("{} events were lost; read the states again", event.lost);
        }
        EventKind::GroupFailed => {
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
        EventKind::Minority => {
            let then = if event.code == 1 {
                "holds"
            } else {
                "continues"
            };
            let (count, total) = (event.count, event.total);
            return format!("this node is in the MINORITY, {count} of {total} nodes, and {then}");
        }
        EventKind::Majority => {
            let (count, total) = (event.count, event.total);
            return format!("this node is in the majority again, {count} of {total} nodes");
        }
        EventKind::NodeRefused => {
            let subject = if event.node == NO_NODE {
                "a node of another release".to_owned()
            } else {
                format!("node {}", node(event.node))
            };
            let setting = setting(event.code);
            let value = |number| setting_value(event.code, number);
            let (own, other) = (value(event.count), value(event.total));
            return format!(
                "{subject} is REFUSED: its {setting} is {other}, here it is {own}; give all nodes the same value"
            );
        }
        EventKind::Outcast => "this node was declared FAILED by the other nodes".to_owned(),
        kind => format!("{} {}", subject(event, node), verb(kind)),
    };
    if let Some(how) = reason(event) {
        let _ = write!(text, ": {how}");
    }
    if let Some(microseconds) = latency_us(event, delivered_ns) {
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

fn subject(event: &Event, node: impl Fn(u32) -> String) -> String {
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

/// The evidence; `None` if the verb includes it.
fn reason(event: &Event) -> Option<String> {
    let cause_name = event.cause.name();
    match event.cause {
        Cause::Unspecified | Cause::Joined => None,
        Cause::KernelFutex | Cause::Pidfd | Cause::CoreDump => Some(match event.code {
            0 => format!("its process died ({cause_name})"),
            signal if signal > 0 => format!("killed by signal {signal} ({cause_name})"),
            exit => format!("ended with exit code {} ({cause_name})", -exit),
        }),
        Cause::Told if event.code > 0 => Some(format!("killed by signal {} (told)", event.code)),
        Cause::Told if event.code < 0 => {
            Some(format!("ended with exit code {} (told)", -event.code))
        }
        Cause::Announced if event.code != 0 => Some(format!("announced, exit code {}", event.code)),
        Cause::Silence => Some("silent on every rail".to_owned()),
        _ => Some(cause_name.to_owned()),
    }
}

/// How long it took: the silence, or the time from the agent's verdict to the delivery.
fn latency_us(event: &Event, delivered_ns: u64) -> Option<u64> {
    match event.cause {
        Cause::Silence => (event.silent_us > 0).then_some(u64::from(event.silent_us)),
        Cause::KernelFutex | Cause::Pidfd | Cause::CoreDump => delivered_ns
            .checked_sub(event.at_ns)
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

    fn event(kind: EventKind, cause: Cause) -> Event {
        Event {
            at_ns: 1_000_000,
            node: 1,
            ..Event::new(kind, cause)
        }
    }

    fn line(event: &Event, names: impl Fn(u32) -> Option<String>) -> String {
        super::line(event, 1_210_000, &Together::default(), names)
    }

    #[test]
    fn a_failed_group_and_a_minority() {
        let mut group = event(EventKind::GroupFailed, Cause::Silence);
        (group.count, group.total) = (2, 3);
        let together = Together {
            group: Some("rack3".to_owned()),
            nodes: vec![0, 2],
        };
        assert_eq!(
            super::line(&group, 0, &together, named),
            "group rack3 FAILED: 2 of 3 nodes, nodea, nodec"
        );
        let mut few = event(EventKind::Minority, Cause::Silence);
        (few.count, few.total, few.code) = (3, 12, 1);
        assert_eq!(
            line(&few, named),
            "this node is in the MINORITY, 3 of 12 nodes, and holds"
        );
        few.kind = EventKind::Majority;
        assert_eq!(
            line(&few, named),
            "this node is in the majority again, 3 of 12 nodes"
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
    fn events_without_a_reason() {
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
    }
}
