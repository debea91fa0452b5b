//! Memory that several processes share: sealed memfds and mappings of them.
//!
//! A memfd has no name that could become stale, and its seals prevent that a process truncates it, which would turn
//! the loads of the other processes into SIGBUS. All access goes through atomics:
//! another process may write at any time, so there are no plain references into the mapping.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use super::check;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the layout of the state table keeps client addresses in 64-bit words");

/// The seals that a shared memfd requires before its size is trusted.
pub const REQUIRED_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A new memfd of `size` zero bytes, sealed against change of size. Pages use no memory until
/// they are written.
pub fn create_sealed(name: &CStr, size: usize) -> io::Result<OwnedFd> {
    let fd = create_unsealed(name, size)?;
    add_seals(fd.as_fd(), REQUIRED_SEALS)?;
    Ok(fd)
}

/// Seals a memfd of [`create_unsealed`] against change of size and against writes, except through existing
/// mappings: a new mapping can only be read.
pub fn seal_for_readers(fd: BorrowedFd<'_>) -> io::Result<()> {
    match add_seals(fd, REQUIRED_SEALS | libc::F_SEAL_FUTURE_WRITE) {
        // Not supported before Linux 5.1: there, the other process is expected to map it for reading.
        Err(cause) if cause.raw_os_error() == Some(libc::EINVAL) => add_seals(fd, REQUIRED_SEALS),
        answer => answer,
    }
}

fn add_seals(fd: BorrowedFd<'_>, seals: i32) -> io::Result<()> {
    // SAFETY: a plain system call on a descriptor.
    let sealed = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    check("fcntl(F_ADD_SEALS)", i64::from(sealed)).map(drop)
}

/// A new memfd of `size` zero bytes, without seals.
pub fn create_unsealed(name: &CStr, size: usize) -> io::Result<OwnedFd> {
    // SAFETY: `name` is NUL-terminated.
    let fd =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    check("memfd_create", i64::from(fd))?;
    // SAFETY: the kernel has just created this descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a plain system call on a descriptor we own.
    let cut = unsafe { libc::ftruncate(fd.as_raw_fd(), size as libc::off_t) };
    check("ftruncate", i64::from(cut))?;
    Ok(fd)
}

/// A new, empty file in memory without a path.
pub fn create_file(name: &CStr) -> io::Result<File> {
    // SAFETY: `name` is NUL-terminated.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    check("memfd_create", i64::from(fd))?;
    // SAFETY: the kernel has just created this descriptor.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The seals of a memfd; an error if the descriptor is not a memfd.
pub fn seals(fd: BorrowedFd<'_>) -> io::Result<i32> {
    // SAFETY: F_GET_SEALS takes no argument.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    check("fcntl(F_GET_SEALS)", i64::from(seals)).map(|seals| seals as i32)
}

/// The size of the file behind a descriptor, in bytes.
pub fn size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: an all-zero stat is valid and the kernel fills it.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid for writes.
    let answer = unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) };
    check("fstat", i64::from(answer))?;
    Ok(stat.st_size as u64)
}

/// The permitted access to a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Loads only: a store ends the process by SIGSEGV.
    Read,
    /// Loads and stores.
    Write,
}

/// A shared mapping, unmapped when dropped.
#[derive(Debug)]
pub struct SharedMap {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping is accessed through atomics only.
unsafe impl Send for SharedMap {}
// SAFETY: as above.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Maps the first `size` bytes of `fd`. The caller has checked the file's size and seals.
    pub fn map(fd: BorrowedFd<'_>, size: usize, access: Access) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                access.protection(),
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { base, size })
    }

    /// Maps a file with the given access, and directly after it another file for writing, as one mapping.
    /// The first size must be a multiple of the page size. The caller has checked sizes and seals of the files.
    pub fn map_in_a_row(
        (first, first_size, access): (BorrowedFd<'_>, usize, Access),
        (second, second_size): (BorrowedFd<'_>, usize),
    ) -> io::Result<Self> {
        let size = first_size
            .checked_add(second_size)
            .ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other mapping.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        // Dropped, and so unmapped, if one of the two files cannot be mapped.
        let map = Self { base, size };
        let parts = [
            (first, 0, first_size, access),
            (second, first_size, second_size, Access::Write),
        ];
        for (fd, offset, size, access) in parts {
            // SAFETY: it replaces a part of the mapping that was reserved for it, and that has no references.
            let part = unsafe {
                libc::mmap(
                    map.base.as_ptr().add(offset).cast(),
                    size,
                    access.protection(),
                    libc::MAP_SHARED | libc::MAP_FIXED,
                    fd.as_raw_fd(),
                    0,
                )
            };
            if part == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(map)
    }

    /// The mapping's size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The byte at `offset`. Panics outside the mapping: offsets come from a checked layout.
    #[inline]
    pub fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: `at` checked range and alignment; the mapping lives as long as `self`.
        unsafe { &*self.at(offset, 1).cast::<AtomicU8>() }
    }

    /// The aligned 32-bit word at `offset`. Panics outside the mapping.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as in `byte`.
        unsafe { &*self.at(offset, 4).cast::<AtomicU32>() }
    }

    /// The aligned 64-bit word at `offset`. Panics outside the mapping.
    #[inline]
    pub fn long(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `byte`.
        unsafe { &*self.at(offset, 8).cast::<AtomicU64>() }
    }

    /// The address of `offset`, checked for `width` bytes of range and alignment.
    #[inline]
    pub(super) fn at(&self, offset: usize, width: usize) -> *mut u8 {
        assert!(
            offset <= self.size - width && offset.is_multiple_of(width),
            "offset {offset}"
        );
        // SAFETY: the offset is inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Access {
    fn protection(self) -> i32 {
        match self {
            Self::Read => libc::PROT_READ,
            Self::Write => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: base and size are those of the mapping, and no reference outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_share_memory_and_the_size_is_sealed() {
        let fd = create_sealed(c"muster-test", 8192).unwrap();
        let one = SharedMap::map(fd.as_fd(), 8192, Access::Write).unwrap();
        let two = SharedMap::map(fd.as_fd(), 8192, Access::Read).unwrap();
        one.long(4096).store(7, Ordering::Release);
        assert_eq!(two.long(4096).load(Ordering::Acquire), 7);
        assert_eq!(seals(fd.as_fd()).unwrap() & REQUIRED_SEALS, REQUIRED_SEALS);
        // SAFETY: a plain system call; it is expected to fail.
        assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), 0) }, -1);
    }

    #[test]
    fn a_memfd_sealed_for_readers_is_written_only_through_older_mappings() {
        let size = 65536;
        let ours = create_unsealed(c"muster-test", size).unwrap();
        let theirs = create_sealed(c"muster-test", size).unwrap();
        let (ours, theirs) = (ours.as_fd(), theirs.as_fd());
        let map = |access| SharedMap::map_in_a_row((ours, size, access), (theirs, size));
        let writer = map(Access::Write).unwrap();
        seal_for_readers(ours).unwrap();
        let reader = map(Access::Read).unwrap();
        assert_eq!((reader.size(), writer.size()), (2 * size, 2 * size));
        writer.long(size - 8).store(7, Ordering::Release);
        reader.long(size).store(8, Ordering::Release);
        assert_eq!(reader.long(size - 8).load(Ordering::Acquire), 7);
        assert_eq!(writer.long(size).load(Ordering::Acquire), 8);
        if seals(ours).unwrap() & libc::F_SEAL_FUTURE_WRITE != 0 {
            assert!(map(Access::Write).is_err());
            // SAFETY: a plain system call; it is expected to fail.
            let begun = unsafe {
                let start = reader.at(0, 8).cast();
                libc::mprotect(start, size, libc::PROT_READ | libc::PROT_WRITE)
            };
            assert_eq!(begun, -1);
        }
    }

    #[test]
    #[should_panic(expected = "offset")]
    fn an_offset_outside_is_refused() {
        let fd = create_sealed(c"muster-test", 4096).unwrap();
        let map = SharedMap::map(fd.as_fd(), 4096, Access::Write).unwrap();
        map.word(4096);
    }
}
