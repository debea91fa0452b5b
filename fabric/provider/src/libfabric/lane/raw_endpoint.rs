//! libfabric's calls without this crate's code around them: the baseline that measurements compare the fabric
//! with.

use super::Lane;
use libfabric_sys as sys;

impl<T: Copy + Default> Lane<T> {
    /// Sends a short datagram by copy (`fi_inject`). Returns whether the provider accepted it.
    pub(crate) fn raw_send(&mut self, to: u64, bytes: &[u8]) -> bool {
        let (endpoint, from) = (self.endpoint.as_ptr(), bytes.as_ptr().cast());
        // SAFETY: the provider has copied the bytes when the call returns; it refuses too many.
        unsafe { sys::fi_inject(endpoint, from, bytes.len(), to) == 0 }
    }

    /// Returns whether a datagram was received. Its buffer is posted again.
    pub(crate) fn raw_receive(&mut self) -> bool {
        let mut entry = sys::fi_cq_msg_entry::default();
        // SAFETY: the queue was opened with FI_CQ_FORMAT_MSG, and there is room for one entry.
        let count = unsafe { sys::fi_cq_read(self.queue.as_ptr(), (&raw mut entry).cast(), 1) };
        let slot = self.slot_of(entry.op_context).filter(|_| count == 1);
        slot.is_some_and(|slot| slot < self.receives && self.post_receive(slot).is_ok())
    }
}
