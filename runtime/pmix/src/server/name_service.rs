//! The name service: ranks publish values under names, look them up, and query data about the job.

use std::ffi::{CStr, CString, c_char, c_void};

use pmix_sys as sys;

use super::super::ffi::process;
use super::answer::{Done, InfoAnswer};
use super::arguments::slice;
use super::infos::Infos;

/// Prefix of PMIx's own keys.
pub(super) const RESERVED: &str = "pmix.";

/// A published value of any type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// PMIx's number of the type.
    pub kind: u16,
    /// A string without its NUL, bytes, or the eight bytes of a number.
    pub bytes: Vec<u8>,
}

/// Values to be published.
#[derive(Debug)]
pub struct Publishing {
    /// The publisher.
    pub rank: u32,
    /// Names and values.
    pub entries: Vec<(String, Value)>,
    /// They are deleted after the first look-up.
    pub once: bool,
    /// The answer, when it is done.
    pub answer: Done,
}

/// A request for published values.
#[derive(Debug)]
pub struct Lookup {
    /// The requester.
    pub rank: u32,
    /// The names.
    pub keys: Vec<String>,
    /// Wait until all are published.
    pub wait: bool,
    /// The longest wait; none for no limit.
    pub timeout_s: Option<u32>,
    pub(super) namespace: CString,
    pub(super) function: sys::pmix_lookup_cbfunc_t,
    pub(super) data: *mut c_void,
}

/// A query of a rank.
#[derive(Debug)]
pub struct Query {
    pub(super) keys: Vec<String>,
    pub(super) answer: InfoAnswer,
}

// SAFETY: libpmix lets its callbacks be called on any thread; the pointer is its own and only passed back.
unsafe impl Send for Lookup {}

impl Value {
    pub(super) fn read(value: &sys::pmix_value_t) -> Option<Self> {
        let kind = value.type_;
        // SAFETY: the type tag states which member of the union was written: a terminated string or NULL; this number
        // of bytes or NULL; a number, which begins where the union does.
        let bytes = unsafe {
            match u32::from(kind) {
                sys::PMIX_STRING if value.data.string.is_null() => Vec::new(),
                sys::PMIX_STRING => CStr::from_ptr(value.data.string).to_bytes().to_vec(),
                sys::PMIX_BYTE_OBJECT => {
                    slice(value.data.bo.bytes.cast::<u8>(), value.data.bo.size).to_vec()
                }
                kind if is_number(kind) => value.data.uint64.to_ne_bytes().to_vec(),
                _ => return None,
            }
        };
        Some(Self { kind, bytes })
    }
}

/// Types of eight bytes and less without a pointer: bool to double, a rank.
fn is_number(kind: u32) -> bool {
    (1..=17).contains(&kind) && kind != sys::PMIX_STRING || kind == sys::PMIX_PROC_RANK
}

impl Lookup {
    /// Answers with the values that were found: names, publishers, values. `is_all` if these are all.
    pub fn give(self, found: &[(String, u32, Value)], is_all: bool) {
        let Some(function) = self.function else {
            return;
        };
        let mut texts = Vec::new();
        let mut list = Vec::new();
        for (key, rank, value) in found {
            let mut bytes = value.bytes.clone();
            bytes.push(0);
            texts.push(bytes);
            let start = texts
                .last_mut()
                .map_or(std::ptr::null_mut(), |text| text.as_mut_ptr());
            // SAFETY: a struct of numbers and pointers, for which zeros are a valid value.
            let mut data: sys::pmix_pdata_t = unsafe { std::mem::zeroed() };
            data.proc_ = process(&self.namespace, *rank);
            for (to, from) in data
                .key
                .iter_mut()
                .zip(key.bytes().take(sys::PMIX_MAX_KEYLEN as usize))
            {
                *to = from as c_char;
            }
            data.value.type_ = value.kind;
            match u32::from(value.kind) {
                sys::PMIX_STRING => data.value.data.string = start.cast(),
                sys::PMIX_BYTE_OBJECT => {
                    let size = value.bytes.len();
                    data.value.data.bo = sys::pmix_byte_object_t {
                        bytes: start.cast(),
                        size,
                    };
                }
                _ => {
                    let eight = value.bytes.as_slice().try_into().unwrap_or_default();
                    data.value.data.uint64 = u64::from_ne_bytes(eight);
                }
            }
            list.push(data);
        }
        let status = match (is_all, found.is_empty()) {
            (true, _) => sys::PMIX_SUCCESS as i32,
            (false, true) => sys::PMIX_ERR_NOT_FOUND,
            (false, false) => sys::PMIX_ERR_PARTIAL_SUCCESS,
        };
        // SAFETY: the callback of this upcall with its own data, called once; it packs the list before it
        // returns, and list and texts are valid until then.
        unsafe { function(status, list.as_mut_ptr(), list.len(), self.data) };
    }

    /// Answers that it took too long.
    pub fn time_out(self) {
        self.fail(sys::PMIX_ERR_TIMEOUT);
    }

    /// Answers that there is no room for it.
    pub fn refuse(self) {
        self.fail(sys::PMIX_ERR_OUT_OF_RESOURCE);
    }

    fn fail(self, status: i32) {
        if let Some(function) = self.function {
            // SAFETY: the callback of this upcall with its own data, called once.
            unsafe { function(status, std::ptr::null_mut(), 0, self.data) };
        }
    }
}

impl Query {
    /// Answers with the known data: the job's name and size, and that it has no process sets other than MPI's own.
    pub fn give(self, namespace: &str, ranks: u32) {
        let mut infos = Infos::default();
        let known = self
            .keys
            .iter()
            .filter(|key| add_answer(&mut infos, key, namespace, ranks));
        let status = match known.count() {
            0 => sys::PMIX_ERR_NOT_FOUND,
            all if all == self.keys.len() => sys::PMIX_SUCCESS as i32,
            _ => sys::PMIX_ERR_PARTIAL_SUCCESS,
        };
        self.answer.give(status, infos);
    }
}

/// Adds the answer to one key; false if it is not known.
fn add_answer(infos: &mut Infos, key: &str, namespace: &str, ranks: u32) -> bool {
    let is = |one: &CStr| one.to_bytes() == key.as_bytes();
    if is(sys::PMIX_QUERY_NAMESPACES) {
        let name = CString::new(namespace).unwrap_or_default();
        infos.text(sys::PMIX_QUERY_NAMESPACES, name);
    } else if is(sys::PMIX_JOB_SIZE) {
        infos.number(sys::PMIX_JOB_SIZE, ranks);
    } else if is(sys::PMIX_QUERY_NUM_PSETS) {
        infos.size(sys::PMIX_QUERY_NUM_PSETS, 0);
    } else if is(sys::PMIX_QUERY_PSET_NAMES) {
        infos.text(sys::PMIX_QUERY_PSET_NAMES, CString::default());
    } else {
        return false;
    }
    true
}
