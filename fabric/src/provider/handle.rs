//! An open libfabric object, closed when dropped.

use libfabric_sys as sys;
use std::ptr::NonNull;

/// A libfabric object. `T` is one of the `fid_*` structs, all of which begin with a `fid`.
#[derive(Debug)]
pub(crate) struct Handle<T> {
    object: NonNull<T>,
    is_open: bool,
}

impl<T> Handle<T> {
    /// Takes over an object that libfabric has just opened.
    ///
    /// # Safety
    /// The pointer comes from a successful open call, is not null, and is closed by nobody else.
    /// What the object was opened on must be dropped after it.
    pub(crate) unsafe fn from_open(object: *mut T) -> Handle<T> {
        let object = NonNull::new(object).expect("libfabric opened an object and returned none");
        Handle {
            object,
            is_open: true,
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }

    /// The object as what all objects have in common.
    pub(crate) fn as_fid(&self) -> *mut sys::fid {
        self.object.as_ptr().cast()
    }

    /// Closes the object. False if it refuses: then it stays open for good, with all that it knows.
    /// To be used no more.
    pub(crate) fn close(&mut self) -> bool {
        if !self.is_open {
            return true;
        }
        self.is_open = false;
        // SAFETY: open until now, and closed only here.
        unsafe { sys::fi_close(self.as_fid()) == 0 }
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // A refusal (busy) leaks the object, which is all that can be done with it.
        self.close();
    }
}
