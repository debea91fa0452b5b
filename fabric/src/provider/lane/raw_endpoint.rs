//! libfabric's calls alone, with nothing of ours around them: what a measurement holds the fabric against.

use super::Lane;
use libfabric_sys as sys;

impl Lane {
    /// Hands a short datagram over by copy, if the provider takes it now.
    pub(crate) fn raw_send(&mut self, to: u64, bytes: &[u8]) -> bool {
        let (endpoint, from) = (self.endpoint.as_ptr(), bytes.as_ptr().cast());
        // SAFETY: the bytes are copied or gone when the call returns; too many are refused.
        unsafe { sys::fi_inject(endpoint, from, bytes.len(), to) == 0 }
    }

    /// Whether a datagram was there. Its buffer is the provider's again.
    pub(crate) fn raw_receive(&mut self) -> bool {
        let mut entry = sys::fi_cq_msg_entry::default();
        // SAFETY: the queue was opened with FI_CQ_FORMAT_MSG, and there is room for one entry.
        let count = unsafe { sys::fi_cq_read(self.queue.as_ptr(), (&raw mut entry).cast(), 1) };
        let slot = self.slot_of(entry.op_context).filter(|_| count == 1);
        slot.is_some_and(|slot| slot < self.receives && self.post_receive(slot).is_ok())
    }
}
