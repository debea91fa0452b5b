//! Reports of the application's own messages to the agent; they replace heartbeats (BG-03).

use super::{Client, Error};
use muster_shm::TrafficStamp;

/// Room that a message needs to carry the bytes of [`Client::piggyback_fill`].
pub use muster_shm::PIGGYBACK_MAX;

impl Client {
    /// This process has received a message from `rank`: a sign of life of its node, equivalent to one heartbeat. No
    /// system call; any thread may call it. `false` if the node of the rank is not known.
    #[inline]
    pub fn heard_from(&self, rank: u32) -> Result<bool, Error> {
        Ok(self.table()?.stamp_traffic(rank, TrafficStamp::From))
    }

    /// This process has sent a message to `rank`: the next heartbeat to its node can be omitted. Only to be used
    /// where the receiver calls [`Self::heard_from`] for it. `false` if the node of the rank is not known.
    #[inline]
    pub fn sent_to(&self, rank: u32) -> Result<bool, Error> {
        Ok(self.table()?.stamp_traffic(rank, TrafficStamp::To))
    }

    /// Writes bytes of the agent for the node of `rank`, to be sent inside a message to that rank. Returns how many
    /// bytes were written to `bytes`, 0 for none. They replace one heartbeat to that node. No system call; any thread
    /// may call it. `None` if the node of the rank is not known.
    pub fn piggyback_fill(
        &self,
        rank: u32,
        bytes: &mut [u8; PIGGYBACK_MAX],
    ) -> Result<Option<usize>, Error> {
        Ok(self.table()?.take_piggyback(rank, bytes))
    }

    /// Passes the bytes of the sender's [`Self::piggyback_fill`], from a message of `rank` that this process has
    /// received, to the agent. Arbitrary bytes do no harm: the agent accepts only authenticated ones. `Some(false)`
    /// if the agent has not yet taken the last bytes from that node: these are lost. `None` if the node of the rank
    /// is not known.
    pub fn piggyback_deliver(&self, rank: u32, bytes: &[u8]) -> Result<Option<bool>, Error> {
        Ok(self.table()?.bring_piggyback(rank, bytes))
    }
}
