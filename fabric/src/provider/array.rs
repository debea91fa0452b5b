//! Memory that a provider writes to while we hold it.

use std::ptr::{self, NonNull};

/// A fixed array that the provider writes to: reached by pointers only, never by a reference.
#[derive(Debug)]
pub(super) struct Array<T> {
    first: NonNull<T>,
    length: usize,
    /// Somebody may write to it for ever.
    leaked: bool,
}

impl<T: Clone> Array<T> {
    pub(super) fn new(length: usize, value: T) -> Array<T> {
        let items = Box::leak(vec![value; length].into_boxed_slice());
        Array {
            first: NonNull::from(items).cast(),
            length,
            leaked: false,
        }
    }
}

impl<T> Array<T> {
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Never to be given back: what knows its address could not be closed.
    pub(super) fn leak(&mut self) {
        self.leaked = true;
    }

    pub(super) fn at(&self, index: usize) -> *mut T {
        assert!(index < self.length, "index {index} of {}", self.length);
        // SAFETY: within the array.
        unsafe { self.first.as_ptr().add(index) }
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        if self.leaked {
            return;
        }
        let items = ptr::slice_from_raw_parts_mut(self.first.as_ptr(), self.length);
        // SAFETY: leaked from a box of this length in `new`, and taken back once. The endpoint
        // that knew the address is closed by now, or `Lane` has the array leaked.
        drop(unsafe { Box::from_raw(items) });
    }
}
