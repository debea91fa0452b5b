//! Notifications to systemd for a service with `Type=notify`: that it is ready, that its loop runs, and that it ends.
//!
//! Without `NOTIFY_SOCKET` nothing is sent. A failed notification is only logged: it does not affect the agent.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use tracing::warn;

/// The rails are open and the loop begins.
pub(super) const READY: &str = "READY=1";
/// The loop has ended.
pub(super) const STOPPING: &str = "STOPPING=1";

/// The loop runs.
const ALIVE: &str = "WATCHDOG=1";
/// Minimum time between two notifications, however short systemd's time-out is.
const PAUSE_MIN_US: u64 = 1_000;

/// The service watchdog: systemd restarts the service if the loop hangs. The loop itself sends a notification twice
/// in the time-out of systemd (`WatchdogSec=`).
pub(super) struct Watchdog {
    pause_us: u64,
    due_us: u64,
}

impl Watchdog {
    /// Reads systemd's variables. None if systemd does not expect notifications of this process.
    pub(super) fn from_environment() -> Option<Self> {
        let number = |name: &str| {
            let text = std::env::var(name).ok()?;
            let number = text.parse::<u64>().ok().filter(|number| *number > 0);
            if number.is_none() {
                warn!(
                    "{name} is {text:?}, which is not a positive number; systemd's watchdog is not notified; unset it"
                );
            }
            Some(number)
        };
        let pause_us = number("WATCHDOG_USEC")?? / 2;
        match number("WATCHDOG_PID") {
            Some(pid) if pid != Some(u64::from(std::process::id())) => None,
            _ => Some(Self {
                pause_us: pause_us.max(PAUSE_MIN_US),
                due_us: 0,
            }),
        }
    }

    /// Sends a notification, if it is time.
    pub(super) fn notify_if_due(&mut self, now_us: u64) {
        if self.due_us <= now_us {
            self.due_us = now_us + self.pause_us;
            notify(ALIVE);
        }
    }

    pub(super) fn due_us(&self) -> u64 {
        self.due_us
    }
}

/// Sends a state to systemd, if it expects notifications.
pub(super) fn notify(state: &str) {
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(cause) = send(&path, state) {
        warn!(%path, %cause, "cannot send {state} to systemd; check NOTIFY_SOCKET");
    }
}

/// Sends a datagram. A path that begins with @ is a name in the abstract namespace.
fn send(path: &str, state: &str) -> io::Result<()> {
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A receiver that does not read must not block the agent.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_sent_to_a_path_or_to_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("muster-notify-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, path_or_name) in [
            (UnixDatagram::bind(&path), path.display().to_string()),
            (
                UnixDatagram::bind_addr(&abstract_address),
                format!("@{name}"),
            ),
        ] {
            let socket = socket.unwrap();
            send(&path_or_name, READY).unwrap();
            let mut state = [0; 64];
            let length = socket.recv(&mut state).unwrap();
            assert_eq!(&state[..length], READY.as_bytes());
        }
        assert!(send("/nonexistent/notify", READY).is_err());
    }
}
