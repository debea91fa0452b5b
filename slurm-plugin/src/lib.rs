//! SPANK plugin `muster_spank.so`: `srun --muster[=OPTION,...]` gives a step an agent on each node.
//!
//! The user's side (srun) checks the option and draws the job's key, which travels in the launch message's
//! environment. The node's side (slurmstepd) takes it out of there before any task is made, starts
//! `musterd` as the user, and tells tasks by `MUSTER_*` how to find it. Nothing that goes wrong here fails
//! a job. That a task has ended the kernel tells the agent of those that have attached; Slurm tells it of all.

#![deny(unsafe_code)]
// In a test there is no Slurm to call.
#![cfg_attr(test, allow(dead_code))]

mod options;
#[cfg(not(test))]
mod plugin;
#[cfg(not(test))]
mod spank;
mod start;
