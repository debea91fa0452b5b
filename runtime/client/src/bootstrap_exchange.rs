//! Cards: how the agents of a job find each other where no launcher tells them.
//!
//! Each process writes a card with its agent's address, and the first rank adds the job's key. An
//! allgather of whatever library the job has (MPI, as a rule) brings every card to everybody, and one
//! process of each node hands to its agent what is on them. The same that the PMIx porch does, for a
//! process whose MPI has no PMIx.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::{Client, Error, Inner, lock};
use muster_ipc::ADDRESS_MAX;

/// Bytes of a card.
pub const RECORD_SIZE: usize = 320;
/// The only kind of card so far.
const VERSION: u8 = 1;
const HAS_KEY: u8 = 1;
const KEY: std::ops::Range<usize> = 3..35;
const ADDRESS: usize = KEY.end;
/// Seeds that one agent is told of in a large job: any that answers leads to all others.
const SEEDS_MAX: usize = 64;
/// Of jobs of at most so many nodes the agent is told which ranks run where: where messages carry gossip, there
/// are no more.
const PLACED_NODES: usize = 128;
/// How long the first rank waits for a key that its agent may have from elsewhere.
const KEY_PATIENCE: Duration = Duration::from_secs(1);
/// How long a message may wait for room in the agent's socket.
const HAND_OVER: Duration = Duration::from_secs(5);
/// Between two looks whether there is room.
const LOOK: Duration = Duration::from_millis(1);

const _: () = assert!(ADDRESS + ADDRESS_MAX <= RECORD_SIZE);

/// What was learned of the others; an agent that comes in the place of a lost one is told again.
#[derive(Debug, Default)]
pub(super) struct Learned {
    key: Option<[u8; 32]>,
    seeds: Vec<String>,
    /// The other nodes' addresses, each with its ranks; none of a large job.
    placed: Vec<(String, Vec<u32>)>,
}

impl Client {
    /// This process's card, when its agent has said its address: within milliseconds, at the deadline
    /// at the latest.
    ///
    /// # Errors
    /// [`Error::NoRank`]; [`Error::Deadline`]; [`Error::Finalized`], [`Error::Forked`].
    pub fn bootstrap_record(&self, deadline: Duration) -> Result<[u8; RECORD_SIZE], Error> {
        let until = Instant::now() + deadline;
        let first = self.rank_for_cards()? == 0;
        let address = self.await_link(until, |inner| inner.link.address())?;
        let address = address.ok_or_else(|| Error::Deadline {
            socket: self.inner.setting.place.socket(),
            waited_ms: deadline.as_millis() as u64,
            last: "the agent has not said its address".into(),
        })?;
        let key = if first {
            let until = until.min(Instant::now() + KEY_PATIENCE);
            // None comes if the agent has it from a file: then all others have.
            // The job's first key counts: an agent that came in the place of another may have drawn one.
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

    /// Hands to the agent what is on the records of all processes, one after the other in the order of
    /// their ranks; of a large job a part. Says how many other nodes it was told of: 0 also if another
    /// process of this node does it.
    ///
    /// # Errors
    /// [`Error::NoRank`], [`Error::BootstrapRecord`]: nothing was handed over. [`Error::Deadline`].
    pub fn take_bootstrap_records(&self, records: &[u8]) -> Result<usize, Error> {
        self.rank_for_cards()?;
        let records = (0..).zip(records.chunks(RECORD_SIZE));
        let read: Result<Vec<BootstrapRecord>, Error> = records
            .map(|(index, bootstrap_record)| read(index, bootstrap_record))
            .collect();
        let read = read?;
        let inner = &self.inner;
        if !inner.link.is_publisher_wanted() {
            return Ok(0);
        }
        let own = inner.link.address().unwrap_or_default();
        let learned = Learned {
            key: read
                .iter()
                .find_map(|bootstrap_record| bootstrap_record.key),
            seeds: choose(&read, &own),
            placed: place(&read, &own),
        };
        let told = learned.seeds.len();
        *lock(&inner.learned) = learned;
        let until = Instant::now() + HAND_OVER;
        let done = self.await_link(until, |inner| inner.tell_learned().then_some(()))?;
        done.map(|()| told).ok_or_else(|| Error::Deadline {
            socket: inner.setting.place.socket(),
            waited_ms: HAND_OVER.as_millis() as u64,
            last: "the agent takes no more messages".into(),
        })
    }

    /// The lowest rank of each node hands over, so one without a rank would bring its card in vain.
    fn rank_for_cards(&self) -> Result<u32, Error> {
        self.my_rank()?.ok_or(Error::NoRank)
    }

    /// Looks until there is something; without a library thread it dispatches meanwhile.
    fn await_link<T>(
        &self,
        until: Instant,
        look: impl Fn(&Inner) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        loop {
            self.table()?;
            if !self.inner.setting.options.thread {
                let _ = self.dispatch_until(Some(until));
            }
            let found = look(&self.inner);
            if found.is_some() || Instant::now() >= until {
                return Ok(found);
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Inner {
    /// Tells the agent all that was learned. `false` if its socket is full; to tell it twice is no harm.
    pub(super) fn tell_learned(&self) -> bool {
        let learned = lock(&self.learned);
        learned.key.is_none_or(|key| self.link.send_key(key))
            && learned.seeds.iter().all(|seed| self.link.send_seed(seed))
            && (learned.placed.iter()).all(|(node, ranks)| self.link.send_placed(node, ranks))
    }
}

/// What is on a card.
#[derive(Debug, PartialEq, Eq)]
struct BootstrapRecord {
    key: Option<[u8; 32]>,
    address: String,
}

fn write(address: &str, key: Option<&[u8; 32]>) -> [u8; RECORD_SIZE] {
    let mut bootstrap_record = [0; RECORD_SIZE];
    bootstrap_record[0] = VERSION;
    // Longer ones are none: the agent's message has the same bound.
    let length = address.len().min(ADDRESS_MAX);
    bootstrap_record[2] = length as u8;
    bootstrap_record[ADDRESS..ADDRESS + length].copy_from_slice(&address.as_bytes()[..length]);
    if let Some(key) = key {
        bootstrap_record[1] = HAS_KEY;
        bootstrap_record[KEY].copy_from_slice(key);
    }
    bootstrap_record
}

/// A card of zeros is that of a process that has no agent.
fn read(index: usize, bootstrap_record: &[u8]) -> Result<BootstrapRecord, Error> {
    let wrong = |why: String| Error::BootstrapRecord(format!("card {index} {why}"));
    if bootstrap_record.len() != RECORD_SIZE {
        return Err(wrong(format!("has {} bytes", bootstrap_record.len())));
    }
    if bootstrap_record.iter().all(|byte| *byte == 0) {
        let address = String::new();
        return Ok(BootstrapRecord { key: None, address });
    }
    if bootstrap_record[0] != VERSION
        || bootstrap_record[1] > HAS_KEY
        || bootstrap_record[2] as usize > ADDRESS_MAX
    {
        return Err(wrong(format!("begins with {:?}", &bootstrap_record[..3])));
    }
    let address =
        std::str::from_utf8(&bootstrap_record[ADDRESS..ADDRESS + bootstrap_record[2] as usize])
            .map_err(|_| wrong("has an address that is no text".into()))?;
    let key: Option<[u8; 32]> = bootstrap_record[KEY]
        .try_into()
        .ok()
        .filter(|_| bootstrap_record[1] == HAS_KEY);
    Ok(BootstrapRecord {
        key,
        address: address.to_owned(),
    })
}

/// The other addresses, each once; of many the next after the own one, which closes a ring over all
/// nodes, and others spread over the rest.
fn choose(records: &[BootstrapRecord], own: &str) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let addresses = records
        .iter()
        .map(|bootstrap_record| bootstrap_record.address.as_str());
    let nodes: Vec<&str> = addresses
        .filter(|address| !address.is_empty() && seen.insert(*address))
        .collect();
    let place = nodes.iter().position(|address| *address == own);
    let (start, others) = match place {
        Some(place) => (place + 1, nodes.len() - 1),
        None => (0, nodes.len()),
    };
    let stride = others.div_ceil(SEEDS_MAX).max(1);
    (0..others)
        .step_by(stride)
        .map(|distance| nodes[(start + distance) % nodes.len()].to_owned())
        .collect()
}

/// The other nodes, each with its ranks, where they are not too many.
fn place(records: &[BootstrapRecord], own: &str) -> Vec<(String, Vec<u32>)> {
    let mut nodes: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (rank, bootstrap_record) in (0..).zip(records) {
        if !bootstrap_record.address.is_empty() && bootstrap_record.address != own {
            nodes
                .entry(&bootstrap_record.address)
                .or_default()
                .push(rank);
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
    fn cards_are_read_as_they_were_written() {
        let key = std::array::from_fn(|place| place as u8);
        for (address, key) in [("10.0.0.1@udp0,10.1.0.1@udp1", None), ("a", Some(key))] {
            let bootstrap_record = read(0, &write(address, key.as_ref())).unwrap();
            assert_eq!(
                (bootstrap_record.address.as_str(), bootstrap_record.key),
                (address, key)
            );
        }
        assert_eq!(read(0, &[0; RECORD_SIZE]).unwrap().address, "");
    }

    #[test]
    fn what_is_no_card_is_refused() {
        let good = write("a", None);
        for (place, value) in [(0, 2), (1, 2), (ADDRESS, 0xff)] {
            let mut bootstrap_record = good;
            bootstrap_record[place] = value;
            let error = read(7, &bootstrap_record).unwrap_err().to_string();
            assert!(error.starts_with("card 7 "), "{error}");
        }
        assert!(read(0, &good[1..]).is_err());
    }

    #[test]
    fn ranks_are_placed_where_their_cards_are_from() {
        let bootstrap_record = |address: &str| BootstrapRecord {
            key: None,
            address: address.to_owned(),
        };
        let records = ["a", "b", "", "b", "a", "c"].map(bootstrap_record);
        let placed = [("b".to_owned(), vec![1, 3]), ("c".to_owned(), vec![5])];
        assert_eq!(place(&records, "a"), placed);
        let many: Vec<BootstrapRecord> = (0..=PLACED_NODES)
            .map(|node| bootstrap_record(&node.to_string()))
            .collect();
        assert!(place(&many, "0").is_empty());
        assert_eq!(place(&many[1..], "1").len(), PLACED_NODES - 1);
    }

    #[test]
    fn everybody_is_told_of_the_next_and_of_a_few_others() {
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
