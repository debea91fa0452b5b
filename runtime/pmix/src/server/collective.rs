//! Where ranks wait for each other: fences, groups of processes, connections.
//!
//! libpmix waits for all local ranks of a meeting and then asks once for the node; what the other nodes have
//! brought goes back to all of them with one answer.

use std::ffi::{CStr, c_char, c_void};

use pmix_sys as sys;

use super::super::ffi::text;
use super::infos::Infos;
use super::upcall::{Upcall, is_rank, queue, slice};

/// What ranks meet for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Collective {
    /// `PMIx_Fence`: everybody gets what all have put.
    Fence,
    /// `PMIx_Connect`.
    Connect,
    /// `PMIx_Disconnect`.
    Disconnect,
    /// `PMIx_Group_construct`, of this name: the group gets a number that no other one has.
    Construct(String),
    /// `PMIx_Group_destruct`.
    Destruct(String),
}

impl Collective {
    /// By this a meeting is told from others of the same ranks; empty for a fence.
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

/// This node's part of a meeting, to be answered with everybody's.
#[derive(Debug)]
pub struct Contribution {
    /// What it is.
    pub collective: Collective,
    /// Who takes part; empty for all ranks of the job.
    pub ranks: Vec<u32>,
    /// What the local ranks have put, as libpmix packs it.
    pub data: Vec<u8>,
    /// How long the ranks want to wait; none for as long as it takes.
    pub timeout_s: Option<u32>,
    members: Members,
    answer: Answer,
}

/// Who takes part, in PMIx's own words.
struct Members(Vec<sys::pmix_proc_t>);

impl std::fmt::Debug for Members {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} members", self.0.len())
    }
}

/// Whom to answer.
#[derive(Debug)]
enum Answer {
    Data(sys::pmix_modex_cbfunc_t, *mut c_void),
    Done(Done),
    Infos(InfoAnswer),
}

/// An answer without words.
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

// SAFETY: libpmix lets its callbacks be called on any thread; the pointers are its own and only handed back.
unsafe impl Send for Answer {}
// SAFETY: as above.
unsafe impl Send for Done {}
// SAFETY: as above.
unsafe impl Send for InfoAnswer {}

impl Contribution {
    /// Lets the ranks go on, with what all nodes have put, one after the other; `number` is that of a group.
    pub fn complete(self, everybodys: &[u8], number: usize) {
        match self.answer {
            Answer::Data(function, data) => {
                give(function, data, sys::PMIX_SUCCESS as i32, everybodys);
            }
            Answer::Done(done) => done.succeed(),
            Answer::Infos(answer) => {
                let mut infos = Infos::default();
                if matches!(self.collective, Collective::Construct(_)) {
                    infos.members(sys::PMIX_GROUP_MEMBERSHIP, self.members.0);
                    infos.size(sys::PMIX_GROUP_CONTEXT_ID, number);
                    if !everybodys.is_empty() {
                        infos.handed_over(sys::PMIX_GROUP_ENDPT_DATA, everybodys);
                    }
                }
                answer.give(sys::PMIX_SUCCESS as i32, infos);
            }
        }
    }

    /// Lets the ranks go on with an error: it took too long.
    pub fn time_out(self) {
        self.fail(sys::PMIX_ERR_TIMEOUT);
    }

    /// The same: it is more than can be carried.
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
    /// It is done.
    pub fn succeed(self) {
        self.answer(sys::PMIX_SUCCESS as i32);
    }

    /// There is no room for it.
    pub fn refuse(self) {
        self.answer(sys::PMIX_ERR_OUT_OF_RESOURCE);
    }

    /// Somebody has left something under this name already.
    pub fn refuse_duplicate(self) {
        self.answer(sys::PMIX_ERR_DUPLICATE_KEY);
    }

    pub(super) fn answer(self, status: i32) {
        if let Some(function) = self.function {
            // SAFETY: the callback of an upcall with its own data, called once, since `self` is given up.
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
        let (place, count) = (infos.list.as_mut_ptr(), infos.list.len());
        let list = if count == 0 {
            std::ptr::null_mut()
        } else {
            place
        };
        // SAFETY: the callback of an upcall with its own data, called once; the list and what it points to live
        // until `release_infos` is called with the box they are in.
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
    let (place, length) = (copy.as_ptr(), copy.len());
    // SAFETY: the callback of an upcall with its own data, called once (the contribution is given up by the
    // callers); the bytes live until `release` is called with the box they are in.
    unsafe {
        function(
            status,
            place.cast(),
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

fn meet(
    collective: Collective,
    members: &[sys::pmix_proc_t],
    infos: &[sys::pmix_info_t],
    data: Vec<u8>,
    answer: Answer,
) -> sys::pmix_status_t {
    if !members.iter().all(is_rank) {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    }
    let everybody = members
        .iter()
        .any(|process| process.rank == sys::PMIX_RANK_WILDCARD);
    let mut ranks: Vec<u32> = members.iter().map(|process| process.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    queue(Upcall::Collective(Contribution {
        collective,
        ranks: if everybody { Vec::new() } else { ranks },
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
    // SAFETY: libpmix passes so many processes and infos and so many bytes, or NULL for none, valid for the
    // call; the bytes were allocated with malloc and are ours to free.
    let (processes, infos, bytes) = unsafe {
        let bytes = slice(data.cast::<u8>(), length).to_vec();
        libc::free(data.cast());
        (slice(processes, count), slice(infos, infos_count), bytes)
    };
    let answer = Answer::Data(answer, answer_data);
    meet(Collective::Fence, processes, infos, bytes, answer)
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
    meet(Collective::Connect, processes, infos, Vec::new(), answer)
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
    meet(Collective::Disconnect, processes, infos, Vec::new(), answer)
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
        // All members are here and have come. libpmix 5 asks a second time for such a group if it has to wait for the
        // answer, and uses what it has freed when it has two.
        return sys::PMIX_OPERATION_SUCCEEDED;
    } else {
        Collective::Destruct(name)
    };
    let answer = Answer::Infos(InfoAnswer { function, data });
    meet(collective, processes, infos, endpoints(infos), answer)
}

/// Whether a group has all its members on this node, as libpmix says.
fn is_local(infos: &[sys::pmix_info_t]) -> bool {
    infos
        .iter()
        .any(|info| text(&info.key).as_c_str() == sys::PMIX_GROUP_LOCAL_ONLY)
}

/// What the members of a group tell each other of where they are reached.
fn endpoints(infos: &[sys::pmix_info_t]) -> Vec<u8> {
    let mut all = Vec::new();
    for info in infos {
        let is_object = u32::from(info.value.type_) == sys::PMIX_BYTE_OBJECT;
        if is_object && text(&info.key).as_c_str() == sys::PMIX_GROUP_ENDPT_DATA {
            // SAFETY: the type tag says which member of the union was written; so many bytes or NULL.
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

/// How long a rank wants to wait.
pub(super) fn timeout(infos: &[sys::pmix_info_t]) -> Option<u32> {
    let info = infos
        .iter()
        .find(|info| text(&info.key).as_c_str() == sys::PMIX_TIMEOUT)?;
    if u32::from(info.value.type_) != sys::PMIX_INT {
        return None;
    }
    // SAFETY: the type tag says which member of the union was written.
    let seconds = unsafe { info.value.data.integer };
    u32::try_from(seconds).ok().filter(|seconds| *seconds > 0)
}
