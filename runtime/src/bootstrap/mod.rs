//! How the agents of a job find each other and come by the job's key.
//!
//! An agent that starts knows its own rails and nobody else. Somebody who knows the job hands it
//! the addresses of some others and the key; after that the protocol finds the rest. Here that
//! somebody is a rank whose launcher speaks PMIx ([`pmix`]). Nothing here sends a message to
//! another node by itself.

pub mod pmix;
