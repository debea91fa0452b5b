//! Participants of age gossip that others tell (BG-04): a gossip server, or seeds, one for each node.
//!
//! Until all are known the engine has itself only and is still. Nothing else waits: rails are open, ranks are
//! served, and what asks the server is a thread of its own.

use super::event_loop::EventLoop;
use crate::rendezvous::{Entry, join};
use muster_config::{GossipConfig, GroupName, ParticipantEntry, Teller, read_written, written};
use muster_fabric::{NidList, Transport};
use muster_protocol::Engine;
use muster_sys::clock::monotonic_ns;
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;
use tracing::{error, info, warn};

/// How often it is looked whether the list has come.
const LOOK_US: u64 = 20_000;
/// Between two tries to reach a server, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often it is said that some are missing.
const TELL_US: u64 = 10_000_000;
/// More addresses than this are no seeds of a job.
const SEEDS_MAX: usize = 4096;

/// A list that is still to come.
pub(super) struct ParticipantDiscovery {
    gossip: GossipConfig,
    /// The first NIDs of nodes that seeds brought, with all of their NIDs.
    seeds: BTreeSet<String>,
    asking: Option<Asking>,
    /// After an answer that was of no use the server is not asked before this.
    ask_us: u64,
    told_us: u64,
}

/// The thread that asks a server; it ends when nobody waits for it.
struct Asking {
    answer: Receiver<Vec<Entry>>,
    _alive: Arc<()>,
}

type Participants = Vec<ParticipantEntry>;

impl ParticipantDiscovery {
    /// What is to come by this configuration, if it is not all there.
    pub(super) fn of(gossip: &GossipConfig) -> Option<Self> {
        gossip.told_by.as_ref().map(|_| Self {
            gossip: gossip.clone(),
            seeds: BTreeSet::new(),
            asking: None,
            ask_us: 0,
            told_us: 0,
        })
    }

    /// The same configuration with what the worker before has been told, so that nobody is asked again.
    pub(super) fn known(gossip: &GossipConfig, kept: &str) -> GossipConfig {
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

    /// Somebody knows another node's address.
    pub(super) fn note(&mut self, address: &[u8]) {
        let address = String::from_utf8_lossy(address);
        if let (Some(Teller::Seeds(_)), Ok(nids)) =
            (&self.gossip.told_by, address.parse::<NidList>())
            && self.seeds.len() < SEEDS_MAX
        {
            self.seeds.insert(nids.to_string());
        }
    }

    /// All participants, if they are known by now.
    fn look(&mut self, key: Option<[u8; 32]>, own: &NidList) -> Option<Participants> {
        match self.gossip.told_by.clone()? {
            Teller::Seeds(expected) => self.look_at_seeds(expected, own),
            Teller::Server(server) => self.look_at_server(&server, key?, own),
        }
    }

    fn look_at_seeds(&mut self, expected: usize, own: &NidList) -> Option<Participants> {
        // One may be known by a NID, and by all of them: the longest list counts.
        let mut nodes: Vec<NidList> = vec![own.clone()];
        let mut told: Vec<NidList> = self
            .seeds
            .iter()
            .filter_map(|one| one.parse().ok())
            .collect();
        told.sort_by_key(|nids| std::cmp::Reverse(nids.as_slice().len()));
        for nids in told {
            let is_known =
                |node: &NidList| node.iter().any(|nid| nids.iter().any(|one| one == nid));
            if !nodes.iter().any(is_known) {
                nodes.push(nids);
            }
        }
        let known = nodes.len();
        if known != expected {
            let now_us = monotonic_ns() / 1000;
            if now_us >= self.told_us + TELL_US {
                self.told_us = now_us;
                if known < expected {
                    info!(
                        known,
                        expected, "gossip waits for the addresses of the others"
                    );
                } else {
                    error!(
                        known,
                        expected, "more nodes are known than seeds:N says; gossip does not begin"
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

    fn look_at_server(
        &mut self,
        server: &str,
        key: [u8; 32],
        own: &NidList,
    ) -> Option<Participants> {
        let now_us = monotonic_ns() / 1000;
        if now_us < self.ask_us {
            return None;
        }
        let (group, name) = (&self.gossip.own_group, &self.gossip.own_name);
        let asking = self.asking.get_or_insert_with(|| {
            let own = Entry {
                nids: own.to_string(),
                group: group.as_str().to_owned(),
                name: name.clone().unwrap_or_default(),
            };
            Asking::start(server.to_owned(), key, own)
        });
        let entries = match asking.answer.try_recv() {
            Ok(entries) => entries,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                // It could not be started, or broke: once more, later.
                self.asking = None;
                self.ask_us = now_us + PAUSE_MAX.as_micros() as u64;
                return None;
            }
        };
        self.asking = None;
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
            self.ask_us = now_us + PAUSE_MAX.as_micros() as u64;
            error!(
                server,
                "the gossip server tells of participants that cannot be, and is asked again; run one release of \
                 it and of the agents"
            );
        }
        participants
    }
}

impl Asking {
    fn start(server: String, key: [u8; 32], own: Entry) -> Self {
        let (tell, answer) = sync_channel(1);
        let alive = Arc::new(());
        let is_wanted = Arc::downgrade(&alive);
        let thread = thread::Builder::new().name("muster-roster".into());
        let started = thread.spawn(move || {
            if let Some(list) = ask(&server, &key, &own, &is_wanted) {
                // Who has waited may be gone.
                let _ = tell.send(list);
            }
        });
        if let Err(reason) = started {
            warn!(%reason, "no thread can be had to ask the gossip server");
        }
        Self {
            answer,
            _alive: alive,
        }
    }
}

/// Asks until there is a list, or nobody wants one.
fn ask(server: &str, key: &[u8; 32], own: &Entry, is_wanted: &Weak<()>) -> Option<Vec<Entry>> {
    let (mut pause, mut said) = (PAUSE_MIN, String::new());
    while is_wanted.strong_count() > 0 {
        match join(server, key, own) {
            Ok(list) => return Some(list),
            Err(reason) => {
                let words = reason.to_string();
                if words != said {
                    warn!(reason = words, "gossip waits for its participants");
                    said = words;
                }
            }
        }
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
    None
}

impl EventLoop {
    /// Takes the list of participants when it has come, and begins to gossip.
    pub(super) fn gather(&mut self) {
        let Engine::Age(engine) = &self.engine else {
            return;
        };
        let key = engine.config().key;
        let Some(participant_discovery) = &mut self.admin_endpoint.participant_discovery else {
            return;
        };
        let own = self.fabric.local_nids();
        let Some(participants) = participant_discovery.look(key, &own) else {
            return;
        };
        let gossip = GossipConfig {
            participants,
            told_by: None,
            ..participant_discovery.gossip.clone()
        };
        self.admin_endpoint.participant_discovery = None;
        match self.init_gossip(&gossip, None) {
            Ok(_) => {
                if let Some(job) = &mut self.job {
                    job.keep_participants(written(&gossip.participants));
                }
                if let Engine::Age(engine) = &mut self.engine {
                    if let Some(job) = &self.job {
                        // A worker that takes over: whoever died meanwhile would never be missed.
                        job.present().for_each(|id| engine.expect(id));
                    }
                    engine.resume_gossip();
                }
            }
            Err(reason) => error!(
                reason,
                "gossip cannot begin with the participants that were told"
            ),
        }
    }

    /// When to look for the list again.
    pub(super) fn discovery_due_us(&self) -> Option<u64> {
        let is_waiting = self.admin_endpoint.participant_discovery.is_some();
        is_waiting.then(|| monotonic_ns() / 1000 + LOOK_US)
    }
}
