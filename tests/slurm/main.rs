//! The plugin for `srun`, in a real Slurm.

mod default;
mod health;
mod input;
mod run;
mod signals;
mod steps;
mod topology;
