//! SPANK plugin `muster_spank.so`: `srun --muster[=OPTION,...]` starts an agent on each node of a step.
//!
//! In srun, the plugin checks the option and generates the job's key, which is sent in the launch message's
//! environment. On the node, slurmstepd removes the key from the environment before it creates any task, starts
//! `musterd` as the user, and sets `MUSTER_*` variables by which tasks find it. No failure in the plugin fails
//! a job. The kernel reports to the agent the end of tasks that have attached; Slurm reports the end of all tasks.

#![deny(unsafe_code)]
// Tests do not call Slurm.
#![cfg_attr(test, allow(dead_code))]

mod options;
#[cfg(not(test))]
mod plugin;
#[cfg(not(test))]
mod spank;
mod start;
