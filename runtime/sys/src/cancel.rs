//! Not being cancelled in the middle of something.
//!
//! `pthread_cancel` ends a thread where it waits in the C library, by unwinding its stack. Frames of Rust cannot be
//! unwound so: the process would be aborted. POSIX has a state for that, which is one of the thread and costs no
//! system call.

use std::ffi::c_int;
use std::marker::PhantomData;

/// `PTHREAD_CANCEL_DISABLE`, in glibc and in musl.
const DISABLE: c_int = 1;

// SAFETY: the declaration of pthread_setcancelstate(3), as glibc and musl have it.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// While it lives the calling thread is not cancelled; who was asked to end meanwhile ends at the next cancellation
/// point after it.
#[derive(Debug)]
pub struct Shield {
    before: c_int,
    /// The state is the thread's.
    _here: PhantomData<*const ()>,
}

impl Shield {
    /// From now on.
    pub fn raise() -> Self {
        let mut before = DISABLE;
        // SAFETY: it writes one number; the state is one that there is.
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
        // SAFETY: as above; the state is one that the thread had before.
        unsafe { pthread_setcancelstate(self.before, &raw mut now) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was so before is so after, also where one call is made inside another.
    #[test]
    fn the_state_before_comes_back() {
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
