//! The calls into libpmix, looked up in the library that MPI loaded.
//!
//! Every function here takes and returns safe Rust values; what C needs (zero-terminated names, structs filled by
//! hand, memory that outlives the call) is created only in this file. PMIx's macros that would call into the library
//! are not reimplemented: a 4.x header and a 5.x library agree on layouts, not on those macros.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::AtomicI32;
use std::sync::{Mutex, Once};

use pmix_sys as sys;

use super::error::{Error, Status};
use super::functions::{Handle, NotifyEvent, functions};
use super::inbox::{self, Ticket};
use super::{event_listener, lock};

/// The key that marks events of this process's Muster, so that they are not taken for the launcher's.
pub(super) const OURS: &CStr = c"muster.event";

pub(super) const EVERY_RANK: u32 = sys::PMIX_RANK_WILDCARD;
pub(super) const JOB_SIZE: &CStr = sys::PMIX_JOB_SIZE;
pub(super) const NODE_ID: &CStr = sys::PMIX_NODEID;
pub(super) const HOST_NAME: &CStr = sys::PMIX_HOSTNAME;

functions! {
    /// The functions of one loaded libpmix.
    pub(super) struct Library {
        /// SAFETY of a call: no requirement; may be called at any time.
        initialized = c"PMIx_Initialized": unsafe extern "C" fn() -> c_int,
        /// SAFETY of a call: the process is writable; the infos are of the given number, or NULL.
        init = c"PMIx_Init":
            unsafe extern "C" fn(*mut sys::pmix_proc_t, *mut sys::pmix_info_t, usize) -> c_int,
        /// SAFETY of a call: it matches one `init`; the infos as for `init`.
        finalize = c"PMIx_Finalize": unsafe extern "C" fn(*const sys::pmix_info_t, usize) -> c_int,
        /// SAFETY of a call: between `init` and `finalize`; key and value are valid for the call, which copies them.
        put = c"PMIx_Put":
            unsafe extern "C" fn(sys::pmix_scope_t, *const c_char, *mut sys::pmix_value_t) -> c_int,
        /// SAFETY of a call: no requirement; it returns an error before `init`.
        commit = c"PMIx_Commit": unsafe extern "C" fn() -> c_int,
        /// SAFETY of a call: all pointers are valid for the call; the value is the caller's to free.
        get = c"PMIx_Get": unsafe extern "C" fn(
            *const sys::pmix_proc_t,
            *const c_char,
            *const sys::pmix_info_t,
            usize,
            *mut *mut sys::pmix_value_t,
        ) -> c_int,
        /// SAFETY of a call: process, key and infos are valid until the callback has been called.
        get_nonblocking = c"PMIx_Get_nb": unsafe extern "C" fn(
            *const sys::pmix_proc_t,
            *const c_char,
            *const sys::pmix_info_t,
            usize,
            sys::pmix_value_cbfunc_t,
            *mut c_void,
        ) -> c_int,
        notify_event = c"PMIx_Notify_event": NotifyEvent,
        /// SAFETY of a call: the code is valid until the registration's callback has been called; the handler is a
        /// function of a library that is never unloaded.
        register_handler = c"PMIx_Register_event_handler": unsafe extern "C" fn(
            *mut sys::pmix_status_t,
            usize,
            *mut sys::pmix_info_t,
            usize,
            sys::pmix_notification_fn_t,
            sys::pmix_hdlr_reg_cbfunc_t,
            *mut c_void,
        ) -> c_int,
        /// SAFETY of a call: between `init` and `finalize`; an invalid reference returns an error.
        deregister_handler = c"PMIx_Deregister_event_handler":
            unsafe extern "C" fn(usize, sys::pmix_op_cbfunc_t, *mut c_void) -> c_int,
    }
}

impl Library {
    /// The loaded libpmix; if there are several, the one that is initialised.
    pub(super) fn find() -> Option<Self> {
        let found: Vec<Self> = loaded_paths()
            .iter()
            .filter_map(|path| Self::open_loaded(path))
            .collect();
        found
            .iter()
            .find(|library| library.initialized())
            .or(found.first())
            .copied()
    }

    fn open_loaded(path: &CStr) -> Option<Self> {
        let library = Handle::open(path, libc::RTLD_NOLOAD | libc::RTLD_LAZY)?;
        Self::look_up(&library).ok()
    }

    pub(super) fn initialized(&self) -> bool {
        // SAFETY: PMIx_Initialized takes nothing and may be called at any time.
        unsafe { (self.initialized)() != 0 }
    }

    /// Takes one more reference; returns namespace and rank of this process.
    pub(super) fn init(&self) -> Result<(CString, u32), Error> {
        let mut me = process(c"", 0);
        // SAFETY: `me` is a pmix_proc_t to write to; no infos are passed.
        let status = unsafe { (self.init)(&raw mut me, std::ptr::null_mut(), 0) };
        // In a process without a launcher, a working library returns UNREACH.
        if status != sys::PMIX_ERR_UNREACH {
            succeeded("PMIx_Init", status)?;
        }
        Ok((text(&me.nspace), me.rank))
    }

    pub(super) fn finalize(&self) {
        // If an application finalized once too often, it has released this reference, too; libpmix would
        // count below zero.
        if !self.initialized() {
            return;
        }
        // SAFETY: matches one successful `init`; no infos are passed. Its status changes nothing.
        let _ = unsafe { (self.finalize)(std::ptr::null(), 0) };
    }

    pub(super) fn put(&self, key: &CStr, value: &CStr) -> Result<(), Error> {
        let key = key_of(key)?;
        let mut entry = string_value(value);
        // SAFETY: key and value are valid for the call; PMIx copies both.
        let status = unsafe {
            (self.put)(
                sys::PMIX_GLOBAL as sys::pmix_scope_t,
                key.as_ptr(),
                &raw mut entry,
            )
        };
        succeeded("PMIx_Put", status)
    }

    pub(super) fn commit(&self) -> Result<(), Error> {
        // SAFETY: takes nothing; before init it returns an error.
        let status = unsafe { (self.commit)() };
        succeeded("PMIx_Commit", status)
    }

    /// A number from this process's own copy of the job data; sends no request to the server.
    pub(super) fn get_number(&self, namespace: &CStr, rank: u32, key: &CStr) -> Result<u32, Error> {
        self.get_own(namespace, rank, key, |value| {
            if u32::from(value.type_) != sys::PMIX_UINT32 {
                return None;
            }
            // SAFETY: the type tag states which member of the union was written.
            Some(unsafe { value.data.uint32 })
        })
    }

    /// A string from this process's own copy of the job data; sends no request to the server.
    pub(super) fn get_text(
        &self,
        namespace: &CStr,
        rank: u32,
        key: &CStr,
    ) -> Result<String, Error> {
        self.get_own(namespace, rank, key, string_of)
    }

    fn get_own<T>(
        &self,
        namespace: &CStr,
        rank: u32,
        key: &CStr,
        read: impl FnOnce(&sys::pmix_value_t) -> Option<T>,
    ) -> Result<T, Error> {
        let target = process(namespace, rank);
        let name = key_of(key)?;
        let only_here = [flag(sys::PMIX_OPTIONAL)];
        let mut value: *mut sys::pmix_value_t = std::ptr::null_mut();
        // SAFETY: all pointers are valid for the call, which does not keep them; with PMIX_OPTIONAL
        // it returns data from local memory, so it does not wait for another process.
        let status = unsafe {
            (self.get)(
                &raw const target,
                name.as_ptr(),
                only_here.as_ptr(),
                only_here.len(),
                &raw mut value,
            )
        };
        succeeded("PMIx_Get", status)?;
        // SAFETY: success without a value would be NULL, which `as_ref` detects; otherwise the value
        // is ours until it is freed below.
        let Some(answer) = (unsafe { value.as_ref() }) else {
            return Err(Error::Refused {
                call: "PMIx_Get",
                status: Status::NOT_FOUND,
            });
        };
        let found = answer.type_;
        let result = read(answer);
        // SAFETY: libpmix allocated the value, and a string within it, with malloc; the caller
        // frees them. Other types (which the standard forbids for these keys) leak what they own.
        unsafe {
            if u32::from(found) == sys::PMIX_STRING {
                libc::free(answer.data.string.cast());
            }
            libc::free(value.cast());
        }
        result.ok_or_else(|| Error::UnexpectedType {
            key: key.to_string_lossy().into_owned(),
            rank,
            found,
        })
    }

    /// Requests a string of another rank; [`inbox::deliver`] is called with the ticket.
    pub(super) fn get_nonblocking(
        &self,
        namespace: &CStr,
        rank: u32,
        key: &CStr,
        refresh: bool,
        ticket: Ticket,
    ) -> Result<(), Error> {
        let pending = Box::new(PendingGet {
            target: process(namespace, rank),
            key: key_of(key)?,
            infos: [flag(sys::PMIX_GET_REFRESH_CACHE)],
        });
        let count = if refresh { pending.infos.len() } else { 0 };
        let infos = if refresh {
            pending.infos.as_ptr()
        } else {
            std::ptr::null()
        };
        let (target, name) = (&raw const pending.target, pending.key.as_ptr());
        // The library may read these until it calls back, so they are kept as long as the ticket
        // (or for ever, about 1.4 kB, if it never calls back).
        lock(&PENDING_GETS).insert(ticket, pending);
        // SAFETY: what the pointers point to is boxed and kept until the callback; the callback's
        // argument is a number, not an address.
        let status = unsafe {
            (self.get_nonblocking)(
                target,
                name,
                infos,
                count,
                Some(on_value),
                std::ptr::without_provenance_mut(ticket),
            )
        };
        succeeded("PMIx_Get_nb", status).inspect_err(|_| {
            lock(&PENDING_GETS).remove(&ticket);
        })
    }

    /// Sends an event about one process, for this process only and not for default handlers: these end jobs.
    pub(super) fn notify(&self, code: i32, namespace: &CStr, rank: u32) -> Result<(), Error> {
        if !self.initialized() {
            return Err(Error::NotInitialized);
        }
        let mut pending = Box::new(PendingNotification {
            affected: process(namespace, rank),
            infos: [
                flag(sys::PMIX_EVENT_NON_DEFAULT),
                flag(sys::PMIX_EVENT_AFFECTED_PROC),
                flag(OURS),
            ],
        });
        pending.infos[1].value.type_ = sys::PMIX_PROC as sys::pmix_data_type_t;
        pending.infos[1].value.data.proc_ = &raw mut pending.affected;
        let infos = pending.infos.as_ptr();
        let count = pending.infos.len();
        let number = add_notification(pending)?;
        // SAFETY: the infos are in the box that `add_notification` keeps until `on_notified` (or the
        // refusal below) removes it; the callback's argument is a number, not an address.
        let status = unsafe {
            (self.notify_event)(
                code,
                std::ptr::null(),
                sys::PMIX_RANGE_PROC_LOCAL as sys::pmix_data_range_t,
                infos,
                count,
                Some(on_notified),
                std::ptr::without_provenance_mut(number),
            )
        };
        if status != sys::PMIX_SUCCESS as c_int {
            // Done already (OPERATION_SUCCEEDED) or refused: in both cases no callback follows.
            lock(&PENDING_NOTIFICATIONS).remove(&number);
        }
        if status == sys::PMIX_OPERATION_SUCCEEDED {
            return Ok(());
        }
        succeeded("PMIx_Notify_event", status)
    }
}

/// The codes by which launchers report the end of a process. Each is a static, because libpmix may read it until its
/// registration is answered.
static ENDS: [AtomicI32; 4] = [
    AtomicI32::new(sys::PMIX_ERR_PROC_ABORTED),
    AtomicI32::new(sys::PMIX_ERR_PROC_ABORTED_BY_SIG),
    AtomicI32::new(sys::PMIX_ERR_PROC_TERM_WO_SYNC),
    AtomicI32::new(sys::PMIX_ERR_EXIT_NONZERO_TERM),
];

/// The registered handlers, by libpmix's references.
static HANDLERS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

impl Library {
    /// Requests the launcher's reports of ended processes; [`event_listener::report`] is called with each. Registers
    /// one code at a time, because a launcher that refuses one code refuses a whole list. Does not wait for the
    /// results.
    pub(super) fn listen(&self) {
        for code in &ENDS {
            // SAFETY: the code is a static; no infos are passed; both functions stay loaded. If the
            // registration is refused, the callback gets a status, or is not called.
            let _ = unsafe {
                (self.register_handler)(
                    code.as_ptr(),
                    1,
                    std::ptr::null_mut(),
                    0,
                    Some(on_event),
                    Some(on_registered),
                    std::ptr::null_mut(),
                )
            };
        }
    }

    /// Withdraws the requests of [`Self::listen`]. Does not wait for the results.
    pub(super) fn stop_listening(&self) {
        let handlers = std::mem::take(&mut *lock(&HANDLERS));
        for handler in handlers.into_iter().filter(|_| self.initialized()) {
            // SAFETY: a reference that libpmix returned; with a callback the call does not wait.
            let _ = unsafe {
                (self.deregister_handler)(handler, Some(on_deregistered), std::ptr::null_mut())
            };
        }
    }
}

extern "C" fn on_registered(status: sys::pmix_status_t, handler: usize, _data: *mut c_void) {
    if status == sys::PMIX_SUCCESS as c_int {
        lock(&HANDLERS).push(handler);
    }
}

extern "C" fn on_deregistered(_status: sys::pmix_status_t, _data: *mut c_void) {}

/// An event of the launcher, on libpmix's thread. Other registered handlers, MPI's own among them, decide what
/// follows; this one only reports it.
extern "C" fn on_event(
    _handler: usize,
    _status: sys::pmix_status_t,
    source: *const sys::pmix_proc_t,
    infos: *mut sys::pmix_info_t,
    count: usize,
    _results: *mut sys::pmix_info_t,
    _results_count: usize,
    continue_chain: sys::pmix_event_notification_cbfunc_fn_t,
    data: *mut c_void,
) {
    // SAFETY: libpmix passes this number of infos, or NULL, and a process, or NULL, valid for the call.
    let (infos, source) = unsafe {
        let infos = match infos.is_null() {
            true => &[],
            false => std::slice::from_raw_parts(infos, count),
        };
        (infos, source.as_ref())
    };
    if let Some(ended) = affected(infos).or(source) {
        let ours = infos.iter().any(|info| has_key(info, OURS));
        if !ours {
            event_listener::report(&text(&ended.nspace), ended.rank);
        }
    }
    if let Some(continue_chain) = continue_chain {
        // SAFETY: the callback of this event with its own data, called once; there are no results.
        unsafe {
            continue_chain(
                sys::PMIX_EVENT_NO_ACTION_TAKEN,
                std::ptr::null_mut(),
                0,
                None,
                std::ptr::null_mut(),
                data,
            );
        }
    }
}

/// The process that an event is about.
fn affected(infos: &[sys::pmix_info_t]) -> Option<&sys::pmix_proc_t> {
    let info = infos
        .iter()
        .find(|info| has_key(info, sys::PMIX_EVENT_AFFECTED_PROC))?;
    if u32::from(info.value.type_) != sys::PMIX_PROC {
        return None;
    }
    // SAFETY: the type tag states that the pointer was written; it is NULL or points to a process.
    unsafe { info.value.data.proc_.as_ref() }
}

fn has_key(info: &sys::pmix_info_t, key: &CStr) -> bool {
    text(&info.key).as_c_str() == key
}

/// Registers [`super::release`] to run at exit, once: if a process ends with a reference, `mpirun` reports that it
/// "exited improperly".
pub(super) fn release_at_exit() {
    extern "C" fn at_exit() {
        super::release();
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `at_exit` is a plain function of this library, which is never unloaded while a
        // reference is held. If the C library has no room for it, only mpirun's report is affected.
        unsafe { libc::atexit(at_exit) };
    });
}

/// The memory that a running `PMIx_Get_nb` may still read.
struct PendingGet {
    target: sys::pmix_proc_t,
    key: Key,
    infos: [sys::pmix_info_t; 1],
}

// SAFETY: the only pointers inside are in unused parts of unions (null); they are never dereferenced.
unsafe impl Send for PendingGet {}

static PENDING_GETS: Mutex<BTreeMap<Ticket, Box<PendingGet>>> = Mutex::new(BTreeMap::new());

/// The memory that a running `PMIx_Notify_event` may still read.
struct PendingNotification {
    affected: sys::pmix_proc_t,
    infos: [sys::pmix_info_t; 3],
}

// SAFETY: the pointer inside points into the same box, which owns it.
unsafe impl Send for PendingNotification {}

static PENDING_NOTIFICATIONS: Mutex<BTreeMap<usize, Box<PendingNotification>>> =
    Mutex::new(BTreeMap::new());

/// Most notifications that libpmix may be processing at a time, about 2 kB each.
const PENDING_NOTIFICATIONS_MAX: usize = 1024;

fn add_notification(pending: Box<PendingNotification>) -> Result<usize, Error> {
    let mut pending_notifications = lock(&PENDING_NOTIFICATIONS);
    if pending_notifications.len() >= PENDING_NOTIFICATIONS_MAX {
        return Err(Error::Busy);
    }
    let number = pending_notifications
        .last_key_value()
        .map_or(1, |(last, _)| last + 1);
    pending_notifications.insert(number, pending);
    Ok(number)
}

extern "C" fn on_notified(_status: sys::pmix_status_t, number: *mut c_void) {
    lock(&PENDING_NOTIFICATIONS).remove(&number.addr());
}

extern "C" fn on_value(
    status: sys::pmix_status_t,
    value: *mut sys::pmix_value_t,
    ticket: *mut c_void,
) {
    let ticket = ticket.addr();
    lock(&PENDING_GETS).remove(&ticket);
    // SAFETY: libpmix passes NULL or a value that is its own and valid until this returns.
    let value = unsafe { value.as_ref() };
    let answer = if status == sys::PMIX_SUCCESS as c_int {
        value.and_then(string_of).ok_or(Status::NOT_FOUND)
    } else {
        Err(Status(status))
    };
    inbox::deliver(ticket, answer);
}

fn succeeded(call: &'static str, status: c_int) -> Result<(), Error> {
    if status == sys::PMIX_SUCCESS as c_int {
        return Ok(());
    }
    // PMIx was finalized after the check.
    if status == sys::PMIX_ERR_INIT {
        return Err(Error::NotInitialized);
    }
    Err(Error::Refused {
        call,
        status: Status(status),
    })
}

type Key = [c_char; sys::PMIX_MAX_KEYLEN as usize + 1];

/// A key in PMIx's own size: the library may copy a whole `pmix_key_t` from the address that it is given.
fn key_of(key: &CStr) -> Result<Key, Error> {
    let bytes = key.to_bytes();
    if bytes.len() > sys::PMIX_MAX_KEYLEN as usize {
        return Err(Error::BadText(key.to_string_lossy().into_owned()));
    }
    let mut padded = [0; sys::PMIX_MAX_KEYLEN as usize + 1];
    copy_text(bytes, &mut padded);
    Ok(padded)
}

pub(super) fn process(namespace: &CStr, rank: u32) -> sys::pmix_proc_t {
    let mut process = sys::pmix_proc_t {
        nspace: [0; sys::PMIX_MAX_NSLEN as usize + 1],
        rank,
    };
    copy_text(namespace.to_bytes(), &mut process.nspace);
    process
}

/// An info without a value under `key`.
pub(super) fn blank_info(key: &CStr) -> sys::pmix_info_t {
    // SAFETY: all zero is a valid pmix_info_t: empty key, no directives, type undefined, and a
    // union whose members all admit zero.
    let mut info: sys::pmix_info_t = unsafe { std::mem::zeroed() };
    copy_text(key.to_bytes(), &mut info.key);
    info
}

/// A true flag under `key`.
fn flag(key: &CStr) -> sys::pmix_info_t {
    let mut info = blank_info(key);
    info.value.type_ = sys::PMIX_BOOL as sys::pmix_data_type_t;
    info.value.data.flag = true;
    info
}

/// A string value that borrows its text; for calls that copy it.
fn string_value(text: &CStr) -> sys::pmix_value_t {
    // SAFETY: as in `blank_info`.
    let mut value: sys::pmix_value_t = unsafe { std::mem::zeroed() };
    value.type_ = sys::PMIX_STRING as sys::pmix_data_type_t;
    value.data.string = text.as_ptr().cast_mut();
    value
}

fn string_of(value: &sys::pmix_value_t) -> Option<String> {
    if u32::from(value.type_) != sys::PMIX_STRING {
        return None;
    }
    // SAFETY: the type tag states that `string` was written; PMIx strings are NULL or terminated.
    unsafe {
        let string = value.data.string;
        (!string.is_null()).then(|| CStr::from_ptr(string).to_string_lossy().into_owned())
    }
}

/// Copies into a zeroed array and leaves at least one zero at the end.
fn copy_text(from: &[u8], to: &mut [c_char]) {
    let room = to.len() - 1;
    for (target, byte) in to[..room].iter_mut().zip(from) {
        *target = byte.cast_signed() as c_char;
    }
}

/// A C array of characters up to its first zero.
pub(super) fn text(array: &[c_char]) -> CString {
    let bytes: Vec<u8> = array
        .iter()
        .take_while(|byte| **byte != 0)
        .map(|byte| *byte as u8)
        .collect();
    CString::new(bytes).unwrap_or_default()
}

/// The paths of loaded libraries whose file name starts with `libpmix.so`.
fn loaded_paths() -> Vec<CString> {
    // SAFETY of a call: `info` is the loader's entry, `paths` a `Vec<CString>` without another user.
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        paths: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid entry whose name is NULL or zero-terminated.
        let name = unsafe {
            let name = (*info).dlpi_name;
            if name.is_null() {
                return 0;
            }
            CStr::from_ptr(name)
        };
        let file = name
            .to_bytes()
            .rsplit(|byte| *byte == b'/')
            .next()
            .unwrap_or_default();
        if file.starts_with(b"libpmix.so") {
            // SAFETY: `paths` is the vector that `loaded_paths` passes to this iteration.
            unsafe { (*paths.cast::<Vec<CString>>()).push(name.to_owned()) };
        }
        0
    }
    let mut paths: Vec<CString> = Vec::new();
    // SAFETY: `visit` has the declared signature and `paths` outlives the iteration.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut paths).cast()) };
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_truncated_and_terminated() {
        let long = CString::new("n".repeat(300)).expect("no NUL");
        let process = process(&long, 3);
        assert_eq!(process.nspace[255], 0);
        assert_eq!(text(&process.nspace).to_bytes().len(), 255);
        assert_eq!(
            text(&super::process(c"job.0", 1).nspace).as_c_str(),
            c"job.0"
        );
    }

    #[test]
    fn a_key_that_is_too_long_is_refused() {
        let long = CString::new("k".repeat(512)).expect("no NUL");
        assert!(matches!(key_of(&long), Err(Error::BadText(_))));
        assert!(key_of(c"muster.nids").is_ok());
    }

    #[test]
    fn a_value_of_another_type_is_not_a_string() {
        let mut value = string_value(c"text");
        assert_eq!(string_of(&value).as_deref(), Some("text"));
        value.type_ = sys::PMIX_BOOL as sys::pmix_data_type_t;
        assert_eq!(string_of(&value), None);
    }
}
