//! What systemd is told of a service that it started with `Type=notify`: that it serves, that its loop goes round, and
//! that it ends.
//!
//! Where `NOTIFY_SOCKET` names no socket nobody wants to know. A word that cannot be said costs nothing but
//! the line in the log: the service is the same with and without it.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use tracing::warn;

/// The rails are open and the loop begins.
pub(super) const READY: &str = "READY=1";
/// The loop has ended.
pub(super) const STOPPING: &str = "STOPPING=1";

/// The loop goes round.
const ALIVE: &str = "WATCHDOG=1";
/// However short systemd's patience is, it is not told more often.
const PAUSE_LEAST_US: u64 = 1_000;

/// Has systemd start the service again if the loop hangs: told by the loop itself, twice in the time that
/// systemd waits (`WatchdogSec=`).
pub(super) struct Watchdog {
    pause_us: u64,
    due_us: u64,
}

impl Watchdog {
    /// If systemd waits for word of this very process.
    pub(super) fn ask() -> Option<Self> {
        let number = |name: &str| {
            let text = std::env::var(name).ok()?;
            let number = text.parse::<u64>().ok().filter(|number| *number > 0);
            if number.is_none() {
                warn!(
                    "{name} is {text:?} and no number: systemd's watchdog is not served; unset it"
                );
            }
            Some(number)
        };
        let pause_us = number("WATCHDOG_USEC")?? / 2;
        match number("WATCHDOG_PID") {
            Some(pid) if pid != Some(u64::from(std::process::id())) => None,
            _ => Some(Self {
                pause_us: pause_us.max(PAUSE_LEAST_US),
                due_us: 0,
            }),
        }
    }

    /// Tells it, if it is time.
    pub(super) fn look(&mut self, now_us: u64) {
        if self.due_us <= now_us {
            self.due_us = now_us + self.pause_us;
            tell(ALIVE);
        }
    }

    pub(super) fn due_us(&self) -> u64 {
        self.due_us
    }
}

/// Says a word to who started us, if that is somebody who listens.
pub(super) fn tell(word: &str) {
    let Ok(path) = std::env::var("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(cause) = say(&path, word) {
        warn!(%path, %cause, "systemd cannot be told {word}; see NOTIFY_SOCKET");
    }
}

/// A name that begins with @ is one of the abstract namespace.
fn say(path: &str, word: &str) -> io::Result<()> {
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A reader that does not read holds no agent up.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(word.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_goes_to_a_path_or_to_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("muster-notify-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, place) in [
            (UnixDatagram::bind(&path), path.display().to_string()),
            (
                UnixDatagram::bind_addr(&abstract_address),
                format!("@{name}"),
            ),
        ] {
            let socket = socket.unwrap();
            say(&place, READY).unwrap();
            let mut word = [0; 64];
            let length = socket.recv(&mut word).unwrap();
            assert_eq!(&word[..length], READY.as_bytes());
        }
        assert!(say("/nonexistent/notify", READY).is_err());
    }
}
