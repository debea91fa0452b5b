//! `muster sim`: the output of its commands.

mod instructions;
mod studies;
