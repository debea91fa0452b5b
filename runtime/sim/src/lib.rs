//! The protocols in a simulated world.
#![forbid(unsafe_code)]
