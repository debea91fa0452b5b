//! The shared client of a process: several threads that attach and detach, with a fork meanwhile.
//!
//! There is one per process, so these tests run one after the other, in a binary of their own.

mod support;

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_client::{Client, Error, Options, PmixHooks, shared};
use muster_ipc::{RefusalCode, ToClient};
use muster_sys::process::{open_pidfd, send_signal};
use muster_sys::socket::PacketListener;
use muster_sys::{fork, poll};
use support::agent::{Agent, directory, options};
use support::{DEADLINE, raw};
use tempfile::tempdir;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn at_once(base: &std::path::Path) -> Options {
    Options {
        deadline: Duration::ZERO,
        ..options(base)
    }
}

/// While one thread attaches, no other caller hangs: neither another thread, which has its own deadline, nor
/// a forked child, which is a process of its own.
#[test]
fn no_caller_hangs_on_a_thread_that_attaches() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let base = tempdir().unwrap();
    let directory = directory(base.path());
    directory.prepare().unwrap();
    // A listener that accepts no client for now.
    let listener = PacketListener::bind(&directory.socket()).unwrap();
    let slow = options(base.path());
    let attaching = std::thread::spawn(move || shared::init(slow));
    assert!(poll::readable(&[listener.as_fd()], Some(DEADLINE)).unwrap()[0]);
    let connection = listener.accept().unwrap().unwrap();

    let cause = shared::init(at_once(base.path())).unwrap_err();
    assert!(cause.to_string().contains("another thread"), "{cause}");
    let before = fork::generation();
    let child = raw::fork(|| {
        let tried = shared::init(at_once(base.path()));
        i32::from(fork::current() == before || !matches!(tried, Err(Error::Deadline { .. })))
    });
    let pidfd = open_pidfd(child).unwrap();
    let ended = poll::readable(&[pidfd.as_fd()], Some(DEADLINE)).unwrap()[0];
    if !ended {
        send_signal(child, libc::SIGKILL).unwrap();
    }
    assert_eq!(raw::reap(child), 0);

    let refusal = ToClient::Refused(RefusalCode::Full, "intended by the test".into());
    connection.send(&refusal.encode(), None).unwrap();
    let refused = attaching.join().unwrap().unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
}

/// Attaches again while the last user detaches.
struct AttachAgain {
    options: Options,
    result: Mutex<Vec<Result<Client, Error>>>,
}

impl PmixHooks for AttachAgain {
    fn before_detach(&self) {
        let options = self.options.clone();
        let result = std::thread::spawn(move || shared::init(options)).join();
        self.result.lock().unwrap().push(result.unwrap());
    }
}

#[test]
fn an_attach_during_the_last_detach_waits() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let pmix_integration = Arc::new(AttachAgain {
        options: at_once(base.path()),
        result: Mutex::default(),
    });
    let with_hooks = Options {
        pmix_integration: Some(pmix_integration.clone()),
        ..options(base.path())
    };
    shared::init(with_hooks).unwrap();
    agent.await_armed();
    assert_eq!(shared::finalize(0).unwrap(), 0);
    let result = std::mem::take(&mut *pmix_integration.result.lock().unwrap());
    // It had no time to wait. An earlier version reported that this process is attached already.
    let text = |result: &Result<Client, Error>| match result {
        Err(cause) => cause.to_string(),
        Ok(_) => "attached".to_owned(),
    };
    assert!(
        text(&result[0]).contains("another thread"),
        "{}",
        text(&result[0])
    );
    shared::init(options(base.path())).unwrap();
    assert_eq!(shared::finalize(0).unwrap(), 0);
}
