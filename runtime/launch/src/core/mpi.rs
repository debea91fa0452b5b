//! The MPI of the ranks, as far as the effect of losses depends on it.

use std::str::FromStr;

/// The effect of a loss on the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoss {
    /// It ends the job.
    Abort,
    /// The other ranks go on.
    Continue,
}

impl FromStr for OnLoss {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "abort" => Ok(Self::Abort),
            "continue" => Ok(Self::Continue),
            _ => Err("unknown value; write abort or continue".into()),
        }
    }
}

/// The MPI of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mpi {
    /// Open MPI 5 or later, with fault tolerance on.
    Tolerant,
    /// The same, with fault tolerance off.
    SwitchedOff,
    /// Open MPI before 5, which is not fault tolerant.
    OpenMpi4,
    /// Another MPI, which is not known to be fault tolerant.
    Intolerant,
    /// No MPI is found: there is none, or it is linked statically.
    NotFound,
}

impl Mpi {
    /// Why a loss has the effect that it has.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Tolerant => "its MPI has fault tolerance",
            Self::SwitchedOff => "fault tolerance of its MPI is off (OMPI_MCA_mpi_ft_enable)",
            Self::OpenMpi4 | Self::Intolerant => "its MPI is not known to have fault tolerance",
            Self::NotFound => "no MPI with fault tolerance is seen in it",
        }
    }
}
