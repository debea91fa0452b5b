//! The names of events, causes and states, the same in all parts of Muster.
//!
//! They end with a NUL, so that the C API can return them unchanged.

use super::{Cause, EventKind, NodeState, RankState};
use std::ffi::CStr;

/// Names of the events, by number.
pub const KINDS: [&CStr; 19] = [
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

/// Names of the causes, by number.
pub const CAUSES: [&CStr; 15] = [
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

/// Names of a node's states, by number.
pub const NODE_STATES: [&CStr; 6] = [
    c"Unknown",
    c"Alive",
    c"Degraded",
    c"Suspect",
    c"Failed",
    c"Left",
];
/// Names of a rank's states, by number.
pub const RANK_STATES: [&CStr; 5] = [c"Unknown", c"Alive", c"Hung", c"Failed", c"Left"];

/// The name of a number; "?" for a number without a name.
pub fn name(names: &'static [&'static CStr], number: i32) -> &'static CStr {
    usize::try_from(number)
        .ok()
        .and_then(|index| names.get(index).copied())
        .unwrap_or(c"?")
}

fn text(names: &'static [&'static CStr], number: i32) -> &'static str {
    name(names, number).to_str().unwrap_or("?")
}

impl EventKind {
    /// For example "RANK_FAILED", "NODE_UP".
    pub fn name(self) -> &'static str {
        text(&KINDS, self as i32)
    }
}

impl Cause {
    /// For example "kernel futex", "silence".
    pub fn name(self) -> &'static str {
        text(&CAUSES, self as i32)
    }
}

impl NodeState {
    /// For example "Alive", "Failed".
    pub fn name(self) -> &'static str {
        text(&NODE_STATES, self as i32)
    }
}

impl RankState {
    /// For example "Alive", "Failed".
    pub fn name(self) -> &'static str {
        text(&RANK_STATES, self as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name tables are as long as the enumerations.
    #[test]
    fn every_number_has_a_name() {
        let kinds = (0..=u16::MAX).filter(|n| EventKind::from_number(*n).is_some());
        assert_eq!(kinds.max().map(usize::from), Some(KINDS.len() - 1));
        let causes = (0..=u16::MAX).filter(|n| Cause::from_number(*n).is_some());
        assert_eq!(causes.max().map(usize::from), Some(CAUSES.len() - 1));
        assert_eq!(name(&KINDS, -1), c"?");
        assert_eq!(name(&NODE_STATES, 6), c"?");
        assert_eq!(EventKind::NodeUp.name(), "NODE_UP");
        assert_eq!(RankState::Left.name(), "Left");
    }
}
