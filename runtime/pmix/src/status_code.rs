//! The status codes of ranks in PMIx events.
//!
//! They are below `PMIX_EXTERNAL_ERR_BASE`, where the standard reserves codes for other software, are declared in
//! `muster.h` for C, and never change.

use pmix_sys as sys;

/// The status of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatusCode {
    /// Its node is silent; not yet confirmed.
    Suspect,
    /// Its node lost a rail; another rail still receives from it.
    Degraded,
    /// Its process exists and makes no progress.
    Hung,
    /// The failure of its node is confirmed.
    NodeFailed,
    /// Its process failed.
    RankFailed,
    /// It is healthy again.
    Back,
    /// The one code of an external event that Open MPI's ULFM takes for a failure. MPI cannot take it back.
    Dead,
}

impl StatusCode {
    /// The number of the code.
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
    fn codes_never_change() {
        use StatusCode::*;
        let codes =
            [Suspect, Degraded, Hung, NodeFailed, RankFailed, Back, Dead].map(StatusCode::code);
        assert_eq!(codes, [-3701, -3702, -3703, -3704, -3705, -3706, -402]);
    }
}
