//! Answers to upcalls: libpmix's callback and the pointer that it gets back.

use std::ffi::c_void;

use pmix_sys as sys;

use super::infos::Infos;

/// An answer that is only a status.
#[derive(Debug)]
pub struct Done {
    pub(super) function: sys::pmix_op_cbfunc_t,
    pub(super) data: *mut c_void,
}

/// An answer with a list.
#[derive(Debug)]
pub(super) struct InfoAnswer {
    pub(super) function: sys::pmix_info_cbfunc_t,
    pub(super) data: *mut c_void,
}

// SAFETY: libpmix lets its callbacks be called on any thread; the pointers are its own and only passed back.
unsafe impl Send for Done {}
// SAFETY: as above.
unsafe impl Send for InfoAnswer {}

impl Done {
    /// Answers that it is done.
    pub fn succeed(self) {
        self.answer(sys::PMIX_SUCCESS as i32);
    }

    /// Answers that there is no room for it.
    pub fn refuse(self) {
        self.answer(sys::PMIX_ERR_OUT_OF_RESOURCE);
    }

    /// Answers that another value is published under this name already.
    pub fn refuse_duplicate(self) {
        self.answer(sys::PMIX_ERR_DUPLICATE_KEY);
    }

    pub(super) fn answer(self, status: i32) {
        if let Some(function) = self.function {
            // SAFETY: the callback of an upcall with its own data, called once, since `self` is consumed.
            unsafe { function(status, self.data) };
        }
    }
}

impl InfoAnswer {
    pub(super) fn give(self, status: i32, infos: Infos) {
        let Some(function) = self.function else {
            return;
        };
        // libpmix reads the list later, on its thread, and then calls `release_infos`.
        let mut infos = Box::new(infos);
        let (start, count) = (infos.list.as_mut_ptr(), infos.list.len());
        let list = if count == 0 {
            std::ptr::null_mut()
        } else {
            start
        };
        // SAFETY: the callback of an upcall with its own data, called once; the list and what it points to are valid
        // until `release_infos` is called with the box that holds them.
        unsafe {
            function(
                status,
                list,
                count,
                self.data,
                Some(release_infos),
                Box::into_raw(infos).cast(),
            );
        }
    }
}

extern "C" fn release_infos(data: *mut c_void) {
    // SAFETY: the box that `InfoAnswer::give` turned into this pointer; libpmix calls this once.
    drop(unsafe { Box::from_raw(data.cast::<Infos>()) });
}

/// Answers with data.
pub(super) fn give(
    function: sys::pmix_modex_cbfunc_t,
    data: *mut c_void,
    status: i32,
    bytes: &[u8],
) {
    let Some(function) = function else {
        return;
    };
    // libpmix reads the bytes later, on its thread, and then calls `release`.
    let copy = Box::new(bytes.to_vec());
    let (start, length) = (copy.as_ptr(), copy.len());
    // SAFETY: the callback of an upcall with its own data, called once (the callers consume the contribution);
    // the bytes are valid until `release` is called with the box that holds them.
    unsafe {
        function(
            status,
            start.cast(),
            length,
            data,
            Some(release),
            Box::into_raw(copy).cast(),
        );
    }
}

extern "C" fn release(data: *mut c_void) {
    // SAFETY: the box that `give` turned into this pointer; libpmix calls this once.
    drop(unsafe { Box::from_raw(data.cast::<Vec<u8>>()) });
}
