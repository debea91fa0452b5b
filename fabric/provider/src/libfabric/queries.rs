//! Queries that need no open object: what libfabric offers on this machine.

use super::defaults;
use super::info::Info;
use super::interfaces::has_rdma_devices;
use super::library::{Interface, Libfabric};
use super::table::{self, Row};
use crate::error::CallError;
use crate::net_kind::NetKind;
use libfabric_sys::{Exports, LoadError};
use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Loads libfabric: the library that `MUSTER_LIBFABRIC` names, else `libfabric.so.1`.
///
/// This also initialises its providers, which takes 0.1 to 0.3 s.
///
/// # Errors
/// See [`LoadError`].
pub fn load() -> Result<Libfabric, LoadError> {
    defaults::set();
    Exports::load().map(initialised)
}

/// Loads libfabric as [`load`] does, in a process that forks workers: they start at once, as its providers are
/// initialised before.
///
/// Not so on a machine with RDMA devices: a provider opens them as it is initialised, and the kernel refuses a process
/// what another one has opened, also after a fork (`uverbs_write`, `ucma_write`: "changed security contexts"). There
/// each worker initialises the providers, see [`Libfabric::initialise`].
///
/// # Errors
/// See [`LoadError`].
pub fn load_before_fork() -> Result<Libfabric, LoadError> {
    match has_rdma_devices() {
        false => load(),
        true => {
            defaults::set();
            Exports::load().map(Libfabric::from_exports)
        }
    }
}

/// Loads the libfabric of this name or path; see [`load`].
///
/// # Errors
/// See [`LoadError`].
pub fn load_from(library: &OsStr) -> Result<Libfabric, LoadError> {
    defaults::set();
    Exports::load_from(library).map(initialised)
}

fn initialised(exports: Exports) -> Libfabric {
    let library = Libfabric::from_exports(exports);
    library.initialise();
    library
}

/// Asks the provider of `row` for an endpoint at this address.
///
/// # Errors
/// The provider offers none.
pub fn offers(library: &Libfabric, row: &Row, source: SocketAddrV4) -> Result<(), CallError> {
    Info::query(library, row, Some(source)).map(drop)
}

/// The provider's name of the device that the interface with this address belongs to.
///
/// # Errors
/// The devices of which none can be told to be the right one; empty if the provider offers no device.
pub fn provider_device(
    library: &Libfabric,
    row: &Row,
    address: Ipv4Addr,
) -> Result<String, Vec<String>> {
    Info::device_of(library, row, address)
}

/// Whether a provider of this name is built in, with or without a device.
#[must_use]
pub fn has_provider(library: &Libfabric, name: &str) -> bool {
    Info::has_provider(library, name)
}

impl Libfabric {
    /// Initialises the providers, if that was not done before: the first query does. An empty result is an error only
    /// for a caller that opens a rail.
    pub fn initialise(&self) {
        let _ = self.interfaces();
    }

    /// The interfaces that a rail can be on, loopback last. Empty if there is none, or if libfabric has no
    /// provider for IP.
    #[must_use]
    pub fn interfaces(&self) -> Vec<Interface> {
        let row = table::datagram(NetKind::Udp)[0];
        let Ok(info) = Info::query(self, row, None) else {
            return Vec::new();
        };
        let mut interfaces: Vec<Interface> = info.interfaces();
        interfaces.sort_by_key(|interface| interface.address.is_loopback());
        interfaces
    }

    /// Whether this machine has providers for rails of this kind: for news, for beats, and for bulk messages.
    #[must_use]
    pub fn serves(&self, kind: NetKind) -> bool {
        let any = |rows: &[&Row]| rows.iter().any(|row| Info::query(self, row, None).is_ok());
        let news = table::datagram(kind);
        let beats: Vec<&Row> = news.iter().map(|row| table::beats(row)).collect();
        any(&news) && any(&beats) && any(&table::bulk(kind))
    }

    /// The interfaces as text for error messages.
    #[must_use]
    pub fn known_interfaces(&self) -> String {
        let names: Vec<String> = self.interfaces().iter().map(Interface::to_string).collect();
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    }
}
