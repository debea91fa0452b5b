//! Addresses that only the node of a lane knows.

use super::super::table::Addressing;
use super::Lane;
use crate::endpoint_name::{EndpointName, NAME_MAX};
use crate::error::CallError;
use libfabric_sys as sys;

impl<T: Copy + Default> Lane<T> {
    /// Whether only this node knows the address of this lane, see [`Lane::name`].
    pub fn has_name(&self) -> bool {
        matches!(self.row.addressing, Addressing::Named | Addressing::Told)
    }

    /// The provider's address of this lane, for [`Lane::insert_name`] of the peers.
    ///
    /// # Errors
    /// libfabric does not return it.
    pub fn name(&self) -> Result<EndpointName, CallError> {
        let name = EndpointName::new(&self.name_bytes()?);
        name.ok_or_else(|| self.library.error("fi_getname", i64::from(libc::EINVAL)))
    }

    fn name_bytes(&self) -> Result<Vec<u8>, CallError> {
        let mut name = vec![0_u8; NAME_MAX];
        let mut length = name.len();
        // SAFETY: libfabric writes at most `length` bytes.
        let returned = unsafe {
            let at = name.as_mut_ptr().cast();
            sys::fi_getname(self.endpoint.as_fid(), at, &raw mut length)
        };
        self.library.zero_or_error("fi_getname", returned)?;
        name.truncate(length);
        Ok(name)
    }

    /// Inserts an address that a peer knows as its own; returns the handle to use in [`Lane::send`].
    ///
    /// # Errors
    /// The address is longer than those of this provider, or the provider refuses it.
    pub fn insert_name(&mut self, name: &EndpointName) -> Result<u64, CallError> {
        let name = name.padded(self.name_bytes()?.len());
        let name =
            name.ok_or_else(|| self.library.error("fi_av_insert", i64::from(libc::EINVAL)))?;
        self.insert_bytes(name.as_ptr().cast())
    }
}
