//! The tests of both engines through their public interface, in one program.

mod common;

mod address;
mod attributes;
mod bad_input;
mod engines;
mod mutations;
mod paper;
mod releases;
mod reports;
mod restart_inquiry;
mod traffic;
