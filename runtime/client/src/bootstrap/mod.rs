//! Bootstrap: how the agents of a job learn each other's addresses and the job's key.
//!
//! An agent that starts knows its own rails only. A rank whose launcher speaks PMIx ([`pmix`]) gives it the
//! addresses of some other agents and the key; the membership protocol finds the remaining ones. This module sends
//! no message to another node itself.

pub mod pmix;

use std::sync::Arc;

use crate::PmixHooks;

/// Returns the PMIx integration for this process, or `None` if it has nothing to do, so that the library thread
/// does not wake needlessly. `feed_mpi` as for [`pmix::PmixIntegration::new`].
pub fn pmix_integration(feed_mpi: bool) -> Option<Arc<dyn PmixHooks>> {
    let wanted = feed_mpi || pmix::launched_by_pmix();
    wanted.then(|| Arc::new(pmix::PmixIntegration::new(feed_mpi)) as Arc<dyn PmixHooks>)
}
