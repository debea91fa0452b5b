//! Job control: requests of a rank to signal or end other ranks.

use std::ffi::c_void;

use pmix_sys as sys;

use super::super::ffi::text;
use super::collective::InfoAnswer;
use super::infos::Infos;
use super::upcall::{Upcall, is_rank, queue, rank, slice};

/// A signal for ranks on any node.
#[derive(Debug)]
pub struct Signalling {
    /// The ranks that get it; empty for all ranks of the job.
    pub ranks: Vec<u32>,
    /// The number of the signal.
    pub signal: i32,
    answer: InfoAnswer,
}

impl Signalling {
    /// Answers that it is being sent.
    pub fn succeed(self) {
        self.answer.give(sys::PMIX_SUCCESS as i32, Infos::default());
    }

    /// Answers that there is no room for it.
    pub fn refuse(self) {
        self.answer
            .give(sys::PMIX_ERR_OUT_OF_RESOURCE, Infos::default());
    }
}

/// The signal that a directive requests.
fn signal_of(info: &sys::pmix_info_t) -> Option<i32> {
    let key = text(&info.key);
    // SAFETY: the type tag states which member of the union was written.
    let is_true =
        || u32::from(info.value.type_) != sys::PMIX_BOOL || unsafe { info.value.data.flag };
    if key.as_c_str() == sys::PMIX_JOB_CTRL_SIGNAL && u32::from(info.value.type_) == sys::PMIX_INT {
        // SAFETY: as above.
        return Some(unsafe { info.value.data.integer }).filter(|signal| (1..=64).contains(signal));
    }
    if key.as_c_str() == sys::PMIX_JOB_CTRL_KILL && is_true() {
        return Some(libc::SIGKILL);
    }
    (key.as_c_str() == sys::PMIX_JOB_CTRL_TERMINATE && is_true()).then_some(libc::SIGTERM)
}

pub(super) extern "C" fn job_control(
    requester: *const sys::pmix_proc_t,
    targets: *const sys::pmix_proc_t,
    targets_count: usize,
    infos: *const sys::pmix_info_t,
    infos_count: usize,
    function: sys::pmix_info_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes this number of processes and infos, or NULL for none, valid for the call.
    let (requester, targets, infos) = unsafe {
        let targets = slice(targets, targets_count);
        (rank(requester), targets, slice(infos, infos_count))
    };
    if requester.is_none() || !targets.iter().all(is_rank) {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    }
    let Some(signal) = infos.iter().find_map(signal_of) else {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    };
    let for_all = targets
        .iter()
        .any(|one| one.rank == sys::PMIX_RANK_WILDCARD);
    queue(Upcall::Signal(Signalling {
        ranks: targets
            .iter()
            .map(|one| one.rank)
            .filter(|_| !for_all)
            .collect(),
        signal,
        answer: InfoAnswer { function, data },
    }))
}
