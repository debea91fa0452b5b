//! `fopen` as libfabric finds it in an agent: it does not open the list of the kernel's symbols.
//!
//! When libfabric starts, its verbs provider (1.17) reads `/proc/kallsyms` twice to its end. It looks for functions
//! that share memory of graphics cards with network cards, of which an agent makes no use. The kernel composes the file
//! anew for each reader: that takes 0.1 s of a processor, several times what all else at the start of an agent takes.
//! A job starts an agent on each node, and a new worker has to be there before its node counts as silent.
//!
//! libfabric is loaded at run time, so its calls find the functions that the program exports before those of libc. The
//! build script of `musterd` exports this one.

use std::ffi::{CStr, c_char};

/// `fopen(3)`, for any file but one.
///
/// # Safety
/// Both arguments are C strings.
#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: a C string, by the contract of this function; errno belongs to this thread.
    unsafe {
        if CStr::from_ptr(path) == c"/proc/kallsyms" {
            *libc::__errno_location() = libc::EACCES;
            return std::ptr::null_mut();
        }
    }
    // SAFETY: the same arguments. On Linux with 64 bits it is the same function under another name.
    unsafe { libc::fopen64(path, mode) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_opened() {
        let open = |path: &CStr| {
            // SAFETY: C strings; what was opened is closed once.
            unsafe {
                let file = fopen(path.as_ptr(), c"r".as_ptr());
                !file.is_null() && libc::fclose(file) == 0
            }
        };
        assert!(open(c"/proc/self/stat"));
        assert!(!open(c"/proc/kallsyms"));
        assert!(!open(c"/nowhere"));
    }
}
