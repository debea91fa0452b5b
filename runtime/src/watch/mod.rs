//! The watch: it knows first when a process of this node ends, stops or is stuck.
//!
//! Intuition: a night watchman with three instruments. The fastest is a string tied to every
//! sleeper's hand (the word on the board, which the kernel releases when the holder ends); the
//! surest is the register of deaths (a pidfd); and every half second he looks through each door
//! (`/proc/PID/stat`), because somebody who is stopped or dumps core pulls no string.
//!
//! ```text
//!  word released --+-- leave announced ------------------------> Left
//!                  +-- every task exiting ---------------------> Failed
//!                  +-- somebody stays (exec, thread's end) ----> Detached, then by pidfd
//!  pidfd --------------- leave announced? Left : Failed
//!  sampled stat -------- dumps core -> Failed; T -> Hung; D for 2 s -> Hung; else Resumed
//!  ticks on the board -- none for as long as it promised -> Hung; one -> Resumed
//! ```
//!
//! It states facts about processes of this node and asks nobody. What follows from a fact (states,
//! events, news to other nodes) is the agent's. A hang-up of a client's socket is no evidence
//! here: a forked child holds it open, and an exec closes it.

mod classify;
mod follow;
mod futex_waiters;
mod notice;
pub mod procfs;
mod ticks;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::shm::{Leave, Occupancy, StateTable, TableView};
use crate::sys::clock::monotonic_ns;
use crate::sys::descriptor::EventFd;
use crate::sys::poll::Epoll;
use crate::sys::priority_mutex::{PriorityGuard, PriorityMutex};
use crate::sys::{futex, process, signal};

use classify::Fate;
use notice::NoticeQueue;
pub use notice::{FailedBy, Finding, HungBy, RankNotice};
use procfs::StatFile;

/// Clients that one waiting thread looks after: the kernel's limit less the control word.
const GROUP_SIZE: usize = futex::WAIT_MAX - 1;
/// Stack of a watching thread, in bytes. They read small files and allocate on the heap.
const STACK_SIZE: usize = 128 * 1024;
/// How long threads may take to end.
const ENDING: Duration = Duration::from_secs(5);

/// How the words are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitMode {
    /// One thread waits for up to 127 words (Linux 5.16).
    Grouped,
    /// One parked thread per word, where the kernel or its sandbox refuses the other.
    Parked,
}

/// The watch over the processes in a board's slots. Dropping it ends its threads.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Watch {
    /// Starts to watch a board on which nobody is yet, in the best mode this kernel has.
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
            outbox: NoticeQueue::new(slots, slots.saturating_mul(2).max(64))?,
            epoll: Epoll::new()?,
            poked: EventFd::new()?,
            stopping: AtomicBool::new(false),
            failures: AtomicU64::new(0),
        });
        shared.epoll.add(shared.poked.as_fd(), follow::POKED)?;
        let watch = Self {
            shared,
            threads: Mutex::new(Vec::new()),
        };
        let shared = Arc::clone(&watch.shared);
        watch.spawn("muster-follow", move || shared.follow())?;
        Ok(watch)
    }

    /// Starts to watch a board that a dead worker left: every process in a slot is followed again,
    /// and whoever died meanwhile is found.
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
        self.shared.outbox.raised.as_fd()
    }

    /// Takes all notices, in the order in which they were found (per slot).
    pub fn take(&self, notices: &mut Vec<RankNotice>) {
        self.shared.outbox.take(notices);
    }

    /// Begins to follow the process that was just given this slot: by pidfd and by sampling. Its
    /// word counts from `arm` on.
    pub fn follow(&self, slot: u32) {
        self.shared.begin(slot);
    }

    /// The client has said that it holds its word: waits for it from now on.
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

    /// Looks at a client's leave mark now: for a client that said that it leaves.
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

    /// Stops following a slot, after the verdict about it was spoken.
    pub fn forget(&self, slot: u32) {
        self.shared.forget(slot);
    }

    /// A client hung up. Stops following it if it had not held its word yet and lives on: it is no client then,
    /// and its end is nobody's business. Says whether it did.
    pub fn forget_if_withdrawn(&self, slot: u32, generation: u32) -> bool {
        let shared = &self.shared;
        let claimed = {
            let slots = shared.lock();
            let entry = slots.get(slot as usize);
            let same = entry.filter(|entry| entry.generation == generation);
            same.filter(|entry| entry.phase == Phase::Claimed)
                .map(|entry| (entry.pid, entry.start_ticks))
        };
        // A dying process closes its files when all of its threads are marked as exiting.
        let lives = |(pid, start_ticks)| classify::look(pid, start_ticks) == Fate::Stays;
        let withdrawn = claimed.is_some_and(lives);
        if withdrawn {
            self.forget(slot);
        }
        withdrawn
    }

    /// What was lost or refused, by name.
    pub fn counters(&self) -> [(&'static str, u64); 2] {
        [
            ("findings_overtaken", self.dropped()),
            ("waits_refused", self.failures()),
        ]
    }

    /// Findings that were overtaken by a later one of the same slot before they were taken.
    pub fn dropped(&self) -> u64 {
        self.shared.outbox.dropped()
    }

    /// Waits that the kernel refused; the pidfd and the sampling cover for them.
    pub fn failures(&self) -> u64 {
        self.shared.failures.load(Ordering::Relaxed)
    }

    /// How the words are waited for.
    pub fn mode(&self) -> WaitMode {
        self.shared.mode
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
        // Parked threads end with their client: do not keep what is over.
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }
}

fn tell_of_rest() {
    #[cfg(feature = "agent")]
    tracing::warn!("a thread of the watch has not ended in {ENDING:?} and is left behind");
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.poked.raise();
        let end = Instant::now() + ENDING;
        let threads = self
            .threads
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // A thread may be just about to sleep when it is woken: again until it has ended.
            while !thread.is_finished() && Instant::now() < end {
                self.shared.wake_all();
                std::thread::sleep(Duration::from_millis(1));
            }
            match thread.is_finished() {
                true => drop(thread.join()),
                // The kernel keeps it in a look at a process; it touches nothing but what it shares.
                false => tell_of_rest(),
            }
        }
    }
}

/// Where a slot's process stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// Nobody is followed.
    #[default]
    Idle,
    /// Followed by pidfd and sampling; does not hold its word yet.
    Claimed,
    /// Holds its word.
    Armed,
    /// Its holding thread ended, the process lives.
    Detached,
    /// The last word was spoken.
    Over,
}

/// What the watch keeps about a slot.
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
    /// What was said last.
    hung: Option<HungBy>,
    /// What the kernel shows.
    asleep: Option<HungBy>,
    /// It has not ticked for longer than it promised.
    tickless: bool,
    /// It was frozen when a tick was missing last.
    frozen: bool,
    /// Since when it is in uninterruptible sleep, and the processor time it had used then.
    stuck_since: Option<(u64, u64)>,
    /// Its last tick that was seen, and when it was new.
    ticked: Option<(u64, u64)>,
}

/// What the watching threads and the agent's loop share. One lock, held for moments and never while `/proc` is read;
/// who holds it runs at the loop's priority while the loop waits for it.
#[derive(Debug)]
struct Shared {
    table: Arc<StateTable>,
    mode: WaitMode,
    slots: PriorityMutex<Vec<Followed>>,
    /// A word per group: changed and woken when the group's set of words has changed.
    controls: Vec<AtomicU32>,
    started: Mutex<Vec<bool>>,
    outbox: NoticeQueue,
    epoll: Epoll,
    /// Wakes the following thread.
    poked: EventFd,
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
        // That we cannot look, for want of a descriptor, is no news about the process.
        let gone = opened.as_ref().is_err_and(procfs::is_gone);
        if let Ok(opened) = opened {
            self.keep(slot, entry, opened);
        }
        drop(slots);
        if gone {
            self.conclude_dead(slot, facts.generation, FailedBy::Gone, 0, 0);
        } else {
            // The first client makes the sampling begin.
            self.poked.raise();
        }
    }

    fn keep(&self, slot: u32, entry: &mut Followed, (stat, pidfd): (StatFile, Option<OwnedFd>)) {
        entry.stat = Some(Arc::new(stat));
        let token = follow::token(slot, entry.generation);
        entry.pidfd = pidfd.filter(|pidfd| self.epoll.add(pidfd.as_fd(), token).is_ok());
    }

    /// Opens the files of those whom we could not look at when they came.
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
                        self.keep(slot, entry, opened);
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

    /// The word of an armed slot was released so long ago: says what it means. `false` if that is not
    /// clear yet; it is, when it is looked at again for long enough.
    fn released(&self, slot: u32, generation: u32, for_ns: u64) -> bool {
        if self.conclude_if_left(slot, generation) {
            return true;
        }
        let Some((pid, start_ticks)) = self.identity(slot, generation) else {
            return true;
        };
        match classify::look(pid, start_ticks) {
            Fate::Dying { signal, exit_code } => {
                self.conclude_dead(slot, generation, FailedBy::Futex, signal, exit_code);
            }
            Fate::Leaving | Fate::Stays if for_ns < classify::CLASSIFY_WAIT_NS => return false,
            Fate::Leaving | Fate::Stays => {
                let mut slots = self.lock();
                let entry = &mut slots[slot as usize];
                if entry.generation == generation && entry.phase == Phase::Armed {
                    entry.phase = Phase::Detached;
                    self.say(slot, entry, Finding::Detached);
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

    /// Speaks `Left` if the client has announced it; says whether it has.
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

    /// The signal and the exit code of a process whose parent was faster than our look at it; zeros
    /// where that cannot be known.
    fn status_of_reaped(&self, slot: u32, generation: u32) -> (i32, i32) {
        let slots = self.lock();
        let entry = slots.get(slot as usize);
        let pidfd = entry
            .filter(|entry| entry.generation == generation)
            .and_then(|entry| entry.pidfd.as_ref());
        let status = pidfd.and_then(|pidfd| process::status_of_reaped(pidfd.as_fd()));
        status.map_or((0, 0), procfs::signal_and_code)
    }

    /// The kernel releases a held word long before it tells of the end; when both have happened the
    /// word was first, whichever of our threads had its turn first.
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

    /// Speaks the last word about a slot, once.
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
        self.say(slot, entry, finding);
        drop(slots);
        self.wake_slot(slot);
    }

    fn say(&self, slot: u32, entry: &Followed, finding: Finding) {
        let (generation, rank) = (entry.generation, entry.rank);
        self.outbox.put(RankNotice {
            slot,
            generation,
            rank,
            finding,
            at_ns: monotonic_ns(),
        });
    }

    /// Makes whoever waits for this slot's word look again.
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

/// Opens a process's files: what it looks like, and what tells of its end. An error that
/// [`procfs::is_gone`] knows says that it has ended.
fn open(pid: u32, start_ticks: u64) -> io::Result<(StatFile, Option<OwnedFd>)> {
    // The pid may have gone to somebody else since it was claimed: first the descriptor, then a look
    // whether it is of the right one.
    let pidfd = process::open_pidfd(pid);
    let stat = StatFile::open(pid)?;
    match stat.read()?.start_ticks == start_ticks {
        true => Ok((stat, pidfd.ok())),
        false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}
