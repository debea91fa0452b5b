//! How the agents of a job find each other and come by the job's key.
//!
//! An agent that starts knows its own rails and nobody else. Somebody who knows the job hands it
//! the addresses of some others and the key; after that the protocol finds the rest. Here that
//! somebody is a rank whose launcher speaks PMIx ([`pmix`]). Nothing here sends a message to
//! another node by itself.

pub mod pmix;

use std::sync::Arc;

use crate::PmixHooks;

/// The porch that fits how this process was started: none where there is nothing to do, so that
/// its library thread is not woken for nothing. `feed_mpi` as for [`pmix::PmixIntegration::new`].
pub fn pmix_integration(feed_mpi: bool) -> Option<Arc<dyn PmixHooks>> {
    let wanted = feed_mpi || pmix::launched_by_pmix();
    wanted.then(|| Arc::new(pmix::PmixIntegration::new(feed_mpi)) as Arc<dyn PmixHooks>)
}
