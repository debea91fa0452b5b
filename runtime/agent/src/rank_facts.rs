//! What is stated of a rank, from what the kernel found.

use crate::watch::{FailedBy, Finding, HungBy};
use muster_control::MINUS;
use muster_protocol::{Input, RankDetail, RankState, Told};
use muster_shm::Cause;

/// State, cause and signal (or, of a failure, minus the exit code) of a finding; none if it changes
/// nothing for a rank.
pub(super) fn describe(finding: Finding) -> Option<(RankState, Cause, i32)> {
    Some(match finding {
        Finding::Left { exit_code } => (RankState::Left, Cause::Announced, exit_code),
        Finding::Failed {
            by,
            signal,
            exit_code,
        } => {
            let cause = match by {
                FailedBy::Futex => Cause::KernelFutex,
                FailedBy::Pidfd | FailedBy::Gone => Cause::Pidfd,
                FailedBy::CoreDump => Cause::CoreDump,
            };
            (
                RankState::Failed,
                cause,
                if signal == 0 { -exit_code } else { signal },
            )
        }
        Finding::Detached => return None,
        Finding::Hung(HungBy::Stopped) => (RankState::Hung, Cause::Stopped, 0),
        Finding::Hung(HungBy::Stuck) => (RankState::Hung, Cause::Stuck, 0),
        Finding::Hung(HungBy::NoTick) => (RankState::Hung, Cause::NoTick, 0),
        Finding::Resumed => (RankState::Alive, Cause::Joined, 0),
    })
}

pub(super) fn tell_rank(
    input: &mut dyn FnMut(Input<'_>),
    rank: u32,
    state: RankState,
    cause: Cause,
    argument: i32,
) {
    input(Input::Told(about_rank(rank, state, cause, argument)));
}

pub(super) fn about_rank(
    rank: u32,
    state: RankState,
    cause: Cause,
    argument: i32,
) -> Told<'static> {
    // All fit: causes are few, signals are below 128 and exit codes below 256, as the kernel has it.
    let sign = if argument < 0 { MINUS } else { 0 };
    let detail = RankDetail {
        code: cause as u16 as u8 | sign,
        argument: argument.unsigned_abs() as u8,
    };
    Told::Rank {
        rank,
        state,
        detail,
    }
}
