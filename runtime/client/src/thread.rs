//! The library thread: holds the word, and otherwise sleeps until the agent has something to say.
//!
//! It exists so that the hold belongs to nobody's application thread, and so that a restart of
//! the agent is noticed by somebody. All signals are blocked in it; its stack is small.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::error::Error;
use super::session::{ATTEMPTS, Session};
use super::{Inner, Phase};
use muster_sys::{poll, signal};

/// Bytes. The porch may call into libpmix from here.
const STACK_SIZE: usize = 256 * 1024;
/// How long after an agent was lost another is looked for first, and at the longest: each time it
/// takes twice as long.
const LOOK_LEAST: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(30);

/// How long the thread has at least to begin, whatever time is left to attach.
const LEAST: Duration = Duration::from_secs(1);

/// Starts the thread and waits until it holds the word. What it sends at its end is whether it
/// left in order.
pub(super) fn start(inner: &Arc<Inner>, session: Session) -> Result<Receiver<()>, Error> {
    let (ready, is_ready) = sync_channel(1);
    let (over, is_over) = sync_channel(1);
    let builder = std::thread::Builder::new()
        .name("muster-events".into())
        .stack_size(STACK_SIZE);
    let own = Arc::clone(inner);
    let started = signal::with_all_blocked(|| {
        builder.spawn(move || {
            run(&own, session, &ready);
            let _ = over.send(());
        })
    });
    started.map_err(Error::system("start the library thread"))?;
    let dead = || Error::Protocol {
        found: "a dead thread".into(),
        expected: "the library thread",
    };
    match is_ready.recv_timeout(inner.setting.options.deadline.max(LEAST)) {
        Ok(held) => held?,
        Err(RecvTimeoutError::Disconnected) => return Err(dead()),
        Err(RecvTimeoutError::Timeout) => {
            // It ends as soon as it can.
            inner.setting.stopping.store(true, Ordering::Release);
            inner.setting.command.raise();
            return Err(Error::Protocol {
                found: "a thread that does not run".into(),
                expected: "the library thread",
            });
        }
    }
    Ok(is_over)
}

fn run(inner: &Inner, mut session: Session, ready: &SyncSender<Result<(), Error>>) {
    let held = session.hold(inner);
    let failed = held.is_err();
    let _ = ready.send(held);
    if failed {
        return;
    }
    session.introduce(inner);
    session.feed(inner);
    let mut search = Search::default();
    while !inner.setting.is_stopping() {
        let socket = inner.link.0.socket();
        let mut waiting = vec![inner.setting.command.as_fd()];
        waiting.extend(socket.as_ref().map(|socket| socket.as_fd()));
        let pmix_integration = inner.setting.options.pmix_integration.as_ref();
        let porch_wake = pmix_integration.and_then(|pmix_integration| pmix_integration.next_wake());
        let wake = [porch_wake, search.next_wake()].into_iter().flatten().min();
        let _ = poll::readable(&waiting, wake);
        let asked = inner.setting.command.drain();
        session.hear(inner);
        if !inner.link.is_connected() && !inner.setting.is_stopping() {
            search.go_on(inner, &mut session, asked);
        }
        session.feed(inner);
    }
    session.leave(inner, inner.exit_code());
}

/// The search for another agent, while there is none.
#[derive(Default)]
struct Search {
    /// The next look, and the pause before it.
    again: Option<(Instant, Duration)>,
}

impl Search {
    fn next_wake(&self) -> Option<Duration> {
        self.again
            .map(|(at, _)| at.saturating_duration_since(Instant::now()))
    }

    /// Looks at once, and hard, after a loss or if somebody asks; then more and more seldom.
    fn go_on(&mut self, inner: &Inner, session: &mut Session, asked: bool) {
        let now = Instant::now();
        let pause = match self.again {
            _ if asked || inner.phase() == Phase::Attached => {
                session.mend(inner, ATTEMPTS, None);
                LOOK_LEAST
            }
            Some((at, pause)) if now >= at => {
                session.mend(inner, 1, None);
                LOOK_MAX.min(2 * pause)
            }
            Some(_) => return,
            None => LOOK_LEAST,
        };
        self.again = (!inner.link.is_connected()).then(|| (Instant::now() + pause, pause));
    }
}
