//! Fences that this node's ranks wait for.

use std::time::Duration;

use super::messages::RequestId;

/// After this long the launcher reports a fence that is still open.
const REPORT_AFTER: Duration = Duration::from_secs(60);

/// A fence of this node's ranks that is not over.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) request: RequestId,
    /// It constructs a group.
    pub(crate) is_group: bool,
    /// A limit that the ranks have set.
    pub(crate) timeout_s: Option<u32>,
    pub(crate) since: Duration,
    pub(crate) is_reported: bool,
    /// The contribution, until there is room for it.
    pub(crate) held: Option<Vec<u8>>,
}

impl Waiting {
    /// After how long the fence is to be handled as late; `timeout` is that of the launcher.
    pub(crate) fn limit(&self, timeout: Duration) -> Duration {
        match self.timeout_s {
            Some(seconds) => Duration::from_secs(u64::from(seconds)),
            None if self.is_reported => timeout,
            None => REPORT_AFTER.min(timeout),
        }
    }
}
