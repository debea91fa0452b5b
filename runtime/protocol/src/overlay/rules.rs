//! Rules: what the default mode and paper mode do differently, chosen once when an engine is made.
//!
//! Each field names one behaviour. The engine reads the field where the behaviour is; it never asks which mode it
//! runs in. The default mode's rules are additions to the paper's algorithm (module `overlay`), the others are the
//! algorithm as published (module `paper`).

use crate::config::Mode;

/// The behaviours that depend on the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// A suspicion is one report, and enough distinct reporters remove a member. Else observations lead to probes,
    /// and a verdict follows the rules of the module `verdict`.
    pub(super) counts_reports: bool,
    /// The neighbours of a member watch it as it watches them. Else a member watches its ring successors only.
    pub(super) watches_neighbours: bool,
    /// A change waits for tau and goes to every neighbour. Else the first change is sent at once, along a tree.
    pub(super) aggregates: bool,
    /// Acknowledgements that take long delay later news and widen deadlines.
    pub(super) waits_for_acks: bool,
    /// A link that brings no news first is used for hints only.
    pub(super) prunes_tree: bool,
    /// A failure is sent from its origin to all members of a small view, beside the links.
    pub(super) pushes_failures: bool,
    /// Links change at most once in a pause that grows with acknowledgement times.
    pub(super) paces_topology: bool,
    /// A digest of the view finds what is missing, and hints replace what the receiver may know.
    pub(super) repairs: bool,
    /// Records of failed members and suspicions are part of what a member sends of others.
    pub(super) sends_verdicts: bool,
    /// A failed member that is still alive learns that from a failure claim, which it may contest.
    pub(super) claims_failures: bool,
    /// An agent that starts in the place of a lost one first asks what became of that incarnation.
    pub(super) inquires_restarts: bool,
    /// All removed members are sent join requests, in random order. Else only failed ones, in turn.
    pub(super) rejoins_at_random: bool,
    /// Two members that meet again through the history both raise their versions.
    pub(super) renews_at_meeting: bool,
    /// Messages of the application stand for beats, and carry some.
    pub(super) uses_traffic: bool,
    /// Deadlines follow the arrivals that were observed.
    pub(super) adapts_deadlines: bool,
    /// Suspicions from before a pause of this member are dropped.
    pub(super) drops_old_suspicions: bool,
}

/// The default mode.
const DEFAULT: Rules = Rules {
    counts_reports: false,
    watches_neighbours: false,
    aggregates: false,
    waits_for_acks: true,
    prunes_tree: true,
    pushes_failures: true,
    paces_topology: true,
    repairs: true,
    sends_verdicts: true,
    claims_failures: true,
    inquires_restarts: true,
    rejoins_at_random: false,
    renews_at_meeting: false,
    uses_traffic: true,
    adapts_deadlines: true,
    drops_old_suspicions: true,
};

/// The algorithm as published.
const PAPER: Rules = Rules {
    counts_reports: true,
    watches_neighbours: true,
    aggregates: true,
    waits_for_acks: false,
    prunes_tree: false,
    pushes_failures: false,
    paces_topology: false,
    repairs: false,
    sends_verdicts: false,
    claims_failures: false,
    inquires_restarts: false,
    rejoins_at_random: true,
    renews_at_meeting: true,
    uses_traffic: false,
    adapts_deadlines: false,
    drops_old_suspicions: false,
};

impl Rules {
    /// The rules of a mode.
    pub(super) const fn of(mode: Mode) -> Self {
        match mode {
            Mode::Prompt { .. } => DEFAULT,
            Mode::Paper { .. } => PAPER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_has_its_rules() {
        let tau_us = 1000;
        assert_eq!(Rules::of(Mode::Prompt { tau_us }), DEFAULT);
        assert_eq!(Rules::of(Mode::Paper { tau_us }), PAPER);
    }
}
