//! A futex word that the kernel releases when the thread that holds it ends.
//!
//! The thread registers a robust list with the kernel. When the thread ends, the kernel marks each word of the list
//! and wakes its waiters. It does this before it tears down the address space, and so this reports an end faster than
//! any other mechanism: 0.1 ms, where a pidfd takes 80 ms per resident gigabyte. The list's head is in the shared
//! state table, because private memory may be reaped first when memory runs out.
//!
//! There are two ways to register. `hold_by_list` replaces the thread's whole robust list, and may be used **only in a
//! thread that the library owns**: elsewhere it destroys the recovery of the application's own robust mutexes.
//! `hold_by_mutex` goes through the C library and is safe in any thread, but only that thread can release the word.
//!
//! The word reports that a *thread* ended, never that a process failed: exec, `pthread_exit`, an
//! orderly exit and a crash look alike.
//!
//! ```text
//! offset in the line   0..48  futex word (first word of the mutex, when there is one)
//!                         64  list node: next
//!                         72  list head: next, futex offset, pending
//! ```

use std::io;
use std::sync::atomic::Ordering;

use super::memory::SharedMap;
use super::{futex, zero_or_code};

/// Bytes from the start of a line to its list node.
const NODE: usize = 64;
/// Bytes from the start of a line to its list head.
const HEAD: usize = 72;
/// Bytes of `struct robust_list_head`.
const HEAD_SIZE: usize = 24;
/// Bytes of a line, from its start, that holding may write.
pub const LINE_USED: usize = HEAD + HEAD_SIZE;

const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= NODE);

/// Takes the word at `line` for the calling thread, by replacing that thread's robust list.
/// Only for a thread that the library owns; the mapping must outlive the hold.
pub fn hold_by_list(map: &SharedMap, line: usize) -> io::Result<()> {
    let node = map.at(line + NODE, 8) as u64;
    let head = map.at(line + HEAD, 8) as u64;
    let next = map.long(line + HEAD);
    let pending = map.long(line + HEAD + 16);
    next.store(head, Ordering::SeqCst);
    map.long(line + HEAD + 8)
        .store((NODE as u64).wrapping_neg(), Ordering::SeqCst);
    pending.store(0, Ordering::SeqCst);
    // SAFETY: `head` is a complete list head in memory that the caller keeps mapped; the library owns the
    // thread, so no list of the application is lost.
    let answer = unsafe { libc::syscall(libc::SYS_set_robust_list, head, HEAD_SIZE) };
    super::check("set_robust_list", answer)?;
    // If the thread is killed from here to the end, the kernel finds the word through `pending`.
    pending.store(node, Ordering::SeqCst);
    map.word(line)
        .store(thread_id() | futex::WAITERS, Ordering::SeqCst);
    map.long(line + NODE).store(head, Ordering::SeqCst);
    next.store(node, Ordering::SeqCst);
    pending.store(0, Ordering::SeqCst);
    Ok(())
}

/// Releases the word, wakes the watcher, and removes the list from the kernel.
/// Only for the thread that called `hold_by_list`.
pub fn release_by_list(map: &SharedMap, line: usize) {
    let head = map.at(line + HEAD, 8) as u64;
    let pending = map.long(line + HEAD + 16);
    pending.store(map.at(line + NODE, 8) as u64, Ordering::SeqCst);
    map.long(line + HEAD).store(head, Ordering::SeqCst);
    map.word(line).store(0, Ordering::SeqCst);
    pending.store(0, Ordering::SeqCst);
    // SAFETY: a null head is what a thread without robust mutexes has.
    unsafe { libc::syscall(libc::SYS_set_robust_list, 0usize, HEAD_SIZE) };
    futex::wake(map.word(line));
}

/// Takes the word at `line` for the calling thread through a process-shared robust mutex of the C
/// library, which links it into that thread's list beside the application's own.
/// Fails if the C library does not keep the owner in the mutex's first word.
pub fn hold_by_mutex(map: &SharedMap, line: usize) -> io::Result<()> {
    let mutex = map.at(line, 8).cast::<libc::pthread_mutex_t>();
    // SAFETY: the line is reserved for this process, large and aligned enough for a mutex (checked
    // above), and stays mapped while the mutex is held.
    unsafe {
        let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
        zero_or_code(libc::pthread_mutexattr_init(&raw mut attributes))?;
        zero_or_code(libc::pthread_mutexattr_setpshared(
            &raw mut attributes,
            libc::PTHREAD_PROCESS_SHARED,
        ))?;
        zero_or_code(libc::pthread_mutexattr_setrobust(
            &raw mut attributes,
            libc::PTHREAD_MUTEX_ROBUST,
        ))?;
        zero_or_code(libc::pthread_mutex_init(mutex, &raw const attributes))?;
        libc::pthread_mutexattr_destroy(&raw mut attributes);
        zero_or_code(libc::pthread_mutex_lock(mutex))?;
    }
    // No other thread locks this mutex, so the C library would not request a wake-up from the kernel.
    let before = map.word(line).fetch_or(futex::WAITERS, Ordering::SeqCst);
    if before & futex::OWNER == thread_id() {
        return Ok(());
    }
    map.word(line).store(before, Ordering::SeqCst);
    // SAFETY: this thread has just locked it.
    unsafe { libc::pthread_mutex_unlock(mutex) };
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this C library does not keep a mutex's owner in its first word; use the library's thread",
    ))
}

/// Releases a mutex. Fails (EPERM) in any thread except the one that holds it: then the line
/// stays linked into that thread's list, and must stay mapped and unused while the thread exists.
pub fn release_by_mutex(map: &SharedMap, line: usize) -> io::Result<()> {
    if map.word(line).load(Ordering::SeqCst) & futex::OWNER != thread_id() {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    // SAFETY: the calling thread holds this initialised mutex.
    unsafe { zero_or_code(libc::pthread_mutex_unlock(map.at(line, 8).cast())) }
}

/// The kernel's id of the calling thread.
pub fn thread_id() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    (unsafe { libc::gettid() }) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Access, create_sealed};
    use std::os::fd::AsFd;

    fn line() -> SharedMap {
        let fd = create_sealed(c"muster-test", 4096).unwrap();
        SharedMap::map(fd.as_fd(), 4096, Access::Write).unwrap()
    }

    #[test]
    fn the_kernel_marks_the_word_when_the_holder_ends() {
        let map = line();
        std::thread::scope(|scope| {
            scope.spawn(|| hold_by_list(&map, 128).unwrap());
        });
        while map.word(128).load(Ordering::SeqCst) & futex::OWNER_DIED == 0 {
            std::thread::yield_now();
        }
        assert_eq!(map.word(128).load(Ordering::SeqCst) & futex::OWNER, 0);
    }

    #[test]
    fn a_released_word_is_zero_and_remains_zero() {
        let map = line();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                hold_by_list(&map, 0).unwrap();
                assert_eq!(
                    map.word(0).load(Ordering::SeqCst) & futex::OWNER,
                    thread_id()
                );
                release_by_list(&map, 0);
            });
        });
        assert_eq!(map.word(0).load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_mutex_is_released_only_by_its_holder() {
        let map = line();
        hold_by_mutex(&map, 0).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(release_by_mutex(&map, 0).is_err()));
        });
        release_by_mutex(&map, 0).unwrap();
        assert_eq!(map.word(0).load(Ordering::SeqCst), 0);
    }
}
