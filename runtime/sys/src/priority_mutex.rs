//! A mutex whose holder runs at the priority of the highest thread that waits for it (`PTHREAD_PRIO_INHERIT`,
//! pthread_mutexattr_setprotocol(3p)).
//!
//! The agent's loop runs at real-time priority and shares data with threads that do not. With an ordinary mutex it
//! would wait until such a thread gets a processor, which can take arbitrarily long beside busy loops.

use std::cell::UnsafeCell;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::zero_or_code;

/// Data that such a mutex protects. A panic does not poison it.
pub struct PriorityMutex<T> {
    /// Boxed: a mutex in use must not move.
    raw: Box<UnsafeCell<libc::pthread_mutex_t>>,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the mutex accesses the value.
unsafe impl<T: Send> Send for PriorityMutex<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for PriorityMutex<T> {}

impl<T> PriorityMutex<T> {
    /// An unlocked mutex.
    ///
    /// # Errors
    /// The C library or the kernel does not support priority inheritance.
    pub fn new(value: T) -> io::Result<Self> {
        let raw = Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        // SAFETY: `attributes` is initialised by the first call; `raw` is valid and not used yet.
        unsafe {
            let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
            zero_or_code(libc::pthread_mutexattr_init(&raw mut attributes))?;
            let inherits = libc::pthread_mutexattr_setprotocol(
                &raw mut attributes,
                libc::PTHREAD_PRIO_INHERIT,
            );
            let made = zero_or_code(inherits).and_then(|()| {
                zero_or_code(libc::pthread_mutex_init(raw.get(), &raw const attributes))
            });
            libc::pthread_mutexattr_destroy(&raw mut attributes);
            made?;
        }
        Ok(Self {
            raw,
            value: UnsafeCell::new(value),
        })
    }

    /// Waits for the mutex. A thread that holds it already waits forever, as with any mutex.
    pub fn lock(&self) -> PriorityGuard<'_, T> {
        // SAFETY: an initialised mutex that does not move. Locking a valid mutex cannot fail.
        let answer = unsafe { libc::pthread_mutex_lock(self.raw.get()) };
        debug_assert_eq!(answer, 0, "pthread_mutex_lock");
        PriorityGuard {
            mutex: self,
            _stays: PhantomData,
        }
    }
}

impl<T> std::fmt::Debug for PriorityMutex<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("PriorityMutex")
            .finish_non_exhaustive()
    }
}

impl<T> Drop for PriorityMutex<T> {
    fn drop(&mut self) {
        // SAFETY: there is no guard any more, so no thread holds it.
        unsafe { libc::pthread_mutex_destroy(self.raw.get()) };
    }
}

/// Holds the mutex until it is dropped.
#[derive(Debug)]
pub struct PriorityGuard<'a, T> {
    mutex: &'a PriorityMutex<T>,
    /// Not `Send`: only the thread that locked a mutex may unlock it.
    _stays: PhantomData<*const ()>,
}

impl<T> Deref for PriorityGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread holds the mutex.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for PriorityGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread holds the mutex, and the guard is borrowed mutably.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for PriorityGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: this thread holds the mutex, as a guard cannot be sent to another thread.
        unsafe { libc::pthread_mutex_unlock(self.mutex.raw.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        const ROUNDS: u32 = 20_000;
        let count = PriorityMutex::new(0u32).unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut count = count.lock();
                        let seen = *count;
                        std::hint::black_box(seen);
                        *count = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock(), 4 * ROUNDS);
    }
}
