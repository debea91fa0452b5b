//! The calls of a PMIx server, looked up in a libpmix that is opened at run time.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use pmix_sys as sys;

use super::super::ffi::process;
use super::super::functions::{Handle, NotifyEvent, functions};
use super::infos::Infos;
use super::{ServerError, callbacks, tool};

// SAFETY of a call: a terminated string, and memory for an answer that is the caller's to free.
type Generate = unsafe extern "C" fn(*const c_char, *mut *mut c_char) -> c_int;

functions! {
    /// The server functions of one libpmix, which is never unloaded.
    pub(super) struct Library {
        /// SAFETY of a call: no requirement.
        version = c"PMIx_Get_version": unsafe extern "C" fn() -> *const c_char,
        /// SAFETY of a call: the module is readable, also beyond its declared end (see `Module`); the infos are of
        /// that number.
        init = c"PMIx_server_init": unsafe extern "C" fn(
            *mut sys::pmix_server_module_t,
            *mut sys::pmix_info_t,
            usize,
        ) -> c_int,
        /// SAFETY of a call: after a successful `init`.
        finalize = c"PMIx_server_finalize": unsafe extern "C" fn() -> c_int,
        regex = c"PMIx_generate_regex": Generate,
        ppn = c"PMIx_generate_ppn": Generate,
        /// SAFETY of a call: a whole pmix_nspace_t and that number of infos, valid for the call, which waits without a
        /// callback.
        register_namespace = c"PMIx_server_register_nspace": unsafe extern "C" fn(
            *const c_char,
            c_int,
            *mut sys::pmix_info_t,
            usize,
            sys::pmix_op_cbfunc_t,
            *mut c_void,
        ) -> c_int,
        /// SAFETY of a call: a process, valid for the call, which waits without a callback.
        register_client = c"PMIx_server_register_client": unsafe extern "C" fn(
            *const sys::pmix_proc_t,
            libc::uid_t,
            libc::gid_t,
            *mut c_void,
            sys::pmix_op_cbfunc_t,
            *mut c_void,
        ) -> c_int,
        /// SAFETY of a call: the process is registered; a list of strings to be extended, NULL for an empty one.
        setup_fork = c"PMIx_server_setup_fork":
            unsafe extern "C" fn(*const sys::pmix_proc_t, *mut *mut *mut c_char) -> c_int,
        notify_event = c"PMIx_Notify_event": NotifyEvent,
        /// SAFETY of a call: the process is valid for the call; the number is passed back to the callback.
        request = c"PMIx_server_dmodex_request": unsafe extern "C" fn(
            *const sys::pmix_proc_t,
            sys::pmix_dmodex_response_fn_t,
            *mut c_void,
        ) -> c_int,
    }
}

/// Parameter of libpmix: whether it completes a fence within one node by itself, without an upcall. The launcher must
/// know of every fence: MPI_Init ends with the last of its own. PMIx 4.0 and 4.1, which do not have the parameter,
/// make an upcall for every fence.
const LOCAL_FENCES: &str = "PMIX_MCA_pmix_server_fence_localonly_opt";

/// A library of a later release copies more pointers than our header declares: it reads zeros.
#[repr(C)]
struct Module {
    declared: sys::pmix_server_module_t,
    later: [usize; 64],
}

impl Library {
    pub(super) fn open(path: &Path) -> Result<Self, ServerError> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| ServerError::BadText(path.display().to_string()))?;
        // RTLD_GLOBAL: libpmix's own plugins need its symbols.
        let Some(library) = Handle::open(&name, libc::RTLD_NOW | libc::RTLD_GLOBAL) else {
            // SAFETY: after a failed dlopen this is NULL or a terminated text.
            let why = unsafe {
                let why = libc::dlerror();
                (!why.is_null()).then(|| CStr::from_ptr(why).to_string_lossy().into_owned())
            };
            return Err(ServerError::Library(
                why.unwrap_or_else(|| path.display().to_string()),
            ));
        };
        Self::look_up(&library).map_err(|name| ServerError::TooOld {
            path: path.display().to_string(),
            function: name.to_str().unwrap_or_default(),
        })
    }

    pub(super) fn version(&self) -> String {
        // SAFETY: takes nothing and returns a terminated string that stays valid.
        let string = unsafe { CStr::from_ptr((self.version)()) };
        string.to_string_lossy().into_owned()
    }

    pub(super) fn init(&self, infos: &Infos) -> Result<(), ServerError> {
        let declared = sys::pmix_server_module_t {
            client_connected2: Some(callbacks::connected),
            client_finalized: Some(callbacks::finalized),
            abort: Some(callbacks::aborted),
            fence_nb: Some(callbacks::fence),
            direct_modex: Some(callbacks::direct_modex),
            publish: Some(callbacks::publish),
            lookup: Some(callbacks::lookup),
            unpublish: Some(callbacks::unpublish),
            spawn: Some(callbacks::spawn),
            connect: Some(callbacks::connect),
            disconnect: Some(callbacks::disconnect),
            query: Some(callbacks::query),
            tool_connected: Some(tool::connected),
            log: Some(callbacks::log),
            job_control: Some(callbacks::job_control),
            group: Some(callbacks::group),
            // SAFETY: a struct of optional functions, all absent.
            ..unsafe { std::mem::zeroed() }
        };
        // Never freed: the library may read it at any time.
        let module = Box::leak(Box::new(Module {
            declared,
            later: [0; 64],
        }));
        let mut list = infos.list.clone();
        let given = std::env::var_os(LOCAL_FENCES);
        // SAFETY: Rust's own readers of the environment are excluded by its lock, and no other library that reads it
        // runs in the launcher before libpmix does.
        unsafe { std::env::set_var(LOCAL_FENCES, "0") };
        // SAFETY: the module is never freed; the infos and what they point to outlive the call, which copies them.
        let status = unsafe {
            (self.init)(
                (&raw mut *module).cast::<sys::pmix_server_module_t>(),
                list.as_mut_ptr(),
                list.len(),
            )
        };
        // The ranks get the user's value.
        // SAFETY: as above; libpmix has read it, and its thread waits for work.
        unsafe {
            match given {
                Some(given) => std::env::set_var(LOCAL_FENCES, given),
                None => std::env::remove_var(LOCAL_FENCES),
            }
        }
        succeeded("PMIx_server_init", status)
    }

    pub(super) fn finalize(&self) {
        // SAFETY: the server was started, and this consumes what refers to it.
        let _ = unsafe { (self.finalize)() };
    }

    pub(super) fn regex(&self, list: &CStr) -> Result<Vec<u8>, ServerError> {
        generate(self.regex, "PMIx_generate_regex", list)
    }

    pub(super) fn ppn(&self, list: &CStr) -> Result<Vec<u8>, ServerError> {
        generate(self.ppn, "PMIx_generate_ppn", list)
    }

    pub(super) fn register_namespace(
        &self,
        namespace: &CStr,
        local: usize,
        infos: &Infos,
    ) -> Result<(), ServerError> {
        let padded = process(namespace, 0).nspace;
        let mut list = infos.list.clone();
        // SAFETY: namespace and infos outlive the call, which waits until it is done.
        let status = unsafe {
            (self.register_namespace)(
                padded.as_ptr(),
                c_int::try_from(local).unwrap_or(c_int::MAX),
                list.as_mut_ptr(),
                list.len(),
                None,
                std::ptr::null_mut(),
            )
        };
        succeeded("PMIx_server_register_nspace", status)
    }

    pub(super) fn register_client(&self, namespace: &CStr, rank: u32) -> Result<(), ServerError> {
        let client = process(namespace, rank);
        // SAFETY: the process outlives the call, which waits until it is done; ids are plain numbers.
        let status = unsafe {
            (self.register_client)(
                &raw const client,
                libc::getuid(),
                libc::getgid(),
                std::ptr::null_mut(),
                None,
                std::ptr::null_mut(),
            )
        };
        succeeded("PMIx_server_register_client", status)
    }

    pub(super) fn setup_fork(
        &self,
        namespace: &CStr,
        rank: u32,
    ) -> Result<Vec<(OsString, OsString)>, ServerError> {
        let client = process(namespace, rank);
        let mut list: *mut *mut c_char = std::ptr::null_mut();
        // SAFETY: the process is registered; an empty list that the library extends with malloc.
        let status = unsafe { (self.setup_fork)(&raw const client, &raw mut list) };
        succeeded("PMIx_server_setup_fork", status)?;
        let mut variables = Vec::new();
        // SAFETY: a list of terminated strings with NULL at its end, all of them ours to free.
        unsafe {
            let mut at = list;
            while !at.is_null() && !(*at).is_null() {
                let line = CStr::from_ptr(*at).to_bytes();
                if let Some(equals) = line.iter().position(|byte| *byte == b'=') {
                    let name = OsString::from_vec(line[..equals].to_vec());
                    let value = OsString::from_vec(line[equals + 1..].to_vec());
                    variables.push((name, value));
                }
                libc::free((*at).cast());
                at = at.add(1);
            }
            libc::free(list.cast());
        }
        Ok(variables)
    }

    /// Sends an event about one process to the processes of this node, and not to default handlers: these end jobs.
    /// Every process that is named in it counts as failed, so there is only one.
    pub(super) fn notify_death(&self, namespace: &CStr, rank: u32) -> Result<(), ServerError> {
        let failed = process(namespace, rank);
        let mut infos = Infos::default();
        infos.flag(sys::PMIX_EVENT_NON_DEFAULT);
        infos.process(sys::PMIX_EVENT_AFFECTED_PROC, &failed);
        // SAFETY: process and infos outlive the call, which waits until the event is being sent.
        let status = unsafe {
            (self.notify_event)(
                sys::PMIX_ERR_PROC_ABORTED_BY_SIG,
                &raw const failed,
                sys::PMIX_RANGE_LOCAL as sys::pmix_data_range_t,
                infos.list.as_ptr(),
                infos.list.len(),
                None,
                std::ptr::null_mut(),
            )
        };
        succeeded("PMIx_Notify_event", status)
    }
}

impl Library {
    pub(super) fn request(&self, namespace: &CStr, rank: u32) -> Result<(), ServerError> {
        let client = process(namespace, rank);
        // SAFETY: the process outlives the call, which copies it; the rank is passed as a number, not as an address.
        let status = unsafe {
            (self.request)(
                &raw const client,
                Some(callbacks::found),
                rank as usize as *mut c_void,
            )
        };
        succeeded("PMIx_server_dmodex_request", status)
    }
}

/// The first release whose servers report clients in the way that this one needs; earlier ones have the same
/// functions.
pub(super) const RELEASE_MIN: u32 = 4;

/// The first number in the version text of a library: `OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2, ...)`.
pub(super) fn release(version: &str) -> Option<u32> {
    let from = version.find(|character: char| character.is_ascii_digit())?;
    let digits = version[from..].split(|character: char| !character.is_ascii_digit());
    digits.into_iter().next()?.parse().ok()
}

fn generate(function: Generate, call: &'static str, list: &CStr) -> Result<Vec<u8>, ServerError> {
    let mut answer: *mut c_char = std::ptr::null_mut();
    // SAFETY: a terminated string and memory for the answer.
    let status = unsafe { function(list.as_ptr(), &raw mut answer) };
    succeeded(call, status)?;
    if answer.is_null() {
        return Err(ServerError::Refused { call, status });
    }
    // SAFETY: an expression that ends with a zero, or a packed one that states its length (`length`);
    // it was allocated with malloc and is ours to free.
    unsafe {
        let bytes = std::slice::from_raw_parts(answer.cast::<u8>(), length(answer)).to_vec();
        libc::free(answer.cast());
        Ok(bytes)
    }
}

/// The length of an expression. A packed one is three terminated strings, `blob:`, `component=NAME:` and `size=N:`,
/// followed by N bytes.
///
/// # Safety
/// `start` is such an expression.
unsafe fn length(start: *const c_char) -> usize {
    // SAFETY: as the caller promises: each string is terminated.
    unsafe {
        let first = CStr::from_ptr(start).to_bytes_with_nul().len();
        if CStr::from_ptr(start) != c"blob:" {
            return first;
        }
        let second = CStr::from_ptr(start.add(first)).to_bytes_with_nul().len();
        let third = CStr::from_ptr(start.add(first + second));
        let string = third.to_string_lossy();
        let size = string.trim_start_matches("size=").trim_end_matches(':');
        let packed: usize = size.parse().unwrap_or(0);
        first + second + third.to_bytes_with_nul().len() + packed
    }
}

fn succeeded(call: &'static str, status: c_int) -> Result<(), ServerError> {
    if status == sys::PMIX_SUCCESS as c_int || status == sys::PMIX_OPERATION_SUCCEEDED {
        return Ok(());
    }
    Err(ServerError::Refused { call, status })
}

#[cfg(test)]
mod tests {
    use super::release;

    #[test]
    fn the_release_is_read_from_the_version_text() {
        for (version, number) in [
            (
                "OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2, Stable ABI: 0.0)",
                Some(4),
            ),
            ("OpenPMIx 3.2.3 (PMIx Standard: 3.2)", Some(3)),
            ("PMIx 10", Some(10)),
            ("a library", None),
        ] {
            assert_eq!(release(version), number, "{version}");
        }
    }
}
