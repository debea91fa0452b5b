//! The protocols as pure state machines.
#![forbid(unsafe_code)]
