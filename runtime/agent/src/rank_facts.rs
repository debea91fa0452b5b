//! Conversion of findings of the process watch to reports about a rank.

use crate::watch::{FailedBy, Finding, HungBy};
use muster_control::MINUS;
use muster_protocol::{Input, RankDetail, RankState, Told};
use muster_shm::Cause;

/// State, cause and signal (or, for a failure, minus the exit code) of a finding; none if the rank's state does not
/// change.
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

/// A report about a rank, as an input of the engine.
pub(super) fn rank_report(
    rank: u32,
    state: RankState,
    cause: Cause,
    argument: i32,
) -> Input<'static> {
    // All values fit: there are few causes, and on Linux signals are below 128 and exit codes below 256.
    let sign = if argument < 0 { MINUS } else { 0 };
    let detail = RankDetail {
        code: cause as u16 as u8 | sign,
        argument: argument.unsigned_abs() as u8,
    };
    Input::Told(Told::Rank {
        rank,
        state,
        detail,
    })
}
