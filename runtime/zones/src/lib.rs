//! Zones: the hierarchy of membership zones of a large job.
//!
//! Every node of a job is a member of one *base zone*, whose members observe each other as those of a small job do.
//! A few nodes of each zone, its *zone supervisors*, are members of a zone of the level above too, and so on up to
//! one highest zone. [`ZoneMap`] is the value that says which node belongs where; all nodes of a job have the same.
//! [`plan`] makes it from what is known about the machine; [`choose`] and [`guards`] assign roles to nodes,
//! and [`Assignment`] has those of all zones. [`Tree`] is the membership of one node.
//!
//! Layers, from bottom to top: `limits`, `error`, `directory`; `map`, `rank_runs`; `roles`; `assignment` and `plan`;
//! `tree`.
//!
//! The crate is pure. It does not know files, Slurm, or the network: `muster-config` reads what a user writes.
//!
//! Source: Tock, Mandler, Moreira, Jones: "Design and implementation of a scalable membership service for
//! supercomputer resiliency-aware runtime" (Euro-Par 2013), sections 2 and 5.
#![forbid(unsafe_code)]

mod assignment;
mod directory;
mod error;
mod limits;
mod map;
mod plan;
mod rank_runs;
mod roles;
mod runs;
mod tree;

pub use assignment::{Assignment, GUARDS, ZoneRoles};
pub use directory::{Directory, NodeIndex};
pub use error::{Contradiction, MapError};
pub use limits::{DEPTH_MAX, NODES_MAX, PATH_MAX, SUPERVISORS, ZONE_MEMBERS_MAX};
pub use map::{Merged, ROOT, ZoneEntry, ZoneId, ZoneMap};
pub use plan::{Aim, Switch, plan};
pub use rank_runs::RankRuns;
pub use roles::{CANDIDATES, Role, candidates, choose, guards};
pub use tree::{
    DegradedAttribute, Tree, TreeConfig, TreeError, TreeEvent, ZONES_KEYS, zone_number,
};
