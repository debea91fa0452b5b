//! Why PMIx could not be used.

use pmix_sys as sys;

/// A status of PMIx other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub i32);

impl Status {
    /// The key is not known (yet).
    pub const NOT_FOUND: Self = Self(sys::PMIX_ERR_NOT_FOUND);
}

impl std::fmt::Display for Status {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "PMIx status {}", self.0)
    }
}

/// Why PMIx could not be used. Nothing was changed by a call that failed.
#[derive(Debug)]
pub enum Error {
    /// MPI has not initialised PMIx yet, or has finalized it: try again at a later call.
    NotInitialized,
    /// The reference was released (finalize, or the process is exiting), or belongs to the parent of this forked
    /// process.
    Released,
    /// Another part of this process holds the one reference.
    Held,
    /// The library returned an error.
    Refused {
        /// The name of the PMIx function.
        call: &'static str,
        /// The status that it returned.
        status: Status,
    },
    /// The launcher's PMIx server has the key with another type than the standard's.
    UnexpectedType {
        /// The key.
        key: String,
        /// The rank of the value.
        rank: u32,
        /// The number of the PMIx data type.
        found: u16,
    },
    /// libpmix is processing the maximum number of notifications: try again later.
    Busy,
    /// A key or value has a NUL byte, or is too long for PMIx.
    BadText(String),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotInitialized => f.write_str(
                "PMIx is not initialised: MPI_Init has not been called yet, or MPI is finalized",
            ),
            Self::Released => f.write_str("the reference to PMIx was released"),
            Self::Held => f.write_str("this process holds its reference to PMIx already"),
            Self::Refused { call, status } => write!(f, "{call} failed with {status}"),
            Self::UnexpectedType { key, rank, found } => write!(
                f,
                "PMIx returned {key} of rank {rank} with a value of type {found}, which is not the standard's type"
            ),
            Self::Busy => f.write_str(
                "libpmix has not processed the notifications that it was given; try again later",
            ),
            Self::BadText(text) => write!(
                f,
                "{text:?} cannot be passed to PMIx: it has a NUL byte or is too long"
            ),
        }
    }
}

impl std::error::Error for Error {}
