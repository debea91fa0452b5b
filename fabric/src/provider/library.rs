//! The loaded library, and the queries that need no open object.

use super::info::Info;
use super::table;
use crate::error::CallError;
use crate::net::NetKind;
use libfabric_sys::{Exports, LoadError};
use std::ffi::{CStr, OsStr};
use std::fmt;
use std::net::Ipv4Addr;

/// A loaded libfabric. Copies refer to the same library, which stays loaded until the process ends.
#[derive(Debug, Clone, Copy)]
pub struct Libfabric {
    pub(crate) exports: Exports,
    version: (u32, u32),
}

/// A local network interface that is up and has an IPv4 address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The kernel's name, such as `eth0`.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.address)
    }
}

/// Loads libfabric: the library that `MUSTER_LIBFABRIC` names, else `libfabric.so.1`.
///
/// This also initialises its providers, which takes 0.1 to 0.3 s. A process that forks workers calls this
/// before it forks, so that the workers start at once.
///
/// # Errors
/// See [`LoadError`].
pub fn load() -> Result<Libfabric, LoadError> {
    Exports::load().map(Libfabric::from_exports)
}

/// Loads the libfabric of this name or path; see [`load`].
///
/// # Errors
/// See [`LoadError`].
pub fn load_from(library: &OsStr) -> Result<Libfabric, LoadError> {
    Exports::load_from(library).map(Libfabric::from_exports)
}

impl Libfabric {
    fn from_exports(exports: Exports) -> Libfabric {
        // SAFETY: fi_version has no preconditions.
        let packed = unsafe { (exports.fi_version)() };
        let library = Libfabric {
            exports,
            version: (packed >> 16, packed & 0xffff),
        };
        // The first query initialises the providers. An empty result is an error only for a caller that opens a
        // rail.
        let _ = library.interfaces();
        library
    }

    /// The library's version: major, minor.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
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
        let any =
            |rows: &[&table::Row]| rows.iter().any(|row| Info::query(self, row, None).is_ok());
        let news = table::datagram(kind);
        let beats: Vec<&table::Row> = news.iter().map(|row| table::beats(row)).collect();
        any(&news) && any(&beats) && any(&table::bulk(kind))
    }

    pub(crate) fn version_text(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// The interfaces as text for error messages.
    pub(crate) fn known_interfaces(&self) -> String {
        let names: Vec<String> = self.interfaces().iter().map(Interface::to_string).collect();
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    }

    /// The error for a negative return of a libfabric function.
    pub(crate) fn error(&self, call: &'static str, returned: i64) -> CallError {
        let code = i32::try_from(returned.unsigned_abs()).unwrap_or(i32::MAX);
        // SAFETY: fi_strerror takes any number and returns a C string that is never freed.
        let text = unsafe { CStr::from_ptr((self.exports.fi_strerror)(code)) };
        CallError {
            call,
            code,
            text: text.to_string_lossy().into_owned(),
        }
    }

    /// Converts libfabric's usual return value (0, or a negative error number) to a result.
    pub(crate) fn zero_or_error(&self, call: &'static str, returned: i32) -> Result<(), CallError> {
        if returned == 0 {
            Ok(())
        } else {
            Err(self.error(call, i64::from(returned)))
        }
    }
}
