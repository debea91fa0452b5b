//! Muster's protocols in a simulated world.
//!
//! The same engines that `musterd` runs, in a network that one seed decides: what is lost,
//! delayed, doubled, overtaken, damaged, cut. Time is virtual and goes from event to event, so a
//! minute of a job takes a blink, and a failure found once is found again by its seed.
//!
//! The checkers stand outside the members and see all of them; no member helps to check itself.
//! A [`Scenario`] says what can happen; a seed draws from it what does happen; a [`Report`] says
//! how it ended, and the scenario of a failure is shrunk until nothing in it can be left out.
//! What is not here: rails, CPUs.
#![forbid(unsafe_code)]

mod chance;
mod checker;
mod clock;
mod cluster;
mod compare;
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

pub use chance::Chance;
pub use checker::{Bounds, Checker, Violation};
pub use cluster::{
    Agreement, Axis, CLUSTER, ClusterFigure, ClusterSetting, Gossiping, Line, PaperPoint,
    PointFound, Start, run_cluster,
};
pub use compare::{CompareSetting, Compared, Contender, compare};
pub use lamport::{LamportFound, LamportSetting, study_lamport};
pub use network::Network;
pub use run::{Figures, Outcome, Report, run};
pub use scenario::{Fault, FaultKind, Plan, Scenario, ScenarioError, Span};
pub use shrink::{Shrunk, shrink};
pub use story::story;
pub use study::{Measured, Timing, ZoneSetting, engine_memory, study};
pub use sweep::{Sweep, sweep};
pub use world::{Cpus, FactsHeard, NodeIndex, Record, Recording, World};
