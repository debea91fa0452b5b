//! An open libfabric object, closed when dropped.

use libfabric_sys as sys;
use std::ptr::NonNull;

/// A libfabric object. `T` is one of the `fid_*` structs, all of which begin with a `fid`.
#[derive(Debug)]
pub(crate) struct Handle<T>(NonNull<T>);

impl<T> Handle<T> {
    /// Takes over an object that libfabric has just opened.
    ///
    /// # Safety
    /// The pointer comes from a successful open call, is not null, and is closed by nobody else.
    /// What the object was opened on must be dropped after it.
    pub(crate) unsafe fn from_open(object: *mut T) -> Handle<T> {
        Handle(NonNull::new(object).expect("libfabric opened an object and returned none"))
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// The object as what all objects have in common.
    pub(crate) fn as_fid(&self) -> *mut sys::fid {
        self.0.as_ptr().cast()
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: open until now, and closed only here. A refusal (busy) leaks the object, which is
        // all that can be done with it.
        unsafe { sys::fi_close(self.as_fid()) };
    }
}
