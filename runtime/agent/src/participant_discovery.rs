//! Discovery of age gossip's participants (BG-04): from a gossip server, or from seeds, one for each node.
//!
//! Until all are known the engine knows only itself and does not gossip. The rest of the agent runs: rails are open,
//! ranks are served. A separate thread queries the server.

use muster_config::{GossipConfig, GroupName, ParticipantEntry, Teller, read_written};
use muster_fabric::NidList;
use muster_rendezvous::{Entry, join};
use muster_sys::clock::monotonic_ns;
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;
use tracing::{error, info, warn};

/// Interval between two checks for the list.
const CHECK_US: u64 = 20_000;
/// Pause between two attempts to reach a server: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Interval between two log lines about missing participants.
const LOG_US: u64 = 10_000_000;
/// Maximum number of seeds. More addresses cannot belong to one job.
const SEEDS_MAX: usize = 4096;

/// A list of participants that is not complete yet.
pub(super) struct ParticipantDiscovery {
    gossip: GossipConfig,
    /// The first NIDs of nodes, or all of their NIDs, as seeds supplied them.
    seeds: BTreeSet<String>,
    query: Option<Query>,
    /// After a useless answer the server is not queried before this time.
    query_us: u64,
    logged_us: u64,
}

/// The thread that queries a server. It ends when the list is no longer needed.
struct Query {
    answer: Receiver<Vec<Entry>>,
    _alive: Arc<()>,
}

type Participants = Vec<ParticipantEntry>;

impl ParticipantDiscovery {
    /// Creates the discovery, if this configuration does not name all participants.
    pub(super) fn of(gossip: &GossipConfig) -> Option<Self> {
        gossip.told_by.as_ref().map(|_| Self {
            gossip: gossip.clone(),
            seeds: BTreeSet::new(),
            query: None,
            query_us: 0,
            logged_us: 0,
        })
    }

    /// The configuration with the participants that the last worker discovered, so that they need not be discovered
    /// again.
    pub(super) fn with_discovered(gossip: &GossipConfig, kept: &str) -> GossipConfig {
        let participants = read_written(kept).filter(|kept| !kept.is_empty());
        match (&gossip.told_by, participants) {
            (Some(_), Some(participants)) => GossipConfig {
                participants,
                told_by: None,
                ..gossip.clone()
            },
            _ => gossip.clone(),
        }
    }

    /// Stores the address of another node.
    pub(super) fn note(&mut self, address: &[u8]) {
        let address = String::from_utf8_lossy(address);
        if let (Some(Teller::Seeds(_)), Ok(nids)) =
            (&self.gossip.told_by, address.parse::<NidList>())
            && self.seeds.len() < SEEDS_MAX
        {
            self.seeds.insert(nids.to_string());
        }
    }

    /// Time of the next check for the list.
    pub(super) fn due_us(&self) -> u64 {
        monotonic_ns() / 1000 + CHECK_US
    }

    /// Returns the configuration with all participants, if they are known by now.
    pub(super) fn poll(&mut self, key: Option<[u8; 32]>, own: &NidList) -> Option<GossipConfig> {
        let participants = match self.gossip.told_by.clone()? {
            Teller::Seeds(expected) => self.poll_seeds(expected, own),
            Teller::Server(server) => self.poll_server(&server, key?, own),
        }?;
        Some(GossipConfig {
            participants,
            told_by: None,
            ..self.gossip.clone()
        })
    }

    fn poll_seeds(&mut self, expected: usize, own: &NidList) -> Option<Participants> {
        // A node may be known by one NID and by all of them: the longest list counts.
        let mut nodes: Vec<NidList> = vec![own.clone()];
        let mut lists: Vec<NidList> = self
            .seeds
            .iter()
            .filter_map(|one| one.parse().ok())
            .collect();
        lists.sort_by_key(|nids| std::cmp::Reverse(nids.as_slice().len()));
        for nids in lists {
            let is_known =
                |node: &NidList| node.iter().any(|nid| nids.iter().any(|one| one == nid));
            if !nodes.iter().any(is_known) {
                nodes.push(nids);
            }
        }
        let known = nodes.len();
        if known != expected {
            let now_us = monotonic_ns() / 1000;
            if now_us >= self.logged_us + LOG_US {
                self.logged_us = now_us;
                if known < expected {
                    info!(
                        known,
                        expected, "gossip waits for the addresses of the other participants"
                    );
                } else {
                    error!(
                        known,
                        expected,
                        "more nodes are known than seeds:N states; gossip does not begin; correct N"
                    );
                }
            }
            return None;
        }
        let entry = |nids| ParticipantEntry {
            nids,
            group: GroupName::default(),
            name: None,
        };
        Some(nodes.into_iter().map(entry).collect())
    }

    fn poll_server(&mut self, server: &str, key: [u8; 32], own: &NidList) -> Option<Participants> {
        let now_us = monotonic_ns() / 1000;
        if now_us < self.query_us {
            return None;
        }
        let (group, name) = (&self.gossip.own_group, &self.gossip.own_name);
        let query = self.query.get_or_insert_with(|| {
            let own = Entry {
                nids: own.to_string(),
                group: group.as_str().to_owned(),
                name: name.clone().unwrap_or_default(),
            };
            Query::start(server.to_owned(), key, own)
        });
        let entries = match query.answer.try_recv() {
            Ok(entries) => entries,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                // The thread could not be started, or ended: retry later.
                self.query = None;
                self.query_us = now_us + PAUSE_MAX.as_micros() as u64;
                return None;
            }
        };
        self.query = None;
        let read = |entry: Entry| {
            let nids: NidList = entry.nids.parse().ok()?;
            Some(ParticipantEntry {
                nids,
                group: GroupName::new(&entry.group).ok()?,
                name: Some(entry.name),
            })
        };
        let participants: Option<Participants> = entries.into_iter().map(read).collect();
        if participants.is_none() {
            self.query_us = now_us + PAUSE_MAX.as_micros() as u64;
            error!(
                server,
                "the gossip server returned invalid participants, and is queried again; run the same release of \
                 the server and of the agents"
            );
        }
        participants
    }
}

impl Query {
    fn start(server: String, key: [u8; 32], own: Entry) -> Self {
        let (sender, answer) = sync_channel(1);
        let alive = Arc::new(());
        let is_wanted = Arc::downgrade(&alive);
        let thread = thread::Builder::new().name("muster-discover".into());
        let started = thread.spawn(move || {
            if let Some(list) = query_server(&server, &key, &own, &is_wanted) {
                // The receiver may be gone.
                let _ = sender.send(list);
            }
        });
        if let Err(reason) = started {
            warn!(%reason, "no thread can be started to query the gossip server");
        }
        Self {
            answer,
            _alive: alive,
        }
    }
}

/// Queries the server until it returns a list, or the list is no longer needed.
fn query_server(
    server: &str,
    key: &[u8; 32],
    own: &Entry,
    is_wanted: &Weak<()>,
) -> Option<Vec<Entry>> {
    let (mut pause, mut logged) = (PAUSE_MIN, String::new());
    while is_wanted.strong_count() > 0 {
        match join(server, key, own) {
            Ok(list) => return Some(list),
            Err(reason) => {
                let text = reason.to_string();
                if text != logged {
                    warn!(reason = text, "gossip waits for its participants");
                    logged = text;
                }
            }
        }
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
    None
}
