//! Protection of a call against `pthread_cancel`.
//!
//! `pthread_cancel` ends a thread at a cancellation point of the C library, by unwinding its stack. Rust frames cannot
//! be unwound in this way: the process would abort. POSIX has a cancellation state for each thread, and changing it
//! requires no system call.

use std::ffi::c_int;
use std::marker::PhantomData;

/// `PTHREAD_CANCEL_DISABLE`, in glibc and in musl.
const DISABLE: c_int = 1;

// SAFETY: declared as pthread_setcancelstate(3) in glibc and musl.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Disables cancellation of the calling thread until it is dropped. A request that arrives meanwhile takes effect at
/// the next cancellation point after that.
#[derive(Debug)]
pub struct Shield {
    before: c_int,
    /// Not `Send`: the state belongs to the thread.
    _here: PhantomData<*const ()>,
}

impl Shield {
    /// Disables cancellation.
    pub fn raise() -> Self {
        let mut before = DISABLE;
        // SAFETY: it writes one number; the state is valid.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self {
            before,
            _here: PhantomData,
        }
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        let mut now = DISABLE;
        // SAFETY: as above; the thread had this state before.
        unsafe { pthread_setcancelstate(self.before, &raw mut now) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The previous state is restored, also when calls are nested.
    #[test]
    fn the_previous_state_is_restored() {
        let outer = Shield::raise();
        let inner = Shield::raise();
        assert_eq!(inner.before, DISABLE);
        assert_ne!(outer.before, DISABLE);
        drop(inner);
        assert_eq!(Shield::raise().before, DISABLE);
        let enabled = outer.before;
        drop(outer);
        assert_eq!(Shield::raise().before, enabled);
    }
}
