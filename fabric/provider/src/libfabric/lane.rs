//! `Lane` is one open endpoint of a rail: it sends and receives datagrams and returns completions.
//!
//! A lane owns its buffers, cut into slots of one message each: the first slots are for receives, the others
//! for sends that the provider completes later. For each received message, a spare slot is posted before the
//! caller gets the message, and the slot of the message is a spare one afterwards. So the number of posted
//! receives stays as configured, however long the caller holds messages. A slot's index is also the index of
//! its operation context, so a completion identifies its slot. A message that the provider copies (`fi_inject`)
//! uses no slot and gives no completion.
//!
//! No call blocks: a send that the provider does not accept at once is refused as busy. A lane that is opened
//! for polling has no descriptor, so that no message wakes the host.

#[cfg(test)]
mod garbage_test;
mod name;
mod raw_endpoint;
#[cfg(test)]
mod spare_test;

use super::array::Array;
use super::class::{self, TrafficClass};
use super::doorbell::Doorbell;
use super::dscp;
use super::handle::Handle;
use super::info::{Info, Offer};
use super::library::Libfabric;
use super::open;
use super::table::{Addressing, Row};
use crate::error::CallError;
use crate::net_kind::NetKind;
use libfabric_sys as sys;
use std::collections::VecDeque;
use std::ffi::{CStr, c_void};
use std::mem;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;

/// Events that one call reads, at most.
const EVENTS_MAX: usize = 16;

/// Completions that one call reads, at most.
const READ_BATCH: usize = 16;

/// Receive slots beside the posted ones: as many as completions that can be read and not yet returned.
const SPARE: usize = READ_BATCH;

/// Slots are aligned to whole cache lines.
const SLOT_ALIGNMENT: usize = 64;

/// Sizes and options of a lane.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Receives that are posted at once, at least 1.
    pub receives: usize,
    /// Sends that may be under way at once, at least 1.
    pub sends: usize,
    /// Use `fi_inject` for messages that are short enough.
    pub inject: bool,
    /// Have a descriptor that becomes readable on completions.
    pub wakes: bool,
    /// Longest message required; the limit is lower if the provider's is.
    pub message_max: usize,
    /// The traffic class to request, in libfabric's numbers.
    pub class: Option<u32>,
    /// The DSCP that the kernel marks datagrams with whose provider has no class, 1 to 63; 0 for none.
    pub dscp: u8,
}

/// A send that the provider accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// The send is complete; no completion follows.
    Done,
    /// The send is in progress; a completion follows.
    UnderWay,
}

/// A send that was not accepted. The lane keeps nothing of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// There is no free slot, or the provider's queue is full.
    Busy,
    /// The provider returned an error.
    Error(CallError),
}

/// A completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done<T> {
    /// A message was received in this slot. The caller owns the slot until [`Lane::repost`].
    Received {
        /// The slot.
        slot: usize,
        /// The length of the message, which may exceed [`Lane::message_max`] by one: then it was cut off.
        length: usize,
    },
    /// A receive failed; its slot was posted again.
    ReceiveFailed,
    /// The send is complete; its buffer is free.
    Sent(T),
    /// The send failed. Its message is in this slot, which the caller owns until [`Lane::free_send`].
    SendFailed(usize, T, CallError),
    /// The completion queue itself failed.
    QueueFailed(CallError),
}

/// An open endpoint with its buffers. `T` is the caller's note of a send, which its completion returns.
#[derive(Debug)]
pub struct Lane<T> {
    // libfabric's objects, in the order in which they must be closed; then the memory that they point to. The
    // endpoint is closed first.
    endpoint: Handle<sys::fid_ep>,
    registration: Option<Handle<sys::fid_mr>>,
    addresses: Handle<sys::fid_av>,
    queue: Handle<sys::fid_cq>,
    /// The device's event queue; none if the provider drives no device.
    events: Option<Handle<sys::fid_eq>>,
    /// Kept open because the other objects use it.
    _domain: Handle<sys::fid_domain>,
    fabric: Handle<sys::fid_fabric>,
    buffers: Array<u8>,
    contexts: Array<sys::fi_context2>,

    /// None if the lane does not wake the host.
    wait_fd: Option<RawFd>,
    event_fd: Option<RawFd>,
    /// The lane's own doorbell and those of its peers, if the provider has no descriptor to wait for.
    doorbell: Option<Doorbell>,
    /// The error of the last `fi_trywait`, until it is reported.
    wait_error: Option<CallError>,
    /// The device's errors cannot be read.
    events_failed: bool,
    library: Libfabric,
    row: &'static Row,
    source: SocketAddrV4,
    offer: Offer,
    class: TrafficClass,
    inject: bool,
    receives: usize,
    slot_bytes: usize,
    /// The note and the length of each send, by its slot.
    sends: Vec<(T, usize)>,
    free_sends: Vec<usize>,
    /// Receive slots that are posted when messages have been received.
    spare: Vec<usize>,
    /// Receives that could not be posted because the caller holds all spare slots.
    owed: usize,
    unposted: Vec<usize>,
    read: VecDeque<Done<T>>,
}

// SAFETY: libfabric's objects may be used by one thread at a time (FI_THREAD_DOMAIN), and all methods that use
// them take `&mut self` or change nothing; only the lane has pointers to the arrays.
unsafe impl<T: Send> Send for Lane<T> {}

impl<T: Copy + Default> Lane<T> {
    /// Opens an endpoint that is bound to this address, and posts its receive buffers.
    ///
    /// # Errors
    /// The call of libfabric that failed, and its error.
    pub fn open(
        library: &Libfabric,
        row: &'static Row,
        source: SocketAddrV4,
        limits: Limits,
    ) -> Result<Lane<T>, CallError> {
        let (mut info, has_class) = match limits.class {
            Some(class) => Info::query_class(library, row, source, class)?,
            None => (Info::query(library, row, Some(source))?, true),
        };
        let mut offer = info.offer();
        offer.message_max = offer.message_max.min(limits.message_max);
        let posted = limits.receives.clamp(1, offer.receives_max.max(1));
        let receives = posted + SPARE;
        let sends = limits.sends.clamp(1, offer.sends_max.max(1));
        let fabric = open::fabric(library, &info)?;
        let domain = open::domain(library, &fabric, &info)?;
        let has_doorbell = row.addressing == Addressing::Local;
        let mut waits = limits.wakes && !has_doorbell;
        let size = posted + sends;
        let queue = match open::queue(library, &domain, size, waits) {
            // Not all of these providers have descriptors. The host reads their messages when it is awake.
            Err(_) if waits && row.addressing == Addressing::Named => {
                waits = false;
                open::queue(library, &domain, size, false)?
            }
            queue => queue?,
        };
        let mut wait_fd = match waits {
            true => Some(open::wait_fd(library, &queue)?),
            false => None,
        };
        let is_map = row.addressing == Addressing::Named && offer.maps_addresses;
        let addresses = open::addresses(library, &domain, is_map)?;
        let events = match row.net.has_device() {
            true => open::events(library, &fabric, limits.wakes).ok(),
            false => None,
        };
        let event_fd = match &events {
            Some(events) if limits.wakes => open::wait_fd(library, events).ok(),
            _ => None,
        };
        let bound = events.as_ref();
        let (endpoint, class) =
            class::open(&mut info, limits.class.filter(|_| has_class), |info| {
                open::endpoint(library, &domain, info, &queue, &addresses, bound)
            })?;
        // One byte more than the longest message: the provider truncates a longer one without an error, and the
        // extra byte shows that it did.
        let slot_bytes = (offer.prefix + offer.message_max + 1).next_multiple_of(SLOT_ALIGNMENT);
        let buffers = Array::new((receives + sends) * slot_bytes, 0u8);
        let registration = match offer.registers_memory {
            true => Some(open::registration(library, &domain, &buffers)?),
            false => None,
        };
        let doorbell = match has_doorbell {
            true => Some(Doorbell::open(library, source)?),
            false => None,
        };
        if limits.wakes {
            wait_fd = wait_fd.or(doorbell.as_ref().map(Doorbell::fd));
        }
        let mut lane = Lane {
            endpoint,
            registration,
            addresses,
            queue,
            events,
            _domain: domain,
            fabric,
            buffers,
            contexts: Array::new(receives + sends, sys::fi_context2::default()),
            wait_fd,
            event_fd,
            doorbell,
            wait_error: None,
            events_failed: false,
            library: *library,
            row,
            source,
            offer,
            class: if has_class {
                class
            } else {
                TrafficClass::Refused
            },
            inject: limits.inject,
            receives,
            slot_bytes,
            sends: vec![Default::default(); sends],
            free_sends: (receives..receives + sends).rev().collect(),
            spare: (posted..receives).collect(),
            owed: 0,
            unposted: Vec::with_capacity(receives),
            read: VecDeque::with_capacity(receives + sends),
        };
        for slot in 0..posted {
            lane.post_receive(slot)?;
        }
        if limits.class.is_some() && limits.dscp > 0 {
            lane.mark(limits.dscp);
        }
        Ok(lane)
    }

    /// Has the kernel mark this lane's packets. A lane whose packets it does not mark is used without marks.
    fn mark(&mut self, dscp: u8) {
        let kind = match self.row.net {
            NetKind::Udp => libc::SOCK_DGRAM,
            NetKind::Tcp => libc::SOCK_STREAM,
            _ => return,
        };
        let bound = self.local_address();
        if bound.is_ok_and(|bound| dscp::mark(kind, bound, dscp)) {
            self.class = TrafficClass::Marked(dscp);
        }
    }

    /// Has the kernel mark the connections that this process has begun from the lane's interface since the last call.
    /// Does nothing if the lane has no connections, or marks nothing.
    pub fn mark_connections(&self) {
        if let (NetKind::Tcp, TrafficClass::Marked(dscp)) = (self.row.net, self.class) {
            dscp::mark_connections(*self.source.ip(), dscp);
        }
    }

    /// Longest message, bytes.
    pub fn message_max(&self) -> usize {
        self.offer.message_max
    }

    /// The provider's answer to the requested traffic class.
    pub fn class(&self) -> TrafficClass {
        self.class
    }

    /// Sends that the lane can accept now.
    pub fn credits(&self) -> usize {
        self.free_sends.len()
    }

    /// Sends that the lane can accept when none is in progress.
    pub fn credits_most(&self) -> usize {
        self.sends.len()
    }

    /// The address that the endpoint is bound to, with its port.
    ///
    /// # Errors
    /// libfabric does not return it.
    pub fn local_address(&self) -> Result<SocketAddrV4, CallError> {
        if self.row.addressing != Addressing::Ip {
            // Only the provider knows its own kind of address.
            return Ok(self.source);
        }
        let mut length = size_of::<libc::sockaddr_in>();
        // SAFETY: all zeros is a valid sockaddr_in; libfabric writes at most `length` bytes to it.
        let (returned, name) = unsafe {
            let mut name: libc::sockaddr_in = mem::zeroed();
            let at = (&raw mut name).cast();
            (
                sys::fi_getname(self.endpoint.as_fid(), at, &raw mut length),
                name,
            )
        };
        self.library.zero_or_error("fi_getname", returned)?;
        let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
        Ok(SocketAddrV4::new(ip, u16::from_be(name.sin_port)))
    }

    /// Whether messages on this lane wake the host. Otherwise it has to read the lane from time to time.
    pub fn wakes(&self) -> bool {
        self.wait_fd.is_some()
    }

    /// The descriptors that become readable when there is a completion or an event; none if the lane does not
    /// wake the host.
    pub fn wait_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let fds = [self.wait_fd, self.event_fd].into_iter().flatten();
        // SAFETY: the queues and the doorbell keep their descriptors open until they are closed, that is,
        // longer than `self` is borrowed.
        fds.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Whether the host may sleep: the descriptors will signal everything that arrives from now on. Always true
    /// for a lane without a descriptor.
    pub fn may_sleep(&mut self) -> bool {
        if self.wait_fd.is_none() {
            return true;
        }
        if !self.read.is_empty() {
            return false;
        }
        if let Some(doorbell) = &self.doorbell {
            // A peer rings after it has sent, so messages of drained rings can be read now.
            doorbell.drain();
            self.read_queue();
            return self.read.is_empty();
        }
        let events = self.events.as_ref().filter(|_| self.event_fd.is_some());
        let mut queues: Vec<*mut sys::fid> = vec![self.queue.as_fid()];
        queues.extend(events.map(Handle::as_fid));
        let count = queues.len() as i32;
        clear_errno();
        // SAFETY: open queues of this fabric.
        let returned = unsafe { sys::fi_trywait(self.fabric.as_ptr(), queues.as_mut_ptr(), count) };
        // Only FI_EAGAIN means that there is something to read. Any other error would recur at once: it is
        // reported by the next `device_error`, and until then the host may sleep.
        let readable = returned == -(sys::FI_EAGAIN as i32);
        if !readable && returned != 0 {
            let error = self.library.error("fi_trywait", returned.into());
            self.wait_error.get_or_insert(error);
        }
        !readable
    }

    /// The error of the device or of the last wait, if there is one.
    pub fn device_error(&mut self) -> Option<CallError> {
        if let Some(error) = self.wait_error.take() {
            return Some(error);
        }
        let events = self.events.as_ref().filter(|_| !self.events_failed)?;
        for _ in 0..EVENTS_MAX {
            let mut entry = sys::fi_eq_entry::default();
            let mut kind = 0;
            // SAFETY: the queue is open, and there is room for one entry; longer ones are truncated.
            let read = unsafe {
                let at = (&raw mut entry).cast();
                let length = size_of::<sys::fi_eq_entry>();
                sys::fi_eq_read(events.as_ptr(), &raw mut kind, at, length, 0)
            };
            if read == -(sys::FI_EAVAIL as isize) {
                let mut entry = sys::fi_eq_err_entry::default();
                // SAFETY: there is room for one entry; no room for error data is offered (its size is zero).
                let read = unsafe { sys::fi_eq_readerr(events.as_ptr(), &raw mut entry, 0) };
                if read <= 0 {
                    // An event that cannot be read stays in the queue and would keep the host awake.
                    self.events_failed = true;
                    self.event_fd = None;
                    return Some(self.library.error("fi_eq_readerr", read as i64));
                }
                let is_error = entry.err != 0;
                return is_error.then(|| self.library.error("fi_eq_readerr", entry.err.into()));
            }
            // Events about connections concern only the provider.
            if read <= 0 {
                return None;
            }
        }
        None
    }

    /// Inserts an address; returns the handle to use in [`Lane::send`].
    ///
    /// # Errors
    /// The provider refuses the address, or has addresses of its own kind.
    pub fn insert(&mut self, address: SocketAddrV4) -> Result<u64, CallError> {
        if self.has_name() {
            return Err(self.library.error("fi_av_insert", i64::from(libc::EINVAL)));
        }
        if let Some(doorbell) = &mut self.doorbell {
            // The provider gets the address only when the peer is found to be running.
            return Ok(doorbell.learn(address));
        }
        let name = socket_name(address);
        self.insert_bytes((&raw const name).cast())
    }

    fn insert_bytes(&mut self, from: *const c_void) -> Result<u64, CallError> {
        let mut handle = sys::FI_ADDR_UNSPEC;
        // SAFETY: there is one address in the format that the endpoint was opened with, and room for one
        // answer; the insertion is synchronous, because no event queue is bound to the vector.
        let inserted = unsafe {
            sys::fi_av_insert(
                self.addresses.as_ptr(),
                from,
                1,
                &raw mut handle,
                0,
                ptr::null_mut(),
            )
        };
        match inserted {
            1 => Ok(handle),
            0 => Err(self.library.error("fi_av_insert", i64::from(libc::EINVAL))),
            returned => Err(self.library.error("fi_av_insert", i64::from(returned))),
        }
    }

    /// Removes an address.
    pub fn remove(&mut self, handle: u64) {
        match &mut self.doorbell {
            None => self.remove_name(handle),
            Some(doorbell) => {
                let known = doorbell.forget(handle);
                known.into_iter().for_each(|known| self.remove_name(known));
            }
        }
    }

    fn remove_name(&mut self, mut handle: u64) {
        // SAFETY: the address was inserted. If libfabric refuses, it stays in the table, which is bounded.
        unsafe { sys::fi_av_remove(self.addresses.as_ptr(), &raw mut handle, 1, 0) };
    }

    /// Sends a message no longer than [`Lane::message_max`]. The completion returns the tag.
    ///
    /// # Errors
    /// The provider did not accept it.
    ///
    /// # Panics
    /// The message is too long.
    pub fn send(&mut self, to: u64, tag: T, bytes: &[u8]) -> Result<Posted, Refused> {
        assert!(
            bytes.len() <= self.offer.message_max,
            "the message is longer than Lane::message_max, which the caller must check"
        );
        if self.doorbell.is_none() {
            return self.post_send(to, tag, bytes);
        }
        let address = self.reach(to).map_err(Refused::Error)?;
        let posted = self.post_send(address, tag, bytes);
        // Rings after a refused send, too: the provider may be connecting to the peer.
        let gone = self
            .doorbell
            .as_mut()
            .and_then(|doorbell| doorbell.ring(to));
        gone.into_iter().for_each(|gone| self.remove_name(gone));
        posted
    }

    /// The provider's handle of a peer with a doorbell; finds the peer if necessary.
    fn reach(&mut self, to: u64) -> Result<u64, CallError> {
        let Some(doorbell) = &self.doorbell else {
            return Ok(to);
        };
        if let Some(address) = doorbell.address(to) {
            return Ok(address);
        }
        let (socket, at) = doorbell.find(&self.library, to)?;
        let name = Info::destination(&self.library, self.row, at)?;
        let address = self.insert_bytes(name.as_ptr().cast())?;
        if let Some(doorbell) = &mut self.doorbell {
            doorbell.found(to, socket, address);
        }
        Ok(address)
    }

    fn post_send(&mut self, to: u64, tag: T, bytes: &[u8]) -> Result<Posted, Refused> {
        // Over a connection, copied messages would queue without bound or count behind a stuck peer.
        let is_plain_datagram = self.row.endpoint == sys::FI_EP_DGRAM && self.offer.prefix == 0;
        let by_copy = self.inject && is_plain_datagram;
        if by_copy && bytes.len() <= self.offer.inject_max {
            // SAFETY: the bytes are copied or dropped when the call returns.
            let returned = unsafe {
                sys::fi_inject(
                    self.endpoint.as_ptr(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    to,
                )
            };
            return self.accepted("fi_inject", returned).map(|()| Posted::Done);
        }
        let Some(slot) = self.free_sends.pop() else {
            return Err(Refused::Busy);
        };
        clear_errno();
        // SAFETY: only this lane has a pointer to a free send slot, and it is long enough for any message. From
        // the call on, the provider owns it until its completion.
        let returned = unsafe {
            let buffer = self.buffer(slot);
            let start = buffer.add(self.offer.prefix);
            ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
            sys::fi_send(
                self.endpoint.as_ptr(),
                buffer.cast(),
                self.offer.prefix + bytes.len(),
                self.descriptor(),
                to,
                self.context(slot),
            )
        };
        if let Err(refused) = self.accepted("fi_send", returned) {
            self.free_sends.push(slot);
            return Err(refused);
        }
        self.sends[slot - self.receives] = (tag, bytes.len());
        Ok(Posted::UnderWay)
    }

    /// The next completion.
    pub fn next_done(&mut self) -> Option<Done<T>> {
        if self.read.is_empty() {
            self.read_queue();
        }
        self.read.pop_front()
    }

    /// The message in a slot that was received, is being sent, or failed to be sent.
    ///
    /// # Panics
    /// There is no such slot, or the length exceeds it.
    pub fn message(&self, slot: usize, length: usize) -> &[u8] {
        let prefix = self.offer.prefix;
        assert!(slot < self.contexts.length() && prefix + length <= self.slot_bytes);
        // SAFETY: the range is within the slot. A received slot is not posted, so the provider does not write
        // to it until `repost`. The provider only reads a slot that is being sent, and does not use one whose
        // send failed until `free_send`. Both calls need the lane mutably.
        unsafe { std::slice::from_raw_parts(self.buffer(slot).add(prefix), length) }
    }

    /// The sends that have not completed, with their slots.
    pub fn under_way(&self) -> impl Iterator<Item = (usize, T, &[u8])> {
        let sends = self.receives..self.receives + self.sends.len();
        let busy = sends.filter(|slot| !self.free_sends.contains(slot));
        // All others are free: an idle lane is not searched.
        let busy = busy.take(self.sends.len() - self.free_sends.len());
        busy.map(|slot| {
            let (tag, length) = self.sends[slot - self.receives];
            (slot, tag, self.message(slot, length))
        })
    }

    /// Replaces the tag of a send that has not completed.
    ///
    /// # Panics
    /// There is no such slot.
    pub fn set_tag(&mut self, slot: usize, tag: T) {
        self.sends[slot - self.receives].0 = tag;
    }

    /// Frees the slot of a send that has ended.
    pub fn free_send(&mut self, slot: usize) {
        self.free_sends.push(slot);
    }

    /// Returns a received slot to the lane: it becomes a spare one, or is posted if a receive is owed.
    pub fn repost(&mut self, slot: usize) {
        if self.owed == 0 {
            self.spare.push(slot);
        } else {
            self.owed -= 1;
            self.post(slot);
        }
    }

    /// Posts the slots that could not be posted before.
    pub fn repost_late(&mut self) {
        for slot in mem::take(&mut self.unposted) {
            self.post(slot);
        }
    }

    /// Posts a receive slot; if the provider refuses it now, `repost_late` tries again.
    fn post(&mut self, slot: usize) {
        if self.post_receive(slot).is_err() {
            self.unposted.push(slot);
        }
    }

    fn post_receive(&mut self, slot: usize) -> Result<(), CallError> {
        // SAFETY: the receive slot is not posted. From here on, the provider owns it until its completion.
        // Slots are one byte longer than the longest message.
        let returned = unsafe {
            sys::fi_recv(
                self.endpoint.as_ptr(),
                self.buffer(slot).cast(),
                self.offer.prefix + self.offer.message_max + 1,
                self.descriptor(),
                sys::FI_ADDR_UNSPEC,
                self.context(slot),
            )
        };
        if returned == 0 {
            Ok(())
        } else {
            Err(self.library.error("fi_recv", returned as i64))
        }
    }

    fn read_queue(&mut self) {
        let mut entries = [sys::fi_cq_msg_entry::default(); READ_BATCH];
        clear_errno();
        // SAFETY: the queue was opened with FI_CQ_FORMAT_MSG, and there is room for the batch.
        let count = unsafe {
            sys::fi_cq_read(self.queue.as_ptr(), entries.as_mut_ptr().cast(), READ_BATCH)
        };
        if count == -(sys::FI_EAGAIN as isize) {
            return;
        }
        if count == -(sys::FI_EAVAIL as isize) {
            let done = self.read_error();
            self.read.push_back(done);
            return;
        }
        let Ok(count) = usize::try_from(count) else {
            let error = self.library.error("fi_cq_read", count as i64);
            self.read.push_back(Done::QueueFailed(error));
            return;
        };
        for entry in &entries[..count] {
            let done = match self.slot_of(entry.op_context) {
                // A message that is not longer than its prefix is internal to the provider.
                Some(slot) if slot < self.receives && self.offer.prefix >= entry.len.max(1) => {
                    self.post(slot);
                    continue;
                }
                Some(slot) if slot < self.receives => {
                    match self.spare.pop() {
                        Some(spare) => self.post(spare),
                        None => self.owed += 1,
                    }
                    Done::Received {
                        slot,
                        length: entry.len - self.offer.prefix,
                    }
                }
                Some(slot) => {
                    self.free_send(slot);
                    Done::Sent(self.sends[slot - self.receives].0)
                }
                None => Done::QueueFailed(self.library.error("fi_cq_read", libc::EINVAL.into())),
            };
            self.read.push_back(done);
        }
    }

    fn read_error(&mut self) -> Done<T> {
        let mut entry = sys::fi_cq_err_entry::default();
        // SAFETY: there is room for one entry; no room for error data is offered (its size is zero).
        let count = unsafe { sys::fi_cq_readerr(self.queue.as_ptr(), &raw mut entry, 0) };
        if count != 1 {
            return Done::QueueFailed(self.library.error("fi_cq_readerr", count as i64));
        }
        let mut error = self.library.error("fi_cq_readerr", i64::from(entry.err));
        error.text += &self.in_the_providers_words(&entry);
        match self.slot_of(entry.op_context) {
            Some(slot) if slot < self.receives => {
                self.post(slot);
                Done::ReceiveFailed
            }
            Some(slot) => Done::SendFailed(slot, self.sends[slot - self.receives].0, error),
            None => Done::QueueFailed(error),
        }
    }

    /// The provider's own code and text for a failed completion; empty if it has none.
    fn in_the_providers_words(&self, entry: &sys::fi_cq_err_entry) -> String {
        if entry.prov_errno == 0 || entry.prov_errno == entry.err {
            return String::new();
        }
        let mut text = [0; 128];
        // SAFETY: libfabric writes at most `text.len()` bytes, and returns that text, a text of its own, or null.
        let words = unsafe {
            let (code, data) = (entry.prov_errno, entry.err_data);
            let into = text.as_mut_ptr();
            let words = sys::fi_cq_strerror(self.queue.as_ptr(), code, data, into, text.len());
            (!words.is_null()).then(|| CStr::from_ptr(words).to_string_lossy().into_owned())
        };
        format!(
            ", provider error {}: {}",
            entry.prov_errno,
            words.unwrap_or_default()
        )
    }

    fn accepted(&self, call: &'static str, returned: isize) -> Result<(), Refused> {
        match returned {
            0 => Ok(()),
            _ if returned == -(sys::FI_EAGAIN as isize) => Err(Refused::Busy),
            _ => Err(Refused::Error(self.library.error(call, returned as i64))),
        }
    }

    fn buffer(&self, slot: usize) -> *mut u8 {
        self.buffers.at(slot * self.slot_bytes)
    }

    fn context(&self, slot: usize) -> *mut c_void {
        self.contexts.at(slot).cast()
    }

    fn slot_of(&self, context: *mut c_void) -> Option<usize> {
        let offset = (context as usize).checked_sub(self.contexts.at(0) as usize)?;
        let slot = offset / size_of::<sys::fi_context2>();
        (slot < self.contexts.length()).then_some(slot)
    }

    fn descriptor(&self) -> *mut c_void {
        // SAFETY: the registration is open.
        let of = |registration: &Handle<_>| unsafe { sys::fi_mr_desc(registration.as_ptr()) };
        self.registration.as_ref().map_or(ptr::null_mut(), of)
    }
}

/// Clears `errno`. Must be called before each call in which the provider serves its connections. When the first
/// message of a TCP connection is too short, libfabric 1.17 reads `errno`, which that read has not set. If an
/// earlier call has left EAGAIN there, libfabric neither closes the connection nor reads it again, and its
/// descriptor stays in use until the process ends.
fn clear_errno() {
    // SAFETY: `errno` is the C library's variable of this thread.
    unsafe { *libc::__errno_location() = 0 };
}

impl<T> Drop for Lane<T> {
    fn drop(&mut self) {
        // An endpoint that stays open goes on writing to posted buffers.
        if !self.endpoint.close() {
            self.buffers.leak();
            self.contexts.leak();
        }
    }
}

fn socket_name(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*address.ip()).to_be(),
        },
        sin_zero: [0; 8],
    }
}
