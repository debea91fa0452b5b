//! Reports on standard input from the process that started the agent: how tasks of this node have ended.
//!
//! A job manager reaps the tasks that it started, including those that never attached to the agent. It writes one
//! line for each task, `ended RANK PID signal NUMBER` or `ended RANK PID exit CODE`. For an attached process the
//! kernel reports its end earlier and more reliably. But if the process was reaped before the agent read its status,
//! the kernel does not report how it ended. `ExitMerge` therefore combines both: from the kernel that the process
//! ended, from the parent how.

use muster_protocol::RankState;
use muster_shm::{Cause, RankState as InTable};
use muster_sys::poll::{Epoll, readable};
use std::collections::BTreeMap;
use std::io::stdin;
use std::os::fd::AsFd;
use std::time::Duration;
use tracing::warn;

/// Maximum length of a line; a longer one is invalid.
const LINE_MAX: usize = 256;
/// Reads of 4 KiB in one round of the loop: the ends of about a thousand tasks.
const READS_MAX: usize = 16;

/// A task that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    /// Its number in the job. This is its rank, unless it states another one when it attaches.
    pub(super) rank: u32,
    /// Its process.
    pub(super) pid: u32,
    /// The signal that killed it, or minus its exit code.
    pub(super) how: i32,
}

impl End {
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        let ["ended", rank, pid, what, number] = fields[..] else {
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

/// The reader of standard input.
#[derive(Debug, Default)]
pub(super) struct ParentPipe {
    line: Vec<u8>,
    ended: bool,
    has_more: bool,
    /// Invalid lines.
    pub(super) not_understood: u64,
}

impl ParentPipe {
    /// Registers standard input with the loop's epoll, edge-triggered, because a closed pipe stays readable. A
    /// descriptor that epoll refuses, such as a file, has no writer and counts as ended.
    pub(super) fn register(&mut self, epoll: &Epoll, token: u64) {
        self.ended = epoll.add_edge(stdin().as_fd(), token).is_err();
    }

    /// Whether all writers have closed the pipe.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether a read stopped at its bound. No event wakes the loop for the remaining data.
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Reads the available lines, up to a bound.
    pub(super) fn read(&mut self) -> Vec<End> {
        let mut ends = Vec::new();
        self.has_more = false;
        for reads in 0.. {
            if self.ended || !is_readable() {
                break;
            }
            if reads == READS_MAX {
                self.has_more = true;
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
                            "standard input has an invalid line; expected \
                             `ended RANK PID signal NUMBER` or `ended RANK PID exit CODE`"
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

/// What the agent knows of a rank when the parent reports its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParentState {
    /// Its process is attached here as far as the agent knows. The kernel has reported its end, or will.
    Attached,
    /// A node reports it in this state.
    Stated(InTable),
    /// No node has reported it.
    Unknown,
}

/// One of the two parts of the report of an end.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// From the kernel: that the process ended.
    Ended(Cause),
    /// From the parent: how it ended.
    How(i32),
}

/// Ends of ranks of which one part is known.
#[derive(Debug, Default)]
pub(super) struct ExitMerge(BTreeMap<u32, Part>);

impl ExitMerge {
    /// The kernel reports that a rank has failed. Returns how it ended, if the kernel or the parent reported it.
    pub(super) fn of_kernel(&mut self, rank: u32, cause: Cause, how: i32) -> i32 {
        match self.0.remove(&rank) {
            _ if how != 0 => return how,
            Some(Part::How(how)) if how != 0 => return how,
            _ => {}
        }
        self.0.insert(rank, Part::Ended(cause));
        0
    }

    /// The parent reports how a rank ended. Returns what is to be reported of it, if that is new.
    pub(super) fn of_parent(
        &mut self,
        rank: u32,
        known: ParentState,
        how: i32,
    ) -> Option<(RankState, Cause)> {
        match (known, self.0.get(&rank)) {
            (ParentState::Attached, _) => {
                self.0.insert(rank, Part::How(how));
                None
            }
            // The state table may not contain the failure yet.
            (ParentState::Stated(_), Some(Part::Ended(cause))) => {
                let cause = *cause;
                self.0.remove(&rank);
                (how != 0).then_some((RankState::Failed, cause))
            }
            (ParentState::Stated(_), _) => None,
            // Exit code 0 without attaching is an orderly end: no process waits for this rank.
            (ParentState::Unknown, _) if how == 0 => Some((RankState::Left, Cause::Told)),
            (ParentState::Unknown, _) => Some((RankState::Failed, Cause::Told)),
        }
    }

    /// A new process has this rank. Discards the parts of the previous one.
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
        let parsed: Vec<_> = ends
            .iter()
            .map(|end| (end.rank, end.pid, end.how))
            .collect();
        assert_eq!(parsed, [(3, 4711, 9), (0, 12, -255), (1, 13, 0)]);
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
    fn an_end_is_reported_once_in_any_order_of_its_parts() {
        let failed = ParentState::Stated(InTable::Failed);
        // The kernel has both parts; the parent adds nothing.
        let mut exit_merge = ExitMerge::default();
        assert_eq!(exit_merge.of_kernel(3, Cause::KernelFutex, 9), 9);
        assert_eq!(exit_merge.of_parent(3, failed, 9), None);
        // The kernel first, then the parent.
        assert_eq!(exit_merge.of_kernel(3, Cause::Pidfd, 0), 0);
        assert_eq!(
            exit_merge.of_parent(3, failed, 9),
            Some((RankState::Failed, Cause::Pidfd))
        );
        assert_eq!(exit_merge.of_parent(3, failed, 9), None);
        // The parent first: nothing is reported before the kernel reports the end.
        assert_eq!(exit_merge.of_parent(4, ParentState::Attached, -7), None);
        assert_eq!(exit_merge.of_kernel(4, Cause::Pidfd, 0), -7);
        assert_eq!(exit_merge.of_parent(4, failed, -7), None);
        // The parent's report of the previous process does not apply to the next.
        assert_eq!(exit_merge.of_parent(4, ParentState::Attached, 9), None);
        exit_merge.begin(4);
        assert_eq!(exit_merge.of_kernel(4, Cause::Pidfd, 0), 0);
    }

    #[test]
    fn the_parent_alone_reports_tasks_that_never_attached() {
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
        // It is not used for a rank that another node reports, or that has left in order.
        for state in [InTable::Alive, InTable::Left, InTable::Failed] {
            assert_eq!(exit_merge.of_parent(1, ParentState::Stated(state), 9), None);
        }
        assert!(exit_merge.0.is_empty());
    }
}
