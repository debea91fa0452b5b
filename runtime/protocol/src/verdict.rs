//! Verdicts: every rule by which one member judges another, in one place.
//!
//! An observed member sends a beat every `heartbeat`. After 1.5 heartbeats of silence it is probed over all
//! rails, and three other members (probers) probe it too. If neither the local member nor a prober has
//! heard it by the `deadline`, the local member *reports* it, in its present version. When enough distinct
//! members (Theta) have reported the same version, it is failed. All members that hold the same reports
//! agree.
//!
//! The silence may be the fault of the local member. Three cases:
//!
//! - *It overslept.* A detector that was stopped for a minute sees a minute of silence everywhere.
//!   `lateness` moves the silences of the others on by that time. After a deadline of sleep the local
//!   member makes no verdict for two deadlines, and neither keeps nor takes reports: what it holds, and
//!   what waited in its sockets, is as old as its sleep, and would count anew if passed on.
//! - *It is cut off.* If it hears no other member at all, it doubts itself first, for one more deadline,
//!   and reports only then (`doubts_itself`). With a single other member in the view it reports at once,
//!   since it cannot tell.
//! - *It is on one side of a split.* Each side holds the other failed. When two such members meet, the one
//!   of the weaker side yields (`yields`): it takes over the other's view with its verdicts, also those on
//!   incarnations that began on its own side. Reports of a member that is held failed do not count.
//!
//! The reported member may refute. A higher minor of the same incarnation refutes every report against a
//! lower one. It even brings back a failed member, if that member sent it before it learned of the verdict.
//! A member that learns of the verdict comes back with a higher incarnation instead.
//! | evidence about version v                         | in view at v | verdict                      |
//! |--------------------------------------------------|--------------|------------------------------|
//! | any authentic frame of this incarnation          | yes          | silence starts anew          |
//! | silent 1.5 heartbeats                            | yes          | probe: all rails, probers    |
//! | silent a deadline, observed locally              | yes          | own report                   |
//! | the same, joined less than four deadlines ago    | yes          | none, unless it has accepted |
//! |                                                  |              | to send beats                |
//! | unreachable, then silent 1.75 heartbeats         | yes          | own report, unless a living  |
//! |                                                  |              | rank may restart its agent   |
//! | 1 <= distinct reporters of v < threshold         | yes          | `Suspect`                    |
//! | distinct reporters of v >= threshold             | yes          | `Failed`                     |
//! | launcher or administrator says failed            | yes          | `Failed`                     |
//! | leave at v or above                              | yes          | `Left`                       |
//! | report of a version below v                      | yes          | none (it was refuted)        |
//! | report of a member that is not in the view       | yes          | none (another view)          |
//! | report held or taken just after oversleeping     | yes          | none (it is old)             |
//! | alive at v or below                              | no           | none (it is late)            |
//! | alive above v                                    | no           | back in the view             |
//!
//! **Small views.** The paper leaves its correction out. Here the threshold is Theta, or the number of
//! members that could report if that is smaller, and at least one. All members of the view could report,
//! except the accused and suspects. So of two members one may judge the other, and when half of a view dies
//! at once, the dead do not keep each other alive. Each member applies the rule to the reports it holds. A
//! received verdict with too few reporters counts as those reports, and is checked by a probe.

use crate::cause::CauseKind;
use crate::identity::Version;
use crate::planted::{self, Fault};
use crate::state::NodeState;
use crate::time::Instant;
use crate::wire::Strength;

/// Deadlines that a member has for its first answer after it has joined.
const JOINING_DEADLINES: u64 = 4;

/// How news about a member relates to what the table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The news wins.
    Newer,
    /// Both are equal, except for their reporters.
    Same,
    /// The table wins; the sender holds an older record.
    Older,
}

/// Orders two records of one member: by version, then by how final the state is.
pub(crate) fn order(news: (Version, NodeState), held: (Version, NodeState)) -> Order {
    let finality = |state: NodeState| match state {
        NodeState::Left => 3,
        NodeState::Failed => 2,
        NodeState::Suspect => 1,
        NodeState::Alive | NodeState::Degraded | NodeState::Unknown => 0,
    };
    if planted::on(Fault::FinalityIgnored) && held.1 != NodeState::Suspect {
        return match news.0.cmp(&held.0) {
            core::cmp::Ordering::Less => Order::Older,
            _ if news == held => Order::Same,
            _ => Order::Newer,
        };
    }
    match (news.0, finality(news.1)).cmp(&(held.0, finality(held.1))) {
        core::cmp::Ordering::Greater => Order::Newer,
        core::cmp::Ordering::Equal => Order::Same,
        core::cmp::Ordering::Less => Order::Older,
    }
}

/// The number of distinct reporters that removes a member, when `able` members could report.
pub(crate) fn threshold(theta: usize, able: usize) -> usize {
    theta.min(able).max(1)
}

/// The state that follows from `reporters` distinct reports of the version in the view.
pub(crate) fn judge(reporters: usize, threshold: usize) -> NodeState {
    match reporters {
        0 => NodeState::Alive,
        some if some < threshold => NodeState::Suspect,
        _ => NodeState::Failed,
    }
}

/// Whether a received verdict holds without further reports.
pub(crate) fn stands(cause: CauseKind, reporters: usize, threshold: usize) -> bool {
    cause == CauseKind::Told || reporters >= threshold
}

/// The step that a silence requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Silence {
    Usual,
    Probe,
    Report,
}

/// When a silence requires a probe.
pub(crate) fn probe_at(alive_at: Instant, heartbeat_us: u64) -> Instant {
    alive_at.after(heartbeat_us + heartbeat_us / 2)
}

/// Until when a member that joined at `joined_at`, and has not accepted to send beats, is not reported.
pub(crate) fn joining_until(joined_at: Instant, deadline_us: u64) -> Instant {
    joined_at.after(JOINING_DEADLINES * deadline_us)
}

/// Judges a silence. `deadline_us` is widened already by both sides' lateness.
pub(crate) fn silence(
    now: Instant,
    alive_at: Instant,
    heartbeat_us: u64,
    deadline_us: u64,
) -> Silence {
    if now >= alive_at.after(deadline_us) {
        Silence::Report
    } else if now >= probe_at(alive_at, heartbeat_us) {
        Silence::Probe
    } else {
        Silence::Usual
    }
}

/// Whether a member that hears no other member must doubt itself before it reports others.
pub(crate) fn doubts_itself(
    now: Instant,
    heard_any: Instant,
    doubted_since: Option<Instant>,
    others: usize,
    deadline_us: u64,
) -> bool {
    others >= 2
        && now.since(heard_any) >= deadline_us
        && doubted_since.is_none_or(|since| now.since(since) < deadline_us)
}

/// Whether the side `ours` yields to the side `theirs`: the smaller view does. Of two equal ones it is the
/// one whose first member comes later on the ring.
pub(crate) fn yields(ours: Strength, theirs: Strength) -> bool {
    (ours.live, core::cmp::Reverse(ours.root)) < (theirs.live, core::cmp::Reverse(theirs.root))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::MemberId;

    const fn version(incarnation: u64, minor: u32) -> Version {
        Version { incarnation, minor }
    }

    /// ZM-09, Algorithm 1 lines 1-15: precedence.
    #[test]
    fn precedence_of_news() {
        use NodeState::{Alive, Failed, Left, Suspect};
        let cases = [
            (
                (version(2, 1), Alive),
                (version(1, 9), Failed),
                Order::Newer,
            ),
            ((version(1, 9), Left), (version(2, 1), Alive), Order::Older),
            (
                (version(1, 1), Failed),
                (version(1, 1), Alive),
                Order::Newer,
            ),
            ((version(1, 1), Left), (version(1, 2), Alive), Order::Older),
            (
                (version(1, 2), Alive),
                (version(1, 1), Failed),
                Order::Newer,
            ),
            (
                (version(1, 1), Alive),
                (version(1, 1), Failed),
                Order::Older,
            ),
            (
                (version(1, 1), Suspect),
                (version(1, 1), Alive),
                Order::Newer,
            ),
            (
                (version(1, 2), Alive),
                (version(1, 1), Suspect),
                Order::Newer,
            ),
            ((version(1, 1), Left), (version(1, 1), Failed), Order::Newer),
            ((version(1, 1), Alive), (version(1, 1), Alive), Order::Same),
        ];
        for (news, held, expected) in cases {
            assert_eq!(order(news, held), expected, "{news:?} against {held:?}");
        }
    }

    /// ZM-06: the threshold, and the rule for small views.
    #[test]
    fn small_views_need_as_many_reporters_as_there_can_be() {
        assert_eq!(threshold(2, 0), 1);
        assert_eq!(threshold(2, 1), 1);
        assert_eq!(threshold(2, 2), 2);
        assert_eq!(threshold(2, 2000), 2);
        assert_eq!(judge(1, threshold(2, 1)), NodeState::Failed);
        assert_eq!(judge(1, threshold(2, 9)), NodeState::Suspect);
        assert_eq!(judge(0, 1), NodeState::Alive);
    }

    /// A missed beat with a heartbeat of 20 ms and a deadline of 60 ms.
    #[test]
    fn silence_requires_a_probe_and_then_a_report() {
        let at = |ms: u64| silence(Instant(ms * 1000), Instant(0), 20_000, 60_000);
        assert_eq!(at(29), Silence::Usual);
        assert_eq!(at(30), Silence::Probe);
        assert_eq!(at(59), Silence::Probe);
        assert_eq!(at(60), Silence::Report);
    }

    #[test]
    fn a_member_that_hears_no_other_waits_one_more_deadline() {
        let doubts = |now_ms: u64, since_ms: Option<u64>, others| {
            let since = since_ms.map(|ms| Instant(ms * 1000));
            doubts_itself(Instant(now_ms * 1000), Instant(0), since, others, 60_000)
        };
        assert!(!doubts(59, None, 9));
        assert!(doubts(60, None, 9));
        assert!(doubts(119, Some(60), 9));
        assert!(!doubts(120, Some(60), 9));
        assert!(!doubts(60, None, 1));
    }

    #[test]
    fn exactly_one_side_of_a_split_yields() {
        let side = |live, root| Strength {
            live,
            root: MemberId(root),
        };
        for (left, right) in [
            (side(3, 5), side(7, 9)),
            (side(8, 5), side(8, 9)),
            (side(1, 0), side(2, 1)),
        ] {
            assert_ne!(yields(left, right), yields(right, left));
        }
        assert!(yields(side(3, 1), side(7, 9)));
    }
}
