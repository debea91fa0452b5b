//! The board at the desk: ranks leave words for others under a name, look for them, and ask what there is.

use std::ffi::{CStr, CString, c_char, c_void};

use pmix_sys as sys;

use super::super::ffi::{process, text};
use super::collective::{Done, InfoAnswer, timeout};
use super::infos::Infos;
use super::upcall::{Upcall, is_rank, queue, rank, slice};

/// Keys that are PMIx's own begin so.
const RESERVED: &str = "pmix.";

/// A value that was left, whatever it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// PMIx's number of the type.
    pub kind: u16,
    /// A text without its end, bytes, or the eight bytes of a number.
    pub bytes: Vec<u8>,
}

/// Words to be left.
#[derive(Debug)]
pub struct Publishing {
    /// Whose.
    pub rank: u32,
    /// Names and values.
    pub entries: Vec<(String, Value)>,
    /// They are for the first who reads them.
    pub once: bool,
    /// To be told when it is done.
    pub answer: Done,
}

/// Words that are looked for.
#[derive(Debug)]
pub struct Lookup {
    /// Who looks.
    pub rank: u32,
    /// Their names.
    pub keys: Vec<String>,
    /// Wait until all are there.
    pub wait: bool,
    /// But no longer than that; none for as long as it takes.
    pub timeout_s: Option<u32>,
    namespace: CString,
    function: sys::pmix_lookup_cbfunc_t,
    data: *mut c_void,
}

/// What a rank wants to know.
#[derive(Debug)]
pub struct Query {
    keys: Vec<String>,
    answer: InfoAnswer,
}

// SAFETY: libpmix lets its callbacks be called on any thread; the pointer is its own and only handed back.
unsafe impl Send for Lookup {}

impl Value {
    fn read(value: &sys::pmix_value_t) -> Option<Self> {
        let kind = value.type_;
        // SAFETY: the type tag says which member of the union was written: a terminated text or NULL; so many
        // bytes or NULL; a number, which begins where the union does.
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
    /// Answers with what was found: names, whose, values. All of it, if `is_all`.
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
            let place = texts
                .last_mut()
                .map_or(std::ptr::null_mut(), |text| text.as_mut_ptr());
            // SAFETY: a struct of numbers and pointers, for which zeros are a value.
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
                sys::PMIX_STRING => data.value.data.string = place.cast(),
                sys::PMIX_BYTE_OBJECT => {
                    let size = value.bytes.len();
                    data.value.data.bo = sys::pmix_byte_object_t {
                        bytes: place.cast(),
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
        // SAFETY: the callback of this very upcall with its own data, called once; it packs the list before it
        // returns, and list and texts live until then.
        unsafe { function(status, list.as_mut_ptr(), list.len(), self.data) };
    }

    /// It took too long.
    pub fn time_out(self) {
        self.fail(sys::PMIX_ERR_TIMEOUT);
    }

    /// There is no room for it.
    pub fn refuse(self) {
        self.fail(sys::PMIX_ERR_OUT_OF_RESOURCE);
    }

    fn fail(self, status: i32) {
        if let Some(function) = self.function {
            // SAFETY: the callback of this very upcall with its own data, called once.
            unsafe { function(status, std::ptr::null_mut(), 0, self.data) };
        }
    }
}

impl Query {
    /// Answers what is known: the job's name and size, and that it has no sets of processes but MPI's own.
    pub fn give(self, namespace: &str, ranks: u32) {
        let mut infos = Infos::default();
        let known = self
            .keys
            .iter()
            .filter(|key| tell(&mut infos, key, namespace, ranks));
        let status = match known.count() {
            0 => sys::PMIX_ERR_NOT_FOUND,
            all if all == self.keys.len() => sys::PMIX_SUCCESS as i32,
            _ => sys::PMIX_ERR_PARTIAL_SUCCESS,
        };
        self.answer.give(status, infos);
    }
}

/// Adds the answer to one question; false if it is not known.
fn tell(infos: &mut Infos, key: &str, namespace: &str, ranks: u32) -> bool {
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

pub(super) extern "C" fn publish(
    who: *const sys::pmix_proc_t,
    infos: *const sys::pmix_info_t,
    count: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes a process and so many infos, valid for the call.
    let (who, infos) = unsafe { (rank(who), slice(infos, count)) };
    let Some(rank) = who else {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    };
    let mut entries = Vec::new();
    for info in infos {
        let key = text(&info.key).to_string_lossy().into_owned();
        if key.starts_with(RESERVED) {
            continue;
        }
        match Value::read(&info.value) {
            Some(value) => entries.push((key, value)),
            None => return sys::PMIX_ERR_NOT_SUPPORTED,
        }
    }
    let is_once = |info: &sys::pmix_info_t| {
        text(&info.key).as_c_str() == sys::PMIX_PERSISTENCE
            && u32::from(info.value.type_) == sys::PMIX_PERSIST
            // SAFETY: the type tag says which member of the union was written.
            && u32::from(unsafe { info.value.data.persist }) == sys::PMIX_PERSIST_FIRST_READ
    };
    queue(Upcall::Publish(Publishing {
        rank,
        entries,
        once: infos.iter().any(is_once),
        answer: Done { function, data },
    }))
}

pub(super) extern "C" fn lookup(
    who: *const sys::pmix_proc_t,
    keys: *mut *mut c_char,
    infos: *const sys::pmix_info_t,
    count: usize,
    function: sys::pmix_lookup_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes a process, a list of texts with NULL at its end and so many infos, valid for the call.
    let (who, keys, infos) = unsafe { (who.as_ref(), texts(keys), slice(infos, count)) };
    let Some(who) = who.filter(|who| is_rank(who)) else {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    };
    let waits = |info: &sys::pmix_info_t| text(&info.key).as_c_str() == sys::PMIX_WAIT;
    queue(Upcall::Lookup(Lookup {
        rank: who.rank,
        keys,
        wait: infos.iter().any(waits),
        timeout_s: timeout(infos),
        namespace: text(&who.nspace),
        function,
        data,
    }))
}

pub(super) extern "C" fn unpublish(
    who: *const sys::pmix_proc_t,
    keys: *mut *mut c_char,
    _infos: *const sys::pmix_info_t,
    _count: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: as in `lookup`.
    let (who, keys) = unsafe { (rank(who), texts(keys)) };
    let Some(rank) = who else {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    };
    queue(Upcall::Unpublish {
        rank,
        keys,
        answer: Done { function, data },
    })
}

/// libpmix names its own server as the process that asks, so a rank and a tool cannot be told apart.
pub(super) extern "C" fn query(
    _who: *mut sys::pmix_proc_t,
    queries: *mut sys::pmix_query_t,
    count: usize,
    function: sys::pmix_info_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes so many queries, each with a list of texts with NULL at its end.
    let keys = unsafe {
        let queries = slice(queries, count).iter();
        queries.flat_map(|one| texts(one.keys)).collect()
    };
    let answer = InfoAnswer { function, data };
    queue(Upcall::Query(Query { keys, answer }))
}

/// # Safety
/// NULL, or a list of terminated texts with NULL at its end.
unsafe fn texts(list: *mut *mut c_char) -> Vec<String> {
    let mut all = Vec::new();
    if list.is_null() {
        return all;
    }
    // SAFETY: as the caller promises.
    unsafe {
        let mut at = list;
        while !(*at).is_null() {
            all.push(CStr::from_ptr(*at).to_string_lossy().into_owned());
            at = at.add(1);
        }
    }
    all
}
