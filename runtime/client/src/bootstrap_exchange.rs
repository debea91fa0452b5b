//! The bootstrap exchange: how the agents of a job find each other without a launcher that helps.
//!
//! Each process writes a bootstrap record with its agent's address; the first rank adds the job's key. An allgather
//! of any library that the job has (usually MPI) distributes all records to all processes, and one process of each
//! node passes their content to its agent. The PMIx integration does the same; this is for a process whose MPI has no
//! PMIx.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::one_zone::refuse_too_many;
use super::{Client, Error, Inner, lock};
use muster_ipc::ADDRESS_MAX;

/// Bytes of a bootstrap record.
pub const RECORD_SIZE: usize = 320;
/// The version of a record.
const VERSION: u8 = 1;
const HAS_KEY: u8 = 1;
const KEY: std::ops::Range<usize> = 3..35;
const ADDRESS: usize = KEY.end;
/// Most seeds that one agent receives in a large job: any one that answers leads to all others.
const SEEDS_MAX: usize = 64;
/// In jobs of at most this number of nodes, the agent is told which ranks run where. Piggybacks on messages need it,
/// and they carry gossip only in jobs of at most this size.
const PLACED_NODES: usize = 128;
/// How long the first rank waits for the key, which its agent may have from another source.
const KEY_WAIT: Duration = Duration::from_secs(1);
/// How long a message may wait for room in the agent's socket.
const HAND_OVER_DEADLINE: Duration = Duration::from_secs(5);
/// Pause between two checks for room in the agent's socket.
const POLL_PAUSE: Duration = Duration::from_millis(1);

const _: () = assert!(ADDRESS + ADDRESS_MAX <= RECORD_SIZE);

/// The content of the other records. An agent that replaces a lost one receives it again.
#[derive(Debug, Default)]
pub(super) struct Learned {
    key: Option<[u8; 32]>,
    seeds: Vec<String>,
    /// The other nodes' addresses, each with its ranks; empty for a large job.
    placed: Vec<(String, Vec<u32>)>,
}

impl Client {
    /// The bootstrap record of this process, as soon as its agent has sent its address: within milliseconds, at the
    /// deadline at the latest.
    ///
    /// # Errors
    /// [`Error::NoRank`]; [`Error::Deadline`]; [`Error::Finalized`], [`Error::Forked`].
    pub fn bootstrap_record(&self, deadline: Duration) -> Result<[u8; RECORD_SIZE], Error> {
        let until = Instant::now() + deadline;
        let first = self.required_rank()? == 0;
        let address = self.await_link(until, |inner| inner.link.address())?;
        let address = address.ok_or_else(|| Error::Deadline {
            socket: self.inner.setting.agent_directory.socket(),
            waited_ms: deadline.as_millis() as u64,
            last: "the agent has not sent its address".into(),
        })?;
        let key = if first {
            let until = until.min(Instant::now() + KEY_WAIT);
            // There is none if the agent read it from a file: then all other agents did, too.
            // The job's first key counts: an agent that replaced another one may have created a new key.
            let learned = lock(&self.inner.learned).key;
            match learned {
                Some(key) => Some(key),
                None => self.await_link(until, |inner| inner.link.key_for_publication())?,
            }
        } else {
            None
        };
        Ok(write(&address, key.as_ref()))
    }

    /// Passes the content of the records of all processes to the agent, a part of it in a large job. The records
    /// follow each other in the order of the ranks. Returns how many other nodes were passed on: 0 also if another
    /// process of this node does it.
    ///
    /// # Errors
    /// [`Error::NoRank`], [`Error::BootstrapRecord`], [`Error::OneZone`]: nothing was passed on.
    /// [`Error::Deadline`].
    pub fn take_bootstrap_records(&self, records: &[u8]) -> Result<usize, Error> {
        self.required_rank()?;
        let records = (0..).zip(records.chunks(RECORD_SIZE));
        let read: Result<Vec<BootstrapRecord>, Error> =
            records.map(|(index, record)| read(index, record)).collect();
        let read = read?;
        let inner = &self.inner;
        let addresses: BTreeSet<&str> = read.iter().map(|one| one.address.as_str()).collect();
        let nodes = addresses.iter().filter(|address| !address.is_empty());
        refuse_too_many(nodes.count(), self.table()?)?;
        if !inner.link.is_publisher_wanted() {
            return Ok(0);
        }
        let own = inner.link.address().unwrap_or_default();
        let learned = Learned {
            key: read.iter().find_map(|record| record.key),
            seeds: choose(&read, &own),
            placed: ranks_by_node(&read, &own),
        };
        let count = learned.seeds.len();
        *lock(&inner.learned) = learned;
        let until = Instant::now() + HAND_OVER_DEADLINE;
        let done = self.await_link(until, |inner| inner.send_learned().then_some(()))?;
        done.map(|()| count).ok_or_else(|| Error::Deadline {
            socket: inner.setting.agent_directory.socket(),
            waited_ms: HAND_OVER_DEADLINE.as_millis() as u64,
            last: "the agent's socket is full".into(),
        })
    }

    /// The lowest rank of each node passes the records on, so the record of a process without a rank would have no
    /// effect.
    fn required_rank(&self) -> Result<u32, Error> {
        self.my_rank()?.ok_or(Error::NoRank)
    }

    /// Waits until `check` returns a value; without a library thread, dispatches meanwhile.
    fn await_link<T>(
        &self,
        until: Instant,
        check: impl Fn(&Inner) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        loop {
            self.table()?;
            if !self.inner.setting.options.thread {
                let _ = self.dispatch_until(Some(until));
            }
            let found = check(&self.inner);
            if found.is_some() || Instant::now() >= until {
                return Ok(found);
            }
            std::thread::sleep(POLL_PAUSE);
        }
    }
}

impl Inner {
    /// Sends the content of the other records to the agent. `false` if its socket is full; to send it twice does no
    /// harm.
    pub(super) fn send_learned(&self) -> bool {
        let learned = lock(&self.learned);
        learned.key.is_none_or(|key| self.link.send_key(key))
            && learned.seeds.iter().all(|seed| self.link.send_seed(seed))
            && (learned.placed.iter()).all(|(node, ranks)| self.link.send_placed(node, ranks))
    }
}

/// The content of a record.
#[derive(Debug, PartialEq, Eq)]
struct BootstrapRecord {
    key: Option<[u8; 32]>,
    address: String,
}

fn write(address: &str, key: Option<&[u8; 32]>) -> [u8; RECORD_SIZE] {
    let mut record = [0; RECORD_SIZE];
    record[0] = VERSION;
    // The agent's messages have the same limit, so no address is longer.
    let length = address.len().min(ADDRESS_MAX);
    record[2] = length as u8;
    record[ADDRESS..ADDRESS + length].copy_from_slice(&address.as_bytes()[..length]);
    if let Some(key) = key {
        record[1] = HAS_KEY;
        record[KEY].copy_from_slice(key);
    }
    record
}

/// A record of zeros is that of a process without an agent.
fn read(index: usize, record: &[u8]) -> Result<BootstrapRecord, Error> {
    let wrong = |why: String| Error::BootstrapRecord(format!("record {index} {why}"));
    if record.len() != RECORD_SIZE {
        return Err(wrong(format!("has {} bytes", record.len())));
    }
    if record.iter().all(|byte| *byte == 0) {
        let address = String::new();
        return Ok(BootstrapRecord { key: None, address });
    }
    if record[0] != VERSION || record[1] > HAS_KEY || record[2] as usize > ADDRESS_MAX {
        return Err(wrong(format!("begins with {:?}", &record[..3])));
    }
    let address = std::str::from_utf8(&record[ADDRESS..ADDRESS + record[2] as usize])
        .map_err(|_| wrong("has an address that is not UTF-8".into()))?;
    let key: Option<[u8; 32]> = record[KEY].try_into().ok().filter(|_| record[1] == HAS_KEY);
    Ok(BootstrapRecord {
        key,
        address: address.to_owned(),
    })
}

/// The other addresses, each once. Of many, the one after this node's, so that all nodes form a ring, and others
/// evenly spread.
fn choose(records: &[BootstrapRecord], own: &str) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let addresses = records.iter().map(|record| record.address.as_str());
    let nodes: Vec<&str> = addresses
        .filter(|address| !address.is_empty() && seen.insert(*address))
        .collect();
    let own_index = nodes.iter().position(|address| *address == own);
    let (start, others) = match own_index {
        Some(index) => (index + 1, nodes.len() - 1),
        None => (0, nodes.len()),
    };
    let stride = others.div_ceil(SEEDS_MAX).max(1);
    (0..others)
        .step_by(stride)
        .map(|distance| nodes[(start + distance) % nodes.len()].to_owned())
        .collect()
}

/// The other nodes, each with its ranks, if there are not too many.
fn ranks_by_node(records: &[BootstrapRecord], own: &str) -> Vec<(String, Vec<u32>)> {
    let mut nodes: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (rank, record) in (0..).zip(records) {
        if !record.address.is_empty() && record.address != own {
            nodes.entry(&record.address).or_default().push(rank);
        }
    }
    match nodes.len() < PLACED_NODES {
        true => nodes
            .into_iter()
            .map(|(node, ranks)| (node.to_owned(), ranks))
            .collect(),
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_encoding() {
        let key = std::array::from_fn(|index| index as u8);
        for (address, key) in [("10.0.0.1@udp0,10.1.0.1@udp1", None), ("a", Some(key))] {
            let record = read(0, &write(address, key.as_ref())).unwrap();
            assert_eq!((record.address.as_str(), record.key), (address, key));
        }
        assert_eq!(read(0, &[0; RECORD_SIZE]).unwrap().address, "");
    }

    #[test]
    fn malformed_records_are_refused() {
        let good = write("a", None);
        for (offset, value) in [(0, 2), (1, 2), (ADDRESS, 0xff)] {
            let mut record = good;
            record[offset] = value;
            let error = read(7, &record).unwrap_err().to_string();
            assert!(error.starts_with("record 7 "), "{error}");
        }
        assert!(read(0, &good[1..]).is_err());
    }

    #[test]
    fn ranks_are_assigned_to_the_nodes_of_their_records() {
        let record = |address: &str| BootstrapRecord {
            key: None,
            address: address.to_owned(),
        };
        let records = ["a", "b", "", "b", "a", "c"].map(record);
        let placed = [("b".to_owned(), vec![1, 3]), ("c".to_owned(), vec![5])];
        assert_eq!(ranks_by_node(&records, "a"), placed);
        let many: Vec<BootstrapRecord> = (0..=PLACED_NODES)
            .map(|node| record(&node.to_string()))
            .collect();
        assert!(ranks_by_node(&many, "0").is_empty());
        assert_eq!(ranks_by_node(&many[1..], "1").len(), PLACED_NODES - 1);
    }

    #[test]
    fn every_node_gets_the_next_node_and_a_few_others() {
        for nodes in [1, 2, 64, 65, 300] {
            let address = |node: usize| format!("10.0.{}.{}@udp0", node / 250, node % 250);
            let records: Vec<BootstrapRecord> = (0..2 * nodes)
                .map(|rank| BootstrapRecord {
                    key: None,
                    address: address(rank / 2),
                })
                .collect();
            for node in 0..nodes {
                let chosen = choose(&records, &address(node));
                assert!(chosen.len() <= SEEDS_MAX && !chosen.contains(&address(node)));
                assert!(nodes == 1 || chosen[0] == address((node + 1) % nodes));
                assert!(nodes > SEEDS_MAX || chosen.len() == nodes - 1);
            }
        }
    }
}
