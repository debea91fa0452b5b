//! The checkers that examine the whole world, not one event.
//!
//! At intervals: `memory`, `traffic` and `copies` ([`bounds`]). At the end: `equality`, `completeness`, `ranks`,
//! `rank-ends`, `news`, `attributes` ([`end`]).

pub(crate) mod bounds;
pub(crate) mod end;

pub use bounds::Bounds;
