//! One thing that goes wrong: what, when, to whom, for how long.

use serde::{Deserialize, Serialize};

use super::{ScenarioError, Span, refused, within};
use crate::chance::Chance;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// Power off, for good (or until it is restarted).
    Crash,
    /// Power off, and a new life `for_ms` later.
    Restart,
    /// It does nothing for `for_ms`; its socket holds what arrives.
    Pause,
    /// As `pause`, of the whole machine: what arrives meanwhile is lost.
    Suspend,
    /// It is late for whatever comes, by up to `slow_us`, for `for_ms`.
    Slow,
    /// Its clock gains `rate_ppm` from now on.
    Clock,
    /// Its worker dies and another takes over `gap_us` later.
    Worker,
    /// An orderly goodbye.
    Leave,
    /// A node of a new name joins.
    Join,
    /// Its kernel says what became of rank `rank`.
    Rank,
    /// Nothing arrives at `to` from it, for `for_ms`.
    OneWay,
    /// It is cut off both ways, for `for_ms`.
    Isolate,
    /// So many nodes are cut off from all others, for `for_ms`.
    Split,
    /// Everybody is cut off from everybody, for `for_ms`.
    Blackout,
    /// So many in a thousand are lost, for `for_ms`; beyond all bounds.
    Storm,
    /// It loses rail `rail`, for `for_ms`; a zone has `zone.rails` of them.
    Rail,
    /// It writes an attribute of `bytes` bytes under key `key`.
    Publish,
    /// It deletes the attribute of key `key`, if there is one.
    Withdraw,
    /// A node of another job, with another key, knocks at the same doors.
    Foreign,
    /// An outsider without the key, which has recorded all datagrams from the boot on, plays the node's to members for
    /// `for_ms`.
    Replay,
}

/// A fault of a scenario. What is not given is drawn, within bounds that suit most zones.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// How many times; each is drawn by itself.
    #[serde(default = "once")]
    pub count: Span,
    /// When, in milliseconds after the boot; else at any time of the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<Span>,
    /// The first node; else any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Span>,
    /// To how many nodes at once: the first and those numbered after it.
    #[serde(default = "once")]
    pub nodes: Span,
    /// The deaf end of a one-way link; else any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Span>,
    /// For how long, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<Span>,
    /// How late a slow node is at most, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_us: Option<Span>,
    /// What a clock gains, in millionths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_ppm: Option<Span>,
    /// Without a worker, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_us: Option<Span>,
    /// Which rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<Span>,
    /// Which rail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rail: Option<Span>,
    /// Which attribute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Span>,
    /// How long its value is, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Span>,
    /// Lost in a storm, in a thousand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_permille: Option<Span>,
}

const fn once() -> Span {
    Span::just(1)
}

/// A field that some kinds have: its name, value, bounds, and what is drawn if it is not given.
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
                let reason = format!("a fault of kind {kind:?} has no such key");
                return Err(refused(&name, &value.low, &reason, "leave it out"));
            }
            within(&name, value, field.most.0, field.most.1)?;
        }
        if self.to.is_some() && kind != FaultKind::OneWay {
            let reason = "only a one-way link has a deaf end";
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

    /// When it ends, in milliseconds after the boot; a drawn fault.
    pub(crate) fn end_ms(&self) -> u64 {
        self.at() + self.for_ms.map_or(0, Span::value)
    }

    /// When it begins, in milliseconds after the boot; a drawn fault.
    pub(crate) fn at(&self) -> u64 {
        self.at_ms.map_or(0, Span::value)
    }

    /// The nodes it happens to, in a zone of so many; a drawn fault.
    pub(crate) fn targets(&self, members: usize) -> Vec<usize> {
        let first = self.node.map_or(0, Span::value) as usize;
        let count = (self.nodes.value() as usize).min(members);
        (0..count).map(|step| (first + step) % members).collect()
    }
}
