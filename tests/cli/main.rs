//! The operators' commands: `muster`, the metrics, the demo.

mod bench;
mod demo;
mod doctor;
mod metrics;
mod musterd_input;
mod operator;
mod report;
mod top;
mod zones;
