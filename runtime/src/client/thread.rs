//! The library thread: holds the word, and otherwise sleeps until the agent has something to say.
//!
//! It exists so that the hold belongs to nobody's application thread, and so that a restart of
//! the agent is noticed by somebody. All signals are blocked in it; its stack is small.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::error::Error;
use super::session::Session;
use super::{Inner, Phase};
use crate::sys::{poll, signal};

/// Bytes. The porch may call into libpmix from here.
const STACK_SIZE: usize = 256 * 1024;

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
    is_ready.recv().map_err(|_| dead())??;
    Ok(is_over)
}

fn run(inner: &Inner, mut session: Session, ready: &SyncSender<Result<(), Error>>) {
    let held = session.hold(inner);
    let failed = held.is_err();
    let _ = ready.send(held);
    if failed {
        return;
    }
    if let Some(porch) = &inner.setting.options.porch {
        porch.on_attached(&inner.link);
        session.feed(inner);
    }
    while !inner.setting.is_stopping() {
        let socket = inner.link.0.socket();
        let mut waiting = vec![inner.setting.command.as_fd()];
        waiting.extend(socket.as_ref().map(|socket| socket.as_fd()));
        let porch = inner.setting.options.porch.as_ref();
        let _ = poll::readable(&waiting, porch.and_then(|porch| porch.next_wake()));
        let asked = inner.setting.command.drain();
        session.hear(inner);
        let connected = inner.link.is_connected();
        if !connected && !inner.setting.is_stopping() && (asked || inner.phase() == Phase::Attached)
        {
            session.mend(inner);
        }
        session.feed(inner);
    }
    session.leave(inner, inner.exit_code());
}
