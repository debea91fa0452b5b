//! One fault: its kind, time, node and duration.

use serde::{Deserialize, Serialize};

use super::{ScenarioError, Span, refused, within};
use crate::chance::Chance;

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// Power off, for good or until it is restarted.
    Crash,
    /// Power off; the node starts a new incarnation `for_ms` later.
    Restart,
    /// The node stops for `for_ms`; its socket keeps what arrives.
    Pause,
    /// Like `pause` for the whole machine: what arrives meanwhile is lost.
    Suspend,
    /// The node handles every event up to `slow_us` late, for `for_ms`.
    Slow,
    /// The node's clock gains `rate_ppm` from now on.
    Clock,
    /// The node's worker dies and another one takes over `gap_us` later.
    Worker,
    /// The node leaves in order.
    Leave,
    /// A node with a new name joins.
    Join,
    /// The node's kernel reports the end of rank `rank`.
    Rank,
    /// Nothing that the node sends arrives at `to`, for `for_ms`.
    OneWay,
    /// The node is cut off in both directions, for `for_ms`.
    Isolate,
    /// This many nodes are cut off from all others, for `for_ms`.
    Split,
    /// All nodes are cut off from each other, for `for_ms`.
    Blackout,
    /// The network loses `loss_permille` of the datagrams for `for_ms`, beyond all bounds.
    Storm,
    /// The node loses rail `rail`, for `for_ms`; a zone has `zone.rails` of them.
    Rail,
    /// The node writes an attribute of `bytes` bytes under key `key`.
    Publish,
    /// The node deletes the attribute of key `key`, if there is one.
    Withdraw,
    /// A node of another job, with another key, sends its requests to the same addresses.
    Foreign,
    /// An outsider without the key has recorded all datagrams since the boot. It replays those of the node to
    /// members for `for_ms`.
    Replay,
}

/// A fault of a scenario. Fields that are not given are drawn, within bounds that suit most zones.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The kind.
    pub kind: FaultKind,
    /// How many times it occurs; each one is drawn separately.
    #[serde(default = "once")]
    pub count: Span,
    /// When, in milliseconds after the boot; default: at any time of the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<Span>,
    /// The first node; default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Span>,
    /// How many nodes are affected at once: the first one and those numbered after it.
    #[serde(default = "once")]
    pub nodes: Span,
    /// The node that receives nothing over a one-way link; default: any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Span>,
    /// For how long, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<Span>,
    /// How late a slow node is at most, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_us: Option<Span>,
    /// How much a clock gains, in parts per million.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_ppm: Option<Span>,
    /// Time without a worker, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_us: Option<Span>,
    /// The rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Span>,
    /// The rail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<Span>,
    /// The number of the attribute's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Span>,
    /// The length of the attribute's value, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Span>,
    /// Datagrams lost in a storm, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_permille: Option<Span>,
}

const fn once() -> Span {
    Span::just(1)
}

/// A field that only some kinds have: its name, value, bounds, and the range to draw from if it is not given.
struct Field<'a> {
    name: &'static str,
    value: &'a mut Option<Span>,
    kinds: &'static [FaultKind],
    most: (i64, i64),
    usual: Span,
}

impl Fault {
    fn fields(&mut self) -> [Field<'_>; 9] {
        use FaultKind::{
            Blackout, Clock, Isolate, OneWay, Pause, Publish, Rail, Rank, Replay, Restart, Slow,
            Split, Storm, Suspend, Withdraw, Worker,
        };
        [
            Field {
                name: "for_ms",
                value: &mut self.for_ms,
                kinds: &[
                    Restart, Pause, Suspend, Slow, OneWay, Isolate, Split, Blackout, Storm, Rail,
                    Replay,
                ],
                most: (0, 600_000),
                usual: Span::between(0, 300),
            },
            Field {
                name: "slow_us",
                value: &mut self.slow_us,
                kinds: &[Slow],
                most: (0, 10_000_000),
                usual: Span::between(500, 10_000),
            },
            Field {
                name: "rate_ppm",
                value: &mut self.rate_ppm,
                kinds: &[Clock],
                most: (-500_000, 500_000),
                usual: Span::between(-500, 500),
            },
            Field {
                name: "gap_us",
                value: &mut self.gap_us,
                kinds: &[Worker],
                most: (1, 10_000_000),
                usual: Span::between(500, 5000),
            },
            Field {
                name: "rank",
                value: &mut self.rank,
                kinds: &[Rank],
                most: (0, 4000),
                usual: Span::between(0, 7),
            },
            Field {
                name: "rail",
                value: &mut self.rail,
                kinds: &[Rail],
                most: (0, 15),
                usual: Span::between(0, 2),
            },
            Field {
                name: "key",
                value: &mut self.key,
                kinds: &[Publish, Withdraw],
                most: (0, 255),
                usual: Span::between(0, 3),
            },
            Field {
                name: "bytes",
                value: &mut self.bytes,
                kinds: &[Publish],
                most: (0, 65_000),
                usual: Span::between(0, 3000),
            },
            Field {
                name: "loss_permille",
                value: &mut self.loss_permille,
                kinds: &[Storm],
                most: (0, 1000),
                usual: Span::between(200, 700),
            },
        ]
    }

    pub(super) fn check(&self, members: i64) -> Result<(), ScenarioError> {
        let kind = self.kind;
        within("fault.count", self.count, 0, 1000)?;
        within("fault.nodes", self.nodes, 1, members)?;
        for field in self.clone().fields() {
            let Some(value) = *field.value else { continue };
            let name = format!("fault.{}", field.name);
            if !field.kinds.contains(&kind) {
                let reason = format!("a fault of kind {kind:?} does not have this key");
                return Err(refused(&name, &value.low, &reason, "leave it out"));
            }
            within(&name, value, field.most.0, field.most.1)?;
        }
        if self.to.is_some() && kind != FaultKind::OneWay {
            let reason = "only a fault of kind one-way has this key";
            return Err(refused("fault.to", &"", reason, "leave it out"));
        }
        for (name, node) in [("fault.node", self.node), ("fault.to", self.to)] {
            if let Some(node) = node {
                within(name, node, 0, members - 1)?;
            }
        }
        match self.at_ms {
            Some(at_ms) => within("fault.at_ms", at_ms, 0, 600_000),
            None => Ok(()),
        }
    }

    /// Adds the drawn faults.
    pub(super) fn draw(
        mut self,
        chance: &mut Chance,
        members: i64,
        duration_ms: i64,
        into: &mut Vec<Self>,
    ) {
        self.count.draw(chance);
        let count = self.count.value();
        self.count = once();
        for _ in 0..count {
            let mut fault = self.clone();
            fault
                .at_ms
                .get_or_insert(Span::between(0, duration_ms))
                .draw(chance);
            fault
                .node
                .get_or_insert(Span::between(0, members - 1))
                .draw(chance);
            fault.nodes.draw(chance);
            if fault.kind == FaultKind::OneWay {
                fault
                    .to
                    .get_or_insert(Span::between(0, members - 1))
                    .draw(chance);
            }
            let kind = fault.kind;
            for field in fault.fields() {
                if field.kinds.contains(&kind) {
                    field.value.get_or_insert(field.usual).draw(chance);
                }
            }
            into.push(fault);
        }
    }

    /// When a drawn fault ends, in milliseconds after the boot.
    pub(crate) fn end_ms(&self) -> u64 {
        self.at() + self.for_ms.map_or(0, Span::value)
    }

    /// When a drawn fault begins, in milliseconds after the boot.
    pub(crate) fn at(&self) -> u64 {
        self.at_ms.map_or(0, Span::value)
    }

    /// The nodes that a drawn fault affects, in a zone of this size.
    pub(crate) fn targets(&self, members: usize) -> Vec<usize> {
        let first = self.node.map_or(0, Span::value) as usize;
        let count = (self.nodes.value() as usize).min(members);
        (0..count).map(|step| (first + step) % members).collect()
    }
}
