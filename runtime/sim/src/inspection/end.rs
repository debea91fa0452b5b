//! The checkers of the end: what is not yet equal, complete, or known to all members.
//!
//! They run when a world did not converge in time, and report what is wrong with it.

use std::collections::BTreeSet;

use muster_protocol::{EventKind, NodeState};

use crate::checker::Violation;
use crate::world::World;

/// `completeness`: every view contains exactly the running members, in their present versions.
pub(crate) fn completeness(world: &World) -> Vec<Violation> {
    let running = world.running();
    let mut found = Vec::new();
    for observer in &running {
        let engine = world.engine(*observer);
        for subject in &running {
            let member = world.engine(*subject);
            let seen = engine.member(member.id());
            let state = seen.map(|seen| (seen.version(), seen.state()));
            let right = state.is_some_and(|(version, state)| {
                version == member.version()
                    && matches!(state, NodeState::Alive | NodeState::Degraded)
            });
            if !right {
                let what = format!(
                    "node {observer} sees running node {subject} ({:?}) as {state:?}",
                    member.version()
                );
                found.push(broken("completeness", world, *subject, what));
            }
        }
        for subject in (0..world.len()).filter(|subject| !running.contains(subject)) {
            let seen = engine.member(world.id(subject));
            if seen.is_some_and(|seen| seen.state().in_view()) && !world.is_foreign(subject) {
                let what = format!("node {observer} still sees node {subject}, which is gone");
                found.push(broken("completeness", world, subject, what));
            }
        }
    }
    found
}

/// `equality`: all views are the same.
pub(crate) fn equality(world: &World) -> Vec<Violation> {
    let running = world.running();
    let Some(first) = running.first() else {
        return Vec::new();
    };
    let view = |node: usize| {
        let members = world.engine(node).members();
        members
            .filter(|member| member.state().in_view())
            .map(|member| (member.id(), member.version()))
            .collect::<Vec<_>>()
    };
    let expected = view(*first);
    let others = running.iter().filter(|node| view(**node) != expected);
    others
        .map(|node| {
            let what = format!("node {node} has a different view than node {first}");
            broken("equality", world, *node, what)
        })
        .collect()
}

/// `ranks`: every member knows the rank states that every running node reports.
pub(crate) fn ranks(world: &World) -> Vec<Violation> {
    let running = world.running();
    let mut found = Vec::new();
    for subject in &running {
        let Some(own) = world.engine(*subject).member(world.id(*subject)) else {
            continue;
        };
        for observer in &running {
            let seen = world.engine(*observer).member(own.id());
            if seen.is_some_and(|seen| !seen.ranks().eq(own.ranks())) {
                let what = format!("node {observer} does not know the ranks of node {subject}");
                found.push(broken("ranks", world, *subject, what));
            }
        }
    }
    found
}

/// `rank-ends`: a member that reported how a rank ended still knows it, whatever incarnations the node had
/// since, unless a later incarnation reported otherwise.
pub(crate) fn rank_ends(world: &World) -> Vec<Violation> {
    let mut ended = BTreeSet::new();
    for record in world.records() {
        let (observer, event) = (record.observer, &record.event);
        match event.kind {
            EventKind::Outcast => ended.retain(|(by, _, _)| *by != observer),
            EventKind::RankChanged { fact } if record.at >= world.started_at(observer) => {
                let key = (observer, event.member, fact.rank);
                if fact.state.is_end() {
                    ended.insert(key);
                } else {
                    ended.remove(&key);
                }
            }
            _ => {}
        }
    }
    let running = world.running();
    let mut found = Vec::new();
    for (observer, member, rank) in ended {
        // The observer may learn again of ends that it dropped for lack of space.
        if !running.contains(&observer) || world.engine(observer).counters().history_pruned > 0 {
            continue;
        }
        let seen = world.engine(observer).member(member);
        let knows = seen
            .filter(|seen| seen.state().in_view())
            .is_none_or(|seen| {
                seen.ranks()
                    .any(|fact| fact.rank == rank && fact.state.is_end())
            });
        if !knows {
            let what =
                format!("node {observer} no longer knows how rank {rank} of {member:?} ended");
            found.push(broken("rank-ends", world, observer, what));
        }
    }
    found
}

/// `news`: a change that a node states about a rank is reported by all other running members within
/// `limit_us`, or a newer change is.
pub(crate) fn news(world: &World, limit_us: u64) -> Vec<Violation> {
    let mut found = Vec::new();
    let running = world.running();
    let changes: Vec<_> = world
        .records()
        .iter()
        .filter_map(|record| match record.event.kind {
            EventKind::RankChanged { fact } => {
                let incarnation = (record.event.member, record.event.version.incarnation);
                Some((record.at, record.observer, incarnation, fact))
            }
            _ => None,
        })
        .collect();
    for (stated_at, by, incarnation, fact) in &changes {
        if world.id(*by) != incarnation.0 || stated_at.after(limit_us) > world.now() {
            continue;
        }
        for observer in running.iter().filter(|node| *node != by) {
            let reported = changes.iter().any(|(at, receiver, of, news)| {
                receiver == observer
                    && of == incarnation
                    && news.rank == fact.rank
                    && news.sequence >= fact.sequence
                    && at.since(*stated_at) <= limit_us
            });
            if !reported {
                let rank = fact.rank;
                let what = format!("node {observer} learned of rank {rank} of node {by} too late");
                found.push(broken("news", world, *by, what));
            }
        }
    }
    found
}

/// `attributes`: every member holds the attributes of every running node as that node has them.
pub(crate) fn attributes(world: &World) -> Vec<Violation> {
    let running = world.running();
    let mut found = Vec::new();
    for subject in &running {
        let id = world.id(*subject);
        for observer in &running {
            let held = world.engine(*observer).attributes(id);
            if !held.eq(world.engine(*subject).attributes(id)) {
                let what = format!(
                    "node {observer} holds attributes of node {subject} that differ from its own"
                );
                found.push(broken("attributes", world, *subject, what));
            }
        }
    }
    found
}

fn broken(checker: &'static str, world: &World, node: usize, what: String) -> Violation {
    Violation {
        checker,
        at: world.now(),
        member: Some(world.id(node)),
        what,
    }
}
