//! `muster run` and other launchers: jobs of a real MPI on emulated nodes, over ssh and on hosts.

mod alone;
mod ends;
mod hosts;
mod input;
mod jobs;
mod launchers;
mod loss;
mod losses;
mod place;
mod pmix;
mod ssh;
mod survival;
mod words;
mod zones;
