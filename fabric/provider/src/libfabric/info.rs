//! The offers of libfabric's providers: `fi_getinfo` and the list that it returns.

use super::device;
use super::interfaces::rdma_device_of;
use super::library::{Interface, Libfabric};
use super::rescan;
use super::table::{Addressing, Row};
use crate::error::CallError;
use crate::net_kind::NetKind;
use libfabric_sys as sys;
use std::ffi::{CStr, CString};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ptr::{self, NonNull};

/// The API version to request, independent of the library's own: the oldest that is supported.
const API: u32 = sys::fi_version_of(1, 17);

/// Modes of memory registration that [`Lane`](super::Lane) supports.
const REGISTRATION: u32 =
    sys::FI_MR_LOCAL | sys::FI_MR_ALLOCATED | sys::FI_MR_VIRT_ADDR | sys::FI_MR_PROV_KEY;

/// The modes for a kind of net. cxi refuses a query without `FI_MR_ENDPOINT` (`fi_cxi(7)`), which concerns registered
/// buffers only; it requires none.
fn registration(net: NetKind) -> u32 {
    match net {
        NetKind::Cxi => REGISTRATION | sys::FI_MR_ENDPOINT,
        _ => REGISTRATION,
    }
}

/// A list of at least one offer; freed when dropped.
#[derive(Debug)]
pub(crate) struct Info {
    library: Libfabric,
    first: NonNull<sys::fi_info>,
}

impl Info {
    /// Queries the provider of `row`; with a source, for an endpoint that is bound to that address.
    pub(crate) fn query(
        library: &Libfabric,
        row: &Row,
        source: Option<SocketAddrV4>,
    ) -> Result<Info, CallError> {
        let flags = if source.is_some() { sys::FI_SOURCE } else { 0 };
        Info::get(library, row, source, flags, sys::FI_TC_UNSPEC)
    }

    /// Queries for an endpoint of this traffic class. If there is none, returns one without a class, and false.
    pub(super) fn query_class(
        library: &Libfabric,
        row: &Row,
        source: SocketAddrV4,
        class: u32,
    ) -> Result<(Info, bool), CallError> {
        if let Ok(info) = Info::get(library, row, Some(source), sys::FI_SOURCE, class) {
            return Ok((info, true));
        }
        Ok((Info::query(library, row, Some(source))?, false))
    }

    /// Returns the provider's own address of a node and a service on it.
    pub(crate) fn destination(
        library: &Libfabric,
        row: &Row,
        to: SocketAddrV4,
    ) -> Result<Vec<u8>, CallError> {
        let info = Info::get(library, row, Some(to), 0, sys::FI_TC_UNSPEC)?;
        // SAFETY: libfabric filled the info; the address is null or `dest_addrlen` bytes long.
        let address = unsafe {
            let info = info.first.as_ref();
            match info.dest_addr.is_null() {
                true => Vec::new(),
                false => std::slice::from_raw_parts(info.dest_addr.cast::<u8>(), info.dest_addrlen)
                    .to_vec(),
            }
        };
        match address.is_empty() {
            true => Err(no_data(library)),
            false => Ok(address),
        }
    }

    /// Whether a provider of this name is built in, with or without a device.
    pub(crate) fn has_provider(library: &Libfabric, name: &str) -> bool {
        let mut first = ptr::null_mut();
        // SAFETY: null hints are allowed; the answer is written to `first`.
        let returned = unsafe {
            let flags = sys::FI_PROV_ATTR_ONLY;
            (library.exports.fi_getinfo)(
                API,
                ptr::null(),
                ptr::null(),
                flags,
                ptr::null(),
                &raw mut first,
            )
        };
        let Some(first) = NonNull::new(first).filter(|_| returned == 0) else {
            return false;
        };
        let info = Info {
            library: *library,
            first,
        };
        let mut next = info.first.as_ptr();
        while let Some(one) = NonNull::new(next) {
            // SAFETY: the pointer is in libfabric's list, which lives as long as `info`; its provider's
            // name is a C string or null.
            unsafe {
                next = one.as_ref().next;
                let of_provider = one.as_ref().fabric_attr;
                if of_provider.is_null() || (*of_provider).prov_name.is_null() {
                    continue;
                }
                if CStr::from_ptr((*of_provider).prov_name).to_bytes() == name.as_bytes() {
                    return true;
                }
            }
        }
        false
    }

    fn get(
        library: &Libfabric,
        row: &Row,
        source: Option<SocketAddrV4>,
        flags: u64,
        class: u32,
    ) -> Result<Info, CallError> {
        let mut hints = Info::hints(library, row)?;
        hints.set_class(class);
        let device = source.and_then(|source| match row.addressing {
            Addressing::Told => rdma_device_of(*source.ip()).map(|device| device + "-dgram"),
            Addressing::Named => Info::device_of(library, row, *source.ip()).ok(),
            Addressing::Ip | Addressing::Local => None,
        });
        device
            .into_iter()
            .for_each(|device| hints.set_device(device));
        // Only the hints name the device: what a node and a service mean differs between these providers.
        let (source, flags) = match row.addressing {
            Addressing::Named => (None, 0),
            _ => (source, flags),
        };
        let node = source.map(|source| c_string(source.ip().to_string()));
        let service = source.map(|source| c_string(source.port().to_string()));
        let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |c| c.as_ptr());
        let flags = flags | rescan::flag(library, row);
        let mut first = ptr::null_mut();
        // SAFETY: the texts and the hints outlive the call; the answer is written to `first`.
        let returned = unsafe {
            (library.exports.fi_getinfo)(
                API,
                pointer(&node),
                pointer(&service),
                flags,
                hints.first.as_ptr(),
                &raw mut first,
            )
        };
        library.zero_or_error("fi_getinfo", returned)?;
        let first = NonNull::new(first).ok_or_else(|| no_data(library))?;
        Ok(Info {
            library: *library,
            first,
        })
    }

    fn hints(library: &Libfabric, row: &Row) -> Result<Info, CallError> {
        // SAFETY: duplicating null is libfabric's way to allocate an empty info with all its attribute structs.
        let empty = unsafe { (library.exports.fi_dupinfo)(ptr::null()) };
        let first = NonNull::new(empty).ok_or_else(|| library.error("fi_dupinfo", 12))?;
        let hints = Info {
            library: *library,
            first,
        };
        let provider = c_string(row.provider(library.version()).to_owned());
        // SAFETY: the info was just allocated with its attribute structs, and no other code has a pointer to
        // it. The name must come from malloc (strdup), because fi_freeinfo frees it.
        unsafe {
            let info = &mut *first.as_ptr();
            info.caps = u64::from(sys::FI_MSG);
            info.mode = sys::FI_CONTEXT | sys::FI_CONTEXT2 | sys::FI_MSG_PREFIX;
            info.addr_format = row.address_format;
            (*info.ep_attr).type_ = row.endpoint;
            (*info.domain_attr).mr_mode = registration(row.net) as i32;
            (*info.domain_attr).threading = sys::FI_THREAD_DOMAIN;
            if row.net == NetKind::Psm {
                // Otherwise the provider moves messages only while the host calls it, and wakes nobody.
                (*info.domain_attr).data_progress = sys::FI_PROGRESS_AUTO;
                (*info.domain_attr).control_progress = sys::FI_PROGRESS_AUTO;
            }
            (*info.fabric_attr).prov_name = libc::strdup(provider.as_ptr());
        }
        Ok(hints)
    }

    /// Requests the device of this name. An IP address does not tell providers with addresses of their own kind which
    /// of several devices is meant.
    fn set_device(&mut self, device: String) {
        let name = c_string(device);
        // SAFETY: as in `hints`: no other code has a pointer to it, and the name is freed with the info.
        unsafe { (*self.first.as_ref().domain_attr).name = libc::strdup(name.as_ptr()) }
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::fi_info {
        self.first.as_ptr()
    }

    /// The traffic class of the first offer; `FI_TC_UNSPEC` if the provider reports none.
    pub(super) fn class(&self) -> u32 {
        // SAFETY: as in `offer`.
        unsafe { (*self.first.as_ref().tx_attr).tclass }
    }

    /// Sets the traffic class of objects that are opened with the first offer.
    pub(super) fn set_class(&mut self, class: u32) {
        // SAFETY: as in `offer`; no other code reads it, since `self` is borrowed mutably.
        unsafe { (*self.first.as_ref().tx_attr).tclass = class }
    }

    /// The first offer.
    pub(crate) fn offer(&self) -> Offer {
        // SAFETY: libfabric fills every attribute struct of an info that it returns, and no code changes them
        // while `self` is borrowed.
        unsafe {
            let info = self.first.as_ref();
            Offer {
                message_max: (*info.ep_attr).max_msg_size,
                inject_max: (*info.tx_attr).inject_size,
                sends_max: (*info.tx_attr).size,
                receives_max: (*info.rx_attr).size,
                registers_memory: (*info.domain_attr).mr_mode as u32 & sys::FI_MR_LOCAL != 0,
                maps_addresses: (*info.domain_attr).av_type == sys::FI_AV_MAP,
                prefix: match info.mode & sys::FI_MSG_PREFIX {
                    0 => 0,
                    _ => (*info.ep_attr).msg_prefix_size,
                },
            }
        }
    }

    /// The provider's name of the device that the interface with this address belongs to.
    ///
    /// # Errors
    /// The devices of which none can be told to be the right one; empty if the provider offers no device.
    pub(super) fn device_of(
        library: &Libfabric,
        row: &Row,
        address: Ipv4Addr,
    ) -> Result<String, Vec<String>> {
        let info = Info::query(library, row, None).map_err(|_| Vec::new())?;
        device::of(info.devices(), address)
    }

    /// The names of the offers' devices, each once.
    fn devices(&self) -> Vec<String> {
        let mut devices: Vec<String> = Vec::new();
        let mut next = self.first.as_ptr();
        while let Some(info) = NonNull::new(next) {
            // SAFETY: as in `interfaces`.
            unsafe {
                next = info.as_ref().next;
                let name = (*info.as_ref().domain_attr).name;
                if !name.is_null() {
                    let name = CStr::from_ptr(name).to_string_lossy().into_owned();
                    if !devices.contains(&name) {
                        devices.push(name);
                    }
                }
            }
        }
        devices
    }

    /// The interfaces of the offers. IPv6 offers are skipped.
    pub(crate) fn interfaces(&self) -> Vec<Interface> {
        let mut interfaces: Vec<Interface> = Vec::new();
        let mut next = self.first.as_ptr();
        while let Some(info) = NonNull::new(next) {
            // SAFETY: the pointer is in libfabric's list, which lives as long as `self`; its domain's
            // name is a C string or null.
            unsafe {
                let info = info.as_ref();
                next = info.next;
                let name = (*info.domain_attr).name;
                if let (Some(address), false) = (source_address(info), name.is_null()) {
                    let name = CStr::from_ptr(name).to_string_lossy().into_owned();
                    interfaces.push(Interface { name, address });
                }
            }
        }
        interfaces
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: the list came from this library and is freed once.
        unsafe { (self.library.exports.fi_freeinfo)(self.first.as_ptr()) }
    }
}

/// Limits and requirements of one offer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    /// Longest message, bytes.
    pub(crate) message_max: usize,
    /// Longest message that the provider copies on send (`fi_inject`), bytes.
    pub(crate) inject_max: usize,
    /// Sends that may be in progress at once.
    pub(crate) sends_max: usize,
    /// Receives that may be posted at once.
    pub(crate) receives_max: usize,
    /// Whether buffers must be registered.
    pub(crate) registers_memory: bool,
    /// Whether the provider prefers address vectors of the type `FI_AV_MAP`.
    pub(crate) maps_addresses: bool,
    /// Space that the provider requires in front of each message, bytes.
    pub(crate) prefix: usize,
}

/// The IPv4 address that an offer is bound to.
///
/// # Safety
/// `src_addr`, unless null, points to `src_addrlen` bytes.
unsafe fn source_address(info: &sys::fi_info) -> Option<Ipv4Addr> {
    if info.src_addr.is_null() || info.src_addrlen < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: the length was checked; libfabric does not promise alignment.
    let address = unsafe { ptr::read_unaligned(info.src_addr.cast::<libc::sockaddr_in>()) };
    let is_ipv4 = i32::from(address.sin_family) == libc::AF_INET;
    is_ipv4.then(|| Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
}

fn no_data(library: &Libfabric) -> CallError {
    library.error("fi_getinfo", i64::from(sys::FI_ENODATA))
}

fn c_string(text: String) -> CString {
    CString::new(text).expect("numbers and provider names contain no zero byte")
}
