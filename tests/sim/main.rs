//! `muster sim`: what its commands print.

mod studies;
