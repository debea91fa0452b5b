//! Collective operations of ranks: fences, groups of processes, connections.
//!
//! libpmix waits for all local ranks of a collective and then makes one upcall for the node. The data of all nodes
//! goes back to all of these ranks with one answer.

use std::ffi::{CStr, c_char, c_void};

use pmix_sys as sys;

use super::super::ffi::text;
use super::infos::Infos;
use super::upcall::{Upcall, is_rank, queue, slice};

/// The kind of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Collective {
    /// `PMIx_Fence`: every rank gets the data that all ranks have put.
    Fence,
    /// `PMIx_Connect`.
    Connect,
    /// `PMIx_Disconnect`.
    Disconnect,
    /// `PMIx_Group_construct`, of this name: the group gets a number that is unique.
    Construct(String),
    /// `PMIx_Group_destruct`.
    Destruct(String),
}

impl Collective {
    /// Distinguishes collectives of the same ranks; empty for a fence.
    pub fn tag(&self) -> String {
        match self {
            Self::Fence => String::new(),
            Self::Connect => "connect".into(),
            Self::Disconnect => "disconnect".into(),
            Self::Construct(name) => format!("construct {name}"),
            Self::Destruct(name) => format!("destruct {name}"),
        }
    }
}

/// This node's part of a collective, to be answered with the data of all nodes.
#[derive(Debug)]
pub struct Contribution {
    /// The kind.
    pub collective: Collective,
    /// The ranks that take part; empty for all ranks of the job.
    pub ranks: Vec<u32>,
    /// The data that the local ranks have put, as libpmix packs it.
    pub data: Vec<u8>,
    /// How long the ranks wait; none for no limit.
    pub timeout_s: Option<u32>,
    members: Members,
    answer: Answer,
}

/// The processes that take part, in PMIx's own form.
struct Members(Vec<sys::pmix_proc_t>);

impl std::fmt::Debug for Members {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} members", self.0.len())
    }
}

/// The callback for the answer.
#[derive(Debug)]
enum Answer {
    Data(sys::pmix_modex_cbfunc_t, *mut c_void),
    Done(Done),
    Infos(InfoAnswer),
}

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
unsafe impl Send for Answer {}
// SAFETY: as above.
unsafe impl Send for Done {}
// SAFETY: as above.
unsafe impl Send for InfoAnswer {}

impl Contribution {
    /// Lets the ranks continue, with the concatenated data of all nodes; `number` is that of a group.
    pub fn complete(self, all_data: &[u8], number: usize) {
        match self.answer {
            Answer::Data(function, data) => {
                give(function, data, sys::PMIX_SUCCESS as i32, all_data);
            }
            Answer::Done(done) => done.succeed(),
            Answer::Infos(answer) => {
                let mut infos = Infos::default();
                if matches!(self.collective, Collective::Construct(_)) {
                    infos.members(sys::PMIX_GROUP_MEMBERSHIP, self.members.0);
                    infos.size(sys::PMIX_GROUP_CONTEXT_ID, number);
                    if !all_data.is_empty() {
                        infos.handed_over(sys::PMIX_GROUP_ENDPT_DATA, all_data);
                    }
                }
                answer.give(sys::PMIX_SUCCESS as i32, infos);
            }
        }
    }

    /// Lets the ranks continue with an error: it took too long.
    pub fn time_out(self) {
        self.fail(sys::PMIX_ERR_TIMEOUT);
    }

    /// Lets the ranks continue with an error: there is too much data to transmit.
    pub fn refuse(self) {
        self.fail(sys::PMIX_ERR_OUT_OF_RESOURCE);
    }

    fn fail(self, status: i32) {
        match self.answer {
            Answer::Data(function, data) => give(function, data, status, &[]),
            Answer::Done(done) => done.answer(status),
            Answer::Infos(answer) => answer.give(status, Infos::default()),
        }
    }
}

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

fn queue_contribution(
    collective: Collective,
    members: &[sys::pmix_proc_t],
    infos: &[sys::pmix_info_t],
    data: Vec<u8>,
    answer: Answer,
) -> sys::pmix_status_t {
    if !members.iter().all(is_rank) {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    }
    let for_all = members
        .iter()
        .any(|process| process.rank == sys::PMIX_RANK_WILDCARD);
    let mut ranks: Vec<u32> = members.iter().map(|process| process.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    queue(Upcall::Collective(Contribution {
        collective,
        ranks: if for_all { Vec::new() } else { ranks },
        data,
        timeout_s: timeout(infos),
        members: Members(members.to_vec()),
        answer,
    }))
}

pub(super) extern "C" fn fence(
    processes: *const sys::pmix_proc_t,
    count: usize,
    infos: *const sys::pmix_info_t,
    infos_count: usize,
    data: *mut c_char,
    length: usize,
    answer: sys::pmix_modex_cbfunc_t,
    answer_data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes this number of processes, infos and bytes, or NULL for none, valid for the call; the
    // bytes were allocated with malloc and are ours to free.
    let (processes, infos, bytes) = unsafe {
        let bytes = slice(data.cast::<u8>(), length).to_vec();
        libc::free(data.cast());
        (slice(processes, count), slice(infos, infos_count), bytes)
    };
    let answer = Answer::Data(answer, answer_data);
    queue_contribution(Collective::Fence, processes, infos, bytes, answer)
}

pub(super) extern "C" fn connect(
    processes: *const sys::pmix_proc_t,
    count: usize,
    infos: *const sys::pmix_info_t,
    infos_count: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: as in `fence`.
    let (processes, infos) = unsafe { (slice(processes, count), slice(infos, infos_count)) };
    let answer = Answer::Done(Done { function, data });
    queue_contribution(Collective::Connect, processes, infos, Vec::new(), answer)
}

pub(super) extern "C" fn disconnect(
    processes: *const sys::pmix_proc_t,
    count: usize,
    infos: *const sys::pmix_info_t,
    infos_count: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: as in `fence`.
    let (processes, infos) = unsafe { (slice(processes, count), slice(infos, infos_count)) };
    let answer = Answer::Done(Done { function, data });
    queue_contribution(Collective::Disconnect, processes, infos, Vec::new(), answer)
}

pub(super) extern "C" fn group(
    operation: sys::pmix_group_operation_t,
    name: *mut c_char,
    processes: *const sys::pmix_proc_t,
    count: usize,
    infos: *const sys::pmix_info_t,
    infos_count: usize,
    function: sys::pmix_info_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: as in `fence`; the name is a terminated text or NULL.
    let (processes, infos, name) = unsafe {
        let name = (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned());
        (slice(processes, count), slice(infos, infos_count), name)
    };
    let name = name.unwrap_or_default();
    let collective = if operation == sys::PMIX_GROUP_CONSTRUCT {
        Collective::Construct(name)
    } else if is_local(infos) {
        // All members are on this node and have arrived. If libpmix 5 has to wait for the answer of such a group, it
        // makes a second upcall, and uses freed memory when it has two answers.
        return sys::PMIX_OPERATION_SUCCEEDED;
    } else {
        Collective::Destruct(name)
    };
    let answer = Answer::Infos(InfoAnswer { function, data });
    queue_contribution(collective, processes, infos, endpoints(infos), answer)
}

/// Whether libpmix reports that all members of a group are on this node.
fn is_local(infos: &[sys::pmix_info_t]) -> bool {
    infos
        .iter()
        .any(|info| text(&info.key).as_c_str() == sys::PMIX_GROUP_LOCAL_ONLY)
}

/// The endpoints that the members of a group exchange.
fn endpoints(infos: &[sys::pmix_info_t]) -> Vec<u8> {
    let mut all = Vec::new();
    for info in infos {
        let is_object = u32::from(info.value.type_) == sys::PMIX_BYTE_OBJECT;
        if is_object && text(&info.key).as_c_str() == sys::PMIX_GROUP_ENDPT_DATA {
            // SAFETY: the type tag states which member of the union was written; this number of bytes, or NULL.
            all.extend(unsafe {
                slice(
                    info.value.data.bo.bytes.cast::<u8>(),
                    info.value.data.bo.size,
                )
            });
        }
    }
    all
}

/// How long a rank waits.
pub(super) fn timeout(infos: &[sys::pmix_info_t]) -> Option<u32> {
    let info = infos
        .iter()
        .find(|info| text(&info.key).as_c_str() == sys::PMIX_TIMEOUT)?;
    if u32::from(info.value.type_) != sys::PMIX_INT {
        return None;
    }
    // SAFETY: the type tag states which member of the union was written.
    let seconds = unsafe { info.value.data.integer };
    u32::try_from(seconds).ok().filter(|seconds| *seconds > 0)
}
