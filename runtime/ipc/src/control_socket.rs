//! Where an agent's control socket is, and the version of the protocol spoken there (`muster-protocol(7)`): what both a
//! process of a job and the agent have to know.

/// Name of the control socket in the agent directory.
pub const SOCKET: &str = "control";
/// How the name of the control socket of a member without a job ends, in the base directory.
pub const MEMBER_SUFFIX: &str = ".control";
/// Version of the protocol.
pub const PROTOCOL: u32 = 1;
/// A request begins with this mark, directly followed by the version.
pub const MARK: &str = "muster/";
