//! The engines in simulated worlds: tests of single situations, random faults, studies and the checkers.

mod agreement;
mod attribute_oracle;
mod attributes;
mod burns;
mod claims;
mod common;
mod deadlines;
mod excuses;
mod facts;
mod frames;
mod groups;
mod idle;
mod jobs;
mod networks;
mod overlay;
mod overload;
mod paper;
mod push;
mod rails;
mod replays;
mod scenarios;
mod splits;
mod stories;
mod swarm;
mod zones;
