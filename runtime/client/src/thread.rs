//! The library thread: it holds the robust futex and otherwise waits for messages of the agent.
//!
//! With it, no thread of the application holds the futex, and a restart of the agent is noticed at once. All signals
//! are blocked in it; its stack is small.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::error::Error;
use super::session::{ATTEMPTS, Session};
use super::{Inner, Phase};
use muster_sys::{poll, signal};

/// Bytes. The hooks may call into libpmix from this thread.
const STACK_SIZE: usize = 256 * 1024;
/// The pause after the first search for another agent, and the longest one: each pause is twice the one before.
const SEARCH_PAUSE_MIN: Duration = Duration::from_secs(1);
const SEARCH_PAUSE_MAX: Duration = Duration::from_secs(30);

/// How long the thread has at least to start, however little time is left to attach.
const START_TIME_MIN: Duration = Duration::from_secs(1);

/// Starts the thread and waits until it holds the futex. The returned channel signals the end of the thread.
pub(super) fn start(inner: &Arc<Inner>, session: Session) -> Result<Receiver<()>, Error> {
    let (ready, is_ready) = sync_channel(1);
    let (ended, is_ended) = sync_channel(1);
    let builder = std::thread::Builder::new()
        .name("muster-events".into())
        .stack_size(STACK_SIZE);
    let own = Arc::clone(inner);
    let started = signal::with_all_blocked(|| {
        builder.spawn(move || {
            run(&own, session, &ready);
            let _ = ended.send(());
        })
    });
    started.map_err(Error::system("start the library thread"))?;
    let ended_early = || Error::Protocol {
        found: "a thread that has ended".into(),
        expected: "the library thread",
    };
    match is_ready.recv_timeout(inner.setting.options.deadline.max(START_TIME_MIN)) {
        Ok(held) => held?,
        Err(RecvTimeoutError::Disconnected) => return Err(ended_early()),
        Err(RecvTimeoutError::Timeout) => {
            // The thread ends as soon as it can.
            inner.setting.stopping.store(true, Ordering::Release);
            inner.setting.command.raise();
            return Err(Error::Protocol {
                found: "a thread that does not run".into(),
                expected: "the library thread",
            });
        }
    }
    Ok(is_ended)
}

fn run(inner: &Inner, mut session: Session, ready: &SyncSender<Result<(), Error>>) {
    let held = session.hold(inner);
    let failed = held.is_err();
    let _ = ready.send(held);
    if failed {
        return;
    }
    session.report_attached(inner);
    session.report_events(inner);
    let mut search = Search::default();
    while !inner.setting.is_stopping() {
        let socket = inner.link.0.socket();
        let mut waiting = vec![inner.setting.command.as_fd()];
        waiting.extend(socket.as_ref().map(|socket| socket.as_fd()));
        let pmix_integration = inner.setting.options.pmix_integration.as_ref();
        let hooks_wake = pmix_integration.and_then(|pmix_integration| pmix_integration.next_wake());
        let wake = [hooks_wake, search.next_wake()].into_iter().flatten().min();
        let _ = poll::readable(&waiting, wake);
        let requested = inner.setting.command.drain();
        session.receive(inner);
        if !inner.link.is_connected() && !inner.setting.is_stopping() {
            search.continue_search(inner, &mut session, requested);
        }
        session.report_events(inner);
    }
    session.leave(inner, inner.exit_code());
}

/// The search for another agent, while there is none.
#[derive(Default)]
struct Search {
    /// The time of the next attempt, and the pause before it.
    again: Option<(Instant, Duration)>,
}

impl Search {
    fn next_wake(&self) -> Option<Duration> {
        self.again
            .map(|(at, _)| at.saturating_duration_since(Instant::now()))
    }

    /// Searches at once, with several attempts, after a loss or on request; then with longer and longer pauses.
    fn continue_search(&mut self, inner: &Inner, session: &mut Session, requested: bool) {
        let now = Instant::now();
        let pause = match self.again {
            _ if requested || inner.phase() == Phase::Attached => {
                session.reattach(inner, ATTEMPTS, None);
                SEARCH_PAUSE_MIN
            }
            Some((at, pause)) if now >= at => {
                session.reattach(inner, 1, None);
                SEARCH_PAUSE_MAX.min(2 * pause)
            }
            Some(_) => return,
            None => SEARCH_PAUSE_MIN,
        };
        self.again = (!inner.link.is_connected()).then(|| (Instant::now() + pause, pause));
    }
}
