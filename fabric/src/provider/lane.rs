//! One open endpoint of a rail: datagrams out, datagrams in, completions.
//!
//! A lane owns its buffers, cut into slots of one message each: the first slots are for receives, the others for
//! sends that the provider completes later. For each message that comes a spare slot is posted before the message is
//! handed over, and the slot that it came in is the spare one afterwards: however long somebody looks at messages,
//! as many receives are posted as were asked for. A slot's index is also
//! the place of its operation context, so a completion says which slot it is about. A message that
//! the provider takes by copy (`fi_inject`) uses no slot and gives no completion.
//!
//! Nothing here waits: what the provider does not take at once is refused as busy. A lane that is
//! opened to be read now and then has no descriptor, so that nothing that arrives can wake anybody.

#[cfg(test)]
mod garbage_test;
mod raw_endpoint;
#[cfg(test)]
mod spare_test;

use super::array::Array;
use super::class::{self, TrafficClass};
use super::doorbell::Doorbell;
use super::handle::Handle;
use super::info::{Info, Offer};
use super::library::Libfabric;
use super::names::Names;
use super::open;
use super::table::{Addressing, Row};
use crate::error::CallError;
use crate::peer::PeerHandle;
use crate::relay;
use crate::select::Tried;
use crate::stats::DropReason;
use libfabric_sys as sys;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;

/// Events that are passed over with one call.
const EVENTS_MAX: usize = 16;

/// Completions that are read with one call.
const READ_BATCH: usize = 16;

/// Receive slots beside those that are posted: as many as messages can be read and not looked at.
const SPARE: usize = READ_BATCH;

/// Slots are whole cache lines.
const SLOT_ALIGNMENT: usize = 64;

/// How many buffers a lane has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) receives: usize,
    pub(crate) sends: usize,
    /// Hand over by copy what is short enough.
    pub(crate) inject: bool,
    /// Have a descriptor that tells of completions.
    pub(crate) wakes: bool,
    /// Longest message wanted, where the provider allows longer ones.
    pub(crate) message_max: usize,
    /// The traffic class to ask for, as libfabric numbers them.
    pub(crate) class: Option<u32>,
}

/// What a send is remembered by until it completes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SendTag {
    /// What was tried for this message before.
    pub(crate) tried: Tried,
    pub(crate) peer: u32,
    pub(crate) generation: u32,
    /// The path's number in the fabric.
    pub(crate) path: u32,
    pub(crate) bytes: u32,
}

impl SendTag {
    /// Whom the send is to.
    pub(crate) fn peer(&self) -> PeerHandle {
        PeerHandle {
            index: self.peer,
            generation: self.generation,
        }
    }
}

/// A send that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Posted {
    /// Done; no completion will follow.
    Done,
    /// Under way; a completion will follow.
    UnderWay,
}

/// A send that was not taken. Nothing of it was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No slot, or no room at the provider.
    Busy,
    /// An error.
    Error(CallError),
}

impl Refused {
    /// The reason to count, and the error if there is one.
    pub(crate) fn reason(self) -> (DropReason, Option<CallError>) {
        match self {
            Refused::Busy => (DropReason::RailBusy, None),
            Refused::Error(error) => (DropReason::ProviderError, Some(error)),
        }
    }
}

/// A completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Done {
    /// A message lies in this slot, which is the caller's until [`Lane::repost`].
    Received { slot: usize, length: usize },
    /// A receive failed; its slot was posted again.
    ReceiveFailed,
    /// The send is done with its buffer.
    Sent(SendTag),
    /// The send failed. Its message lies in this slot, which is the caller's until
    /// [`Lane::free_send`].
    SendFailed(usize, SendTag, CallError),
    /// The completion queue itself failed.
    QueueFailed(CallError),
}

/// An open endpoint with its buffers.
#[derive(Debug)]
pub(crate) struct Lane {
    // libfabric's objects, in the order in which they must be closed; then what they point to. The
    // endpoint is closed before them all.
    endpoint: Handle<sys::fid_ep>,
    registration: Option<Handle<sys::fid_mr>>,
    addresses: Handle<sys::fid_av>,
    queue: Handle<sys::fid_cq>,
    /// What the device tells; none if it is none that may fail by itself.
    events: Option<Handle<sys::fid_eq>>,
    /// Kept open for the others.
    _domain: Handle<sys::fid_domain>,
    fabric: Handle<sys::fid_fabric>,
    buffers: Array<u8>,
    contexts: Array<sys::fi_context2>,

    /// None if the lane does not wake anybody.
    wait_fd: Option<RawFd>,
    event_fd: Option<RawFd>,
    /// What wakes, and what wakes the peers, where the provider has nothing to wait for.
    doorbell: Option<Doorbell>,
    /// Peers' addresses that are being found, where the provider has its own.
    names: Option<Names>,
    /// Why the last question whether to sleep had no answer.
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
    tags: Vec<SendTag>,
    free_sends: Vec<usize>,
    /// Receive slots that are to be posted when a message has come.
    spare: Vec<usize>,
    /// Receives that lack a slot as long as all spare ones are held.
    owed: usize,
    unposted: Vec<usize>,
    read: VecDeque<Done>,
}

// SAFETY: libfabric's objects may be used by any one thread at a time (FI_THREAD_DOMAIN), and all
// that use them take `&mut self` or change nothing; the arrays belong to the lane alone.
unsafe impl Send for Lane {}

impl Lane {
    /// Opens an endpoint that is bound to this address, and posts its receive buffers.
    pub(crate) fn open(
        library: &Libfabric,
        row: &'static Row,
        source: SocketAddrV4,
        limits: Limits,
    ) -> Result<Lane, CallError> {
        let (mut info, asked) = match limits.class {
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
        let has_bell = row.addressing == Addressing::Local;
        let waits = limits.wakes && !has_bell;
        let queue = open::queue(library, &domain, posted + sends, waits)?;
        let mut wait_fd = match waits {
            true => Some(open::wait_fd(library, &queue)?),
            false => None,
        };
        let addresses = open::addresses(library, &domain)?;
        let events = match row.has_device {
            true => open::events(library, &fabric, limits.wakes).ok(),
            false => None,
        };
        let event_fd = match &events {
            Some(events) if limits.wakes => open::wait_fd(library, events).ok(),
            _ => None,
        };
        let bound = events.as_ref();
        let (endpoint, class) = class::open(&mut info, limits.class.filter(|_| asked), |info| {
            open::endpoint(library, &domain, info, &queue, &addresses, bound)
        })?;
        // One byte more than the longest message: a longer one is cut by the provider without a
        // word, and this way it can be told.
        let slot_bytes = (offer.prefix + offer.message_max + 1).next_multiple_of(SLOT_ALIGNMENT);
        let buffers = Array::new((receives + sends) * slot_bytes, 0u8);
        let registration = match offer.registers_memory {
            true => Some(open::registration(library, &domain, &buffers)?),
            false => None,
        };
        let doorbell = match has_bell {
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
            names: None,
            wait_error: None,
            events_failed: false,
            library: *library,
            row,
            source,
            offer,
            class: if asked { class } else { TrafficClass::Refused },
            inject: limits.inject,
            receives,
            slot_bytes,
            tags: vec![SendTag::default(); sends],
            free_sends: (receives..receives + sends).rev().collect(),
            spare: (posted..receives).collect(),
            owed: 0,
            unposted: Vec::with_capacity(receives),
            read: VecDeque::with_capacity(receives + sends),
        };
        for slot in 0..posted {
            lane.post_receive(slot)?;
        }
        Ok(lane)
    }

    /// Longest message, bytes.
    pub(crate) fn message_max(&self) -> usize {
        self.offer.message_max
    }

    /// What the provider says to the traffic class that was asked for.
    pub(crate) fn class(&self) -> TrafficClass {
        self.class
    }

    /// The message in a slot, if it is an envelope of another member's.
    pub(crate) fn envelope(&self, slot: usize, length: usize) -> Option<Vec<u8>> {
        let bytes = self.message(slot, length.min(self.message_max()));
        let whole = length <= self.message_max() && relay::is_envelope(bytes);
        whole.then(|| bytes.to_vec())
    }

    /// Sends that there is room for now.
    pub(crate) fn credits(&self) -> usize {
        self.free_sends.len()
    }

    /// Sends that there is room for when none is under way.
    pub(crate) fn credits_most(&self) -> usize {
        self.tags.len()
    }

    /// The address that the endpoint is bound to, with its port.
    pub(crate) fn local_address(&self) -> Result<SocketAddrV4, CallError> {
        if self.row.addressing != Addressing::Ip {
            // The provider's own kind of address is known to it alone.
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

    /// The descriptors that become readable when a completion or an event can be read, if the lane
    /// has some.
    pub(crate) fn wait_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let fds = [self.wait_fd, self.event_fd].into_iter().flatten();
        // SAFETY: the queues and the bell keep their descriptors open until they are closed, that is,
        // beyond `self`'s borrow.
        fds.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Whether the descriptor tells of everything that comes from now on; without a descriptor
    /// there is nothing to wait for, and the answer is yes.
    pub(crate) fn may_sleep(&mut self) -> bool {
        if self.wait_fd.is_none() {
            return true;
        }
        if !self.read.is_empty() {
            return false;
        }
        if let Some(doorbell) = &self.doorbell {
            // It rings after the message: what came before it was hushed is there to be read.
            doorbell.hush();
            self.read_queue();
            return self.read.is_empty();
        }
        let events = self.events.as_ref().filter(|_| self.event_fd.is_some());
        let mut queues: Vec<*mut sys::fid> = vec![self.queue.as_fid()];
        queues.extend(events.map(Handle::as_fid));
        let count = queues.len() as i32;
        forget_errno();
        // SAFETY: open queues of this fabric.
        let returned = unsafe { sys::fi_trywait(self.fabric.as_ptr(), queues.as_mut_ptr(), count) };
        // Only that one says that there is something to read. Any other error would come again at once:
        // it is told with the next poll, and till then everybody sleeps.
        let come = returned == -(sys::FI_EAGAIN as i32);
        if !come && returned != 0 {
            let error = self.library.error("fi_trywait", returned.into());
            self.wait_error.get_or_insert(error);
        }
        !come
    }

    /// What the device or the wait has failed with, if it tells so.
    pub(crate) fn device_error(&mut self) -> Option<CallError> {
        if let Some(error) = self.wait_error.take() {
            return Some(error);
        }
        let events = self.events.as_ref().filter(|_| !self.events_failed)?;
        for _ in 0..EVENTS_MAX {
            let mut entry = sys::fi_eq_entry::default();
            let mut kind = 0;
            // SAFETY: an open queue, and room for one entry; longer ones are cut.
            let read = unsafe {
                let at = (&raw mut entry).cast();
                let length = size_of::<sys::fi_eq_entry>();
                sys::fi_eq_read(events.as_ptr(), &raw mut kind, at, length, 0)
            };
            if read == -(sys::FI_EAVAIL as isize) {
                let mut entry = sys::fi_eq_err_entry::default();
                // SAFETY: room for one entry; no room for error data is offered (its size is zero).
                let read = unsafe { sys::fi_eq_readerr(events.as_ptr(), &raw mut entry, 0) };
                if read <= 0 {
                    // What cannot be read stays there, and would keep everybody awake.
                    self.events_failed = true;
                    self.event_fd = None;
                    return Some(self.library.error("fi_eq_readerr", read as i64));
                }
                let told = entry.err != 0;
                return told.then(|| self.library.error("fi_eq_readerr", entry.err.into()));
            }
            // Connections that come and go are the provider's own business.
            if read <= 0 {
                return None;
            }
        }
        None
    }

    /// Makes an address known; what is returned stands for it in [`Lane::send`]. None: it is not known
    /// yet to the provider, and to be asked for again.
    pub(crate) fn insert(&mut self, address: SocketAddrV4) -> Result<Option<u64>, CallError> {
        if let Some(doorbell) = &mut self.doorbell {
            // The provider's business only when somebody is there.
            return Ok(Some(doorbell.learn(address)));
        }
        let name = socket_name(address);
        let found;
        let from: *const c_void = match self.row.addressing {
            Addressing::Ip | Addressing::Local => (&raw const name).cast(),
            Addressing::Service => {
                let names = self.names.get_or_insert_with(Names::new);
                match names.find(self.library, self.row, address)? {
                    Some(name) => found = name,
                    None => return Ok(None),
                }
                found.as_ptr().cast()
            }
        };
        self.insert_name(from).map(Some)
    }

    fn insert_name(&mut self, from: *const c_void) -> Result<u64, CallError> {
        let mut handle = sys::FI_ADDR_UNSPEC;
        // SAFETY: one address in the format that the endpoint was opened with, and room for one
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

    /// Forgets an address.
    pub(crate) fn remove(&mut self, handle: u64) {
        match &mut self.doorbell {
            None => self.remove_name(handle),
            Some(doorbell) => {
                let known = doorbell.forget(handle);
                known.into_iter().for_each(|known| self.remove_name(known));
            }
        }
    }

    fn remove_name(&mut self, mut handle: u64) {
        // SAFETY: an address that was inserted. A refusal leaves it in the table, which is bounded.
        unsafe { sys::fi_av_remove(self.addresses.as_ptr(), &raw mut handle, 1, 0) };
    }

    /// Sends a message no longer than [`Lane::message_max`].
    pub(crate) fn send(&mut self, to: u64, tag: SendTag, bytes: &[u8]) -> Result<Posted, Refused> {
        assert!(
            bytes.len() <= self.offer.message_max,
            "the caller checks the length"
        );
        if self.doorbell.is_none() {
            return self.hand_over(to, tag, bytes);
        }
        let address = self.reach(to).map_err(Refused::Error)?;
        let posted = self.hand_over(address, tag, bytes);
        // One that was refused, too: the provider may be making itself known over there.
        let gone = self
            .doorbell
            .as_mut()
            .and_then(|doorbell| doorbell.ring(to));
        gone.into_iter().for_each(|gone| self.remove_name(gone));
        posted
    }

    /// What stands at the provider for a peer with a bell.
    fn reach(&mut self, to: u64) -> Result<u64, CallError> {
        let Some(doorbell) = &self.doorbell else {
            return Ok(to);
        };
        if let Some(address) = doorbell.address(to) {
            return Ok(address);
        }
        let (wire, at) = doorbell.find(&self.library, to)?;
        let name = Info::destination(&self.library, self.row, at)?;
        let address = self.insert_name(name.as_ptr().cast())?;
        if let Some(doorbell) = &mut self.doorbell {
            doorbell.found(to, wire, address);
        }
        Ok(address)
    }

    fn hand_over(&mut self, to: u64, tag: SendTag, bytes: &[u8]) -> Result<Posted, Refused> {
        // What a connection takes by copy would wait for a stuck peer without bound, and uncounted.
        let is_bare = self.row.endpoint == sys::FI_EP_DGRAM && self.offer.prefix == 0;
        let by_copy = self.inject && is_bare;
        if by_copy && bytes.len() <= self.offer.inject_max {
            // SAFETY: the bytes are copied or gone when the call returns.
            let returned = unsafe {
                sys::fi_inject(
                    self.endpoint.as_ptr(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    to,
                )
            };
            return self.taken("fi_inject", returned).map(|()| Posted::Done);
        }
        let Some(slot) = self.free_sends.pop() else {
            return Err(Refused::Busy);
        };
        forget_errno();
        // SAFETY: a free send slot belongs to nobody but us, and is long enough for any message;
        // from the call on it is the provider's until its completion.
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
        if let Err(refused) = self.taken("fi_send", returned) {
            self.free_sends.push(slot);
            return Err(refused);
        }
        self.tags[slot - self.receives] = tag;
        Ok(Posted::UnderWay)
    }

    /// The next completion.
    pub(crate) fn next(&mut self) -> Option<Done> {
        if self.read.is_empty() {
            self.read_queue();
        }
        self.read.pop_front()
    }

    /// The message in a slot that was received, or is sent, or whose send failed.
    pub(crate) fn message(&self, slot: usize, length: usize) -> &[u8] {
        let prefix = self.offer.prefix;
        assert!(slot < self.contexts.length() && prefix + length <= self.slot_bytes);
        // SAFETY: within the slot. One that was received is not posted, so nobody writes to it, until
        // `repost`; one that is sent the provider only reads; one whose send failed is nobody's until
        // `free_send`. Both need the lane mutably.
        unsafe { std::slice::from_raw_parts(self.buffer(slot).add(prefix), length) }
    }

    /// The sends that have not come to an end.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = (SendTag, &[u8])> {
        let sends = self.receives..self.receives + self.tags.len();
        let busy = sends.filter(|slot| !self.free_sends.contains(slot));
        busy.map(|slot| {
            let tag = self.tags[slot - self.receives];
            (tag, self.message(slot, tag.bytes as usize))
        })
    }

    /// Gives the slot of a send that has ended back to the next one.
    pub(crate) fn free_send(&mut self, slot: usize) {
        self.free_sends.push(slot);
    }

    /// Gives a received slot back: another one was posted for it, unless all are held.
    pub(crate) fn repost(&mut self, slot: usize) {
        if self.owed == 0 {
            self.spare.push(slot);
        } else {
            self.owed -= 1;
            self.post(slot);
        }
    }

    /// Tries again what could not be posted.
    pub(crate) fn repost_late(&mut self) {
        for slot in mem::take(&mut self.unposted) {
            self.post(slot);
        }
    }

    /// Posts a receive slot, now or later.
    fn post(&mut self, slot: usize) {
        if self.post_receive(slot).is_err() {
            self.unposted.push(slot);
        }
    }

    fn post_receive(&mut self, slot: usize) -> Result<(), CallError> {
        // SAFETY: a receive slot that is not posted; from here on it is the provider's until its
        // completion. Slots are one byte longer than the longest message.
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
        forget_errno();
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
                // What is no longer than its prefix is the provider's own.
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
                    Done::Sent(self.tags[slot - self.receives])
                }
                None => Done::QueueFailed(self.library.error("fi_cq_read", libc::EINVAL.into())),
            };
            self.read.push_back(done);
        }
    }

    fn read_error(&mut self) -> Done {
        let mut entry = sys::fi_cq_err_entry::default();
        // SAFETY: room for one entry; no room for error data is offered (its size is zero).
        let count = unsafe { sys::fi_cq_readerr(self.queue.as_ptr(), &raw mut entry, 0) };
        if count != 1 {
            return Done::QueueFailed(self.library.error("fi_cq_readerr", count as i64));
        }
        let error = self.library.error("fi_cq_readerr", i64::from(entry.err));
        match self.slot_of(entry.op_context) {
            Some(slot) if slot < self.receives => {
                self.post(slot);
                Done::ReceiveFailed
            }
            Some(slot) => Done::SendFailed(slot, self.tags[slot - self.receives], error),
            None => Done::QueueFailed(error),
        }
    }

    fn taken(&self, call: &'static str, returned: isize) -> Result<(), Refused> {
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
        // SAFETY: an open registration.
        let of = |registration: &Handle<_>| unsafe { sys::fi_mr_desc(registration.as_ptr()) };
        self.registration.as_ref().map_or(ptr::null_mut(), of)
    }
}

/// Is called before a provider serves its connections. Where the first message of a TCP connection is too short,
/// libfabric 1.17 reads `errno`, which that read has not set. If an earlier call of ours has left EAGAIN there, it
/// neither closes the connection nor reads it again: its descriptor is in use until the process ends.
fn forget_errno() {
    // SAFETY: the C library's own, of this thread.
    unsafe { *libc::__errno_location() = 0 };
}

impl Drop for Lane {
    fn drop(&mut self) {
        // An endpoint that stays open goes on writing to what is posted.
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
