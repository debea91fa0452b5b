//! The used part of Slurm's `spank.h`, written by hand: it has not changed since 20.11.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// Slurm's handle.
pub(crate) type Handle = *mut c_void;

/// An option of `srun`, as `slurm/spank.h` declares it.
#[repr(C)]
pub(crate) struct SpankOption {
    pub(crate) name: *const c_char,
    pub(crate) argument: *const c_char,
    pub(crate) usage: *const c_char,
    pub(crate) has_argument: c_int,
    pub(crate) value: c_int,
    pub(crate) callback: extern "C" fn(c_int, *const c_char, c_int) -> c_int,
}

/// `S_JOB_UID` and later items; each is a 32-bit number.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Item {
    Uid = 0,
    Gid = 1,
    Job = 2,
    Step = 3,
    /// The index of this node in the step.
    Node = 5,
    /// A task's number in the step.
    Task = 12,
    /// The status from `wait` of a task that has ended.
    Status = 13,
    /// A task's process number.
    Pid = 14,
}

/// `S_JOB_ARGV`, which is not a number.
const ARGUMENTS: u32 = 9;
/// `S_JOB_SUPPLEMENTARY_GIDS`.
const GROUPS: u32 = 19;
/// Groups of a user, at most: the kernel's limit.
const GROUPS_MAX: usize = 65_536;
/// How many arguments of a step's command are read.
const ARGUMENTS_MAX: usize = 2;

/// As `optional_argument` of getopt.
pub(crate) const OPTIONAL: c_int = 2;

// SAFETY: as `slurm/spank.h` declares them.
unsafe extern "C" {
    fn spank_remote(spank: Handle) -> c_int;
    fn spank_option_register(spank: Handle, option: *const SpankOption) -> c_int;
    fn spank_get_item(spank: Handle, item: u32, ...) -> c_int;
    fn spank_getenv(spank: Handle, name: *const c_char, text: *mut c_char, size: c_int) -> c_int;
    fn spank_setenv(
        spank: Handle,
        name: *const c_char,
        value: *const c_char,
        again: c_int,
    ) -> c_int;
    fn spank_unsetenv(spank: Handle, name: *const c_char) -> c_int;
    fn slurm_hostlist_create(hosts: *const c_char) -> *mut c_void;
    fn slurm_hostlist_shift(list: *mut c_void) -> *mut c_char;
    fn slurm_hostlist_destroy(list: *mut c_void);
    fn slurm_error(format: *const c_char, ...);
    fn slurm_spank_log(format: *const c_char, ...);
}

/// The calls that Slurm provides to a plugin. Valid during one hook.
#[derive(Clone, Copy)]
pub(crate) struct Spank(pub(crate) Handle);

impl Spank {
    /// Whether this runs on a node (slurmstepd), not in srun.
    pub(crate) fn is_remote(self) -> bool {
        // SAFETY: the handle is that of the current hook.
        unsafe { spank_remote(self.0) == 1 }
    }

    pub(crate) fn register(self, option: &SpankOption) -> bool {
        // SAFETY: as above; Slurm copies the option, whose texts are static.
        unsafe { spank_option_register(self.0, option) == 0 }
    }

    /// A number of the step.
    pub(crate) fn number(self, item: Item) -> Option<u32> {
        let mut number: u32 = 0;
        // SAFETY: each `Item` is a 32-bit number, and Slurm writes it to the given address.
        let code = unsafe { spank_get_item(self.0, item as u32, &raw mut number) };
        (code == 0).then_some(number)
    }

    /// The first arguments of the step's command; none if Slurm does not return them.
    pub(crate) fn arguments(self) -> Vec<String> {
        let mut count: c_int = 0;
        let mut arguments: *const *const c_char = std::ptr::null();
        // SAFETY: Slurm writes a number and a list to the given addresses.
        let code = unsafe { spank_get_item(self.0, ARGUMENTS, &raw mut count, &raw mut arguments) };
        if code != 0 || arguments.is_null() {
            return Vec::new();
        }
        let count = usize::try_from(count).unwrap_or(0).min(ARGUMENTS_MAX);
        // SAFETY: the list has `count` terminated texts, valid as long as the step.
        let argument = |at| unsafe { CStr::from_ptr(*arguments.add(at)) };
        (0..count)
            .map(|at| argument(at).to_string_lossy().into_owned())
            .collect()
    }

    /// All groups of the step's user; none if Slurm does not return them.
    pub(crate) fn groups(self) -> Vec<u32> {
        let mut groups: *const u32 = std::ptr::null();
        let mut count: c_int = 0;
        // SAFETY: Slurm writes a list and a number to the given addresses.
        let code = unsafe { spank_get_item(self.0, GROUPS, &raw mut groups, &raw mut count) };
        let count = usize::try_from(count).unwrap_or(0);
        if code != 0 || groups.is_null() || count > GROUPS_MAX {
            return Vec::new();
        }
        // SAFETY: the list has `count` numbers, valid as long as the step.
        unsafe { std::slice::from_raw_parts(groups, count) }.to_vec()
    }

    /// An environment variable of the tasks.
    pub(crate) fn variable(self, name: &CStr) -> Option<String> {
        let mut text = vec![0u8; 64 * 1024];
        let size = text.len() as c_int;
        // SAFETY: Slurm writes at most `size` bytes, terminator included.
        let code = unsafe { spank_getenv(self.0, name.as_ptr(), text.as_mut_ptr().cast(), size) };
        let text = CStr::from_bytes_until_nul(&text).ok()?;
        (code == 0).then(|| text.to_string_lossy().into_owned())
    }

    pub(crate) fn set(self, name: &CStr, value: &str) {
        if let Ok(value) = CString::new(value) {
            // SAFETY: both texts are terminated; Slurm copies them.
            unsafe { spank_setenv(self.0, name.as_ptr(), value.as_ptr(), 1) };
        }
    }

    pub(crate) fn unset(self, name: &CStr) {
        // SAFETY: a terminated text.
        unsafe { spank_unsetenv(self.0, name.as_ptr()) };
    }
}

/// The host name at an index of a host list, parsed by Slurm.
pub(crate) fn host(hosts: &str, index: u32) -> Option<String> {
    let hosts = CString::new(hosts).ok()?;
    // SAFETY: a terminated text, which Slurm copies; the list is destroyed below. The caller frees the names.
    unsafe {
        let list = slurm_hostlist_create(hosts.as_ptr());
        if list.is_null() {
            return None;
        }
        let mut found = None;
        for at in 0..=index {
            let name = slurm_hostlist_shift(list);
            if name.is_null() {
                break;
            }
            if at == index {
                found = Some(CStr::from_ptr(name).to_string_lossy().into_owned());
            }
            libc::free(name.cast());
        }
        slurm_hostlist_destroy(list);
        found
    }
}

/// Writes to the log, and to the standard error of srun.
pub(crate) fn error(text: &str) {
    if let Ok(text) = CString::new(text) {
        // SAFETY: the format has one text, which is terminated.
        unsafe { slurm_error(c"muster: %s".as_ptr(), text.as_ptr()) };
    }
}

/// Sends a message to the user, from a node or from srun.
pub(crate) fn message_to_user(text: &str) {
    if let Ok(text) = CString::new(text) {
        // SAFETY: as in `error`.
        unsafe { slurm_spank_log(c"muster: %s".as_ptr(), text.as_ptr()) };
    }
}
