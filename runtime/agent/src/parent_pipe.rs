//! What whoever started the agent says on its standard input: how tasks of this node have ended.
//!
//! A job manager reaps the tasks that it has started, those that never came to the agent, too. It says a line a task,
//! `ended RANK PID signal NUMBER` or `ended RANK PID exit CODE`. Of a process that is attached the kernel says
//! more, and sooner; but where the process was reaped before we looked, not how it ended. So of an end each may know
//! a half: the kernel that it was one, the starter how.

use muster_protocol::RankState;
use muster_shm::{Cause, RankState as InTable};
use muster_sys::poll::{Epoll, readable};
use std::collections::BTreeMap;
use std::io::stdin;
use std::os::fd::AsFd;
use std::time::Duration;
use tracing::warn;

/// Longest line; what is longer is none.
const LINE_MAX: usize = 256;
/// Reads of 4 KiB in one turn of the loop: the ends of some thousand tasks.
const READS_MAX: usize = 16;

/// A task that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    /// Its number in the job, which is its rank if it does not say otherwise when it attaches.
    pub(super) rank: u32,
    /// Its process.
    pub(super) pid: u32,
    /// The signal that killed it, or minus its exit code.
    pub(super) how: i32,
}

impl End {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let ["ended", rank, pid, what, number] = words[..] else {
            return None;
        };
        let number = i32::from(number.parse::<u8>().ok()?);
        let how = match what {
            "signal" if number > 0 => number,
            "exit" => -number,
            _ => return None,
        };
        let (rank, pid) = (rank.parse().ok()?, pid.parse().ok()?);
        Some(Self { rank, pid, how })
    }
}

/// Standard input, as far as it has been read.
#[derive(Debug, Default)]
pub(super) struct ParentPipe {
    line: Vec<u8>,
    ended: bool,
    more: bool,
    /// Lines that say nothing.
    pub(super) not_understood: u64,
}

impl ParentPipe {
    /// Has the loop wait for it: told once a change, as what has ended stays readable. What cannot be waited for, a
    /// file for instance, has nobody who writes.
    pub(super) fn hear_by(&mut self, epoll: &Epoll, token: u64) {
        self.ended = epoll.add_edge(stdin().as_fd(), token).is_err();
    }

    /// Whether nobody writes there any more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether there may be more than was read at a time: nothing wakes the loop for that.
    pub(super) fn has_more(&self) -> bool {
        self.more
    }

    /// Reads what is there, up to a bound.
    pub(super) fn hear(&mut self) -> Vec<End> {
        let mut ends = Vec::new();
        self.more = false;
        for reads in 0.. {
            if self.ended || !is_readable() {
                break;
            }
            if reads == READS_MAX {
                self.more = true;
                break;
            }
            let mut bytes = [0; 4096];
            match rustix::io::read(stdin(), &mut bytes) {
                Ok(count @ 1..) => self.take(&bytes[..count], &mut ends),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return ends,
                _ => self.ended = true,
            }
        }
        ends
    }

    fn take(&mut self, bytes: &[u8], ends: &mut Vec<End>) {
        for byte in bytes {
            if *byte != b'\n' {
                self.line.truncate(LINE_MAX);
                self.line.push(*byte);
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).into_owned();
            self.line.clear();
            match End::parse(&line) {
                Some(end) => ends.push(end),
                None => {
                    self.not_understood += 1;
                    if self.not_understood == 1 {
                        warn!(
                            line,
                            "standard input says what is not understood; known is \
                             `ended RANK PID signal|exit NUMBER`"
                        );
                    }
                }
            }
        }
    }
}

fn is_readable() -> bool {
    readable(&[stdin().as_fd()], Some(Duration::ZERO)).is_ok_and(|ready| ready[0])
}

/// What is known of a rank of which the starter says that it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParentState {
    /// Its process is attached here, for all that we know; the kernel will say that it has ended, or has.
    Attached,
    /// Some node states it, in this state.
    Stated(InTable),
    /// Nobody has ever heard of it.
    Unknown,
}

/// One half of what is known of an end.
#[derive(Debug, Clone, Copy)]
enum Half {
    /// The kernel, that it was one.
    That(Cause),
    /// The starter, how.
    How(i32),
}

/// Ends of ranks of which one half is known.
#[derive(Debug, Default)]
pub(super) struct ExitMerge(BTreeMap<u32, Half>);

impl ExitMerge {
    /// The kernel says that a rank has failed; how, if it or the starter knew.
    pub(super) fn of_kernel(&mut self, rank: u32, cause: Cause, how: i32) -> i32 {
        match self.0.remove(&rank) {
            _ if how != 0 => return how,
            Some(Half::How(told)) if told != 0 => return told,
            _ => {}
        }
        self.0.insert(rank, Half::That(cause));
        0
    }

    /// The starter says how a rank ended: what is to be stated of it, if that is news.
    pub(super) fn of_parent(
        &mut self,
        rank: u32,
        standing: ParentState,
        how: i32,
    ) -> Option<(RankState, Cause)> {
        match (standing, self.0.get(&rank)) {
            (ParentState::Attached, _) => {
                self.0.insert(rank, Half::How(how));
                None
            }
            // On the board it may not stand yet.
            (ParentState::Stated(_), Some(Half::That(cause))) => {
                let cause = *cause;
                self.0.remove(&rank);
                (how != 0).then_some((RankState::Failed, cause))
            }
            (ParentState::Stated(_), _) => None,
            // That it ends well and unseen is an orderly end; nobody need wait for it.
            (ParentState::Unknown, _) if how == 0 => Some((RankState::Left, Cause::Told)),
            (ParentState::Unknown, _) => Some((RankState::Failed, Cause::Told)),
        }
    }

    /// A process is this rank from now on.
    pub(super) fn begin(&mut self, rank: u32) {
        self.0.remove(&rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_pieces_and_wrong_ones_are_counted() {
        let (mut parent_pipe, mut ends) = (ParentPipe::default(), Vec::new());
        parent_pipe.take(b"ended 3 4711 sig", &mut ends);
        assert_eq!(ends, []);
        parent_pipe.take(
            b"nal 9\nended 0 12 exit 255\nended 1 13 exit 0\n",
            &mut ends,
        );
        let told: Vec<_> = ends
            .iter()
            .map(|end| (end.rank, end.pid, end.how))
            .collect();
        assert_eq!(told, [(3, 4711, 9), (0, 12, -255), (1, 13, 0)]);
        let long = [b'x'; 3 * LINE_MAX];
        for wrong in [
            &b""[..],
            b"ended",
            b"ended 3 4711 signal 0",
            b"ended 3 4711 exit 256",
            b"ended -1 4711 exit 1",
            b"ended 3 4711 exit 1 now",
            b"begun 3 4711 exit 1",
            b"\xff",
            &long,
        ] {
            let before = parent_pipe.not_understood;
            parent_pipe.take(&[wrong, b"\n"].concat(), &mut ends);
            assert_eq!(parent_pipe.not_understood, before + 1);
        }
        assert_eq!(ends.len(), 3);
        assert!(parent_pipe.line.is_empty());
    }

    /// slurm-1.
    #[test]
    fn an_end_is_stated_once_whoever_knows_of_it_first() {
        let failed = ParentState::Stated(InTable::Failed);
        // The kernel knows all of it; what the starter adds is nothing.
        let mut exit_merge = ExitMerge::default();
        assert_eq!(exit_merge.of_kernel(3, Cause::KernelFutex, 9), 9);
        assert_eq!(exit_merge.of_parent(3, failed, 9), None);
        // The kernel first, then how.
        assert_eq!(exit_merge.of_kernel(3, Cause::Pidfd, 0), 0);
        assert_eq!(
            exit_merge.of_parent(3, failed, 9),
            Some((RankState::Failed, Cause::Pidfd))
        );
        assert_eq!(exit_merge.of_parent(3, failed, 9), None);
        // How first: nothing is stated before the kernel says so.
        assert_eq!(exit_merge.of_parent(4, ParentState::Attached, -7), None);
        assert_eq!(exit_merge.of_kernel(4, Cause::Pidfd, 0), -7);
        assert_eq!(exit_merge.of_parent(4, failed, -7), None);
        // What was said of the process before says nothing of the next.
        assert_eq!(exit_merge.of_parent(4, ParentState::Attached, 9), None);
        exit_merge.begin(4);
        assert_eq!(exit_merge.of_kernel(4, Cause::Pidfd, 0), 0);
    }

    #[test]
    fn of_those_who_never_came_the_starter_alone_knows() {
        let mut exit_merge = ExitMerge::default();
        let unknown = ParentState::Unknown;
        for (how, state) in [
            (9, RankState::Failed),
            (-3, RankState::Failed),
            (0, RankState::Left),
        ] {
            let stated = exit_merge.of_parent(1, unknown, how);
            assert_eq!(stated, Some((state, Cause::Told)));
        }
        // Of one that is elsewhere, or has left in order, it does not.
        for state in [InTable::Alive, InTable::Left, InTable::Failed] {
            assert_eq!(exit_merge.of_parent(1, ParentState::Stated(state), 9), None);
        }
        assert!(exit_merge.0.is_empty());
    }
}
