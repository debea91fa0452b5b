//! The administrative side of an agent: the control socket, the journal, and the facts that the agent reports of
//! itself.

use super::gossip_files::GossipFiles;
use super::participant_discovery::ParticipantDiscovery;
use super::pending_change::PendingChange;
use crate::journal::{Journal, JournalDirectory};
use muster_config::{AgentConfig, Setting};
use muster_control::{Control, EventSource, name_for_all, protocol};
use muster_ipc::AgentDirectory;
use muster_shm::TableView;
use muster_sys::clock::monotonic_ns;
use muster_sys::schedule::is_real_time;
use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tracing::warn;

/// The administrative objects of one agent.
#[derive(Default)]
pub(super) struct AdminEndpoint {
    pub(super) control: Option<Control>,
    pub(super) journal: Option<Journal>,
    pub(super) gossip_files: Option<GossipFiles>,
    /// Discovery of the participants of age gossip, until all are known.
    pub(super) participant_discovery: Option<ParticipantDiscovery>,
    /// A change of the rails that is in progress.
    pub(super) pending_change: Option<PendingChange>,
    node: String,
    job: String,
    settings: Vec<Setting>,
    since_ns: u64,
}

impl AdminEndpoint {
    /// Opens the control socket at `path`, the journal and the files of gossip state. The agent runs without those
    /// that cannot be opened.
    pub(super) fn open(
        config: &AgentConfig,
        agent_directory: Option<&AgentDirectory>,
        path: Option<&Path>,
    ) -> Self {
        let node = config.name.as_str().to_owned();
        let job = agent_directory.map_or("-", job_of).to_owned();
        let file = config.journal.as_ref().map(|journal| JournalDirectory {
            path: journal.directory.join(file_name(&job, &node)),
            bytes_max: journal.kilobytes_max << 10,
        });
        let journal = Journal::start(&node, &job, file);
        let others = config.readable_in.as_ref().map(|directory| {
            // Jobs of one user on one node have different agent directories, so the name of the directory tells them
            // apart.
            let which = agent_directory
                .and_then(|agent_directory| agent_directory.directory().file_name()?.to_str());
            let which = which.map_or_else(|| plain(&node), str::to_owned);
            directory.join(name_for_all(&which))
        });
        let open = |path: &Path| {
            let events = journal
                .clone()
                .map(|journal| Arc::new(journal) as Arc<dyn EventSource>);
            Control::open(path, others.as_deref(), events.as_ref())
                .inspect_err(
                    |cause| warn!(path = %path.display(), %cause, "cannot open the control socket"),
                )
                .ok()
        };
        let state = config.gossip_state.as_ref();
        let state = state.map(|directory| match agent_directory {
            Some(_) => directory.join(plain(&format!("{job}.{node}"))),
            None => directory.join(plain(&node)),
        });
        Self {
            pending_change: None,
            control: path.and_then(open),
            journal,
            participant_discovery: config.gossip.as_ref().and_then(ParticipantDiscovery::of),
            gossip_files: state.and_then(|directory| GossipFiles::start(&directory)),
            node,
            job,
            settings: config.settings.clone(),
            since_ns: monotonic_ns(),
        }
    }

    pub(super) fn node(&self) -> &str {
        &self.node
    }

    pub(super) fn job(&self) -> &str {
        &self.job
    }

    /// The facts for `muster jobs` and `muster top`: names, process id, cores and clients.
    pub(super) fn about(&self, table: Option<&TableView>) -> Value {
        let slots = table.into_iter().flat_map(|table| {
            let all = 0..table.limits().slots;
            let facts = all
                .map_while(|slot| table.slot(slot))
                .map(|slot| slot.facts());
            facts.collect::<Vec<_>>()
        });
        let clients = slots.filter(|facts| facts.occupancy == muster_shm::Occupancy::Taken);
        let clients = clients.map(|facts| json!({ "pid": facts.pid, "rank": facts.rank }));
        json!({
            "schema": "muster/agent/v1",
            "node": self.node,
            "job": self.job,
            "pid": getpid().as_raw_nonzero().get(),
            "since_s": (monotonic_ns() - self.since_ns) / 1_000_000_000,
            "real_time": is_real_time(),
            "cores": cores(),
            "clients": clients.collect::<Vec<_>>(),
            "protocol": protocol::PROTOCOL,
            "release": protocol::RELEASE,
        })
    }

    /// The settings that the agent was started with.
    pub(super) fn settings(&self) -> Value {
        let setting = |setting: &Setting| {
            let Setting { key, value, origin } = setting;
            json!({ "key": key, "value": value, "origin": origin })
        };
        let settings: Vec<Value> = self.settings.iter().map(setting).collect();
        json!({ "schema": "muster/config/v1", "settings": settings })
    }
}

/// The job in a directory's key. A key is UID:JOB:NODE.
pub(super) fn job_of(agent_directory: &AgentDirectory) -> &str {
    let without_user = agent_directory
        .key()
        .split_once(':')
        .map_or("", |(_, after_user)| after_user);
    let job = without_user.strip_suffix(agent_directory.node());
    job.and_then(|job| job.strip_suffix(':'))
        .unwrap_or(without_user)
}

fn file_name(job: &str, node: &str) -> String {
    match job {
        "-" => format!("muster-{}.jsonl", plain(node)),
        job => format!("muster-{}-{}.jsonl", plain(job), plain(node)),
    }
}

/// The name with characters that are not safe in a file name replaced by `_`.
fn plain(name: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    name.chars()
        .map(|c| if is_safe(c) { c } else { '_' })
        .collect()
}

/// The hardware threads that the calling thread may run on.
fn cores() -> Vec<usize> {
    let set = sched_getaffinity(None).ok();
    let within = |thread: &usize| set.as_ref().is_some_and(|set| set.is_set(*thread));
    (0..CpuSet::MAX_CPU).filter(within).collect()
}
