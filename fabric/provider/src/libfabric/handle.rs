//! An open libfabric object, closed when dropped.

use libfabric_sys as sys;
use std::ptr::NonNull;

/// An open libfabric object. `T` is one of the `fid_*` structs, all of which begin with a `fid`.
#[derive(Debug)]
pub(crate) struct Handle<T> {
    object: NonNull<T>,
    is_open: bool,
}

impl<T> Handle<T> {
    /// Takes over an object that libfabric has just opened.
    ///
    /// # Safety
    /// The pointer comes from a successful open call, is not null, and is closed by no other code. The object
    /// that it was opened on must be dropped after it.
    pub(crate) unsafe fn from_open(object: *mut T) -> Handle<T> {
        let object =
            NonNull::new(object).expect("libfabric reported success but returned a null object");
        Handle {
            object,
            is_open: true,
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }

    /// The `fid` that all objects begin with.
    pub(crate) fn as_fid(&self) -> *mut sys::fid {
        self.object.as_ptr().cast()
    }

    /// Closes the object. Returns false if libfabric refuses: then it stays open until the process ends, and so
    /// does its use of memory that it knows. The handle must not be used afterwards.
    pub(crate) fn close(&mut self) -> bool {
        if !self.is_open {
            return true;
        }
        self.is_open = false;
        // SAFETY: the object was open until now, and is closed only here.
        unsafe { sys::fi_close(self.as_fid()) == 0 }
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // If libfabric refuses (busy), the object is leaked: there is no other way to release it.
        self.close();
    }
}
