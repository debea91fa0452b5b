//! `EventSource` is what the control socket hands a request for events to. The agent's journal is one; the control
//! socket does not depend on it.

use std::os::unix::net::UnixStream;

/// Which events a client asks for.
#[derive(Clone, Copy, Debug)]
pub struct EventRequest {
    /// Those with a higher number than this.
    pub since: u64,
    /// Future events, too.
    pub follow: bool,
    /// The client's user id, if that is neither the agent's user nor root.
    pub other_user: Option<u32>,
}

/// Answers requests for events.
pub trait EventSource: Send + Sync {
    /// Takes over a client. False if there is no room; the client is not answered then.
    fn read(&self, client: UnixStream, request: EventRequest) -> bool;
}
