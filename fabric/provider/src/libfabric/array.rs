//! Memory that a provider writes to while this process also holds it.

use std::ptr::{self, NonNull};

/// A fixed array that the provider writes to. It is accessed through pointers only, never through a reference.
#[derive(Debug)]
pub(super) struct Array<T> {
    first: NonNull<T>,
    length: usize,
    /// The memory is never freed, because the provider may still write to it.
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

    /// Never frees the memory. Required if the object that knows its address could not be closed.
    pub(super) fn leak(&mut self) {
        self.leaked = true;
    }

    pub(super) fn at(&self, index: usize) -> *mut T {
        assert!(
            index < self.length,
            "index {index} is outside of the array's {} elements",
            self.length
        );
        // SAFETY: the index was checked.
        unsafe { self.first.as_ptr().add(index) }
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        if self.leaked {
            return;
        }
        let items = ptr::slice_from_raw_parts_mut(self.first.as_ptr(), self.length);
        // SAFETY: the box of this length was leaked in `new` and is taken back once. The endpoint that knew its
        // address is closed by now; otherwise `Lane` has called `leak`.
        drop(unsafe { Box::from_raw(items) });
    }
}
