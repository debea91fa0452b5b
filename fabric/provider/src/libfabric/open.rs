//! Opens libfabric's objects, each from the objects opened before it.
//!
//! A rail has its own fabric, domain, completion queue, address vector and endpoint, so that one rail cannot
//! block another.

use super::array::Array;
use super::handle::Handle;
use super::info::Info;
use super::library::Libfabric;
use crate::error::CallError;
use libfabric_sys as sys;
use std::os::fd::RawFd;
use std::ptr;

pub(super) fn fabric(
    library: &Libfabric,
    info: &Info,
) -> Result<Handle<sys::fid_fabric>, CallError> {
    let mut fabric = ptr::null_mut();
    // SAFETY: the info is complete, as libfabric returned it.
    unsafe {
        let attributes = (*info.as_ptr()).fabric_attr;
        let returned = (library.exports.fi_fabric)(attributes, &raw mut fabric, ptr::null_mut());
        library.zero_or_error("fi_fabric", returned)?;
        Ok(Handle::from_open(fabric))
    }
}

pub(super) fn domain(
    library: &Libfabric,
    fabric: &Handle<sys::fid_fabric>,
    info: &Info,
) -> Result<Handle<sys::fid_domain>, CallError> {
    let mut domain = ptr::null_mut();
    // SAFETY: the fabric was opened with this info.
    unsafe {
        let returned = sys::fi_domain(
            fabric.as_ptr(),
            info.as_ptr(),
            &raw mut domain,
            ptr::null_mut(),
        );
        library.zero_or_error("fi_domain", returned)?;
        Ok(Handle::from_open(domain))
    }
}

/// Opens a completion queue; if `wakes`, with a descriptor to wait for, else it must be polled.
pub(super) fn queue(
    library: &Libfabric,
    domain: &Handle<sys::fid_domain>,
    size: usize,
    wakes: bool,
) -> Result<Handle<sys::fid_cq>, CallError> {
    let mut attributes = sys::fi_cq_attr {
        size,
        format: sys::FI_CQ_FORMAT_MSG,
        wait_obj: match wakes {
            true => sys::FI_WAIT_FD,
            false => sys::FI_WAIT_NONE,
        },
        ..Default::default()
    };
    let mut queue = ptr::null_mut();
    // SAFETY: the attributes live through the call.
    unsafe {
        let returned = sys::fi_cq_open(
            domain.as_ptr(),
            &raw mut attributes,
            &raw mut queue,
            ptr::null_mut(),
        );
        library.zero_or_error("fi_cq_open", returned)?;
        Ok(Handle::from_open(queue))
    }
}

/// Opens the event queue of the device.
pub(super) fn events(
    library: &Libfabric,
    fabric: &Handle<sys::fid_fabric>,
    wakes: bool,
) -> Result<Handle<sys::fid_eq>, CallError> {
    let mut attributes = sys::fi_eq_attr {
        wait_obj: match wakes {
            true => sys::FI_WAIT_FD,
            false => sys::FI_WAIT_NONE,
        },
        ..Default::default()
    };
    let mut events = ptr::null_mut();
    // SAFETY: the attributes live through the call.
    unsafe {
        let returned = sys::fi_eq_open(
            fabric.as_ptr(),
            &raw mut attributes,
            &raw mut events,
            ptr::null_mut(),
        );
        library.zero_or_error("fi_eq_open", returned)?;
        Ok(Handle::from_open(events))
    }
}

/// The descriptor of a queue that was opened with `FI_WAIT_FD`.
pub(super) fn wait_fd<T>(library: &Libfabric, queue: &Handle<T>) -> Result<RawFd, CallError> {
    let mut fd: RawFd = -1;
    // SAFETY: the queue was opened with FI_WAIT_FD, so FI_GETWAIT writes one int.
    let returned = unsafe {
        let at = (&raw mut fd).cast();
        sys::fi_control(queue.as_fid(), sys::FI_GETWAIT as i32, at)
    };
    library.zero_or_error("fi_control", returned)?;
    Ok(fd)
}

/// Initial capacity of an address vector; it grows. It is small because providers touch the memory of all
/// entries when they open it.
const ADDRESSES_EXPECTED: usize = 64;

pub(super) fn addresses(
    library: &Libfabric,
    domain: &Handle<sys::fid_domain>,
    is_map: bool,
) -> Result<Handle<sys::fid_av>, CallError> {
    let mut attributes = sys::fi_av_attr {
        type_: match is_map {
            true => sys::FI_AV_MAP,
            false => sys::FI_AV_TABLE,
        },
        count: ADDRESSES_EXPECTED,
        ..Default::default()
    };
    let mut addresses = ptr::null_mut();
    // SAFETY: the attributes live through the call.
    unsafe {
        let returned = sys::fi_av_open(
            domain.as_ptr(),
            &raw mut attributes,
            &raw mut addresses,
            ptr::null_mut(),
        );
        library.zero_or_error("fi_av_open", returned)?;
        Ok(Handle::from_open(addresses))
    }
}

pub(super) fn endpoint(
    library: &Libfabric,
    domain: &Handle<sys::fid_domain>,
    info: &Info,
    queue: &Handle<sys::fid_cq>,
    addresses: &Handle<sys::fid_av>,
    events: Option<&Handle<sys::fid_eq>>,
) -> Result<Handle<sys::fid_ep>, CallError> {
    let mut endpoint = ptr::null_mut();
    let both = u64::from(sys::FI_TRANSMIT) | u64::from(sys::FI_RECV);
    // SAFETY: all objects belong to one domain, which was opened with this info.
    unsafe {
        let returned = sys::fi_endpoint(
            domain.as_ptr(),
            info.as_ptr(),
            &raw mut endpoint,
            ptr::null_mut(),
        );
        library.zero_or_error("fi_endpoint", returned)?;
        let endpoint = Handle::from_open(endpoint);
        let returned = sys::fi_ep_bind(endpoint.as_ptr(), queue.as_fid(), both);
        library.zero_or_error("fi_ep_bind", returned)?;
        let returned = sys::fi_ep_bind(endpoint.as_ptr(), addresses.as_fid(), 0);
        library.zero_or_error("fi_ep_bind", returned)?;
        if let Some(events) = events {
            // A provider without events refuses the queue. The refusal is ignored: no event is lost.
            sys::fi_ep_bind(endpoint.as_ptr(), events.as_fid(), 0);
        }
        library.zero_or_error("fi_enable", sys::fi_enable(endpoint.as_ptr()))?;
        Ok(endpoint)
    }
}

/// Registers the buffers once, for providers that require it.
pub(super) fn registration(
    library: &Libfabric,
    domain: &Handle<sys::fid_domain>,
    buffers: &Array<u8>,
) -> Result<Handle<sys::fid_mr>, CallError> {
    let access = u64::from(sys::FI_SEND) | u64::from(sys::FI_RECV);
    let mut registration = ptr::null_mut();
    // SAFETY: the buffers outlive the registration: `Lane` declares them after it.
    unsafe {
        let returned = sys::fi_mr_reg(
            domain.as_ptr(),
            buffers.at(0).cast(),
            buffers.length(),
            access,
            0,
            0,
            0,
            &raw mut registration,
            ptr::null_mut(),
        );
        library.zero_or_error("fi_mr_reg", returned)?;
        Ok(Handle::from_open(registration))
    }
}
