//! Planted faults: deliberate mistakes, by which tests show that the simulator's checkers find them.
//!
//! One of them can be switched on for one thread, only in a build with debug assertions. In a release `on` is
//! constantly false, and the compiler removes every check of it.

/// A deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A suspicion of the local member is not refuted.
    SkippedRefutation,
    /// Removed members are dropped at once.
    ForgottenHistory,
    /// Records are ordered by version alone: a leave loses to older news.
    FinalityIgnored,
    /// No frame is recognised as a replay, and frames of earlier incarnations are accepted.
    NoReplayWindow,
    /// The local lateness is held against others.
    NoLatenessShift,
    /// Reports against an old version count against the new one.
    SuspicionLeaks,
    /// A verdict on an earlier incarnation ends a later one.
    FailedBeatsNewerIncarnation,
    /// Changes are not marked on the links.
    LostDirtyMark,
    /// A lost frame is not retransmitted.
    NoResend,
    /// Lost frames are not retransmitted, and views that differ are not repaired. (Retransmission and the
    /// hints at new links hide the second alone.)
    NoRepair,
    /// An older fact of a rank overwrites a newer one.
    RankSequenceIgnored,
    /// Silent members are reported without any probes.
    NoProbes,
    /// The tag of a frame is not checked.
    TagIgnored,
    /// A member that is up is reported again with every higher minor.
    ToldTwice,
    /// A new incarnation is reported without the end of the previous one.
    EndNotTold,
    /// Subjects stay on the list after they were sent.
    ListNeverCleared,
    /// The history is not pruned.
    HistoryUnbounded,
    /// A link never becomes lazy.
    TreeNeverPruned,
    /// A new incarnation of a node drops the ends of its ranks.
    EndsForgotten,
    /// The smaller side of a split makes verdicts, whatever the policy.
    NothingHeld,
    /// A group failure also lists members that are back.
    GroupUnchecked,
    /// A member that waits for a view wants to change its links meanwhile, again and again.
    NoRest,
    /// The state of a node in the ledger of another member is not taken.
    LostRecord,
    /// The guards of a zone are nodes of it.
    GuardInside,
    /// A zone supervisor that fails is not replaced.
    NoReplacement,
    /// A supervisor does not report the end of a node to the zone above.
    EndNotReported,
    /// What the zone above knows is not copied into the zone below.
    NotCopiedDown,
    /// A zone that was declared failed stays so when its members are back.
    ZoneNotRefuted,
    /// A new supervisor does not know which zones were alive before.
    HandoverIgnored,
    /// The census forgets the last zone.
    CensusForgets,
    /// A zone that was on the weaker side of a split is not told.
    OutcastNotTold,
    /// A zone that was cut off for a short time goes on, although all others have declared it failed.
    ShortCutForgotten,
    /// A zone whose failure MPI was told counts as alive again when the cut ends.
    FailureRevoked,
    /// The nodes of an outcast zone go on, although their ranks have told MPI of failures.
    OutcastGoesOn,
    /// A zone that is back counts as one whose nodes have all started anew.
    LifeForgotten,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 35] = [
        Self::SkippedRefutation,
        Self::ForgottenHistory,
        Self::FinalityIgnored,
        Self::NoReplayWindow,
        Self::NoLatenessShift,
        Self::SuspicionLeaks,
        Self::FailedBeatsNewerIncarnation,
        Self::LostDirtyMark,
        Self::NoResend,
        Self::NoRepair,
        Self::RankSequenceIgnored,
        Self::NoProbes,
        Self::TagIgnored,
        Self::ToldTwice,
        Self::EndNotTold,
        Self::ListNeverCleared,
        Self::HistoryUnbounded,
        Self::TreeNeverPruned,
        Self::EndsForgotten,
        Self::NothingHeld,
        Self::GroupUnchecked,
        Self::NoRest,
        Self::LostRecord,
        Self::GuardInside,
        Self::NoReplacement,
        Self::EndNotReported,
        Self::NotCopiedDown,
        Self::ZoneNotRefuted,
        Self::HandoverIgnored,
        Self::CensusForgets,
        Self::OutcastNotTold,
        Self::ShortCutForgotten,
        Self::FailureRevoked,
        Self::OutcastGoesOn,
        Self::LifeForgotten,
    ];

    /// Its name in lists and arguments.
    #[must_use]
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

#[cfg(debug_assertions)]
mod switch {
    use super::Fault;
    use core::cell::Cell;

    std::thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Switches a fault on in this thread, or all off.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    /// Whether this fault is switched on.
    #[must_use]
    pub fn on(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}

#[cfg(debug_assertions)]
pub use switch::{on, plant};

/// Whether this fault is switched on.
#[cfg(not(debug_assertions))]
#[must_use]
pub const fn on(_fault: Fault) -> bool {
    false
}
