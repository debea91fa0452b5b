//! The application's own messages, told to the agent: they stand for heartbeats (BG-03).

use super::{Client, Error};
use muster_shm::TrafficStamp;

/// Bytes that a message has to have room for to carry what [`Client::piggyback_fill`] writes.
pub use muster_shm::PIGGYBACK_MAX;

impl Client {
    /// This process has received a message from `rank`: a sign of life of its node, as good as one heartbeat.
    /// No system call; any thread may. `false` if it is not known where the rank runs.
    #[inline]
    pub fn heard_from(&self, rank: u32) -> Result<bool, Error> {
        Ok(self.table()?.stamp_traffic(rank, TrafficStamp::From))
    }

    /// This process has sent a message to `rank`: its node need not get our next heartbeat. Only where the
    /// other side says [`Self::heard_from`] for it. `false` as there.
    #[inline]
    pub fn sent_to(&self, rank: u32) -> Result<bool, Error> {
        Ok(self.table()?.stamp_traffic(rank, TrafficStamp::To))
    }

    /// Bytes of the agent for the node of `rank`, to go inside a message to that rank: how many were written to
    /// `bytes`, 0 for none. What goes that way is one of its heartbeats, which is not sent then. No system
    /// call; any thread may. `None` if it is not known where the rank runs.
    pub fn piggyback_fill(
        &self,
        rank: u32,
        bytes: &mut [u8; PIGGYBACK_MAX],
    ) -> Result<Option<usize>, Error> {
        Ok(self.table()?.take_piggyback(rank, bytes))
    }

    /// Hands over what [`Self::piggyback_fill`] gave `rank` for a message that this process has received.
    /// Whatever the bytes are, they do no harm: the agent takes nothing else. `Some(false)` if it has not
    /// yet taken the last ones from there, and these are lost. `None` as there.
    pub fn piggyback_deliver(&self, rank: u32, bytes: &[u8]) -> Result<Option<bool>, Error> {
        Ok(self.table()?.bring_piggyback(rank, bytes))
    }
}
