//! Job control: requests of a rank to signal or end other ranks.

use pmix_sys as sys;

use super::super::ffi::text;
use super::answer::InfoAnswer;
use super::infos::Infos;

/// A signal for ranks on any node.
#[derive(Debug)]
pub struct Signalling {
    /// The ranks that get it; empty for all ranks of the job.
    pub ranks: Vec<u32>,
    /// The number of the signal.
    pub signal: i32,
    pub(super) answer: InfoAnswer,
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
pub(super) fn signal_of(info: &sys::pmix_info_t) -> Option<i32> {
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
