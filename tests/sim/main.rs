//! `muster sim`: the output of its commands.

mod studies;
