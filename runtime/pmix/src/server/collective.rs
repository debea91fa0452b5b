//! Collective operations of ranks: fences, groups of processes, connections.
//!
//! libpmix waits for all local ranks of a collective and then makes one upcall for the node. The data of all nodes
//! goes back to all of these ranks with one answer.

use std::ffi::c_void;

use pmix_sys as sys;

use super::super::ffi::text;
use super::answer::{Done, InfoAnswer, give};
use super::arguments::slice;
use super::infos::Infos;

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
    pub(super) members: Members,
    pub(super) answer: Answer,
}

/// The processes that take part, in PMIx's own form.
pub(super) struct Members(pub(super) Vec<sys::pmix_proc_t>);

impl std::fmt::Debug for Members {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} members", self.0.len())
    }
}

/// The callback for the answer.
#[derive(Debug)]
pub(super) enum Answer {
    Data(sys::pmix_modex_cbfunc_t, *mut c_void),
    Done(Done),
    Infos(InfoAnswer),
}

// SAFETY: libpmix lets its callbacks be called on any thread; the pointers are its own and only passed back.
unsafe impl Send for Answer {}

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

/// Whether libpmix reports that all members of a group are on this node.
pub(super) fn is_local(infos: &[sys::pmix_info_t]) -> bool {
    infos
        .iter()
        .any(|info| text(&info.key).as_c_str() == sys::PMIX_GROUP_LOCAL_ONLY)
}

/// The endpoints that the members of a group exchange.
pub(super) fn endpoints(infos: &[sys::pmix_info_t]) -> Vec<u8> {
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
