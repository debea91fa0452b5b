//! Muster's protocols in a simulated world.
//!
//! The same engines that `musterd` runs, in a network that one seed decides: what is lost,
//! delayed, doubled, overtaken, damaged, cut. Time is virtual and goes from event to event, so a
//! minute of a job takes a blink, and a failure found once is found again by its seed.
//!
//! The checkers stand outside the members and see all of them; no member helps to check itself.
//! What is not here: rails, CPUs, clocks that differ.
#![forbid(unsafe_code)]

mod chance;
mod checker;
mod network;
mod world;

pub use chance::Chance;
pub use checker::{Checker, Violation};
pub use network::Network;
pub use world::{NodeIndex, Record, World};
