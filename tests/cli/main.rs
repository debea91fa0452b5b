//! What operators type: `muster` and its commands, the metrics, the demo.

mod bench;
mod demo;
mod doctor;
mod metrics;
mod musterd_input;
mod operator;
mod report;
