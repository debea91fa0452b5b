//! `InheritedState` is what the supervisor holds and each of its workers inherits.

use super::descriptors::Renewals;
use super::resume::Resume;
use muster_fabric::locality::Machine;
use muster_fabric::{Libfabric, LivenessConnection};
use muster_ipc::{AgentDirectory, Listener};
use muster_shm::TableWriter;
use rustix::process::Pid;
use std::sync::Arc;

/// The state that the supervisor and its workers share.
pub(super) struct InheritedState {
    pub(super) table: TableWriter,
    pub(super) listener: Listener,
    pub(super) resume: Resume,
    pub(super) libfabric: Libfabric,
    /// The connection that peers' agents hold open. The kernel closes it when supervisor and worker are gone.
    pub(super) liveness_connection: Option<Arc<LivenessConnection>>,
    /// The topology of the machine, if it is known.
    pub(super) machine: Option<Machine>,
    /// The supervisor's process.
    pub(super) supervisor: Pid,
    /// Earlier workers that ended for a new one.
    pub(super) renewals: Renewals,
}

/// Removes all files of the agent directory, including the key, because the service has ended. The log stays if the
/// user has set MUSTER_LOG, for reading it afterwards.
pub(super) fn clean_up(listener: Listener, agent_directory: &AgentDirectory) {
    let is_log_wanted = std::env::var_os("MUSTER_LOG").is_some();
    listener.clear_away(agent_directory, !is_log_wanted);
}
