//! The loaded library: its version and its errors.

use crate::error::CallError;
use libfabric_sys::Exports;
use std::ffi::CStr;
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

impl Libfabric {
    pub(super) fn from_exports(exports: Exports) -> Libfabric {
        // SAFETY: fi_version has no preconditions.
        let packed = unsafe { (exports.fi_version)() };
        Libfabric {
            exports,
            version: (packed >> 16, packed & 0xffff),
        }
    }

    /// The library's version: major, minor.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The version as text.
    #[must_use]
    pub fn version_text(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// The error for a negative return of a libfabric function.
    #[must_use]
    pub fn error(&self, call: &'static str, returned: i64) -> CallError {
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
