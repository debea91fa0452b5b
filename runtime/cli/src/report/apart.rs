//! `Apart` finds which nodes were cut off from the job, and when.
//!
//! In a split each side finds the other side silent. The report shows the view of the larger side as the events of the
//! job. The statements of a node on the smaller side about others in that time are its own view. A node is cut off
//! - from the losses that made it a minority until it learns that the others hold it failed (`outcast`),
//! - or while it is a minority and a node that is not a minority holds it failed,
//! - or while it and others hold each other failed, and the others are more.
//!
//! The survivors of a job in which most nodes have failed are a minority too, but no node contradicts them. Their view
//! is used.

use super::entry::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// Losses that follow each other within this many times the close time belong to one split.
const CHAIN: u64 = 4;

/// A time in which a node was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from_us: u64,
    /// `u64::MAX` if no event ends it.
    until_us: u64,
}

impl Span {
    fn meets(self, other: Self) -> bool {
        self.from_us <= other.until_us && other.from_us <= self.until_us
    }

    /// The span, extended by the difference that the clocks of two nodes may have.
    fn widened(self, by_us: u64) -> Self {
        Self {
            from_us: self.from_us.saturating_sub(by_us),
            until_us: self.until_us.saturating_add(by_us),
        }
    }
}

/// Spans of each node.
type Spans<'a> = BTreeMap<&'a str, Vec<Span>>;

/// The spans in which nodes were cut off.
#[derive(Debug, Default)]
pub(super) struct Apart<'a> {
    cut_off: Spans<'a>,
    /// Spans in which nodes reported a minority, correctly or not.
    minorities: Spans<'a>,
}

impl<'a> Apart<'a> {
    /// Finds the spans in events that are sorted by time.
    pub(super) fn find(entries: &[Entry<'a>], close_us: u64) -> Self {
        let mut accused = accusations(entries);
        let minorities = minorities(entries, &accused, close_us);
        let has_majority = |by: &str, when: Span| {
            let spans_of_node = minorities.get(by).into_iter().flatten();
            !spans_of_node.clone().any(|one| one.span.meets(when))
        };
        let accusing: BTreeSet<&str> = accused.values().flatten().map(|one| one.by).collect();
        // From here on, only accusations by nodes that were no minority at that time count.
        for of in accused.values_mut() {
            of.retain(|one| has_majority(one.by, one.span));
        }
        let against = |node: &str, when: Span| {
            let of = accused.get(node).into_iter().flatten();
            let meeting = of.filter(move |one| one.span.widened(close_us).meets(when));
            meeting.map(|one| one.by)
        };
        let mut apart = Self::default();
        for (node, spans_of_node) in &minorities {
            let lost = |one: &&Minority| one.is_outcast || against(node, one.span).next().is_some();
            let spans = spans_of_node.iter().filter(lost).map(|one| one.span);
            apart.cut_off.entry(node).or_default().extend(spans);
            let all = spans_of_node.iter().map(|one| one.span).collect();
            apart.minorities.insert(node, all);
        }
        for (node, of) in accused.iter().filter(|(node, _)| accusing.contains(*node)) {
            // The accusations of one split begin together, and are counted once.
            let mut weighed_us = None;
            for span in of.iter().map(|one| one.span) {
                let is_weighed = |at: u64| span.from_us.abs_diff(at) <= close_us;
                if weighed_us.is_some_and(is_weighed)
                    || apart.meets(node, span.from_us, span.until_us)
                {
                    continue;
                }
                weighed_us = Some(span.from_us);
                let others: BTreeSet<&str> = against(node, span).collect();
                let with_it = others.iter().flat_map(|other| against(other, span));
                let with_it: BTreeSet<&str> = with_it.collect();
                if with_it.contains(node) && others.len() > with_it.len() {
                    apart.cut_off.entry(node).or_default().push(span);
                }
            }
        }
        apart
    }

    /// Each node that was cut off, with the begin and, if known, the end.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a str, u64, Option<u64>)> {
        let ended = |until_us: u64| (until_us < u64::MAX).then_some(until_us);
        let of = move |(node, spans): (&&'a str, &Vec<Span>)| {
            let node = *node;
            let spans = spans.clone().into_iter();
            spans.map(move |span| (node, span.from_us, ended(span.until_us)))
        };
        self.cut_off.iter().flat_map(of)
    }

    /// Whether this node was cut off at any time between these two.
    pub(super) fn meets(&self, node: &str, from_us: u64, until_us: u64) -> bool {
        any_meets(&self.cut_off, node, Span { from_us, until_us })
    }

    /// Whether this node was alive at any time between these two, although others did not reach it.
    pub(super) fn was_alive(&self, node: &str, from_us: u64, until_us: u64) -> bool {
        let span = Span { from_us, until_us };
        any_meets(&self.cut_off, node, span) || any_meets(&self.minorities, node, span)
    }
}

fn any_meets(spans: &Spans<'_>, node: &str, with: Span) -> bool {
    let spans = spans.get(node).into_iter().flatten();
    spans.clone().any(|span| span.meets(with))
}

/// A node holds another node failed.
#[derive(Clone, Copy, Debug)]
struct Accusation<'a> {
    by: &'a str,
    /// From the last sign of life until the accuser has the node back.
    span: Span,
}

/// The accusations against each node.
fn accusations<'a>(entries: &[Entry<'a>]) -> BTreeMap<&'a str, Vec<Accusation<'a>>> {
    let mut accused: BTreeMap<&str, Vec<Accusation<'_>>> = BTreeMap::new();
    let mut open: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.is_of_another()) {
        let of = accused.entry(entry.member).or_default();
        match entry.event {
            "node-failed" => {
                open.insert((entry.node, entry.member), of.len());
                of.push(Accusation {
                    by: entry.node,
                    span: Span {
                        from_us: entry.heard_us(),
                        until_us: u64::MAX,
                    },
                });
            }
            "node-up" => {
                let index = open.remove(&(entry.node, entry.member));
                if let Some(one) = index.and_then(|index| of.get_mut(index)) {
                    one.span.until_us = entry.at_us;
                }
            }
            _ => {}
        }
    }
    accused
}

/// A span in which a node had lost the larger side of its view.
struct Minority {
    span: Span,
    /// At the end the node learnt that the others held it failed.
    is_outcast: bool,
}

/// The losses of a node so far.
#[derive(Clone, Copy, Default)]
struct Losses {
    /// First and last time of losses that belong together.
    chain: Option<(u64, u64)>,
    /// Begin of the losses that made the node a minority.
    minority_us: Option<u64>,
}

/// The minorities that each node reports of itself.
fn minorities<'a>(
    entries: &[Entry<'a>],
    accused: &BTreeMap<&'a str, Vec<Accusation<'a>>>,
    close_us: u64,
) -> BTreeMap<&'a str, Vec<Minority>> {
    let mut minorities: BTreeMap<&str, Vec<Minority>> = BTreeMap::new();
    let mut of: BTreeMap<&str, Losses> = BTreeMap::new();
    for entry in entries {
        let losses = of.entry(entry.node).or_default();
        let at = entry.at_us;
        match entry.event {
            "node-suspect" | "node-failed" => {
                let is_close = |(_, last): &(u64, u64)| at - last <= CHAIN * close_us;
                let first = losses.chain.filter(is_close).map_or(at, |(first, _)| first);
                losses.chain = Some((first, at));
            }
            "minority" => {
                losses.minority_us = Some(losses.chain.map_or(at, |(first, _)| first));
            }
            "majority" | "outcast" | "journal-opened" => {
                let is_outcast = entry.event == "outcast";
                let own = || losses.chain.map(|(first, _)| first);
                let held = accused.get(entry.node).into_iter().flatten();
                let held = held.filter(|one| one.span.from_us <= at && at <= one.span.until_us);
                let held = held.map(|one| one.span.from_us).min().unwrap_or(0);
                let begun = losses.minority_us.or_else(|| {
                    let from = own().unwrap_or(at).max(held.saturating_sub(close_us));
                    is_outcast.then_some(from.min(at))
                });
                if let Some(from_us) = begun {
                    let span = Span {
                        from_us,
                        until_us: at,
                    };
                    let spans_of_node = minorities.entry(entry.node).or_default();
                    spans_of_node.push(Minority { span, is_outcast });
                }
                *losses = Losses::default();
            }
            _ => {}
        }
    }
    for (node, losses) in of {
        if let Some(from_us) = losses.minority_us {
            let until_us = u64::MAX;
            minorities.entry(node).or_default().push(Minority {
                span: Span { from_us, until_us },
                is_outcast: false,
            });
        }
    }
    minorities
}
