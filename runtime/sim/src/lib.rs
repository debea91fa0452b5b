//! Muster's protocols in a simulated world.
//!
//! `muster-sim` runs the same engines as `musterd` in a network that a seed controls: datagrams are lost,
//! delayed, duplicated, reordered, damaged, cut. Time is virtual and jumps from event to event, so a
//! simulated minute takes milliseconds, and a seed reproduces a failure.
//!
//! The checkers are outside of the members and see all of them; no member takes part in checking itself. A
//! [`Scenario`] lists what can happen; a seed draws from it what does happen; a [`Report`] states how the run
//! ended. A failing scenario is shrunk until nothing more can be left out.
//!
//! Not modelled: providers of rails, caches, interrupts.
#![forbid(unsafe_code)]

mod chance;
mod checker;
mod clock;
mod cluster;
mod compare;
mod idle;
mod inspection;
mod job;
mod lamport;
mod network;
mod run;
mod scenario;
mod shrink;
mod story;
mod study;
mod sweep;
mod trace;
mod world;
mod zones;

pub use chance::Chance;
pub use checker::{Checker, Violation};
pub use cluster::{
    Agreement, Axis, CLUSTER, ClusterFigure, ClusterSetting, Gossiping, Line, PaperPoint,
    PointFound, Start, run_cluster,
};
pub use compare::{CompareSetting, Compared, Contender, compare};
pub use idle::{IdleMember, Replayed, record_idle};
pub use inspection::Bounds;
pub use job::{Change, Changed, JobPlan, JobProgress, JobReport, JobScenario, Spread, run_job};
pub use lamport::{LamportFound, LamportSetting, study_lamport};
pub use network::Network;
pub use run::{Figures, Outcome, Report, run};
pub use scenario::{Fault, FaultKind, Plan, Scenario, ScenarioError, Span};
pub use shrink::{Shrunk, shrink};
pub use story::story;
pub use study::{Measured, Timing, ZoneSetting, engine_memory, study};
pub use sweep::{Sweep, sweep};
pub use world::{Cpus, FactsHeard, NodeIndex, Record, Recording, World};
pub use zones::{
    STUDY_ZONES_MIN, ZonedMeasured, ZonedReport, ZonedSetting, run_zoned, study_zoned,
};
