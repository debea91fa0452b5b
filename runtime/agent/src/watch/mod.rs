//! The watch detects that a process of this node ends, stops or is stuck.
//!
//! It has three sources. The fastest is a robust futex word in the state table, which the kernel releases when its
//! holder ends. The most reliable is a pidfd. The third is a sample of `/proc/PID/stat` every half second, because a
//! process that is stopped or writes a core dump does not release its word.
//!
//! ```text
//!  word released --+-- leave announced ------------------------> Left
//!                  +-- every task exiting ---------------------> Failed
//!                  +-- a task stays (exec, end of a thread) ---> Detached, then by pidfd
//!  pidfd --------------- leave announced? Left : Failed
//!  sampled stat -------- dumps core -> Failed; T -> Hung; D for 2 s -> Hung; else Resumed
//!  ticks in the table -- none within the announced period -> Hung; one -> Resumed
//! ```
//!
//! The watch reports facts about processes of this node. The agent decides on their consequences (states, events,
//! news to other nodes). A closed client socket is no evidence: a forked child keeps it open, and an exec closes it.

mod classify;
mod follow;
mod futex_waiters;
mod notice;
mod ticks;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use muster_shm::{Leave, Occupancy, StateTable, TableView};
use muster_sys::clock::monotonic_ns;
use muster_sys::descriptor::EventFd;
use muster_sys::poll::Epoll;
use muster_sys::priority_mutex::{PriorityGuard, PriorityMutex};
use muster_sys::{futex, process, signal};

use classify::Liveness;
pub use muster_sys::procfs::{self, StatFile};
use notice::NoticeQueue;
pub use notice::{FailedBy, Finding, HungBy, RankNotice};

/// Clients for each waiting thread: the kernel's limit less the control word.
const GROUP_SIZE: usize = futex::WAIT_MAX - 1;
/// Stack size of a watching thread, in bytes. The threads read small files and allocate on the heap.
const STACK_SIZE: usize = 128 * 1024;
/// Maximum time for the threads to end.
const ENDING_TIMEOUT: Duration = Duration::from_secs(5);

/// How the threads wait for the futex words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitMode {
    /// One thread waits for up to 127 words (Linux 5.16).
    Grouped,
    /// One parked thread for each word, if the kernel or its sandbox refuses `Grouped`.
    Parked,
}

/// Watches the processes in the slots of a state table. The threads end when it is dropped.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Watch {
    /// Starts to watch a state table without processes, in the best mode that this kernel supports.
    pub fn start(table: &TableView) -> io::Result<Self> {
        let grouped = futex::wait_any_works();
        Self::start_in(
            table,
            if grouped {
                WaitMode::Grouped
            } else {
                WaitMode::Parked
            },
        )
    }

    /// As `start`, in a given mode.
    pub fn start_in(table: &TableView, mode: WaitMode) -> io::Result<Self> {
        let slots = table.table().slot_count() as usize;
        let shared = Arc::new(Shared {
            table: Arc::clone(table.table()),
            mode,
            slots: PriorityMutex::new((0..slots).map(|_| Followed::default()).collect())?,
            controls: (0..slots.div_ceil(GROUP_SIZE))
                .map(|_| AtomicU32::new(0))
                .collect(),
            started: Mutex::new(vec![false; slots.div_ceil(GROUP_SIZE)]),
            notices: NoticeQueue::new(slots, slots.saturating_mul(2).max(64))?,
            epoll: Epoll::new()?,
            wake_up: EventFd::new()?,
            stopping: AtomicBool::new(false),
            failures: AtomicU64::new(0),
        });
        shared.epoll.add(shared.wake_up.as_fd(), follow::WAKE_UP)?;
        let watch = Self {
            shared,
            threads: Mutex::new(Vec::new()),
        };
        let shared = Arc::clone(&watch.shared);
        watch.spawn("muster-follow", move || shared.follow())?;
        Ok(watch)
    }

    /// Starts to watch the state table of a previous worker: follows each process in a slot, and finds those that
    /// ended meanwhile.
    pub fn adopt(table: &TableView) -> io::Result<Self> {
        let watch = Self::start(table)?;
        for index in 0..table.table().slot_count() {
            let Some(slot) = table.slot(index) else { break };
            let facts = slot.facts();
            if facts.occupancy == Occupancy::Taken {
                watch.follow(index);
                if facts.armed {
                    watch.arm(index)?;
                }
            }
        }
        Ok(watch)
    }

    /// Becomes readable when there are notices.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.notices.raised.as_fd()
    }

    /// Takes all notices. Those of one slot are in the order of the findings.
    pub fn take(&self, notices: &mut Vec<RankNotice>) {
        self.shared.notices.take(notices);
    }

    /// Starts to follow the process that was just given this slot, by pidfd and sampling. Its futex word counts from
    /// `arm` on.
    pub fn follow(&self, slot: u32) {
        self.shared.begin(slot);
    }

    /// Starts to wait for the futex word of a client, which has reported that it holds the word.
    pub fn arm(&self, slot: u32) -> io::Result<()> {
        let shared = &self.shared;
        if let Some(entry) = shared.lock().get_mut(slot as usize)
            && matches!(entry.phase, Phase::Claimed | Phase::Detached)
        {
            entry.phase = Phase::Armed;
        } else {
            return Ok(());
        }
        match shared.mode {
            WaitMode::Grouped => self.wake_group(slot as usize / GROUP_SIZE),
            WaitMode::Parked => {
                let shared = Arc::clone(shared);
                self.spawn("muster-parked", move || shared.wait_parked(slot))
            }
        }
    }

    /// Checks a client's leave mark now, because the client has reported that it leaves.
    pub fn inspect(&self, slot: u32) {
        let generation = self
            .shared
            .lock()
            .get(slot as usize)
            .map(|entry| entry.generation);
        if let Some(generation) = generation {
            self.shared.conclude_if_left(slot, generation);
        }
    }

    /// Stops following a slot, after its final finding.
    pub fn forget(&self, slot: u32) {
        self.shared.forget(slot);
    }

    /// Handles a closed connection. Stops following the process if it does not hold its futex word yet and lives: it
    /// is not a client then, and its end has no meaning for the job. Returns whether it did.
    pub fn forget_if_withdrawn(&self, slot: u32, generation: u32) -> bool {
        let shared = &self.shared;
        let claimed = {
            let slots = shared.lock();
            let entry = slots.get(slot as usize);
            let same = entry.filter(|entry| entry.generation == generation);
            same.filter(|entry| entry.phase == Phase::Claimed)
                .map(|entry| (entry.pid, entry.start_ticks))
        };
        // A dying process closes its files only when all of its threads are marked as exiting.
        let is_alive = |(pid, start_ticks)| classify::inspect(pid, start_ticks) == Liveness::Alive;
        let withdrawn = claimed.is_some_and(is_alive);
        if withdrawn {
            self.forget(slot);
        }
        withdrawn
    }

    /// Counters of the watch, by name.
    pub fn counters(&self) -> [(&'static str, u64); 2] {
        [
            ("findings_overtaken", self.shared.notices.dropped()),
            (
                "waits_refused",
                self.shared.failures.load(Ordering::Relaxed),
            ),
        ]
    }

    fn wake_group(&self, group: usize) -> io::Result<()> {
        let control = &self.shared.controls[group];
        control.fetch_add(1, Ordering::AcqRel);
        futex::wake(control);
        let mut started = self
            .shared
            .started
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !started[group] {
            let shared = Arc::clone(&self.shared);
            self.spawn("muster-words", move || shared.wait_grouped(group))?;
            started[group] = true;
        }
        Ok(())
    }

    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let builder = std::thread::Builder::new()
            .name(name.into())
            .stack_size(STACK_SIZE);
        let thread = signal::with_all_blocked(|| builder.spawn(body))?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Parked threads end with their client: drop those that have ended.
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }
}

fn warn_of_leftover() {
    tracing::warn!("a thread of the watch has not ended in {ENDING_TIMEOUT:?}; it is abandoned");
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.wake_up.raise();
        let end = Instant::now() + ENDING_TIMEOUT;
        let threads = self
            .threads
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // A thread may be about to sleep when it is woken, so wake it repeatedly until it has ended.
            while !thread.is_finished() && Instant::now() < end {
                self.shared.wake_all();
                std::thread::sleep(Duration::from_millis(1));
            }
            match thread.is_finished() {
                true => drop(thread.join()),
                // The kernel blocks it in a read of /proc. It accesses only what it shares.
                false => warn_of_leftover(),
            }
        }
    }
}

/// The phase of a slot's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// No process is followed.
    #[default]
    Idle,
    /// Followed by pidfd and sampling; does not hold its futex word yet.
    Claimed,
    /// Holds its futex word.
    Armed,
    /// Its holding thread ended, the process lives.
    Detached,
    /// The final finding was reported.
    Over,
}

/// The state of the watch for a slot.
#[derive(Debug, Default)]
struct Followed {
    phase: Phase,
    generation: u32,
    pid: u32,
    start_ticks: u64,
    rank: Option<u32>,
    /// Shared, so that it can be read without the lock.
    stat: Option<Arc<StatFile>>,
    pidfd: Option<OwnedFd>,
    /// The state that was reported last.
    hung: Option<HungBy>,
    /// The state that the kernel shows.
    asleep: Option<HungBy>,
    /// It has not ticked for longer than its announced period.
    tickless: bool,
    /// It was frozen when a tick was missing last.
    frozen: bool,
    /// Since when it is in uninterruptible sleep, and the processor time that it had used by then.
    stuck_since: Option<(u64, u64)>,
    /// Its last tick, and the time when that was first seen.
    ticked: Option<(u64, u64)>,
}

/// The state that the watching threads and the agent's loop share. It has one lock, which is held for short times and
/// never while `/proc` is read. A thread that holds it runs at the loop's priority while the loop waits for it.
#[derive(Debug)]
struct Shared {
    table: Arc<StateTable>,
    mode: WaitMode,
    slots: PriorityMutex<Vec<Followed>>,
    /// One futex word for each group: changed and woken when the group's set of words has changed.
    controls: Vec<AtomicU32>,
    started: Mutex<Vec<bool>>,
    notices: NoticeQueue,
    epoll: Epoll,
    /// Wakes the following thread.
    wake_up: EventFd,
    stopping: AtomicBool,
    failures: AtomicU64,
}

impl Shared {
    fn lock(&self) -> PriorityGuard<'_, Vec<Followed>> {
        self.slots.lock()
    }

    fn begin(&self, slot: u32) {
        let Some(facts) = self.table.slot(slot).map(|slot| slot.facts()) else {
            return;
        };
        let opened = open(facts.pid, facts.start_ticks);
        let mut slots = self.lock();
        let Some(entry) = slots.get_mut(slot as usize) else {
            return;
        };
        if let Some(old) = entry.pidfd.take() {
            self.epoll.remove(old.as_fd());
        }
        *entry = Followed {
            phase: Phase::Claimed,
            generation: facts.generation,
            pid: facts.pid,
            start_ticks: facts.start_ticks,
            rank: facts.rank,
            ..Followed::default()
        };
        // If the agent lacks a descriptor, that is no evidence about the process.
        let gone = opened.as_ref().is_err_and(procfs::is_gone);
        if let Ok(opened) = opened {
            self.store_files(slot, entry, opened);
        }
        drop(slots);
        if gone {
            self.conclude_dead(slot, facts.generation, FailedBy::Gone, 0, 0);
        } else {
            // The first client starts the sampling.
            self.wake_up.raise();
        }
    }

    fn store_files(
        &self,
        slot: u32,
        entry: &mut Followed,
        (stat, pidfd): (StatFile, Option<OwnedFd>),
    ) {
        entry.stat = Some(Arc::new(stat));
        let token = follow::token(slot, entry.generation);
        entry.pidfd = pidfd.filter(|pidfd| self.epoll.add(pidfd.as_fd(), token).is_ok());
    }

    /// Opens the files of processes for which that failed at first.
    fn open_missing(&self) {
        for slot in 0..self.table.slot_count() {
            let missing = self.lock().get(slot as usize).and_then(|entry| {
                let is_missing = entry.phase.is_followed() && entry.stat.is_none();
                is_missing.then_some((entry.generation, entry.pid, entry.start_ticks))
            });
            let Some((generation, pid, start_ticks)) = missing else {
                continue;
            };
            match open(pid, start_ticks) {
                Ok(opened) => {
                    let mut slots = self.lock();
                    let entry = &mut slots[slot as usize];
                    if entry.generation == generation && entry.phase.is_followed() {
                        self.store_files(slot, entry, opened);
                    }
                }
                Err(cause) if procfs::is_gone(&cause) => {
                    self.conclude_dead(slot, generation, FailedBy::Gone, 0, 0);
                }
                Err(_) => {}
            }
        }
    }

    fn forget(&self, slot: u32) {
        let mut slots = self.lock();
        let Some(entry) = slots.get_mut(slot as usize) else {
            return;
        };
        if let Some(pidfd) = &entry.pidfd {
            self.epoll.remove(pidfd.as_fd());
        }
        *entry = Followed::default();
        drop(slots);
        self.wake_slot(slot);
    }

    /// Handles an armed slot whose word has been released for `for_ns`. Returns `false` if the meaning is not clear
    /// yet; it is after [`classify::CLASSIFY_WAIT_NS`].
    fn released(&self, slot: u32, generation: u32, for_ns: u64) -> bool {
        if self.conclude_if_left(slot, generation) {
            return true;
        }
        let Some((pid, start_ticks)) = self.identity(slot, generation) else {
            return true;
        };
        match classify::inspect(pid, start_ticks) {
            Liveness::Dying { signal, exit_code } => {
                self.conclude_dead(slot, generation, FailedBy::Futex, signal, exit_code);
            }
            Liveness::Unclear | Liveness::Alive if for_ns < classify::CLASSIFY_WAIT_NS => {
                return false;
            }
            Liveness::Unclear | Liveness::Alive => {
                let mut slots = self.lock();
                let entry = &mut slots[slot as usize];
                if entry.generation == generation && entry.phase == Phase::Armed {
                    entry.phase = Phase::Detached;
                    self.report(slot, entry, Finding::Detached);
                }
            }
        }
        true
    }

    fn identity(&self, slot: u32, generation: u32) -> Option<(u32, u64)> {
        let slots = self.lock();
        let entry = slots.get(slot as usize)?;
        (entry.generation == generation).then_some((entry.pid, entry.start_ticks))
    }

    /// Reports `Left` if the client has announced it. Returns whether it has.
    fn conclude_if_left(&self, slot: u32, generation: u32) -> bool {
        let Some((leave, exit_code)) = self.table.slot(slot).map(|slot| slot.leave()) else {
            return false;
        };
        if leave == Leave::No {
            return false;
        }
        self.conclude(slot, generation, Finding::Left { exit_code });
        true
    }

    fn conclude_dead(&self, slot: u32, generation: u32, by: FailedBy, signal: i32, exit_code: i32) {
        let by = self.first_witness(slot, generation, by);
        let (signal, exit_code) = match (signal, exit_code) {
            (0, 0) => self.status_of_reaped(slot, generation),
            known => known,
        };
        if !self.conclude_if_left(slot, generation) {
            self.conclude(
                slot,
                generation,
                Finding::Failed {
                    by,
                    signal,
                    exit_code,
                },
            );
        }
    }

    /// The signal and the exit code of a process that its parent reaped before the watch read them; zeros if they are
    /// not known.
    fn status_of_reaped(&self, slot: u32, generation: u32) -> (i32, i32) {
        let slots = self.lock();
        let entry = slots.get(slot as usize);
        let pidfd = entry
            .filter(|entry| entry.generation == generation)
            .and_then(|entry| entry.pidfd.as_ref());
        let status = pidfd.and_then(|pidfd| process::status_of_reaped(pidfd.as_fd()));
        status.map_or((0, 0), procfs::signal_and_code)
    }

    /// The source to report. The kernel releases a held word long before the pidfd becomes readable. So if both have
    /// happened the word was first, whichever thread of the watch ran first.
    fn first_witness(&self, slot: u32, generation: u32, by: FailedBy) -> FailedBy {
        let armed = self.is_armed(slot, generation);
        match by {
            FailedBy::Pidfd | FailedBy::Gone
                if armed && self.table.futex(slot).load(Ordering::Acquire) & futex::OWNER == 0 =>
            {
                FailedBy::Futex
            }
            by => by,
        }
    }

    /// Reports the final finding of a slot, once.
    fn conclude(&self, slot: u32, generation: u32, finding: Finding) {
        let mut slots = self.lock();
        let Some(entry) = slots.get_mut(slot as usize) else {
            return;
        };
        if entry.generation != generation || matches!(entry.phase, Phase::Idle | Phase::Over) {
            return;
        }
        entry.phase = Phase::Over;
        entry.stat = None;
        if let Some(pidfd) = entry.pidfd.take() {
            self.epoll.remove(pidfd.as_fd());
        }
        self.report(slot, entry, finding);
        drop(slots);
        self.wake_slot(slot);
    }

    fn report(&self, slot: u32, entry: &Followed, finding: Finding) {
        let (generation, rank) = (entry.generation, entry.rank);
        self.notices.put(RankNotice {
            slot,
            generation,
            rank,
            finding,
            at_ns: monotonic_ns(),
        });
    }

    /// Makes the thread that waits for this slot's word check it again.
    fn wake_slot(&self, slot: u32) {
        match self.mode {
            WaitMode::Grouped => {
                let control = &self.controls[slot as usize / GROUP_SIZE];
                control.fetch_add(1, Ordering::AcqRel);
                futex::wake(control);
            }
            WaitMode::Parked => {
                if let Some(slot) = self.table.slot(slot) {
                    futex::wake(slot.futex());
                }
            }
        }
    }

    fn wake_all(&self) {
        for control in &self.controls {
            control.fetch_add(1, Ordering::AcqRel);
            futex::wake(control);
        }
        if self.mode == WaitMode::Parked {
            (0..self.table.slot_count()).for_each(|slot| self.wake_slot(slot));
        }
    }
}

/// Opens a process's `stat` file and its pidfd. An error for which [`procfs::is_gone`] is true means that it has
/// ended.
fn open(pid: u32, start_ticks: u64) -> io::Result<(StatFile, Option<OwnedFd>)> {
    // Another process may have got the pid since the slot was claimed: first open the descriptors, then check the
    // start time.
    let pidfd = process::open_pidfd(pid);
    let stat = StatFile::open(pid)?;
    match stat.read()?.start_ticks == start_ticks {
        true => Ok((stat, pidfd.ok())),
        false => Err(rustix::io::Errno::SRCH.into()),
    }
}
