//! Tables of libpmix's functions, looked up by name at run time.
//!
//! No program of Muster is linked with libpmix: a process may have only the one that MPI has loaded. Both tables, of
//! the client and of the server, are made by one macro, which takes name and type of each function once. They are not
//! made by bindgen, because its loader requires the crate `libloading`, and libmuster depends on libc alone. The types
//! within the signatures are bindgen's.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use pmix_sys as sys;

/// `PMIx_Notify_event`, which clients and servers have.
// SAFETY of a call: process and infos are valid until the callback has been called, or without one for the call.
pub(super) type NotifyEvent = unsafe extern "C" fn(
    sys::pmix_status_t,
    *const sys::pmix_proc_t,
    sys::pmix_data_range_t,
    *const sys::pmix_info_t,
    usize,
    sys::pmix_op_cbfunc_t,
    *mut c_void,
) -> c_int;

/// A library that is loaded, and never unloaded.
pub(super) struct Handle(NonNull<c_void>);

impl Handle {
    /// Opens a library by dlopen(3). With RTLD_NOLOAD it only counts a reference to a loaded one, which pins it.
    pub(super) fn open(path: &CStr, flags: c_int) -> Option<Self> {
        // SAFETY: the path is zero-terminated. The caller names a libpmix, whose initialisers do nothing but
        // initialise it.
        let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
        NonNull::new(handle).map(Self)
    }

    /// The address of a function.
    ///
    /// # Errors
    /// The name, if the library has no such function.
    pub(super) fn address(&self, name: &'static CStr) -> Result<NonNull<c_void>, &'static CStr> {
        // SAFETY: the handle is open and the name zero-terminated.
        let address = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) };
        NonNull::new(address).ok_or(name)
    }
}

/// Declares a struct of functions, each with its name in the library, and `look_up`, which fills it. The comment on
/// each function states what a call requires.
macro_rules! functions {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $Table:ident {
            $($(#[$requires:meta])* $field:ident = $name:literal: $Function:ty,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        $visibility struct $Table {
            $($(#[$requires])* $field: $Function,)*
        }

        impl $Table {
            /// # Errors
            /// The name of the first function that the library does not have.
            fn look_up(
                library: &$crate::functions::Handle,
            ) -> Result<Self, &'static std::ffi::CStr> {
                Ok(Self {
                    $($field: {
                        let address = library.address($name)?;
                        // SAFETY: the address is that of the function of this name, whose C declaration, the same in
                        // all supported releases, is the given type; data and function pointers have one size on
                        // every system with dlsym.
                        unsafe {
                            std::mem::transmute::<std::ptr::NonNull<std::ffi::c_void>, $Function>(
                                address,
                            )
                        }
                    },)*
                })
            }
        }
    };
}
pub(super) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    functions! {
        struct Known {
            /// SAFETY of a call: no requirement.
            pid = c"getpid": unsafe extern "C" fn() -> c_int,
        }
    }

    functions! {
        #[expect(dead_code, reason = "only the look-up is tested")]
        struct Unknown {
            /// SAFETY of a call: no requirement.
            pid = c"getpid": unsafe extern "C" fn() -> c_int,
            /// SAFETY of a call: no requirement.
            none = c"muster_no_such_function": unsafe extern "C" fn(),
        }
    }

    #[test]
    fn functions_are_found_by_name_and_the_first_missing_one_is_named() {
        let library = Handle::open(c"libc.so.6", libc::RTLD_NOLOAD | libc::RTLD_LAZY).unwrap();
        let known = Known::look_up(&library).unwrap();
        // SAFETY: as the table states.
        let pid = unsafe { (known.pid)() };
        assert_eq!(pid.cast_unsigned(), std::process::id());
        let missing = Unknown::look_up(&library).map(|_| ()).unwrap_err();
        assert_eq!(missing, c"muster_no_such_function");
        assert!(Handle::open(c"libmuster-nowhere.so", libc::RTLD_LAZY).is_none());
    }
}
