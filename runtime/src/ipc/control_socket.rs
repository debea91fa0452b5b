//! Where an agent's control socket is, and the version of the protocol spoken there (`muster-protocol(7)`): what both a
//! process of a job and the agent have to know.

/// Name of the control socket in the agent directory.
pub(crate) const SOCKET: &str = "control";
/// How the name of the control socket of a member without a job ends, in the base directory.
#[cfg(feature = "agent")]
pub(crate) const MEMBER_SUFFIX: &str = ".control";
/// Version of the protocol.
pub(crate) const PROTOCOL: u32 = 1;
/// A request begins with this mark, directly followed by the version.
pub(crate) const MARK: &str = "muster/";
