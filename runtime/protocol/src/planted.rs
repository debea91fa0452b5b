//! Mistakes on purpose: the faults by which the simulator's checkers are shown to bite.
//!
//! Only with the feature `planted-faults` can one of them be switched on, for one thread, by
//! name. Without the feature `on` is constantly false, and the compiler removes every question.

/// A mistake that somebody could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A suspicion of ourselves is not answered with a higher minor.
    SkippedRefutation,
    /// Removed members are forgotten at once.
    ForgottenHistory,
    /// The newer of two records is taken by version alone: a goodbye loses to what is older.
    FinalityIgnored,
    /// No frame is recognised as a replay, and an old life's frames are listened to.
    NoReplayWindow,
    /// Our own lateness is held against the others.
    NoLatenessShift,
    /// Reports against an old version count against the new one.
    SuspicionLeaks,
    /// A verdict about an older life ends a newer one.
    FailedBeatsNewerIncarnation,
    /// What changes is not put on the lists of the links.
    LostDirtyMark,
    /// A lost letter is not sent again.
    NoResend,
    /// Neither is a lost letter sent again, nor are views that differ repaired. (Resending and the
    /// hints at new links cover the second alone.)
    NoRepair,
    /// An older fact of a rank overwrites a newer one.
    RankSequenceIgnored,
    /// Nobody probes or asks helpers before reporting.
    NoProbes,
    /// The tag of a frame is not checked.
    TagIgnored,
    /// A member that is up is told again with every higher minor.
    ToldTwice,
    /// A life that follows another is told without the end of the first.
    EndNotTold,
    /// Every letter stays on the list after it was sent.
    ListNeverCleared,
    /// The history is not pruned.
    HistoryUnbounded,
    /// A link stays in the tree whatever comes over it.
    TreeNeverPruned,
    /// A new life of a node forgets how its ranks ended.
    EndsForgotten,
    /// The smaller side of a split speaks its verdicts, whatever the policy.
    NothingHeld,
    /// A group that failed lists also those who are back.
    GroupUnchecked,
    /// Who has slept passes on the reports that it finds, as if they were of today.
    SleeperTellsOn,
    /// Who waits for a view wants to change its links meanwhile, again and again.
    NoRest,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 23] = [
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
        Self::SleeperTellsOn,
        Self::NoRest,
    ];

    /// Its name, as in the list of what was caught.
    #[must_use]
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

#[cfg(feature = "planted-faults")]
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

    pub(crate) fn on(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}

#[cfg(feature = "planted-faults")]
pub(crate) use switch::on;
#[cfg(feature = "planted-faults")]
pub use switch::plant;

/// Whether this fault is switched on.
#[cfg(not(feature = "planted-faults"))]
pub(crate) const fn on(_fault: Fault) -> bool {
    false
}
