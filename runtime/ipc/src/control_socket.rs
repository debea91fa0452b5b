//! The name of an agent's control socket and the version of its protocol (`muster-protocol(7)`), which both the
//! processes of a job and the agent need.

/// Name of the control socket in the agent directory.
pub const SOCKET: &str = "control";
/// Suffix of the name of the control socket of a member without a job, in the base directory.
pub const MEMBER_SUFFIX: &str = ".control";
/// Version of the protocol.
pub const PROTOCOL: u32 = 1;
/// A request begins with this mark, directly followed by the version.
pub const MARK: &str = "muster/";
