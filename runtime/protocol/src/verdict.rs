//! From evidence to verdict: every rule by which one member judges another, in one place.
//!
//! Intuition: you watch a lighthouse that blinks every `heartbeat`. One blink missed is fog, so
//! you look harder (through every window, and you phone three others who can see it). If by the
//! `deadline` neither you nor anyone you phoned has seen it, you say so aloud. That is a *report*,
//! and it is about this lighthouse in this version. When enough people have said so
//! independently (Theta), it is out, and everybody who hears the same reports agrees.
//!
//! Complication: it may be your own eyes. Three ways, three answers.
//! - *You slept.* A detector that was stopped for a minute sees a minute of darkness everywhere.
//!   Your own lateness is never held against others: `lateness` moves their clocks on, and after a
//!   deadline of sleep you speak no verdict for two, and neither keep a report nor take one: what you
//!   hold, and what lay in your letter box, is as old as your sleep, and passed on it would count anew.
//! - *You are in the cellar.* If you hear nobody at all, you doubt yourself first, for one more
//!   deadline; only then do you report (`doubts_itself`). With a single other member in the view
//!   there is no telling, and you report at once.
//! - *You sit with a few others in the same cellar.* Two sides of a split each hold the other
//!   failed. When two meet who hold each other failed, the one of the weaker side yields
//!   (`yields`) and takes over the other's view with its verdicts, also about lives that began in
//!   the cellar. What somebody reported whom we hold failed does not count.
//!
//! The lighthouse may also object. A higher minor of the same incarnation refutes every report
//! against a lower one; it even brings back a member that was held failed, if it comes from the
//! member before it learns of its death. A member that does learn of it comes back with a higher
//! incarnation instead.
//!
//! | evidence about version v                         | in view at v | verdict                      |
//! |--------------------------------------------------|--------------|------------------------------|
//! | any authentic frame of this incarnation          | yes          | silence starts anew          |
//! | silent 1.5 heartbeats                            | yes          | probe: all rails, helpers    |
//! | silent a deadline, found so by ourselves         | yes          | own report                   |
//! | the same, joined less than four deadlines ago    | yes          | nothing yet, unless it has   |
//! |                                                  |              | agreed to beat to us         |
//! | unreachable, then silent 1.75 heartbeats         | yes          | own report, if no rank of it |
//! |                                                  |              | lives that brings it back    |
//! | 1 <= distinct reporters of v < threshold         | yes          | `Suspect`                    |
//! | distinct reporters of v >= threshold             | yes          | `Failed`                     |
//! | launcher or administrator says failed            | yes          | `Failed`                     |
//! | goodbye at v or above                            | yes          | `Left`                       |
//! | report of a version below v                      | yes          | nothing (it was refuted)     |
//! | report by one who is not in the view, or no more | yes          | nothing (another view)       |
//! | report held or taken when we have just slept     | yes          | nothing (it is old)          |
//! | alive at v or below                              | no           | nothing (it is late)         |
//! | alive above v                                    | no           | back in the view             |
//!
//! **Small views.** The paper leaves its correction out; ours is: the threshold is Theta, or the
//! number of members who could report if that is smaller, and at least one. Who could report:
//! everybody in the view but the accused and those who are suspects themselves. So of two
//! members one may judge the other, and when half of a view dies at once the dead do not keep
//! each other alive. Each member applies the rule to the reports it holds; a verdict that comes
//! from elsewhere with too few reporters counts as those reports and is checked by a probe.

use crate::event::CauseKind;
use crate::identity::Version;
use crate::planted::{self, Fault};
use crate::state::NodeState;
use crate::time::Instant;
use crate::wire::Strength;

/// Deadlines that one who has just joined has for its first answer.
const JOINING_DEADLINES: u64 = 4;

/// How news about a member relates to what the table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The news wins.
    Newer,
    /// Both say the same, reporters apart.
    Same,
    /// The table wins; the sender could learn from it.
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

/// How many distinct reporters it takes, when `able` members could report.
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

/// Whether a verdict that came from elsewhere stands on its own.
pub(crate) fn stands(cause: CauseKind, reporters: usize, threshold: usize) -> bool {
    cause == CauseKind::Told || reporters >= threshold
}

/// What silence of this length calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Silence {
    Usual,
    Probe,
    Report,
}

/// When silence begins to call for a probe.
pub(crate) fn probe_at(alive_at: Instant, heartbeat_us: u64) -> Instant {
    alive_at.after(heartbeat_us + heartbeat_us / 2)
}

/// Until when one who joined then, and has not agreed yet to beat to us, is not reported.
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

/// Whether a member that hears nobody should doubt itself before it reports others.
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

/// Whether the side `ours` yields to the side `theirs`: the smaller view does; of two equal ones
/// the one whose first member comes later on the ring.
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

    /// ZM-09, Algorithm 1 lines 1-15: what beats what.
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

    /// ZM-06: the threshold, and our rule for small views.
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

    /// The story of a missed beat at 20/60 ms.
    #[test]
    fn silence_calls_for_a_probe_and_then_for_a_report() {
        let at = |ms: u64| silence(Instant(ms * 1000), Instant(0), 20_000, 60_000);
        assert_eq!(at(29), Silence::Usual);
        assert_eq!(at(30), Silence::Probe);
        assert_eq!(at(59), Silence::Probe);
        assert_eq!(at(60), Silence::Report);
    }

    #[test]
    fn one_who_hears_nobody_waits_one_more_deadline() {
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
