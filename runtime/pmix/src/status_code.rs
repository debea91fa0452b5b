//! What can be said of a rank in a PMIx event: the codes.
//!
//! They lie below `PMIX_EXTERNAL_ERR_BASE`, where the standard puts codes that are not its own, are in
//! `muster.h` for C, and never change.

use pmix_sys as sys;

/// What has become of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatusCode {
    /// Its node is silent; not yet confirmed.
    Suspect,
    /// Its node lost a rail and is heard on another.
    Degraded,
    /// Its process is there and makes no progress.
    Hung,
    /// Its node is confirmed dead.
    NodeFailed,
    /// Its process died.
    RankFailed,
    /// It is as it should be again.
    Back,
    /// The one code that Open MPI's ULFM takes for a death from us. MPI cannot take it back.
    Dead,
}

impl StatusCode {
    /// Its code.
    pub const fn code(self) -> i32 {
        let base = sys::PMIX_EXTERNAL_ERR_BASE - 700;
        match self {
            Self::Suspect => base - 1,
            Self::Degraded => base - 2,
            Self::Hung => base - 3,
            Self::NodeFailed => base - 4,
            Self::RankFailed => base - 5,
            Self::Back => base - 6,
            Self::Dead => sys::PMIX_ERR_PROC_ABORTED_BY_SIG,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_for_ever() {
        use StatusCode::*;
        let codes =
            [Suspect, Degraded, Hung, NodeFailed, RankFailed, Back, Dead].map(StatusCode::code);
        assert_eq!(codes, [-3701, -3702, -3703, -3704, -3705, -3706, -402]);
    }
}
