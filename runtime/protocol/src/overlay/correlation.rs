//! Correlated failures: members of one group that fail within one window.
//!
//! The first failure in a group opens its window. It closes four deadlines later, or as soon as no member
//! of the group is left. If at least two members, and at least half of the group, have failed by then, one
//! event lists them. Each failure has its own event before that. A new incarnation that supersedes an old
//! one is no failure here, and a member that is back before the window closes is not listed.

use std::collections::{BTreeMap, VecDeque};

use crate::cause::{Cause, CauseKind};
use crate::event::{Event, EventKind};
use crate::identity::{MemberId, Version};
use crate::overlay::Overlay;
use crate::planted::{self, Fault};
use crate::reporters::Reporters;
use crate::state::NodeState;
use crate::time::Instant;

/// Length of a window, in deadlines.
pub(super) const WINDOW_DEADLINES: u64 = 4;
/// Fewest failures that are correlated.
const TOGETHER_MIN: usize = 2;
/// Most lists kept for the host.
const KEPT_MAX: usize = 16;

/// Members of one group that failed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFailure {
    /// The group.
    pub group: String,
    /// The failed members, in ring order.
    pub members: Vec<MemberId>,
    number: u32,
}

#[derive(Clone, Debug)]
struct Window {
    until: Instant,
    cause: CauseKind,
    failed: BTreeMap<MemberId, Version>,
}

/// The open windows, and the last lists.
#[derive(Clone, Debug, Default)]
pub(super) struct Correlation {
    windows: BTreeMap<Box<str>, Window>,
    /// When the first of them closes.
    next_at: Instant,
    told: VecDeque<GroupFailure>,
    count: u32,
}

impl Correlation {
    /// Drops the windows: another view is taken over.
    pub(super) fn forget(&mut self) {
        self.windows.clear();
    }
}

impl Overlay {
    /// The list of an `EventKind::GroupFailed` event; the last sixteen are kept.
    #[must_use]
    pub fn group_failure(&self, number: u32) -> Option<&GroupFailure> {
        let mut told = self.watch.correlation.told.iter();
        told.find(|failure| failure.number == number)
    }

    /// Notes the failure of a member.
    pub(super) fn correlate(&mut self, id: MemberId, cause: CauseKind) {
        let Some(member) = self.table.get(id) else {
            return;
        };
        let (group, version) = (Box::<str>::from(member.group()), member.version);
        if group.is_empty() || cause == CauseKind::Superseded {
            return;
        }
        let until = self.now.after(WINDOW_DEADLINES * self.config.deadline_us);
        let is_last = self.table.live_in(&group) == 0;
        let Correlation {
            windows, next_at, ..
        } = &mut self.watch.correlation;
        if windows.is_empty() {
            *next_at = until;
        }
        let window = windows.entry(group.clone()).or_insert_with(|| Window {
            until,
            cause,
            failed: BTreeMap::new(),
        });
        window.failed.insert(id, version);
        if is_last {
            self.close(&group);
        }
    }

    pub(super) fn run_correlation(&mut self) {
        let now = self.now;
        if now < self.next_correlation_timer() {
            return;
        }
        let due = |window: &Window| now >= window.until;
        while let Some(group) = self
            .watch
            .correlation
            .windows
            .iter()
            .find_map(|(group, window)| due(window).then(|| group.clone()))
        {
            self.close(&group);
        }
    }

    pub(super) fn next_correlation_timer(&self) -> Instant {
        match self.watch.correlation.windows.is_empty() {
            true => Instant::NEVER,
            false => self.watch.correlation.next_at,
        }
    }

    /// Closes the window of a group, and reports its failures if they are correlated.
    fn close(&mut self, group: &str) {
        let Some(mut window) = self.watch.correlation.windows.remove(group) else {
            return;
        };
        let left_open = self.watch.correlation.windows.values();
        let until = left_open.map(|window| window.until).min();
        self.watch.correlation.next_at = until.unwrap_or(Instant::NEVER);
        // The history may have dropped it.
        let is_gone = |id: MemberId| {
            let member = self.table.get(id);
            planted::on(Fault::GroupUnchecked)
                || member.is_none_or(|member| member.state == NodeState::Failed)
        };
        window.failed.retain(|id, _| is_gone(*id));
        let failed = window.failed.len();
        let left = self.table.live_in(group);
        let Some((member, version)) = window.failed.first_key_value() else {
            return;
        };
        if failed < TOGETHER_MIN || failed < left {
            return;
        }
        let cause = Cause {
            kind: window.cause,
            reporters: Reporters::default(),
            silent_us: 0,
        };
        let event = Event {
            at: self.now,
            kind: EventKind::GroupFailed {
                number: self.watch.correlation.count,
                failed: failed as u32,
                of: (failed + left) as u32,
            },
            member: *member,
            version: *version,
            cause,
        };
        let told = &mut self.watch.correlation.told;
        if told.len() == KEPT_MAX {
            told.pop_front();
        }
        told.push_back(GroupFailure {
            group: group.to_owned(),
            members: window.failed.into_keys().collect(),
            number: self.watch.correlation.count,
        });
        self.watch.correlation.count = self.watch.correlation.count.wrapping_add(1);
        self.push_event(event);
    }
}
